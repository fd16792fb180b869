"""Models by name, and those that users add."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.training.models_support import BOX, DISCRETE, LEADING, N_FEATURES, Bare, config, observations
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.models.fully_connected import (
    ActorCritic,
    FullyConnected,
    FullyConnectedActionValueCritic,
    FullyConnectedActor,
    create_actor,
    create_actor_critic,
    create_critic,
)
from warpdrive_min.training.models.parts import ModelFactory


class Own(Bare):
    """User's model with a shorter ``act``."""

    def act(self, observations):
        return self.layer(observations)[..., :-1] + 1


def test_known_models_are_there():
    """WarpDrive's three models are known; others raise with the list."""
    assert ModelFactory.create("fully_connected") is FullyConnected
    assert ModelFactory.create("fully_connected_actor") is FullyConnectedActor
    assert ModelFactory.create("fully_connected_action_value_critic") is FullyConnectedActionValueCritic
    with pytest.raises(ConfigError, match=r"unknown model .got 'lstm'.; known are fully_connected, .*ModelFactory.add"):
        create_actor_critic(N_FEATURES, DISCRETE, config(type="lstm"))


def test_class_is_added_under_a_new_name(factory):
    """A model's name can be added only once."""
    factory.add("bare", Bare)
    assert factory.create("bare") is Bare
    with pytest.raises(ConfigError, match="'bare': exists already; give it another name"):
        factory.add("bare", Bare)


def test_model_is_added_by_the_path_of_a_file(factory, tmp_path):
    """A model is added by file and class name.

    WarpDrive adds its models so.
    """
    path = tmp_path / "my_model.py"
    path.write_text(
        "from warpdrive_min.training.models.fully_connected import FullyConnected\n\n\n"
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
    """A model is added by the name of its module."""
    factory.add("again", "warpdrive_min.training.models.fully_connected", "FullyConnected")
    assert factory.create("again") is FullyConnected


@pytest.mark.parametrize(
    ("path", "name", "match"),
    [
        ("nowhere/model.py", "Model", "there is no file nowhere/model.py"),
        ("no_such_package.model", "Model", "cannot import 'no_such_package.model' .*dotted name"),
        ("warpdrive_min.training.models.fully_connected", "Missing", "has no 'Missing'"),
        ("warpdrive_min.training.models.fully_connected", None, r"needs the name of its class .*object_name=None"),
        (
            "warpdrive_min.training.models.fully_connected",
            "create_actor",
            r"must be a class derived from torch.nn.Module",
        ),
        (ActionSpace, None, "must be a class derived from torch.nn.Module"),
    ],
)
def test_model_that_is_not_there_is_refused(factory, path, name, match):
    """Registering a missing model raises with its name."""
    with pytest.raises(ConfigError, match=match):
        factory.add("mine", path, name)
    with pytest.raises(ConfigError, match="unknown model"):
        factory.create("mine")


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_bare_model_gets_the_rest(factory, space):
    """A model with only ``forward`` gets the missing methods.

    It acts, has values, and log_std for a box.
    """
    factory.add("bare", Bare)
    model = create_actor_critic(N_FEATURES, space, config(type="bare", log_std_init=-1.0)).eval()
    assert isinstance(model, ActorCritic)
    seen = observations()
    head, value = model.module(seen)
    assert_close(model.act(seen), head)
    assert_close(model.value(seen), value)
    assert (None if model.log_std is None else model.log_std.tolist()) == (None if space is DISCRETE else [-1.0, -1.0])


def test_own_way_to_act_goes_first(factory):
    """A user's own methods are not replaced."""
    factory.add("own", Own)
    model, seen = create_actor_critic(N_FEATURES, DISCRETE, config(type="own")).eval(), observations()
    assert_close(model.act(seen), model.module.act(seen))
    assert_close(model.act(seen), model(seen)[0] + 1)


def test_trying_a_model_leaves_no_trace(factory):
    """The shape check changes no statistics, random numbers or mode."""
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
    """Return a model class with the outputs of a function."""

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
        (lambda x: x, r"'wrong': forward must return .head, value. .got 'Tensor'"),
        (lambda x: (x, x, x), r"forward must return .head, value. .got 3"),
        (lambda x: (x, x[..., 0]), r"a head of shape \(2, 3, 7\) .*\(got \(2, 3, 5\)\)"),
        (lambda x: (x.new_zeros(2, 3, 7), x[..., :1]), r"a head of shape \(2, 3, 7\) .*got <class 'tuple'>"),
    ],
)
def test_model_of_the_wrong_shape_is_refused(factory, outputs, match):
    """The error names the model and both shapes."""
    factory.add("wrong", wrong(outputs))
    with pytest.raises(ConfigError, match=match):
        create_actor_critic(N_FEATURES, DISCRETE, config(type="wrong"))


def test_actor_and_critic_are_built_and_tried(factory):
    """DDPG's models are built by name; an unusable one is refused."""
    actor = create_actor(N_FEATURES, BOX, config(type="fully_connected_actor"))
    critic = create_critic(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    seen = observations()
    assert critic(seen, actor.act(seen)).shape == LEADING
    with pytest.raises(ConfigError, match=r"an actor needs act.observations. -> actions .got .*Critic'>.; add it"):
        create_actor(N_FEATURES, BOX, config(type="fully_connected_action_value_critic"))
    factory.add("wrong", wrong(lambda x: x))
    with pytest.raises(ConfigError, match=r"must return actions of shape \(2, 3, 2\)"):
        create_actor(N_FEATURES, BOX, config(type="wrong"))
    with pytest.raises(ConfigError, match=r"must return a value of shape \(2, 3\)"):
        create_critic(N_FEATURES, BOX, config(type="wrong"))
