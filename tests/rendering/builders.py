"""Started wrappers and recorded episodes."""

from __future__ import annotations

from typing import Any

from envs import TagContinuous
from tests.support import TAG_CONFIGS
from warpdrive_min import EnvWrapper
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering import Episode, record

TAG = {**TAG_CONFIGS["partial, exits"], "seed": 3}
"""Five agents on a small square, with early tags."""


def started(env: Any = None, num_envs: int = 3, **options: Any) -> EnvWrapper:
    """Return a started wrapper, by default of Tag."""
    wrapper = EnvWrapper(env or TagContinuous(**TAG), num_envs=num_envs, seed=11, **options)
    wrapper.reset()
    return wrapper


def recorded(env: Any = None, n_steps: int | None = None, env_id: int = 1) -> Episode:
    """Return an episode of random actions."""
    wrapper = started(env)
    return record(wrapper, random_policy(wrapper, 5), n_steps, env_id)
