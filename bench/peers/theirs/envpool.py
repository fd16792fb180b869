"""EnvPool: environments in C++ on a pool of threads."""

from __future__ import annotations

import os
from typing import Any

from .gymnasium import IDS, device, stepping
from .work import Point, Work

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("envpool", "numpy")


def prepare(point: Point) -> Work:
    """Return the stepping of a pool, in its synchronous mode, with uniform random actions."""
    import envpool  # noqa: PLC0415  (the peer: whether it is there is found out here)

    n_threads = len(os.sched_getaffinity(0))

    def make(n_envs: int) -> Any:
        return Seedless(envpool.make_gymnasium(IDS[point["env"]], num_envs=n_envs, num_threads=n_threads, seed=1))

    return stepping(make, point["n_envs"], n_threads)


class Seedless:
    """A pool, which takes its seed when it is made and not when it is reset."""

    def __init__(self, pool: Any) -> None:
        self.action_space = pool.action_space
        self.step = pool.step
        self._reset = pool.reset

    def reset(self, seed: int) -> Any:
        """Start all environments."""
        return self._reset()
