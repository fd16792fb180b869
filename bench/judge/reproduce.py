"""`python -m bench reproduce`: measure recorded points again, and compare."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warpdrive_min import files
from warpdrive_min.checkout import GitError, git
from warpdrive_min.commands import verify
from warpdrive_min.errors import WarpDriveError, one_line
from warpdrive_min.terminal import echo
from warpdrive_min.training.record.certificate import Certificate

from ..core import machine
from ..core.archive import CUT, with_archived
from ..core.errors import Code, CompareError
from ..core.groups import groups_of
from ..core.machine import CODE
from ..core.point import Figure, Metric, matches, unmet_condition
from ..core.record import (
    RESULTS,
    SWEEPS,
    Context,
    Record,
    RecordError,
    StartTime,
    append,
    read_all,
    reporting_skipped_lines,
)
from ..core.stats import weakest
from ..options import bounded, missing_backend
from ..process.local import run_point
from ..process.stopping import register_outputs
from ..show.labels import SPREADS, plural
from ..show.sets import RECORDS, SETS
from ..workloads.cases import CASES
from ..workloads.outside import job_of, names_of
from ..workloads.shared import availability
from .evidence import Estimate, Judgement, disturbances, name_of, position, remarks
from .outcomes import exit_code

TOLERANCE: Final = 0.1
"""Tolerance: the difference of a point between two sweeps on one GPU."""
REPRODUCED: Final = "REPRODUCED"
NOT_REPRODUCED: Final = "NOT REPRODUCED"
OTHER_HARDWARE: Final = "OTHER HARDWARE"
BROKEN: Final = "BROKEN"


class NoSuchRunError(CompareError):
    """No record matches the arguments."""

    code = Code.NOTHING


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition(Judgement[str]):
    """Judgement of a record; the estimate is its ratio, here over recorded."""

    differs: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Recorded value and value here of everything that differs."""
    is_skipped: bool = False
    """True if the point cannot run on this machine."""

    def to_dict(self) -> dict[str, Any]:
        """Return the repetition for JSON."""
        ratio = self.estimate and (self.estimate.value, *self.estimate.interval)
        own = {"name": self.subject, "verdict": self.verdict, "reasons": self.reasons}
        return {**own, "ratio": ratio, "differs": dict(self.differs)}


def reproduce(
    run: Annotated[
        str,
        typer.Argument(
            help="RUN_ID or its first characters; RUN_ID:N for its N-th record; the folder of a set; "
            "or a certificate or a folder of them."
        ),
    ],
    where: Annotated[
        list[str] | None, typer.Option(help="Only records with AXIS=VALUE, or case=NAME; may be repeated.")
    ] = None,
    records: Annotated[list[Path] | None, typer.Option(help="Files or folders of records.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="Environment outside envs/ that records may import: module:Class or a path."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(callback=bounded(0, 1e6), help="Largest relative difference that counts as reproduced.")
    ] = TOLERANCE,
    out: Annotated[
        Path | None, typer.Option(help="Output file of the new records, or of the results of certificates.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the points of a run again, and compare.

    Exits with 0 reproduced, 1 not, 2 other hardware, 3 no such run, 5 broken. Runs of certificates are trained again
    and must be bit-identical.
    """
    if out is not None:
        files.require_writable(out, "--out", is_file=True)
    is_set = (Path(run) / RECORDS).is_file()
    if Path(run).suffix == ".json" or (Path(run).is_dir() and not is_set):
        register_outputs(*([out] if out else []), words=None)
        here = Context.here("full")
        repetitions = []
        for path in certificates(Path(run)):
            repetitions.append(retrain_certificates(path, as_json))
            if out is not None:
                files.append(out, answer_line(repetitions[-1], here))
        _exit(repetitions, as_json)
    with reporting_skipped_lines() as skipped_lines:
        named = names_of(env or [])
        if is_set:
            records, run = [*(records or []), Path(run)], Path(run).resolve().name
        found = read_all(records or default_folders(), skipped_lines)
        if broken := next((each for each in skipped_lines if not found and CUT not in each), None):
            raise RecordError(broken)
        chosen = find(found, run, where or [])
    contexts = {preset: Context.here(preset) for preset in {record.preset for record in chosen}}
    repetitions = []
    register_outputs(*([out] if out else []), words=None)
    states, told = availability(), set[str]()
    by_backend = groups_of(chosen, lambda record: missing_backend(record.point, states))
    for reason in sorted(by_backend, reverse=True):  # what cannot run is printed first
        answers = []
        for record in by_backend[reason]:
            answers.append(repeat(record, contexts[record.preset], tolerance, out, named))
            if not as_json and not answers[-1].is_skipped:
                new = [line for line in lines(answers[-1]) if not line.startswith(DIFFERS) or line not in told]
                echo("\n".join(new))
                told.update(new)
        for line in [] if as_json else lines_of_skipped(answers, len(chosen)):
            echo(line)
        repetitions += answers
    _exit(repetitions, as_json)


def default_folders(root: Path = RESULTS) -> list[Path]:
    """Return the default folders of runs: all sets, and archived sweeps."""
    return [*with_archived(root / SETS.name), *with_archived(root / SWEEPS.name)]


def _exit(repetitions: Sequence[Repetition], as_json: bool) -> None:
    if as_json:
        echo(json.dumps([each.to_dict() for each in repetitions], indent=1))
    raise typer.Exit(exit_code(each.verdict for each in repetitions))


def find(records: Sequence[Record], run: str, conditions: Sequence[str]) -> list[Record]:
    """Return the evidence of a run or its N-th record, or by conditions.

    Records of other software are left out; `bench peers` measures them.

    Raises:
        NoSuchRunError: No record matches; lists the available ones.
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
    chosen = [record for record in of_run if matches({"case": record.case, **record.point}, conditions)]
    if condition := unmet_condition(conditions, ({"case": record.case, **record.point} for record in chosen)):
        raise NoSuchRunError(
            f"reproduce: {condition}: no record of {ids[0]} that passes the others has it; leave it out"
        )
    evidence = [record for record in chosen if record.is_evidence and "peer" not in record.point]
    if not evidence:
        what = "is ours, measured and correct" if chosen else f"meets {', '.join(conditions)}"
        raise NoSuchRunError(f"reproduce: no record of {ids[0]} {what} (of {len(of_run)}); choose another one")
    return evidence


# ------------------------------------------------------------------ certificates


OF_CERTIFICATES: Final = {
    verify.VERIFIED: REPRODUCED,
    verify.DIFFERS: NOT_REPRODUCED,
    verify.OTHER_HARDWARE: OTHER_HARDWARE,
}
"""Verdict of this command for each result of a replay."""


def certificates(path: Path) -> list[Path]:
    """Return a certificate, or those of a folder, by name.

    Raises:
        Exit: The folder has none.
    """
    found = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not found:
        echo(f"reproduce: {path} must hold certificates, *.json (got none); write one with train --certify")
        raise typer.Exit(Code.NOTHING)
    return found


def answer_line(repetition: Repetition, here: Context) -> str:
    """Return the result of a certificate as a line of JSON."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = {"machine": here.machine, "git": here.git, "answered_at": now}
    return json.dumps({**repetition.to_dict(), "differs": len(repetition.differs), **made}) + "\n"


def retrain_certificates(path: Path, is_quiet: bool = False) -> Repetition:
    """Train the run of a certificate again and compare bit by bit."""
    try:
        verdict = verify.replayed(Certificate.read(path))
    except (WarpDriveError, OSError) as error:
        repetition = Repetition(subject=path.stem, verdict=BROKEN, reasons=(str(error),))
    else:
        reasons = tuple(line.strip() for line in verdict.lines()[: 2 if verdict.agreement.difference else 1])
        repetition = Repetition(
            subject=path.stem,
            verdict=OF_CERTIFICATES[verdict.name],
            reasons=reasons,
            differs={**verdict.hardware, **verdict.differs},
        )
    if not is_quiet:
        echo("\n".join(lines(repetition)))
    return repetition


# ------------------------------------------------------------------ one record


def repeat(
    record: Record, context: Context, tolerance: float, out: Path | None = None, named: Collection[str] = ()
) -> Repetition:
    """Set up, check and measure a record's point here, and compare.

    Args:
        record: Record.
        context: Facts of the new record.
        tolerance: Largest relative difference that counts as reproduced.
        out: Gets the new record.
        named: Environments outside `envs/` that may be imported, see `names_of`.
    """
    case = CASES.get(record.case)
    if case is None or case.version != record.case_version:
        why_not = f"this checkout has no case {record.case!r}"
        if case is not None:
            why_not = f"what is timed changed: version {record.case_version} of the case then, {case.version} here"
        commit = machine.commit_of(record.git) or "of the record, which it does not name,"
        reason = f"{why_not}; check out commit {commit} and run `{record.command}`"
        return Repetition(subject=name_of(record), verdict=BROKEN, reasons=(reason,))
    try:
        job = job_of(record, named)
    except CompareError as error:
        return Repetition(subject=name_of(record), verdict=BROKEN, reasons=(str(error),))
    if reason := missing_backend(job.point, availability()):
        here = Record.of(job.case, job.point, context, started=StartTime(), status="skipped", reason=reason)
    else:
        here = run_point(job, context)
    if out is not None:
        append(out, here)
    return compare(record, here, tolerance)


def compare(then: Record, here: Record, tolerance: float) -> Repetition:
    """Judge a record by its repetition."""
    name, differs = name_of(then), differences(then, here)
    other = other_hardware(then, here)
    if not here.is_evidence:
        is_skipped = here.status == "skipped"
        verdict, why = OTHER_HARDWARE if other and is_skipped else BROKEN, (f"{here.status}: {here.reason}",)
        return Repetition(subject=name, verdict=verdict, reasons=why, differs=differs, is_skipped=is_skipped)
    judge = _judge_learning if then.curve and here.curve else _judge_figure
    is_same, estimate, reasons = judge(then, here, tolerance)
    verdict = REPRODUCED if is_same else NOT_REPRODUCED
    if other:
        verdict, reasons = OTHER_HARDWARE, [f"{other}: what follows is information", *reasons]
    reasons += [
        f"{side}: {text}"
        for side, each in (("recorded", then), ("here", here))
        for text in (*disturbances(each), *remarks(each))
    ]
    region = (1 / (1 + tolerance), 1 + tolerance)
    return Repetition(
        subject=name, estimate=estimate, region=region, verdict=verdict, reasons=tuple(reasons), differs=differs
    )


Result = tuple[bool, Estimate | None, list[str]]
"""Equality, ratio here over recorded, and reasons."""


def _judge_figure(then: Record, here: Record, tolerance: float) -> Result:
    """Compare the time per unit, or the first metric of untimed work."""
    names = list(then.metrics or {})
    if not names:
        return False, None, ["no figure was recorded"]
    name = next((name for name in names if name.startswith("ns_per_")), names[0])
    old, new = then.figure(name), here.figure(name)
    if old is None or new is None:
        return False, None, [f"{name} was recorded and is not measured here"]
    reasons = [f"{name}: {_text(old)} recorded, {_text(new)} here"]
    if min(old.low, new.low) <= 0:  # division is impossible
        return position((old.low, old.high), (new.low, new.high)) != "outside", None, reasons
    low, high = new.low / old.high, new.high / old.low
    overlap = position((1, 1), (low, high)) == "inside"
    within = position((low, high), (1 / (1 + tolerance), 1 + tolerance)) == "inside"
    if overlap:
        reasons.append("the spreads overlap")
        if not within:
            reasons.append(f"but they are wider than the tolerance of {tolerance:.0%}: weak evidence")
    else:
        reasons.append(f"the ratio's spread {'lies' if within else 'does not lie'} within {tolerance:.0%}")
    kind = weakest(old.kind, new.kind)
    ratio = Estimate(value=new.value / old.value, low=low, high=high, kind=kind, records=(then, here))
    return overlap or within, ratio, reasons


def _judge_learning(then: Record, here: Record, tolerance: float) -> Result:
    """Compare which runs reach the threshold, and their final returns."""
    old, new = then.metrics or {}, here.metrics or {}
    steps = [metrics.get("env_steps_to_threshold") for metrics in (old, new)]
    reached = ["missed" if each is None else "reached" for each in steps]
    seed = then.point.get("seed")
    reasons = [f"seed {seed}: the threshold is {reached[0]} in the record and {reached[1]} here"]
    ends = [metrics.get("final_return") for metrics in (old, new)]
    has_same_end = ends == [None, None]
    if ends[0] and ends[1]:
        has_same_end = abs(ends[1].value - ends[0].value) <= tolerance * abs(ends[0].value)
        reasons.append(f"the curve ends at {ends[0].value:.6g} and at {ends[1].value:.6g} here")
    if scores := [metrics["return_after"] for metrics in (old, new) if "return_after" in metrics]:
        reasons.append("evaluated afterwards: " + ", ".join(map(_text, scores)))
    if then.curve and here.curve and then.curve.mean_return == here.curve.mean_return:
        reasons.append("the two curves are the same to the last digit")
    ratio = None
    if steps[0] and steps[1]:
        times = steps[1].value / steps[0].value
        ratio = Estimate(value=times, low=times, high=times, records=(then, here))
        reasons.append(f"steps to the threshold: {steps[0].value:.6g} and {steps[1].value:.6g} here")
    return reached[0] == reached[1] and has_same_end, ratio, reasons


def _text(metric: Metric) -> str:
    word = SPREADS[metric.kind][0] if isinstance(metric, Figure) else ""
    return f"{metric.value:.4g} {metric.unit} ({word}{metric.low:.4g} to {metric.high:.4g})"


# ------------------------------------------------------------------ differences


def other_hardware(then: Record, here: Record) -> str:
    """Return differences in the hardware of the figure, as text."""
    names = ("gpu",) if then.threads is None else ("cpu", "cores", "cpu_limit")
    differs = machine.differences(then.machine, here.machine, names)
    return "; ".join(f"{name} {a or 'none'} recorded, {b or 'none'} here" for name, (a, b) in differs.items())


def differences(then: Record, here: Record) -> dict[str, tuple[Any, Any]]:
    """Return differences in machine, versions, commit and packages."""

    def fields(record: Record) -> dict[str, Any]:
        machine = {f"machine.{name}": value for name, value in record.machine.items() if name != "unread"}
        git = {f"git.{name}": record.git.get(name) for name in ("sha", "dirty", "diff_hash")}
        own = {name: getattr(record, name) for name in ("case_version", "mode", "threads", "dependencies_hash")}
        return {**machine, **git, **own}

    old, new = fields(then), fields(here)
    if here.status == "skipped":  # nothing ran
        new |= {name: old[name] for name in ("mode", "threads")}
    apart = machine.differences(old, new, None)
    changed = changed_files(machine.commit_of(then.git)) if "git.sha" in apart else None
    return apart if changed is None else {**apart, "files of the code that changed": (0, changed)}


@functools.cache
def changed_files(sha: str | None) -> int | None:
    """Count files that differ from a commit; None if unknown to git."""
    if sha is None:
        return None
    try:
        return len(git("diff", "--name-only", sha, "--", *CODE, root=machine.ROOT).splitlines())
    except GitError:
        return None


DIFFERS: Final = "  differs: "
"""Beginning of the line of a difference, which the command prints once."""


def lines(repetition: Repetition) -> list[str]:
    """Return the lines of text about a repetition."""
    head = f"{repetition.verdict}: {repetition.subject}"
    if ratio := repetition.estimate:
        ends = f"{SPREADS[ratio.kind][0]}{ratio.low:.3f} to {ratio.high:.3f}"
        head += f", time here / recorded time {ratio.value:.3f} ({ends})"
    differs, many = [], Counter(map(_kind, repetition.differs))
    for name, both in repetition.differs.items():
        if many[_kind(name)] <= MOST_LISTED:
            values = " -> ".join("none or unknown" if value is None else str(value) for value in both)
            differs.append(f"{DIFFERS}{name}: {values}")
    differs += [f"{DIFFERS}{n} {KINDS[kind]} (--json names them)" for kind, n in many.items() if n > MOST_LISTED]
    return list(map(one_line, [head, *(f"  {reason}" for reason in repetition.reasons), *differs]))


def lines_of_skipped(repetitions: Iterable[Repetition], n: int) -> list[str]:
    """Return a line per verdict and reason of skipped records, of ``n`` in total."""
    counts = Counter((each.verdict, *each.reasons) for each in repetitions if each.is_skipped)
    return [
        one_line(f"{verdict}: {n_skipped} of {plural(n, 'record')} {reason}")
        for (verdict, reason), n_skipped in counts.items()
    ]


MOST_LISTED: Final = 3
"""Maximum number of listed differences of each kind."""


def _kind(name: str) -> str:
    """Return the kind of a difference, or its name."""
    return next((kind for kind in KINDS if name.startswith(f"{kind} ")), name)


KINDS: Final = {
    "source": "sources",
    "dependency": "packages or compilers",
    "machine code": "kernels, in their machine code",
}
"""Plural names of kinds of differences, by field prefix."""
