"""Rollouts that keep one row of observations for all agents of an environment, who differ by who they are alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import Environment
from warpdrive_min.training.arrays import AgentArrays
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.fused import learning
from warpdrive_min.training.policies import PolicyGroup

ALGORITHMS: Final = ("A2C", "PPO")


def shared_arrays(config: RunConfig, wrapper: EnvWrapper, group: PolicyGroup, n_policies: int) -> AgentArrays | str:
    """Return the arrays of a policy whose rollouts keep one row an environment, or why they keep the row of each agent.

    Args:
        config: Of the run.
        wrapper: Started wrapper.
        group: The policy, or the first of several.
        n_policies: How many there are.
    """
    wanted, arrays = config.trainer.shared_observations, group.arrays
    own_columns = wrapper.env.own_columns if isinstance(wrapper.env, Environment) else None
    network = learning.network_of(group.acting, own_columns)
    automatic = {
        "trainer.shared_observations is null, and the backend is none of a GPU": not wrapper.backend.captures_graphs,
        "trainer.shared_observations is null, and the first layer is small": (
            network is not None and learning.first_layer_stays(network)
        ),
    }
    whole = wrapper.cuda_data_manager.tensor(Constants.OBSERVATIONS) if own_columns is not None else None
    obstacles: dict[str, Any] = {
        "trainer.shared_observations is false": wanted is False,
        **(automatic if wanted is None else {}),
        "backend cpu, NumPy, writes a row for each agent": wrapper.backend.language == "numpy",
        "several policies act": n_policies > 1,
        f"agents of {wrapper.name!r} see more of their own than who they are": own_columns is None,
        "its environments do not restart by themselves": not (wrapper.auto_reset and wrapper.resets_itself),
        "actions are checked before each step": wrapper.debug,
        "it sees not all agents, or other arrays": arrays.rows is not None or arrays.observations[0] is not whole,
        "actions are masked": arrays.mask is not None,
        "nothing tells of the ends of episodes": not arrays.last_observations,
        "it does not learn": not group.config.to_train,
        "it learns by another rule than that of A2C or PPO": (
            group.config.algorithm not in ALGORITHMS or config.trainer.compat is not None
        ),
        "it has a centralised critic": "critic" in group.models,
        "it is of a population": group.members,
        "it trains exactly": config.trainer.exact,
        "trainer.precision is bf16": config.trainer.precision == "bf16",
        "its network is none of two narrow layers under logits": network is None,
    }
    if obstacle := next((reason for reason, holds in obstacles.items() if holds), ""):
        return obstacle
    row = torch.zeros_like(arrays.last_observations[0][:, :1])
    return replace(arrays, own_columns=own_columns, last_observations=(row,))
