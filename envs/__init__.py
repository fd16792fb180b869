"""Environments; `ENVS` is the table by folder name. Each is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warpdrive_min import BACKENDS, env_registrar
from warpdrive_min.lazy import ImportedTable, on_first_use

if TYPE_CHECKING:
    from warpdrive_min import Environment

    from .classic_control.acrobot import Acrobot as Acrobot
    from .classic_control.cartpole import CartPole as CartPole
    from .classic_control.continuous_mountain_car import ContinuousMountainCar as ContinuousMountainCar
    from .classic_control.mountain_car import MountainCar as MountainCar
    from .classic_control.pendulum import Pendulum as Pendulum
    from .covid19_economy import Covid19Economy as Covid19Economy
    from .rice import Rice as Rice
    from .tag_continuous import TagContinuous as TagContinuous
    from .tag_gridworld import TagGridWorld as TagGridWorld

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

NAMES: Final = {
    "classic_control": (),
    "classic_control.cartpole": ("CartPole",),
    "classic_control.mountain_car": ("MountainCar",),
    "classic_control.continuous_mountain_car": ("ContinuousMountainCar",),
    "classic_control.acrobot": ("Acrobot",),
    "classic_control.pendulum": ("Pendulum",),
    "tag_gridworld": ("TagGridWorld",),
    "tag_continuous": ("TagContinuous",),
    "covid19_economy": ("Covid19Economy",),
    "rice": ("Rice",),
}
"""Name of each environment's class, by folder."""
_paths = {name: f"{__name__}.{folder}:{name}" for folder, names in NAMES.items() for name in names}

ENVS: Final[ImportedTable[type[Environment]]] = ImportedTable(
    {path.partition(":")[0].rpartition(".")[2]: path for path in _paths.values()}
)
env_registrar.add_paths(_paths, list(BACKENDS))

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    __getattr__ = on_first_use(__name__, NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
