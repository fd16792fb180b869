"""Acrobot: swing the tip of two links above a height."""

from envs.classic_control.acrobot.env import Acrobot, AcrobotConfig

__all__ = ["Acrobot", "AcrobotConfig"]
