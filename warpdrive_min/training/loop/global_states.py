"""Global states of environments: inputs of centralised critics.

A *global state* holds the observations of all agents of an environment, in the order of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from warpdrive_min.errors import require

if TYPE_CHECKING:
    from warpdrive_min.training.loop.arrays import AgentArrays
    from warpdrive_min.training.loop.policies import PolicyGroup
    from warpdrive_min.training.loop.rollout import RolloutRecorder

Tensor = torch.Tensor


def n_state_features(arrays: Iterable[AgentArrays]) -> int:
    """Return the size of a global state, from all policies' arrays."""
    return sum(len(each.rewards[0]) * each.n_features for each in _by_set(arrays))


def give_global_states(groups: Sequence[PolicyGroup], recorders: Mapping[str, RolloutRecorder]) -> GlobalStates | None:
    """Put global states into buffers of policies with centralised critics.

    A policy alone in its environment uses a view of its own observations. Several policies share one array.

    Args:
        groups: All policies, with their buffers.
        recorders: Recorders by the suffix of their arrays.

    Returns:
        Gatherer of that array, to call at each step; None if not needed.

    Raises:
        torch.cuda.OutOfMemoryError: The array does not fit.
    """
    buffers = [group.buffer for group in groups if group.buffer is not None and group.config.centralised_critic]
    if not buffers:
        return None
    if len(groups) == 1:
        (own,) = buffers
        last = own.truncated_observations
        own.global_states = own.observations.flatten(2)
        own.truncated_global_states = None if last is None else last.flatten(2)
        return None
    gathered = GlobalStates([group.arrays for group in groups], recorders)
    for buffer in buffers:
        buffer.global_states, buffer.truncated_global_states = gathered.states, gathered.truncated
    return gathered


class GlobalStates:
    """Global states of a rollout, in static buffers reused by every rollout.

    Args:
        arrays: Arrays of each policy.
        recorders: Recorders by the suffix of their arrays.

    Raises:
        ConfigError: Some arrays have last observations of episodes, and others do not.
    """

    def __init__(self, arrays: Iterable[AgentArrays], recorders: Mapping[str, RolloutRecorder]) -> None:
        sets = _by_set(arrays)
        n_steps, n_envs, _ = recorders[sets[0].suffix].rewards.shape
        shapes = [(len(each.rewards[0]), each.n_features) for each in sets]
        widths = [n_agents * n_features for n_agents, n_features in shapes]
        self.states = torch.zeros(n_steps + 1, n_envs, sum(widths), device=sets[0].rewards.device, dtype=torch.float32)
        """(n_steps + 1, n_envs, n_features) float32: before each step, and at the end."""
        parts = zip(sets, self.states.split(widths, -1), shapes, strict=True)
        self._parts = [(each, states.unflatten(-1, shape)) for each, states, shape in parts]
        last = {each.suffix: recorders[each.suffix].truncated_observations for each in sets}
        self._last = [each.flatten(2) for each in last.values() if each is not None]
        rule = "observations: arrays of some policies have their last ones and others have not"
        have = {f"final_observations{suffix}": each is not None for suffix, each in last.items()}
        require(len(self._last) in (0, len(sets)), "centralised critic", rule, have, "write all of them, or none")
        self.truncated: Tensor | None = None
        """(n_truncated, n_envs, n_features) float32; see `RolloutRecorder`."""
        if self._last:
            self.truncated = self._last[0] if len(sets) == 1 else torch.cat(self._last, -1)

    def store(self, t: int) -> None:
        """Store the observations of all agents before step ``t``; enqueues."""
        for arrays, states in self._parts:
            arrays.observe(states[t])

    def end_rollout(self) -> None:
        """Store observations after the last step, and of truncated episodes; enqueues."""
        self.store(-1)
        if self.truncated is not None and len(self._last) > 1:
            torch.cat(self._last, -1, out=self.truncated)


def _by_set(arrays: Iterable[AgentArrays]) -> list[AgentArrays]:
    """Return arrays with all agents, one for each set of arrays."""
    return list({each.suffix: replace(each, rows=None, mask=None) for each in arrays}.values())
