"""A wrapper and its oracle, stepped side by side from the same state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from warpdrive_min.consistency.arrays import Array, Difference, difference
from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, Constants
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.env_wrapper import EnvWrapper


def copy_state(source: CUDADataManager, target: CUDADataManager) -> None:
    """Copy every array that both data managers have from one to the other, scratch excepted; synchronises.

    Of arrays with a row for each environment the first ``target.n_envs`` are copied, so that a few
    environments of a large run can be stepped beside it: an environment does not depend on how many there are.
    """
    for name in set(_names(target)) & set(_names(source)):
        target.tensor(name).copy_(_first_rows(source.tensor(name), target.tensor(name).shape))


@dataclass(slots=True)
class Agreement:
    """Counts and largest differences of a comparison step by step."""

    largest: dict[str, Difference] = field(default_factory=dict)
    """The largest difference of each array."""
    n_rows: int = 0
    """Rows compared: an environment's, and each agent's observation."""
    n_in_doubt: int = 0
    """Rows left out, because rounding decides their outcome; an environment that is left out whole counts once."""
    n_compared: int = 0
    """Environments compared, at all steps together."""
    n_done: int = 0
    """Episodes that ended."""

    def add(self, other: Agreement) -> None:
        """Take in what another comparison saw."""
        for name, found in other.largest.items():
            if name not in self.largest or found.error > self.largest[name].error:
                self.largest[name] = found
        self.n_rows += other.n_rows
        self.n_in_doubt += other.n_in_doubt
        self.n_compared += other.n_compared
        self.n_done += other.n_done

    @property
    def max_error(self) -> float:
        """Largest difference of any array; infinite if nothing was compared, as all was in doubt."""
        if not self.n_compared:
            return math.inf
        return max(each.error for each in self.largest.values())

    def __str__(self) -> str:
        doubt = f"{self.n_in_doubt} of {self.n_rows} rows in doubt"
        if not self.n_compared:
            return f"nothing was compared; {doubt}"
        name, found = max(self.largest.items(), key=lambda item: item[1].error)
        return f"largest in {name} {found}; {doubt}"


def step_by_step(tested: EnvWrapper, oracle: EnvWrapper, draw: Callable[[], None], n_steps: int) -> Agreement:
    """Step a wrapper and its oracle from the wrapper's own state, so that errors cannot pile up; synchronises.

    Every array is compared, except those pushed with ``scratch=True``: the kernels' own workspace.

    Args:
        tested: Started wrapper on any backend.
        oracle: Started wrapper of the same environment on `cpu`, of as many or fewer copies, built alike.
        draw: Writes the wrapper's actions of a step, as a sampler does.
        n_steps: Steps.
    """
    result = Agreement()
    for _ in range(n_steps):
        seen, arrays = step_from_same_state(tested, oracle, draw)
        for name, (want, got) in arrays.items():
            seen.largest[name] = difference(want, got, oracle.cuda_data_manager.attribute(name, "period", 0.0))
        result.add(seen)
        if not tested.auto_reset:
            tested.reset_only_done_envs()
    return result


def step_from_same_state(
    tested: EnvWrapper, oracle: EnvWrapper, draw: Callable[[], None]
) -> tuple[Agreement, dict[str, tuple[Array, Array]]]:
    """Step both once from the wrapper's state; arguments as for `step_by_step`; synchronises.

    Returns:
        Counts, and by name each array of the oracle beside the wrapper's, in which rows in doubt are the oracle's.
    """
    source, target = tested.cuda_data_manager, oracle.cuda_data_manager
    draw()
    copy_state(source, target)
    before = _arrays(target)
    oracle.step_all_envs()
    tested.step_all_envs()
    after = _arrays(target)
    envs, agents = _in_doubt(oracle, before, after)
    arrays = {}
    for name, want in after.items():
        got = _first_rows(source.tensor(name), want.shape).cpu().numpy().copy()
        if want.shape[:1] == envs.shape:
            got[envs] = want[envs]
        if want.shape[:2] == agents.shape and name in (Constants.OBSERVATIONS, FINAL_OBSERVATIONS):
            got[agents] = want[agents]
        arrays[name] = (want, got)
    counts = Agreement(
        n_rows=agents.size + envs.size,
        n_in_doubt=int(envs.sum() + agents[~envs].sum()),
        n_compared=int((~envs).sum()),
        n_done=int((after[DONE] > 0).sum()),
    )
    return counts, arrays


def _names(data: CUDADataManager) -> list[str]:
    return [name for name in data.array_names() if not data.attribute(name, "scratch", False)]


def _first_rows(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor, or its first rows where the shape has fewer."""
    return tensor if tensor.shape == shape else tensor[: shape[0]]


def _arrays(data: CUDADataManager) -> dict[str, Array]:
    return {name: data.tensor(name).cpu().numpy().copy() for name in _names(data)}


def _in_doubt(oracle: EnvWrapper, before: Mapping[str, Array], after: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the rows whose outcome hangs on rounding; none in an exact build."""
    if oracle.exact:
        return np.zeros(oracle.n_envs, bool), np.zeros((oracle.n_envs, oracle.n_agents), bool)
    envs, agents = oracle.env.rounding_decides(before, after)
    if oracle.auto_reset:
        envs = envs | (after[DONE] > 0)  # the state that decided is gone; starts are checked by exact builds
    return envs, agents
