"""The loss of A2C and PPO in one pass over the rows, which finds its gradients too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.errors import ConfigError
from warpdrive_min.training.paths.triton.columns import joined
from warpdrive_min.training.paths.triton.sizes import power_of_two

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace

Tensor = torch.Tensor
Evaluated = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Loss, its terms, and its gradients by head, values and log_std."""

EPSILON: Final = 1e-10
"""Keeps a division by a spread of 0 finite."""
N_TERMS: Final = 5
"""Policy, value, entropy, approximate KL and clipped rows."""
MOST_ROWS: Final = 128
"""Rows of a block."""
TILE: Final = 1_024
"""Logits of a block of rows, the choices of each type rounded up to a power of two: they stay in registers."""
MOST_PROGRAMS: Final = 2_048
"""Each keeps sums of its own. The number is no device's, so that sums are added in the same order on all of them."""
WARPS: Final = 4


class Minibatch(NamedTuple):
    """Some rows of a rollout, or all of it where their numbers are given besides; (rows, n_agents) each."""

    actions: Tensor
    """``(rows, n_agents, n_types)``; int32, or float32 of continuous ones."""
    log_probs: Tensor
    """Log-probabilities of the actions when they were drawn."""
    returns: Tensor
    advantages: Tensor | None
    """Advantages of the minibatch; None: what the values are short of the returns by, as a constant."""
    weights: Tensor | None = None
    """``(rows,)`` or ``(rows, 1)`` of the minibatch, 0 where a row does not count; None: every row counts once."""
    masks: Tensor | None = None
    """``(rows, n_agents, n_outputs)`` int32; 0 forbids a choice."""
    old_values: Tensor | None = None
    """Values when the actions were drawn, of use with ``value_clip`` only."""


RolloutArrays = Mapping[str, Tensor | None]
"""``observations``, ``actions``, ``log_probs``, ``returns``, ``old_values``, ``masks`` and ``advantages`` of all rows
(step, environment) of a rollout, with an axis for agents; contiguous, and where they will stay. There may be no masks,
and no advantages, which are then what values are short of returns by, as a constant."""


class Learning(Protocol):
    """Finds the loss of A2C and PPO, and its gradients, of minibatches of a rollout, in one pass over their rows."""

    normalises: ClassVar[bool]
    """It shifts and scales the advantages of a minibatch itself, if asked to when it is made."""
    terms: Tensor
    """Means of the loss's terms: policy, value, entropy, approximate KL and the share of clipped rows, (5,)."""

    def find(
        self,
        indices: Tensor | None,
        values: Tensor | None = None,
        *,
        advantages: Tensor | None = None,
        weights: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Write the gradient, and `terms`; enqueues.

        Args:
            indices: Rows of the rollout, (n_rows,) int32, that stay where they are; None: the first ones, in order.
            values: Gets the values of the rows, as the first steps of the rollout's ``old_values``, if given; it stays
                where it is.
            advantages: Of the minibatch, (n_rows, n_agents); None: those of the rollout.
            weights: (n_rows, 1); None: every row counts once.
            total: What sums are divided by, 0-d, which weights need; None: the number of rows.
        """
        ...


class LossRule(NamedTuple):
    """Terms of the loss of A2C and PPO, and their weights."""

    vf_loss_coeff: Tensor
    """Weight of the value's error, 0-d; read when a kernel runs, as is the other one."""
    entropy_coeff: Tensor
    """Weight of the entropy, 0-d."""
    clip_param: float | Tensor
    """Distance of the ratio from 1 that counts as clipped; a tensor, which broadcasts to the batch, in torch alone."""
    is_clipped: bool
    """The policy's term is PPO's clipped surrogate; else A2C's."""
    value_clip: float | None
    """Distance from its old value beyond which a value gains nothing; None: values are not clipped."""


def loss(
    space: ActionSpace,
    head: Tensor,
    values: Tensor,
    rows: Minibatch,
    rule: LossRule,
    total: Tensor,
    *,
    log_std: Tensor | None = None,
    indices: Tensor | None = None,
    is_root: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return a minibatch's loss, 0-d, and its terms, ``(5,)``; enqueues.

    The loss is ``policy + vf_loss_coeff * value - entropy_coeff * entropy``, each of them the sum of weighted terms
    over ``total``, as `warpdrive_min.training.algorithms.losses` defines them. It can be differentiated once, by
    ``head``, ``values`` and ``log_std``. The terms, which have no gradient, are policy, value, entropy, approximate KL
    and the share of clipped rows. The same arguments give the same bits.

    Args:
        space: Of the actions.
        head: ``(rows, n_agents, n_outputs)`` float32.
        values: ``(rows, n_agents)`` float32. Where both are columns of one array, so are their gradients.
        rows: Rows that the loss is of.
        rule: Terms and weights.
        total: What sums are divided by, 0-d; read when the kernel runs.
        log_std: ``(n_types,)``, of continuous actions.
        indices: ``(rows,)`` int32 or int64, which rows of the rollout these are; None: those of the same numbers.
        is_root: The loss itself is what will be differentiated, no multiple of it: its gradients are returned as they
            are, without another pass over them.

    Raises:
        ConfigError: Continuous actions without ``log_std``.
    """
    if space.is_continuous and log_std is None:
        raise ConfigError("loss: a Gaussian needs a scale (got log_std=None); pass the model's")
    clips_values = rule.value_clip is not None and rows.old_values is not None
    constants = {
        "N_AGENTS": head.shape[1],
        "N_TYPES": space.n_types,
        "N_OUTPUTS": space.n_outputs,
        "SIZES": space.categories,
        "CLIP_PARAM": rule.clip_param,
        "IS_CLIPPED": rule.is_clipped,
        "VALUE_CLIP": rule.value_clip if clips_values else None,
    }
    arrays = [_packed(each) for each in (rows if clips_values else rows._replace(old_values=None))]
    scalars = [total, rule.vf_loss_coeff, rule.entropy_coeff]
    evaluate = functools.partial(_evaluate, constants, arrays, _packed(indices), scalars)
    outputs: tuple[Tensor, Tensor] = GivenGradients.apply(  # type: ignore[no-untyped-call]
        evaluate, is_root, head, values, log_std if space.is_continuous else None
    )
    return outputs


class GivenGradients(torch.autograd.Function):
    """A loss whose gradients by head, values and log_std are found together with it."""

    @staticmethod
    def forward(
        ctx: Any,
        evaluate: Callable[..., Evaluated],
        is_root: bool,
        head: Tensor,
        values: Tensor,
        log_std: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return loss and terms of what ``evaluate`` finds."""
        loss, terms, *gradients = evaluate(head, values, log_std)
        ctx.is_root = is_root
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(terms)
        return loss, terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients that it found, times that of the loss unless this is the root."""
        gradients = ctx.saved_tensors
        if not ctx.is_root:
            gradients = [None if each is None else d_loss * each for each in gradients]
        return None, None, *gradients


def _evaluate(
    constants: dict[str, Any],
    rows: list[Tensor | None],
    indices: Tensor | None,
    scalars: list[Tensor],
    head: Tensor,
    values: Tensor,
    log_std: Tensor | None,
) -> Evaluated:
    from warpdrive_min.training.paths.triton import loss_kernels

    log_std = _packed(log_std)
    whole = joined(head, values)
    if whole is None:
        head, values = head.contiguous(), values.contiguous()
        d_head, d_values = torch.empty_like(head), torch.empty_like(values)
    else:
        d_whole = torch.empty_like(whole)
        d_head, d_values = d_whole[..., :-1], d_whole[..., -1]
    strides = {"HEAD_STRIDE": head.stride(1), "VALUE_STRIDE": values.stride(1)}
    d_log_std = None if log_std is None else torch.empty_like(log_std)
    n_scales = 0 if log_std is None else log_std.numel()
    width = sum(power_of_two(size) for size in constants["SIZES"] or (n_scales,))
    block = min(MOST_ROWS, max(1, TILE // power_of_two(width)))
    columns = power_of_two(5 + n_scales)
    n_programs = max(1, min(-(-values.numel() // block), MOST_PROGRAMS))
    partial = head.new_empty(n_programs, columns)
    loss_kernels.evaluate[(n_programs,)](
        head,
        values,
        *rows,
        log_std,
        indices,
        *scalars,
        d_head,
        d_values,
        partial,
        values.numel(),
        **constants,
        **strides,
        BLOCK=block,
        COLUMNS=columns,
        num_warps=WARPS,
    )
    loss, terms = head.new_empty(()), head.new_empty(N_TERMS)
    loss_kernels.add_up[(1,)](
        partial,
        n_programs,
        *scalars,
        loss,
        terms,
        d_log_std,
        N_SCALES=n_scales,
        ROWS=max(1, 4_096 // columns),
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return loss, terms, d_head, d_values, d_log_std


def _packed(array: Tensor | None) -> Tensor | None:
    return None if array is None else array.contiguous()
