"""Loss of A2C and PPO and its gradients, in one pass over the rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

import torch
from torch.autograd.function import once_differentiable

from warpdrive_min.errors import ConfigError
from warpdrive_min.training.paths.constants import N_TERMS, Clipping
from warpdrive_min.training.paths.triton.columns import parent_array
from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import power_of_two

if TYPE_CHECKING:
    from warpdrive_min.training.actions import ActionSpace

Tensor = torch.Tensor
Evaluated = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Loss, terms, and gradients of head, values and log_std."""

EPSILON: Final = 1e-10
"""Added to a standard deviation, so that division by 0 stays finite."""
MOST_ROWS: Final = 128
"""Largest number of rows per block."""
MOST_UNROLLED: Final = 8
"""Largest number of action types whose code is written out; 24 take 10 s to compile."""
TILE: Final = 1_024
"""Logits of a block of rows, which stay in registers.

The choices of each action type are rounded up to a power of two.
"""
MOST_PROGRAMS: Final = 2_048
"""Largest number of programs, each with its own sums.

The number does not depend on the device, so that sums have the same order on all devices.
"""
WARPS: Final = 4


class Minibatch(NamedTuple):
    """Rows of a minibatch, (rows, n_agents) each.

    If row indices are passed separately, the rows of the whole rollout.
    """

    actions: Tensor
    """Actions, ``(rows, n_agents, n_types)``; int32, or float32 if continuous."""
    log_probs: Tensor
    """Log-probabilities of the actions at sampling time."""
    returns: Tensor
    advantages: Tensor | None
    """Advantages of the minibatch; None: returns minus values, without gradient."""
    weights: Tensor | None = None
    """Weights of the minibatch's rows, ``(rows,)`` or ``(rows, 1)``.

    0 excludes a row; None counts every row once.
    """
    masks: Tensor | None = None
    """Action masks, ``(rows, n_agents, n_outputs)`` int32; 0 forbids a choice."""
    old_values: Tensor | None = None
    """Values at sampling time; needed only with ``value_clip``."""


RolloutArrays = Mapping[str, Tensor | None]
"""Arrays of all rows of a rollout, by name.

A row is (step, environment), with an axis for agents. The arrays are ``observations``, ``actions``, ``log_probs``,
``returns``, ``old_values``, ``masks`` and ``advantages``. All are contiguous and at fixed addresses. Masks may be None.
Advantages of None mean returns minus values, without gradient.
"""


class Rows(NamedTuple):
    """Rows of a minibatch, for `Learning.find`."""

    indices: Tensor | None
    """Rows of the rollout, (n_rows,) int32, at a fixed address; None: the first rows, in order."""
    values: Tensor | None = None
    """Optional output for the values of the rows, at a fixed address.

    They are the first steps of the rollout's ``old_values``.
    """
    advantages: Tensor | None = None
    """Advantages of the minibatch, (n_rows, n_agents); None: those of the rollout."""
    weights: Tensor | None = None
    """Weights of the rows, (n_rows, 1); None: every row counts once."""
    total: Tensor | None = None
    """Divisor of the sums, 0-d, needed with weights; None: the number of rows."""


class Learning(Protocol):
    """Interface of kernels that compute a minibatch's loss and gradients.

    The loss is that of A2C or PPO. One pass over the rows computes both.
    """

    normalises: ClassVar[bool]
    """True if it can normalise the advantages of a minibatch, as a constructor option."""
    terms: Tensor
    """Means of the loss's terms, (5,).

    They are policy, value, entropy, approximate KL and the share of clipped rows.
    """

    def find(self, rows: Rows) -> None:
        """Write the gradient and `terms`; enqueues."""
        ...


class LossRule(NamedTuple):
    """Terms of the loss of A2C and PPO, and their weights."""

    vf_loss_coeff: Tensor
    """Weight of the value's error, 0-d, read when a kernel runs."""
    entropy_coeff: Tensor
    """Weight of the entropy, 0-d, read when a kernel runs."""
    clip_param: float | Tensor
    """Clipping distance of the ratio from 1.

    A tensor, which broadcasts to the batch, works in torch only.
    """
    is_clipped: bool
    """True for PPO's clipped surrogate as the policy's term, else A2C's."""
    value_clip: float | None
    """Clipping distance of a value from its old value; None: values are not clipped."""

    @property
    def clipping(self) -> Clipping:
        """Return the terms that kernels have as constants."""
        return Clipping(self.is_clipped, self.value_clip)


class Learned(NamedTuple):
    """Parameters of a policy, and the rows and the loss that they learn from."""

    parameters: Tensor
    """All parameters, (n,) float32; of a population (members, n)."""
    gradient: Tensor
    """Output for the gradient, in the same shape."""
    space: ActionSpace
    rollout: RolloutArrays
    rule: LossRule
    n_rows: int
    """Rows of a minibatch, of one member."""


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

    The loss is ``policy + vf_loss_coeff * value - entropy_coeff * entropy``. Each of the three is the sum of weighted
    terms, divided by ``total``, as defined in `warpdrive_min.training.algorithms.losses`. The loss can be
    differentiated once, with respect to ``head``, ``values`` and ``log_std``. The terms have no gradient; they are
    policy, value, entropy, approximate KL and the share of clipped rows. The same arguments give the same bits.

    Args:
        space: Action space.
        head: ``(rows, n_agents, n_outputs)`` float32.
        values: ``(rows, n_agents)`` float32. If head and values are columns of one array, so are their gradients.
        rows: Rows of the minibatch.
        rule: Terms and weights.
        total: Divisor of the sums, 0-d; read when the kernel runs.
        log_std: Log standard deviation of continuous actions, ``(n_types,)``.
        indices: Indices of the rows in the rollout, ``(rows,)`` int32 or int64; None: the first rows, in order.
        is_root: The loss itself is differentiated, not a function of it. Its gradients are then returned without
            another pass over them.

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
        "RUNS": _runs(space.categories),
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
    """Loss that is computed together with its gradients.

    Gradients are with respect to head, values and log_std.
    """

    @staticmethod
    def forward(
        ctx: Any,
        evaluate: Callable[..., Evaluated],
        is_root: bool,
        head: Tensor,
        values: Tensor,
        log_std: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return loss and terms from ``evaluate``, and save its gradients."""
        loss, terms, *gradients = evaluate(head, values, log_std)
        ctx.is_root = is_root
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(terms)
        return loss, terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients, scaled unless this is the root."""
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
    whole = parent_array(head, values)
    if whole is None:
        head, values = head.contiguous(), values.contiguous()
        d_head, d_values = torch.empty_like(head), torch.empty_like(values)
    else:
        d_whole = torch.empty_like(whole)
        d_head, d_values = d_whole[..., :-1], d_whole[..., -1]
    strides = {"HEAD_STRIDE": head.stride(1), "VALUE_STRIDE": values.stride(1)}
    d_log_std = None if log_std is None else torch.empty_like(log_std)
    n_scales = 0 if log_std is None else log_std.numel()
    width = sum(power_of_two(run[0]) for run in constants["RUNS"] or ((n_scales,),))
    block = min(MOST_ROWS, max(1, TILE // power_of_two(width)))
    columns = power_of_two(5 + n_scales)
    n_programs = max(1, min(-(-values.numel() // block), MOST_PROGRAMS))
    partial = head.new_empty(n_programs, columns)
    launch(loss_kernels.evaluate, (n_programs,))(
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
    launch(loss_kernels.add_up, (1,))(
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


def _runs(sizes: tuple[int, ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Return size, number, first type and first choice of runs of equal types.

    A few types are a run each.
    """
    groups = [(size, 1) for size in sizes]
    if len(sizes) > MOST_UNROLLED:
        groups = [(size, len(list(equal))) for size, equal in itertools.groupby(sizes)]
    first_types = itertools.accumulate((n for _, n in groups), initial=0)
    first_choices = itertools.accumulate((size * n for size, n in groups), initial=0)
    starts = zip(first_types, first_choices, strict=True)
    return tuple((size, n, *start) for (size, n), start in zip(groups, starts, strict=False))


def _packed(array: Tensor | None) -> Tensor | None:
    return None if array is None else array.contiguous()
