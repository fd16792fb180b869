"""`python -m bench gate`: whether anything became slower than a baseline, as an exit code.

0 no point is slower by the threshold or more; 1 one is; 2 the noise does not tell; 3 nothing was measured, or the set
of points changed; 4 the baseline is missing or not comparable; 5 something is broken.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from bench import isolated, sweep
from bench.case import Case, Point, PresetName, point_name
from bench.cases import CASES
from bench.errors import NotComparable, NothingMeasured
from bench.judge import Evidence, check_allowed, mismatches, name_of
from bench.record import Context, Record, append, read_all, selected
from bench.verdicts import compare, turns
from bench.verdicts.calibrate import CALIBRATIONS
from bench.verdicts.compare import say
from bench.verdicts.gate_judge import confirm, from_records, judge_into
from bench.verdicts.gate_report import Code, Report
from bench.verdicts.gate_selftest import run_selftest
from bench.verdicts.gate_views import render_annotations, render_junit, render_markdown
from warpdrive_min.files import write_atomically

THRESHOLD: Final = 0.03

# Typer brings its own click or needs click, by its release; this is the UsageError of the one in use.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


class GateCommand(TyperCommand):
    """A command whose wrong usage is 5, broken: the 2 that it would be says "inconclusive" here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            vars(error)["exit_code"] = int(Code.BROKEN)
            raise


class WrongUsageError(ValueError):
    """An option has a value that it cannot have; the message says all."""


def gate(
    baseline: Annotated[str | None, typer.Option(help="File or folder of records, or a git revision.")] = None,
    records: Annotated[Path | None, typer.Option(help="What to judge; without it the points are measured now.")] = None,
    threshold: Annotated[str, typer.Option(help="Slow-down that counts, as 3% or 0.03.")] = f"{THRESHOLD:.0%}",
    preset: Annotated[PresetName, typer.Option(help="How much to measure against a revision.")] = PresetName.default,
    case: Annotated[list[str] | None, typer.Option(help="Keep only these; may be given several times.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Keep only points with AXIS=VALUE.")] = None,
    allow_mismatch: Annotated[list[str] | None, typer.Option(help="Field that records need not share.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write Markdown here.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    annotations: Annotated[bool, typer.Option("--annotations", help="Print GitHub's ::error and ::warning.")] = False,
    selftest: Annotated[bool, typer.Option("--selftest", help="Slow --records down on paper: what is caught?")] = False,
    out: Annotated[Path, typer.Option(help="Folder of what is measured.")] = compare.COMPARISONS,
    calibrations: Annotated[Path, typer.Option(help="Folder of the calibrations.")] = CALIBRATIONS,
) -> None:
    """Say whether the time of an environment step grew over a baseline.

    Exits with 0 ok, 1 regression, 2 inconclusive, 3 nothing measured or the set of points changed, 4 not comparable or
    no baseline, 5 broken.
    """
    report = Report(baseline=baseline or "nothing", threshold=THRESHOLD)
    choice = Choice(preset, case or [], where or [], allow_mismatch or [], out, calibrations)
    try:
        report.threshold = parse_threshold(threshold)
        if records is not None and not records.exists():
            raise WrongUsageError(f"--records: must be there (got {records}); name a file or folder of records")
        if selftest:
            if records is None:
                raise NotComparable("gate --selftest: needs stored samples (got none); give --records FILE")
            raise typer.Exit(run_selftest(choice.of(records), report.threshold, calibrations))
        fill(report, records, choice)
    except typer.Exit:
        raise
    except NothingMeasured as error:
        report.changed.append(str(error))
    except NotComparable as error:
        report.refused.append(str(error))
    except WrongUsageError as error:
        report.failed.append(str(error))
    except Exception as error:  # noqa: BLE001  (whatever breaks a gate, its exit code must not be 1: that is a regression)
        traceback.print_exc()
        report.failed.append(f"{type(error).__name__}: {error}")
    try:
        publish(report, summary, junit, annotations)
    except OSError as error:
        say(f"gate: must be able to write what it found (got {error})")
        raise typer.Exit(int(Code.BROKEN)) from error
    raise typer.Exit(int(report.code))


def parse_threshold(text: str) -> float:
    """Return a share from ``5%`` or ``0.05``.

    Raises:
        WrongUsageError: It is neither, or not between 0 and 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise WrongUsageError(f"--threshold: must be above 0 and below 100% (got {text}); for example 3% or 0.03")
    return share


@dataclass(frozen=True, slots=True)
class Choice:
    """What is gated, and where things are."""

    preset: PresetName
    cases: Sequence[str]
    where: Sequence[str]
    allowed: Sequence[str]
    out: Path
    calibrations: Path

    def of(self, path: Path) -> list[Record]:
        """Return the records of a file or folder that are chosen."""
        return selected(read_all([path]), self.cases, self.where)


def fill(report: Report, records: Path | None, choice: Choice) -> None:
    """Measure or read both sides and judge them."""
    if report.baseline == "nothing":
        raise NotComparable("gate: needs a baseline (got none); give --baseline FILE or --baseline REVISION")
    if not compare.is_file(report.baseline):
        if records or choice.allowed:
            raise NotComparable(
                f"gate: --baseline must be records (got {report.baseline}, which is no file), as --records or "
                "--allow-mismatch are given; name a file"
            )
        return from_revision(report, choice.preset, choice.cases, choice.where, choice.out, choice.calibrations)
    check_allowed(choice.allowed)
    before = choice.of(Path(report.baseline))
    if not before:
        raise NothingMeasured(f"gate: no record of {report.baseline} passes --case and --where; look at what it holds")
    if records is not None:
        now = choice.of(records)
    else:
        file = choice.out / f"{compare.new_run_id()}.jsonl"
        now = measure_again(before, file, choice.allowed)
        report.notes.append(f"records: {file}")
    return from_records(before, now, report, choice.calibrations, choice.allowed)


def measure_again(baseline: Sequence[Record], file: Path, allowed: Sequence[str]) -> list[Record]:
    """Measure the points of a baseline on this machine, now, and return their records, which are in ``file`` too.

    Raises:
        NotComparable: The baseline is of another kind of machine, or of several presets.
    """
    wanted = Evidence.of(baseline).kept
    if not wanted:
        return []
    presets = {record.preset for record in wanted.values()}
    if len(presets) > 1:
        raise NotComparable(f"gate: a baseline has one preset (got {', '.join(sorted(presets))}); give one file")
    preset = PresetName(presets.pop())
    context = Context.here(preset.value, file.stem)
    some = next(iter(wanted.values()))
    here = some.model_copy(update={"machine": dict(context.machine)})
    if differ := mismatches(some, here, allowed):
        raise NotComparable(f"gate: {'; '.join(differ)}")
    todo = [sweep.Job(CASES[record.case], record.point) for record in wanted.values() if record.case in CASES]
    records = []
    for record in sweep.run(todo, context, file, isolated.run_points):
        records.append(record)
        say(f"{len(records)}/{len(todo)} {name_of(record)}: {record.status}")
    return records


def from_revision(
    report: Report, preset: PresetName, cases: Sequence[str], where: Sequence[str], out: Path, calibrations: Path
) -> None:
    """Fill a report by measuring a revision and the present code in turns; what looks like a regression, twice.

    Where a process happens to lie in memory and on the cores makes it slower throughout, by 8 % and more on two shared
    cores, which looks like a regression to whatever its own turns can tell. Two new processes seldom lie so again.
    """
    points = compare.chosen(preset.value, cases, where, say)
    if not points:
        raise NothingMeasured(
            f"gate: no point of preset {preset.value} can run here and passes --case and --where; "
            "`python -m bench list` shows cases, axes and backends"
        )
    seen = _in_turns(points, report.baseline, preset, out)
    report.changed += [f"{text} (on one side)" for text in seen.skipped]
    report.failed += seen.failed
    judge_into(report, seen.pairs, calibrations)
    suspects = {row.pair.name for row in report.rows if row.outcome == "regression"}
    if suspects:
        say(f"{len(suspects)} look slower: again, in new processes")
        seen = _in_turns(
            [each for each in points if point_name(each[0].name, each[1]) in suspects], report.baseline, preset, out
        )
        report.failed += seen.failed
        second = Report(baseline=report.baseline, threshold=report.threshold)
        judge_into(second, seen.pairs, calibrations)
        confirm(report, second)


def _in_turns(points: Sequence[tuple[Case, Point]], baseline: str, preset: PresetName, out: Path) -> turns.Measured:
    """Measure a revision and the present code in new processes, and keep the records of both."""
    run_id = compare.new_run_id()
    seen = turns.measure_revisions(points, (baseline, turns.WORKING_TREE), preset.value, run_id, say)
    for pair in seen.pairs:
        append(out / f"{run_id}-a.jsonl", pair.a)
        append(out / f"{run_id}-b.jsonl", pair.b)
    return seen


def publish(report: Report, summary: Path | None, junit: Path | None, annotations: bool) -> None:
    """Print a report and write it where it is wanted."""
    text = render_markdown(report)
    print(text)
    if annotations:
        print("\n".join(render_annotations(report)))
    for path, content in ((summary, text), (junit, render_junit(report))):
        if path:
            write_atomically(path, content)
