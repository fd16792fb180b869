"""What others reach on the same points, for the tables and figures that show ours beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.case import Point

WARPDRIVE: Final = "WarpDrive 2.7.1"
JAX: Final = "PureJaxRL"
SOURCES: Final = {
    WARPDRIVE: "rl-warp-drive 2.7.1 with its run configs, measured for this project on one NVIDIA H200",
    JAX: "PureJaxRL's PPO on gymnax 1.0.1 and JAX 0.11.2, which multiplies in TF32 unless told otherwise, "
    "measured for this project on one NVIDIA H200",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """A point of `train` that somebody else was measured on."""

    env: str
    n_envs: int
    n_agents: int = 1
    n_steps: int
    algorithm: str
    network: str
    env_steps_per_s: float | None
    """Median; None: it does not run there."""
    by: str = WARPDRIVE
    backend: str = "numba"
    """Of the environments of WarpDrive; it is the faster one of each size that stands here."""
    n_taggers: int | None = None
    """Of Tag Continuous."""

    @property
    def axes(self) -> dict[str, Any]:
        """The axes that it shares with our points."""
        names = ("env", "n_envs", "n_agents", "n_steps", "algorithm", "network")
        axes = {name: getattr(self, name) for name in names}
        return axes if self.n_taggers is None else axes | {"n_taggers": self.n_taggers}


def _cartpole(n_envs: int, n_steps: int, rate: float, algorithm: str, network: str, by: str = WARPDRIVE) -> Anchor:
    return Anchor(
        env="cartpole",
        n_envs=n_envs,
        n_steps=n_steps,
        algorithm=algorithm,
        network=network,
        env_steps_per_s=rate,
        by=by,
        backend="numba" if by == WARPDRIVE else "",
    )


def _tag(env: str, n_envs: int, n_agents: int, n_steps: int, rate: float | None, **more: Any) -> Anchor:
    network = "256-256" if env == "tag_continuous" else "32-32"
    return Anchor(
        env=env,
        n_envs=n_envs,
        n_agents=n_agents,
        n_steps=n_steps,
        algorithm="A2C",
        network=network,
        env_steps_per_s=rate,
        **{"backend": "pycuda", **more},
    )


SEPARATE: Final = "64-64 separate tanh"

ANCHORS: Final = (
    _cartpole(100, 100, 0.080e6, "A2C", "32-32"),
    _cartpole(1_000, 100, 0.886e6, "A2C", "32-32"),
    _cartpole(10_000, 100, 8.01e6, "A2C", "32-32"),
    _cartpole(100_000, 50, 59.2e6, "A2C", "32-32"),
    Anchor(env="acrobot", n_envs=10_000, n_steps=100, algorithm="A2C", network="32-32", env_steps_per_s=10.7e6),
    Anchor(env="pendulum", n_envs=10_000, n_steps=5, algorithm="DDPG", network="64-64", env_steps_per_s=4.82e6),
    _tag("tag_gridworld", 2_000, 5, 100, 3.00e6),
    _tag("tag_gridworld", 1_000, 100, 50, 0.760e6),
    _tag("tag_continuous", 60, 105, 100, 0.0280e6, n_taggers=5),
    _tag("tag_continuous", 100, 110, 250, 0.0442e6, n_taggers=10),
    _tag("tag_continuous", 2_000, 110, 50, 0.167e6, n_taggers=10),
    _tag("tag_continuous", 2_000, 1_000, 50, None, n_taggers=100),
    _cartpole(2_048, 128, 25.6e6, "PPO", SEPARATE, JAX),
    _cartpole(16_384, 128, 71.0e6, "PPO", SEPARATE, JAX),
    _cartpole(65_536, 128, 86.1e6, "PPO", SEPARATE, JAX),
    _cartpole(2_048, 128, 42.2e6, "A2C", SEPARATE, JAX),
    _cartpole(16_384, 128, 178e6, "A2C", SEPARATE, JAX),
    _cartpole(65_536, 32, 245e6, "A2C", SEPARATE, JAX),
)
"""WarpDrive's own runs, then JAX on CartPole: PPO of 4 epochs with 4 minibatches, and one epoch of one like A2C.

WarpDrive at 2,000 environments of Tag Continuous crashes as shipped: it was measured with a larger heap for its random
numbers and one reset shared by all environments. At 1,000 agents it does not launch on this GPU.
"""


def anchor(point: Point) -> Anchor | None:
    """Return who else was measured on a point; a figure of another precision is compared with theirs too."""
    return next((each for each in ANCHORS if each.axes.items() <= point.items()), None)
