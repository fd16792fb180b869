"""Rollouts that keep one row of observations for all agents of an environment, who differ by who they are alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from warpdrive_min.constants import FINAL_OBSERVATIONS, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import Environment
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.arrays import AgentArrays
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.paths.fused import cpu, learning

ALGORITHMS: Final = ("A2C", "PPO")


def shared_arrays(config: RunConfig, wrapper: EnvWrapper, group: PolicyGroup, n_policies: int) -> AgentArrays | str:
    """Return the arrays of a policy whose rollouts keep one row an environment, or why they keep the row of each agent.

    Args:
        config: Of the run.
        wrapper: Started wrapper.
        group: The policy, or the first of several.
        n_policies: How many there are.
    """
    trainer, arrays, data = config.trainer, group.arrays, wrapper.cuda_data_manager
    own_columns = wrapper.env.own_columns if isinstance(wrapper.env, Environment) else None
    on_cpu = cpu.network_of(group.acting, trainer.precision, data.device)
    network = on_cpu or learning.network_of(group.acting, own_columns)
    whole = data.tensor(Constants.OBSERVATIONS) if own_columns is not None else None
    obstacles: dict[str, Any] = {
        "trainer.shared_observations is false": trainer.shared_observations is False,
        "several policies act": n_policies > 1,
        f"agents of {wrapper.name!r} see more of their own than who they are": own_columns is None,
        "it sees not all agents, or other arrays": arrays.rows is not None or arrays.observations[0] is not whole,
        "actions are masked": arrays.mask is not None,
        "nothing tells of the ends of episodes": not arrays.last_observations,
        "it does not learn": not group.config.to_train,
        "it learns by another rule than that of A2C or PPO": (
            group.config.algorithm not in ALGORITHMS or trainer.compat is not None
        ),
        "it has a centralised critic": "critic" in group.models,
        "it is of a population": group.members,
        "it trains exactly": trainer.exact,
        "there are no kernels for its network": network is None,
        "trainer.shared_observations is null, and the first layer is small": (
            trainer.shared_observations is None and network is not None and learning.first_layer_stays(network)
        ),
    }
    if obstacle := next((reason for reason, holds in obstacles.items() if holds), ""):
        return obstacle
    last = arrays.last_observations[0][:, :1]
    row = torch.zeros_like(last)
    if wrapper.bound_step(of_one_row=True, **{Constants.OBSERVATIONS: row, FINAL_OBSERVATIONS: row}) is not None:
        last = row  # else it is picked out of the rows of all
    return replace(arrays, own_columns=own_columns, last_observations=(last,))
