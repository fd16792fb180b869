"""Tag GridWorld: taggers chase one runner on a grid."""

from .env import TagGridWorld, TagGridWorldConfig

__all__ = ["TagGridWorld", "TagGridWorldConfig"]
