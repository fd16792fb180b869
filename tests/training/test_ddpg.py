"""DDPG: losses, steps and targets against float64, and WarpDrive's rule."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest
import torch

from tests.training import builders
from tests.training.builders import make_buffer, refused
from warpdrive_min.dialect.learning import WarpDriveDDPG, n_step_returns
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.ddpg import DDPG
from warpdrive_min.training.config import ActorCriticConfig, ActorModelConfig, CriticModelConfig, PolicyConfig
from warpdrive_min.training.models.fully_connected import FullyConnectedActionValueCritic, FullyConnectedActor

SPACE = ActionSpace((), 1, (-1.0,), (1.0,))
TAU, GAMMA, LR = 0.25, 0.5, 0.1


class LinearActor(torch.nn.Module):
    """Actor with output ``weight * observation``."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([weight]))

    def act(self, observations):
        return observations * self.weight


class LinearCritic(torch.nn.Module):
    """Critic with value ``weights[0] * observation + weights[1] * action``."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))

    def forward(self, observations, actions):
        return (torch.cat([observations, actions], -1) * self.weights).sum(-1)


def settings(**changes):
    """Return a policy's settings."""
    given = {"gamma": GAMMA, "tau": TAU, "buffer_size": 100, "batch_size": 4, "clip_grad_norm": False, **changes}
    return PolicyConfig(algorithm="DDPG", model=ActorCriticConfig(), **given)


def make(kind, config, models, batch, n_step=1, rate=LR):
    """Return an algorithm with set rates that learns from the batch."""
    models = dict(zip(("actor", "critic"), models, strict=True))
    return builders.make_algorithm(kind, config, models, SPACE, batch, rate=rate, n_step=n_step)


def linear(batch, n_step=1, kind=DDPG, **changes):
    """Return an algorithm with a linear actor and critic.

    The actor has weight 1/2, the critic weights 1 and 3.
    """
    return make(kind, settings(**changes), (LinearActor(0.5), LinearCritic(1.0, 3.0)), batch, n_step)


warpdrive = functools.partial(linear, kind=WarpDriveDDPG)


def networks(batch, n_step=2, rate=1e-3, **changes):
    """Return DDPG with small networks."""
    torch.manual_seed(0)
    n_features = batch.observations.shape[-1]
    actor = FullyConnectedActor(n_features, SPACE, ActorModelConfig(fc_dims=(16,)))
    critic = FullyConnectedActionValueCritic(n_features, SPACE, CriticModelConfig(fc_dims=(16, 16)))
    models = (model.to(batch.rewards.device) for model in (actor, critic))
    config = settings(batch_size=32, **changes)
    return make(DDPG, config, models, batch, n_step, rate)


def one_transition():
    """Return a batch of one transition: (2, 1, 2, 4).

    These are observation, action, reward and next observation.
    """
    batch = make_buffer(1, 1, 1, n_types=1)
    batch.observations[:, 0, 0, 0] = torch.tensor([2.0, 4.0])
    batch.actions.fill_(1)
    batch.rewards.fill_(2)
    return batch


def play(batch, seed):
    """Fill a batch with random numbers and both kinds of ends."""
    generator = torch.Generator().manual_seed(seed)
    for array in (batch.observations, batch.actions, batch.rewards, batch.truncated_observations):
        array.copy_(torch.randn(array.shape, generator=generator))
    kind = torch.randint(5, batch.terminated.shape, generator=generator)
    batch.terminated.copy_(kind == 0)
    batch.truncated.copy_(kind == 1)


def everything(algorithm):
    """Return a copy of an algorithm's full state."""
    return {name: tensor.clone() for name, tensor in {**algorithm.state(), **algorithm.rank_state()}.items()}


# ------------------------------------------------------------------ one update


def test_updates_equal_float64():
    """Updates equal float64's: metrics and weights.

    Networks, several agents, clipping, Adam.
    """
    batch = make_buffer(4, 5, 2, n_truncated=4, n_features=3, n_types=1)
    algorithm = networks(batch, clip_grad_norm=True, max_grad_norm=0.1, updates_per_iteration=1)
    actor, critic = (copy.deepcopy(model).double() for model in (algorithm.actor, algorithm.critic))
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    adams = [torch.optim.Adam(model.parameters(), 1e-3, eps=1e-8) for model in (actor, critic)]

    def step(adam, loss, model):
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        adam.step()
        return norm.item()

    norms = []
    for seed in range(8):
        play(batch, seed)
        algorithm.iterate()
        rows = [array.double() for array in algorithm.replay._drawn]
        observations, actions, rewards, discounts, following = rows
        with torch.no_grad():
            next_q = target_critic(following, target_actor.act(following).clamp(-1, 1))
        q = critic(observations, actions)
        critic_loss = ((q - rewards - discounts * next_q) ** 2).mean()
        norms.append(step(adams[1], critic_loss, critic))
        actor_loss = -critic(observations, actor.act(observations)).mean()
        norms.append(step(adams[0], actor_loss, actor))
        for model, target in ((actor, target_actor), (critic, target_critic)):
            for online, slow in zip(model.parameters(), target.parameters(), strict=True):
                slow.data = (1 - TAU) * slow.data + TAU * online.data
        want = {"critic_loss": critic_loss, "actor_loss": actor_loss, "mean_q": q.mean(), "max_q": q.max()}
        want |= dict(zip(("gradient_norm_critic", "gradient_norm_actor"), norms[-2:], strict=True))
        want |= {"buffer_size": min(40 * (seed + 1), 100), "n_skipped_steps": 0}
        got = {name: tensor.item() for name, tensor in algorithm.metrics.items()}
        assert got == pytest.approx({name: torch.as_tensor(number).item() for name, number in want.items()}, rel=1e-4)
    assert max(norms) > 0.1, "gradients must have been shortened"
    for got, want in (
        (algorithm.actor, actor),
        (algorithm.critic, critic),
        (algorithm.target_actor.model, target_actor),
        (algorithm.target_critic.model, target_critic),
    ):
        for name, tensor in want.state_dict().items():
            np.testing.assert_allclose(got.state_dict()[name], tensor, atol=1e-5, err_msg=name)


def test_updates_per_iteration_are_that_many_steps():
    """Each of an iteration's updates samples again and moves both networks."""
    batch = make_buffer(4, 5, 1, n_truncated=4, n_features=2, n_types=1)
    play(batch, 0)
    algorithm = networks(batch, updates_per_iteration=3)
    algorithm.iterate()
    state = everything(algorithm)
    assert [state[f"{part}/step"].item() for part in ("actor", "critic")] == [3, 3]
    assert state["buffer/counter"].item() == 3


# ------------------------------------------------------------------ targets, waiting, state


def test_nothing_is_learnt_before_learning_starts():
    """Nothing is learned before the buffer has enough rows.

    Weights, moments and targets stay.
    """
    batch = make_buffer(4, 5, 1, n_truncated=4, n_features=2, n_types=1)
    algorithm = networks(batch, learning_starts=41)
    start = everything(algorithm)
    for rollout, want in enumerate((20, 40)):
        play(batch, rollout)
        algorithm.iterate()
        assert algorithm.metrics["buffer_size"].item() == want
        assert algorithm.metrics["gradient_norm_actor"].item() > 0, "there must be something to skip"
    now = everything(algorithm)
    for name in algorithm.state():
        assert torch.equal(now[name], start[name]), name
    algorithm.iterate()
    now = everything(algorithm)
    for name in algorithm.state().keys() - {"actor/n_skipped", "critic/n_skipped"}:
        assert not torch.equal(now[name], start[name]), name


# ------------------------------------------------------------------ settings that do not fit


def test_learning_must_start_before_the_buffer_is_full():
    """Learning must start within the buffer's size."""
    with refused("policy.p.learning_starts", 101):
        linear(one_transition(), learning_starts=101)


def test_returns_are_not_normalised():
    """DDPG refuses normalised returns.

    The critic's targets contain its own predictions, so their scale must stay.
    """
    with refused("policy.p.normalize_return", True):
        linear(one_transition(), normalize_return=True)


# ------------------------------------------------------------------ WarpDrive's rule


def two_rows():
    """Return a batch of two rows.

    Observations are 1 and 2, actions 0, and rewards 2 and 3.
    """
    batch = make_buffer(2, 1, 1, n_types=1)
    batch.observations[:, 0, 0, 0] = torch.tensor([1.0, 2.0, 9.0])
    batch.rewards[:, 0, 0] = torch.tensor([2.0, 3.0])
    return batch


def test_warpdrive_update_by_hand():
    """WarpDrive's update equals the one worked out by hand.

    Two rows, linear networks: the critic descends both losses at the old weights. The critic's values are 1 and 2.
    The target critic gives 2 + 3 * 1 = 5 for the second observation with the target actor's action. The targets are 2
    + 5/2 and, in the last row, 5. The errors -3.5 and -3 give the gradient (-3.5 * 1 - 3 * 2, 0). The actor's loss
    adds (-1.5, -0.75), the means of observations and actions. The actor's gradient is -3 * 1.5.
    """
    algorithm = warpdrive(two_rows())
    algorithm.iterate()
    got = {name: tensor.item() for name, tensor in algorithm.metrics.items()}
    assert got == pytest.approx(
        {
            "critic_loss": (3.5**2 + 3**2) / 2,
            "mean_q": 1.5,
            "max_q": 2.0,
            "actor_loss": -(2.5 + 5) / 2,
            "gradient_norm_critic": (11**2 + 0.75**2) ** 0.5,
            "gradient_norm_actor": 4.5,
            "n_skipped_steps": 0.0,
            "buffer_size": 2.0,
        }
    )
    assert algorithm.critic.weights.tolist() == pytest.approx([1.1, 3.1])
    assert algorithm.actor.weight.tolist() == pytest.approx([0.6])
    assert algorithm.target_actor.vector.tolist() == pytest.approx([0.525])


def test_warpdrive_waits_for_its_rows_and_keeps_the_latest():
    """WarpDrive's rule waits for its rows, and keeps the latest.

    With n steps, rollouts of 2, windows of 4: two updates only fill the 5 rows.
    """
    batch = two_rows()
    algorithm = warpdrive(batch, n_step=4)
    for rollout in range(4):
        batch.rewards[:, 0, 0] = torch.tensor([2.0, 3.0]) + 2 * rollout
        algorithm.iterate()
        assert algorithm.metrics["buffer_size"].item() == min(2 * rollout + 2, 5)
        assert (algorithm.critic.weights.tolist() == [1, 3]) == (rollout < 2)
        assert torch.equal(algorithm.target_critic.vector, torch.tensor([1.0, 3.0])) == (rollout < 2)
    assert algorithm.rank_state()["rows/rewards"].flatten().tolist() == [5, 6, 7, 8, 9]


def test_warpdrive_normalises_by_row():
    """Returns and values are scaled per step, as by `losses.normalise`."""
    batch = make_buffer(3, 4, 1, n_truncated=3, n_features=1, n_types=1)
    play(batch, 0)
    algorithm = warpdrive(batch, normalize_return=True)
    critic, following = algorithm.critic, batch.observations[1:3]
    with torch.no_grad():
        ends = (batch.terminated | batch.truncated)[..., None]
        next_q = critic(following, algorithm.actor.act(following))
        returns = n_step_returns(batch.rewards, ends, next_q, GAMMA, 1)
        q = critic(batch.observations[:-1], batch.actions)
        mean, std = returns.mean((1, 2), keepdim=True), returns.std((1, 2), keepdim=True)
        want = (q - (returns - mean) / std).square().mean().item()
    algorithm.iterate()
    assert algorithm.metrics["critic_loss"].item() == pytest.approx(want, rel=1e-5)
    assert algorithm.metrics["actor_loss"].item() == pytest.approx(0, abs=1e-6)


def test_warpdrive_needs_two_rows():
    """WarpDrive's rule needs two rows: the last has no successor."""
    with refused("policy.p", 1):
        warpdrive(one_transition())
