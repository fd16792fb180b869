"""`python -m bench reproduce`: measure recorded points again here, and say whether the figures are the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bench import isolated, sweep
from bench.cases import CASES
from bench.machine import CODE
from bench.nvml import throttling
from bench.record import Metric, Record, RecordError, append, read_all

TOLERANCE: Final = 0.1
"""Share by which a figure may differ: what the same point's did between two published sweeps of the same GPU."""


class Verdict(StrEnum):
    """What came of a record."""

    reproduced = "REPRODUCED"
    not_reproduced = "NOT REPRODUCED"
    other_hardware = "OTHER HARDWARE"
    broken = "BROKEN"


EXIT: Final = {Verdict.reproduced: 0, Verdict.not_reproduced: 1, Verdict.other_hardware: 2, Verdict.broken: 5}
NO_SUCH_RUN: Final = 3
GRAVITY: Final = (Verdict.broken, Verdict.not_reproduced, Verdict.other_hardware, Verdict.reproduced)
"""Of several records the first of these that occurs decides the exit code."""


class NoSuchRunError(LookupError):
    """No record is what was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A record held against its repetition here."""

    name: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """What decided, and what else is worth knowing, in words."""
    ratio: tuple[float, float, float] | None = None
    """Here over recorded, with the least and the most that both intervals allow; None: there is nothing to divide."""
    differs: Mapping[str, tuple[Any, Any]]
    """For each thing that is not the same: recorded, and here."""


def reproduce(
    run: Annotated[str, typer.Argument(help="RUN_ID, or RUN_ID:N for its N-th record, from 1; its start is enough.")],
    where: Annotated[list[str] | None, typer.Option(help="Keep only records with AXIS=VALUE, or case=NAME.")] = None,
    records: Annotated[list[Path] | None, typer.Option(help="Files or folders of records.")] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Share by which a figure may differ.")] = TOLERANCE,
    out: Annotated[Path | None, typer.Option(help="File that gets the new records too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the points of a run again; exits with 0 reproduced, 1 not, 2 other hardware, 3 no such run, 5 broken."""
    cut: list[str] = []
    try:
        found = find(read_all(records or [sweep.SWEEPS], cut), run, where or [])
    except NoSuchRunError as error:
        _say([str(error), *(f"left out: {line}" for line in cut)])
        raise typer.Exit(NO_SUCH_RUN) from error
    except (RecordError, OSError) as error:
        _say([str(error)])
        raise typer.Exit(EXIT[Verdict.broken]) from error
    contexts: dict[str, sweep.Context] = {}
    compared = []
    for record in found:
        if record.preset not in contexts:
            contexts[record.preset] = sweep.Context.here(record.preset)
        compared.append(repeat(record, contexts[record.preset], tolerance, out))
        if not as_json:
            _say(lines(compared[-1]))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in compared], indent=1))
    raise typer.Exit(EXIT[worst([each.verdict for each in compared])])


def find(records: Sequence[Record], run: str, conditions: Sequence[str]) -> list[Record]:
    """Return the evidence of a run, of its N-th record alone, or of those that meet all conditions.

    Raises:
        NoSuchRunError: There is none; lists what there is.
    """
    run_id, _, number = run.partition(":")
    ids = sorted({record.run_id for record in records if record.run_id.startswith(run_id)})
    if run_id in ids:
        ids = [run_id]
    if len(ids) != 1:
        known = ", ".join(ids or sorted({record.run_id for record in records})) or "none"
        raise NoSuchRunError(f"reproduce: the run must be one of those recorded (got {run_id!r}); known are {known}")
    of_run = [record for record in records if record.run_id == ids[0]]
    if number:
        if not number.isdecimal() or not 1 <= int(number) <= len(of_run):
            raise NoSuchRunError(f"reproduce: N must be 1 to {len(of_run)}, the records of {ids[0]} (got {number!r})")
        of_run = [of_run[int(number) - 1]]
    chosen = [record for record in of_run if all(_meets(record, condition) for condition in conditions)]
    evidence = [record for record in chosen if record.is_evidence]
    if not evidence:
        what = "is measured and right" if chosen else f"meets {', '.join(conditions)}"
        raise NoSuchRunError(f"reproduce: no record of {ids[0]} {what} (of {len(of_run)}); choose another one")
    return evidence


def _meets(record: Record, condition: str) -> bool:
    axis, _, value = condition.partition("=")
    values = {"case": record.case, **record.point}
    return axis in values and str(values[axis]) == value


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that decides the exit code."""
    return next(verdict for verdict in GRAVITY if verdict in verdicts)


# ------------------------------------------------------------------ one record


def repeat(record: Record, context: sweep.Context, tolerance: float, out: Path | None = None) -> Comparison:
    """Set up, check and measure a record's point here, and compare; the new record goes to ``out`` too."""
    case = CASES.get(record.case)
    if case is None or case.version != record.case_version:
        why_not = f"this checkout has no case {record.case!r}"
        if case is not None:
            why_not = f"what is timed changed: version {record.case_version} of the case then, {case.version} here"
        commit = record.git.get("sha") or "of the record, which it does not name,"
        reason = f"{why_not}; check out commit {commit} and run `{record.command}`"
        return Comparison(name=_name(record), verdict=Verdict.broken, reasons=(reason,), differs={})
    here = isolated.run_point(sweep.Job(case, record.point), context)
    if out is not None:
        append(out, here)
    return compare(record, here, tolerance)


def _name(record: Record) -> str:
    return f"{record.case}[{','.join(f'{axis}={value}' for axis, value in record.point.items())}]"


def compare(then: Record, here: Record, tolerance: float) -> Comparison:
    """Hold a record against its repetition."""
    name, differs = _name(then), differences(then, here)
    other = other_hardware(then, here)
    if not here.is_evidence:
        verdict = Verdict.other_hardware if other and here.status == "skipped" else Verdict.broken
        return Comparison(name=name, verdict=verdict, reasons=(f"{here.status}: {here.reason}",), differs=differs)
    same, ratio, reasons = (_learned if then.curve and here.curve else _measured)(then, here, tolerance)
    if other:
        verdict, reasons = Verdict.other_hardware, [f"{other}: what follows is information", *reasons]
    else:
        verdict = Verdict.reproduced if same else Verdict.not_reproduced
    reasons += [f"recorded: {trouble}" for trouble in _troubles(then)] + [f"here: {each}" for each in _troubles(here)]
    return Comparison(name=name, verdict=verdict, reasons=tuple(reasons), ratio=ratio, differs=differs)


Judged = tuple[bool, tuple[float, float, float] | None, list[str]]
"""Whether it is the same, the ratio, and why."""


def _measured(then: Record, here: Record, tolerance: float) -> Judged:
    name = _gated(then)
    old, new = (then.metrics or {})[name], (here.metrics or {}).get(name)
    if new is None:
        return False, None, [f"{name} was recorded and is not measured here"]
    reasons = [f"{name}: {_metric(old)} recorded, {_metric(new)} here"]
    if min(old.low, new.low) <= 0:  # nothing to divide by
        return old.low <= new.high and new.low <= old.high, None, reasons
    ratio = (new.value / old.value, new.low / old.high, new.high / old.low)
    overlap = ratio[1] <= 1 <= ratio[2]
    within = 1 / (1 + tolerance) <= ratio[1] and ratio[2] <= 1 + tolerance
    if overlap:
        reasons.append("the intervals overlap")
        if not within:
            reasons.append(f"they are wider than the tolerance of {tolerance:.0%}, so that says little")
    else:
        reasons.append(f"the ratio's interval {'lies' if within else 'does not lie'} within {tolerance:.0%}")
    return overlap or within, ratio, reasons


def _gated(record: Record) -> str:
    """Return the metric that is gated on: the time of a unit of work, or the first one where nothing is timed."""
    names = list(record.metrics or {})
    return next((name for name in names if name.startswith("ns_per_")), names[0])


def _learned(then: Record, here: Record, tolerance: float) -> Judged:
    """Compare whether the seed reaches the threshold, and the return at the end of its curve."""
    old, new = then.metrics or {}, here.metrics or {}
    reached = ["env_steps_to_threshold" in metrics for metrics in (old, new)]
    ends = [metrics.get("final_return") for metrics in (old, new)]
    words = {True: "reached", False: "missed"}
    seed = then.point.get("seed")
    reasons = [f"seed {seed}: the threshold is {words[reached[0]]} in the record and {words[reached[1]]} here"]
    same_end = ends == [None, None]
    if ends[0] and ends[1]:
        apart = abs(ends[1].value - ends[0].value)
        same_end = apart <= tolerance * abs(ends[0].value)
        reasons.append(f"the curve ends at {ends[0].value:.6g} and at {ends[1].value:.6g} here")
    if scores := [metrics["return_after"] for metrics in (old, new) if "return_after" in metrics]:
        reasons.append("evaluated afterwards: " + ", ".join(_metric(each) for each in scores))
    if then.curve and here.curve and then.curve.mean_return == here.curve.mean_return:
        reasons.append("the two curves are the same to the last digit")
    ratio = None
    if all(reached):
        steps = [metrics["env_steps_to_threshold"].value for metrics in (old, new)]
        factor = steps[1] / steps[0]
        ratio = (factor, factor, factor)
        reasons.append(f"steps to the threshold: {steps[0]:.6g} and {steps[1]:.6g} here")
    return reached[0] == reached[1] and same_end, ratio, reasons


def _metric(metric: Metric) -> str:
    return f"{metric.value:.4g} {metric.unit} ({metric.low:.4g} to {metric.high:.4g})"


def _troubles(record: Record) -> list[str]:
    telemetry = record.telemetry or {}
    found = [f"throttled by {reason}, {share:.0%} of the time" for reason, share in throttling(telemetry).items()]
    if telemetry.get("contended"):
        found.append("another process used the GPU")
    if record.warm_up and record.warm_up.get("settled") is False:
        found.append("the warm-up did not settle")
    return found


# ------------------------------------------------------------------ what differs


def other_hardware(then: Record, here: Record) -> str:
    """Say in what the machines differ that decides the figure; empty: they are of the same kind."""
    fields = ("gpu",) if then.threads is None else ("cpu", "cores", "cpu_limit")
    apart = [
        f"{field} {then.machine.get(field) or 'none'} recorded, {here.machine.get(field) or 'none'} here"
        for field in fields
        if then.machine.get(field) != here.machine.get(field)
    ]
    return "; ".join(apart)


def differences(then: Record, here: Record) -> dict[str, tuple[Any, Any]]:
    """Return what is not the same in machine, versions, commit, changes and packages: recorded, and here."""

    def fields(record: Record) -> dict[str, Any]:
        machine = {f"machine.{name}": value for name, value in record.machine.items() if name != "unread"}
        git = {f"git.{name}": record.git.get(name) for name in ("sha", "dirty", "diff_hash")}
        own = {name: getattr(record, name) for name in ("case_version", "mode", "threads", "dependencies_hash")}
        return {**machine, **git, **own}

    old, new = fields(then), fields(here)
    if here.status == "skipped":  # nothing ran
        new |= {name: old[name] for name in ("mode", "threads")}
    apart = {
        name: (old.get(name), new.get(name)) for name in {**old, **new} if name not in old or old[name] != new.get(name)
    }
    changed = changed_files(then.git.get("sha")) if "git.sha" in apart else None
    return apart if changed is None else {**apart, "files of the code that changed": (0, changed)}


def changed_files(sha: str | None, root: Path = sweep.ROOT) -> int | None:
    """Return in how many files the code here differs from a commit; None: git does not know it."""
    if sha is None:
        return None
    command = ["git", "-C", str(root), "diff", "--name-only", sha, "--", *CODE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return len(done.stdout.splitlines())


def lines(comparison: Comparison) -> list[str]:
    """Return a comparison in words."""
    head = f"{comparison.verdict}: {comparison.name}"
    if comparison.ratio is not None:
        value, low, high = comparison.ratio
        head += f", here/recorded {value:.3f} ({low:.3f} to {high:.3f})"
    differs = [f"  differs: {name}: {_known(old)} -> {_known(new)}" for name, (old, new) in comparison.differs.items()]
    return [head, *(f"  {reason}" for reason in comparison.reasons), *differs]


def _known(value: Any) -> str:
    return "none or unknown" if value is None else str(value)


def _say(text: Sequence[str]) -> None:
    typer.echo("\n".join(text))
