"""RICE: regions choose savings and mitigation, and share one climate."""

from .env import Rice, RiceConfig

__all__ = ["Rice", "RiceConfig"]
