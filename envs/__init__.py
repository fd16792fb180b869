"""The environments: `ENVS` is the one table of them, by the name of their folder."""

from __future__ import annotations

from typing import Final

from envs.classic_control.cartpole import CartPole
from envs.tag_continuous import TagContinuous
from warpdrive_min import BACKENDS, Environment, env_registrar

__all__ = ["ENVS", "CartPole", "TagContinuous"]

ENVS: Final[dict[str, type[Environment]]] = {
    "cartpole": CartPole,
    "tag_continuous": TagContinuous,
}

for _cls in ENVS.values():
    env_registrar.add(list(BACKENDS))(_cls)
