"""Replay buffer of DDPG: a ring of time steps on the device."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import require
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.shuffle import RowDraw
from warpdrive_min.training.loop.rollout import RolloutBuffer

Tensor = torch.Tensor

MAX_COUNT: Final = 2**31 - 1
"""Maximum number of transitions, which are counted in int32."""


class Transitions(NamedTuple):
    """Transitions of single agents over n steps, float32, one per row."""

    observations: Tensor
    """(rows, n_features)."""
    actions: Tensor
    """(rows, n_types), as the environment took them: clipped to its bounds."""
    rewards: Tensor
    """(rows,): discounted sum over the steps of the window."""
    discounts: Tensor
    """(rows,): discount of the next value; 0 after a termination."""
    following: Tensor
    """(rows, n_features): observation after the window."""


class ReplayBuffer:
    """Ring buffer of all environments' last time steps, with random draws.

    A window of n steps ends early with its episode or with the rollout. Then the critic's value of the observation
    after it stands for the rest, discounted by the actual number of steps. So no part of a rollout waits for the next
    one. After a time limit that observation is the last one of the truncated episode.

    Control flow in `add` and `sample` does not depend on device values, so a CUDA graph captures them.

    Args:
        buffer: Rollout of the size of those to add.
        space: Space of the actions, continuous.
        n_transitions: Maximum number of transitions; rounded down to whole time steps.
        n_step: Steps of a window.
        gamma: Discount of one step.
        n_drawn: Transitions of a sample.
        backend: Backend of the environments.
        seed: Seed of the draws.

    Raises:
        ConfigError: There is no room for one rollout, or too much to be counted.
        torch.cuda.OutOfMemoryError: It does not fit.
    """

    def __init__(
        self,
        buffer: RolloutBuffer,
        space: ActionSpace,
        n_transitions: int,
        n_step: int,
        gamma: float,
        n_drawn: int,
        backend: Backend,
        seed: int,
    ) -> None:
        n_steps, n_envs, n_agents = buffer.rewards.shape
        self._n_added = buffer.rewards.numel()
        sizes = f"{n_steps} steps of {n_envs} environments with {n_agents} agents = {self._n_added} transitions"
        do = "raise it, or lower train_batch_size"
        require(n_transitions >= self._n_added, "buffer_size", f"must hold a rollout, {sizes}", n_transitions, do)
        most = MAX_COUNT - self._n_added
        require(n_transitions <= most, "buffer_size", f"must be at most {most} transitions", n_transitions, "lower it")
        self._n_rows = n_transitions // (n_envs * n_agents)
        self.capacity = self._n_rows * n_envs * n_agents
        """Number of transitions in a full buffer."""
        self._n_step, self._gamma = n_step, gamma
        device, n_features = buffer.rewards.device, buffer.observations.shape[-1]
        self._low, self._high = torch.tensor([space.low, space.high], device=device, dtype=torch.float32)
        self._steps = torch.arange(n_steps, device=device)
        self._envs = torch.arange(n_envs, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self.size = torch.zeros(1, dtype=torch.int32, device=device)
        """Number of transitions in the buffer, (1,) int32."""
        widths = (n_features,), (space.n_types,), (), (), (n_features,)
        self._stored, self._drawn = (
            Transitions(*(torch.zeros(n_rows, *width, device=device, dtype=torch.float32) for width in widths))
            for n_rows in (self.capacity, n_drawn)
        )
        self._draw = RowDraw(backend, n_drawn, seed)

    def add(self, buffer: RolloutBuffer) -> None:
        """Add the transitions of a rollout, overwriting the oldest; enqueues."""
        rows = (self._position + self._steps) % self._n_rows
        for stored, new in zip(self._stored, self._transitions(buffer), strict=True):
            stored.view(self._n_rows, -1).index_copy_(0, rows, new.reshape(len(rows), -1))
        self._position.copy_((self._position + len(rows)) % self._n_rows)
        self.size.add_(self._n_added).clamp_(max=self.capacity)

    def sample(self) -> Transitions:
        """Draw transitions uniformly, with replacement; enqueues.

        Returns:
            The same buffers at every call.
        """
        self._draw.draw(self.size)
        for stored, drawn in zip(self._stored, self._drawn, strict=True):
            torch.index_select(stored, 0, self._draw.indices, out=drawn)
        return self._drawn

    def clip(self, actions: Tensor) -> Tensor:
        """Clip actions (..., n_types) to the bounds of the environment."""
        return actions.clamp(self._low, self._high)

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors to resume from."""
        return {**self._stored._asdict(), "position": self._position, "size": self.size, **self._draw.state()}

    def _transitions(self, buffer: RolloutBuffer) -> Transitions:
        """Return the transition from each step, (n_steps, n_envs, n_agents, ...)."""
        n_steps = len(self._steps)
        stops = buffer.truncated.clone()
        stops[-1] = 1
        rewards, discounts, lengths = losses.n_step_sums(
            self._windows(buffer.rewards),
            self._windows(buffer.terminated[..., None]),
            self._windows(stops[..., None]),
            self._gamma,
        )
        last = self._steps[:, None] + lengths.squeeze(-1).long() - 1
        sources, places = buffer.observations, last + 1
        if buffer.truncated_observations is not None:
            sources = torch.cat([sources, buffer.truncated_observations])
            # Truncated ones follow the n_steps + 1 observations; training stops if one has no room
            slots = (n_steps + buffer.truncated.cumsum(0)).clamp(max=len(sources) - 1)
            is_truncated = buffer.truncated.gather(0, last) != 0
            places = torch.where(is_truncated, slots.gather(0, last), places)
        return Transitions(
            observations=buffer.observations[:-1],
            actions=self.clip(buffer.actions),
            rewards=rewards,
            discounts=discounts.expand_as(rewards),
            following=sources[places, self._envs],
        )

    def _windows(self, array: Tensor) -> Tensor:
        """Return zero-padded windows of n rows of (n_steps, ...): (n, n_steps, ...)."""
        rest = array.new_zeros(self._n_step - 1, *array.shape[1:])
        return torch.cat([array, rest]).unfold(0, self._n_step, 1).movedim(-1, 0)
