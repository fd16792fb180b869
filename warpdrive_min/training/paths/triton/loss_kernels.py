"""Triton kernels of the loss of A2C and PPO.

One kernel computes terms and gradients in one pass over the rows; another sums them. A row here is one agent of one row
of a minibatch. Tiles are (BLOCK rows, choices of a type or numbers of an action). Names in capitals are constants of a
kernel. `warpdrive_min.training.algorithms.losses` is the same in torch.
"""

from __future__ import annotations

import triton
import triton.language as tl

SUMS = tl.constexpr(5)
"""Number of sums: policy, value, entropy, approximate KL, clipped rows.

The gradient of log_std follows them.
"""
LEAST = tl.constexpr(-3.4028234663852886e38)
"""Logit of forbidden choices and of padding.

Not -inf, because its product with a probability of 0 would be NaN.
"""
HALF_LOG_TWO_PI = tl.constexpr(0.9189385332046727)


@triton.jit
def evaluate(
    head,  # (n_rows, N_OUTPUTS), row stride HEAD_STRIDE, like d_head
    values,  # (n_rows,), stride VALUE_STRIDE, like d_values
    actions,  # (rows of the rollout, N_TYPES), int32 or float32
    log_probs,  # (rows of the rollout,), like returns and old_values
    returns,
    advantages,  # (n_rows,), or None: returns minus values
    weights,  # (rows of the minibatch,) or None
    masks,  # (rows of the rollout, N_OUTPUTS) int32 or None
    old_values,  # or None: values are not clipped
    log_std,  # (N_TYPES,) or None: the actions are discrete
    indices,  # (rows of the minibatch,) int32 or int64, or None: the first rows of the rollout
    total,  # 0-d, like vf_loss_coeff and entropy_coeff
    vf_loss_coeff,
    entropy_coeff,
    d_head,
    d_values,
    partial,  # (programs, COLUMNS)
    n_rows,
    N_AGENTS: tl.constexpr,
    N_TYPES: tl.constexpr,
    N_OUTPUTS: tl.constexpr,
    RUNS: tl.constexpr,  # (choices, types, first type, first choice) of equal neighbours; one type stays in registers
    HEAD_STRIDE: tl.constexpr,
    VALUE_STRIDE: tl.constexpr,
    CLIP_PARAM: tl.constexpr,
    IS_CLIPPED: tl.constexpr,
    VALUE_CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gradients of rows, and each program's weighted sums into ``partial``.

    A program strides over blocks of rows.
    """
    scale = 1.0 / tl.load(total)
    value_scale = tl.load(vf_loss_coeff) * scale
    entropy_weight = tl.load(entropy_coeff)
    policy_sum = tl.zeros((BLOCK,), tl.float32)
    value_sum = tl.zeros((BLOCK,), tl.float32)
    entropy_sum = tl.zeros((BLOCK,), tl.float32)
    kl_sum = tl.zeros((BLOCK,), tl.float32)
    clipped_sum = tl.zeros((BLOCK,), tl.float32)
    if log_std is not None:
        outputs = tl.arange(0, triton.next_power_of_2(N_TYPES))
        scales = tl.load(log_std + outputs, outputs < N_TYPES, 0.0)
        d_scales = tl.zeros((BLOCK, triton.next_power_of_2(N_TYPES)), tl.float32)

    local = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    while first < n_rows:
        row = first + local
        is_row = row < n_rows
        source = row
        if indices is not None:
            source = tl.load(indices + row // N_AGENTS, is_row, 0).to(tl.int64) * N_AGENTS + row % N_AGENTS
        weight = is_row.to(tl.float32)
        if weights is not None:
            weight = tl.load(weights + row // N_AGENTS, is_row, 0.0)
        value = tl.load(values + row * VALUE_STRIDE, is_row, 0.0)
        target = tl.load(returns + source, is_row, 0.0)
        advantage = target - value
        if advantages is not None:
            advantage = tl.load(advantages + row, is_row, 0.0)

        logits, d_logits = head + first * HEAD_STRIDE, d_head + first * HEAD_STRIDE
        if log_std is not None:
            z, log_prob, entropy = _gaussian(logits, actions, scales, local, source, is_row, N_TYPES, HEAD_STRIDE)
        else:
            log_prob, entropy = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
            kept = ()
            for i in tl.static_range(len(RUNS)):
                if RUNS[i][1] == 1:
                    kind = _categorical(
                        logits, actions, masks, local, source, is_row, RUNS, i, 0, N_TYPES, N_OUTPUTS, HEAD_STRIDE
                    )
                    log_prob += kind[0]
                    entropy += kind[1]
                    kept = kept + (kind,)
                else:
                    for j in range(RUNS[i][1]):
                        kind = _categorical(
                            logits, actions, masks, local, source, is_row, RUNS, i, j, N_TYPES, N_OUTPUTS, HEAD_STRIDE
                        )
                        log_prob += kind[0]
                        entropy += kind[1]
                    kept = kept + (i,)  # keeps the runs' order; their tiles are computed again below

        log_ratio = log_prob - tl.load(log_probs + source, is_row, 0.0)
        kl = excess(log_ratio)
        if IS_CLIPPED:
            policy, d_log_prob = surrogate(log_ratio, advantage, CLIP_PARAM)
        else:
            policy, d_log_prob = -log_prob * advantage, -advantage
        if old_values is None:
            error = value - target
            value_term, d_value = error * error, 2.0 * error
        else:
            value_term, d_value = clipped_error(value, target, tl.load(old_values + source, is_row, 0.0), VALUE_CLIP)
        tl.store(d_values + row * VALUE_STRIDE, d_value * weight * value_scale, is_row)

        policy_sum += policy * weight
        value_sum += value_term * weight
        entropy_sum += entropy * weight
        kl_sum += kl * weight
        clipped_sum += tl.where(tl.abs(kl + log_ratio) > CLIP_PARAM, weight, 0.0)

        d_log_prob = d_log_prob * weight
        d_entropy = -entropy_weight * weight
        if log_std is not None:
            d_mean = (d_log_prob * scale)[:, None] * z * tl.exp(-scales)[None, :]
            place = d_head + (first + local)[:, None] * HEAD_STRIDE + outputs[None, :]
            tl.store(place, d_mean, is_row[:, None] & (outputs < N_TYPES)[None, :])
            d_scales += d_log_prob[:, None] * (z * z - 1.0) + d_entropy[:, None]
        else:
            of_policy, of_entropy = (d_log_prob * scale)[:, None], (d_entropy * scale)[:, None]
            for i in tl.static_range(len(RUNS)):
                if RUNS[i][1] == 1:
                    _put_gradients(d_logits, kept[i], of_policy, of_entropy, local, is_row, RUNS, i, 0, HEAD_STRIDE)
                else:
                    for j in range(RUNS[i][1]):
                        kind = _categorical(
                            logits, actions, masks, local, source, is_row, RUNS, i, j, N_TYPES, N_OUTPUTS, HEAD_STRIDE
                        )
                        _put_gradients(d_logits, kind, of_policy, of_entropy, local, is_row, RUNS, i, j, HEAD_STRIDE)
        first += tl.num_programs(0) * BLOCK

    own = partial + tl.program_id(0) * COLUMNS
    tl.store(own, tl.sum(policy_sum))
    tl.store(own + 1, tl.sum(value_sum))
    tl.store(own + 2, tl.sum(entropy_sum))
    tl.store(own + 3, tl.sum(kl_sum))
    tl.store(own + 4, tl.sum(clipped_sum))
    if log_std is not None:
        tl.store(own + SUMS + outputs, tl.sum(d_scales, 0), outputs < N_TYPES)


@triton.jit
def add_up(
    partial,
    n_programs,
    total,
    vf_loss_coeff,
    entropy_coeff,
    loss,
    sums,  # (SUMS,)
    d_log_std,  # (N_SCALES,)
    N_SCALES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the loss, its terms and the gradient of log_std.

    One program adds the sums of all programs in order.
    """
    column = tl.arange(0, COLUMNS)
    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = 0
    while first < n_programs:
        row = first + tl.arange(0, ROWS)
        is_there = (row < n_programs)[:, None] & (column < SUMS + N_SCALES)[None, :]
        added += tl.load(partial + row[:, None] * COLUMNS + column[None, :], is_there, 0.0)
        first += ROWS
    means = tl.sum(added, 0) / tl.load(total)
    tl.store(sums + column, means, column < SUMS)
    if N_SCALES > 0:
        tl.store(d_log_std + column - SUMS, means, (column >= SUMS) & (column < SUMS + N_SCALES))
    value = tl.where(column == 1, tl.load(vf_loss_coeff) * means, 0.0)
    entropy = tl.where(column == 2, tl.load(entropy_coeff) * means, 0.0)
    tl.store(loss, tl.sum(tl.where(column == 0, means, 0.0) + value - entropy))


@triton.jit
def _categorical(
    head,
    actions,
    masks,
    local,
    source,
    is_row,
    RUNS: tl.constexpr,
    i: tl.constexpr,
    j,
    N_TYPES: tl.constexpr,
    N_OUTPUTS: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
):
    """Return log-probability, entropy, and tiles of a run's type j.

    The tiles are probabilities p, p log p, the chosen one, and those allowed.
    """
    size: tl.constexpr = RUNS[i][0]
    start = RUNS[i][3] + j * size
    choices = tl.arange(0, triton.next_power_of_2(size))
    is_allowed = is_row[:, None] & (choices < size)[None, :]
    logits = tl.load(head + local[:, None] * HEAD_STRIDE + start + choices[None, :], is_allowed, 0.0)
    if masks is not None:
        at = masks + source[:, None] * N_OUTPUTS + start + choices[None, :]
        is_allowed = tl.load(at, is_allowed, 0) != 0
    action = tl.load(actions + source * N_TYPES + RUNS[i][2] + j, is_row, 0)
    is_chosen = choices[None, :] == action[:, None]
    log_prob, entropy, chance, product = categorical(logits, is_allowed, is_chosen)
    return log_prob, entropy, chance, product, is_chosen, is_allowed


@triton.jit
def _put_gradients(
    d_head,
    kind,
    of_policy,
    of_entropy,
    local,
    is_row,
    RUNS: tl.constexpr,
    i: tl.constexpr,
    j,
    HEAD_STRIDE: tl.constexpr,
):
    """Write gradients of the logits of a run's type j."""
    _, entropy_of_type, chance, product, is_chosen, is_allowed = kind
    size: tl.constexpr = RUNS[i][0]
    choices = tl.arange(0, triton.next_power_of_2(size))
    d_logits = of_policy * (is_chosen.to(tl.float32) - chance)
    d_logits -= of_entropy * (product + chance * entropy_of_type[:, None])
    place = d_head + local[:, None] * HEAD_STRIDE + RUNS[i][3] + j * size + choices[None, :]
    tl.store(place, tl.where(is_allowed, d_logits, 0.0), is_row[:, None] & (choices < size)[None, :])


@triton.jit
def categorical(logits, is_allowed, is_chosen):
    """Return log-probabilities of the rows' choices, entropies, and tiles.

    The tiles are probabilities p, and p log p.
    """
    logits = tl.where(is_allowed, logits, LEAST)
    shifted = logits - tl.max(logits, 1)[:, None]
    powers = tl.exp(shifted)
    norm = tl.sum(powers, 1)
    chance = powers * (1.0 / norm)[:, None]
    log_chance = shifted - tl.log(norm)[:, None]
    product = chance * log_chance
    # A type whose choices are all forbidden contributes nothing
    is_free = tl.max(is_allowed.to(tl.int32), 1) > 0
    log_prob = tl.where(is_free, tl.sum(tl.where(is_chosen, log_chance, 0.0), 1), 0.0)
    entropy = tl.where(is_free, -tl.sum(product, 1), 0.0)
    return log_prob, entropy, chance, product


@triton.jit
def _gaussian(head, actions, scales, local, source, is_row, N_TYPES: tl.constexpr, HEAD_STRIDE: tl.constexpr):
    """Return the actions' z-scores, log-densities and entropy."""
    outputs = tl.arange(0, triton.next_power_of_2(N_TYPES))
    is_output = (outputs < N_TYPES)[None, :]
    is_inside = is_row[:, None] & is_output
    mean = tl.load(head + local[:, None] * HEAD_STRIDE + outputs[None, :], is_inside, 0.0)
    action = tl.load(actions + source[:, None] * N_TYPES + outputs[None, :], is_inside, 0.0)
    z = (action - mean) * tl.exp(-scales)[None, :]
    densities = tl.where(is_output, -0.5 * z * z - scales[None, :] - HALF_LOG_TWO_PI, 0.0)
    entropy = tl.sum(tl.where(outputs < N_TYPES, scales + (0.5 + HALF_LOG_TWO_PI), 0.0))
    return z, tl.sum(densities, 1), entropy


@triton.jit
def surrogate(log_ratio, advantage, clip_param):
    """Return PPO's clipped surrogate terms and their derivative.

    The derivative is with respect to the log-probability. In a tie each side gets half of the derivative, as in torch.
    """
    low, high = 1.0 - clip_param, 1.0 + clip_param
    ratio = tl.exp(log_ratio)
    is_within = (ratio >= low) & (ratio <= high)
    clipped = tl.where(ratio < low, low, tl.where(ratio > high, high, ratio)) * advantage
    free = ratio * advantage
    share = _share(clipped, free)
    share += tl.where(is_within, 1.0 - share, 0.0)
    return -tl.minimum(free, clipped, propagate_nan=tl.PropagateNan.ALL), -share * free


@triton.jit
def clipped_error(value, target, old_value, CLIP: tl.constexpr):
    """Return the value loss with clipping, and its derivative.

    It is the larger squared error of the value and of the value clipped around the old one.
    """
    moved = value - old_value
    is_within = tl.abs(moved) <= CLIP
    clipped = old_value + tl.where(moved < -CLIP, -CLIP, tl.where(moved > CLIP, CLIP, moved))
    error, clipped_error = value - target, clipped - target
    square, clipped_square = error * error, clipped_error * clipped_error
    share = _share(square, clipped_square)
    slope = 2.0 * (share * error + tl.where(is_within, (1.0 - share) * clipped_error, 0.0))
    return tl.maximum(square, clipped_square, propagate_nan=tl.PropagateNan.ALL), slope


@triton.jit
def _share(first, second):
    """Return the first number's share of a maximum's gradient.

    It is 1 if the number is larger, half in a tie, else 0.
    """
    return tl.where(first > second, 1.0, tl.where(first == second, 0.5, 0.0))


@triton.jit
def excess(x):
    """Return exp(x) - 1 - x, without cancellation near 0."""
    series = 1.0 + x * (1.0 / 5) * (1.0 + x * (1.0 / 6) * (1.0 + x * (1.0 / 7) * (1.0 + x * (1.0 / 8))))
    near = 0.5 * x * x * (1.0 + x * (1.0 / 3) * (1.0 + x * (1.0 / 4) * series))
    return tl.where(tl.abs(x) < 0.5, near, tl.exp(x) - 1.0 - x)
