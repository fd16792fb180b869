"""Recurrent models: outputs depend on a state carried from step to step.

States, ``(..., state_size)`` float32, are zero at the start of an episode, where `_timestep_` is 0. Nothing
synchronises, so it can be captured.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import nn

from warpdrive_min.errors import require
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig, divisors_around
from warpdrive_min.training.models.parts import (
    ModelFactory,
    PolicyHead,
    Recurrent,
    Trunk,
    check_shape,
    initialise,
    linear,
    over,
    probe,
)
from warpdrive_min.training.paths.cuda_c.gated import GatedNetwork
from warpdrive_min.training.paths.facts import Layers

Tensor = torch.Tensor


class GRU(Recurrent):
    """Hidden layers, gated recurrent units, a policy head and a value head.

    The two heads share layers and units, or have their own (``config.shared``); separate states are concatenated.
    Hidden layers and initial weights are as in `FullyConnected`. Initial weights of the units are torch's, Xavier, or
    orthogonal with gain 1, separately for each gate.

    Args:
        n_features: Size of a flattened observation.
        space: Actions.
        config: ``hidden_size`` is the number of units; the rest as in `FullyConnected`.
    """

    def __init__(self, n_features: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__(space, config)
        self.units = GatedUnits(n_features, config)
        self.value_units = None if config.shared else GatedUnits(n_features, config)
        self.policy_head = PolicyHead(config.hidden_size, space, config)
        self.vf_head = nn.Linear(config.hidden_size, 1)
        self.state_size = config.hidden_size * (1 if config.shared else 2)
        initialise(self, config.init_method)

    def unroll(self, observations: Tensor, state: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the state after each step."""
        units = [self.units] if self.value_units is None else [self.units, self.value_units]
        parts = zip(units, state.chunk(len(units), -1), strict=True)
        states = [each(observations, part, begins) for each, part in parts]
        return states[0] if len(states) == 1 else torch.cat(states, -1)

    def head(self, states: Tensor) -> Tensor:
        """Return the head."""
        mine = states[..., : self.policy_head.in_features]
        return self.policy_head.bound(linear(self.policy_head, mine, self.policy_head.exact))

    def value(self, states: Tensor) -> Tensor:
        """Return the value."""
        mine = states[..., -self.vf_head.in_features :]
        return linear(self.vf_head, mine, self.units.fc.exact).squeeze(-1)

    def as_gated_layers(self) -> Layers | str:
        """Return the layers' sizes, or a reason against kernels for them."""
        if type(self) is not GRU:
            return f"{type(self).__name__} overrides methods of GRU, and may compute something else"
        fc = self.units.fc
        if fc.obstacle:
            return fc.obstacle
        below = fc.layers(self.policy_head.out_features)
        is_shared = self.value_units is None and self.has_value
        return below._replace(hidden=(*below.hidden, self.policy_head.in_features), is_shared=is_shared)

    def as_network(self) -> GatedNetwork:
        """Return the layers for kernels of learning and acting."""

        def layers(units: GatedUnits, head: nn.Linear) -> list[Tensor]:
            return [*units.parameters(), head.weight, head.bias]

        value = layers(self.value_units or self.units, self.vf_head) if self.has_value else []
        return GatedNetwork(layers(self.units, self.policy_head), value, self.units.fc.activation == "tanh")

    def delete_value_head(self) -> None:
        """Delete the value head, and its layers and units if separate."""
        self.value_units, self.state_size = None, self.policy_head.in_features
        del self.vf_head


class GatedUnits(nn.Module):
    """Gated recurrent units on hidden layers, as in `torch.nn.GRU`.

    Results and initial weights are those of `torch.nn.GRU`. ``inputs`` and ``hidden`` hold its ``weight_ih_l0``,
    ``bias_ih_l0``, ``weight_hh_l0`` and ``bias_hh_l0``: rows of the reset gate, the update gate and the candidate.

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder". The candidate's reset gate
    applies to the product with the state, as in cuDNN and torch.
    """

    def __init__(self, n_features: int, config: ModelConfig) -> None:
        super().__init__()
        self.fc = Trunk(n_features, config)
        self.inputs = Gates(self.fc.width, config.hidden_size)
        self.hidden = Gates(config.hidden_size, config.hidden_size)

    def forward(self, observations: Tensor, state: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return the state after each step; arguments as in `Recurrent.unroll`."""
        # The gates' input products do not depend on the state: one product for all steps
        inputs = self.fc.head_outputs(observations, self.inputs).float()
        states = []
        # The gradient of `unbind` is one array; that of an index would be an array of all steps for each step
        for t, of_step in enumerate(inputs.unbind(1)):
            if begins is not None:
                state = state.masked_fill(over(begins[:, t], state), 0.0)
            state = self._step(of_step, state)
            states.append(state)
        return torch.stack(states, 1)

    def _step(self, inputs: Tensor, state: Tensor) -> Tensor:
        n, exact = state.shape[-1], self.fc.exact
        gates, candidate = inputs.split((2 * n, n), -1)
        of_state, state_candidate = linear(self.hidden, state, exact).float().split((2 * n, n), -1)
        if exact is not None:  # without torch's functions, and without fused multiply-add
            reset, update = (exact.tanh((gates + of_state) * 0.5) * 0.5 + 0.5).chunk(2, -1)  # the sigmoid
            candidate = exact.tanh(candidate + reset * state_candidate)
            return candidate + update * (state - candidate)
        reset, update = torch.sigmoid(gates + of_state).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate, reset, state_candidate))
        return torch.lerp(candidate, state, update)


class Gates(nn.Linear):
    """Linear layer of all gates, concatenated; initial weights as in torch."""

    gain: ClassVar[float] = 1.0
    """Gain of orthogonal initial weights."""

    def __init__(self, n_inputs: int, n_units: int) -> None:
        self.sizes, self.fan = [n_units] * 3, n_units
        super().__init__(n_inputs, sum(self.sizes))

    def reset_parameters(self) -> None:
        """Draw weights and biases, uniform within ``1 / sqrt(units)``."""
        bound = 1 / math.sqrt(self.fan)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)


def is_recurrent(model_type: str) -> bool:
    """Return True if the model of that name is recurrent.

    Raises:
        ConfigError: The model factory has no model of that name.
    """
    model_class = ModelFactory.create(model_type)
    return isinstance(model_class, type) and issubclass(model_class, Recurrent)


def create_recurrent(n_features: int, space: ActionSpace, config: ModelConfig) -> Recurrent:
    """Build the recurrent model of a policy that A2C or PPO trains.

    Raises:
        ConfigError: It returns another shape than `Recurrent` requires.
    """
    model = ModelFactory.create(config.type)(n_features, space, config)
    assert isinstance(model, Recurrent), "asked for by `is_recurrent`"
    with probe(model, n_features) as observations:
        rows = tuple(observations.shape[:-1])
        states = model.unroll(observations, observations.new_zeros(len(observations), model.state_size))
        check_shape(config, "states", states, (*rows, model.state_size))
        check_shape(config, "a head", model.head(states), (*rows, space.n_outputs))
        check_shape(config, "a value", model.value(states), rows)
    return model


def sequence_steps(config: ModelConfig, n_steps: int, who: str) -> int:
    """Return the length of training sequences, in env steps.

    It is 1, except for recurrent models.

    Args:
        config: Config of the network.
        n_steps: Steps of a rollout.
        who: Name of the policy in errors.

    Raises:
        ConfigError: The sequence length does not divide the rollout.
    """
    if not is_recurrent(config.type):
        return 1
    length = config.sequence_length or n_steps
    rule = f"must divide the steps of a rollout, train_batch_size / num_envs = {n_steps}"
    below, _ = divisors_around(n_steps, length)
    require(n_steps % length == 0, f"{who}.model.sequence_length", rule, length, f"take {below}, or leave it out")
    return length
