"""Tag Continuous: taggers chase runners on a continuous square."""

from .env import TagContinuous, TagContinuousConfig

__all__ = ["TagContinuous", "TagContinuousConfig"]
