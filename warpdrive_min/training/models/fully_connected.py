"""Fully connected networks of policies and values.

A model is built with ``(n_features, space, config)`` on the CPU. It works on observations ``(..., n_features)`` of any
leading shape. Nothing in it synchronises, so it can be captured. Action masks are applied outside of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from warpdrive_min.errors import ConfigError, require
from warpdrive_min.perceptron import Perceptron
from warpdrive_min.training.models.parts import (
    ModelFactory,
    ModelInput,
    PolicyHead,
    Stochastic,
    Trunk,
    check_shape,
    initialise,
    probe,
)
from warpdrive_min.training.paths.facts import Layers
from warpdrive_min.training.paths.fused.network import Network
from warpdrive_min.training.paths.triton.columns import split

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace
    from warpdrive_min.training.config import ModelConfig

Tensor = torch.Tensor


# ------------------------------------------------------------------ by name


def create_actor_critic(n_features: int, space: ActionSpace, config: ModelConfig) -> ActorCritic:
    """Build the model of a policy that A2C or PPO trains.

    Args:
        n_features: Size of a flattened observation.
        space: Actions of the policy's agents.
        config: Config with the model's name. The model needs only ``forward(observations) -> (head, value)``, as
            described in `ActorCritic`; `Adapted` adds the other methods.

    Raises:
        ConfigError: The model is unknown, or returns another shape.
    """
    module = ModelFactory.create(config.type)(n_features, space, config)
    model = module if isinstance(module, ActorCritic) else Adapted(module, space, config)
    with probe(module, n_features) as observations:
        outputs = model(observations)
        if not (isinstance(outputs, tuple) and len(outputs) == 2):
            got = len(outputs) if isinstance(outputs, tuple) else type(outputs).__name__
            raise ConfigError.of(f"model {config.type!r}", "forward must return (head, value)", got)
        rows = observations.shape[:-1]
        for head in (outputs[0], model.act(observations)):
            check_shape(config, "a head", head, (*rows, space.n_outputs))
        for value in (outputs[1], model.value(observations)):
            check_shape(config, "a value", value, tuple(rows))
    return model


def create_actor(n_features: int, space: ActionSpace, config: ModelConfig) -> nn.Module:
    """Build an actor for DDPG.

    Its ``act(observations)`` returns actions ``(..., n_types)``.

    Raises:
        ConfigError: The model is unknown, has no ``act``, or returns another shape.
    """
    model = ModelFactory.create(config.type)(n_features, space, config)
    act = getattr(model, "act", None)
    if not callable(act):
        rule, do = "an actor needs act(observations) -> actions", "add it, or use 'fully_connected_actor'"
        raise ConfigError.of(f"model {config.type!r}", rule, type(model), do)
    with probe(model, n_features) as observations:
        check_shape(config, "actions", act(observations), (*observations.shape[:-1], space.n_types))
    return model


def create_critic(n_features: int, space: ActionSpace, config: ModelConfig) -> nn.Module:
    """Build a critic for DDPG.

    Its ``forward(observations, actions)`` returns the values of the actions, ``(...)``.

    Raises:
        ConfigError: The model is unknown, or returns another shape.
    """
    model = ModelFactory.create(config.type)(n_features, space, config)
    with probe(model, n_features) as observations:
        rows = tuple(observations.shape[:-1])
        check_shape(config, "a value", model(observations, observations.new_zeros(*rows, space.n_types)), rows)
    return model


# ------------------------------------------------------------------ A2C and PPO


class ActorCritic(Stochastic):
    """Base of models with a policy and a value head.

    ``forward(observations)`` returns the head and the value, ``(...)``, in one pass. A subclass defines ``forward``. It
    overrides `act` and `value` if computing only one of them is cheaper.
    """

    def act(self, observations: Tensor) -> Tensor:
        """Return the head only, ``(..., n_outputs)``."""
        head: Tensor = self(observations)[0]
        return head

    def value(self, observations: Tensor) -> Tensor:
        """Return the value only, ``(...)``."""
        value: Tensor = self(observations)[1]
        return value


class Adapted(ActorCritic):
    """Adapter of a user's module to `ActorCritic`.

    The module needs only ``forward(observations) -> (head, value)``. If it has ``act`` or ``value``, these are used.
    """

    def __init__(self, module: nn.Module, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__(space, config)
        self.module = module

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return head and value."""
        outputs: tuple[Tensor, Tensor] = self.module(observations)
        return outputs

    def act(self, observations: Tensor) -> Tensor:
        """Return the head."""
        head: Tensor = getattr(self.module, "act", super().act)(observations)
        return head

    def value(self, observations: Tensor) -> Tensor:
        """Return the value."""
        value: Tensor = getattr(self.module, "value", super().value)(observations)
        return value


class FullyConnected(ActorCritic):
    """Fully connected layers, a policy head and a value head.

    The two heads share one trunk, or have one each (``config.shared``). Initial weights (``config.init_method``):

    | method | weights | biases |
    |---|---|---|
    | None | torch's default | torch's default |
    | `xavier` | uniform Xavier in every layer, as WarpDrive | torch's default |
    | `orthogonal` | orthogonal, with gain sqrt(2) in a trunk, 0.01 for the policy, 1 for the value | 0 |

    Args:
        n_features: Size of a flattened observation.
        space: Actions.
        config: Layers, activation, initial weights; for a box also `PolicyHead`'s bounds and the initial `log_std`.
    """

    def __init__(self, n_features: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__(space, config)
        self.fc = Trunk(n_features, config)
        self.value_fc = None if config.shared else Trunk(n_features, config)
        self.policy_head = PolicyHead(self.fc.width, space, config)
        self.vf_head = nn.Linear(self.fc.width, 1)
        initialise(self, config.init_method)

    def forward(self, observations: ModelInput) -> tuple[Tensor, Tensor]:
        """Return head and value."""
        if self.value_fc is not None:
            return self.act(observations), self.value(observations)
        outputs = self.fc.head_outputs(observations, self.policy_head, self.vf_head)
        head, value = split(outputs)
        return self.policy_head.bound(head), value

    def act(self, observations: ModelInput) -> Tensor:
        """Return the head."""
        return self.policy_head.bound(self.fc.head_outputs(observations, self.policy_head))

    def value(self, observations: ModelInput) -> Tensor:
        """Return the value."""
        below = self.fc if self.value_fc is None else self.value_fc
        return below.head_outputs(observations, self.vf_head).squeeze(-1)

    def as_layers(self) -> Layers | str:
        """Return the layers' sizes, or a reason against them."""
        perceptron = self.as_perceptron()
        if isinstance(perceptron, str):
            return perceptron
        return self.fc.layers(self.policy_head.out_features)._replace(is_shared=perceptron.is_shared)

    def as_network(self) -> Network:
        """Return the layers for kernels of learning and acting."""
        layers, head = self.as_perceptron(), self.policy_head
        assert isinstance(layers, Perceptron), layers
        value, is_tanh = layers.value or layers.policy, layers.activation == "tanh"
        return Network(layers.policy, value, is_tanh, head.is_continuous, *head.bounds, self.log_std)

    def as_perceptron(self) -> Perceptron | str:
        """Return the layers for one-launch rollouts, or a reason."""
        if type(self) is not FullyConnected:
            return f"{type(self).__name__} overrides methods of FullyConnected, and may compute something else"
        trunks = [self.fc, *([self.value_fc] if self.has_value and self.value_fc is not None else [])]
        if obstacle := next((trunk.obstacle for trunk in trunks if trunk.obstacle), ""):
            return obstacle
        policy = (*self.fc.parameters(), self.policy_head.weight, self.policy_head.bias)
        value = (*trunks[-1].parameters(), self.vf_head.weight, self.vf_head.bias) if self.has_value else ()
        return Perceptron(policy, value, self.fc.activation, in_order=self.fc.exact is not None)

    def delete_value_head(self) -> None:
        """Delete the value head, and its trunk if separate."""
        del self.value_fc, self.vf_head


# ------------------------------------------------------------------ DDPG


class FullyConnectedActor(nn.Module):
    """Fully connected layers and a head that outputs continuous actions.

    Args:
        n_features: Size of a flattened observation.
        space: Box of actions.
        config: As in `FullyConnected`, as far as it applies.

    Raises:
        ConfigError: The actions are discrete.
    """

    def __init__(self, n_features: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__()
        what, rule = "model 'fully_connected_actor'", "its actions must be those of a Box, not choices"
        do = "use 'fully_connected' with A2C or PPO"
        require(space.is_continuous, what, rule, space.categories, do)
        self.fc = Trunk(n_features, config)
        self.policy_head = PolicyHead(self.fc.width, space, config)
        initialise(self, config.init_method)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the actions, ``(..., n_types)``."""
        return self.policy_head.bound(self.fc.head_outputs(observations, self.policy_head))

    act = forward


class FullyConnectedActionValueCritic(nn.Module):
    """Fully connected layers and a value head, on observations and actions.

    The two are concatenated.

    Args:
        n_features: Size of a flattened observation.
        space: Actions.
        config: As in `FullyConnected`, as far as it applies.
    """

    def __init__(self, n_features: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__()
        self.fc = Trunk(n_features + space.n_types, config, n_features)
        self.vf_head = nn.Linear(self.fc.width, 1)
        initialise(self, config.init_method)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the value ``(...)`` of actions ``(..., n_types)``."""
        return self.fc.head_outputs(torch.cat([observations, actions], -1), self.vf_head).squeeze(-1)


ModelFactory.add("fully_connected", FullyConnected)
ModelFactory.add("fully_connected_actor", FullyConnectedActor)
ModelFactory.add("fully_connected_action_value_critic", FullyConnectedActionValueCritic)
