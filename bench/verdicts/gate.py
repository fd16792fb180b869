"""`python -m bench gate`: whether anything became slower than a baseline, as an exit code.

0 no point is slower by the threshold or more; 1 one is; 2 the noise does not tell; 3 nothing was measured, or the set
of points changed; 4 the baseline is missing or not comparable; 5 something is broken.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from xml.etree import ElementTree

import numpy as np
import typer
from rich import box
from rich.table import Table
from typer.core import TyperCommand

from bench import sweep
from bench.case import Case, Point, PresetName, label
from bench.cases import CASES
from bench.record import Record, append, read_all
from bench.stats import CONFIDENCE, Ratio, holm, median, smallest_detectable
from bench.verdicts import compare, pairing, turns
from bench.verdicts.calibrate import CALIBRATIONS, Calibration, read
from bench.verdicts.compare import say, write_atomically
from bench.verdicts.pairing import NotComparable, NothingMeasured, Pair

THRESHOLD: Final = 0.03
INJECTED: Final = (0.0, 0.03, 0.05, 0.10)
"""Slow-downs of the self-test."""
SELFTEST_REPEATS: Final = 10

Outcome = Literal["ok", "regression", "inconclusive"]


class Code(IntEnum):
    """Exit codes; what a script may rely on."""

    OK = 0
    REGRESSION = 1
    INCONCLUSIVE = 2
    NOTHING_OR_CHANGED = 3
    NOT_COMPARABLE = 4
    BROKEN = 5


TITLES: Final = {
    Code.OK: "ok",
    Code.REGRESSION: "regression",
    Code.INCONCLUSIVE: "inconclusive",
    Code.NOTHING_OR_CHANGED: "nothing measured, or the set of points changed",
    Code.NOT_COMPARABLE: "not comparable",
    Code.BROKEN: "broken",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A point, how much slower it became, and what follows."""

    pair: Pair
    ratio: Ratio
    """Time now over time in the baseline, with the noise between runs in its interval where that is known."""
    smallest: float
    """Smallest slow-down that can be told from noise here, as a share."""
    limit: float
    """Slow-down from which there is a regression: the threshold, but never less than ``smallest``."""
    p: float
    """One-sided, for being slower than the threshold, adjusted for the number of rows."""
    outcome: Outcome

    @property
    def text(self) -> str:
        """Say what was seen in one line."""
        ratio = self.ratio
        seen = f"{ratio.value - 1:+.2%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})"
        return f"{seen}, a regression from {self.limit:.2%} on, p = {self.p:.2g}"


@dataclass(kw_only=True, slots=True)
class Report:
    """All that a gate saw."""

    baseline: str
    threshold: float
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Contended or throttled."""
    changed: list[str] = field(default_factory=list)
    """Points that are on one side alone."""
    refused: list[str] = field(default_factory=list)
    """Points that differ in what matters."""
    failed: list[str] = field(default_factory=list)
    """Points, or the gate, that broke."""
    notes: list[str] = field(default_factory=list)

    @property
    def code(self) -> Code:
        """What it comes to: the most serious thing that was seen."""
        outcomes = {row.outcome for row in self.rows}
        if self.failed:
            return Code.BROKEN
        if self.refused:
            return Code.NOT_COMPARABLE
        if self.changed or not self.rows:
            return Code.NOTHING_OR_CHANGED
        if "regression" in outcomes:
            return Code.REGRESSION
        return Code.INCONCLUSIVE if "inconclusive" in outcomes or self.left_out else Code.OK

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is not about a row: what it is, and the text."""
        kinds = {
            "broken": self.failed,
            "not comparable": self.refused,
            "changed": self.changed,
            "left out": self.left_out,
        }
        return [(kind, text) for kind, texts in kinds.items() for text in texts]


# ------------------------------------------------------------------ judging


def judge(pairs: Sequence[Pair], threshold: float, calibration: Calibration | None) -> list[Row]:
    """Return the outcome of each pair.

    * ok: the whole interval lies below the threshold. All rows must pass, so nothing is adjusted.
    * regression: slower than the threshold with a one-sided p-value below 2.5 % after Holm's adjustment, and by no less
      than the smallest slow-down that can be told from noise.
    * inconclusive: neither.

    Source: for asking from both sides of a margin, Schuirmann 1987, "A comparison of the two one-sided tests procedure
    and the power approach".
    """
    seen = [_seen(pair, threshold, calibration) for pair in pairs]
    adjusted = holm([p for _, _, p in seen])
    return [
        Row(
            pair=pair,
            ratio=ratio,
            smallest=smallest,
            limit=max(threshold, smallest),
            p=p,
            outcome=_outcome(ratio, threshold, max(threshold, smallest), p),
        )
        for pair, (ratio, smallest, _), p in zip(pairs, seen, adjusted, strict=True)
    ]


def _seen(pair: Pair, threshold: float, calibration: Calibration | None) -> tuple[Ratio, float, float]:
    """Return the ratio, the smallest slow-down that can be detected, and the p-value of one above the threshold."""
    ratio, p = pair.ratio, pair.p_slower(threshold)
    noise = calibration.of(pair.b) if calibration else None
    if noise is None:
        return ratio, smallest_detectable(ratio.error, 1), p
    scatter, dof = noise.of_ratio(pair.in_turns)
    wide = ratio.widened(scatter, dof)
    smallest = noise.smallest_in_turns if pair.in_turns else noise.smallest
    return wide, max(smallest, smallest_detectable(ratio.error, 1)), max(p, wide.p_over(1 + threshold, dof))


def _outcome(ratio: Ratio, threshold: float, limit: float, p: float) -> Outcome:
    if ratio.high < 1 + threshold:
        return "ok"
    return "regression" if p < (1 - CONFIDENCE) / 2 and ratio.value >= 1 + limit else "inconclusive"


def from_records(
    baseline: Sequence[Record],
    records: Sequence[Record],
    report: Report,
    calibrations: Path = CALIBRATIONS,
    allowed: Sequence[str] = (),
) -> None:
    """Fill a report from two sets of records."""
    before, now = pairing.usable(baseline), pairing.usable(records)
    left_out = before.spoilt | now.spoilt
    for side, texts in (("the baseline", before.spoilt), ("the records", now.spoilt)):
        report.left_out += [f"{text} (in {side})" for text in texts.values()]
    report.failed += now.failed.values()
    expected, found = set(before.kept) - set(left_out), set(now.kept) - set(left_out)
    for side, keys, other in (("the baseline", expected - found, before), ("the records", found - expected, now)):
        alone = [pairing.name_of(other.kept[each]) for each in keys if each not in now.failed]
        report.changed += [f"{name} is in {side} alone" for name in sorted(alone)]
    pairs, report.refused = pairing.paired_up(before.kept, now.kept, allowed)
    report.notes += sorted({f"allowed mismatch: {each}" for pair in pairs for each in pair.mismatched})
    _judge_into(report, [pair for pair in pairs if pairing.key(pair.a) in expected & found], calibrations)


def _judge_into(report: Report, pairs: Sequence[Pair], calibrations: Path) -> None:
    calibration = calibration_of([pair.b for pair in pairs], calibrations, report.notes)
    report.rows = judge(pairs, report.threshold, calibration)


def calibration_of(records: Sequence[Record], folder: Path, notes: list[str]) -> Calibration | None:
    """Return the calibration of the machine that made records; notes say what it lacks."""
    if not records:
        return None
    found = read(records[0], folder)
    if found is None or not found.fits(records[0]):
        why = "is not calibrated" if found is None else "was calibrated with other versions"
        notes.append(f"the machine {why}: noise from one run to the next is not known; run `python -m bench calibrate`")
        return None
    if unknown := sum(found.of(record) is None for record in records):
        notes.append(f"{unknown} of {len(records)} points have no calibrated point of their case, backend and preset")
    return found


# ------------------------------------------------------------------ measuring


def measure_again(baseline: Sequence[Record], file: Path, allowed: Sequence[str]) -> list[Record]:
    """Measure the points of a baseline on this machine, now, and return their records, which are in ``file`` too.

    Raises:
        NotComparable: The baseline is of another kind of machine, or of several presets.
    """
    wanted = pairing.usable(baseline).kept
    if not wanted:
        return []
    presets = {record.preset for record in wanted.values()}
    if len(presets) > 1:
        raise NotComparable(f"gate: a baseline has one preset (got {', '.join(sorted(presets))}); give one file")
    preset = PresetName(presets.pop())
    context = sweep.Context.here(preset.value, file.stem)
    some = next(iter(wanted.values()))
    here = some.model_copy(update={"machine": dict(context.machine)})
    differ = {name: told for name, told in pairing.mismatches(some, here).items() if name not in allowed}
    if differ:
        raise NotComparable("gate: " + "; ".join(f"{name}: {told}" for name, told in differ.items()))
    todo = [sweep.Job(CASES[record.case], record.point) for record in wanted.values() if record.case in CASES]
    records = []
    for record in sweep.run(todo, context, file):
        records.append(record)
        say(f"{len(records)}/{len(todo)} {pairing.name_of(record)}: {record.status}")
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
    _judge_into(report, seen.pairs, calibrations)
    suspects = {row.pair.name for row in report.rows if row.outcome == "regression"}
    if suspects:
        say(f"{len(suspects)} look slower: again, in new processes")
        seen = _in_turns([each for each in points if label(*each) in suspects], report.baseline, preset, out)
        report.failed += seen.failed
        second = Report(baseline=report.baseline, threshold=report.threshold)
        _judge_into(second, seen.pairs, calibrations)
        confirm(report, second)


def _in_turns(points: Sequence[tuple[Case, Point]], baseline: str, preset: PresetName, out: Path) -> turns.Measured:
    """Measure a revision and the present code in new processes, and keep the records of both."""
    run_id = compare.new_run_id()
    seen = turns.measure_revisions(points, (baseline, turns.WORKING_TREE), preset.value, run_id, say)
    for pair in seen.pairs:
        append(out / f"{run_id}-a.jsonl", pair.a)
        append(out / f"{run_id}-b.jsonl", pair.b)
    return seen


def confirm(report: Report, second: Report) -> None:
    """Call inconclusive what was a regression and was none the second time."""
    again = {row.pair.name: row for row in second.rows}
    for index, row in enumerate(report.rows):
        if row.outcome != "regression":
            continue
        other = again.get(row.pair.name)
        told = f"{row.pair.name}: slower by {row.text}; in new processes {other.text if other else 'not measured'}"
        report.notes.append(told)
        if other is None or other.outcome != "regression":
            report.rows[index] = replace(row, outcome="inconclusive")


# ------------------------------------------------------------------ what it prints


def render_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    counts = {name: sum(row.outcome == name for row in report.rows) for name in ("ok", "inconclusive", "regression")}
    lines = [
        f"## Gate: {TITLES[report.code]}",
        "",
        f"{len(report.rows)} points against `{report.baseline}` at a threshold of {report.threshold:.2%}: "
        + ", ".join(f"{count} {name}" for name, count in counts.items())
        + ".",
        "",
        *(f"* {kind}: {text}" for kind, text in report.problems),
        *(f"* {note}" for note in report.notes),
    ]
    if report.rows:
        head = ("point", "ns before", "ns now", "slower by (95 % interval)", "regression from", "p (Holm)", "outcome")
        lines += ["", _cells(*head), "|---" * len(head) + "|"]
        lines += [_cells(*_columns(row)) for row in worst_first(report.rows)]
    return "\n".join(lines).rstrip() + "\n"


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows by how bad their outcome is, then by how much slower they became."""
    order: dict[Outcome, int] = {"regression": 0, "inconclusive": 1, "ok": 2}
    return sorted(rows, key=lambda row: (order[row.outcome], -row.ratio.value))


def _columns(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    return (
        row.pair.name,
        f"{median(row.pair.times_a):.4g}",
        f"{median(row.pair.times_b):.4g}",
        f"{ratio.value - 1:+.2%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})",
        f"{row.limit:.2%}",
        f"{row.p:.2g}",
        row.outcome,
    )


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def render_junit(report: Report) -> str:
    """Return the report as JUnit XML: a regression is a failure, what does not tell is skipped, the rest an error."""
    suite = ElementTree.Element("testsuite", name="bench gate")
    for row in report.rows:
        each = ElementTree.SubElement(suite, "testcase", classname=f"bench.{row.pair.b.case}", name=row.pair.name)
        if row.outcome != "ok":
            kind = "failure" if row.outcome == "regression" else "skipped"
            ElementTree.SubElement(each, kind, message=row.text)
    for kind, text in report.problems:
        each = ElementTree.SubElement(suite, "testcase", classname="bench.gate", name=f"{kind}: {text.splitlines()[0]}")
        tag = "skipped" if kind == "left out" else "error"
        ElementTree.SubElement(each, tag, message=text)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def render_annotations(report: Report) -> list[str]:
    """Return lines that GitHub shows beside a change: errors for what fails the gate, warnings for the rest."""
    lines = [
        _annotation("error" if row.outcome == "regression" else "warning", row.outcome, f"{row.pair.name}: {row.text}")
        for row in worst_first(report.rows)
        if row.outcome != "ok"
    ]
    return lines + [
        _annotation("warning" if kind == "left out" else "error", kind, text) for kind, text in report.problems
    ]


def _annotation(level: str, title: str, text: str) -> str:
    """Write a workflow command; Source: GitHub's `@actions/core`, whose `command.ts` escapes these characters."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title=bench gate%3A {title}::{escaped}"


# ------------------------------------------------------------------ the self-test


@dataclass(frozen=True, slots=True)
class Caught:
    """Outcomes of points that were slowed down on paper."""

    outcomes: dict[float, Counter[Outcome]]
    """By the slow-down that was put in."""


def slowed_down(
    records: Sequence[Record], threshold: float, calibration: Calibration | None, repeats: int = SELFTEST_REPEATS
) -> dict[str, Caught]:
    """Slow stored samples down on paper and judge them as the gate would.

    Both sides draw their samples with replacement from those of the record; where the machine is calibrated each side
    is shifted as runs are. So what is caught is what would be at that machine's noise. By case and backend.
    """
    kept = list(pairing.usable(records).kept.values())
    random = np.random.default_rng(0)
    found: dict[str, Caught] = {}
    for record in kept:
        found.setdefault(_group(record), Caught({by: Counter() for by in INJECTED}))
    for by in INJECTED:
        for _ in range(repeats):
            for row in judge([_injected(record, by, calibration, random) for record in kept], threshold, calibration):
                found[_group(row.pair.a)].outcomes[by][row.outcome] += 1
    return found


def _group(record: Record) -> str:
    return f"{record.case}, {record.point.get('backend')}"


def _injected(record: Record, by: float, calibration: Calibration | None, random: np.random.Generator) -> Pair:
    times = np.asarray(pairing.samples(record))
    noise = calibration.of(record) if calibration else None
    run = noise.run if noise else 0.0

    def drawn(slower: float) -> tuple[float, ...]:
        return tuple((random.choice(times, len(times)) * math.exp(random.normal(0, run)) * (1 + slower)).tolist())

    return Pair(name=pairing.name_of(record), a=record, b=record, times_a=drawn(0.0), times_b=drawn(by), in_turns=False)


def selftest_table(found: Mapping[str, Caught], threshold: float) -> Table:
    """Return what is caught at each slow-down, and what is inconclusive or passes, as a table."""
    made = Table(
        title=f"gate at {threshold:.2%}: caught / inconclusive / ok, of slow-downs that were put into stored samples",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        header_style="bold",
    )
    made.add_column("case, backend")
    made.add_column("points", justify="right")
    for by in INJECTED:
        made.add_column(f"{by:+.0%}", justify="right", no_wrap=True)
    for group, caught in found.items():
        cells = [
            " / ".join(f"{each[name] / each.total():.0%}" for name in ("regression", "inconclusive", "ok"))
            for each in caught.outcomes.values()
        ]
        made.add_row(group, str(caught.outcomes[0.0].total() // SELFTEST_REPEATS), *cells)
    return made


# ------------------------------------------------------------------ the command


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
            raise typer.Exit(run_selftest(records, report.threshold, choice))
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


def publish(report: Report, summary: Path | None, junit: Path | None, annotations: bool) -> None:
    """Print a report and write it where it is wanted."""
    text = render_markdown(report)
    print(text)
    if annotations:
        print("\n".join(render_annotations(report)))
    for path, content in ((summary, text), (junit, render_junit(report))):
        if path:
            write_atomically(path, content)


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
        return compare.selected(read_all([path]), self.cases, self.where)


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
    pairing.check_allowed(choice.allowed)
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


def run_selftest(path: Path | None, threshold: float, choice: Choice) -> int:
    """Print what the gate catches in the samples of some records; returns the exit code.

    Raises:
        NotComparable: No records are given.
    """
    if path is None:
        raise NotComparable("gate --selftest: needs stored samples (got none); give --records FILE")
    records = choice.of(path)
    notes: list[str] = []
    kept = list(pairing.usable(records).kept.values())
    calibration = calibration_of(kept, choice.calibrations, notes)
    found = slowed_down(kept, threshold, calibration)
    for note in notes:
        say(note)
    if not found:
        raise NothingMeasured("gate --selftest: no record can be compared")
    compare.console().print(selftest_table(found, threshold))
    if alarms := sum(caught.outcomes[0.0]["regression"] for caught in found.values()):
        say(f"{alarms} false alarms where nothing was slowed down")
        return int(Code.BROKEN)
    return int(Code.OK)
