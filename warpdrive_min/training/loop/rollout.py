"""Rollouts on the device: observations, actions, rewards and episode ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import torch

from warpdrive_min.constants import DONE, FINAL_OBSERVATIONS, TERMINATED, TRUNCATED
from warpdrive_min.environment import earliest_truncation
from warpdrive_min.function_manager import CUDAFunctionManager, core_sources
from warpdrive_min.training.loop.arrays import AgentArrays, flat_entries
from warpdrive_min.training.paths.fused.shared import SharedRows

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Argument, Launch
    from warpdrive_min.env_wrapper import EnvWrapper
    from warpdrive_min.training.paths.fused.kept import SavedPasses

FINISHED: Final = ("finished_return", "finished_steps", "finished_episodes")
"""Accumulators of ended episodes."""

Observation = tuple[torch.Tensor, torch.Tensor | None]
"""Observations (n_envs, n_agents, n_features) and action masks of one step."""


class RolloutRecorder:
    """Recorder of each step's rewards and ends, with sums over episodes.

    One kernel records a step. An environment without the arrays ``terminated`` and ``truncated`` reports an end only by
    ``_done_``. Each end is then a termination, and a success where it is 2.

    Args:
        wrapper: Started wrapper.
        n_steps: Steps of a rollout.
        arrays: Arrays of any policy; rewards and last observations are those of all agents in them.
    """

    def __init__(self, wrapper: EnvWrapper, n_steps: int, arrays: AgentArrays) -> None:
        self._data, self._arrays, self._backend = wrapper.cuda_data_manager, arrays, wrapper.backend
        data = self._data
        n_envs, n_agents = arrays.rewards.shape
        has_flags = data.is_data_on_device(TERMINATED) and data.is_data_on_device(TRUNCATED)
        self.loses_truncations = has_flags and not arrays.last_observations
        """True if truncated episodes have no array of last observations."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=data.device)

        self.rewards = zeros(n_steps, n_envs, n_agents, dtype=torch.float32)
        """(n_steps, n_envs, n_agents) float32."""
        self.terminated = zeros(n_steps, n_envs)
        """(n_steps, n_envs) int32: the dynamics ended the episode."""
        self.truncated = zeros(n_steps, n_envs)
        """(n_steps, n_envs) int32: the time limit ended the episode."""
        self.successes = zeros(n_steps, n_envs)
        """(n_steps, n_envs) int32: the episode ended with a success."""
        self.n_truncated = zeros(n_envs)
        """Number of truncated episodes in this rollout, (n_envs,) int32."""
        self.truncated_observations: torch.Tensor | None = None
        """Their last observations, (n_truncated, n_envs, n_rows, n_features) float32.
        In order of time for each environment; None without time limits or last observations."""
        self.faults = zeros(n_envs, 2)
        """Contract violations since training began, (n_envs, 2) int32; 0: none.
        The most truncated episodes of a rollout without room, and steps at which ``_done_`` contradicted the flags."""
        n_kept = (n_steps - 1) // earliest_truncation(wrapper.env) + 1
        observations = zeros(1, 1, dtype=torch.float32)  # a placeholder, as is `kept`: never touched
        kept = zeros(1, 1, 1, dtype=torch.float32)
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []
        if arrays.last_observations:
            whole = arrays.last_observations[0]
            if len(arrays.last_observations) > 1 or whole.dtype != torch.float32 or not whole.is_contiguous():
                entries = [flat_entries(part) for part in arrays.last_observations]
                widths = [part.shape[2] for part in entries]
                whole = zeros(*entries[0].shape[:2], sum(widths), dtype=torch.float32)
                self._gathered = list(zip(whole.split(widths, 2), entries, strict=True))
            observations = whole.view(n_envs, -1)
            kept = zeros(n_kept, *observations.shape, dtype=torch.float32)
            self.truncated_observations = kept.view(n_kept, *whole.shape[:2], -1)
        self._sums = {
            "running_return": zeros(n_envs, n_agents, dtype=torch.float32),
            "running_steps": zeros(n_envs),
            "finished_return": zeros(n_envs, n_agents, dtype=torch.float32),
            "finished_steps": zeros(n_envs),
            "finished_episodes": zeros(n_envs),
        }
        self._constants = {
            "HAS_FLAGS": has_flags,
            "CUTS": bool(arrays.last_observations),
            "N_WORDS": observations.shape[1],
        }
        self._arguments: dict[str, Argument] = {
            "rewards": arrays.rewards,
            TERMINATED: data.tensor(TERMINATED if has_flags else DONE),
            TRUNCATED: data.tensor(TRUNCATED if has_flags else DONE),
            FINAL_OBSERVATIONS: observations,
            "cuts": kept,
            "n_cut": self.n_truncated,
            "n_cuts": n_kept,
            "faults": self.faults,
            **self._sums,
        }
        self._launches: dict[int, Launch] = {}

    @cached_property
    def _functions(self) -> CUDAFunctionManager:
        """Kernel of a step; a rollout in one launch does not need it."""
        n_envs, n_agents = self._arrays.rewards.shape
        functions = CUDAFunctionManager(n_agents, n_envs, backend=self._backend)
        functions.load(core_sources("record"), self._constants)
        return functions

    # -------------------------------------------------------------- a rollout

    def begin(self) -> None:
        """Start a rollout: reset its counts of truncated episodes; enqueues."""
        self.n_truncated.zero_()

    def prepare(self, step: int) -> None:
        """Prepare the launch for a row; `record` does so at first use."""
        if step not in self._launches:
            self._launches[step] = self._prepare(step)

    def record(self, step: int) -> None:
        """Record the last env step as row ``step``; enqueues.

        Call it after the step and before the next reset. The first call for a row prepares its launch.
        """
        self.prepare(step)
        for place, entries in self._gathered:
            place.copy_(entries)
            self._arrays.unmark(place)
        self._launches[step]()

    def all_steps_arguments(self) -> dict[str, Argument] | None:
        """Return arguments of a kernel that records all steps; None: use `record`.

        Rows of rewards, of flags and of ``successes`` have no axis of steps.
        """
        if self.truncated_observations is None or self._gathered:
            return None
        cuts = self.truncated_observations.flatten(0, -2)
        n_cuts = len(self.truncated_observations)
        more = {"cuts": cuts, "n_cut": self.n_truncated, "faults": self.faults, "successes": self.successes.flatten()}
        return {**self._sums, **more, "n_cuts": n_cuts}

    def _prepare(self, step: int) -> Launch:
        arguments = self._arguments | {
            "reward_row": self.rewards[step],
            "terminated_row": self.terminated[step],
            "truncated_row": self.truncated[step],
            "success_row": self.successes[step],
        }
        return self._functions.bind("record", self._data, **arguments)

    # -------------------------------------------------------------- statistics

    def statistics(self, *members: int) -> dict[str, torch.Tensor]:
        """Return sums over episodes ended since `clear_statistics`; enqueues.

        ``finished_return`` ``(n_agents,)`` float64, and the 0-d int64 ``finished_steps`` and ``finished_episodes``, on
        the device. With the number of ``members`` of a population, sums of each member are on a first axis.
        """
        returns, steps, episodes = (self._sums[name].unflatten(0, (*members, -1)) for name in FINISHED)
        axis = len(members)
        sums = (returns.sum(axis, dtype=torch.float64), steps.sum(axis), episodes.sum(axis))
        return dict(zip(FINISHED, sums, strict=True))

    def clear_statistics(self) -> None:
        """Reset the sums over ended episodes; running ones continue. Enqueues."""
        for name in FINISHED:
            self._sums[name].zero_()

    @property
    def episode_rewards(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rewards of running episodes, and sums of ended ones, (n_envs, n_agents)."""
        return self._sums["running_return"], self._sums["finished_return"]

    @property
    def episode_steps(self) -> torch.Tensor:
        """Steps done in the running episodes, (n_envs,) int32."""
        return self._sums["running_steps"]

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live accumulators by name, which continue across rollouts."""
        return dict(self._sums)


@dataclass(slots=True, eq=False)
class RolloutBuffer:
    """One policy's view of a rollout.

    T steps in E environments, with N agents, whose observations are R rows. Static buffers that every rollout
    overwrites; float32 unless stated otherwise.
    """

    observations: torch.Tensor
    """(T + 1, E, R, F): input of each action, and the last observations.
    R is N, or 1 if all agents share a row (`AgentArrays.own_columns`)."""
    masks: torch.Tensor | None
    """(T + 1, E, N, A) int32; 0 forbids an action."""
    actions: torch.Tensor
    """(T, E, N, J) int32; of a Box float32 before clipping."""
    log_probs: torch.Tensor
    """(T, E, N): log-probabilities of these actions when they were drawn."""
    rewards: torch.Tensor
    """(T, E, N)."""
    terminated: torch.Tensor
    """(T, E) int32: the dynamics ended the episode with this step."""
    truncated: torch.Tensor
    """(T, E) int32: the time limit ended the episode."""
    successes: torch.Tensor
    """(T, E) int32: the episode ended before its time limit."""
    truncated_observations: torch.Tensor | None
    """(C, E, R, F): truncated episodes' last observations, in time order."""
    own_columns: int | None = None
    """As `AgentArrays.own_columns`."""
    recorder: RolloutRecorder | None = field(default=None, repr=False)
    """Recorder of all agents, to copy rows from; None: shared arrays."""
    states: torch.Tensor | None = None
    """(K + 1, E, N, S): recurrent states before K parts, and at the end."""
    global_states: torch.Tensor | None = None
    """(T + 1, E, S): input of a centralised critic, or None."""
    truncated_global_states: torch.Tensor | None = None
    """(C, E, S): its last input in truncated episodes, as ``truncated_observations``."""
    passes: SavedPasses | None = field(default=None, repr=False)
    """Forward passes of acting, reused by learning; None: learning repeats them."""

    @property
    def is_read_in_place(self) -> bool:
        """True if steps read the environment's array.

        ``observations`` then has only the last ones.
        """
        return self.passes is not None and self.passes.source is not None

    @classmethod
    def of(cls, arrays: AgentArrays, recorder: RolloutRecorder) -> RolloutBuffer:
        """Allocate a policy's buffer, sharing the recorder's arrays where possible.

        Raises:
            torch.cuda.OutOfMemoryError: It does not fit.
        """
        n_steps, n_envs, _ = recorder.rewards.shape
        rows, device = (n_steps, n_envs, arrays.n_agents), recorder.rewards.device
        is_all, last = arrays.rows is None, recorder.truncated_observations
        if last is not None and not is_all:
            last = torch.zeros(len(last), *rows[1:], arrays.n_features, device=device, dtype=torch.float32)
        observations, masks = empty_observation(arrays, (n_steps + 1, n_envs, arrays.n_rows))
        dtype = torch.float32 if arrays.space.is_continuous else torch.int32
        return cls(
            observations=observations,
            masks=masks,
            actions=torch.zeros(*rows, arrays.space.n_types, dtype=dtype, device=device),
            log_probs=torch.zeros(rows, device=device, dtype=torch.float32),
            rewards=recorder.rewards if is_all else torch.zeros(rows, device=device, dtype=torch.float32),
            terminated=recorder.terminated,
            truncated=recorder.truncated,
            successes=recorder.successes,
            truncated_observations=last,
            own_columns=arrays.own_columns,
            recorder=None if is_all else recorder,
        )

    def observation(self, step: int) -> Observation:
        """Return the storage for the observations and masks of a step."""
        return self.observations[step], None if self.masks is None else self.masks[step]

    def seen(self, kept: torch.Tensor) -> torch.Tensor | SharedRows:
        """Convert stored observations (..., R, F) to the input of models."""
        if self.own_columns is None:
            return kept
        return SharedRows(kept, self.rewards.shape[2], self.own_columns)

    def store_state(self, step: int, state: torch.Tensor) -> None:
        """Store the state (E, N, S) before a part's first step; enqueues."""
        if self.states is not None:
            part, rest = divmod(step * (len(self.states) - 1), len(self.actions))
            if rest == 0:
                self.states[part].copy_(state)

    def take_rows(self, rows: torch.Tensor) -> None:
        """Copy the policy's agents from the recorder's arrays; enqueues."""
        if self.recorder is None:
            return
        torch.index_select(self.recorder.rewards, 2, rows, out=self.rewards)
        if self.truncated_observations is not None and self.recorder.truncated_observations is not None:
            torch.index_select(self.recorder.truncated_observations, 2, rows, out=self.truncated_observations)


def empty_observation(arrays: AgentArrays, rows: tuple[int, ...]) -> Observation:
    """Allocate observations (*rows, n_features), and masks that allow everything."""
    device = arrays.rewards.device
    observations = torch.zeros(*rows, arrays.n_features, device=device, dtype=torch.float32)
    if arrays.mask is None:
        return observations, None
    return observations, torch.ones(*rows, arrays.space.n_outputs, dtype=torch.int32, device=device)
