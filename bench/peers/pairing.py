"""A point of a peer and the same work of ours, measured in turns in one run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import torch

from bench import sweep
from bench.case import Case, Check, Facts, Point, Scope, Skip
from bench.cases import CASES
from bench.measure import PLANS, Timed, rates
from bench.peers.catalogue import PeerJob
from bench.peers.check import correctness
from bench.peers.process import PeerError, PeerProcess
from bench.record import Checks, Context, Measurement, Metric, Record, Status, sweep_command
from bench.stats import Ratio, log_ratios
from bench.verdicts.turns import QUADS, by_quad, quads
from bench.verdicts.worker import Reply, Side, SideError
from warpdrive_min.backends import availability

CASE: Final = "peer"
VERSION: Final = 1
LEAST_QUADS: Final = 4
"""Turns A B B A, of which each gives two samples of a side."""
ON_CUDA: Final = ("pycuda", "numba")
ON_CPU: Final = ("host", "cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What all points of a run share."""

    context: Context
    pythons: Mapping[str, str]
    """The interpreter of each package."""
    timeout_s: float
    """Longest wait for an answer of a peer, s."""
    backend: str | None = None
    """Ours; None: the first that can run on the peer's kind of device."""


class Watch:
    """A stopwatch in the peer's process: it counts the runs of a block, and has them done and timed there."""

    def __init__(self, process: PeerProcess) -> None:
        self._process = process
        self._runs = 0

    def run(self) -> None:
        """Ask for one more run."""
        self._runs += 1

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Return the wall time of a block, ns."""
        self._runs = 0
        block()
        return self._process.ask("time", runs=self._runs)["wall_ns"], None


@dataclass(slots=True)
class Outcome:
    """What came of a point; filled as far as it went."""

    status: Status = "ok"
    reason: str | None = None
    theirs: Reply | None = None
    """What the peer said of its work."""
    sides: list[Reply] = field(default_factory=list)
    """Both after their set-up, the peer first; with ``after``, their last check."""
    samples: tuple[list[Reply], list[Reply]] | None = None
    our_job: sweep.Job | None = None


def measure(job: PeerJob, run: Run, ours: Side) -> list[Record]:
    """Measure a point in turns with ours; returns the peer's record, and ours if it came to that. Waits.

    A peer that cannot run, or breaks in whatever way, ends as a record that says so.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    outcome = Outcome()
    try:
        _attempt(job, run, ours, outcome)
    except Skip as skip:
        outcome.status, outcome.reason = "skipped", str(skip)
    except SideError as error:
        outcome.status = "skipped" if error.kind == "Skip" else "failed"
        outcome.reason = str(error).removeprefix(f"{PeerError.__name__}: ")
    except PeerError as error:
        outcome.status, outcome.reason = "failed", str(error)
    times = (started, time.perf_counter() - clock)
    theirs = _record(job, run, outcome, times)
    if outcome.status != "ok":
        return [theirs]
    return [theirs, _ours(run, outcome, times)]


def _attempt(job: PeerJob, run: Run, ours: Side, outcome: Outcome) -> None:
    plan = PLANS[run.context.preset]
    with PeerProcess(
        job.peer.name, job.peer.install, run.pythons.get(job.peer.package, run.pythons[""]), run.timeout_s
    ) as process:
        theirs = _side(job, process, outcome)
        outcome.sides.append(theirs.set_up(CASE, job.point, plan.sample_s, plan.warm_up_cap_s))
        assert outcome.theirs is not None, "a peer that is set up has said what it does"
        case, point = job.ours(run.backend or _counterpart(outcome.theirs["device"]))
        try:
            outcome.sides.append(ours.set_up(case, point, plan.sample_s, plan.warm_up_cap_s))
        except SideError as error:
            raise SideError(error.kind, f"ours, {case} on {point['backend']}: {error}") from error
        outcome.our_job = sweep.Job(CASES[case], point)
        outcome.samples = quads(theirs, ours, max(LEAST_QUADS, QUADS[run.context.preset]))
        for each, seen in zip((theirs, ours), outcome.sides, strict=True):
            seen["after"] = each.finish()["check"]


def _side(job: PeerJob, process: PeerProcess, outcome: Outcome) -> Side:
    """Return a peer as a side that can be timed; what it says of its work goes to the outcome."""
    watch = Watch(process)

    def setup(point: Point) -> Timed:
        said = outcome.theirs = process.ask("set_up", adapter=job.peer.adapter, point=job.given)
        env_steps = said["env_steps"]
        return Timed(
            run=watch.run,
            synchronize=_nothing,
            check=lambda: correctness(point["env"], process.ask("trace")),
            facts=Facts(
                mode=said["mode"],
                device=torch.device(said["device"]),
                threads=said["threads"],
                work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
                notes=said["notes"],
            ),
            stopwatch=watch,
        )

    case = Case(
        name=CASE,
        title="other people's software, in turns with ours",
        scope=_scope(job),
        version=VERSION,
        workload=Timed,
        points=job.peer.points,
        setup=setup,
    )
    return Side({CASE: case})


def _nothing() -> None:
    """Wait for nothing: the peer's process has waited."""


def _scope(job: PeerJob) -> Scope:
    return "train" if job.axes["work"] == "train" else "env"


def _counterpart(device: str) -> str:
    """Return our fastest backend on a kind of device.

    Raises:
        Skip: None can run here.
    """
    states = availability()
    names = ON_CUDA if device == "cuda" else ON_CPU
    for name in names:
        if states[name].available:
            return name
    raise Skip("ours: " + "; ".join(f"{name} is {states[name]}" for name in names))


# ------------------------------------------------------------------ records


def _record(job: PeerJob, run: Run, outcome: Outcome, times: tuple[datetime, float]) -> Record:
    said = outcome.theirs or {}
    notes = dict(said.get("notes", {}))
    found: dict[str, Metric] | None = None
    if said:
        notes |= {
            "version": said["versions"].get(job.peer.package),
            "versions": said["versions"],
            "counts": said["counts"],
        }
    if outcome.status == "ok":
        theirs, ours = outcome.sides
        faster = ratio(outcome)
        our_metrics = rates(_measurement(outcome, 1), ours["work"])
        found = rates(_measurement(outcome, 0), theirs["work"])
        found["ours_env_steps_per_s"] = our_metrics["env_steps_per_s"]
        found["ours_over_peer"] = Metric(
            value=faster.value, unit="x", direction="higher", low=faster.low, high=faster.high
        )
        assert outcome.our_job is not None, "what was measured had a job"
        notes["ours"] = {"case": outcome.our_job.case.name, "point": dict(outcome.our_job.point)}
    words = ["python", "-m", "bench", "peers", "--preset", run.context.preset, "--peer", job.peer.name]
    for name, value in job.axes.items():
        words += ["--where", f"{name}={value}"]
    return Record(
        case=CASE,
        case_version=VERSION,
        scope=_scope(job),
        point=dict(job.point),
        status=outcome.status,
        reason=outcome.reason,
        metrics=found,
        command=shlex.join(words),
        notes=notes,
        **_shared(run, outcome, 0, times),
    )


def _ours(run: Run, outcome: Outcome, times: tuple[datetime, float]) -> Record:
    job = outcome.our_job
    assert job is not None, "what was measured had a job"
    return Record(
        case=job.case.name,
        case_version=job.case.version,
        scope=job.case.scope,
        point=dict(job.point),
        status="ok",
        reason=None,
        metrics=rates(_measurement(outcome, 1), outcome.sides[1]["work"]),
        command=sweep_command(job.case, job.point, run.context.preset),
        notes={**outcome.sides[1]["notes"], "taken": "in turns with a peer"},
        **_shared(run, outcome, 1, times),
    )


def _shared(run: Run, outcome: Outcome, index: int, times: tuple[datetime, float]) -> dict[str, Any]:
    """Return the fields of a record that do not tell a peer from ours; ``index`` says which of the sides it is of."""
    context, side = run.context, outcome.sides[index] if outcome.status == "ok" else None
    measurement = _measurement(outcome, index) if side else None
    why = {"roofline": "a comparison is of times alone", "telemetry": "two processes take turns on the device"}
    return {
        "run_id": context.run_id,
        "preset": context.preset,
        "mode": side["mode"] if side else None,
        "threads": side["threads"] if side else None,
        "samples_ns": list(measurement.samples_ns) if measurement else None,
        "device_ns": list(measurement.device_ns) if measurement and measurement.device_ns else None,
        "runs_per_sample": side["runs_per_sample"] if side else None,
        "work_per_run": side["work"] if side else None,
        "n": len(measurement.samples_ns) if measurement else None,
        "stop_reason": measurement.stop_reason if measurement else None,
        "warm_up": side["warm_up"] if side else None,
        "roofline": None,
        "correctness": _correctness(side) if side else None,
        "telemetry": None,
        "machine": dict(context.machine),
        "git": dict(context.git),
        "dependencies_hash": context.dependencies_hash,
        "started_at": times[0].isoformat(timespec="seconds"),
        "duration_s": round(times[1], 3),
        "unread": why if side else {},
    }


def _measurement(outcome: Outcome, index: int) -> Measurement:
    assert outcome.samples is not None, "what was measured has samples"
    samples = outcome.samples[index]
    devices = tuple(sample["device_ns"] for sample in samples if sample["device_ns"] is not None)
    walls = tuple(sample["wall_ns"] for sample in samples)
    reason = f"{len(samples) // 2} turns A B B A"
    return Measurement(samples_ns=walls, device_ns=devices or None, stop_reason=reason)


def ratio(outcome: Outcome) -> Ratio:
    """Return how many times as fast ours is, over the turns."""
    assert outcome.samples is not None, "what was measured has samples"
    theirs, ours = (
        by_quad(samples, side["work"]["env_steps"])
        for samples, side in zip(outcome.samples, outcome.sides, strict=True)
    )
    return Ratio.of_logs(log_ratios(ours, theirs), between_processes=False)


def _correctness(side: Reply) -> Checks:
    return Checks.of(Check(**side["check"]), Check(**side["after"]))
