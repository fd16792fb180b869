"""ContinuousMountainCar: swing a weak car out of a valley by graded pushes."""

from .env import ContinuousMountainCar, ContinuousMountainCarConfig

__all__ = ["ContinuousMountainCar", "ContinuousMountainCarConfig"]
