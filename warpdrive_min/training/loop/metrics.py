"""Metrics of a run: numbers read from the device in one copy, checked, and made into rows.

A row is ``{"iteration": ..., "env_steps": ..., "seconds": ..., "steps_per_s": ..., "<policy>/<metric>": ...}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from warpdrive_min.errors import TrainingError, require
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.ranks import World

Row = Mapping[str, float | int]

STEPS_PER_S: Final = "steps_per_s"
"""Steps of all environments together since the last row, 1/s."""
EPISODIC_RETURN: Final = "mean_episodic_return"
"""Mean over episodes since the last row of the rewards of a policy's agents, summed; NaN: no episode ended."""
GRADIENT_NORM: Final = "gradient_norm"
"""Norm of a policy's gradient before it is clipped; DDPG has one of each network, with its name after this."""
SKIPPED_STEPS: Final = "n_skipped_steps"
"""Metric of a policy: steps of its optimisers that were not taken since the gradient was not finite."""
IMPOSSIBLE_ROWS: Final = "n_impossible_rows"
"""Metric of a policy of choices: draws since the last row for which its mask or its numbers left no choice."""
ADVICE: Final = "lower lr or max_grad_norm, or scale down rewards and observations"
MAX_GRADIENT_NORM: Final = 1e8
"""A longer gradient means that training diverges: the next numbers are not finite any more."""


Numbers = dict[str, dict[str, float]]
"""Numbers by policy and name."""
Array = npt.NDArray[np.float64]
Arrays = dict[str, Array]
"""Numbers of the members of a population, (members,), by name."""


def read(
    groups: Iterable[PolicyGroup], recorders: Mapping[str, RolloutRecorder], world: World
) -> tuple[Numbers, Numbers]:
    """Read, in one copy, the metrics of the last updates and the means over episodes; synchronises.

    Of several ranks these are means of metrics, and means over the episodes of all; NaN where none has ended.

    Args:
        groups: Policies; those that do not learn have no metrics.
        recorders: Recorders of the rewards, by the suffix of their array's name.
        world: The ranks, all of which must read.
    """
    groups = list(groups)
    updates: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for group in groups:
        statistics, rows = recorders[group.arrays.suffix].statistics(), group.arrays.rows
        returns = statistics["finished_return"]
        sums[f"{group.name}/returns"] = (returns if rows is None else returns[rows]).sum()
        sums[f"{group.name}/steps"] = statistics["finished_steps"]
        sums[f"{group.name}/episodes"] = statistics["finished_episodes"]
        if (impossible := _impossible(group)) is not None:
            sums[f"{group.name}/impossible"] = impossible
        if group.algorithm is not None:
            updates |= {f"{group.name}/{key}": value for key, value in group.algorithm.metrics.items()}
    numbers = fetch(world.averaged(updates) | world.summed(sums))
    metrics = {
        group.name: {key: numbers[f"{group.name}/{key}"] for key in group.algorithm.metrics}
        for group in groups
        if group.algorithm is not None
    }
    episodes = {}
    for group in groups:
        of_group = (numbers[f"{group.name}/{key}"] for key in ("returns", "steps", "episodes"))
        episodes[group.name] = {key: float(mean) for key, mean in _means(group, *of_group).items()}
        if f"{group.name}/impossible" in numbers:
            episodes[group.name][IMPOSSIBLE_ROWS] = numbers[f"{group.name}/impossible"]
    return metrics, episodes


def read_members(group: PolicyGroup, recorder: RolloutRecorder) -> Arrays:
    """Read, in one copy, what `read` reads, of each member of a population, (members,) float64; synchronises."""
    assert group.algorithm is not None, "a population learns"
    sums = recorder.statistics(*group.shape)
    tensors = [sums["finished_return"].sum(1), sums["finished_steps"], sums["finished_episodes"]]
    names, impossible = list(group.algorithm.metrics), _impossible(group, *group.shape)
    tensors += group.algorithm.metrics.values()
    if impossible is not None:
        names.append(IMPOSSIBLE_ROWS)
        tensors.append(impossible)
    returns, steps, episodes, *numbers = torch.stack([tensor.double() for tensor in tensors]).cpu().numpy()
    means = _means(group, returns, steps, episodes)
    return means | dict(zip(names, numbers, strict=True))


def _impossible(group: PolicyGroup, *members: int) -> Tensor | None:
    """Return how often nothing could be drawn for a policy's agents, 0-d or (members,); None: it has no choices."""
    counts = group.actions.impossible
    if counts is None:
        return None
    own = counts if group.arrays.rows is None else counts[:, group.arrays.rows]
    return own.view(*members, -1).sum(-1)


def fetch(numbers: Mapping[str, Tensor]) -> dict[str, float]:
    """Read 0-d tensors from the device in one copy, by their types; synchronises."""

    def kind(name: str) -> str:
        return str(numbers[name].dtype)

    names = sorted(numbers, key=kind)
    of_types = [torch.stack([numbers[name] for name in each]).double() for _, each in groupby(names, kind)]
    read = dict(zip(names, torch.cat(of_types).tolist() if of_types else [], strict=True))
    return {name: read[name] for name in numbers}


def _means(group: PolicyGroup, returns: Any, steps: Any, episodes: Any) -> dict[str, Any]:
    """Return the means over episodes from sums over them; NaN where none has ended."""
    with np.errstate(invalid="ignore"):
        mean_return, mean_steps = np.divide(returns, episodes), np.divide(steps, episodes)
    return {
        EPISODIC_RETURN: mean_return,
        "mean_agent_return": mean_return / group.arrays.n_agents,
        "mean_episodic_steps": mean_steps,
        "episodes": episodes,
    }


class RecentReturns:
    """Mean returns over the latest rows that have a number of steps of all environments together.

    With as many steps as all environments have in an episode of full length, long episodes count as well as short
    ones, which end first.

    Args:
        n_steps: Steps.
    """

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self.restart(0)

    def restart(self, first_step: int) -> None:
        """Forget all rows; ``first_step`` steps are done before the next one."""
        self._rows: list[Mapping[str, Any]] = []
        self._first_step = first_step

    def add(self, row: Row, policies: Iterable[str]) -> dict[str, float | None]:
        """Add a row, and return the mean return of each policy; None: there are too few steps, or no episode ended."""
        means = {policy: float(mean) for policy, mean in self.means(row, policies).items()}
        return {policy: mean if math.isfinite(mean) else None for policy, mean in means.items()}

    def means(self, row: Mapping[str, Any], policies: Iterable[str]) -> dict[str, Any]:
        """Add a row, of a population with arrays (members,), and return the same means; NaN where there is none."""
        self._rows.append(row)
        while len(self._rows) > 1 and row["env_steps"] - self._rows[0]["env_steps"] >= self._n_steps:
            self._first_step = int(self._rows.pop(0)["env_steps"])
        if row["env_steps"] - self._first_step < self._n_steps:
            return {policy: math.nan * row[f"{policy}/episodes"] for policy in policies}
        return {policy: self._mean(policy) for policy in policies}

    def _mean(self, policy: str) -> Any:
        rows = [(row[f"{policy}/episodes"], row[f"{policy}/{EPISODIC_RETURN}"]) for row in reversed(self._rows)]
        with np.errstate(invalid="ignore"):
            return np.divide(sum(np.where(n, n * mean, 0.0) for n, mean in rows), sum(n for n, _ in rows))


def check_finite(
    policy: str, metrics: Mapping[str, float], iteration: int, env_steps: int, last_iteration: int = 0
) -> None:
    """Make sure that an update gave numbers that training can go on with.

    Args:
        policy: Name of the policy.
        metrics: Metrics of its algorithm, by name; not means over episodes, which are NaN if none ended.
        iteration: Iterations done.
        env_steps: Steps done, of all environments together.
        last_iteration: Iterations done at the last check.

    Raises:
        TrainingError: One is not finite, or a gradient is longer than `MAX_GRADIENT_NORM`; names all of them. Or a
            gradient was not finite since the last check, and its step was not taken.
    """
    broken = {name: number for name, number in metrics.items() if not math.isfinite(number)}
    exploding = {
        name: number
        for name, number in metrics.items()
        if name.startswith(GRADIENT_NORM) and number > MAX_GRADIENT_NORM
    }
    for rule, wrong in (("be finite", broken), (f"be at most {MAX_GRADIENT_NORM:g}", exploding)):
        if wrong:
            got = " and ".join(f"{number:g}" for number in wrong.values())
            raise TrainingError(
                f"policy {policy!r}: {' and '.join(wrong)} must {rule} (got {got} at iteration {iteration:,}, "
                f"env step {env_steps:,}); {ADVICE}"
            )
    if n_skipped := sum(number for name, number in metrics.items() if name.startswith(SKIPPED_STEPS)):
        raise TrainingError(
            f"policy {policy!r}: gradients must be finite (got {n_skipped:g} that were not, from iteration "
            f"{last_iteration + 1:,} to {iteration:,}, env step {env_steps:,}); their steps were not taken; {ADVICE}"
        )


def check_return(policy: str, mean_return: float, when: str = "") -> None:
    """Make sure that returns fit into float32, in which environments sum up the rewards of an episode.

    Raises:
        TrainingError: They do not, though each reward may.
    """
    rule, do = f"the return of an episode must be finite{when}", "scale down the rewards"
    require(math.isfinite(mean_return), f"policy {policy!r}", rule, mean_return, do, TrainingError)


def make_row(
    iteration: int, env_steps: int, seconds: float, metrics: Mapping[str, Mapping[str, float]], **more: float
) -> dict[str, float | int]:
    """Return the row of what `read` returned; ``more`` concerns the whole run, such as `STEPS_PER_S`."""
    of_policies = {f"{policy}/{name}": value for policy, values in metrics.items() for name, value in values.items()}
    return {"iteration": iteration, "env_steps": env_steps, "seconds": seconds, **more, **of_policies}
