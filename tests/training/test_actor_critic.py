"""A2C and PPO: one update against float64, and its rows."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
import torch

from tests.support import by_night
from tests.training import builders
from tests.training.builders import (
    COEFFICIENTS,
    SEED,
    distributions,
    log_prob_and_entropy,
    make_buffer,
    need_interpreter,
)
from tests.training.test_returns import in_float64
from warpdrive_min.dialect.learning import WarpDriveA2C, WarpDrivePPO
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import actor_critic
from warpdrive_min.training.algorithms.actor_critic import A2C, PPO
from warpdrive_min.training.algorithms.shuffle import Shuffle
from warpdrive_min.training.config import ModelConfig, PolicyConfig
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.models.fully_connected import create_actor_critic
from warpdrive_min.training.models.parts import trunks_and_heads
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.table import PATHS

KINDS = {"A2C": A2C, "PPO": PPO}
WARPDRIVE_KINDS = {"A2C": WarpDriveA2C, "PPO": WarpDrivePPO}
DISCRETE = ActionSpace((3, 2), 2)
BOX = ActionSpace((), 2, (-1.0, -1.0), (1.0, 1.0))
T, E, N, F = 6, 4, 3, 5


# ------------------------------------------------------------------ batches and models


def make_model(space, seed=0, **given):
    """Return a small smooth network."""
    torch.manual_seed(seed)
    return create_actor_critic(
        F, space, ModelConfig(**{"fc_dims": (8,), "activation": "tanh", "log_std_init": -0.3, **given})
    )


def make_batch(space, model, *, is_masked=False, drift=0.0, seed=0, n_envs=E):
    """Return a random rollout, with both kinds of ends.

    ``model`` acted, with log-probabilities off by ``drift``.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    observations = noise(T + 1, n_envs, N, F)
    masks = None
    if is_masked:
        masks = (torch.rand(T + 1, n_envs, N, space.n_outputs, generator=generator) < 0.6).int()
        masks[..., 0] = masks[..., 3] = 1  # something is allowed of each type
    kind = torch.randint(5, (T, n_envs), generator=generator)
    kind[1, 0], kind[3, 0], kind[2, 1] = 1, 1, 0
    with torch.no_grad():
        head = model.act(observations[:-1])
        allowed = None if masks is None else masks[:-1]
        torch.manual_seed(seed)
        log_std = getattr(model, "log_std", None)
        drawn = [each.sample() for each in distributions(space, head, allowed, log_std)]
        actions = torch.stack(drawn, -1)
        log_probs, _ = log_prob_and_entropy(space, head, actions, allowed, log_std)
    return RolloutBuffer(
        observations=observations,
        masks=masks,
        actions=actions if space.is_continuous else actions.int(),
        log_probs=log_probs + drift * noise(T, n_envs, N),
        rewards=noise(T, n_envs, N),
        terminated=(kind == 0).int(),
        truncated=(kind == 1).int(),
        successes=torch.zeros(T, n_envs, dtype=torch.int32),
        truncated_observations=noise(T, n_envs, N, F),
    )


def make_algorithm(kind, batch, model, space=DISCRETE, *, trainer=None, **policy):
    """Return an algorithm with scheduled values; ``iterate()`` learns from the batch."""
    settings = PolicyConfig(to_train=True, algorithm=kind, **{"clip_grad_norm": False, "gamma": 0.9, **policy})
    kinds = WARPDRIVE_KINDS if (trainer or {}).get("compat") else KINDS
    return builders.make_algorithm(kinds[kind], settings, {"model": model}, space, batch, **(trainer or {}))


def numbers(algorithm):
    """Return the metrics as floats."""
    return {name: tensor.item() for name, tensor in algorithm.metrics.items()}


# ------------------------------------------------------------------ the same in plain float64


def plain_returns(batch, values, cut_values, gamma, lam):
    """Return advantages and returns by the definition."""
    arrays = {name: getattr(batch, name).numpy() for name in ("rewards", "terminated", "truncated")}
    arrays |= {"values": values[:-1].numpy(), "last_values": values[-1].numpy(), "cut_values": cut_values.numpy()}
    return map(torch.from_numpy, in_float64(arrays, gamma, lam))


def warpdrive_returns(batch, values, gamma):
    """Return WarpDrive's advantages and returns.

    Every end counts, the last value replaces the last reward.
    """
    ends = (batch.terminated | batch.truncated)[..., None].double()
    returns = torch.zeros_like(batch.rewards)
    returns[-1] = ends[-1] * batch.rewards[-1] + (1 - ends[-1]) * values[T - 1]
    for t in reversed(range(T - 1)):
        returns[t] = batch.rewards[t] + (1 - ends[t]) * gamma * returns[t + 1]
    return returns - values[:-1], returns


def normalised(x, per_row=False):
    """Return ``(x - mean) / std``, per step or over all."""
    dims = (1, 2) if per_row else (0, 1, 2)
    return (x - x.mean(dims, keepdim=True)) / x.std(dims, keepdim=True)


def plain_update(kind, settings, model, batch, space, *, compat=False):
    """Update a float64 model by the papers' formulas.

    Returns metrics, the last gradient, and the number of steps.
    """
    names = ("observations", "rewards", "log_probs", "truncated_observations")
    doubles = {name: getattr(batch, name).double() for name in names}
    batch = replace(batch, **doubles, actions=batch.actions.double() if space.is_continuous else batch.actions)
    with torch.no_grad():
        values, cut_values = model.value(batch.observations), model.value(batch.truncated_observations)
    lam = settings.gae_lambda if settings.gae_lambda is not None else {"A2C": 1.0, "PPO": 0.95}[kind]
    if compat:
        advantages, returns = warpdrive_returns(batch, values, settings.gamma)
    else:
        advantages, returns = plain_returns(batch, values, cut_values, settings.gamma, lam)
    if settings.normalize_return:
        returns = normalised(returns, compat)
        advantages = returns - values[:-1]
    is_ppo = kind == "PPO" and not compat
    n_epochs, n_parts = (settings.n_epochs, settings.n_minibatches) if is_ppo else (1, 1)
    order = Shuffle("cpu", T * E, SEED)
    adam = torch.optim.Adam(model.parameters(), COEFFICIENTS["lr"], eps=settings.adam_eps)
    n_taken, gradient, metrics, is_stopped = 0, None, {}, False
    for _ in range(n_epochs):
        order.permute()
        rows = order.indices.long().clone() if n_parts > 1 else torch.arange(T * E)
        for part in rows.chunk(n_parts):

            def of(array, part=part):
                return array[:T].flatten(0, 1)[part]

            advantage = of(advantages)
            if settings.normalize_advantage:
                advantage = of(normalised(advantages, True)) if compat else normalised(advantage[None])[0]
            masks = None if batch.masks is None else of(batch.masks)
            head, value = model(of(batch.observations))
            log_std = getattr(model, "log_std", None)
            log_prob, entropy = log_prob_and_entropy(space, head, of(batch.actions), masks, log_std)
            ratio = (log_prob - of(batch.log_probs)).exp()
            if kind == "A2C":
                policy_loss = -(log_prob * advantage).mean()
            else:
                bounded = ratio.clamp(1 - settings.clip_param, 1 + settings.clip_param)
                policy_loss = -torch.minimum(ratio * advantage, bounded * advantage).mean()
            error = (value - of(returns)) ** 2
            if kind == "PPO" and settings.value_clip is not None:
                moved = (value - of(values)).clamp(-settings.value_clip, settings.value_clip)
                error = torch.maximum(error, (of(values) + moved - of(returns)) ** 2)
            loss = policy_loss + 0.3 * error.mean() - 0.05 * entropy.mean()
            kl = (ratio - 1 - ratio.log()).mean().item()
            metrics = {
                "loss": loss.item(),
                "policy_loss": policy_loss.item(),
                "value_loss": error.mean().item(),
                "entropy": entropy.mean().item(),
                "approximate_kl": kl,
                "clip_fraction": ((ratio - 1).abs() > settings.clip_param).double().mean().item(),
                "mean_value": values[:-1].mean().item(),
                "mean_advantage": advantages.mean().item(),
                "mean_discounted_return": returns.mean().item(),
                "explained_variance": max(-1, 1 - ((returns - values[:-1]).var() / returns.var()).item()),
            }
            is_stopped |= settings.target_kl is not None and kl > 1.5 * settings.target_kl
            if not is_stopped:
                adam.zero_grad()
                loss.backward()
                norm = settings.max_grad_norm if settings.clip_grad_norm else torch.inf
                metrics["gradient_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), norm).item()
                gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
                adam.step()
                n_taken += 1
    return metrics, gradient, n_taken


CASES = {
    "A2C": ("A2C", DISCRETE, {}),
    "A2C, lambda": ("A2C", DISCRETE, {"gae_lambda": 0.8}),
    "A2C, normalised": ("A2C", DISCRETE, {"normalize_advantage": True, "normalize_return": True}),
    "A2C, masked": ("A2C", DISCRETE, {"is_masked": True}),
    "A2C, Gaussian": ("A2C", BOX, {}),
    "A2C, short gradients": ("A2C", DISCRETE, {"clip_grad_norm": True, "max_grad_norm": 0.05}),
    "A2C, WarpDrive": ("A2C", DISCRETE, {"compat": True}),
    "A2C, WarpDrive, normalised": (
        "A2C",
        DISCRETE,
        {"compat": True, "normalize_advantage": True, "normalize_return": True},
    ),
    "PPO, WarpDrive": ("PPO", DISCRETE, {"compat": True, "n_epochs": 5, "n_minibatches": 5}),
    "PPO, one step": ("PPO", DISCRETE, {"n_epochs": 1, "n_minibatches": 1}),
    "PPO": ("PPO", DISCRETE, {"n_epochs": 3, "n_minibatches": 4}),
    "PPO, normalised": ("PPO", DISCRETE, {"n_minibatches": 3, "normalize_advantage": True, "normalize_return": True}),
    "PPO, masked": ("PPO", DISCRETE, {"is_masked": True, "n_epochs": 2, "n_minibatches": 2}),
    "PPO, Gaussian": ("PPO", BOX, {"n_epochs": 3, "n_minibatches": 2}),
    "PPO, value clip": ("PPO", DISCRETE, {"value_clip": 0.05, "n_epochs": 3, "n_minibatches": 2}),
    "PPO, target KL": ("PPO", DISCRETE, {"target_kl": 0.02, "n_epochs": 8, "n_minibatches": 2, "drift": 0.05}),
    "PPO, short gradients": ("PPO", BOX, {"clip_grad_norm": True, "max_grad_norm": 0.1}),
}


WAYS = {
    "whole": ({}, None),
    "in parts": ({}, 7),
    "in one kernel": ({"fc_dims": (8, 20)}, None),
    "in one kernel, separate": ({"fc_dims": (19, 8), "shared": False, "output_w": 0.7, "output_b": 0.1}, None),
    "in one kernel, relu": ({"fc_dims": (16, 8), "activation": "relu"}, None),
    "in one pass": ({"fc_dims": (8, 20)}, None),
    "in one pass, separate": ({"fc_dims": (19, 8), "shared": False}, None),
}
"""Networks, and numbers of rows per pass."""
BY_DAY = {
    **dict.fromkeys(("whole", "in one kernel"), CASES),
    "in one pass": ("A2C, masked", "A2C, WarpDrive", "PPO, Gaussian", "PPO, value clip", "PPO, target KL"),
    "in one pass, separate": ("A2C",),
}
"""Cases of each way; the others are nightly."""


@pytest.mark.parametrize(
    ("case", "way"),
    [(case, way) if case in BY_DAY.get(way, ()) else by_night(case, way) for way in WAYS for case in CASES],
)
def test_update_equals_plain_float64(case, way, monkeypatch):
    """One update equals the formulas in float64.

    Metrics, last gradient and all weights, at once or in parts.
    """
    network, max_rows = WAYS[way]
    kind, space, given = CASES[case]
    given, in_one_pass = dict(given), "pass" in way
    if in_one_pass:
        pytest.importorskip("triton")
        need_interpreter()
        monkeypatch.setattr(available, "why_no_cpp", lambda: "needs a C++ compiler")
        monkeypatch.setattr(available, "why_no_triton", lambda device: None)
        monkeypatch.setitem(PATHS, "Adam", PATHS["Adam"][-1:])  # torch's leaves the clipped gradient
    compat, is_masked, drift = given.pop("compat", False), given.pop("is_masked", False), given.pop("drift", 0.3)
    model = make_model(space, **network)
    batch = make_batch(space, model, is_masked=is_masked, drift=drift)
    want_model = copy.deepcopy(model).double()
    for trunk in trunks_and_heads(want_model)[0]:
        trunk.fused = False
    trainer = {"compat": "warpdrive" if compat else None, "max_rows": max_rows}
    algorithm = make_algorithm(kind, batch, model, space, trainer=trainer, **given)
    assert (algorithm._learning is not None) == ("kernel" in way or (in_one_pass and not space.is_continuous))
    want, gradient, n_taken = plain_update(kind, algorithm.config, want_model, batch, space, compat=compat)
    algorithm.iterate()
    got = numbers(algorithm)
    n_steps = algorithm.n_epochs * algorithm.n_minibatches
    assert algorithm.optimiser.state()["step"].item() == n_taken
    if algorithm.config.target_kl is None:
        assert n_taken == n_steps
        torch.testing.assert_close(algorithm.optimiser.gradient.double(), gradient, rtol=1e-4, atol=1e-5)
    else:
        assert 1 < n_taken < n_steps, "it must stop on the way"
        want.pop("gradient_norm", None)
    for name, number in want.items():
        assert got[name] == pytest.approx(number, rel=2e-4, abs=2e-5), name
    for name, tensor in want_model.state_dict().items():
        # Adam's steps have the size of the rate for any gradient, so rounding of a tiny gradient matters.
        torch.testing.assert_close(model.state_dict()[name].double(), tensor, rtol=0, atol=2e-5)
    if case == "PPO":
        assert got["clip_fraction"] > 0


# ------------------------------------------------------------------ WarpDrive's rule


class Known(torch.nn.Module):
    """Model whose value is an observation's first entry."""

    def __init__(self, n_outputs=5):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(n_outputs))

    def act(self, observations):
        return self.logits.expand(*observations.shape[:-1], -1)

    def value(self, observations):
        return observations[..., 0] + 0 * self.logits.sum()

    def forward(self, observations):
        return self.act(observations), self.value(observations)


def known_batch(values, rewards, n_envs=1):
    """Return a one-agent batch; ``values`` (n_steps + 1) are `Known`'s."""
    batch = make_buffer(len(rewards), n_envs, 1, n_truncated=0)
    batch.observations.copy_(torch.tensor(values).view(-1, 1, 1, 1))
    batch.rewards.copy_(torch.tensor(rewards).view(-1, 1, 1))
    return replace(batch, actions=batch.actions.int())


# ------------------------------------------------------------------ which environments count


def counted(algorithm):
    """Return the environments that count."""
    if algorithm.weights is None:
        return list(range(algorithm.returns.shape[1]))
    return algorithm.weights[0, :, 0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("ratio", "positive", "n_negative"),
    [(-1, [1], 5), (2.0, [1], 2), (1.0, [0, 4], 2), (0.5, [2], 0), (0.5, [1, 2], 1), (9.0, [1], 5), (2.0, [], 6)],
)
def test_negatives_are_drawn_for_the_positives(ratio, positive, n_negative):
    """Environments without success are sampled by the ratio.

    Successes count, and ``ratio`` times that number of others, rounded down. Others are random, from six
    environments. All count if there are too few others or no success, or if it is off.
    """
    batch = known_batch([0.0] * 3, [1.0, 2.0], n_envs=6)
    batch.successes[0, positive] = 1
    algorithm = make_algorithm("A2C", batch, Known(), trainer={"neg_pos_env_ratio": ratio})
    drawn = set()
    for _ in range(20):
        algorithm.iterate()
        envs = counted(algorithm)
        assert set(positive) <= set(envs)
        assert len(envs) == len(positive) + n_negative
        drawn |= set(envs)
    assert (algorithm.weights is None) == (ratio == -1)
    if ratio > 0 and n_negative:
        assert set(algorithm.weights.unique().tolist()) <= {0, 1}
        assert drawn == set(range(6)), "each of the others has its turn"


@pytest.mark.parametrize("fc_dims", [(8,), (8, 8)], ids=["by torch", "in one pass"])
@pytest.mark.parametrize("kind", KINDS)
def test_only_environments_that_count_are_learnt_from(kind, fc_dims):
    """Only sampled environments affect gradient, metrics and normalisation."""
    model = make_model(DISCRETE, fc_dims=fc_dims)
    batch = make_batch(DISCRETE, model, n_envs=6, drift=0.2)
    batch.successes[2, [1, 4]] = 1
    few = {"normalize_advantage": True, "n_epochs": 1, "n_minibatches": 1}
    algorithm = make_algorithm(kind, batch, copy.deepcopy(model), trainer={"neg_pos_env_ratio": 0.5}, **few)
    assert (algorithm._learning is not None) == (len(fc_dims) == 2)
    algorithm.iterate()
    envs = counted(algorithm)
    assert len(envs) == 3
    arrays = {each.name: getattr(batch, each.name) for each in fields(batch) if each.name != "recorder"}
    part = RolloutBuffer(**{name: None if array is None else array[:, envs] for name, array in arrays.items()})
    alone = make_algorithm(kind, part, copy.deepcopy(model), **few)
    alone.iterate()
    torch.testing.assert_close(algorithm.optimiser.gradient, alone.optimiser.gradient, rtol=1e-4, atol=1e-6)
    got, want = numbers(algorithm), numbers(alone)
    for name in actor_critic.METRICS:
        assert got[name] == pytest.approx(want[name], rel=1e-4, abs=1e-6), name


def test_minibatches_without_a_row_that_counts_are_harmless():
    """Minibatches without a sampled row add nothing.

    One row of eight counts, in one of four minibatches.
    """
    batch = known_batch([1.0, 2.0], [1.0], n_envs=8)
    batch.successes[0, 5] = 1
    model = Known()
    ratio = {"neg_pos_env_ratio": 0.1}
    algorithm = make_algorithm("PPO", batch, model, trainer=ratio, n_epochs=1, n_minibatches=4)
    norms = []
    take_step = algorithm.optimiser.apply
    algorithm.optimiser.apply = lambda skip=None: (take_step(skip), norms.append(algorithm.optimiser.norm.item()))
    algorithm.iterate()
    assert counted(algorithm) == [5]
    assert sorted(norms)[:3] == [0, 0, 0]
    assert max(norms) > 0
    assert algorithm.metrics["n_skipped_steps"].item() == 0
    assert all(torch.isfinite(torch.tensor(list(numbers(algorithm).values()))))
    assert model.logits.abs().max() > 0
