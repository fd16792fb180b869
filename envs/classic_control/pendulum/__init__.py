"""Pendulum: swing a pendulum up and hold it there."""

from .env import Pendulum, PendulumConfig

__all__ = ["Pendulum", "PendulumConfig"]
