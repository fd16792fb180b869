"""Names of the data that the core, environments and trainers exchange."""

from __future__ import annotations

from typing import Final


class Constants:
    """Names of the standard arrays, as in WarpDrive."""

    OBSERVATIONS: Final = "observations"
    ACTIONS: Final = "sampled_actions"
    REWARDS: Final = "rewards"
    DONE_FLAGS: Final = "done_flags"
    PROCESSED_OBSERVATIONS: Final = "processed_observations"
    ACTION_MASK: Final = "action_mask"


TIMESTEP: Final = "_timestep_"
"""Steps taken in the episode, (n_envs,) int32."""
DONE: Final = "_done_"
"""Flag of episodes that ended with the last step, (n_envs,) int32."""
EPISODE: Final = "_episode_"
"""Number of episodes started, (n_envs,) int32; counter of random starts."""
RESET_SEED: Final = "_reset_seed_"
"""Seed of starts and reset pools, low and high word, (2,) int32."""
FINAL_OBSERVATIONS: Final = "final_observations"
"""Last observations of episodes that ended and restarted in the same step.

Shaped as the observations; entries of other environments are stale.
"""
TERMINATED: Final = "terminated"
"""Flag of episodes ended by the dynamics, (n_envs,) int32."""
TRUNCATED: Final = "truncated"
"""Flag of episodes ended by the time limit, (n_envs,) int32."""
LOG_MASK: Final = "_log_mask_"
"""Mask of the log's valid rows, (episode_length + 1,) int32."""

AT_RESET: Final = "_at_reset"
"""Suffix of the saved copy that resets restore."""
FOR_LOG: Final = "_for_log"
"""Suffix of the log buffer, (episode_length + 1, *row)."""
