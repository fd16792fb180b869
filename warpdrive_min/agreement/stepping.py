"""Steps of an environment and its reference, synchronised or free-running."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from warpdrive_min.agreement.compare import Array, Difference, difference
from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, Constants
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.env_wrapper import EnvWrapper

Arrays = dict[str, Array]
"""Arrays by name."""
Pairs = dict[str, tuple[Array, Array]]
"""Arrays of the reference and of the tested side, by name."""
Actions = dict[str, torch.Tensor]
"""Actions of one step, by array name."""
Trace = list[Arrays]
"""Arrays at the start and after each step of a run."""

# ------------------------------------------------------------------ arrays


def snapshot(data: CUDADataManager) -> Arrays:
    """Copy every array except scratch to the host; synchronises."""
    return {name: np.asarray(data.pull_data_from_device(name)) for name in _names(data)}


def rows_of(wrapper: EnvWrapper) -> Arrays:
    """Return the arrays of `snapshot` that have a row per environment."""
    arrays = snapshot(wrapper.cuda_data_manager)
    return {name: array for name, array in arrays.items() if array.shape[:1] == (wrapper.n_envs,)}


def write(data: CUDADataManager, arrays: Mapping[str, Array]) -> None:
    """Write arrays of the first ``data.n_envs`` environments, in the target shape."""
    for name, values in arrays.items():
        target = data.tensor(name)
        target.copy_(torch.from_numpy(np.ascontiguousarray(values[: len(target)]).reshape(target.shape)))


def copy_state(source: CUDADataManager, target: CUDADataManager) -> None:
    """Copy every shared array except scratch to another manager; synchronises.

    Arrays with a row per environment are copied for the first ``target.n_envs`` environments. So a few environments of
    a large run can be checked: an environment does not depend on the number of others.
    """
    for name in set(_names(target)) & set(_names(source)):
        target.tensor(name).copy_(_first_rows(source.tensor(name), target.tensor(name).shape))


def _names(data: CUDADataManager) -> list[str]:
    return [name for name in data.array_names() if not data.attribute(name, "scratch", False)]


def _first_rows(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor, or its first rows if the shape has fewer."""
    return tensor if tensor.shape == shape else tensor[: shape[0]]


# ------------------------------------------------------------------ from the same state


@dataclass(slots=True)
class Agreement:
    """Counts and largest differences of a step-by-step comparison."""

    largest: dict[str, Difference] = field(default_factory=dict)
    """Largest difference of each array."""
    n_rows: int = 0
    """Rows compared: one per environment and one per agent's observation."""
    n_in_doubt: int = 0
    """Rows excluded because rounding decides their outcome.

    An excluded environment counts as one row.
    """
    n_compared: int = 0
    """Environments compared, summed over steps."""
    n_done: int = 0
    """Episodes that ended."""

    def add(self, other: Agreement) -> None:
        """Add the counts and differences of another comparison."""
        for name, found in other.largest.items():
            if name not in self.largest or found.error > self.largest[name].error:
                self.largest[name] = found
        self.n_rows += other.n_rows
        self.n_in_doubt += other.n_in_doubt
        self.n_compared += other.n_compared
        self.n_done += other.n_done

    @property
    def max_error(self) -> float:
        """Largest difference of any array; infinite if nothing was compared."""
        if not self.n_compared:
            return math.inf
        return max(each.error for each in self.largest.values())

    @property
    def excluded_rows(self) -> str:
        """Number of excluded rows, for a message."""
        return f"{self.n_in_doubt} of {self.n_rows} rows excluded (rounding decides)"

    def __str__(self) -> str:
        if not self.n_compared:
            return f"nothing was compared; {self.excluded_rows}"
        name, found = max(self.largest.items(), key=lambda item: item[1].error)
        return f"largest in {name} {found}; {self.excluded_rows}"


def step_by_step(tested: EnvWrapper, reference: EnvWrapper, draw: Callable[[], None], n_steps: int) -> Agreement:
    """Step a wrapper and its reference from the wrapper's state; synchronises.

    Both start each step from the same state, so errors cannot accumulate. Every array is compared, except those pushed
    with ``scratch=True``: the kernels' workspace.

    Args:
        tested: Started wrapper on any backend.
        reference: Started reference: a wrapper of the same environment on `cpu`, with the same options and at most the
            same number of copies.
        draw: Writes the wrapper's actions of one step.
        n_steps: Steps.
    """
    result = Agreement()
    for _ in range(n_steps):
        result.add(compare_pairs(reference, *step_from_same_state(tested, reference, draw)))
        if not tested.auto_reset:
            tested.reset_only_done_envs()
    return result


def step_from_same_state(
    tested: EnvWrapper, reference: EnvWrapper, draw: Callable[[], None]
) -> tuple[Agreement, Pairs]:
    """Take one step of both from the wrapper's state; synchronises.

    Takes the arguments of `step_by_step`; returns the result of `pair_arrays`.
    """
    source, target = tested.cuda_data_manager, reference.cuda_data_manager
    draw()
    copy_state(source, target)
    before = snapshot(target)
    reference.step_all_envs()
    tested.step_all_envs()
    after = snapshot(target)
    got = {name: _first_rows(source.tensor(name), want.shape).cpu().numpy().copy() for name, want in after.items()}
    return pair_arrays(reference, before, after, got)


def pair_arrays(reference: EnvWrapper, before: Arrays, after: Arrays, got: Arrays) -> tuple[Agreement, Pairs]:
    """Return the counts of a step, and pairs of arrays to compare.

    Excluded rows are replaced by the reference's.

    Args:
        reference: Reference.
        before: Its arrays before the step.
        after: Its arrays after the step.
        got: Arrays of the tested side after the step; modified in place.
    """
    envs, agents = _excluded_rows(reference, before, after)
    for name, array in got.items():
        if array.shape[:1] == envs.shape:
            array[envs] = after[name][envs]
        if array.shape[:2] == agents.shape and name in (Constants.OBSERVATIONS, FINAL_OBSERVATIONS):
            array[agents] = after[name][agents]
    counts = Agreement(
        n_rows=agents.size + envs.size,
        n_in_doubt=int(envs.sum() + agents[~envs].sum()),
        n_compared=int((~envs).sum()),
        n_done=int((after[DONE] > 0).sum()),
    )
    return counts, {name: (after[name], array) for name, array in got.items()}


def compare_pairs(reference: EnvWrapper, counts: Agreement, pairs: Pairs) -> Agreement:
    """Add the largest difference of each array to the counts of `pair_arrays`."""
    for name, (want, got) in pairs.items():
        counts.largest[name] = difference(want, got, reference.cuda_data_manager.attribute(name, "period", 0.0))
    return counts


def _excluded_rows(
    reference: EnvWrapper, before: Mapping[str, Array], after: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return rows whose outcome depends on rounding; none in an exact build."""
    if reference.exact:
        return np.zeros(reference.n_envs, bool), np.zeros((reference.n_envs, reference.n_agents), bool)
    envs, agents = reference.env.rounding_decides(before, after)
    if reference.auto_reset:
        envs = envs | (after[DONE] > 0)  # the state before the reset is lost; exact builds check starts
    return envs, agents


# ------------------------------------------------------------------ free-running


def play(wrapper: EnvWrapper, actions: Iterable[Actions]) -> Trace:
    """Step with the given actions; return the arrays at the start and after each."""
    return [rows_of(wrapper), *(replay(wrapper, each) for each in actions)]


def replay(wrapper: EnvWrapper, actions: Actions, step: Callable[[], None] | None = None) -> Arrays:
    """Take one step with the given actions; return the arrays of environments.

    ``step`` replaces the wrapper's own step.
    """
    for name, values in actions.items():
        wrapper.cuda_data_manager.tensor(name).copy_(values)
    (step or wrapper.step)()
    return rows_of(wrapper)
