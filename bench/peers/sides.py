"""Points of peers, timed interleaved with the same work of ours."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from warpdrive_min.backends import availability, cache

from ..core.case import Case
from ..core.errors import NotComparable, Skip
from ..core.machine import card_hash, fingerprint
from ..core.measure import ColdStart, MeasureError, Timed, Workload
from ..core.point import Check, Facts, Measurement, Metric, Point, command_line, conditions
from ..core.record import Comparison, Context, Host, Record, StartTime, parsed
from ..judge.evidence import remarks
from ..process import interleaved
from ..process.rounds import Side
from ..process.server import Server
from ..process.worker import Message, Start, Worker, WorkerError
from ..workloads.cases import CASES
from ..workloads.setups.starts import BYTECODE, cache_variables, import_share, scratch_folder
from ..workloads.shared import steps_of
from ..workloads.time_to_solution import WARM
from . import learning, repeats
from .check import correctness

if TYPE_CHECKING:
    from .catalogue import PeerJob

TAKEN: Final = "in turns with ours"
FAILED_CHECK: Final = "failed_check"
"""Note of a record whose peer failed its check."""
WRONG: Final = ArithmeticError.__name__
"""Kind of error of a failed check, see `Check.require`."""
PROGRAM: Final = Path(__file__).with_name("worker.py")
ALONE: Final = {"PYTHONSAFEPATH": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Environment variables of a peer: without our path and JAX's preallocation."""
COMPILED: Final = "JAX_COMPILATION_CACHE_DIR"
"""JAX's variable with the folder of its compiled programs."""
BACKENDS: Final = {"cuda": ("pycuda", "numba"), "cpu": ("host", "cpu")}
"""Our backends on each kind of device, fastest first."""
EAGER_BLOCK_S: Final = 0.15
"""Time for sampling a block of an eager peer, s.

Other processes on the host slow its Python loop for milliseconds to seconds."""


class WrongResultError(WorkerError):
    """A peer's result failed its check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Settings of a run."""

    context: Context
    ours: Start
    """Starts a process of our code."""
    pythons: Mapping[str, str]
    """Interpreter of each package; the empty name is the default."""
    timeout_s: float
    """Timeout of a peer's answer, s."""
    backend: str | None = None
    """Our backend; None: the first available on the peer's kind of device."""
    replies: dict[str, Message] = field(default_factory=dict)
    """Kind of device and versions of each peer that has reported them."""
    say: Callable[[str], None] = lambda text: None
    """Gets a line for each postponed pair, see `interleaved.measure_rounds`."""
    after_batch: Callable[[], None] = lambda: None
    """Called when finished points have been yielded; may raise to end the run."""


def measure_each(
    todo: Sequence[PeerJob], run: Run, at_once: int = 1, limit: interleaved.Limit | None = None
) -> Iterator[tuple[PeerJob, list[Record], Comparison | None]]:
    """Measure points interleaved with ours; yield records and comparison. Waits.

    A peer that cannot run or fails gets a record with the reason.

    Args:
        todo: The points.
        run: Settings.
        at_once: Most rounds that are set up at the same time, see `interleaved.measure_rounds`. Learning runs and
            peers with `is_alone` run alone.
        limit: Maximum number of rounds; None: the preset's.
    """
    jobs: list[PeerJob] = []
    both: list[tuple[Side, Side]] = []
    for job in todo:
        try:
            if job.axes["work"] == "repeat":
                records = [_repeated(job, run)]
            else:
                ours, theirs = _both_sides(job, run)
                if theirs.case.scope != "learn":
                    jobs.append(job)
                    both.append((ours, theirs))
                    continue
                records = _train_both(job, run, ours, theirs)
        except WorkerError as error:
            records = [_unmeasured(job, run, error)]
        yield job, records, None
        run.after_batch()
    for is_alone, n in ((False, at_once), (True, 1)):
        places = [place for place, job in enumerate(jobs) if job.peer.is_alone == is_alone]
        pairs = [both[place] for place in places]
        for index, got in interleaved.measure_rounds(pairs, run.context.preset, n, run.say, limit, run.after_batch):
            job = jobs[places[index]]
            if isinstance(got, WorkerError):
                yield job, [_unmeasured(job, run, got)], None
            else:
                faster = _speed_up(got.comparison) if got.comparison else None
                names = ["total_s", "import_torch_s"] if job.axes["work"] == "solve" else ["env_steps_per_s"]
                record = _add_our_figures(got.a, got.b, names, faster, remarks=_remarks(got.a, got.b))
                yield job, [record, got.a], got.comparison


def _both_sides(job: PeerJob, run: Run) -> tuple[Side, Side]:
    """Return our side and the peer's; raises WorkerError if one cannot run."""
    run_id = run.context.run_id
    name, point = job.ours(run.backend or _counterpart(_reply(job, run)["device"]))
    return (
        Side(case=CASES[name], point=point, start=run.ours, taken="in turns with a peer", run_id=run_id),
        Side(
            case=job.version,
            point=job.point,
            start=partial(_serving, job, run),
            taken=TAKEN,
            run_id=run_id,
            command=_command(job, run),
            block_s=EAGER_BLOCK_S if job.peer.is_eager and run.context.preset != "smoke" else 0.0,
        ),
    )


def _command(job: PeerJob, run: Run) -> str:
    return command_line("peers", preset=run.context.preset, peer=job.peer.name, where=conditions(job.axes))


def _unmeasured(job: PeerJob, run: Run, error: WorkerError) -> Record:
    return Record.of(
        job.version,
        job.point,
        run.context,
        started=StartTime(),
        reason=str(error),
        seen=Measurement(notes={FAILED_CHECK: True} if isinstance(error, WrongResultError) else {}),
        status="skipped" if error.kind == "Skip" else "failed",
        taken=TAKEN,
        command=_command(job, run),
    )


def _add_our_figures(
    ours: Record, theirs: Record, names: Sequence[str], speed_up: Metric | None, **notes: Any
) -> Record:
    """Return the peer's record with our figures, speed-up and point."""
    figures = {name: found for name in names if (found := ours.figure(name))}
    own = {f"ours_{name}": Metric(**found.model_dump(exclude={"kind"})) for name, found in figures.items()}
    metrics = {**(theirs.metrics or {}), **own, **({"ours_over_peer": speed_up} if speed_up else {})}
    notes = {**theirs.notes, "ours": {"case": ours.case, "point": ours.point}, **notes}
    return theirs.model_copy(update={"metrics": metrics, "notes": notes})


def _speed_up(comparison: Comparison) -> Metric:
    ratio = comparison.ratio()
    return Metric(value=ratio.value, unit="x", direction="higher", low=ratio.low, high=ratio.high)


def _remarks(ours: Record, theirs: Record) -> list[str]:
    """Return the disturbances of both sides, without duplicates, with the sides."""
    found = {"ours": remarks(ours), "theirs": remarks(theirs)}
    every = dict.fromkeys(itertools.chain(*found.values()))
    return [f"{' and '.join(who for who, own in found.items() if each in own)}: {each}" for each in every]


# ------------------------------------------------------------------ learning


def _train_both(job: PeerJob, run: Run, ours: Side, theirs: Side) -> list[Record]:
    """Train both from one seed in new processes; even seeds start with ours.

    Raises:
        WorkerError: A side cannot run, or ours is wrong.
        NotComparable: The sides use different GPUs.
    """
    mine = None if job.axes["seed"] % 2 else _train_ours(run, ours)
    other = _train_peer(job, run, theirs)
    mine = mine or _train_ours(run, ours)
    return [_add_our_figures(mine, other, learning.METRICS, learning.speed_up(mine, other)), mine]


def _train_ours(run: Run, ours: Side) -> Record:
    with run.ours() as process:
        reply = process.ask("measure", case=ours.case.name, point=dict(ours.point), context=asdict(run.context))
    record = parsed(Record, reply["record"], ours.case.name)
    if not record.is_evidence:
        kind = "Skip" if record.status == "skipped" else "Died"
        raise WorkerError(kind, f"ours: {record.rejection_reason}")
    return record.model_copy(update={"taken": ours.taken})


def _train_peer(job: PeerJob, run: Run, theirs: Side) -> Record:
    start, host = StartTime(), Host.before()
    with started(job, run) as peer:
        said = ask(job, peer, "learn", adapter=job.peer.adapter, point=learning.peer_point(job))
    _require_our_card(job, said["card"])
    facts = learning.peer_facts(job, said)
    return Record.of(
        theirs.case,
        job.point,
        run.context,
        started=start,
        facts=facts,
        seen=learning.peer_measurement(job, said),
        host=host.after(facts.device),
        taken=theirs.taken,
        command=theirs.command,
    )


# ------------------------------------------------------------------ determinism


def _repeated(job: PeerJob, run: Run) -> Record:
    """Train a peer in several new processes, and compare their states.

    Raises:
        WorkerError: The peer is missing.
    """

    def play(point: Point, variation: str, folder: Path, variables: Mapping[str, str]) -> None:
        asked = replace(job, axes=point)
        with started(asked, run, variables) as peer:
            try:
                ask(asked, peer, "repeat", adapter=job.peer.adapter, point=asked.given, folder=str(folder))
            except WorkerError as error:
                if error.kind == "Skip":
                    raise Skip(str(error)) from error
                raise

    record = repeats.record_of(job, run.context, _reply(job, run), play)
    return record.model_copy(update={"command": _command(job, run)})


# ------------------------------------------------------------------ the peer's process


class PeerServer(Server):
    """Server of a peer's case.

    Args:
        name: Name of the peer.
        case: Its case.
    """

    def __init__(self, name: str, case: Case) -> None:
        super().__init__({case.name: case})
        self._name = name

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError, for a failed check WrongResultError."""
        try:
            return super().ask(method, **arguments)
        except WorkerError as error:
            if error.kind != WRONG:
                raise
            raise WrongResultError("Died", f"{self._name}: {error.message}") from error


@contextmanager
def _serving(job: PeerJob, run: Run) -> Iterator[Server]:
    """Yield a server whose one case runs in a peer's process, or starts several."""
    with ExitStack() as processes:
        workload: type[Workload]
        setup: Callable[[Point], Workload]
        if job.axes["work"] == "solve":
            workload, setup = ColdStart, partial(_solving, job, run)
        else:
            compiled = {COMPILED: str(cache.folder() / "jax")}  # rounds share what is compiled before the timing
            workload, setup = Timed, partial(_setup, job, processes.enter_context(started(job, run, compiled)))
        case = Case(
            **asdict(job.version),
            title="other people's software, in turns with ours",
            workload=workload,
            points=job.peer.points,
            setup=setup,
        )
        yield PeerServer(job.peer.name, case)


def started(job: PeerJob, run: Run, variables: Mapping[str, str] | None = None) -> Worker:
    """Start the interpreter of a peer, with more environment variables.

    Raises:
        WorkerError: It cannot be started.
    """
    name, python = job.peer.name, run.pythons.get(job.peer.package, run.pythons[""])
    try:
        env = {**os.environ, **BYTECODE, **ALONE, **(variables or {})}
        return Worker.start(name, [python, str(PROGRAM)], env=env, timeout_s=run.timeout_s, is_quiet=True)
    except OSError as error:
        why = f"its interpreter must start (got {error.strerror}); give one: --python NAME=PATH"
        raise WorkerError("Died", f"{name}: {why}") from error


def ask(job: PeerJob, peer: Worker, method: str, **arguments: Any) -> Message:
    """Ask a peer; raises WorkerError with its name, "Skip" if missing.

    Raises:
        WrongResultError: Its adapter found a wrong result.
    """
    try:
        return peer.ask(method, **arguments)
    except WorkerError as error:
        if error.kind == "Unavailable":
            why = f"{job.peer.name}: {error.message}; in its interpreter: {job.peer.install}"
            raise WorkerError("Skip", why) from error
        if error.kind == "Died":
            raise
        kind = WrongResultError if error.kind == WRONG else WorkerError
        raise kind("Died", f"{job.peer.name}: {error.kind} at {method}: {error.message}") from error


class PeerStopwatch:
    """Stopwatch in the peer's process, which repeats and times a block's runs."""

    def __init__(self, job: PeerJob, peer: Worker) -> None:
        self._job, self._peer = job, peer
        self._runs = 0

    def run(self) -> None:
        """Add a run to the block."""
        self._runs += 1

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Return the wall time of a block, ns."""
        self._runs = 0
        block()
        said = ask(self._job, self._peer, "time", runs=self._runs)
        if said["compiled"]:
            what = f"{self._job.peer.name}: a timed block must not compile (got {said['compiled']} programs)"
            raise MeasureError(f"measure: {what}; run it more often before the timing")
        return int(said["wall_ns"]), None


def _setup(job: PeerJob, peer: Worker, point: Point) -> Timed:
    said, watch = ask(job, peer, "set_up", adapter=job.peer.adapter, point=job.given), PeerStopwatch(job, peer)
    versions = said["versions"]
    _require_our_card(job, said["card"])
    named = {"version": versions.get(job.peer.package), "versions": versions, "counts": said["counts"]}
    named["options"] = job.given["options"]
    compiling = {} if said["compiling"] is None else {"compiling": said["compiling"]}
    return Timed(
        run=watch.run,
        synchronize=lambda: None,  # its process has already waited
        check=lambda: correctness(point["env"], ask(job, peer, "trace")),
        facts=Facts(
            mode=said["mode"],
            device=torch.device(said["device"]),
            threads=said["threads"],
            work=steps_of(said["env_steps"], point["n_agents"]),
            notes={**said["notes"], **named, **compiling},
        ),
        stopwatch=watch,
    )


class PeerSolver:
    """Trains a peer in new processes, and checks that it reached the threshold."""

    def __init__(self, job: PeerJob, run: Run) -> None:
        self._job, self._run = job, run
        self._folder = scratch_folder(self, "peer")
        self._n_runs = 0
        self.reply = self._solve(0, self._caches(), is_timed=False)[1]
        """Answer of the first, untimed process."""
        self._unchecked: list[Measurement] = []

    def sample(self, index: int) -> dict[str, float]:
        """Time a run from seed ``index + 1``, after a process that only imports.

        Raises:
            WorkerError: A process failed.
        """
        caches = self._caches()
        began = time.perf_counter()
        with started(self._job, self._run, caches) as peer:
            ask(self._job, peer, "device", adapter=self._job.peer.adapter)
            import_s = time.perf_counter() - began
        seconds, said = self._solve(index + 1, caches)
        self._unchecked.append(learning.peer_measurement(self._job, said))
        import_s = import_share(import_s, seconds)
        return {"import_s": import_s, "theirs_s": seconds - import_s}

    def check(self) -> Check:
        """Check the runs since the last check, by the peer's greedy episodes.

        If there was none, check the environment's steps in the first process.
        """
        found, self._unchecked = self._unchecked, []
        if not found:
            return correctness(self._job.axes["env"], self.reply["trace"])
        for each in found:
            if each.before is not None and not each.before.passed:
                return each.before
        threshold = self._job.axes["threshold"]
        missed = sum(each.metrics["return_after"].value < threshold for each in found)
        detail = f"{missed} of {len(found)} runs missed a mean return of {threshold:g} in greedy episodes"
        return Check(passed=missed == 0, max_error=float(missed), oracle=learning.OWN_ACCOUNT, detail=detail)

    def _solve(self, seed: int, caches: Mapping[str, str], *, is_timed: bool = True) -> tuple[float, Message]:
        """Train in a new process; return its seconds and its report."""
        job, point = self._job, {**learning.peer_point(self._job), "seed": seed, "is_timed": is_timed}
        began = time.perf_counter()
        with started(job, self._run, caches) as peer:
            ask(job, peer, "solve", adapter=job.peer.adapter, point=point)
            seconds = time.perf_counter() - began
            said = ask(job, peer, "solution")
        _require_our_card(job, said["card"])
        return seconds, said

    def _caches(self) -> dict[str, str]:
        """Return the variables of the next run's caches: new folders, or one for all."""
        self._n_runs += 1
        name = WARM if self._job.axes["caches"] == WARM else f"caches-{self._n_runs}"
        return {**cache_variables(self._folder / name), COMPILED: str(self._folder / name / "jax")}


def _solving(job: PeerJob, run: Run, point: Point) -> ColdStart:
    solver = PeerSolver(job, run)
    facts = learning.peer_facts(job, solver.reply)
    clock = {"clock": "from the start of its process until its weights are trained; it does not save them"}
    return ColdStart(
        run=solver.sample,
        is_long=True,
        check=solver.check,
        facts=replace(facts, work={"starts": 1}, notes={**facts.notes, **clock}),
    )


def _require_our_card(job: PeerJob, uuid: str | None) -> None:
    """Raise NotComparable unless a peer's process uses our GPU."""
    if uuid is None or not torch.cuda.is_available():  # on a CPU, or if its driver does not report the card
        return
    ours, theirs = fingerprint(torch.device("cuda"))["gpu_uuid_hash"], card_hash(uuid)
    if ours != theirs:
        got = f"got {ours} and {theirs}"
        raise NotComparable(f"peers: {job.peer.name} must use our GPU ({got}); set CUDA_VISIBLE_DEVICES for both")


# ------------------------------------------------------------------ ours


def versions(job: PeerJob, run: Run) -> Message:
    """Return the package versions in a peer's process; raises WorkerError."""
    return dict(_reply(job, run)["versions"])


def _reply(job: PeerJob, run: Run) -> Message:
    """Return the kind of device and the versions of a peer; asks it once."""
    if job.peer.name not in run.replies:
        with started(job, run) as peer:
            run.replies[job.peer.name] = ask(job, peer, "device", adapter=job.peer.adapter)
    return run.replies[job.peer.name]


def _counterpart(device: str) -> str:
    """Return our fastest backend on a kind of device.

    Raises:
        WorkerError: No backend can run here.
    """
    states = availability()
    if here := [name for name in BACKENDS[device] if states[name].available]:
        return here[0]
    raise WorkerError("Skip", "ours: " + "; ".join(f"{name} is {states[name]}" for name in BACKENDS[device]))
