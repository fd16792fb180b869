"""EnvPool: environments in C++ on a pool of threads."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from typing import Any

from .gymnasium import IDS, device, random_actions, stepping
from .work import Point, Work

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("envpool", "numpy")


def prepare(point: Point) -> Work:
    """Return the stepping of a pool with uniform random actions.

    With one batch, all environments step together. With more, the batch that finishes first receives its actions while
    the others step.
    """
    import envpool  # noqa: PLC0415  (the peer: whether it is there is found out here)
    import numpy as np  # noqa: PLC0415

    n_threads, n_batches = len(os.sched_getaffinity(0)), point["options"]["batches"]

    def pool(n_envs: int, **options: Any) -> Any:
        name = IDS[point["env"]]
        return envpool.make_gymnasium(name, num_envs=n_envs, num_threads=n_threads, seed=1, **options)

    waiting = stepping(pool, point["n_envs"], n_threads, reset=lambda envs, seed: envs.reset())
    if n_batches == 1:
        return waiting
    n_batch = max(1, point["n_envs"] // n_batches)
    envs = pool(point["n_envs"], batch_size=n_batch)
    draw = random_actions(envs, n_batch, np.random.default_rng(0))
    envs.async_reset()
    received = deque[Any]()  # environments of batches to be sent

    def run() -> None:
        for _ in range(n_batches):
            envs.send(draw(), received.popleft() if received else envs.recv()[-1]["env_id"])

    def wait() -> None:  # otherwise sent work continues during our turn, untimed
        while len(received) < n_batches:
            received.append(envs.recv()[-1]["env_id"])

    return replace(waiting, run=run, wait=wait, env_steps=n_batches * n_batch, notes={"batch_size": n_batch})
