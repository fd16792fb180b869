"""Centralised critics: values from the global state of the environment.

Their policies act on each agent's observations. Only learning needs the critics; acting, evaluation and exported
policies do not.

Source: Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games" (MAPPO). Its critic runs
once for each agent; this one has an output for each agent of its policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from warpdrive_min.errors import require
from warpdrive_min.training.models.parts import ModelFactory, Trunk, check_shape, initialise, probe

if TYPE_CHECKING:
    from warpdrive_min.training.config import ModelConfig

Tensor = torch.Tensor


class CentralisedCritic(nn.Module):
    """Base of centralised critics.

    The constructor takes ``(n_features, n_agents, config)``. ``forward(states)`` returns the value of each agent of a
    policy, ``(..., n_agents)``, from global states ``(..., n_features)``.
    """


class FullyConnectedCentralisedCritic(CentralisedCritic):
    """Fully connected layers and a value head with one output per agent.

    Args:
        n_features: Size of a global state.
        n_agents: Agents of the policy.
        config: Layers, activation and initial weights, as in `FullyConnected`.
    """

    def __init__(self, n_features: int, n_agents: int, config: ModelConfig) -> None:
        super().__init__()
        self.fc = Trunk(n_features, config)
        self.vf_head = nn.Linear(self.fc.width, n_agents)
        initialise(self, config.init_method)

    def forward(self, states: Tensor) -> Tensor:
        """Return the value of each agent."""
        return self.fc.head_outputs(states, self.vf_head)


ModelFactory.add("fully_connected_centralised_critic", FullyConnectedCentralisedCritic)


def create_centralised_critic(n_features: int, n_agents: int, config: ModelConfig) -> CentralisedCritic:
    """Build a centralised critic.

    Args:
        n_features: Size of a global state.
        n_agents: Agents of the policy.
        config: Config with the model's name.

    Raises:
        ConfigError: The model is unknown, is not a centralised critic, or returns another shape.
    """
    model_class = ModelFactory.create(config.type)
    is_one = isinstance(model_class, type) and issubclass(model_class, CentralisedCritic)
    do = "use 'fully_connected_centralised_critic'"
    require(is_one, "centralised_critic.type", "must derive from CentralisedCritic", config.type, do)
    model = model_class(n_features, n_agents, config)
    assert isinstance(model, CentralisedCritic)
    with probe(model, n_features) as states:
        check_shape(config, "values", model(states), (*states.shape[:-1], n_agents))
    return model
