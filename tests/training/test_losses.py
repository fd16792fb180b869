"""Losses: values worked by hand, gradients against finite differences, and torch's distributions as the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal
from torch.testing import assert_close

from tests.support import managers, push
from warpdrive_min import CUDASampler
from warpdrive_min.dialect.learning import n_step_returns
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses

TWO_TYPES = ActionSpace((3, 4), 2)
BOX = ActionSpace((), 2, (-1.0, -1.0), (1.0, 1.0))
LEADING = (4, 3, 2)
"""Steps, environments, agents."""


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return float64 normals that gradients are asked of."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def choices(space: ActionSpace, *leading: int) -> torch.Tensor:
    """Return a choice of each type, (*leading, n_types) int32."""
    generator = torch.Generator().manual_seed(1)
    types = [torch.randint(n, leading, generator=generator) for n in space.categories]
    return torch.stack(types, -1).int()


def mask_around(space: ActionSpace, actions: torch.Tensor) -> torch.Tensor:
    """Return a mask that allows these actions and about half of the others, (*leading, n_outputs) int32."""
    mask = torch.rand(*actions.shape[:-1], space.n_outputs, generator=torch.Generator().manual_seed(2)) < 0.5
    starts = torch.tensor([0, *space.categories[:-1]]).cumsum(0)
    return mask.scatter(-1, actions + starts, True).int()


# ------------------------------------------------------------------ discrete actions


@pytest.mark.parametrize("space", [ActionSpace((5,), 1), TWO_TYPES], ids=["one type", "two types"])
@pytest.mark.parametrize("leading", [(), (6,), LEADING])
def test_log_prob_and_entropy_are_sums_over_types(space, leading):
    """Each type is a categorical distribution of its own part of the head, whatever axes come first."""
    head, actions = double(*leading, space.n_outputs), choices(space, *leading)
    types = [Categorical(logits=part) for part in torch.split(head, list(space.categories), -1)]
    want = sum(kind.log_prob(actions[..., j]) for j, kind in enumerate(types))
    log_prob, entropy = losses.log_prob_and_entropy(space, head, actions)
    assert log_prob.shape == entropy.shape == leading
    assert_close(log_prob, want)
    assert_close(entropy, sum(kind.entropy() for kind in types))


def test_masked_choices_are_as_if_they_were_not_there():
    """With a mask, a type is a categorical distribution over the allowed choices alone; the gradient of others is 0."""
    head, actions = double(5, 4), choices(ActionSpace((4,), 1), 5)
    mask = mask_around(ActionSpace((4,), 1), actions)
    log_prob, entropy = losses.log_prob_and_entropy(ActionSpace((4,), 1), head, actions, mask)
    for row in range(5):
        allowed = mask[row].nonzero().squeeze(-1)
        want = Categorical(logits=head[row, allowed])
        assert_close(log_prob[row], want.log_prob((allowed == actions[row]).nonzero().squeeze()))
        assert_close(entropy[row], want.entropy())
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), head)
    assert (gradient[mask == 0] == 0).all()
    assert (gradient[mask == 1] != 0).any()
    assert (mask == 0).any()


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_discrete_actions(masked):
    """Gradients of log-probability and entropy are those of finite differences, with and without a mask."""
    head, actions = double(3, 2, 7), choices(TWO_TYPES, 3, 2)
    mask = mask_around(TWO_TYPES, actions) if masked else None
    assert torch.autograd.gradcheck(lambda x: losses.log_prob_and_entropy(TWO_TYPES, x, actions, mask), head)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_allowed_choice_is_certain(dtype):
    """Its log-probability and the entropy are exactly 0, with gradients of 0, whatever the logits are."""
    head = torch.tensor([[30.0, -80, 5]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[0, 1, 0]], dtype=torch.int32)
    both = losses.log_prob_and_entropy(ActionSpace((3,), 1), head, torch.tensor([[1]], dtype=torch.int32), mask)
    assert [value.tolist() for value in both] == [[0], [0]]
    assert all(value.dtype == torch.float32 for value in both)
    (gradient,) = torch.autograd.grad(sum(both), head)
    assert (gradient == 0).all()


def test_log_prob_and_entropy_are_the_samplers():
    """What the loss says of unchanged logits is what the sampler said when it drew, masks and a shut type included."""
    n_envs, n_agents = 40, 3
    data, functions = managers("cpu", n_agents, n_envs)
    push(data, "sampled_actions", np.zeros((n_envs, n_agents, 2), np.int32))
    sampler = CUDASampler(functions)
    sampler.register_actions(data, "sampled_actions", TWO_TYPES.categories)
    sampler.init_random(0)
    head = 3 * double(n_envs, n_agents, 7).detach().float()
    mask = (torch.rand(head.shape, generator=torch.Generator().manual_seed(3)) < 0.4).int()
    mask[0, 0, :3] = 0
    assert (mask[..., 3:].sum(-1) > 1).any()
    want_log_prob, want_entropy = torch.zeros(2, n_envs, n_agents)
    sampler.sample(data, head, logits=True, mask=mask, log_prob=want_log_prob, entropy=want_entropy)
    log_prob, entropy = losses.log_prob_and_entropy(TWO_TYPES, head, data.tensor("sampled_actions"), mask)
    assert_close(log_prob, want_log_prob, rtol=0, atol=5e-6)
    assert_close(entropy, want_entropy, rtol=0, atol=5e-6)


# ------------------------------------------------------------------ continuous actions


def test_continuous_actions_are_independent_normals():
    """Each type is a normal around its mean with its own standard deviation."""
    mean, log_std, actions = double(*LEADING, 2), double(2, seed=1), double(*LEADING, 2, seed=2).detach()
    want = Normal(mean, log_std.exp())
    log_prob, entropy = losses.log_prob_and_entropy(BOX, mean, actions, log_std=log_std)
    assert log_prob.shape == entropy.shape == LEADING
    assert_close(log_prob, want.log_prob(actions).sum(-1))
    assert_close(entropy, want.entropy().sum(-1))
    assert torch.autograd.gradcheck(
        lambda m, s: losses.log_prob_and_entropy(BOX, m, actions, log_std=s), (mean, log_std)
    )


def test_continuous_actions_need_a_scale():
    """A mean alone is no distribution."""
    with pytest.raises(ConfigError, match=r"needs a scale .got log_std=None.; pass the model's"):
        losses.log_prob_and_entropy(BOX, torch.zeros(1, 2), torch.zeros(1, 2))


# ------------------------------------------------------------------ losses of policies and values


def test_clipped_surrogate_loss_by_hand():
    """With clip_param 0.25, a good action gains up to a ratio of 1.25, a bad one down to 0.75; worse is never cut."""
    ratio = torch.tensor([2.0, 2.0, 0.5, 0.5], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    log_ratio = ratio.log().requires_grad_()
    got = losses.clipped_surrogate_loss(log_ratio, advantages, 0.25)
    assert_close(got, torch.tensor([-1.25, 2.0, -0.5, 0.75], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(got.sum(), log_ratio)
    # d(-r A) / d(log r) = -r A where it is not clipped.
    assert_close(gradient, torch.tensor([0, 2.0, -0.5, 0], dtype=torch.float64))


def test_clipped_value_loss_takes_the_larger_error():
    """From 0 with clip 0.5 towards 1: a value of 1 counts as 0.5; one that moved by less, or away, as it is."""
    values = torch.tensor([1.0, 0.25, -2.0], requires_grad=True)
    got = losses.value_loss(values, torch.ones(3), old_values=torch.zeros(3), clip=0.5)
    assert got.tolist() == [0.25, 0.5625, 9.0]
    (gradient,) = torch.autograd.grad(got.sum(), values)
    assert gradient.tolist() == [0.0, -1.5, -6.0]


def test_approximate_kl_by_hand_and_never_negative():
    """A ratio of 2 gives 2 - 1 - log 2; 0 for an unchanged policy; its mean under the old policy is KL(old, new)."""
    log_ratio = torch.tensor([math.log(2), 0.0, -3.0], dtype=torch.float64)
    got = losses.approximate_kl(log_ratio)
    assert_close(got, torch.tensor([1 - math.log(2), 0, math.exp(-3) + 2], dtype=torch.float64))
    old, new = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    divergence = (old * (old / new).log()).sum()
    assert_close((old * losses.approximate_kl((new / old).log())).sum(), divergence)


# ------------------------------------------------------------------ spreads


def test_normalise_by_hand():
    """1, 2, 3 have mean 2 and unbiased spread 1; each row by itself gives the same for 1, 2, 3 and 10, 20, 30."""
    assert_close(losses.normalise(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0, 1]))
    rows = torch.tensor([[1.0, 2, 3], [10, 20, 30]])
    assert_close(losses.normalise(rows, per_row=True), torch.tensor([[-1.0, 0, 1], [-1, 0, 1]]))
    want = (rows - rows.mean()) / rows.std()
    assert_close(losses.normalise(rows), want)


@pytest.mark.parametrize("per_row", [False, True])
def test_normalise_of_chosen_environments_is_that_of_them_alone(per_row):
    """Environments with weight 0 change nothing about the others."""
    x = double(*LEADING).detach()
    x[:, 1] = 1e3
    weights = torch.tensor([1.0, 0, 1], dtype=torch.float64)[None, :, None]
    want = losses.normalise(x[:, [0, 2]], per_row=per_row)
    assert_close(losses.normalise(x, weights, per_row=per_row)[:, [0, 2]], want)


@pytest.mark.parametrize("weights", [None, torch.ones(1, 1, 1)])
@pytest.mark.parametrize("per_row", [False, True])
def test_normalise_of_one_row_is_zero(per_row, weights):
    """One value has no spread: it becomes 0, where WarpDrive's is NaN; so do equal values."""
    x = torch.full((1, 1, 1), 5.0)
    assert losses.normalise(x, weights, per_row=per_row).tolist() == [[[0.0]]]
    assert (losses.normalise(torch.full((3, 2, 1), 7.0), weights, per_row=per_row) == 0).all()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0, 1])[:, None]])
@pytest.mark.parametrize("per_row", [False, True])
def test_gradients_of_normalised_values(per_row, weights):
    """They are those of finite differences, as DDPG's normalised values need; one row alone has gradient 0."""
    assert torch.autograd.gradcheck(lambda x: losses.normalise(x, weights, per_row=per_row), double(2, 3, 2))
    one = torch.tensor([[[3.0]]], requires_grad=True)
    gradient = torch.autograd.grad(losses.normalise(one, per_row=per_row).sum(), one)[0]
    assert gradient.item() == 0


def test_explained_variance_by_hand():
    """1 for the returns themselves up to a constant, 0 for a constant, and never below -1."""
    returns = torch.tensor([[1.0], [2.0], [4.0]])
    assert losses.explained_variance(returns + 3, returns).item() == pytest.approx(1)
    assert losses.explained_variance(torch.ones(3, 1), returns).item() == pytest.approx(0)
    assert losses.explained_variance(-5 * returns, returns).item() == -1
    assert losses.explained_variance(returns / 2, returns).item() == pytest.approx(0.75)
    weights = torch.tensor([[1.0], [1], [0]])
    values = torch.tensor([[1.0], [2.0], [99.0]])
    assert losses.explained_variance(values, returns, weights).item() == pytest.approx(1)


# ------------------------------------------------------------------ DDPG


@pytest.mark.parametrize(
    ("terminated", "truncated", "reward_sum", "discount", "n_steps"),
    [
        ([0, 0, 0], [0, 0, 0], 1 + 0.5 * 2 + 0.25 * 4, 0.125, 3),
        ([0, 1, 0], [0, 0, 0], 1 + 0.5 * 2, 0, 2),
        ([0, 0, 0], [1, 0, 0], 1, 0.5, 1),
        ([0, 0, 1], [0, 0, 0], 1 + 0.5 * 2 + 0.25 * 4, 0, 3),
        ([0, 0, 1], [0, 1, 0], 1 + 0.5 * 2, 0.25, 2),
        ([1, 1, 0], [0, 0, 1], 1, 0, 1),
    ],
    ids=["no end", "terminated", "truncated", "terminated at last", "next episode terminated", "two ends"],
)
def test_window_stops_at_the_first_end(terminated, truncated, reward_sum, discount, n_steps):
    """Rewards 1, 2, 4 with gamma 0.5: what comes after an end is not counted, and only dynamics end the value."""
    rewards = torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1, 1).expand(3, 1, 2)
    flags = (torch.tensor(ends, dtype=torch.int32).reshape(3, 1, 1) for ends in (terminated, truncated))
    sums, discounts, steps = losses.n_step_sums(rewards, *flags, gamma=0.5)
    assert sums.tolist() == [[reward_sum, reward_sum]]
    assert discounts.tolist() == [[discount]]
    assert steps.tolist() == [[n_steps]]
    assert losses.n_step_targets(sums, discounts, torch.tensor([[10.0, 20]])).tolist() == [
        [reward_sum + 10 * discount, reward_sum + 20 * discount]
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_warpdrive_returns_follow_the_rule(n):
    """For every length of a window, the rule written out row by row; a done flag of 2 is an end like 1."""
    n_steps, gamma = 5, 0.8
    rewards, next_q = double(n_steps, 3, 2).detach(), double(n_steps - 1, 3, 2, seed=1).detach()
    dones = torch.tensor([[0, 0, 0], [0, 2, 0], [0, 0, 1], [1, 0, 0], [0, 0, 2]])
    got = n_step_returns(rewards, dones[..., None], next_q, gamma, n)
    assert got.shape == (n_steps - n + 1, 3, 2)
    for env in range(3):
        r, q = rewards[:, env], next_q[:, env]
        for start in range(n_steps - n + 1):
            k = start + n - 1
            if k < n_steps - 1:
                want = r[k] if dones[k, env] else r[k] + gamma * q[k]
            else:
                want = r[k] if dones[k, env] else q[k - 1]
            for m in range(k - 1, start - 1, -1):
                want = r[m] if dones[m, env] else r[m] + gamma * want
            assert_close(got[start, env], want)


# ------------------------------------------------------------------ graphs


def test_losses_never_look_at_their_numbers():
    """Nothing is read on the host, so a CUDA graph can capture them: they run on tensors without any numbers."""

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    rows, weights = meta(*LEADING), meta(1, 3, 1)
    head, actions, mask = (
        meta(*LEADING, width, dtype=kind) for width, kind in ((7, torch.float32), (2, torch.int32), (7, torch.int32))
    )
    head.requires_grad_()
    log_prob, entropy = losses.log_prob_and_entropy(TWO_TYPES, head, actions, mask)
    assert log_prob.shape == entropy.shape == LEADING
    gaussian, _ = losses.log_prob_and_entropy(BOX, meta(*LEADING, 2), meta(*LEADING, 2), log_std=meta(2))
    assert gaussian.shape == LEADING
    log_ratio = log_prob - rows
    terms = [
        losses.policy_gradient_loss(log_prob, rows),
        losses.clipped_surrogate_loss(log_ratio, rows, 0.2),
        losses.value_loss(rows, rows, rows, 0.2),
        losses.approximate_kl(log_ratio),
        losses.clip_fraction(log_ratio, 0.2),
        losses.normalise(rows, weights),
        losses.normalise(rows, per_row=True),
    ]
    assert all(term.shape == LEADING for term in terms)
    loss = sum(term.mean() for term in terms)
    loss = (
        loss + losses.explained_variance(rows, rows, weights) + losses.critic_loss(rows, rows) + losses.actor_loss(rows)
    )
    assert torch.autograd.grad(loss, head)[0].shape == head.shape
    flags = meta(4, 3, 1, dtype=torch.int32)
    assert losses.n_step_targets(*losses.n_step_sums(rows, flags, flags, 0.9)[:2], meta(3, 2)).shape == (3, 2)
    assert n_step_returns(rows, flags, meta(3, 3, 2), 0.9, 2).shape == (3, 3, 2)
