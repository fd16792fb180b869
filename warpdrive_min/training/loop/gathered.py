"""Rollouts of all ranks on each of them, for exact training.

Each rank has the batch of one process with all environments, so that results do not depend on the number of ranks. Sums
over rows are shared among the ranks; see `Exact.sharing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import torch

from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.ranks import World


class GatheredRollout:
    """One policy's rollout over all ranks; environments are in the order of ranks.

    Args:
        own: Rollout of this rank.
        world: Ranks of the run.

    Raises:
        torch.cuda.OutOfMemoryError: It does not fit.
    """

    def __init__(self, own: RolloutBuffer, world: World) -> None:
        self._own, self._world = own, world
        copies = {name: self._repeated(array) for name, array in _arrays(own)}
        self.everyone: RolloutBuffer = replace(own, recorder=None, **copies)  # type: ignore[arg-type]
        """Rollout with the environments of all ranks; static."""

    def _repeated(self, array: torch.Tensor) -> torch.Tensor:
        return torch.cat([array] * self._world.size, 1)

    def complete(self) -> None:
        """Allocate arrays that only one of the two rollouts has got since."""
        n_envs = self._own.rewards.shape[1]
        for name, array in _arrays(self.everyone):
            if getattr(self._own, name) is None:
                setattr(self._own, name, array[:, :n_envs].clone())
        for name, array in _arrays(self._own):
            if getattr(self.everyone, name) is None:
                setattr(self.everyone, name, self._repeated(array))

    def gather(self) -> RolloutBuffer:
        """Return the rollout of all ranks; enqueues, capturable."""
        for name, array in _arrays(self._own):
            getattr(self.everyone, name).copy_(self._world.everyone(array).movedim(0, 1).flatten(1, 2))
        return self.everyone


def _arrays(rollout: RolloutBuffer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and arrays, whose second axis counts environments."""
    for each in fields(rollout):
        if isinstance(array := getattr(rollout, each.name), torch.Tensor):
            yield each.name, array
