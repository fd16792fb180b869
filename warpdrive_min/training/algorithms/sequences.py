"""A2C and PPO of recurrent policies, on sequences of steps.

A rollout of T steps is split into parts of the length of a sequence, and each environment of a part is a sequence.
The model replays it from the agents' stored state at its start, with the current weights.

Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", stored states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import require
from warpdrive_min.training.algorithms.actor_critic import A2C, PPO, ActorCriticAlgorithm, Rows
from warpdrive_min.training.config import ModelConfig, TrainerConfig, divisors_around
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.models.gru import sequence_steps
from warpdrive_min.training.models.parts import Recurrent
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.fused.loss import Learning
from warpdrive_min.training.paths.table import Update

Tensor = torch.Tensor


class _OfSequences(ActorCriticAlgorithm):
    """Algorithm with minibatches of sequences; rows go by sequence, then step.

    Raises:
        ConfigError: Sequences do not fill a rollout, or minibatches.
    """

    model: Recurrent

    def __init__(self, group: PolicyGroup, trainer: TrainerConfig, backend: Backend, seed: int) -> None:
        buffer = group.batch
        assert buffer is not None, "a policy that learns has a buffer"
        self._who = f"policy.{group.name}"
        super().__init__(group, trainer, backend, seed)
        n_steps, n_envs, _ = buffer.rewards.shape
        length, device = self._n_together, buffer.rewards.device
        n_parts = n_steps // length
        n_sequences = n_parts * n_envs
        rule = f"must divide the sequences of a rollout, num_envs * rollout steps / sequence_length = {n_sequences}"
        is_even = n_sequences % self.n_minibatches == 0
        below, _ = divisors_around(n_sequences, self.n_minibatches)
        require(is_even, f"{self._who}.n_minibatches", rule, self.n_minibatches, f"take {below}, or shorter sequences")
        rows = torch.arange(n_steps * n_envs, dtype=torch.int32, device=device)
        self._rows = rows.view(n_parts, length, n_envs).transpose(1, 2).reshape(n_sequences, length)
        """Row (step, environment) of the rollout, by sequence and step.
        Sequences are ordered by part, then by environment."""

    def _in_one_pass(
        self, buffer: RolloutBuffer, facts: Facts, build: Callable[[Update], Learning] | None
    ) -> Learning | None:
        n_steps, n_envs, n_agents = buffer.rewards.shape
        empty: dict[str, Any] = {"device": buffer.rewards.device}
        n_parts = n_steps // self._n_together
        self._values_come_first = True  # a time limit's value needs the state after all earlier steps
        buffer.states = torch.zeros(n_parts + 1, n_envs, n_agents, self.model.state_size, dtype=torch.float32, **empty)
        self._begins = torch.zeros(n_steps, n_envs, dtype=torch.int32, **empty)
        """1 if an episode begins with the step."""
        return super()._in_one_pass(buffer, facts, build)

    def _arrays(self, buffer: RolloutBuffer) -> dict[str, Tensor | None]:
        return super()._arrays(buffer) | {"states": buffer.states, "begins": self._begins}

    def rehearse(self, buffer: RolloutBuffer) -> None:
        """Launch the kernels, for `ahead.compiled`; torch's would run."""
        if self._evaluation is not None:
            super().rehearse(buffer)

    def rows_together(self, n_steps: int) -> int:
        """Return the number of steps in a sequence."""
        assert isinstance(self.config.model, ModelConfig)
        return sequence_steps(self.config.model, n_steps, self._who)

    # -------------------------------------------------------------- values

    def compute_values(self, buffer: RolloutBuffer) -> None:
        """Fill values by replay; truncations use their step's state; enqueues.

        A centralised critic needs no replay.
        """
        self._begins[1:] = buffer.terminated[:-1] | buffer.truncated[:-1]
        if self.critic is not None:
            super().compute_values(buffer)
            return
        last = buffer.truncated_observations
        cuts = None if last is None else _Cuts(buffer, self._n_together)
        for rows, within in self._parts(self._rows.flatten()):
            assert isinstance(rows, Tensor)
            assert isinstance(within, slice)
            states = self._valued_states(buffer, rows)
            if cuts is not None:
                cuts.take(states, within.start // self._n_together)
        assert buffer.states is not None
        self._value_of_step(buffer.observations[-1], buffer.states[-1], self.values[-1])
        if last is not None and cuts is not None and self._truncated_values is not None:
            flat = (each.flatten(0, 1) for each in (last, cuts.states, self._truncated_values))
            self._value_of_step(*flat)

    def _valued_states(self, buffer: RolloutBuffer, rows: Tensor) -> Tensor:
        """Fill the values of whole sequences; return states as `_states`."""
        if self._evaluation is None:
            states = self._states(buffer, rows)
            self.values[:-1].flatten(0, 1)[rows] = self.model.value(states).flatten(0, 1).float()
            return states
        assert buffer.states is not None
        length, (n_agents, size) = self._n_together, buffer.states.shape[2:]
        states = buffer.states.new_empty(len(rows) // length, length, n_agents, size)
        given = {"next_states": states, "outputs": self.values, "begins": self._begins, "rows": rows, "length": length}
        self._evaluation(buffer.observations, buffer.states, **given)
        return states

    def _value_of_step(self, observations: Tensor, states: Tensor, values: Tensor) -> None:
        """Write the values after one more step, (n, n_agents)."""
        if self._evaluation is None:
            values.copy_(self.model.value(self.model.step(observations, states)))
        else:
            self._evaluation(observations, states, outputs=values)

    # -------------------------------------------------------------- steps

    def _minibatch(self, k: int) -> Rows:
        if self._shuffle is None:
            return self._rows.flatten()
        size = len(self._rows) // self.n_minibatches
        return self._rows[self._shuffle.indices[k * size : (k + 1) * size]].flatten()

    def evaluate(self, buffer: RolloutBuffer, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return heads and values of whole sequences, which the model replays."""
        assert isinstance(rows, Tensor)
        states = self._states(buffer, rows).flatten(0, 1)
        values = self.model.value(states) if self.critic is None else self.central_value(buffer, rows)
        return self.model.head(states), values

    def _states(self, buffer: RolloutBuffer, rows: Tensor) -> Tensor:
        """Return states of whole sequences, (sequences, steps, n_agents, state_size)."""
        length, n_envs = self._n_together, self.returns.shape[1]
        first = rows[::length]
        sequences = first // (length * n_envs) * n_envs + first % n_envs
        assert buffer.states is not None
        return self.model.unroll(
            self._take(buffer.observations[:-1], rows).unflatten(0, (-1, length)),
            self._take(buffer.states[:-1], sequences),
            self._take(self._begins, rows).view(-1, length) != 0,
        )


class _Cuts:
    """States at truncations, for the last observations of the episodes.

    Args:
        buffer: Rollout with last observations of truncated episodes.
        length: Steps of a sequence.
    """

    def __init__(self, buffer: RolloutBuffer, length: int) -> None:
        assert buffer.truncated_observations is not None
        assert buffer.states is not None
        n_cuts, n_envs, n_agents, _ = buffer.truncated_observations.shape
        is_cut = buffer.truncated > 0
        order = is_cut.cumsum(0)
        numbers = torch.arange(1, n_cuts + 1, device=is_cut.device)[:, None, None]
        step = ((order == numbers) & is_cut).int().argmax(1)  # 0 if there are fewer
        self._step = step % length
        self._sequence = step // length * n_envs + torch.arange(n_envs, device=is_cut.device)
        self.states = buffer.states.new_zeros(n_cuts, n_envs, n_agents, buffer.states.shape[-1])
        """(n_cuts, n_envs, n_agents, state_size), by environment in order of time."""

    def take(self, states: Tensor, first: int) -> None:
        """Copy states of truncations from sequences ``first`` onwards.

        ``states`` are (sequences, steps, n_agents, state_size).
        """
        place = self._sequence - first
        is_here = (place >= 0) & (place < len(states))
        found = states[place.clamp(0, len(states) - 1), self._step]
        self.states = torch.where(is_here[..., None, None], found, self.states)


class RecurrentA2C(_OfSequences, A2C):
    """A2C of a recurrent policy: one step on all sequences."""


class RecurrentPPO(_OfSequences, PPO):
    """PPO of a recurrent policy, with minibatches of sequences."""
