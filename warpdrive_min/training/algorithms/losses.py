"""Losses and statistics of training, as pure functions for CUDA graphs.

They are differentiable and take batches of any leading shape, mostly ``(n_steps, n_envs, n_agents)``. They enqueue
without synchronising, and check nothing. Losses of policies and values return a term for each row, so that a batch can
pass in parts; the loss is their mean. ``weights`` broadcast to the batch: 1 for rows that count, 0 for the others.
Those of ``neg_pos_env_ratio`` are ``(1, n_envs, 1)``.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import torch

from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.fused.loss import EPSILON

Tensor = torch.Tensor

HALF_LOG_TWO_PI: Final = 0.5 * math.log(2 * math.pi)


# ------------------------------------------------------------------ policies and values


def log_prob_and_entropy(
    space: ActionSpace,
    head: Tensor,
    actions: Tensor,
    mask: Tensor | None = None,
    log_std: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of actions, and the policy's entropy, ``(...)``.

    Both are sums over types; continuous actions have densities. A type without an allowed choice has log-probability 0
    and entropy 0, as in the sampler. Heads with fewer bits than float32 are converted to float32.

    Args:
        space: Space of the actions.
        head: Finite logits of all types side by side, or the mean of a Gaussian, ``(..., n_outputs)``.
        actions: ``(..., n_types)``; int32, or floats as drawn, before clipping.
        mask: As ``head``, int32; 0 forbids a choice, 1 allows it. Of discrete actions only.
        log_std: Logarithm of the Gaussian's standard deviation, ``(n_types,)``. Of continuous actions only.

    Raises:
        ConfigError: Continuous actions without ``log_std``.
    """
    head = head.to(torch.promote_types(head.dtype, torch.float32))
    if space.is_continuous:
        if log_std is None:
            raise ConfigError("log_prob_and_entropy: a Gaussian needs a scale (got log_std=None); pass the model's")
        return _gaussian(head, actions, log_std)
    sizes = list(space.categories)
    masks = [None] * len(sizes) if mask is None else torch.split(mask, sizes, -1)
    types = [
        _categorical(logits, action.long(), allowed)
        for logits, action, allowed in zip(
            torch.split(head, sizes, -1), torch.split(actions, 1, -1), masks, strict=True
        )
    ]
    log_probs, entropies = zip(*types, strict=True)
    return functools.reduce(torch.add, log_probs), functools.reduce(torch.add, entropies)


def _categorical(logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    if mask is not None:
        # Not -inf: its product with a probability of 0 and its gradient would be NaN.
        logits = logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(-1, action).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    if mask is None:
        return log_prob, entropy
    is_free = mask.any(-1)
    return log_prob * is_free, entropy * is_free


def _gaussian(mean: Tensor, actions: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    z = (actions - mean) * torch.exp(-log_std)
    log_prob = (-0.5 * z.square() - log_std - HALF_LOG_TWO_PI).sum(-1)
    entropy = (0.5 + HALF_LOG_TWO_PI + log_std).expand_as(mean).sum(-1)
    return log_prob, entropy


def policy_gradient_loss(log_prob: Tensor, advantages: Tensor) -> Tensor:
    """Return A2C's loss terms, ``-log_prob * advantage``; advantages are constant."""
    return -log_prob * advantages


def clipped_surrogate_loss(log_ratio: Tensor, advantages: Tensor, clip_param: float | Tensor) -> Tensor:
    """Return the terms of PPO's loss.

    They are ``-min(r * A, clip(r, 1 - clip_param, 1 + clip_param) * A)``.

    Args:
        log_ratio: Current log-probability minus the constant one of the draw; its exponential is r.
        advantages: Constants.
        clip_param: Distance of r from 1 beyond which the loss gains nothing; a tensor broadcasts to the batch.

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_param, 1 + clip_param)  # type: ignore[arg-type]  # both kinds are taken
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Return squared errors of values, without the factor 1/2, as in WarpDrive.

    With ``old_values`` and ``clip`` a value gains nothing by moving further than ``clip`` from its old one. The larger
    of its own error and the clipped value's error counts.
    """
    error = (values - returns).square()
    if old_values is None or clip is None:
        return error
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(error, (clipped - returns).square())


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return terms of a KL(old, new) estimate, ``r - 1 - log r >= 0``.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html, the estimator k3.
    """
    return torch.expm1(log_ratio) - log_ratio


def clip_fraction(log_ratio: Tensor, clip_param: float | Tensor) -> Tensor:
    """Return 1 where the ratio leaves 1 by more than ``clip_param``, else 0."""
    return (torch.expm1(log_ratio).abs() > clip_param).to(log_ratio.dtype)


# ------------------------------------------------------------------ statistics


def normalise(x: Tensor, weights: Tensor | None = None, *, per_row: bool = False) -> Tensor:
    """Return ``(x - mean) / (std + 1e-10)`` over rows that count.

    The std is unbiased; a single row becomes 0.

    Args:
        x: ``(n_steps, ...)``.
        weights: As in the module's docstring.
        per_row: Each step separately, as in WarpDrive; else the whole batch.
    """
    mean, variance = _moments(x, weights, tuple(range(1 if per_row else 0, x.dim())))
    std = variance.clamp(min=EPSILON**2).sqrt()  # a root of 0 has no gradient
    return (x - mean) / (std + EPSILON)


def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return ``1 - var(returns - values) / var(returns)``, at least -1."""
    return fit(returns - values, returns, weights)[0]


def fit(errors: Tensor, returns: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return explained variance of values with ``errors``, mean error, mean return."""
    dims = tuple(range(returns.dim()))
    (error, left), (mean, whole) = (map(Tensor.squeeze, _moments(x, weights, dims)) for x in (errors, returns))
    return (1 - left / (whole + EPSILON)).clamp(min=-1), error, mean


def mean(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over all dimensions, 0-d."""
    return x.mean() if weights is None else (weights * x).sum() / weights.expand_as(x).sum().clamp(min=1)


def _moments(x: Tensor, weights: Tensor | None, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance (0 for one row); ``dims`` keep size 1."""
    if weights is None:
        n_rows = math.prod(x.shape[dim] for dim in dims)
        variance, mean = torch.var_mean(x, dims, correction=min(1, n_rows - 1), keepdim=True)
        return mean, variance
    count = weights.expand_as(x).sum(dims, keepdim=True)
    mean = (weights * x).sum(dims, keepdim=True) / count.clamp(min=1)
    variance = (weights * (x - mean).square()).sum(dims, keepdim=True) / (count - 1).clamp(min=1)
    return mean, variance


# ------------------------------------------------------------------ DDPG


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Return the critic's mean squared error; the target is constant."""
    return (q - target).square().mean()


def actor_loss(q: Tensor) -> Tensor:
    """Return the negative mean of the critic's values."""
    return -q.mean()


def n_step_sums(rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum windows of n steps that end with their episode.

    Sums step by step, so that all devices agree.

    Args:
        rewards: ``(n, ...)``.
        terminated: ``(n, ...)`` of 0 and 1, with as many axes as ``rewards``, broadcast to it: the dynamics ended the
            episode.
        truncated: As ``terminated``: the time limit ended the episode.
        gamma: Discount of one step.

    Returns:
        The discounted sum of the rewards, ``(...)`` as in one step. Then, shaped as the flags of one step, the discount
        of the value after the window, 0 if the dynamics ended it; and the number of steps of the window.
    """
    dtype = rewards.dtype
    continues = (1 - (terminated | truncated)).to(dtype)
    reached = torch.cat([torch.ones_like(continues[:1]), continues[:-1]]).cumprod(0)
    n_steps = reached.sum(0)
    survives = 1 - (reached * terminated.to(dtype)).sum(0)
    powers = torch.stack([n_steps.new_full((), gamma**step) for step in range(len(rewards) + 1)])
    total, *later = reached * rewards
    for step, received in enumerate(later, start=1):
        total = total + received * gamma**step
    return total, torch.take(powers, n_steps.long()) * survives, n_steps


def n_step_targets(reward_sums: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """Return the critic's targets for each window's first step, ``(...)``.

    Args:
        reward_sums: Sums of `n_step_sums`.
        discounts: Discounts of `n_step_sums`.
        next_q: Target critic's values of the target actor's actions after the window.
    """
    return reward_sums + discounts * next_q
