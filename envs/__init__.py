"""The environments: `ENVS` is the one table of them, by the name of their folder."""

from __future__ import annotations

from typing import Final

from envs.classic_control.acrobot import Acrobot
from envs.classic_control.cartpole import CartPole
from envs.classic_control.continuous_mountain_car import ContinuousMountainCar
from envs.classic_control.mountain_car import MountainCar
from envs.classic_control.pendulum import Pendulum
from envs.tag_continuous import TagContinuous
from envs.tag_gridworld import TagGridWorld
from warpdrive_min import BACKENDS, Environment, env_registrar

__all__ = [
    "ENVS",
    "Acrobot",
    "CartPole",
    "ContinuousMountainCar",
    "MountainCar",
    "Pendulum",
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
}

for _cls in ENVS.values():
    env_registrar.add(list(BACKENDS))(_cls)
