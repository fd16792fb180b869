"""Learning over tasks: performance profiles and probability of improvement.

Each task has several runs of each algorithm. The bootstrap is stratified: it draws the runs of each task with
replacement, separately.

Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", sections 4.1 to
4.3, as rliable computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..core.errors import ShowError
from ..core.record import Record
from ..core.stats import CONFIDENCE, RESAMPLES, Floats, interquartile_mean, median
from ..workloads.shared import continues_after_threshold
from .charts import PART_COLORS, Chart, DataPoint, Panel, Series, chart
from .labels import environment
from .records import latest

RETURN: Final = "return_after"
WANTED_SEEDS: Final = 20
"""Smallest number of seeds of a task that is not marked."""
N_LEVELS: Final = 61
"""Levels of a performance profile."""
LINES: Final = ("-", "--", "-.", ":")
"""Line styles of algorithms."""
Estimate = tuple[float, float, float]
"""Value with its 95 % interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Returns after training, by algorithm and task."""

    returns: dict[str, list[Floats]]
    """Return of each seed, an array for each task."""
    seeds: dict[str, list[list[Record]]]
    """Records of these returns."""
    tasks: list[str]
    ends: list[tuple[float, float]]
    """Return of each task that scores 0, of untrained policies, and 1, its threshold."""
    left_out: list[str]
    """Algorithms that share no task with the others, and tasks that only some algorithms have."""

    def of(self, algorithm: str) -> list[Floats]:
        """Return the normalised scores of each task."""
        return [(own - low) / (high - low) for own, (low, high) in zip(self.returns[algorithm], self.ends, strict=True)]

    def matrix(self, algorithm: str) -> Floats:
        """Return the scores as rliable expects them, (seeds, tasks).

        All tasks have the smallest number of seeds of any task and algorithm: the first ones.
        """
        n = min(len(runs) for tasks in self.returns.values() for runs in tasks)
        return np.stack([runs[:n] for runs in self.of(algorithm)], axis=1)


def scores_of(records: Sequence[Record], axis: str = "algorithm") -> Scores:
    """Return the scores of runs to the end, by the values of an axis.

    Raises:
        ShowError: There are no such runs, or those of one algorithm and task differ in another axis.
    """
    whole = [each for each in records if each.case == "learn" and continues_after_threshold(each.point)]
    whole = [each for each in latest(whole) if each.is_evidence and RETURN in (each.metrics or {})] if whole else []
    if not whole:
        do = "run `python -m bench run --preset full --case learn --where until=end`"
        raise ShowError(f"learning: needs runs to the end of the run config (got none); {do}")
    named = list(dict.fromkeys(str(each.point.get(axis, "absent")) for each in whole))
    tasks = list(dict.fromkeys((str(each.point["env"]), str(each.point["learner"])) for each in whole))
    cells = {(name, task): list[Record]() for name in named for task in tasks}
    for each in sorted(whole, key=lambda record: int(record.point["seed"])):
        cells[str(each.point.get(axis, "absent")), (str(each.point["env"]), str(each.point["learner"]))].append(each)
    differ = {axis, "seed"}
    for (name, (env, _)), own in cells.items():
        for other in {name: None for each in own for name in each.point if name not in differ}:
            if len(values := {str(each.point.get(other, "absent")) for each in own}) > 1:
                rule = f"runs of {name} on {env} must share {other}"
                raise ShowError(f"learning: {rule} (got {', '.join(sorted(values))}); add --where {other}=VALUE")
        if len(own) == 1:
            raise ShowError(f"learning: {name} on {env}: needs two seeds or more (got one); run more seeds")
    every = list(named)
    while not (shared := [task for task in tasks if all(cells[name, task] for name in named)]):
        named.remove(min(named, key=lambda name: sum(bool(cells[name, task]) for task in tasks)))
    of_tasks = [[each for name in named for each in cells[name, task]] for task in shared]
    ends = [
        (
            median([_metric(each, "return_before") for each in own]),
            max(float(each.point["threshold"]) for each in own),
        )
        for own in of_tasks
    ]
    for (env, _), (low, high) in zip(shared, ends, strict=True):
        if high <= low:
            rule = f"the threshold of {env} must be above its untrained return, {low:g}"
            raise ShowError(f"learning: {rule} (got {high:g}); add --where env=OTHER")
    return Scores(
        returns={name: [_returns(cells[name, task]) for task in shared] for name in named},
        seeds={name: [cells[name, task] for task in shared] for name in named},
        tasks=[environment(env) + (f" ({learner})" if learner != "shared" else "") for env, learner in shared],
        ends=ends,
        left_out=[name for name in every if name not in named]
        + [environment(env) for env, learner in tasks if (env, learner) not in shared],
    )


def _returns(runs: Sequence[Record]) -> Floats:
    return np.array([_metric(each, RETURN) for each in runs])


def _metric(record: Record, name: str) -> float:
    return (record.metrics or {})[name].value


# ------------------------------------------------------------------ statistics


def interquartile_mean_of(tasks: Sequence[Floats]) -> Estimate:
    """Return the interquartile mean of the scores of all runs and tasks."""

    def trimmed(*runs: Floats, axis: int = -1) -> Floats:
        return interquartile_mean(np.moveaxis(np.concatenate(runs, axis), axis, 0))

    return _estimate(tasks, trimmed)


def probability_of_improvement(x: Sequence[Floats], y: Sequence[Floats]) -> Estimate:
    """Return the probability that a run of x scores above one of y, over tasks.

    Equal scores count half.
    """

    def share(*tasks: Floats, axis: int = -1) -> Floats:
        pairs = zip(tasks[: len(x)], tasks[len(x) :], strict=True)
        return np.asarray(np.mean([_above(own, other) for own, other in pairs], axis=0))

    return _estimate([*x, *y], share)


def _above(x: Floats, y: Floats) -> Floats:
    sign = np.sign(x[..., :, None] - y[..., None, :])
    return np.asarray((sign.mean((-2, -1)) + 1) / 2)


def performance_profile(tasks: Sequence[Floats], levels: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the share of runs above each level, averaged over tasks, with its ends."""

    def shares(*runs: Floats, axis: int = -1) -> Floats:
        return np.asarray(np.mean([[(own > level).mean(axis) for level in levels] for own in runs], axis=0))

    return _bootstrapped(tasks, shares)


def _estimate(tasks: Sequence[Floats], statistic: Callable[..., Floats]) -> Estimate:
    value, low, high = map(float, _bootstrapped(tasks, statistic))
    return value, low, high


def _bootstrapped(tasks: Sequence[Floats], statistic: Callable[..., Floats]) -> tuple[Floats, Floats, Floats]:
    """Return a statistic with its 95 % percentile interval."""
    from scipy.stats import bootstrap  # noqa: PLC0415  (slow to import)

    found = bootstrap(
        tasks,
        statistic,
        n_resamples=RESAMPLES,
        batch=100,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return statistic(*tasks), np.asarray(found.low), np.asarray(found.high)


# ------------------------------------------------------------------ figure


def profiles_chart(scores: Scores) -> Chart:
    """Chart the performance profile of each algorithm."""
    all_scores = np.concatenate([runs for name in scores.returns for runs in scores.of(name)])
    levels = np.linspace(min(0.0, float(all_scores.min())), max(1.0, float(all_scores.max())), N_LEVELS)
    series = []
    for index, name in enumerate(scores.returns):
        columns = (levels, *performance_profile(scores.of(name), levels))
        points = [
            DataPoint(float(x), float(y), float(low), float(high)) for x, y, low, high in zip(*columns, strict=True)
        ]
        colour, line = PART_COLORS[index % len(PART_COLORS)], LINES[index % len(LINES)]
        series.append(Series(name, {"color": colour, "marker": "", "linestyle": line}, points))
    n = min(len(runs) for tasks in scores.returns.values() for runs in tasks)
    records = [each for tasks in scores.seeds.values() for runs in tasks for each in runs]
    panels = [Panel(", ".join(scores.tasks), series)]
    return chart("performance-profiles", panels, records, n_tasks=str(len(scores.tasks)), n_seeds=str(n))
