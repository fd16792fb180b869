"""MountainCar: swing a weak car out of a valley by pushes of one size."""

from .env import MountainCar, MountainCarConfig

__all__ = ["MountainCar", "MountainCarConfig"]
