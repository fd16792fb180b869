"""What a run reports of its policies: what their last updates were like, and the episodes that have ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from warpdrive_min.training.learners import Learner
from warpdrive_min.training.metrics import EPISODIC_RETURN, Row, fetch
from warpdrive_min.training.ranks import World
from warpdrive_min.training.recorder import Recorder

Numbers = dict[str, dict[str, float]]
"""By policy and name."""


def read(learners: Mapping[str, Learner], recorders: Mapping[str, Recorder], world: World) -> tuple[Numbers, Numbers]:
    """Read, in one copy, the metrics of the last updates and the means over episodes; synchronises.

    Of several ranks these are means of metrics, and means over the episodes of all; NaN where none has ended.

    Args:
        learners: By policy; those that do not learn have no metrics.
        recorders: Of the rewards, by the suffix of their array's name.
        world: The ranks, all of which must read.
    """
    updates: dict[str, torch.Tensor] = {}
    sums: dict[str, torch.Tensor] = {}
    for name, learner in learners.items():
        seat = learner.player.seat
        statistics = recorders[seat.suffix].statistics()
        returns = statistics["finished_return"]
        sums[f"{name}/returns"] = (returns if seat.rows is None else returns[seat.rows]).sum()
        sums[f"{name}/steps"] = statistics["finished_steps"]
        sums[f"{name}/episodes"] = statistics["finished_episodes"]
        if learner.algorithm is not None:
            updates |= {f"{name}/{key}": value for key, value in learner.algorithm.metrics.items()}
    numbers = fetch({"": world.averaged(updates) | world.summed(sums)})[""]
    metrics = {
        name: {key: numbers[f"{name}/{key}"] for key in learner.algorithm.metrics}
        for name, learner in learners.items()
        if learner.algorithm is not None
    }
    return metrics, {name: _means(name, learner, numbers) for name, learner in learners.items()}


def _means(name: str, learner: Learner, numbers: Mapping[str, float]) -> dict[str, float]:
    n = numbers[f"{name}/episodes"]
    mean_return = numbers[f"{name}/returns"] / n if n else math.nan
    return {
        EPISODIC_RETURN: mean_return,
        "mean_agent_return": mean_return / learner.player.seat.n_agents,
        "mean_episodic_steps": numbers[f"{name}/steps"] / n if n else math.nan,
        "episodes": n,
    }


def mean_return(rows: Sequence[Row], policy: str, n_steps: int, first_step: int = 0) -> float | None:
    """Return the mean over the episodes of the latest rows that have ``n_steps`` steps of all environments together.

    With as many steps as all environments have in an episode of full length, long episodes count as well as short
    ones, which end first.

    Args:
        rows: Of metrics, in order.
        policy: Whose return.
        n_steps: Steps.
        first_step: Steps done before the first row.

    Returns:
        None if all rows have fewer, or if no episode ended in them.
    """
    total = n_episodes = 0.0
    for index in reversed(range(len(rows))):
        if number := rows[index][f"{policy}/episodes"]:
            total += number * rows[index][f"{policy}/{EPISODIC_RETURN}"]
            n_episodes += number
        before = rows[index - 1]["env_steps"] if index else first_step
        if rows[-1]["env_steps"] - before >= n_steps:
            return total / n_episodes if n_episodes else None
    return None
