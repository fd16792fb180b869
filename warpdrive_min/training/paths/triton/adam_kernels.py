"""Triton kernels of a step of Adam: sums of squares for the norm, then the step.

The second axis of the grid counts vectors, one for each member of a population. They are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_squares(gradient, step, partial, n, BLOCK: tl.constexpr):
    """Write each program's sum of squares of ``gradient`` (n,) into ``partial``.

    The count of steps is copied behind the sums. `take_step` reads it there, because its first program changes ``step``
    before others may have read it.
    """
    vector = tl.program_id(1).to(tl.int64)
    partial += vector * (tl.num_programs(0) + 1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slope = tl.load(gradient + vector * n + index, index < n, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(slope * slope))
    if tl.program_id(0) == 0:
        tl.store(partial + tl.num_programs(0), tl.load(step + vector))


@triton.jit
def take_step(
    parameters,  # (vectors, n), as gradient, exp_avg and exp_avg_sq
    gradient,
    exp_avg,
    exp_avg_sq,
    step,  # (vectors,), as norm, n_skipped, lr and skip
    norm,
    n_skipped,
    lr,
    skip,
    max_norm,  # (vectors,), or None: MAX_NORM applies to all
    partial,  # (vectors, programs + 1)
    n,
    MAX_NORM: tl.constexpr,
    EPS: tl.constexpr,
    ALMOST_ZERO: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update a program's block of parameters by the clipped gradient.

    The gradient's norm is clipped to its limit if that is positive. If the norm is not finite or ``skip`` is set, only
    ``norm`` is written. ``n_skipped`` counts the steps whose norm is not finite.
    """
    vector = tl.program_id(1).to(tl.int64)
    partial += vector * (tl.num_programs(0) + 1)
    part = tl.arange(0, PARTS)
    length = tl.sqrt_rn(tl.sum(tl.load(partial + part, part < tl.num_programs(0), 0.0)))
    is_finite, is_told = length < float("inf"), tl.load(skip + vector) != 0
    done = tl.load(partial + tl.num_programs(0)) + 1.0
    if tl.program_id(0) == 0:
        tl.store(norm + vector, length)
        if not is_told:
            if is_finite:
                tl.store(step + vector, done)
            else:
                tl.store(n_skipped + vector, tl.load(n_skipped + vector) + 1.0)
    if is_finite and not is_told:
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        is_inside = index < n
        at = vector * n + index
        slope = tl.load(gradient + at, is_inside, 0.0)
        if max_norm is not None:
            slope /= tl.maximum((length + ALMOST_ZERO) / tl.load(max_norm + vector), 1.0)
        elif MAX_NORM > 0:
            slope /= tl.maximum((length + ALMOST_ZERO) / MAX_NORM, 1.0)
        mean = tl.load(exp_avg + at, is_inside, 0.0)
        mean += (1.0 - BETA1) * (slope - mean)
        tl.store(exp_avg + at, mean, is_inside)
        square = BETA2 * tl.load(exp_avg_sq + at, is_inside, 0.0) + (1.0 - BETA2) * slope * slope
        tl.store(exp_avg_sq + at, square, is_inside)
        # In float32, 1 - beta^step would have few correct digits in the first steps
        n_steps = done.to(tl.float64)
        rate = (tl.load(lr + vector) / (1.0 - tl.exp(LOG_BETA1 * n_steps))).to(tl.float32)
        bias = tl.sqrt(1.0 - tl.exp(LOG_BETA2 * n_steps)).to(tl.float32)
        root = tl.sqrt_rn(square) / bias + EPS
        moved = tl.load(parameters + at, is_inside, 0.0) - rate * mean / root
        tl.store(parameters + at, moved, is_inside)
