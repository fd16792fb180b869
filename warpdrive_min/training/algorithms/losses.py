"""Losses and figures of training: pure functions of tensors, differentiable, and fit for a CUDA graph.

They take batches of any leading shape, mostly ``(n_steps, n_envs, n_agents)``, enqueue without synchronising, and check
nothing. Those of policies and values return a term for each row, so that a batch can be passed through in parts; the
loss is their mean. ``weights``, which broadcast to the batch, are 1 for rows that count and 0 for the others: those of
``neg_pos_env_ratio`` are ``(1, n_envs, 1)``.
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
    """Return the log-probability (or density) of actions and the policy's entropy, both summed over types, ``(...)``.

    A type whose every choice is forbidden has no say: log-probability 0 and entropy 0, as in the sampler. Computed in
    float32 where the head has fewer bits.

    Args:
        space: Space of the actions.
        head: Finite logits of all types side by side, or the mean of a Gaussian, ``(..., n_outputs)``.
        actions: ``(..., n_types)``; int32, or floats as they were drawn, before they were clipped.
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
        # Not -inf, whose product with a probability of 0 and whose gradient would be NaN.
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
    """Return the terms of A2C's loss, ``-log_prob * advantage``; advantages are constants."""
    return -log_prob * advantages


def clipped_surrogate_loss(log_ratio: Tensor, advantages: Tensor, clip_param: float | Tensor) -> Tensor:
    """Return the terms of PPO's loss, ``-min(r * A, clip(r, 1 - clip_param, 1 + clip_param) * A)``.

    Args:
        log_ratio: Log-probability now less that with which the action was drawn, a constant; its exponential is r.
        advantages: Constants.
        clip_param: Distance from 1 beyond which a ratio gains nothing more; a tensor broadcasts to the batch.

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7.
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_param, 1 + clip_param)  # type: ignore[arg-type]  # both kinds are taken
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Return the squared errors of the values, without a factor of a half, as in WarpDrive.

    With ``old_values`` and ``clip``, a value gains nothing by moving further than ``clip`` from its old one: of its own
    error and that of the clipped value the larger one counts.
    """
    error = (values - returns).square()
    if old_values is None or clip is None:
        return error
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(error, (clipped - returns).square())


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return the terms of an estimate of how far the policy has moved, KL(old, new): ``r - 1 - log r``, at least 0.

    Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html, the estimator k3.
    """
    return torch.expm1(log_ratio) - log_ratio


def clip_fraction(log_ratio: Tensor, clip_param: float | Tensor) -> Tensor:
    """Return 1 where the ratio is further than ``clip_param`` from 1, else 0."""
    return (torch.expm1(log_ratio).abs() > clip_param).to(log_ratio.dtype)


# ------------------------------------------------------------------ spreads


def normalise(x: Tensor, weights: Tensor | None = None, *, per_row: bool = False) -> Tensor:
    """Return ``(x - mean) / (std + 1e-10)`` of the rows that count, with the unbiased std; one row alone becomes 0.

    Args:
        x: ``(n_steps, ...)``.
        weights: As in all of this module.
        per_row: Each step by itself, as WarpDrive does it; else the whole batch.
    """
    mean, variance = _moments(x, weights, tuple(range(1 if per_row else 0, x.dim())))
    std = variance.clamp(min=EPSILON**2).sqrt()  # a root of 0 has no gradient
    return (x - mean) / (std + EPSILON)


def explained_variance(values: Tensor, returns: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return ``1 - var(returns - values) / var(returns)``, at least -1."""
    return fit(returns - values, returns, weights)[0]


def fit(errors: Tensor, returns: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the explained variance of values that are wrong by ``errors``, and the means of errors and returns."""
    dims = tuple(range(returns.dim()))
    (error, left), (mean, whole) = (map(Tensor.squeeze, _moments(x, weights, dims)) for x in (errors, returns))
    return (1 - left / (whole + EPSILON)).clamp(min=-1), error, mean


def mean(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over all dimensions, 0-d."""
    return x.mean() if weights is None else (weights * x).sum() / weights.expand_as(x).sum().clamp(min=1)


def _moments(x: Tensor, weights: Tensor | None, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance over ``dims``, which are kept with size 1; one row has the variance 0."""
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
    """Return the mean squared error of the critic; the target is a constant."""
    return (q - target).square().mean()


def actor_loss(q: Tensor) -> Tensor:
    """Return the negative mean of what the critic thinks of the actor's actions."""
    return -q.mean()


def n_step_sums(rewards: Tensor, terminated: Tensor, truncated: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum up windows of n steps, each of which stops where its episode does; step by step, so alike on all devices.

    Args:
        rewards: ``(n, ...)``.
        terminated: ``(n, ...)`` of 0 and 1, with as many axes as ``rewards``, broadcast to it: the dynamics ended the
            episode.
        truncated: Likewise: the time limit cut it off.
        gamma: Discount of one step.

    Returns:
        The discounted sum of the rewards, ``(...)`` as those of one step; and, shaped as the flags of one step, the
        discount of the value after the window, 0 where the dynamics ended it, and the number of steps of the window.
    """
    dtype = rewards.dtype
    goes_on = (1 - (terminated | truncated)).to(dtype)
    reached = torch.cat([torch.ones_like(goes_on[:1]), goes_on[:-1]]).cumprod(0)
    n_steps = reached.sum(0)
    survives = 1 - (reached * terminated.to(dtype)).sum(0)
    powers = torch.stack([n_steps.new_full((), gamma**step) for step in range(len(rewards) + 1)])
    total, *later = reached * rewards
    for step, received in enumerate(later, start=1):
        total = total + received * gamma**step
    return total, torch.take(powers, n_steps.long()) * survives, n_steps


def n_step_targets(reward_sums: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """Return what the critic should say of the first step of each window, ``(...)``.

    Args:
        reward_sums: Sums of `n_step_sums`.
        discounts: Likewise.
        next_q: Values that the target critic gives of the target actor's actions after the window.
    """
    return reward_sums + discounts * next_q
