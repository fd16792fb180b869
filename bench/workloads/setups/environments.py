"""Environments of points, built and started."""

from __future__ import annotations

from typing import Final

from warpdrive_min import EnvWrapper
from warpdrive_min.environment import CUDAEnvironmentContext, agent_sets
from warpdrive_min.envs import ENVS
from warpdrive_min.errors import known, require
from warpdrive_min.registrar import load_class
from warpdrive_min.spaces import category_counts

from ...core.point import Point, class_and_config
from ..shared import SEED, env_config, is_outside

CHECKED_AGENTS: Final = 2_000
"""Agents in environments that are checked against the reference.

These are the first ones of the point."""
CHECKED_STEPS: Final = 8
"""Env steps of a check."""


def start_env(point: Point, backend: str, n_envs: int, *, auto_reset: bool = True) -> EnvWrapper:
    """Build and start the environment of a point."""
    wrapper = build_env(point, backend, n_envs, auto_reset=auto_reset)
    wrapper.reset()
    return wrapper


def build_env(point: Point, backend: str, n_envs: int, *, auto_reset: bool = True) -> EnvWrapper:
    """Build the environment of a point; compiles its kernels."""
    return EnvWrapper(
        environment_of(point),
        num_envs=n_envs,
        env_backend=backend,
        seed=SEED,
        auto_reset=auto_reset,
        exact=point.get("exact", False),
    )


def environment_of(point: Point) -> CUDAEnvironmentContext:
    """Return the environment of a point, from `ENVS` or from outside.

    Raises:
        ConfigError: The class does not exist, or refuses this config.
    """
    name, own = class_and_config(point["env"])
    if is_outside(name):
        return load_class(name)(**own)
    require(name in ENVS, "environment", f"must be one of {known(ENVS)}, module:Class, or an existing path", name)
    config = env_config(name, point["n_agents"], point.get("neighbor_search", "auto"), point.get("n_taggers"))
    return ENVS[name](**config)


def checked_envs(point: Point) -> int:
    """Return the number of a point's environments that are checked."""
    n_envs: int = min(point["n_envs"], CHECKED_AGENTS // point["n_agents"])
    return max(1, n_envs)


def sampler_bytes(wrapper: EnvWrapper) -> int:
    """Return the minimum bytes of a uniform draw for one environment."""
    total = 0
    for agents in agent_sets(wrapper.env).values():
        space = wrapper.env.action_space[agents[0]]
        n_types = int(space.shape[0]) if hasattr(space, "low") else len(category_counts(space))
        total += 4 * len(agents) * n_types + 8  # actions, and the counter of draws
    return total
