"""Clock, an environment with predictable numbers for a trainer."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min import DataFeed, Environment
from warpdrive_min.spaces import Discrete

N_FEATURES = 2
N_CHOICES = 3
FORBIDDEN = -100.0
"""Reward of an action that the mask forbids."""


class Clock(Environment):
    """Environment in which agents are paid ``10 * agent + action``.

    They observe the step counter and their own number. Episodes are cut off after ``episode_length`` steps, or end
    after ``ends_at``.

    Args:
        num_agents: Agents, with the ids 0, 1 and so on.
        episode_length: Steps after which an episode is cut off.
        ends_at: Steps after which the dynamics end it; 0: never.
        breaks_at: Step whose rewards are NaN; 0: none.
        bonus: Added to every reward.
        is_masked: Observations are a dict with a mask, which forbids the choice ``(step + agent) % 3``.
        is_last: Agents are the last axis of observations.
        policies: Agents of each policy with separate arrays; None: all share.
    """

    name = "Clock"
    kernel_sources = {"numpy": "tests.environments.clock_numpy"}  # noqa: RUF012

    def __init__(
        self,
        num_agents: int = 2,
        episode_length: int = 3,
        ends_at: int = 0,
        breaks_at: int = 0,
        bonus: float = 0.0,
        *,
        is_masked: bool = False,
        is_last: bool = False,
        policies: dict[str, list[int]] | None = None,
    ) -> None:
        super().__init__()
        self.num_agents, self.episode_length = num_agents, episode_length
        self.ends_at, self.breaks_at, self.bonus = ends_at, breaks_at, bonus
        self.is_masked, self.is_last, self.policies = is_masked, is_last, policies
        self.action_space = dict.fromkeys(range(num_agents), Discrete(N_CHOICES))

    def get_constants(self) -> dict[str, Any]:
        return {
            "ENDS_AT": self.ends_at,
            "BREAKS_AT": self.breaks_at,
            "BONUS": self.bonus,
            "FORBIDDEN": FORBIDDEN,
            "IS_MASKED": self.is_masked,
            "IS_LAST": self.is_last and self.num_agents > 1,
            "IS_SEPARATE": self.policies is not None,
        }

    def get_tensor_dictionary(self) -> DataFeed:
        """Return data that the trainer's placeholders lack."""
        feed = DataFeed()
        for flag in ("terminated", "truncated"):
            feed.add_data(flag, np.zeros((), np.int32), per_env=True)
        groups = {"": list(self.action_space)} if self.policies is None else self.policies
        for policy, agents in groups.items():
            suffix = f"_{policy}" if policy else ""
            seen = np.array([[0, agent] for agent in agents], np.float32)
            if self.is_masked:
                feed.add_data(f"observations{suffix}_seen", seen, per_env=True)
                mask = np.ones((len(agents), N_CHOICES), np.int32)
                feed.add_data(f"observations{suffix}_action_mask", mask, per_env=True)
            else:
                rows = seen.T.copy() if self.is_last and len(agents) > 1 else seen
                feed.add_data(f"observations{suffix}", rows, per_env=True)
                feed.add_data(f"final_observations{suffix}", rows, per_env=True)
            feed.add_data(f"sampled_actions{suffix}", np.zeros((len(agents), 1), np.int32), per_env=True)
            feed.add_data(f"rewards{suffix}", np.zeros(len(agents), np.float32), per_env=True)
        return feed

    def reset(self) -> dict[int, Any]:
        """Return the first observations; the kernels make the mask."""
        seen = {agent: np.array([0, agent], np.float32) for agent in range(self.num_agents)}
        if not self.is_masked:
            return seen
        mask = np.ones(N_CHOICES, np.int32)
        return {agent: {"seen": row, "action_mask": mask} for agent, row in seen.items()}
