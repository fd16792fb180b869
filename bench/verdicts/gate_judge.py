"""How a gate judges: two sets of records, or pairs that are measured already, become the rows of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.judge import Evidence, key, name_of
from bench.record import Record
from bench.stats import CONFIDENCE, Ratio, holm, smallest_detectable
from bench.verdicts.calibrate import CALIBRATIONS, Calibration, read
from bench.verdicts.gate_report import Outcome, Report, Row
from bench.verdicts.pairing import Pair, paired_up


def from_records(
    baseline: Sequence[Record],
    records: Sequence[Record],
    report: Report,
    calibrations: Path = CALIBRATIONS,
    allowed: Sequence[str] = (),
) -> None:
    """Fill a report from two sets of records."""
    before, now = Evidence.of(baseline), Evidence.of(records)
    left_out = before.disturbed | now.disturbed
    for side, texts in (("the baseline", before.disturbed), ("the records", now.disturbed)):
        report.left_out += [f"{text} (in {side})" for text in texts.values()]
    report.failed += now.failed.values()
    expected, found = set(before.kept) - set(left_out), set(now.kept) - set(left_out)
    for side, keys, other in (("the baseline", expected - found, before), ("the records", found - expected, now)):
        alone = [name_of(other.kept[each]) for each in keys if each not in now.failed]
        report.changed += [f"{name} is in {side} alone" for name in sorted(alone)]
    pairs, report.refused = paired_up(before.kept, now.kept, allowed)
    report.notes += sorted({f"allowed mismatch: {each}" for pair in pairs for each in pair.mismatched})
    judge_into(report, [pair for pair in pairs if key(pair.a) in expected & found], calibrations)


def judge_into(report: Report, pairs: Sequence[Pair], calibrations: Path) -> None:
    """Put the rows of pairs into a report, judged at the noise of the machine that made them."""
    calibration = calibration_of([pair.b for pair in pairs], calibrations, report.notes)
    report.rows = judge(pairs, report.threshold, calibration)


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
    return wide, max(smallest, smallest_detectable(ratio.error, 1)), max(p, wide.p_over(1 + threshold))


def _outcome(ratio: Ratio, threshold: float, limit: float, p: float) -> Outcome:
    if ratio.high < 1 + threshold:
        return "ok"
    return "regression" if p < (1 - CONFIDENCE) / 2 and ratio.value >= 1 + limit else "inconclusive"


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
