"""`python -m bench learning`: learning over tasks, by algorithm or another axis."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Final

import typer

from warpdrive_min.files import require_writable

from ..core.record import RESULTS, read_reporting, selected
from ..options import Where, say
from ..show import plots, render
from ..show.columns import Column, Table
from ..show.scores import (
    WANTED_SEEDS,
    Estimate,
    Scores,
    interquartile_mean_of,
    probability_of_improvement,
    profiles_chart,
    scores_of,
)

LEARNING: Final = RESULTS / "learning"


def learning(
    records: Annotated[list[Path], typer.Argument(help="Files or folders of records of case learn.")],
    by: Annotated[str, typer.Option(help="Axis whose values are compared.")] = "algorithm",
    where: Where = None,
    out: Annotated[Path, typer.Option(help="Output folder of the figure.")] = LEARNING,
) -> None:
    """Compare learning over tasks: scores, profiles and improvement.

    Takes runs to the end (until=end); `export rliable` and `export marl-eval` write them for other tools.
    """
    require_writable(out, "--out")
    found = scores_of(selected(read_reporting(records), [], where or []), by)
    for table in (scores_table(found, by), improvement_table(found)):
        if table.rows:
            render.console(160).print(render.terminal(table))
    if found.left_out:
        say(f"left out, as not every {by} has runs of each task: {', '.join(found.left_out)}")
    say(f"figure: {plots.save(plots.paint(profiles_chart(found)), out / 'performance-profiles.png')}")


Row = tuple[str, str, int, float | None, Estimate]
"""Algorithm, task, seeds, mean return, score."""


def _interval(estimate: Estimate) -> str:
    value, low, high = estimate
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def scores_table(scores: Scores, axis: str) -> Table[Row]:
    """Return the interquartile mean score of each task, and of all tasks."""
    rows = list[Row]()
    for name in scores.returns:
        of_tasks = scores.of(name)
        for task, own, returns in zip(scores.tasks, of_tasks, scores.returns[name], strict=True):
            score, low, high = interquartile_mean_of([own])
            rows.append((name, task, len(own), interquartile_mean_of([returns])[0], (score, low, high)))
        rows.append((name, "all tasks", min(map(len, of_tasks)), None, interquartile_mean_of(of_tasks)))
    return Table(
        title="Learning over tasks",
        caption="Scores are normalised: 0 is the untrained return, 1 the highest threshold of a task. Means are "
        "interquartile, intervals 95 % by stratified bootstrap over seeds.",
        rows=rows,
        columns=[
            Column(axis, lambda row: row[0]),
            Column("task", lambda row: row[1]),
            Column("seeds", lambda row: f"{row[2]}{' (few)' if row[2] < WANTED_SEEDS else ''}", is_right=True),
            Column("return", lambda row: "" if row[3] is None else f"{row[3]:.4g}", is_right=True),
            Column("score (95 % interval)", lambda row: _interval(row[4]), is_right=True),
        ],
        n_grouping=1,
    )


def improvement_table(scores: Scores) -> Table[tuple[str, str, Estimate]]:
    """Return the probability of improvement of each pair of algorithms."""
    pairs = itertools.combinations(scores.returns, 2)
    rows = [(x, y, probability_of_improvement(scores.of(x), scores.of(y))) for x, y in pairs]
    return Table(
        title="Probability that a run of X scores above one of Y",
        rows=rows,
        columns=[
            Column("X", lambda row: row[0]),
            Column("Y", lambda row: row[1]),
            Column("P(X > Y), mean over tasks (95 % interval)", lambda row: _interval(row[2]), is_right=True),
        ],
    )
