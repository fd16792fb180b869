"""ContinuousMountainCar: swing a weak car out of a valley, by pushes of any size."""

from .env import ContinuousMountainCar, ContinuousMountainCarConfig

__all__ = ["ContinuousMountainCar", "ContinuousMountainCarConfig"]
