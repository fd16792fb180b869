"""Tag Continuous: taggers chase runners on a continuous square."""

from envs.tag_continuous.env import TagContinuous, TagContinuousConfig

__all__ = ["TagContinuous", "TagContinuousConfig"]
