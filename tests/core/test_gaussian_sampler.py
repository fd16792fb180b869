"""Gaussian policies: `CUDASampler.sample_gaussian`.

Its actions, log-probabilities and entropies.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.agreement import assert_same_bits
from tests.core.builders import sampler_of
from tests.support import is_simulated, on_every_backend, on_every_other_backend
from warpdrive_min import BACKENDS, capture


class Policy:
    """Sampler of continuous ``sampled_actions`` and a Gaussian policy's tensors.

    The mean and log_std of an agent and type are the same for every number of environments.
    """

    def __init__(self, backend: str, n_envs: int = 2, n_agents: int = 3, n_types: int = 3, seed: int = 0):
        self.data, self.sampler = sampler_of(backend, n_envs, n_agents, n_types, seed)
        generator, device = np.random.default_rng(0), self.data.device
        rows = generator.uniform(-1, 1, (2, n_agents, n_types)).astype(np.float32)
        self.mean = torch.from_numpy(rows[0]).to(device).expand(n_envs, -1, -1).contiguous()
        self.log_std = torch.from_numpy(rows[1]).to(device)
        self.log_prob, self.entropy = (torch.full((n_envs, n_agents), np.nan, device=device) for _ in range(2))

    def enqueue(self, **options: object) -> None:
        """Draw once, with log-probabilities and entropies."""
        self.sampler.sample_gaussian(
            self.data, self.mean, self.log_std, log_prob=self.log_prob, entropy=self.entropy, **options
        )

    def draw(self, n: int, **options: object) -> list[np.ndarray]:
        """Return actions, log-probabilities and entropies.

        Shapes: (n, n_envs, n_agents, n_types), and (n, n_envs, n_agents) for the other two.
        """
        draws = []
        for _ in range(n):
            self.enqueue(**options)
            draws.append((self.actions, self.log_prob.cpu().numpy().copy(), self.entropy.cpu().numpy().copy()))
        return [np.stack(each) for each in zip(*draws, strict=True)]

    def normals(self, n: int) -> np.ndarray:
        """Return the plain normals of `sample`, (n, n_envs, n_agents, n_types)."""
        draws = []
        for _ in range(n):
            self.sampler.sample(self.data, torch.zeros_like(self.mean), damping=1, stddev=1)
            draws.append(self.actions)
        return np.stack(draws)

    @property
    def actions(self) -> np.ndarray:
        """A copy of the actions."""
        return self.data.pull_data_from_device("sampled_actions")

    @property
    def n_draws(self) -> list[int]:
        """The counters of draws."""
        return self.data.pull_data_from_device("sampled_actions_draws").tolist()


# ------------------------------------------------------------------ actions


@on_every_backend
def test_action_is_the_mean_and_the_deviation_times_the_normals_of_sample(backend):
    """An action is mean plus deviation times normal.

    The normals are `sample`'s of the seed; each draw counts.
    """
    normals = Policy(backend, seed=3).normals(3).astype(np.float64)
    policy = Policy(backend, seed=3)
    actions, _, _ = policy.draw(3)
    want = policy.mean.cpu().double().numpy() + np.exp(policy.log_std.cpu().double().numpy()) * normals
    # exp is within 1 ulp, 1.2e-7 of it; a deviation is at most e and a normal 5.8.
    np.testing.assert_allclose(actions, want, rtol=5e-7, atol=1e-6)
    assert policy.n_draws == [3, 3]
    assert not policy.data.tensor("sampled_actions_ou_state").any()


@on_every_backend
def test_gaussian_and_other_draws_share_the_counter(backend):
    """Gaussian and other draws share the counter.

    With an Ornstein-Uhlenbeck and a uniform draw between, they are 0 and 3.
    """
    want = Policy(backend).draw(4)[0]
    policy = Policy(backend)
    first = policy.draw(1)[0]
    policy.normals(1)
    policy.sampler.sample_uniform(policy.data, -torch.ones_like(policy.log_std), torch.ones_like(policy.log_std))
    assert_same_bits(np.concatenate([first, policy.draw(1)[0]]), want[[0, 3]])


# ------------------------------------------------------------------ log-probabilities and entropies


@on_every_backend
def test_log_prob_and_entropy_are_those_of_torch(backend):
    """Log-probability and entropy equal torch's, summed over types."""
    policy = Policy(backend)
    actions, log_prob, entropy = (torch.from_numpy(each).double() for each in policy.draw(3))
    want = torch.distributions.Normal(policy.mean.cpu().double(), policy.log_std.cpu().double().exp())
    # Three terms of up to 5 with a few roundings of 6e-8 each, and the action's, over a deviation of 0.4.
    torch.testing.assert_close(log_prob, want.log_prob(actions).sum(-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, want.entropy().sum(-1).expand(3, -1, -1), rtol=0, atol=2e-6)
    assert log_prob.unique().numel() == log_prob.numel()


@on_every_backend
def test_argmax_is_the_mean_and_leaves_no_trace(backend):
    """Argmax gives the mean, and later draws are unaffected.

    Bit-identical, -0 too; the log-probability is -sum(log_std + log(2 pi) / 2).
    """
    want = Policy(backend).draw(2)[0]
    policy = Policy(backend)
    first = policy.draw(1)[0]
    mean, log_std = policy.mean.clone(), policy.log_std.clone()
    policy.mean.fill_(-0.0)
    policy.log_std.copy_(torch.tensor([0.0, 1.0, 100.0]))
    actions, log_prob, entropy = policy.draw(1, use_argmax=True)
    assert_same_bits(actions[0], policy.mean.cpu().numpy())
    np.testing.assert_allclose(log_prob, -(101 + 1.5 * math.log(2 * math.pi)), rtol=3e-7)
    np.testing.assert_allclose(entropy, 101 + 1.5 * math.log(2 * math.pi * math.e), rtol=3e-7)
    assert policy.n_draws == [1, 1]
    policy.mean.copy_(mean)
    policy.log_std.copy_(log_std)
    assert_same_bits(np.concatenate([first, policy.draw(1)[0]]), want)


@on_every_backend
def test_vanishing_deviation_is_the_mean_with_a_finite_log_prob(backend):
    """A vanishing deviation gives the mean and a finite log-probability.

    Below e^-87 the deviation is 0; the log-probability still follows the formula.
    """
    normals = Policy(backend).normals(1).astype(np.float64)
    policy = Policy(backend)
    policy.log_std.fill_(-100.0)
    actions, log_prob, _ = policy.draw(1)
    assert_same_bits(actions[0], policy.mean.cpu().numpy())
    want = (-0.5 * normals**2 + 100 - 0.5 * math.log(2 * math.pi)).sum(-1)
    np.testing.assert_allclose(log_prob, want, rtol=3e-7)
    assert policy.n_draws == [1, 1]


@on_every_backend
@pytest.mark.parametrize("asked", [(), ("log_prob",), ("entropy",)])
def test_what_is_not_asked_for_is_not_touched(backend, asked):
    """Only requested outputs are written, with the full call's values."""
    want = dict(zip(("actions", "log_prob", "entropy"), Policy(backend).draw(1), strict=True))
    policy = Policy(backend)
    targets = {name: getattr(policy, name) for name in asked}
    policy.sampler.sample_gaussian(policy.data, policy.mean, policy.log_std, **targets)
    assert_same_bits(policy.actions, want["actions"][0])
    for name in ("log_prob", "entropy"):
        got = getattr(policy, name).cpu().numpy()
        assert_same_bits(got, want[name][0] if name in asked else np.full_like(got, np.nan))


# ------------------------------------------------------------------ the same everywhere


@on_every_other_backend
@pytest.mark.parametrize(("n_agents", "n_types"), [(2, 1), (3, 2), (1, 5), (1100, 3)])
def test_gaussians_are_bit_identical_on_every_backend_and_for_any_number_of_environments(backend, n_agents, n_types):
    """Gaussian draws are bit-identical on every backend and size.

    Actions, log-probabilities, entropies; wrapped counts, more agents than threads.
    """
    if is_simulated(backend):
        n_agents = min(n_agents, 3)
    second = min(2**31 // n_types - 2, 2**31 - 4)
    ends = []
    for name, n_envs in ((backend, 2), ("cpu", 5)):
        policy = Policy(name, n_envs, n_agents, n_types, seed=(7 << 32) + 5)
        # The first counter is 2^32 - 1; with several types the word index soon passes 2^32.
        policy.data.tensor("sampled_actions_draws")[:2] = torch.tensor([-1, second])
        ends.append([each[:, :2] for each in policy.draw(3)])
        assert policy.n_draws[:2] == [2, second + 3]
    for got, want in zip(*ends, strict=True):
        assert_same_bits(got, want)
    actions, log_prob, _ = ends[0]
    assert len(np.unique(actions)) > 0.99 * actions.size
    assert np.isfinite(log_prob).all()


@on_every_backend
def test_tensors_with_gradients_are_read_like_others(backend):
    """Inputs with gradients work, and no output joins their graph."""
    want = Policy(backend).draw(1)
    policy = Policy(backend)
    policy.mean.requires_grad_()
    policy.log_std.requires_grad_()
    for got, each in zip(policy.draw(1), want, strict=True):
        assert_same_bits(got, each)
    policy.sampler.sample(policy.data, policy.mean, scale=0)
    filled = (policy.data.tensor("sampled_actions"), policy.log_prob, policy.entropy)
    assert not any(each.requires_grad for each in filled)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_replay_goes_on_drawing_and_follows_the_tensors(backend):
    """A captured draw is bit-identical to eager, with changing tensors."""
    ends = []
    for is_captured in (False, True):
        policy = Policy(backend, n_envs=300)
        policy.enqueue()
        policy.enqueue(use_argmax=True)
        run = capture(BACKENDS[backend], policy.enqueue) if is_captured else policy.enqueue
        seen = []
        for _ in range(4):
            policy.mean.add_(0.25)
            policy.log_std.sub_(0.5)
            run()
            torch.cuda.synchronize()
            seen.append(np.concatenate([policy.actions, policy.log_prob.cpu().numpy()[..., None]], axis=-1))
        ends.append(np.stack(seen))
        assert policy.n_draws == [5] * 300
    assert_same_bits(*ends)
    assert len(np.unique(ends[0][:, 0, 0, 0])) == 4
