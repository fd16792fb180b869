"""MountainCar: swing a weak car out of a valley, by pushes of one size."""

from envs.classic_control.mountain_car.env import MountainCar, MountainCarConfig

__all__ = ["MountainCar", "MountainCarConfig"]
