"""Triton kernels of a step of Adam: what a vector's norm needs of all its numbers, and the step.

The second axis of the grid counts vectors, those of the members of a population, each of which follows the one before.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_squares(gradient, step, partial, n, BLOCK: tl.constexpr):
    """Write a program's sum of squares of ``gradient`` (n,) into ``partial``, and the count of steps behind all sums.

    There `take_step` reads the count, whose first program changes it while others may not have read it.
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
    max_norm,  # likewise, or None: MAX_NORM is that of all
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
    """Take a step with the gradient, shortened to its longest norm if that is positive, on a program's block.

    Nothing changes but the norm where that is not finite, which ``n_skipped`` counts, or where ``skip`` is set.
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
        # The first steps' 1 - beta^step has few digits in float32
        n_steps = done.to(tl.float64)
        rate = (tl.load(lr + vector) / (1.0 - tl.exp(LOG_BETA1 * n_steps))).to(tl.float32)
        bias = tl.sqrt(1.0 - tl.exp(LOG_BETA2 * n_steps)).to(tl.float32)
        root = tl.sqrt_rn(square) / bias + EPS
        moved = tl.load(parameters + at, is_inside, 0.0) - rate * mean / root
        tl.store(parameters + at, moved, is_inside)
