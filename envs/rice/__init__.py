"""RICE: regions of the world choose how much to save and how much carbon to avoid, and share one climate."""

from .env import Rice, RiceConfig

__all__ = ["Rice", "RiceConfig"]
