"""Names that the core, environments and trainers share for the data they exchange."""

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
"""Steps done in the episode, (n_envs,) int32."""
DONE: Final = "_done_"
"""The episode ended with the last step, (n_envs,) int32."""
EPISODE: Final = "_episode_"
"""Episodes started, (n_envs,) int32: the counter of random starts."""
RESET_SEED: Final = "_reset_seed_"
"""Low and high word of the seed of starts and pools, (2,) int32."""
FINAL_OBSERVATIONS: Final = "final_observations"
"""Last observations of episodes that a step ended and restarted, shaped as the observations; stale elsewhere."""
TERMINATED: Final = "terminated"
"""The dynamics ended the episode, (n_envs,) int32."""
TRUNCATED: Final = "truncated"
"""The time limit ended the episode, (n_envs,) int32."""
LOG_MASK: Final = "_log_mask_"
"""Mask of the valid rows of the log, (episode_length + 1,) int32."""

AT_RESET: Final = "_at_reset"
"""Suffix of the saved copy that a reset restores."""
FOR_LOG: Final = "_for_log"
"""Suffix of the log buffer, (episode_length + 1, *row)."""
