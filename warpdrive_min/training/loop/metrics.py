"""Metrics of a run: read in one copy, checked, arranged in rows.

A row is ``{"iteration": ..., "env_steps": ..., "seconds": ..., "steps_per_s": ..., "<policy>/<metric>": ...}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from warpdrive_min.errors import TrainingError, require
from warpdrive_min.training.ranks import World

if TYPE_CHECKING:
    from warpdrive_min.training.loop.policies import PolicyGroup
    from warpdrive_min.training.loop.rollout import RolloutRecorder

Row = Mapping[str, float | int]

STEPS_PER_S: Final = "steps_per_s"
"""Env steps per second since the last row, over all environments."""
EPISODIC_RETURN: Final = "mean_episodic_return"
"""Mean return since the last row, summed over agents; NaN: no episodes."""
GRADIENT_NORM: Final = "gradient_norm"
"""Gradient norm before clipping; DDPG appends each network's name."""
SKIPPED_STEPS: Final = "n_skipped_steps"
"""Optimiser steps of a policy that were skipped for non-finite gradients."""
IMPOSSIBLE_ROWS: Final = "n_impossible_rows"
"""Discrete draws since the last row without an allowed choice."""
ADVICE: Final = "lower lr or max_grad_norm, or scale down rewards and observations"
NOT_SKIPPED: Final = "not be skipped"
MAX_GRADIENT_NORM: Final = 1e8
"""Gradient norm above which training diverges, with non-finite numbers next."""


Numbers = dict[str, dict[str, Any]]
"""Numbers by policy and name: floats, or float64 (members,)."""


def read(
    groups: Iterable[PolicyGroup],
    recorders: Mapping[str, RolloutRecorder],
    world: World,
    more: Mapping[str, Tensor],
) -> tuple[Numbers, Numbers, dict[str, Any]]:
    """Read update metrics, episode means and other numbers in one copy; synchronises.

    With several ranks these are means of metrics over ranks, and means over the episodes of all ranks. A mean is NaN if
    no episode ended.

    Args:
        groups: Policies; those that do not learn have no metrics.
        recorders: Recorders of rewards, by the suffix of their array's name.
        world: Ranks, all of which must call this.
        more: Numbers of this rank, returned as `fetch` does.
    """
    groups = list(groups)
    updates: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for group in groups:
        statistics, rows = recorders[group.arrays.suffix].statistics(*group.shape), group.arrays.rows
        returns, impossible = statistics["finished_return"], group.actions.impossible
        sums[f"{group.name}/returns"] = (returns if rows is None else returns[..., rows]).sum(-1)
        sums[f"{group.name}/steps"] = statistics["finished_steps"]
        sums[f"{group.name}/episodes"] = statistics["finished_episodes"]
        if impossible is not None:
            own = impossible if rows is None else impossible[:, rows]
            sums[f"{group.name}/impossible"] = own.view(*group.shape, -1).sum(-1)
        if group.algorithm is not None:
            updates |= {f"{group.name}/{key}": value for key, value in group.algorithm.metrics.items()}
    numbers = fetch(world.averaged(updates) | world.summed(sums) | dict(more))
    metrics = {
        group.name: {key: numbers[f"{group.name}/{key}"] for key in group.algorithm.metrics}
        for group in groups
        if group.algorithm is not None
    }
    episodes = {}
    for group in groups:
        returns, steps, n = (numbers[f"{group.name}/{key}"] for key in ("returns", "steps", "episodes"))
        with np.errstate(invalid="ignore"):
            mean_return, mean_steps = np.divide(returns, n), np.divide(steps, n)
        means = {
            EPISODIC_RETURN: mean_return,
            "mean_agent_return": mean_return / group.arrays.n_agents,
            "mean_episodic_steps": mean_steps,
            "episodes": n,
        }
        if f"{group.name}/impossible" in numbers:
            means[IMPOSSIBLE_ROWS] = numbers[f"{group.name}/impossible"]
        episodes[group.name] = means if group.members else {key: float(mean) for key, mean in means.items()}
    return metrics, episodes, {name: numbers[name] for name in more}


def fetch(numbers: Mapping[str, Tensor]) -> dict[str, Any]:
    """Read tensors in one copy from each device; synchronises.

    Returns:
        A float for each 0-d tensor, a float64 array for each other one.
    """

    def kind(name: str) -> tuple[str, str, torch.Size]:
        tensor = numbers[name]
        return str(tensor.device), str(tensor.dtype), tensor.shape

    if not numbers:
        return {}
    names = sorted(numbers, key=kind)
    alike = [torch.stack([numbers[name] for name in each]).double().flatten() for _, each in groupby(names, kind)]
    by_device = [torch.cat(list(each)).cpu() for _, each in groupby(alike, lambda each: each.device)]
    together, at = torch.cat(by_device).numpy(), 0
    read = dict[str, Any]()
    for name in names:
        shape, n = numbers[name].shape, numbers[name].numel()
        read[name] = together[at : at + n].reshape(shape) if shape else float(together[at])
        at += n
    return {name: read[name] for name in numbers}


class RecentReturns:
    """Mean returns over the latest rows, spanning given env steps.

    With the env steps of one full-length episode in each environment, long episodes count as much as short ones, which
    end first.

    Args:
        n_steps: Env steps, over all environments.
    """

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps
        self.means: dict[str, Any] = {}
        """Mean return by policy at the last row, or (members,); may be NaN."""
        self.restart(0)

    def restart(self, first_step: int) -> None:
        """Drop all rows; ``first_step`` env steps precede the next one."""
        self._rows: list[Mapping[str, Any]] = []
        self._first_step = first_step

    @property
    def spans(self) -> tuple[int, int]:
        """Env steps of all rows, and of the last one."""
        *starts, end = self._first_step, *(int(row["env_steps"]) for row in self._rows)
        return end - starts[0], end - starts[-1]

    def add(self, row: Mapping[str, Any], policies: Iterable[str]) -> dict[str, float | None]:
        """Add a row; return each policy's mean return (over members).

        None: too few env steps, or no episode ended.
        """
        self._rows.append(row)
        while len(self._rows) > 1 and row["env_steps"] - self._rows[0]["env_steps"] >= self._n_steps:
            self._first_step = int(self._rows.pop(0)["env_steps"])
        has_enough = row["env_steps"] - self._first_step >= self._n_steps
        self.means = {
            policy: self._mean(policy) if has_enough else math.nan * row[f"{policy}/episodes"] for policy in policies
        }
        finite = {policy: np.ravel(mean)[np.isfinite(mean).ravel()].tolist() for policy, mean in self.means.items()}
        return {policy: sum(numbers) / len(numbers) if numbers else None for policy, numbers in finite.items()}

    def _mean(self, policy: str) -> Any:
        rows = [(row[f"{policy}/episodes"], row[f"{policy}/{EPISODIC_RETURN}"]) for row in reversed(self._rows)]
        with np.errstate(invalid="ignore"):
            return np.divide(sum(np.where(n, n * mean, 0.0) for n, mean in rows), sum(n for n, _ in rows))


def faults(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return masks of faulty update metrics, by broken rule and name.

    Args:
        metrics: As of `check_finite`; for a population arrays (members,).
    """
    norms = {name: number for name, number in metrics.items() if name.startswith(GRADIENT_NORM)}
    return {
        "be finite": {name: ~np.isfinite(number) for name, number in metrics.items()},
        f"be at most {MAX_GRADIENT_NORM:g}": {
            name: np.greater(norm, MAX_GRADIENT_NORM) for name, norm in norms.items()
        },
        NOT_SKIPPED: {
            name: np.greater(number, 0) for name, number in metrics.items() if name.startswith(SKIPPED_STEPS)
        },
    }


def check_finite(
    policy: str, metrics: Mapping[str, float], iteration: int, env_steps: int, last_iteration: int = 0
) -> None:
    """Check that training can continue with the numbers of an update.

    Args:
        policy: Name of the policy.
        metrics: Metrics of its algorithm, by name; not means over episodes, which are NaN if none ended.
        iteration: Number of finished iterations.
        env_steps: Env steps done, over all environments.
        last_iteration: Number of finished iterations at the last check.

    Raises:
        TrainingError: A number is not finite, or a gradient is longer than `MAX_GRADIENT_NORM`; names all of them. Or a
            step was skipped since the last check because its gradient was not finite.
    """
    for rule, are_wrong in faults(metrics).items():
        wrong = {name: metrics[name] for name, is_wrong in are_wrong.items() if is_wrong}
        if not wrong:
            continue
        if rule == NOT_SKIPPED:
            raise TrainingError(
                f"policy {policy!r}: gradients must be finite (got {sum(wrong.values()):g} that were not, from "
                f"iteration {last_iteration + 1:,} to {iteration:,}, env step {env_steps:,}); their steps were "
                f"skipped; {ADVICE}"
            )
        got = " and ".join(f"{number:g}" for number in wrong.values())
        raise TrainingError(
            f"policy {policy!r}: {' and '.join(wrong)} must {rule} (got {got} at iteration {iteration:,}, "
            f"env step {env_steps:,}); {ADVICE}"
        )


def check_return(policy: str, mean_return: float, when: str = "") -> None:
    """Check that a mean return is finite, in float32 sums of rewards.

    Raises:
        TrainingError: It is not, although each reward may be.
    """
    rule, do = f"the return of an episode must be finite{when}", "scale down the rewards"
    require(math.isfinite(mean_return), f"policy {policy!r}", rule, mean_return, do, TrainingError)


def make_row(
    iteration: int, env_steps: int, seconds: float, metrics: Mapping[str, Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """Build a row from `read`'s result and values of the whole run."""
    of_policies = {f"{policy}/{name}": value for policy, values in metrics.items() for name, value in values.items()}
    return {"iteration": iteration, "env_steps": env_steps, "seconds": seconds, **more, **of_policies}
