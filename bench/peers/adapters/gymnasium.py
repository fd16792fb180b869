"""Gymnasium's vector environments: objects, processes, or CartPole's vector class."""

from __future__ import annotations

import os
from typing import Any

from .work import TRACED, Point, Work, as_lists, do_not_wait

PACKAGES = ("gymnasium", "numpy")
IDS = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "pendulum": "Pendulum-v1",
    "mountain_car": "MountainCar-v0",
    "continuous_mountain_car": "MountainCarContinuous-v0",
}
COUNTS = "NumPy draws + step; a restart takes a step"


def device() -> str:
    """Return the kind of device."""
    return "cpu"


def prepare(point: Point) -> Work:
    """Return the stepping of a vector environment with uniform random actions."""
    import gymnasium  # noqa: PLC0415  (the peer: whether it is there is found out here)

    def make(n_envs: int) -> Any:
        return gymnasium.make_vec(IDS[point["env"]], num_envs=n_envs, **point["options"])

    is_alone = point["options"]["vectorization_mode"] != "async"
    threads = 1 if is_alone else min(point["n_envs"], len(os.sched_getaffinity(0)))
    return stepping(make, point["n_envs"], threads)


def traced(point: Point) -> dict[str, Any]:
    """Return a step of a few environments, for `Work.trace`."""
    few = {**point, "n_envs": TRACED, "options": {"vectorization_mode": "sync"}}
    return prepare(few).trace()


def seeded(envs: Any, seed: int) -> Any:
    """Reset environments with a seed."""
    return envs.reset(seed=seed)


def stepping(make: Any, n_envs: int, threads: int, counts: str = COUNTS, reset: Any = seeded, **fields: Any) -> Work:
    """Return the work of software with Gymnasium's vector interface.

    Args:
        make: Creates a number of environments.
        n_envs: Number of timed environments.
        threads: Threads that step them.
        counts: Meaning of an environment step.
        reset: Resets environments with a seed.
        fields: More fields of the work.
    """
    import numpy as np  # noqa: PLC0415  (theirs)

    generator = np.random.default_rng(0)
    envs = make(n_envs)
    reset(envs, 0)
    draw = random_actions(envs, n_envs, generator)

    def trace() -> dict[str, Any]:
        rows = min(TRACED, n_envs)
        few = make(rows)
        before = np.array(reset(few, 1)[0])
        actions = random_actions(few, rows, generator)()
        after, rewards, *_ = few.step(actions)
        traced = as_lists(rows, before=before, actions=actions, after=np.asarray(after), rewards=np.asarray(rewards))
        few.close()
        return traced

    return Work(
        run=lambda: (envs.step(draw()), None)[1],
        wait=do_not_wait,
        env_steps=n_envs,
        trace=trace,
        counts=counts,
        threads=threads,
        **fields,
    )


def random_actions(envs: Any, n_envs: int, generator: Any) -> Any:
    """Return a function that draws a uniform action for each environment."""
    import numpy as np  # noqa: PLC0415

    space = getattr(envs, "single_action_space", None) or envs.action_space
    if hasattr(space, "n"):
        return lambda: generator.integers(space.n, size=n_envs, dtype=np.int32)
    low, high = float(space.low[0]), float(space.high[0])
    return lambda: generator.uniform(low, high, (n_envs, *space.shape)).astype(np.float32)
