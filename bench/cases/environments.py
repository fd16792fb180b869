"""What is benchmarked: the environments' configs, and where they can run."""

from __future__ import annotations

from typing import Any, Final

from bench.case import Skip
from warpdrive_min import BACKENDS
from warpdrive_min.backends import Backend

SEED: Final = 274880
"""Of all cases that do not have seeds as an axis."""

ON_CPU: Final = ("cpu", "host")
ON_GPU: Final = tuple(name for name in BACKENDS if name not in ON_CPU)
EPISODE_LENGTHS: Final = {
    "cartpole": 500,
    "mountain_car": 500,
    "continuous_mountain_car": 1_000,
    "acrobot": 500,
    "pendulum": 500,
}
"""Of the environments of one agent, as in WarpDrive's run configs."""
FULLY_OBSERVED_AGENTS: Final = 110
"""Agents up to which those of Tag GridWorld observe all others; above, the observations would fill the memory."""


def env_config(env: str, n_agents: int, neighbor_search: str = "auto", n_taggers: int | None = None) -> dict[str, Any]:
    """Return the config of a benchmarked environment: that of the published run configs.

    Args:
        env: Its name in `ENVS`.
        n_agents: All of them.
        neighbor_search: Of Tag Continuous.
        n_taggers: Of Tag Continuous; None: one in eleven agents.
    """
    if env in EPISODE_LENGTHS:
        return {"episode_length": EPISODE_LENGTHS[env]}
    if env == "tag_gridworld":
        return {
            "num_taggers": n_agents - 1,
            "grid_length": 100,
            "episode_length": 100,
            "wall_hit_penalty": 0.1,
            "tag_penalty_for_runner": 5.0,
            "use_full_observation": n_agents <= FULLY_OBSERVED_AGENTS,
            "seed": 20,
        }
    n_taggers = n_taggers or max(1, n_agents // 11)
    return {
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "grid_length": 20.0,
        "episode_length": 500,
        "max_acceleration": 0.1,
        "min_acceleration": -0.1,
        "max_turn": 2.356,
        "min_turn": -2.356,
        "num_acceleration_levels": 20,
        "num_turn_levels": 20,
        "use_full_observation": False,
        "num_other_agents_observed": min(10, n_agents - 1),
        "neighbor_search": neighbor_search,
        "tagging_distance": 0.02,
        "tag_reward_for_tagger": 10.0,
        "tag_penalty_for_runner": -10.0,
        "end_of_game_reward_for_runner": 1.0,
        "seed": SEED,
    }


def available(name: str) -> Backend:
    """Return the backend, or skip the point with the reason and what to install."""
    state = BACKENDS[name].availability()
    if not state.available:
        raise Skip(f"{name}: {state}")
    return BACKENDS[name]
