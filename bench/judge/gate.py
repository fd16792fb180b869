"""`python -m bench gate`: fail if anything became slower than a baseline.

Exit codes: 0 no point is slower by the threshold or more; 1 one is; 2 the noise does not tell; 3 nothing was measured,
or the set of points changed; 4 the baseline is missing or not comparable; 5 something is broken. With `--static` the
gate compares machine code and runs nothing.
"""

from __future__ import annotations

import math
import shlex
import signal
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min.errors import WriteError
from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.stopping import Stopped
from warpdrive_min.terminal import echo

from .. import options
from ..core.archive import exists
from ..core.case import Job
from ..core.errors import CompareError, FileError, NotComparable, NothingMeasured
from ..core.point import PresetName, command_line, point_name
from ..core.record import Context, Record, existing_files, read_all, require_no_source
from ..core.stats import CONFIDENCE, holm, median, smallest_detectable
from ..options import COMPARISONS, Archs, AtOnce, Gated, Resume, Where, has_energy, say
from ..process.checkouts import WORKING_TREE, checkouts
from ..process.interleaved import ROUNDS, Limit, Pair, PairFiles, PairResults, measure_revisions
from ..process.stopping import register_outputs
from ..process.sweep import in_processes, measure_missing
from ..show.columns import Column, signs
from ..static import verdict
from ..workloads.cases import CASES
from ..workloads.outside import job_of, names_of
from ..workloads.shared import is_outside
from . import untimed
from .calibration import CALIBRATIONS, Calibration, noise, read, store
from .evidence import Estimate, Evidence, Judgement, check_allowed, key, mismatches, name_of, position
from .outcomes import KIND_OF_CODE, Report, run_page
from .pairing import caveat_lines, is_file, pair_records
from .sequential import FALSE_ALARMS, FEWEST_ROUNDS, MOST_ROUNDS, is_below, is_decided, p_slower, smallest_found

THRESHOLD: Final = 0.015
"""Half of the smallest slow-down that the gate should catch, 3 %."""
Row = Judgement[str]
"""Judgement of a point's time relative to the baseline."""


# ------------------------------------------------------------------ the command


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(options.Choice):
    """Points of a gate, and its folders."""

    run_id: str
    """Id of the run."""
    out: Path
    calibrations: Path
    static: bool = False
    """Compare machine code instead of times."""
    most_rounds: int = MOST_ROUNDS
    """Maximum number of rounds of a point."""
    end: float = math.inf
    """Time of `time.monotonic` after which nothing new starts."""
    calibrates: bool = True
    """Calibrate a machine without a calibration."""


def gate(
    context: typer.Context,
    baseline: Annotated[
        str | None, typer.Option(help="Base to compare with: a file or folder of records, or a git revision.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="File or folder of records to judge; by default the points are measured now.")
    ] = None,
    threshold: Annotated[
        str, typer.Option(help="Largest slow-down that passes, such as 3% or 0.03.")
    ] = f"{THRESHOLD:.1%}",
    preset: Annotated[
        PresetName, typer.Option(help="Points, and time to measure each; for a baseline that is a revision.")
    ] = PresetName.default,
    case: Gated = None,
    where: Where = None,
    allow_mismatch: Annotated[
        list[str] | None, typer.Option(help="Field that may differ between the records; may be repeated.")
    ] = None,
    summary: Annotated[Path | None, typer.Option(help="Output file of the report as Markdown.")] = None,
    comment: Annotated[
        Path | None, typer.Option(help="Output file of at most ten lines for a pull request, regressions first.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Output file of the report as JUnit XML.")] = None,
    annotations: Annotated[
        bool, typer.Option("--annotations", help="Print GitHub's ::error and ::warning commands.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Output folder of the records.")] = COMPARISONS,
    calibrations: Annotated[Path, typer.Option(help="Folder of the calibrations.")] = CALIBRATIONS,
    resume: Resume = None,
    at_once: AtOnce = 1,
    most_rounds: Annotated[
        int, typer.Option(min=2, max=1000, help="Maximum number of rounds of a point that is not decided.")
    ] = MOST_ROUNDS,
    time_limit: Annotated[
        float | None,
        typer.Option(callback=options.bounded(0, 1e6), help="Minutes after which the gate judges what it has timed."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="On a machine without a calibration, first compare the baseline with itself.")
    ] = True,
    static: Annotated[bool, typer.Option("--static", help="Compare machine code; runs no kernel.")] = False,
    arch: Archs = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="With --static, an environment or module:Class; otherwise one outside envs/ that records may import."
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(help="With --static, an argument of the environment, as KEY=VALUE.")
    ] = None,
) -> None:
    """Fail if a point is slower than a baseline; --static compares machine code.

    Exits with 0 ok, 1 regression, 2 inconclusive, 3 nothing measured or the set of points changed, 4 not comparable or
    no baseline, 5 broken.
    """
    of_rounds = "most_rounds", "calibrate"
    if static:
        options.refuse_unused(context, "with --static", *of_rounds)
    elif records is not None:
        options.refuse_unused(context, "with --records", "preset", "resume", "at_once", "time_limit", *of_rounds)
    elif baseline and is_file(baseline):
        options.refuse_unused(context, "with records as --baseline", "time_limit", *of_rounds)
    outputs = {"--summary": summary, "--comment": comment, "--junit": junit}
    given = {option: file for option, file in outputs.items() if file}
    if len(set(given.values())) < len(given):
        files = " ".join(f"{option} {file}" for option, file in given.items())
        raise typer.BadParameter(f"{' and '.join(given)}: must be different files (got {files}); rename one")
    sources = [side for side in (records, Path(baseline or "")) if side and is_file(str(side))]
    for option, file in given.items():
        require_writable(file, option, is_file=True)
        require_no_source(file, option, sources)
    report = report_on(baseline or "nothing", THRESHOLD, static)
    choice = Choice(
        preset=preset.value,
        cases=case or [],
        where=where or [],
        allowed=allow_mismatch or [],
        at_once=at_once,
        run_id=options.resumed_or_new_run_id(resume, out, preset.value),
        out=out,
        calibrations=calibrations,
        envs=env or [],
        archs=arch or [],
        config=config or [],
        static=static,
        most_rounds=most_rounds,
        end=math.inf if time_limit is None else time.monotonic() + 60 * time_limit,
        calibrates=calibrate,
    )
    stopped: Stopped | None = None
    try:
        if not static and (arch or config):
            raise CompareError("gate: --arch and --config need --static (got it without); add --static")
        if env and not static and (records is not None or not is_file(report.baseline)):
            rule = "needs --static, or records as --baseline that are measured again"
            raise CompareError(f"--env: {rule} (got {', '.join(env)}); {_before_the_change(env[0], 'run')}")
        report.threshold = parse_threshold(threshold)
        if records is not None and not exists(records):
            raise CompareError(f"--records: must exist (got {records}); name a file or folder of records")
        fill(report, records, choice)
    except Stopped as signalled:  # the finished points are reported first
        if not report.rows and not static:
            raise
        stopped = signalled
        report.add("left out", f"stopped by {signal.Signals(stopped.number).name}")
    except CompareError as error:
        report.add(KIND_OF_CODE[error.code], str(error))
    except (FileError, WriteError) as error:
        report.add("broken", str(error))
    except Exception as error:  # noqa: BLE001  (no error may end a gate with exit code 1, which means regression)
        traceback.print_exc()
        report.add("broken", f"{type(error).__name__}: {error}")
    text = report.markdown()
    echo(text)
    if annotations:
        echo("\n".join(report.annotations()))
    contents = {"--summary": text, "--comment": report.comment(run_page()), "--junit": report.junit()}
    for option, file in given.items():
        write_atomically(file, contents[option])
    raise stopped or typer.Exit(report.code)


def parse_threshold(text: str) -> float:
    """Parse ``--threshold``, such as ``5%`` or ``0.05``.

    Raises:
        CompareError: The text is neither, or not between 0 and 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise CompareError(f"--threshold: must be above 0 and below 100% (got {text}); for example 3% or 0.03")
    return share


# ------------------------------------------------------------------ both sides


def fill(report: Report, records: Path | None, choice: Choice) -> None:
    """Measure or read both sides and judge them."""
    if report.baseline == "nothing":
        raise NotComparable("gate: needs a baseline (got none); give --baseline FILE or --baseline REVISION")
    if choice.static:
        return from_machine_code(report, records, choice)
    if not is_file(report.baseline):
        if records or choice.allowed:
            raise NotComparable(
                f"gate: --baseline must be records (got {report.baseline}, which is no file), as --records or "
                "--allow-mismatch are given; name a file"
            )
        return from_revision(report, choice)
    check_allowed(choice.allowed)
    before = choice.of(Path(report.baseline))
    if not before:
        raise NothingMeasured(
            f"gate: no record of {report.baseline} passes --case and --where; `python -m bench table` shows its records"
        )
    if records is not None:
        now = choice.of(records)
    else:
        file = choice.out / f"{choice.run_id}.jsonl"
        require_writable(choice.out, "--out")
        register_outputs(file, words=("--resume", choice.run_id))
        now = measure_again(before, file, choice.allowed, names_of(choice.envs))
        report.notes.append(f"records: {file}")
    return from_records(report, before, now, choice.calibrations, choice.allowed)


def measure_again(
    baseline: Sequence[Record], file: Path, allowed: Sequence[str], named: Collection[str] = ()
) -> list[Record]:
    """Measure the points of a baseline on this machine, into a file.

    Raises:
        NotComparable: The baseline is of another kind of machine, or of several presets.
        CompareError: A record's environment is outside `envs/`, and not ``named``.
    """
    from ..process.local import run_points  # noqa: PLC0415  (imports torch)

    wanted = [*Evidence.of(baseline).comparable.values(), *untimed.evidence(baseline).values()]
    if not wanted:
        return []
    presets = {record.preset for record in wanted}
    if len(presets) > 1:
        raise NotComparable(f"gate: a baseline has one preset (got {', '.join(sorted(presets))}); give one file")
    context = Context.here(presets.pop(), file.stem)
    here = wanted[0].model_copy(update={"machine": dict(context.machine)})
    if differ := mismatches(wanted[0], here, allowed):
        do = "make this machine equal, or allow the field with --allow-mismatch"
        raise NotComparable(f"gate: baseline against here: {'; '.join(differ)}; {do}")
    n_processes = max(len(record.by_process(record.samples_ns or ())) for record in wanted)
    todo = in_processes([job_of(record, named) for record in wanted if record.case in CASES], n_processes)
    return measure_missing(todo, context, file, partial(run_points, in_new_processes=n_processes > 1), say)


def from_records(
    report: Report,
    baseline: Sequence[Record],
    records: Sequence[Record],
    calibrations: Path = CALIBRATIONS,
    allowed: Sequence[str] = (),
) -> None:
    """Fill a report from two sets of records."""
    before, now = Evidence.of(baseline), Evidence.of(records)
    report.add("left out", *(f"{text} (in the baseline)" for text in before.disturbances.values()))
    report.add("left out", *(f"{text} (in the records)" for text in now.disturbances.values()))
    report.add("broken", *now.failed.values())
    left_out = before.disturbances.keys() | now.disturbances.keys()
    expected, there = before.comparable.keys() - left_out, now.comparable.keys() - left_out
    for side, keys, of in (("the baseline", expected - there, before), ("the records", there - expected, now)):
        alone = sorted(name_of(of.comparable[each]) for each in keys - now.failed.keys())
        report.add("changed", *(f"{name} is only in {side}" for name in alone))
    pairs, refused = pair_records(before.comparable, now.comparable, allowed)
    report.add("not comparable", *refused)
    report.notes += sorted({f"allowed mismatch: {each}" for pair in pairs for each in pair.mismatched})
    pairs = [pair for pair in pairs if key(pair.a) in expected & there]
    report.notes += caveat_lines(pairs)
    unreliable = before.unreliable | now.unreliable
    judge_into(report, [pair for pair in pairs if key(pair.a) not in unreliable], calibrations)
    report.rows += [_undecided(pair, unreliable[key(pair.a)]) for pair in pairs if key(pair.a) in unreliable]
    untimed.judge_into(report, baseline, records, allowed)


def from_revision(report: Report, choice: Choice) -> None:
    """Fill a report from interleaved rounds of a revision and this code."""
    every = options.gated(choice, True)
    points, once = [job for job in every if not options.is_once(job)], [job for job in every if options.is_once(job)]
    if not every:
        raise NothingMeasured(
            f"gate: no point of preset {choice.preset} can run here and passes --case and --where; "
            f"{options.why_none(choice) or '`python -m bench list` shows cases, axes and backends'}"
        )
    outputs = PairFiles.of(choice.out, choice.run_id)
    require_writable(choice.out, "--out")
    nothing = "no record was saved, as no point has all its rounds"
    register_outputs(outputs.a, outputs.b, words=("--resume", choice.run_id), nothing=nothing)
    both = report.baseline, WORKING_TREE
    n_tests = len(points) + sum(map(has_energy, points))
    decided = partial(_is_decided, threshold=report.threshold, n_points=n_tests)
    has_rounds = ROUNDS[choice.preset] > 1  # preset smoke is too short to compare processes
    most = choice.most_rounds if has_rounds else None
    limit = Limit(rounds=most, fewest=FEWEST_ROUNDS, is_decided=decided, end=choice.end)
    try:
        if once and limit.has_passed:
            report.add("left out", f"not measured: {len(once)} points of memory and learning")
            report.n_missing += len(once)
        elif once:
            before, now = untimed.measure(once, report.baseline, choice, choice.run_id, outputs)
            report.add("broken", *Evidence.of(now).failed.values())
            untimed.judge_into(report, before, now)
        if not points:
            return
        if has_rounds and choice.calibrates:
            report.notes += calibrate_if_needed(points, report.baseline, choice)
        seen = measure_revisions(
            points, both, choice.preset, choice.run_id, say, outputs, choice.at_once, limit, has_energy
        )
    except Stopped:
        names = [point_name(job.case.name, job.point) for job in points]
        judge_rounds(report, PairResults(missing=names), choice)
        raise
    judge_rounds(report, seen, choice)
    if not has_rounds:
        why = f"preset {choice.preset} has one short round, which only tests that a gate runs"
        report.notes.append(f"{why}; a longer preset decides, or --static without a GPU")
    if outputs.files:
        report.notes.append(f"records: {choice.out / choice.run_id}-*.jsonl")
    if seen.stopped:
        raise seen.stopped


def judge_rounds(report: Report, seen: PairResults, choice: Choice) -> None:
    """Add judgements of interleaved pairs, and points without one."""
    report.add("changed", *(f"{text} (only one side was measured)" for text in seen.skipped))
    report.add("broken", *seen.failed)
    if seen.missing:
        what = f"not measured: {len(seen.missing)} of {len(seen.missing) + len(seen.pairs)} points"
        report.add("left out", f"{what} ({', '.join(seen.missing)}); --resume {choice.run_id} continues")
        report.n_missing += len(seen.missing)
    report.notes += caveat_lines(seen.pairs)
    judge_into(report, seen.pairs, choice.calibrations, choice.most_rounds)


def calibrate_if_needed(points: Sequence[Job], baseline: str, choice: Choice) -> list[str]:
    """Calibrate this machine with the baseline against itself, if necessary.

    Returns the number of points, the time and the file, as text.
    """
    here = Context.here(choice.preset).machine
    before = read(here, choice.calibrations)
    if before is not None and before.fits(here):
        return []
    start, rounds = time.monotonic(), ROUNDS[choice.preset]
    say(f"this machine is not calibrated: compares {baseline} with itself first; --no-calibrate leaves this out")
    run_id = f"{choice.run_id}-calibration"
    outputs = PairFiles(*[choice.out / f"{run_id}.jsonl"] * 3)
    limit = Limit(rounds=rounds, is_decided=lambda _: False, end=choice.end)
    seen = measure_revisions(points, (baseline, baseline), choice.preset, run_id, say, outputs, choice.at_once, limit)
    if seen.stopped:
        raise seen.stopped
    if not (whole := [pair for pair in seen.pairs if limit.is_reached(pair)]):
        return []
    command = command_line("gate", baseline=baseline, preset=choice.preset, case=choice.cases, where=choice.where)
    file = store(noise(whole), whole[0].a, command, choice.calibrations)
    minutes = (time.monotonic() - start) / 60
    text = f"calibrated {len(whole)} points with {baseline} against itself in {minutes:.1f} minutes: {file}"
    say(text)
    return [text]


def _before_the_change(env: str, command: str) -> str:
    """Return how to gate an environment that no revision of this clone has."""
    words = f"python -m bench {command} --env {shlex.quote(env)} --out before"
    return f"record it before the change with `{words}`, then give --baseline before"


def from_machine_code(report: Report, records: Path | None, choice: Choice) -> None:
    """Fill a report from the machine code of both sides.

    Records of a baseline are comparable only if the same tools made them.
    """
    from ..static.sides import Progress, Work, print_size, records_of_side  # noqa: PLC0415  (imports torch)

    context, outputs = Context.here(choice.preset, choice.run_id), PairFiles.of(choice.out, choice.run_id)
    a, b = (Progress(file, choice.end, read_all(existing_files(file))) for file in (outputs.a, outputs.b))
    signalled, before, now = None, list[Record](), list[Record]()
    register_outputs(outputs.a, outputs.b, words=("--resume", choice.run_id))
    try:
        if is_file(report.baseline):
            before = choice.of(Path(report.baseline))
            if records is None:
                print_size(Work.of(choice, b))
        elif records is not None:
            rule = f"must be records (got {report.baseline}), as --records are; name a file"
            raise NotComparable(f"gate: --baseline {rule}")
        else:
            for name in filter(is_outside, choice.envs):
                rule = "must be in envs/, as only the code of this clone is checked out at a revision"
                raise CompareError(f"--env: {rule} (got {name}); {_before_the_change(name, 'static')}")
            print_size(Work.of(choice, a), Work.of(choice, b))
            with checkouts(report.baseline) as (tree,):
                before = records_of_side(choice, "a", context, a, tree)
        now = records_of_side(choice, "b", context, b) if records is None else choice.of(records)
    except Stopped as error:
        signalled = error
        before, now = before or read_all(existing_files(outputs.a)), read_all(existing_files(outputs.b))
    if (missing := a.missing + b.missing) or signalled:
        what = f"not compiled ({len(missing)}): {', '.join(missing)}"
        report.add("left out", f"{what}; --resume {choice.run_id} continues")
        before, now = verdict.of_both_sides(before, now)
    elif not before and not now:
        axes = "program (an environment, or a part of the core), part, kernel, backend and arch"
        raise NothingMeasured(f"gate: no kernel passes --case, --where and --env; axes of machine code are {axes}")
    verdict.judge_into(report, before, now)
    if signalled:
        raise signalled


# ------------------------------------------------------------------ judging


def judge_into(report: Report, pairs: Sequence[Pair], calibrations: Path, most_rounds: int = MOST_ROUNDS) -> None:
    """Add the judgements of pairs to a report, with their machine's noise."""
    calibration, notes = calibration_of([pair.b for pair in pairs], calibrations)
    if not all(pair.ratio.between_processes for pair in pairs):  # rounds show their noise
        report.notes += notes
    pairs = [*pairs, *(energy for pair in pairs if (energy := pair.energy))]
    rows = judge(pairs, report.threshold, calibration, most_rounds)
    report.rows += rows
    if rows:
        row = max(rows, key=lambda row: row.limit)
        found = _sensitivity(row.limit)
        if row.limit < 1:
            found = (
                f"a slow-down of {_share(row.limit)} of any one point would have been found by four of five such gates"
            )
        report.notes.append(f"{found}; the least certain point is {row.subject}")


def judge(
    pairs: Sequence[Pair], threshold: float, calibration: Calibration | None, most_rounds: int = MOST_ROUNDS
) -> list[Row]:
    """Return the judgement of each pair.

    * ok: the slow-down is below the threshold. All rows must pass, so nothing is adjusted.
    * regression: slower than the threshold, with a p-value adjusted by Holm.
    * inconclusive: neither.

    Rounds of new processes are tested as in `sequential`. Other ratios are ok if their 95 % interval lies below the
    threshold, and a regression needs p < 2.5 % and no less than the smallest slow-down that can be told from noise.
    The interval of a ratio within one process is widened by the calibrated noise.

    Source: for asking from both sides of a margin, Schuirmann 1987, "A comparison of the two one-sided tests procedure
    and the power approach".
    """
    drafts = [_draft(pair, _threshold(pair, threshold), calibration, len(pairs), most_rounds) for pair in pairs]
    adjusted = holm([p for *_, p in drafts])
    return [_judged(draft, by_rounds, p) for (draft, by_rounds, _), p in zip(drafts, adjusted, strict=True)]


def _draft(
    pair: Pair, threshold: float, calibration: Calibration | None, n_points: int, most_rounds: int
) -> tuple[Row, bool, float]:
    """Return a raw judgement, whether it is by rounds, and the raw p-value."""
    ratio, known = pair.ratio, calibration.of(pair.b) if calibration and pair.quantity == "time" else None
    is_own = known is not None and known.point == pair.b.point
    by_rounds, region = pair.comparison is not None and ratio.between_processes, (0.0, 1 + threshold)
    if pair.comparison and by_rounds:
        logs, noise = pair.comparison.rounds, known.of_round if known and is_own else 0.0
        words, p, is_ok = f"{len(logs)} rounds", p_slower(logs, threshold), is_below(logs, threshold)
        n_rounds = most_rounds if is_decided(logs, threshold, n_points) else len(logs)
        limit = smallest_found(logs, threshold, n_points, n_rounds, noise)
    else:
        words = "one process" if pair.n_processes == 1 else f"{pair.n_processes} processes"
        p = pair.p_slower(threshold)
        if known and not ratio.between_processes:
            ratio = ratio.widened(*known.of_ratio(pair.is_interleaved))
            p = max(p, ratio.p_over(1 + threshold))
        smallest = smallest_detectable(ratio.error, 1, ratio.dof if ratio.between_processes else None)
        if known:
            smallest = max(smallest, known.smallest_in_turns if pair.is_interleaved else known.smallest)
        limit, is_ok = max(threshold, smallest), position((ratio.low, ratio.high), region) == "inside"
    if known and (is_own or not by_rounds):
        words += ", calibrated" if is_own else f", calibrated at {point_name(known.case, known.point)}"
    estimate = replace(Estimate.of_ratio(ratio, pair.a, pair.b), note=words, sides=_sides(pair))
    verdict = "ok" if is_ok else "inconclusive"
    return Judgement(subject=pair.name, estimate=estimate, region=region, limit=limit, verdict=verdict), by_rounds, p


def _undecided(pair: Pair, why: str) -> Row:
    """Return the judgement of a pair with a load on one side only."""
    estimate = replace(Estimate.of_ratio(pair.ratio, pair.a, pair.b), sides=_sides(pair))
    return Judgement(subject=pair.name, estimate=estimate, limit=math.nan, verdict="inconclusive", reasons=(why,))


def _is_decided(pair: Pair, threshold: float, n_points: int) -> bool:
    compared = [(each.comparison, _threshold(each, threshold)) for each in (pair, pair.energy) if each]
    return all(comparison and is_decided(comparison.rounds, limit, n_points) for comparison, limit in compared)


def _threshold(pair: Pair, threshold: float) -> float:
    """Return the threshold of a pair: the given one, or its case's smallest."""
    return max(threshold, *(options.LEAST_THRESHOLDS.get(name, 0.0) for name in (pair.b.case, pair.quantity)))


def _sides(pair: Pair) -> tuple[str, str]:
    """Return the time or energy of a unit of work on both sides, as text."""

    def text(record: Record) -> str:
        if pair.quantity == "energy":
            return f"{1e6 * median(record.notes['joules_per_unit']):.4g} uJ"
        return f"{median(record.unit_ns):.4g}{signs(record)} ns"

    return text(pair.a), text(pair.b)


def _judged(draft: Row, by_rounds: bool, p: float) -> Row:
    """Return a judgement with its adjusted p-value."""
    estimate = draft.estimate
    assert estimate is not None, "a pair has an estimate"
    if by_rounds:
        is_slower = p < FALSE_ALARMS
    else:
        is_slower = draft.verdict != "ok" and p < (1 - CONFIDENCE) / 2 and estimate.value >= 1 + draft.limit
    why = f"{_change(estimate)}, {_sensitivity(draft.limit)}, p = {p:.2g}"
    return replace(draft, p=p, verdict="regression" if is_slower else draft.verdict, reasons=(why,))


def _change(estimate: Estimate) -> str:
    """Return a change with its interval, as text; a positive one is worse."""
    if estimate.low == estimate.high:
        return f"{estimate.value - 1:+.2%}" if estimate.note == untimed.EXACT else ""
    return f"{estimate.value - 1:+.2%} ({estimate.low - 1:+.2%} to {estimate.high - 1:+.2%})"


def _sensitivity(limit: float) -> str:
    """Return the smallest slow-down that would be found, as text."""
    few = "" if limit < 1 else "too few rounds or processes: only "
    return f"{few}a slow-down of {_share(limit)} would be found"


def _share(limit: float) -> str:
    if math.isnan(limit):
        return ""
    return "more than 100 %" if math.isinf(limit) else f"{limit:.2%}"


def calibration_of(records: Sequence[Record], folder: Path) -> tuple[Calibration | None, list[str]]:
    """Return the calibration of the records' machine, and its gaps, as text."""
    if not records:
        return None, []
    calibration = read(records[0].machine, folder)
    if calibration is None or not calibration.fits(records[0].machine):
        why = "is not calibrated" if calibration is None else "was calibrated with other versions of its software"
        advice = "the noise between runs is unknown; run `python -m bench calibrate`"
        return None, [f"the machine {why}: {advice}"]
    notes = []
    found = [(record, calibration.of(record)) for record in records]
    others = [known for record, known in found if known is not None and known.point != record.point]
    if others:
        names = ", ".join(sorted({point_name(known.case, known.point) for known in others}))
        notes.append(
            f"{len(others)} of {len(records)} points are not calibrated; their noise is that of the noisiest "
            f"calibrated point of their case, backend and preset: {names}"
        )
    if unknown := sum(known is None for _, known in found):
        notes.append(
            f"{unknown} of {len(records)} points have unknown noise: no point of their case, backend and preset is "
            "calibrated"
        )
    return calibration, notes


# ------------------------------------------------------------------ showing

COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("point", lambda row: row.subject),
    Column("before, per unit", lambda row: row.estimate.sides[0] if row.estimate else ""),
    Column("now, per unit", lambda row: row.estimate.sides[1] if row.estimate else ""),
    Column("change (95 % interval)", lambda row: _change(row.estimate) if row.estimate else ""),
    Column("smallest change that is found", lambda row: _share(row.limit)),
    Column("p (Holm)", lambda row: "" if row.p is None else f"{row.p:.2g}"),
    Column("source of the noise estimate", lambda row: row.estimate.note if row.estimate else ""),
    Column("outcome", lambda row: row.verdict),
)


def report_on(baseline: str, threshold: float, static: bool = False) -> Report:
    """Return an empty report on times, or on machine code."""
    report = Report(baseline=baseline, threshold=threshold, columns=COLUMNS)
    if static:
        report.what, report.verdicts, report.columns = "kernel", verdict.VERDICTS[::-1], verdict.COLUMNS
    return report
