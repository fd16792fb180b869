"""Acrobot: swing the tip of two links above a height."""

from .env import Acrobot, AcrobotConfig

__all__ = ["Acrobot", "AcrobotConfig"]
