"""Models: what they compute, how they start, how users add their own, and WarpDrive's weights."""

from __future__ import annotations

import copy
import itertools
import math
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from warpdrive_min.errors import ConfigError, DataError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import Activation, ModelConfig
from warpdrive_min.training.models import (
    ActorCritic,
    FullyConnected,
    FullyConnectedActionValueCritic,
    FullyConnectedActor,
    ModelFactory,
    create_actor,
    create_actor_critic,
    create_critic,
    load_warpdrive_state_dict,
    to_warpdrive_state_dict,
)

N_FEATURES = 5
LEADING = (2, 3, 4)
DISCRETE = ActionSpace((3, 4), 2)
BOX = ActionSpace((), 2, (-2.0, -2.0), (2.0, 2.0))


def config(**given) -> ModelConfig:
    """Return the settings of a small model."""
    return ModelConfig(**({"fc_dims": (8, 6)} | given))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def factory(monkeypatch):
    """Give the table of models, which is as before when the test is over."""
    monkeypatch.setattr(ModelFactory, "_classes", dict(ModelFactory._classes))
    return ModelFactory


def observations(*leading: int) -> torch.Tensor:
    """Return random observations, (*leading, N_FEATURES)."""
    return torch.randn(*(leading or LEADING), N_FEATURES)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


# ------------------------------------------------------------------ what they compute


def test_fully_connected_computes_what_its_weights_say():
    """With one unit: hidden = max(0, 2 x - 1), logits = (hidden, -hidden), value = 3 hidden + 1."""
    model = FullyConnected(1, ActionSpace((2,), 1), config(fc_dims=(1,)))
    weights = {
        "fc.0.0.weight": [[2.0]],
        "fc.0.0.bias": [-1.0],
        "policy_head.weight": [[1.0], [-1.0]],
        "policy_head.bias": [0.0, 0.0],
        "vf_head.weight": [[3.0]],
        "vf_head.bias": [1.0],
    }
    model.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    head, value = model(torch.tensor([[2.0], [0.0]]))
    assert head.tolist() == [[3.0, -3.0], [0.0, 0.0]]
    assert value.tolist() == [10.0, 1.0]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("leading", [(7,), LEADING])
def test_act_and_value_are_the_parts_of_forward(space, shared, leading):
    """Each alone gives what both together give, for observations of any leading shape."""
    model, seen = FullyConnected(N_FEATURES, space, config(shared=shared)), observations(*leading)
    head, value = model(seen)
    assert head.shape == (*leading, space.n_outputs)
    assert value.shape == leading
    assert_close(model.act(seen), head)
    assert_close(model.value(seen), value)


def test_two_trunks_share_no_weight():
    """The gradient of the value stays out of the policy's trunk, and the other way round."""
    model = FullyConnected(N_FEATURES, DISCRETE, config(shared=False))
    head, value = model(observations())
    touched = {}
    for name, output in (("value", value), ("head", head)):
        gradients = torch.autograd.grad(output.sum(), list(model.parameters()), allow_unused=True)
        names = (name for name, _ in model.named_parameters())
        touched[name] = {
            key.split(".")[0] for key, gradient in zip(names, gradients, strict=True) if gradient is not None
        }
    assert touched == {"value": {"value_fc", "vf_head"}, "head": {"fc", "policy_head"}}


@pytest.mark.parametrize("name", get_args(Activation))
def test_activation_is_torchs(name):
    """Each activation that a config may name is torch's function of that name, after every layer of the trunk."""
    model, seen = FullyConnected(N_FEATURES, DISCRETE, config(activation=name)), observations()
    function, layers = getattr(functional, name, getattr(torch, name, None)), linears(model)
    hidden = function(layers["fc.1.0"](function(layers["fc.0.0"](seen))))
    assert_close(model.act(seen), layers["policy_head"](hidden))


@pytest.mark.parametrize("kind", [FullyConnected, FullyConnectedActor])
def test_head_of_a_box_is_bounded(kind):
    """It is output_w * tanh(x) + output_b: between 1 and 5 for a width of 2 around 3, and reaches both."""
    model = kind(N_FEATURES, BOX, config(output_w=2.0, output_b=3.0))
    hidden = model.fc(seen := observations())
    layer = model.policy_head
    assert_close(model.act(seen), 2 * torch.tanh(hidden @ layer.weight.T + layer.bias) + 3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([50.0, -50.0]))
    assert (model.act(seen) == torch.tensor([5.0, 1.0])).all()


def test_head_of_choices_is_not_bounded():
    """Logits are left as they are, whatever output_w says."""
    model = FullyConnected(N_FEATURES, DISCRETE, config(output_w=0.0))
    assert model.act(100 * observations()).abs().max() > 1


def test_log_std_is_a_parameter_a_buffer_or_none():
    """Learned it is a parameter, else a buffer that is saved too; discrete actions have none."""
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
    """Its input is both side by side, its output one value."""
    model = FullyConnectedActionValueCritic(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    seen, actions = observations(), torch.randn(*LEADING, 2)
    layers = linears(model)
    hidden = torch.relu(layers["fc.1.0"](torch.relu(layers["fc.0.0"](torch.cat([seen, actions], -1)))))
    got = model(seen, actions)
    assert got.shape == LEADING
    assert_close(got, layers["vf_head"](hidden).squeeze(-1))


def test_actor_of_choices_is_refused():
    """DDPG's actor gives the actions themselves, which choices are not."""
    with pytest.raises(ConfigError, match=r"must be those of a Box .got .3, 4. choices.; use 'fully_connected'"):
        FullyConnectedActor(N_FEATURES, DISCRETE, config())


def test_models_never_look_at_their_numbers():
    """Nothing is read on the host, so a CUDA graph can capture them: they run on tensors without any numbers."""
    seen = observations().to("meta")
    for space, shared in itertools.product((DISCRETE, BOX), (True, False)):
        model = FullyConnected(N_FEATURES, space, config(shared=shared)).to("meta")
        head, value = model(seen)
        assert (head.shape, value.shape) == ((*LEADING, space.n_outputs), LEADING)
    actions = FullyConnectedActor(N_FEATURES, BOX, config()).to("meta").act(seen)
    assert FullyConnectedActionValueCritic(N_FEATURES, BOX, config()).to("meta")(seen, actions).shape == LEADING


# ------------------------------------------------------------------ initial weights


def test_default_weights_are_torchs():
    """Uniform within 1 / sqrt(inputs), weights and biases."""
    for layer in linears(FullyConnected(400, DISCRETE, config(fc_dims=(300,)))).values():
        bound = layer.in_features**-0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert 0 < layer.bias.abs().max() <= bound


def test_xavier_weights_are_those_of_separate_heads():
    """Uniform within sqrt(6 / (inputs + outputs)), where the policy's outputs are those of one type; biases stay."""
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
    """W W^T is gain^2 times the identity: 2 in a trunk, 1e-4 in each type of the policy, 1 in the value; no bias."""
    model = FullyConnected(20, DISCRETE, config(fc_dims=(12, 8), shared=shared, init_method="orthogonal"))
    layers = linears(model)
    assert len(layers) == (4 if shared else 6)
    for name, layer in layers.items():
        square = {"policy_head": 1e-4, "vf_head": 1.0}.get(name, 2.0)
        for rows in layer.weight.split([3, 4] if name == "policy_head" else layer.out_features):
            assert_close(rows @ rows.T, square * torch.eye(len(rows)), rtol=0, atol=2e-6 * square)
        assert (layer.bias == 0).all()


# ------------------------------------------------------------------ models by name


class Bare(nn.Module):
    """A user's model with nothing but ``forward``."""

    def __init__(self, n_features, space, config):
        super().__init__()
        self.layer = nn.Linear(n_features, space.n_outputs + 1)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout()

    def forward(self, observations):
        outputs = self.dropout(self.layer(observations))
        if observations.dim() == 3:
            outputs = self.norm(outputs)
        return outputs[..., :-1], outputs[..., -1]


class Own(Bare):
    """A user's model that knows a shorter way to act."""

    def act(self, observations):
        return self.layer(observations)[..., :-1] + 1


def test_known_models_are_there():
    """The three of WarpDrive have their names; another one is refused with the list of them."""
    assert ModelFactory.create("fully_connected") is FullyConnected
    assert ModelFactory.create("fully_connected_actor") is FullyConnectedActor
    assert ModelFactory.create("fully_connected_action_value_critic") is FullyConnectedActionValueCritic
    with pytest.raises(ConfigError, match=r"unknown model .got 'lstm'.; known are fully_connected, .*ModelFactory.add"):
        create_actor_critic(N_FEATURES, DISCRETE, config(type="lstm"))


def test_class_is_added_under_a_new_name(factory):
    """A name is taken only once."""
    factory.add("bare", Bare)
    assert factory.create("bare") is Bare
    with pytest.raises(ConfigError, match="'bare': is there already; give it another name"):
        factory.add("bare", Bare)


def test_model_is_added_by_the_path_of_a_file(factory, tmp_path):
    """The file is imported and its class found by name, as WarpDrive's models are."""
    path = tmp_path / "my_model.py"
    path.write_text(
        "from warpdrive_min.training.models import FullyConnected\n\n\n"
        "class Twice(FullyConnected):\n"
        "    def value(self, observations):\n"
        "        return 2 * super().value(observations)\n"
    )
    factory.add("twice", str(path), "Twice")
    model = create_actor_critic(N_FEATURES, DISCRETE, config(type="twice"))
    seen = observations()
    assert_close(model.value(seen), 2 * model(seen)[1])
    assert_close(copy.deepcopy(model).value(seen), model.value(seen))


def test_model_is_added_by_the_name_of_a_module(factory):
    """A dotted name is imported."""
    factory.add("again", "warpdrive_min.training.models", "FullyConnected")
    assert factory.create("again") is FullyConnected


@pytest.mark.parametrize(
    ("path", "name", "match"),
    [
        ("nowhere/model.py", "Model", "there is no file nowhere/model.py"),
        ("no_such_package.model", "Model", "cannot import 'no_such_package.model' .*dotted name"),
        ("warpdrive_min.training.models", "Missing", "has no 'Missing'"),
        ("warpdrive_min.training.models", None, r"needs the name of its class .*object_name=None"),
        ("warpdrive_min.training.models", "create_actor", r"must be a class derived from torch.nn.Module"),
        (ActionSpace, None, "must be a class derived from torch.nn.Module"),
    ],
)
def test_model_that_is_not_there_is_refused(factory, path, name, match):
    """The error says what was looked for, when the model is added."""
    with pytest.raises(ConfigError, match=match):
        factory.add("mine", path, name)
    with pytest.raises(ConfigError, match="unknown model"):
        factory.create("mine")


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_bare_model_gets_the_rest(factory, space):
    """A module with ``forward`` alone acts and values by it, and has a log_std for a box."""
    factory.add("bare", Bare)
    model = create_actor_critic(N_FEATURES, space, config(type="bare", log_std_init=-1.0)).eval()
    assert isinstance(model, ActorCritic)
    seen = observations()
    head, value = model.module(seen)
    assert_close(model.act(seen), head)
    assert_close(model.value(seen), value)
    assert (None if model.log_std is None else model.log_std.tolist()) == (None if space is DISCRETE else [-1.0, -1.0])


def test_own_way_to_act_goes_first(factory):
    """What a module has is not replaced."""
    factory.add("own", Own)
    model, seen = create_actor_critic(N_FEATURES, DISCRETE, config(type="own")).eval(), observations()
    assert_close(model.act(seen), model.module.act(seen))
    assert_close(model.act(seen), model(seen)[0] + 1)


def test_trying_a_model_leaves_no_trace(factory):
    """Neither running statistics nor random numbers nor the mode change when its shapes are checked."""
    factory.add("bare", Bare)
    space = ActionSpace((2,), 1)
    torch.manual_seed(3)
    Bare(N_FEATURES, space, config())
    want = torch.rand(3)
    torch.manual_seed(3)
    model = create_actor_critic(N_FEATURES, space, config(type="bare"))
    assert torch.equal(torch.rand(3), want)
    assert model.module.training
    assert model.module.norm.num_batches_tracked == 0


def wrong(outputs):
    """Return a class of models whose outputs are those of a function of the observations."""

    class Wrong(nn.Module):
        def __init__(self, n_features, space, config):
            super().__init__()

        def forward(self, observations, *actions):
            return outputs(observations)

        act = forward

    return Wrong


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        (lambda x: x, r"'wrong': forward must return .head, value. .got Tensor"),
        (lambda x: (x, x, x), r"forward must return .head, value. .got 3"),
        (lambda x: (x, x[..., 0]), r"a head of shape \(2, 3, 7\) .*\(got \(2, 3, 5\)\)"),
        (lambda x: (x.new_zeros(2, 3, 7), x[..., :1]), r"a head of shape \(2, 3, 7\) .*got tuple"),
    ],
)
def test_model_of_the_wrong_shape_is_refused(factory, outputs, match):
    """The error names the model and both shapes."""
    factory.add("wrong", wrong(outputs))
    with pytest.raises(ConfigError, match=match):
        create_actor_critic(N_FEATURES, DISCRETE, config(type="wrong"))


def test_value_with_an_axis_too_many_is_refused(factory):
    """A value is (...), not (..., 1): it would broadcast against returns."""

    class Column(Bare):
        def forward(self, observations):
            head, value = super().forward(observations)
            return head, value[..., None]

    factory.add("column", Column)
    with pytest.raises(ConfigError, match=r"'column': must return a value of shape \(2, 3\) .*\(got \(2, 3, 1\)\)"):
        create_actor_critic(N_FEATURES, DISCRETE, config(type="column"))


def test_actor_and_critic_are_built_and_tried(factory):
    """DDPG's two models come by name; one that cannot act, or whose shape is wrong, is refused."""
    actor = create_actor(N_FEATURES, BOX, config(type="fully_connected_actor"))
    critic = create_critic(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    seen = observations()
    assert critic(seen, actor.act(seen)).shape == LEADING
    with pytest.raises(ConfigError, match=r"an actor needs act.observations. -> actions .got .*Critic.; add it"):
        create_actor(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    factory.add("wrong", wrong(lambda x: x))
    with pytest.raises(ConfigError, match=r"must return actions of shape \(2, 3, 2\)"):
        create_actor(N_FEATURES, BOX, config(type="wrong"))
    with pytest.raises(ConfigError, match=r"must return a value of shape \(2, 3\)"):
        create_critic(N_FEATURES, BOX, config(type="wrong"))


# ------------------------------------------------------------------ WarpDrive's weights


def warpdrive_weights(space: ActionSpace = DISCRETE) -> dict[str, torch.Tensor]:
    """Return random weights with WarpDrive's names, 5 -> 8 -> 6 and a head for each type."""
    layers = {"fc.0.0": (8, N_FEATURES), "fc.1.0": (6, 8)}
    heads = enumerate(space.categories)
    layers |= {"policy_head": (2, 6)} if space.is_continuous else {f"policy_head.{j}": (n, 6) for j, n in heads}
    layers["vf_head"] = (1, 6)
    weights = {f"{name}.weight": torch.randn(shape) for name, shape in layers.items()}
    return weights | {f"{name}.bias": torch.randn(shape[0]) for name, shape in layers.items()}


def layer(weights: dict[str, torch.Tensor], name: str, inputs: torch.Tensor) -> torch.Tensor:
    """Return one of WarpDrive's layers of its inputs."""
    return functional.linear(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"])


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_warpdrives_weights_give_warpdrives_outputs(space, prefix):
    """Each head says what WarpDrive's layer for its type says, also of weights saved by a distributed run."""
    weights, seen = warpdrive_weights(space), observations()
    model = FullyConnected(N_FEATURES, space, config(output_w=2.0))
    load_warpdrive_state_dict(model, {prefix + key: tensor for key, tensor in weights.items()})
    hidden = torch.relu(layer(weights, "fc.1.0", torch.relu(layer(weights, "fc.0.0", seen))))
    if space.is_continuous:
        want = 2 * torch.tanh(layer(weights, "policy_head", hidden))
    else:
        want = torch.cat([layer(weights, f"policy_head.{j}", hidden) for j in range(2)], -1)
    head, value = model(seen)
    assert_close(head, want)
    assert_close(value, layer(weights, "vf_head", hidden).squeeze(-1))


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_warpdrives_weights_make_the_round_trip(space):
    """What was loaded is given back under the same names, as copies; log_std is neither asked for nor given."""
    weights, model = warpdrive_weights(space), FullyConnected(N_FEATURES, space, config(log_std_init=-3.0))
    load_warpdrive_state_dict(model, weights)
    got = to_warpdrive_state_dict(model)
    assert got.keys() == weights.keys()
    assert all(torch.equal(got[key], weights[key]) for key in weights)
    got["fc.0.0.bias"].zero_()
    assert torch.equal(model.fc[0][0].bias, weights["fc.0.0.bias"])
    if space.is_continuous:
        assert model.log_std.tolist() == [-3.0, -3.0]


@pytest.mark.parametrize(
    ("build", "head"), [(FullyConnectedActor, "policy_head"), (FullyConnectedActionValueCritic, "vf_head")]
)
def test_weights_of_ddpgs_models_make_the_round_trip(build, head):
    """Actor and critic have WarpDrive's names too."""
    model, other = build(N_FEATURES, BOX, config()), build(N_FEATURES, BOX, config())
    state = to_warpdrive_state_dict(model)
    names = [f"{name}.{kind}" for name in ("fc.0.0", "fc.1.0", head) for kind in ("weight", "bias")]
    assert sorted(state) == sorted(names)
    load_warpdrive_state_dict(other, state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_weights_of_a_users_model_have_its_own_names(factory):
    """What was added to a module is not in the way of the state_dict that it was saved with."""
    factory.add("bare", Bare)
    model, saved = create_actor_critic(N_FEATURES, BOX, config(type="bare")), Bare(N_FEATURES, BOX, config())
    load_warpdrive_state_dict(model, saved.state_dict())
    assert torch.equal(model.module.layer.weight, saved.layer.weight)
    assert to_warpdrive_state_dict(model).keys() == saved.state_dict().keys()


def test_weights_are_loaded_in_place():
    """Parameters that are views of an optimiser's one vector stay so."""
    model = FullyConnected(N_FEATURES, DISCRETE, config())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    start = 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    weights = warpdrive_weights()
    load_warpdrive_state_dict(model, weights)
    assert_close(flat.sum(), sum(tensor.sum() for tensor in weights.values()))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda w: w.pop("fc.1.0.bias"), r"has no fc.1.0.bias; the model has fc.0.0.bias, "),
        (lambda w: w.pop("policy_head.1.weight"), r"has no policy_head.1.weight"),
        (lambda w: w.update({"fc.2.0.bias": torch.zeros(3)}), r"has too much: fc.2.0.bias"),
        (
            lambda w: w.update({"policy_head.1.weight": torch.zeros(3, 6)}),
            r"policy_head.1.weight must be of shape \(4, 6\) \(got \(3, 6\)\); the model must have the sizes",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, match):
    """The error names the key, and nothing was loaded."""
    weights, model = warpdrive_weights(), FullyConnected(N_FEATURES, DISCRETE, config())
    before = copy.deepcopy(model.state_dict())
    change(weights)
    with pytest.raises(DataError, match=match):
        load_warpdrive_state_dict(model, weights)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("convert", [to_warpdrive_state_dict, lambda model: load_warpdrive_state_dict(model, {})])
def test_two_trunks_have_no_place_in_warpdrives_weights(convert):
    """WarpDrive's models have one, so neither way is lossless."""
    with pytest.raises(ConfigError, match=r"share one trunk there .*set model.shared to true"):
        convert(FullyConnected(N_FEATURES, DISCRETE, config(shared=False)))
