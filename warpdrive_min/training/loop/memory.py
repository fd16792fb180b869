"""States of recurrent policies between steps."""

from __future__ import annotations

import torch

from warpdrive_min.training.loop.arrays import AgentArrays
from warpdrive_min.training.models.gru import Recurrent, over

Tensor = torch.Tensor


class Memory:
    """Memory of a recurrent policy: the state of each agent of some environments, carried from step to step.

    Args:
        model: The model.
        arrays: Arrays of the agents.
    """

    def __init__(self, model: Recurrent, arrays: AgentArrays) -> None:
        self._model, self._timestep = model, arrays.timestep
        rows = (len(arrays.rewards), arrays.n_agents)
        self.state = torch.zeros(*rows, model.state_size, device=arrays.rewards.device, dtype=torch.float32)
        """Before the next step, (n_envs, n_agents, state_size)."""

    def forget(self) -> None:
        """Zero the state where an episode begins, in place; enqueues."""
        self.state.masked_fill_(over(self._timestep == 0, self.state), 0.0)

    def act(self, observations: Tensor) -> Tensor:
        """Return the head for what the agents see, (n_envs, n_agents, n_outputs), and go a step on; enqueues."""
        self.state.copy_(self._model.step(observations, self.state))
        return self._model.head(self.state)
