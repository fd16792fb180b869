"""Gymnasium's vector environments: one Python object an environment, or CartPole's own vectorised class."""

from __future__ import annotations

from typing import Any

from .work import TRACED, Point, Work, nothing, shown

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
    """Return the kind of device that it runs on."""
    return "cpu"


def prepare(point: Point) -> Work:
    """Return the stepping of a vector environment with uniform random actions."""
    import gymnasium  # noqa: PLC0415  (the peer: whether it is there is found out here)

    def make(n_envs: int) -> Any:
        return gymnasium.make_vec(IDS[point["env"]], num_envs=n_envs, **point["options"])

    return stepping(make, point["n_envs"], threads=1)


def stepping(make: Any, n_envs: int, threads: int) -> Work:
    """Return the work of whatever has Gymnasium's vector interface.

    Args:
        make: Returns so many environments.
        n_envs: How many are timed.
        threads: That step them.
    """
    import numpy as np  # noqa: PLC0415  (theirs)

    generator = np.random.default_rng(0)
    envs = make(n_envs)
    envs.reset(seed=0)
    draw = drawing(envs, n_envs, generator)

    def trace() -> dict[str, Any]:
        rows = min(TRACED, n_envs)
        few = make(rows)
        before = np.array(few.reset(seed=1)[0])
        actions = drawing(few, rows, generator)()
        after, rewards, *_ = few.step(actions)
        return shown(rows, before=before, actions=actions, after=np.asarray(after), rewards=np.asarray(rewards))

    return Work(
        run=lambda: (envs.step(draw()), None)[1],
        wait=nothing,
        env_steps=n_envs,
        trace=trace,
        counts=COUNTS,
        threads=threads,
    )


def drawing(envs: Any, n_envs: int, generator: Any) -> Any:
    """Return what draws an action for each environment, uniformly."""
    import numpy as np  # noqa: PLC0415

    space = getattr(envs, "single_action_space", envs.action_space)
    if hasattr(space, "n"):
        return lambda: generator.integers(space.n, size=n_envs, dtype=np.int32)
    low, high = float(space.low[0]), float(space.high[0])
    return lambda: generator.uniform(low, high, (n_envs, *space.shape)).astype(np.float32)
