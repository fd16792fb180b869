"""WarpDrive's losses, checked by hand and against a transcription."""

from __future__ import annotations

import math

import pytest
import torch
from warp_drive.training.algorithms.policygradient.a2c import A2C
from warp_drive.training.algorithms.policygradient.ddpg import DDPG
from warp_drive.training.algorithms.policygradient.ppo import PPO

N_STEPS, N_ENVS, N_AGENTS = 5, 4, 3
CHOICES = (3, 2)


def column(*values: float) -> torch.Tensor:
    """Return one environment's numbers by step, (n_steps, 1, 1)."""
    return torch.tensor(values)[:, None, None]


def random_batch(seed: int) -> tuple[torch.Tensor, ...]:
    """Return random actions, rewards, flags, logits and values."""
    draw = torch.Generator().manual_seed(seed)
    rows = (N_STEPS, N_ENVS, N_AGENTS)
    actions = torch.stack([torch.randint(n, rows, generator=draw, dtype=torch.int32) for n in CHOICES], -1)
    dones = torch.randint(3, rows[:2], generator=draw, dtype=torch.int32)
    assert set(dones.unique().tolist()) == {0, 1, 2}
    rewards, values = torch.randn(2, *rows, generator=draw)
    logits = torch.randn(*rows, sum(CHOICES), generator=draw)
    return actions, rewards, dones, logits.requires_grad_(), values.requires_grad_()


def probabilities(logits: torch.Tensor) -> list[torch.Tensor]:
    return [each.softmax(-1) for each in torch.split(logits, CHOICES, -1)]


def transcribed_loss(
    batch: tuple[torch.Tensor, ...], gamma: float, vf_coeff: float, entropy_coeff: float, normal: bool
):
    """Return A2C's loss, transcribed number by number where possible."""
    actions, rewards, dones, logits, values = batch
    ends = (dones > 0).float()[..., None]
    returns = torch.zeros_like(rewards)
    returns[-1] = ends[-1] * rewards[-1] + (1 - ends[-1]) * values[-1].detach()
    for t in reversed(range(N_STEPS - 1)):
        returns[t] = rewards[t] + (1 - ends[t]) * gamma * returns[t + 1]

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row - row.mean()) / (row.std() + 1e-10) for row in x]) if normal else x

    returns = scaled(returns)
    advantages = scaled(returns - values.detach())
    log_prob = entropy = 0.0
    for index, part in enumerate(probabilities(logits)):
        log_prob = log_prob + part.log().gather(-1, actions[..., index : index + 1].long())[..., 0]
        entropy = entropy - (part * part.log()).sum(-1).mean()
    return (-log_prob * advantages).mean() + vf_coeff * ((values - returns) ** 2).mean() - entropy_coeff * entropy


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_loss_follows_from_the_golden_returns(algorithm):
    """The loss follows from golden returns by hand.

    Returns [2.8, 2.0, 0.7] give advantages [2.3, 1.4, 0]; a fair coin has entropy log 2.
    """
    loss, metrics = algorithm(0.9, vf_loss_coeff=0.5, entropy_coeff=[[0, 0.0], [10, 1.0]]).compute_loss_and_metrics(
        5,
        torch.zeros(3, 1, 1, 1, dtype=torch.int32),
        column(1.0, 2.0, 3.0),
        torch.tensor([[0], [1], [0]], dtype=torch.int32),
        [torch.full((3, 1, 1, 2), 0.5)],
        column(0.5, 0.6, 0.7),
        perform_logging=True,
    )
    policy_loss = math.log(2) * 3.7 / 3 if algorithm is A2C else -3.7 / 3  # a ratio of 1 times the advantage
    want = policy_loss + 0.5 * (2.3**2 + 1.4**2) / 3 - 0.5 * math.log(2)
    assert loss.item() == pytest.approx(want, abs=1e-6)
    assert metrics["Total loss"] == pytest.approx(want, abs=1e-6)
    assert metrics["Mean (discounted) returns"] == pytest.approx(5.5 / 3, abs=1e-6)
    assert metrics["Entropy coefficient"] == 0.5
    assert metrics["Max. rewards"] == 3.0


@pytest.mark.parametrize("normal", [False, True])
def test_loss_and_gradient_are_those_of_the_rule(normal):
    """A2C's loss and gradient equal the transcription's.

    PPO has A2C's gradient at a ratio of 1.
    """
    batch = random_batch(3)
    actions, rewards, dones, logits, values = batch
    settings = {"normalize_advantage": normal, "normalize_return": normal, "vf_loss_coeff": 0.7, "entropy_coeff": 0.2}
    want = transcribed_loss(batch, 0.9, 0.7, 0.2, normal)
    wanted = torch.autograd.grad(want, [logits, values], retain_graph=True)
    for algorithm in (A2C, PPO):
        loss, metrics = algorithm(0.9, **settings).compute_loss_and_metrics(
            0, actions, rewards, dones, probabilities(logits), values
        )
        assert metrics == {}
        got = torch.autograd.grad(loss, [logits, values])
        for each, expected in zip(got, wanted, strict=True):
            torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-6)
        if algorithm is A2C:
            assert loss.item() == pytest.approx(want.item(), abs=1e-6)


def test_environments_without_success_are_drawn_in_proportion():
    """Environments without success are sampled by the given ratio."""
    actions, rewards, _, logits, values = random_batch(4)
    dones = torch.zeros(N_STEPS, N_ENVS, dtype=torch.int32)
    dones[2, 1], dones[3, 0] = 2, 1
    torch.manual_seed(0)
    loss, metrics = A2C().compute_loss_and_metrics(
        0, actions, rewards, dones, probabilities(logits), values, True, negative_positive_ratio=2
    )
    assert (metrics["Num of Positive Sampled Envs"], metrics["Num of Negative Sampled Envs"]) == (1, 2)
    counts = torch.autograd.grad(loss, values)[0].abs().sum((0, 2)) > 0
    assert counts.sum() == 3
    assert counts[1]
    everyone, metrics = A2C().compute_loss_and_metrics(
        0, actions, rewards, dones, probabilities(logits), values, True, negative_positive_ratio=3
    )
    assert metrics["Num of Negative Sampled Envs"] == 3
    plain, _ = A2C().compute_loss_and_metrics(0, actions, rewards, dones, probabilities(logits), values)
    assert everyone.item() == plain.item()


def test_ddpg_losses_follow_from_the_golden_targets():
    """DDPG's losses follow from golden two-step targets.

    Targets [3.286, 4.7, 3.0], critic [3, 4, 5]; the actor's loss is mean -J.
    """
    q = column(3.0, 4.0, 5.0, 100.0).requires_grad_()
    j = column(1.0, 2.0, 3.0, 6.0).requires_grad_()
    actor_loss, critic_loss, metrics = DDPG(0.9, n_step=2).compute_loss_and_metrics(
        0,
        torch.tensor([-1.0, 0.0, 0.5, 2.0])[:, None, None, None],
        column(1.0, 2.0, 3.0, 4.0),
        torch.tensor([[0], [0], [1], [0]], dtype=torch.int32),
        q,
        column(0.5, 0.6, 0.7),
        j,
        perform_logging=True,
    )
    assert critic_loss.item() == pytest.approx((0.286**2 + 0.7**2 + 2.0**2) / 3, abs=1e-5)
    assert actor_loss.item() == -3.0
    assert metrics["Mean (discounted) returns"] == pytest.approx((3.286 + 4.7 + 3.0) / 3, abs=1e-5)
    assert (metrics["Mean J function"], metrics["Max of action_0"], metrics["Min of action_0"]) == (3.0, 2.0, -1.0)
    assert torch.autograd.grad(critic_loss, q)[0][-1].item() == 0  # the last row has no target
