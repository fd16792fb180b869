"""Gate of memory and of learning, which have no samples of time.

Bytes are exact, so any increase is a regression. Learning is compared over seeds, or over the members of a population:
the present code is worse if its runs rank below those of the baseline, even if these were worse by a stated amount.

Source: Mann and Whitney 1947, "On a test of whether one of two random variables is stochastically larger than the
other".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..core.case import Job
from ..core.groups import groups_of
from ..core.point import Metric, point_name
from ..core.record import Context, Record, oldest_first
from ..core.stats import FEWEST_SEEDS, holm, median
from ..options import LEAST_THRESHOLDS, Choice, say
from ..process.checkouts import WORKING_TREE, revisions
from ..process.concurrent_setup import run_points
from ..process.interleaved import PairFiles, require_one_code
from ..process.sweep import measure_missing, read_existing
from ..show.records import axes_except
from ..workloads.cases import CASES
from ..workloads.shared import MEMBERS, continues_after_threshold
from .evidence import Estimate, Judgement, Key, key, name_of
from .outcomes import Report
from .pairing import pair_records
from .sequential import FALSE_ALARMS, MISSES

EXACT: Final = "exact"
"""Note of a figure without noise."""
BYTES: Final = "bytes"
"""Unit of exact figures."""
STEPS: Final = "env_steps_to_threshold"
RETURN: Final = "return_after"


def is_untimed(record: Record) -> bool:
    """True if a record is of memory or learning."""
    return record.scope in ("memory", "learn") and record.case in CASES


def measure(
    todo: Sequence[Job], baseline: str, choice: Choice, run_id: str, outputs: PairFiles
) -> tuple[list[Record], list[Record]]:
    """Measure points on both sides, each in a new process; finished ones are read.

    Raises:
        NotComparable: git does not know the baseline, or finished points are of other code.
        WorkerError: The code of the baseline cannot be imported.
    """
    both = list[list[Record]]()
    with revisions(baseline, WORKING_TREE) as starts:
        for letter, start, file in zip("ab", starts, (outputs.a, outputs.b), strict=True):
            with start() as process:
                here: dict[str, Any] = process.ask("describe")
            fields = {name: here[name] for name in ("machine", "git", "dependencies_hash")}
            for each in newest(read_existing(file)[0]).values():
                require_one_code(each, here["git"])
            context = Context(run_id=f"{run_id}-{letter}", preset=choice.preset, **fields)

            def runner(jobs: Sequence[Job], context: Context, start: Any = start) -> Any:
                return run_points(jobs, context, lambda _: start)

            both.append(list(filter(is_untimed, measure_missing(todo, context, file, runner, say))))
    return both[0], both[1]


# ------------------------------------------------------------------ judging


def newest(records: Sequence[Record]) -> dict[Key, Record]:
    """Return the newest record of memory or learning of each point."""
    return {key(each): each for each in oldest_first(filter(is_untimed, records))}


def evidence(records: Sequence[Record]) -> dict[Key, Record]:
    """Return the `newest` records without failed and skipped ones."""
    return {where: each for where, each in newest(records).items() if each.is_evidence}


def judge_into(report: Report, before: Sequence[Record], now: Sequence[Record], allowed: Sequence[str] = ()) -> None:
    """Add the judgements of memory and learning that both sides have."""
    kept = (evidence(before), evidence(now))
    broken = {where for where, each in newest(now).items() if each.has_failed}
    alone = {
        where: f"{name_of(each)} is only in {words}"
        for (own, other), words in zip((kept, kept[::-1]), ("the baseline", "the records"), strict=True)
        for where, each in own.items()
        if where not in other and where not in broken
    }
    paired, refused = pair_records(*kept, allowed)
    pairs = [(pair.a, pair.b) for pair in paired]
    rows = [_of_bytes(a, b) for a, b in pairs if a.scope == "memory"]
    tasks = groups_of([pair for pair in pairs if pair[0].scope == "learn"], lambda pair: axes_except(pair[0], "seed"))
    drafts = [_of_task(task) for task in tasks.values()]
    adjusted = holm([draft.p or 0.0 for draft in drafts])
    rows += [_decided(draft, p) for draft, p in zip(drafts, adjusted, strict=True)]
    report.rows += rows
    report.add("changed", *sorted(alone.values()))
    report.add("not comparable", *refused)


def _of_bytes(a: Record, b: Record) -> Judgement[str]:
    """Return the judgement of bytes; any increase is a regression."""
    one, other = (_bytes(record) for record in (a, b))
    estimate = Estimate(
        value=other / one,
        low=other / one,
        high=other / one,
        records=(a, b),
        note=EXACT,
        sides=(f"{one:,.10g} bytes", f"{other:,.10g} bytes"),
    )
    return Judgement(
        subject=name_of(b),
        estimate=estimate,
        region=(0.0, 1.0),
        verdict="regression" if other > one else "ok",
        reasons=(f"{other - one:+,.10g} bytes of an environment; they are exact, and any increase counts",),
    )


def _bytes(record: Record) -> float:
    metrics: Mapping[str, Metric] = record.metrics or {}
    return next(each.value for each in metrics.values() if each.unit == BYTES)


def costs(record: Record) -> list[float]:
    """Return a run's cost of learning, or that of each member of a population.

    It is the logarithm of the env steps to the threshold, infinite if that was missed; of a run to the end, the return
    after training, negated.
    """
    if continues_after_threshold(record.point):
        return [-(record.metrics or {})[RETURN].value]
    if members := record.notes.get(MEMBERS):
        return [math.inf if steps is None else math.log(steps) for steps in members[STEPS]]
    steps = (record.metrics or {}).get(STEPS)
    return [math.inf if steps is None else math.log(steps.value)]


def _of_task(pairs: Sequence[tuple[Record, Record]]) -> Judgement[str]:
    """Return the draft of a task's judgement, with its p-value.

    It is "ok" or "inconclusive".
    """
    from scipy.stats import mannwhitneyu  # noqa: PLC0415  (slow to import)

    a, b = ([cost for pair in pairs for cost in costs(pair[side])] for side in (0, 1))
    first, is_return = pairs[0][0], continues_after_threshold(pairs[0][0].point)
    if is_return:
        start = median([(each.metrics or {})["return_before"].value for each, _ in pairs])
        share = LEAST_THRESHOLDS["learn_return"]
        amount = share * abs(float(first.point["threshold"]) - start)
        limit, sides = f"a return lower by {amount:.4g}", [f"return {-median(side):.4g}" for side in (a, b)]
        value = median(b) - median(a)
        words = f"the median return is {-value:+.4g}"
    else:
        share = LEAST_THRESHOLDS["learn"]
        amount, limit = math.log1p(share), f"{share:.0%} more env steps"
        sides = [_steps(side) for side in (a, b)]
        value = math.inf if math.isinf(median(b)) else math.exp(median(b) - median(a))
        words = f"{sides[1]}, before {sides[0]}"
    shifted = [cost + amount for cost in a]
    p_worse, p_fine = (float(mannwhitneyu(b, shifted, alternative=side).pvalue) for side in ("greater", "less"))
    is_equal = a == b
    n = min(len(a), len(b))
    seeds = ("member" if MEMBERS in first.notes else "seed") + "s" * (n > 1)
    why = f"{words}; worse by more than {limit}: p = {p_worse:.2g}, not worse: p = {p_fine:.2g}"
    few = f"{n} {seeds} a side cannot decide; measure {FEWEST_SEEDS} or more" if n < FEWEST_SEEDS else ""
    name = point_name(first.case, {axis: each for axis, each in first.point.items() if axis != "seed"})
    return Judgement(
        subject=name,
        estimate=Estimate(
            value=value,
            low=value,
            high=value,
            records=(first, pairs[0][1]),
            note=f"{n} {seeds} a side, by rank",
            sides=(sides[0], sides[1]),
        ),
        limit=math.nan,
        p=p_worse,
        verdict="ok" if is_equal or p_fine < MISSES else "inconclusive",
        reasons=("equal in every seed" if is_equal else why, "" if is_equal else few),
    )


def _steps(costs_: Sequence[float]) -> str:
    middle, n_missed = median(costs_), sum(map(math.isinf, costs_))
    missed = f", {n_missed} of {len(costs_)} miss" if n_missed else ""
    return (f"median {math.exp(middle):,.4g} env steps" if math.isfinite(middle) else "median: missed") + missed


def _decided(draft: Judgement[str], p: float) -> Judgement[str]:
    is_worse = draft.verdict != "ok" and p < FALSE_ALARMS
    return replace(draft, p=p, verdict="regression" if is_worse else draft.verdict)
