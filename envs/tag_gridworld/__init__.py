"""Tag GridWorld: taggers chase one runner over the cells of a grid."""

from .env import TagGridWorld, TagGridWorldConfig

__all__ = ["TagGridWorld", "TagGridWorldConfig"]
