"""The rollout: every policy plays for some steps, and what a policy will learn from is kept on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from warpdrive_min.backends.base import Launch
from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.precision import Precision
from warpdrive_min.training.precision import precision as use_precision
from warpdrive_min.training.recorder import Recorder
from warpdrive_min.training.seats import Seat, tables

Sight = tuple[torch.Tensor, torch.Tensor | None]
"""Observations (n_envs, n_agents, n_features) of one step, and its action masks."""


@dataclass(slots=True)
class Batch:
    """What one policy saw and did in a rollout of T steps in E environments, with N agents.

    Static buffers that every rollout overwrites; float32 unless said otherwise.
    """

    observations: torch.Tensor
    """(T + 1, E, N, F): what each action was chosen from, and at last what came after all."""
    masks: torch.Tensor | None
    """(T + 1, E, N, A) int32; 0 forbids an action."""
    actions: torch.Tensor
    """(T, E, N, J) int32; float32 of a Box, as drawn, before they are clipped to it."""
    log_probs: torch.Tensor
    """(T, E, N), of these actions when they were drawn."""
    rewards: torch.Tensor
    """(T, E, N)."""
    terminated: torch.Tensor
    """(T, E) int32: the dynamics ended the episode with this step."""
    truncated: torch.Tensor
    """(T, E) int32: the time limit cut the episode off with this step."""
    successes: torch.Tensor
    """(T, E) int32: the episode ended before its time limit."""
    cuts: torch.Tensor | None
    """(C, E, N, F): last observations of episodes that were cut off, those of an environment in the order of time."""

    @property
    def n_steps(self) -> int:
        """T."""
        return len(self.actions)

    def sight(self, step: int) -> Sight:
        """Return where the observations and masks of a step are kept."""
        return self.observations[step], None if self.masks is None else self.masks[step]


@dataclass(slots=True)
class Player:
    """A policy at its seat."""

    seat: Seat
    model: Any
    """Offers ``act(observations) -> head``."""
    is_noisy: bool = False
    """The head is a mean that noise is added to, as DDPG explores; it has no scale of its own."""


class Actors:
    """All policies at the arrays of one wrapper: they observe, and their actions are drawn.

    Args:
        wrapper: Started wrapper.
        sampler: Draws.
        players: By policy.

    Raises:
        ConfigError: Policies that share an array differ in their action spaces or in how they explore.
    """

    def __init__(self, wrapper: EnvWrapper, sampler: CUDASampler, players: Mapping[str, Player]) -> None:
        self.players = players
        taken = {policy: player.seat for policy, player in players.items()}
        self.tables = tables(wrapper, sampler, taken, frozenset(p for p, each in players.items() if each.is_noisy))
        self._table = {seat.policy: table for table in self.tables for seat in table.members}
        self._own = {policy: one_row(wrapper, seat) for policy, seat in taken.items()}

    @torch.no_grad()
    def act(
        self,
        into: Mapping[str, Sight] | None = None,
        *,
        is_seen: bool = False,
        greedy: bool = False,
        **params: Any,
    ) -> None:
        """Observe, decide and draw the actions of all agents into their arrays; enqueues.

        Args:
            into: Where a policy's observations and masks are kept; others go into buffers of their own.
            is_seen: What the policies observe is there already.
            greedy: Take the likeliest choice, or the mean.
            params: Numbers of the noise, see `CUDASampler.sample`.
        """
        for policy, player in self.players.items():
            observations, mask = (into or {}).get(policy) or self._own[policy]
            if not is_seen:
                player.seat.observe(observations, mask)
            log_std = None if player.is_noisy else getattr(player.model, "log_std", None)
            self._table[policy].put(player.seat, player.model.act(observations), mask, log_std)
        for table in self.tables:
            table.draw(greedy, **(params if table.is_noisy else {}))

    def keep(self, policy: str, actions: torch.Tensor, log_probs: torch.Tensor) -> None:
        """Copy what was drawn for a policy, and of choices and Gaussians how probable it was; enqueues."""
        seat, table = self.players[policy].seat, self._table[policy]
        seat.pick(table.actions, actions)
        if not table.is_noisy:
            seat.pick(table.log_prob, log_probs)

    def clip(self) -> None:
        """Clip continuous actions to their spaces; enqueues."""
        for table in self.tables:
            table.clip()


class Rollout:
    """Plays T steps of all environments and keeps what the policies learn from.

    Nothing in `play` depends on what is on the device, so a CUDA graph captures it whole.

    Args:
        wrapper: Started wrapper.
        actors: All policies.
        batches: Of the policies that learn.
        recorders: Of the rewards, by the suffix of their array's name.
        sampler_params: Keywords of noise, floats or tensors on the device.
        clips: Clip continuous actions to their spaces once they are kept; WarpDrive does not.
        precision: In which the policies multiply matrices.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        actors: Actors,
        batches: Mapping[str, Batch],
        recorders: Mapping[str, Recorder],
        sampler_params: Mapping[str, Any],
        *,
        clips: bool = True,
        precision: Precision = "fp32",
    ) -> None:
        self._precision = precision
        self._wrapper, self._actors, self._batches = wrapper, actors, batches
        self._recorders, self._params, self._clips = recorders, sampler_params, clips
        self._device = wrapper.cuda_data_manager.device
        self._n_steps = len(next(iter(recorders.values())).rewards)
        self.is_direct = False
        """The environments write observations into the batch themselves."""
        self._steps = self._direct_steps()

    @torch.no_grad()
    def play(self) -> None:
        """Play T steps with the present policies and fill their batches; enqueues, does not synchronise."""
        for recorder in self._recorders.values():
            recorder.begin()
        for step in range(self._n_steps):
            sights = {policy: batch.sight(step) for policy, batch in self._batches.items()}
            with use_precision(self._precision, self._device):
                self._actors.act(sights, is_seen=self.is_direct and step > 0, **self._params)
            for policy, batch in self._batches.items():
                self._actors.keep(policy, batch.actions[step], batch.log_probs[step])
            if self._clips:
                self._actors.clip()
            self._steps[step]()
            for recorder in self._recorders.values():
                recorder.record(step)
            if not self._wrapper.auto_reset:
                self._wrapper.reset_only_done_envs()
        for policy, batch in self._batches.items():
            self._finish(self._actors.players[policy].seat, batch)

    def _direct_steps(self) -> list[Launch]:
        """Return each step: one that writes observations into their row of the batch, where one policy sees all."""
        seats = [player.seat for player in self._actors.players.values()]
        data = self._wrapper.cuda_data_manager
        is_whole = len(seats) == 1 and data.is_data_on_device(Constants.OBSERVATIONS)
        array = data.tensor(Constants.OBSERVATIONS) if is_whole else None
        self.is_direct = (
            array is not None
            and len(self._batches) == 1
            and seats[0].rows is None
            and seats[0].mask is None
            and len(seats[0].observed) == 1
            and seats[0].observed[0] is array
            and array.dtype == torch.float32
            and array.dim() == 3
        )
        steps: list[Launch] = [self._wrapper.step] * self._n_steps
        if not self.is_direct:
            return steps
        (batch,) = self._batches.values()
        rows = [self._wrapper.bound_step(observations=row) for row in batch.observations[1:]]
        self.is_direct = None not in rows
        return [row for row in rows if row is not None] or steps

    def _finish(self, seat: Seat, batch: Batch) -> None:
        if self.is_direct:
            seat.observed[0].copy_(batch.observations[-1])
        else:
            seat.observe(*batch.sight(-1))
        if seat.rows is not None:
            recorder = self._recorders[seat.suffix]
            torch.index_select(recorder.rewards, 2, seat.rows, out=batch.rewards)
            if batch.cuts is not None and recorder.cuts is not None:
                torch.index_select(recorder.cuts, 2, seat.rows, out=batch.cuts)


def one_row(wrapper: EnvWrapper, seat: Seat) -> Sight:
    """Return buffers of one step's observations and masks of a seat."""
    rows, device = (wrapper.n_envs, seat.n_agents), wrapper.cuda_data_manager.device
    observations = torch.zeros(*rows, seat.n_features, device=device)
    if seat.mask is None:
        return observations, None
    return observations, torch.ones(*rows, seat.space.n_outputs, dtype=torch.int32, device=device)


def make_batch(wrapper: EnvWrapper, seat: Seat, recorder: Recorder) -> Batch:
    """Allocate the batch of a seat; what a recorder keeps for all agents of an array is shared with it.

    Raises:
        torch.cuda.OutOfMemoryError: It does not fit.
    """
    n_steps, device = len(recorder.rewards), wrapper.cuda_data_manager.device
    rows = (n_steps, wrapper.n_envs, seat.n_agents)
    after = (n_steps + 1, *rows[1:])
    is_all = seat.rows is None
    cuts = recorder.cuts
    if cuts is not None and not is_all:
        cuts = torch.zeros(len(cuts), *rows[1:], seat.n_features, device=device)
    masks = None if seat.mask is None else torch.ones(*after, seat.space.n_outputs, dtype=torch.int32, device=device)
    dtype = torch.float32 if seat.space.is_continuous else torch.int32
    return Batch(
        observations=torch.zeros(*after, seat.n_features, device=device),
        masks=masks,
        actions=torch.zeros(*rows, seat.space.n_types, dtype=dtype, device=device),
        log_probs=torch.zeros(rows, device=device),
        rewards=recorder.rewards if is_all else torch.zeros(rows, device=device),
        terminated=recorder.terminated,
        truncated=recorder.truncated,
        successes=recorder.successes,
        cuts=cuts,
    )
