"""Losses at their edges and without data; see also `test_actor_critic`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
    """Return float64 normals that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


# ------------------------------------------------------------------ discrete actions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_allowed_choice_is_certain(dtype):
    """A single allowed choice has log-probability and entropy 0.

    Gradients are 0 too, for any logits.
    """
    head = torch.tensor([[30.0, -80, 5]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[0, 1, 0]], dtype=torch.int32)
    both = losses.log_prob_and_entropy(ActionSpace((3,), 1), head, torch.tensor([[1]], dtype=torch.int32), mask)
    assert [value.tolist() for value in both] == [[0], [0]]
    assert all(value.dtype == torch.float32 for value in both)
    (gradient,) = torch.autograd.grad(sum(both), head)
    assert (gradient == 0).all()


def test_log_prob_and_entropy_are_the_samplers():
    """Log-probabilities and entropies equal the sampler's.

    Logits are unchanged; there are masks, and a type without choice.
    """
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


def test_continuous_actions_need_a_scale():
    """Continuous actions without log_std are refused."""
    with pytest.raises(ConfigError, match=r"needs a scale .got log_std=None.; pass the model's"):
        losses.log_prob_and_entropy(BOX, torch.zeros(1, 2), torch.zeros(1, 2))


# ------------------------------------------------------------------ spreads


@pytest.mark.parametrize("per_row", [False, True])
def test_normalise_of_chosen_environments_is_that_of_them_alone(per_row):
    """Normalisation ignores environments with weight 0."""
    x = double(*LEADING).detach()
    x[:, 1] = 1e3
    weights = torch.tensor([1.0, 0, 1], dtype=torch.float64)[None, :, None]
    want = losses.normalise(x[:, [0, 2]], per_row=per_row)
    assert_close(losses.normalise(x, weights, per_row=per_row)[:, [0, 2]], want)


@pytest.mark.parametrize("weights", [None, torch.ones(1, 1, 1)])
@pytest.mark.parametrize("per_row", [False, True])
def test_normalise_of_one_row_is_zero(per_row, weights):
    """Normalisation of equal values gives 0, not WarpDrive's NaN."""
    x = torch.full((1, 1, 1), 5.0)
    assert losses.normalise(x, weights, per_row=per_row).tolist() == [[[0.0]]]
    assert (losses.normalise(torch.full((3, 2, 1), 7.0), weights, per_row=per_row) == 0).all()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0, 1])[:, None]])
@pytest.mark.parametrize("per_row", [False, True])
def test_gradients_of_normalised_values(per_row, weights):
    """Gradients of normalised values equal finite differences.

    DDPG needs them; one row has gradient 0.
    """
    assert torch.autograd.gradcheck(lambda x: losses.normalise(x, weights, per_row=per_row), double(2, 3, 2))
    one = torch.tensor([[[3.0]]], requires_grad=True)
    gradient = torch.autograd.grad(losses.normalise(one, per_row=per_row).sum(), one)[0]
    assert gradient.item() == 0


def test_explained_variance_by_hand():
    """Explained variance equals that by hand.

    1 for the returns plus a constant, 0 for a constant, at least -1.
    """
    returns = torch.tensor([[1.0], [2.0], [4.0]])
    assert losses.explained_variance(returns + 3, returns).item() == pytest.approx(1)
    assert losses.explained_variance(torch.ones(3, 1), returns).item() == pytest.approx(0)
    assert losses.explained_variance(-5 * returns, returns).item() == -1
    assert losses.explained_variance(returns / 2, returns).item() == pytest.approx(0.75)
    weights = torch.tensor([[1.0], [1], [0]])
    values = torch.tensor([[1.0], [2.0], [99.0]])
    assert losses.explained_variance(values, returns, weights).item() == pytest.approx(1)


# ------------------------------------------------------------------ DDPG


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_warpdrive_returns_follow_the_rule(n):
    """WarpDrive's n-step returns follow its rule.

    Each row is checked for every window length; a flag of 2 is an end.
    """
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
    """Losses read no numbers on the host, for CUDA graphs.

    Tensors have no data here.
    """

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
