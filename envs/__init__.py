"""Environments; `ENVS` is the table by folder name."""

from __future__ import annotations

from typing import Final

from warpdrive_min import BACKENDS, Environment, env_registrar

from .classic_control.acrobot import Acrobot
from .classic_control.cartpole import CartPole
from .classic_control.continuous_mountain_car import ContinuousMountainCar
from .classic_control.mountain_car import MountainCar
from .classic_control.pendulum import Pendulum
from .covid19_economy import Covid19Economy
from .rice import Rice
from .tag_continuous import TagContinuous
from .tag_gridworld import TagGridWorld

__all__ = [
    "ENVS",
    "Acrobot",
    "CartPole",
    "ContinuousMountainCar",
    "Covid19Economy",
    "MountainCar",
    "Pendulum",
    "Rice",
    "TagContinuous",
    "TagGridWorld",
]

ENVS: Final[dict[str, type[Environment]]] = {
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

for _cls in ENVS.values():
    env_registrar.add(list(BACKENDS))(_cls)
