"""Models: computation and initial weights."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from tests.training.models_support import BOX, DISCRETE, LEADING, N_FEATURES, config, linears, observations
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import Activation
from warpdrive_min.training.models.fully_connected import (
    FullyConnected,
    FullyConnectedActionValueCritic,
    FullyConnectedActor,
)

# ------------------------------------------------------------------ outputs


@pytest.mark.parametrize("name", get_args(Activation))
def test_activation_is_torchs(name):
    """Each named activation is torch's, after every layer of the trunk."""
    model, seen = FullyConnected(N_FEATURES, DISCRETE, config(activation=name)), observations()
    function, layers = getattr(functional, name, getattr(torch, name, None)), linears(model)
    hidden = function(layers["fc.1.0"](function(layers["fc.0.0"](seen))))
    assert_close(model.act(seen), layers["policy_head"](hidden))


@pytest.mark.parametrize("kind", [FullyConnected, FullyConnectedActor])
def test_head_of_a_box_is_bounded(kind):
    """A box's head is bounded by output_w and output_b.

    output_w * tanh(x) + output_b reaches 1 and 5 for a width of 2 around 3.
    """
    model = kind(N_FEATURES, BOX, config(output_w=2.0, output_b=3.0))
    hidden = model.fc(seen := observations())
    layer = model.policy_head
    assert_close(model.act(seen), 2 * torch.tanh(hidden @ layer.weight.T + layer.bias) + 3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([50.0, -50.0]))
    assert (model.act(seen) == torch.tensor([5.0, 1.0])).all()


def test_head_of_choices_is_not_bounded():
    """Logits are not bounded, whatever output_w says."""
    model = FullyConnected(N_FEATURES, DISCRETE, config(output_w=0.0))
    assert model.act(100 * observations()).abs().max() > 1


def test_log_std_is_a_parameter_a_buffer_or_none():
    """A learned log_std is a parameter, else a buffer.

    Discrete actions have none.
    """
    learned = FullyConnected(N_FEATURES, BOX, config(log_std_init=-0.5))
    assert "log_std" in dict(learned.named_parameters())
    fixed = FullyConnected(N_FEATURES, BOX, config(log_std_init=-0.5, learn_log_std=False))
    assert "log_std" in dict(fixed.named_buffers())
    for model in (learned, fixed):
        assert model.log_std.tolist() == [-0.5, -0.5]
        assert "log_std" in model.state_dict()
    for learns in (True, False):
        model = FullyConnected(N_FEATURES, DISCRETE, config(learn_log_std=learns))
        assert model.log_std is None
        assert "log_std" not in model.state_dict()


def test_critic_sees_observations_and_then_actions():
    """A critic reads observations and actions, and returns one value."""
    model = FullyConnectedActionValueCritic(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    seen, actions = observations(), torch.randn(*LEADING, 2)
    layers = linears(model)
    hidden = torch.relu(layers["fc.1.0"](torch.relu(layers["fc.0.0"](torch.cat([seen, actions], -1)))))
    got = model(seen, actions)
    assert got.shape == LEADING
    assert_close(got, layers["vf_head"](hidden).squeeze(-1))


def test_actor_of_choices_is_refused():
    """DDPG's actor refuses choices: it returns the actions themselves."""
    with pytest.raises(ConfigError, match=r"must be those of a Box, not choices .got .3, 4..; use 'fully_connected'"):
        FullyConnectedActor(N_FEATURES, DISCRETE, config())


def test_models_never_look_at_their_numbers():
    """Models read no numbers on the host, for CUDA graphs.

    Tensors have no data here.
    """
    seen = observations().to("meta")
    for space, shared in itertools.product((DISCRETE, BOX), (True, False)):
        model = FullyConnected(N_FEATURES, space, config(shared=shared)).to("meta")
        head, value = model(seen)
        assert (head.shape, value.shape) == ((*LEADING, space.n_outputs), LEADING)
    actions = FullyConnectedActor(N_FEATURES, BOX, config()).to("meta").act(seen)
    assert FullyConnectedActionValueCritic(N_FEATURES, BOX, config()).to("meta")(seen, actions).shape == LEADING


# ------------------------------------------------------------------ initial weights


def test_default_weights_are_torchs():
    """Default weights are torch's: uniform within 1 / sqrt(inputs)."""
    for layer in linears(FullyConnected(400, DISCRETE, config(fc_dims=(300,)))).values():
        bound = layer.in_features**-0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert 0 < layer.bias.abs().max() <= bound


def test_xavier_weights_are_those_of_separate_heads():
    """Xavier weights are those of a head per type.

    Uniform within sqrt(6 / (inputs + outputs)), outputs of one type; biases stay.
    """
    space = ActionSpace((2, 200), 2)
    layers = linears(FullyConnected(400, space, config(fc_dims=(300,), init_method="xavier")))
    weights = {name: layer.weight for name, layer in layers.items() if name != "policy_head"}
    weights["first"], weights["second"] = layers["policy_head"].weight.split([2, 200])
    assert [len(weight) for weight in weights.values()] == [300, 1, 2, 200]
    for weight in weights.values():
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.95 * bound < weight.abs().max() <= bound
        assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.15)
    torch.manual_seed(1)
    plain = FullyConnected(400, space, config(fc_dims=(300,)))
    torch.manual_seed(1)
    xavier = FullyConnected(400, space, config(fc_dims=(300,), init_method="xavier"))
    for name, layer in linears(xavier).items():
        assert torch.equal(layer.bias, linears(plain)[name].bias)


@pytest.mark.parametrize("shared", [True, False])
def test_orthogonal_weights_have_the_gains_of_their_layers(shared):
    """Orthogonal weights have their layers' gains.

    W W^T = gain^2 I: 2 in a trunk, 1e-4 in the policy, 1 in the value.
    """
    model = FullyConnected(20, DISCRETE, config(fc_dims=(12, 8), shared=shared, init_method="orthogonal"))
    layers = linears(model)
    assert len(layers) == (4 if shared else 6)
    for name, layer in layers.items():
        square = {"policy_head": 1e-4, "vf_head": 1.0}.get(name, 2.0)
        for rows in layer.weight.split([3, 4] if name == "policy_head" else layer.out_features):
            assert_close(rows @ rows.T, square * torch.eye(len(rows)), rtol=0, atol=2e-6 * square)
        assert (layer.bias == 0).all()
