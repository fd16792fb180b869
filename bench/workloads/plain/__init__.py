"""The environments in plain vectorised NumPy, as a user would write them in an afternoon: a baseline beside the oracle.

They share nothing with the kernels: their own generator, their own layout, operations in place. `PLAIN` is the one
table of them, by the names of `envs.ENVS`.
"""

from __future__ import annotations

from typing import Final

from .batch import Batch
from .classic_control import Acrobot, CartPole, ContinuousMountainCar, MountainCar, Pendulum
from .covid19_economy import Covid19Economy
from .rice import Rice
from .tag_continuous import TagContinuous
from .tag_gridworld import TagGridWorld

PLAIN: Final[dict[str, type[Batch]]] = {
    "cartpole": CartPole,
    "mountain_car": MountainCar,
    "continuous_mountain_car": ContinuousMountainCar,
    "acrobot": Acrobot,
    "pendulum": Pendulum,
    "tag_gridworld": TagGridWorld,
    "tag_continuous": TagContinuous,
    "covid19_economy": Covid19Economy,
    "rice": Rice,
}
