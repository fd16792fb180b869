"""Environments in vectorised NumPy: a CPU baseline.

They share nothing with the kernels: generator and layout differ, and operations are in place. The economies have no
such code; their fastest CPU code is C++.
"""

from __future__ import annotations

from typing import Final

from .batch import Batch
from .classic_control import Acrobot, CartPole, ContinuousMountainCar, MountainCar, Pendulum
from .tag_continuous import TagContinuous
from .tag_gridworld import TagGridWorld

BATCHES: Final[dict[str, type[Batch]]] = {
    "cartpole": CartPole,
    "mountain_car": MountainCar,
    "continuous_mountain_car": ContinuousMountainCar,
    "acrobot": Acrobot,
    "pendulum": Pendulum,
    "tag_gridworld": TagGridWorld,
    "tag_continuous": TagContinuous,
}
"""Batch class of each environment in `bench.point.PLAIN_ENVS`."""
