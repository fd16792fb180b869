"""Pendulum: swing a pendulum up and hold it there."""

from envs.classic_control.pendulum.env import Pendulum, PendulumConfig

__all__ = ["Pendulum", "PendulumConfig"]
