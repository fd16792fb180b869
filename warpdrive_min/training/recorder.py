"""The recorder: rewards and ends of each step of a rollout, and what they sum up to over episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from warpdrive_min.backends.base import Argument, Launch
from warpdrive_min.constants import DONE, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, DataError
from warpdrive_min.function_manager import CUDAFunctionManager, core_sources

TERMINATED: Final = "terminated"
TRUNCATED: Final = "truncated"
FINISHED: Final = ("finished_return", "finished_steps", "finished_episodes")
"""Accumulators of the episodes that have ended."""


def last_observations(wrapper: EnvWrapper, suffix: str, keys: Sequence[str]) -> list[torch.Tensor]:
    """Return the arrays that hold what the agents saw last when an episode ends, or none if one is missing.

    A step that restarts by itself has put that aside; otherwise it is still there.
    """
    data = wrapper.cuda_data_manager
    name = ("final_observations" if wrapper.auto_reset else Constants.OBSERVATIONS) + suffix
    names = [f"{name}_{key}" for key in keys] or [name]
    return [data.tensor(name) for name in names] if all(map(data.is_data_on_device, names)) else []


class Recorder:
    """Keeps what learning needs of each step, by one kernel a step, and sums over episodes.

    An environment without the arrays ``terminated`` and ``truncated`` tells only by ``_done_`` that it ended: every
    end then counts as one by the dynamics, and as a success where it is 2.

    Args:
        wrapper: Started wrapper.
        n_steps: Steps of a rollout.
        rewards: Name of the array of rewards, ``(n_envs, n_agents)`` float32: ``rewards``, or with a suffix that the
            array of observations shares.
        agents_axis: Axis of the agents in it: ``"first"`` after that of the environments, or ``"last"`` where they are
            several.
        keys: Of a Dict's observations, in the order in which their entries lie side by side; the mask's is none.

    Raises:
        ConfigError: The wrapper has no arrays or has not started, or ``n_steps`` is not positive.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        n_steps: int,
        rewards: str = Constants.REWARDS,
        agents_axis: str = "first",
        keys: Sequence[str] = (),
    ) -> None:
        if not wrapper.vectorised or wrapper.reset_on_host:
            raise ConfigError(
                f"recorder: needs environments that run in kernels and have started (got {wrapper.name!r}); "
                "call reset() first"
            )
        if n_steps < 1:
            raise ConfigError(f"recorder: n_steps must be positive (got {n_steps})")
        self._data = data = wrapper.cuda_data_manager
        n_envs, n_agents = data.get_shape(rewards)
        has_flags = data.is_data_on_device(TERMINATED) and data.is_data_on_device(TRUNCATED)
        is_last = agents_axis == "last" and n_agents > 1
        last = last_observations(wrapper, rewards.removeprefix(Constants.REWARDS), keys) if has_flags else []
        has_cuts = bool(last) and all(
            array.dim() > 1 and array.shape[-1 if is_last else 1] == n_agents for array in last
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=data.device)

        self.rewards = zeros(n_steps, n_envs, n_agents, dtype=torch.float32)
        """(n_steps, n_envs, n_agents) float32."""
        self.terminated = zeros(n_steps, n_envs)
        """(n_steps, n_envs) int32: the dynamics ended the episode with the step."""
        self.truncated = zeros(n_steps, n_envs)
        """Likewise: the time limit did."""
        self.successes = zeros(n_steps, n_envs)
        """Likewise: the episode ended with a success."""
        self.n_cut = zeros(n_envs)
        """Episodes that the time limit ended in this rollout, (n_envs,) int32."""
        self.cuts: torch.Tensor | None = None
        """Their last observations, (n_cuts, n_envs, n_agents, n_features) float32, those of an environment in the order
        of time; None where nothing tells of time limits or of last observations."""
        n_cuts = (n_steps - 1) // wrapper.episode_length + 1
        observations = zeros(1, 1, dtype=torch.float32)  # stands in, as do the cuts: never touched
        cuts = zeros(1, 1, 1, dtype=torch.float32)
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []
        if has_cuts and (len(last) > 1 or last[0].dtype != torch.float32):
            parts = [array.movedim(-1, 1) if is_last and array.dim() > 2 else array for array in last]
            entries = [part.flatten(2) if part.dim() > 2 else part[..., None] for part in parts]
            side_by_side = zeros(n_envs, n_agents, sum(part.shape[2] for part in entries), dtype=torch.float32)
            places = side_by_side.split([part.shape[2] for part in entries], 2)
            self._gathered = list(zip(places, entries, strict=True))
            last, is_last = [side_by_side], False
        if has_cuts:
            observations = last[0].view(n_envs, -1)
            cuts = zeros(n_cuts, *observations.shape, dtype=torch.float32)
            axes = (n_cuts, n_envs, -1, n_agents) if is_last else (n_cuts, n_envs, n_agents, -1)
            self.cuts = cuts.view(axes).movedim(3, 2) if is_last else cuts.view(axes)
        self._sums = {
            "running_return": zeros(n_envs, n_agents, dtype=torch.float32),
            "running_steps": zeros(n_envs),
            "finished_return": zeros(n_envs, n_agents, dtype=torch.float32),
            "finished_steps": zeros(n_envs),
            "finished_episodes": zeros(n_envs),
        }
        self._functions = CUDAFunctionManager(n_agents, n_envs, backend=wrapper.backend)
        self._functions.load(
            core_sources("record"), {"HAS_FLAGS": has_flags, "CUTS": has_cuts, "N_WORDS": observations.shape[1]}
        )
        self._arguments: dict[str, Argument] = {
            "rewards": data.tensor(rewards),
            TERMINATED: data.tensor(TERMINATED if has_flags else DONE),
            TRUNCATED: data.tensor(TRUNCATED if has_flags else DONE),
            "final_observations": observations,
            "cuts": cuts,
            "n_cut": self.n_cut,
            "n_cuts": n_cuts,
            **self._sums,
        }
        self._launches: dict[int, Launch] = {}

    # -------------------------------------------------------------- a rollout

    def begin(self) -> None:
        """Start a rollout: forget its cuts; enqueues."""
        self.n_cut.zero_()

    def record(self, step: int) -> None:
        """Keep what the environments' last step did as row ``step`` of the rollout; enqueues.

        Call it after the step and before the next reset. The first call for a row prepares its launch.

        Raises:
            DataError: The rollout has no such row.
        """
        if step not in self._launches:
            self._launches[step] = self._prepare(step)
        for place, entries in self._gathered:
            place.copy_(entries)
        self._launches[step]()

    def _prepare(self, step: int) -> Launch:
        if not 0 <= step < len(self.rewards):
            raise DataError(f"record: step must be from 0 to {len(self.rewards) - 1} (got {step})")
        arguments = self._arguments | {
            "reward_row": self.rewards[step],
            "terminated_row": self.terminated[step],
            "truncated_row": self.truncated[step],
            "success_row": self.successes[step],
        }
        return self._functions.bind("record", self._data, **arguments)

    # -------------------------------------------------------------- statistics

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return sums over all episodes that have ended since `clear_statistics`, on the device; enqueues.

        ``finished_return`` ``(n_agents,)`` float64, and the 0-d int64 ``finished_steps`` and ``finished_episodes``.
        """
        returns, steps, episodes = (self._sums[name] for name in FINISHED)
        sums = (returns.sum(0, dtype=torch.float64), steps.sum(), episodes.sum())
        return dict(zip(FINISHED, sums, strict=True))

    def clear_statistics(self) -> None:
        """Forget the episodes that have ended; those that run go on. Enqueues."""
        for name in FINISHED:
            self._sums[name].zero_()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live accumulators, which go on over rollouts, by name."""
        return dict(self._sums)
