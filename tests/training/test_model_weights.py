"""Weights of models as WarpDrive names them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from tests.training.models_support import BOX, DISCRETE, N_FEATURES, Bare, config, observations
from warpdrive_min.dialect.weights import load_warpdrive_state_dict, to_warpdrive_state_dict
from warpdrive_min.errors import CheckpointError, ConfigError, DataError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.build import load_weights
from warpdrive_min.training.models.fully_connected import (
    FullyConnected,
    FullyConnectedActionValueCritic,
    FullyConnectedActor,
    create_actor_critic,
)


def warpdrive_weights(space: ActionSpace = DISCRETE) -> dict[str, torch.Tensor]:
    """Return random weights with WarpDrive's names and sizes.

    Layers are 5 -> 8 -> 6, and a head per type.
    """
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
    """WarpDrive's weights give WarpDrive's outputs.

    Each head equals its layer for its type, also from a distributed run.
    """
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
    """WarpDrive's weights are loaded and returned unchanged.

    They return as copies with the same names; log_std is in neither.
    """
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
    """DDPG's weights are loaded and returned under WarpDrive's names."""
    model, other = build(N_FEATURES, BOX, config()), build(N_FEATURES, BOX, config())
    state = to_warpdrive_state_dict(model)
    names = [f"{name}.{kind}" for name in ("fc.0.0", "fc.1.0", head) for kind in ("weight", "bias")]
    assert sorted(state) == sorted(names)
    load_warpdrive_state_dict(other, state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_weights_of_a_users_model_have_its_own_names(factory):
    """A user's weights keep their names.

    Additions to a module do not affect its saved state_dict.
    """
    factory.add("bare", Bare)
    model, saved = create_actor_critic(N_FEATURES, BOX, config(type="bare")), Bare(N_FEATURES, BOX, config())
    load_warpdrive_state_dict(model, saved.state_dict())
    assert torch.equal(model.module.layer.weight, saved.layer.weight)
    assert to_warpdrive_state_dict(model).keys() == saved.state_dict().keys()


def test_weights_are_loaded_in_place():
    """Weights are loaded in place, also into an optimiser's vector."""
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
    """Weights that do not fit raise with the key, and load nothing."""
    weights, model = warpdrive_weights(), FullyConnected(N_FEATURES, DISCRETE, config())
    before = copy.deepcopy(model.state_dict())
    change(weights)
    with pytest.raises(DataError, match=match):
        load_warpdrive_state_dict(model, weights)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("convert", [to_warpdrive_state_dict, lambda model: load_warpdrive_state_dict(model, {})])
@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"shared": False}, r"share one trunk there; set model.shared to true"),
        ({"normalize_observations": True}, r"as they are there; set model.normalize_observations to false"),
    ],
)
def test_what_warpdrives_weights_have_no_place_for_is_refused(convert, setting, match):
    """Models that WarpDrive's weights do not describe are refused.

    Its models have one trunk and unscaled observations; another would differ.
    """
    with pytest.raises(ConfigError, match=match):
        convert(FullyConnected(N_FEATURES, DISCRETE, config(**setting)))


class Executed:
    """Object that leaves a trace when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return self.path.touch, ()


CONTENTS = {
    "code": Executed,
    **{str(each): lambda path, each=each: each for each in ([1, 2], {"a": 1}, b"", b"words", b"PK\x03\x04")},
    "number as a name": lambda path: {1: torch.ones(1)},
    "brackets": lambda path: b"[" * 200_000,
}
"""Contents that a file of weights must not have: an object, saved by torch and pickle, or bytes."""


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_of_weights_holds_tensors_alone(name, tmp_path):
    """A weights file may contain only tensors.

    Other content is refused in a line, and nothing runs.
    """
    file, trace = tmp_path / "weights.pt", tmp_path / "trace"
    content = CONTENTS[name](trace)
    writes = [lambda: torch.save(content, file), lambda: file.write_bytes(pickle.dumps(content, protocol=4))]
    for write in [lambda: file.write_bytes(content)] if isinstance(content, bytes) else writes:
        write()
        with pytest.raises(CheckpointError, match=r"weights .*: must be a state_dict of tensors alone \(got '\w+'\)"):
            load_weights(FullyConnected(N_FEATURES, DISCRETE, config()), str(file), "")
    assert not trace.exists()
