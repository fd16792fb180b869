"""ContinuousMountainCar: swing a weak car out of a valley, by pushes of any size."""

from envs.classic_control.continuous_mountain_car.env import ContinuousMountainCar, ContinuousMountainCarConfig

__all__ = ["ContinuousMountainCar", "ContinuousMountainCarConfig"]
