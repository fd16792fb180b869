"""Triton kernels that learn in one pass over the rows.

A block of rows passes forward, to its loss, and backward without leaving the chip. A row here is one agent of one row
of a minibatch. Weights and the sums of their gradients stay on the chip. With IS_MANY, the networks of a population's
members are computed. The last axis of the grid counts them, and it is the first axis of their parameters, minibatches,
coefficients and gradients. Names in capitals are constants of a kernel, as in `narrow_kernels` and `loss_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from warpdrive_min.training.paths.triton.loss_kernels import (
    categorical,
    clipped_error,
    excess,
    surrogate,
)
from warpdrive_min.training.paths.triton.shared_kernels import own_weights
from warpdrive_min.training.paths.triton.tiles import (
    across,
    activate,
    chained,
    fold,
    matrix,
    pull_back,
    store_behind_first,
    store_transposed,
    times,
    unfold,
    vector,
)


@triton.jit
def learn(
    observations,  # (rows of the rollout, F); if shared, the first layer's outputs (minibatch's rows, H1)
    w1,  # (H1, F)
    b1,
    w2,  # (H2, H1)
    b2,
    w3,  # (N_OUTPUTS, H2), or None for a value network
    b3,
    v3,  # (1, H2), or None for a policy network
    c3,
    actions,  # (rows of the rollout, N_TYPES) int32
    log_probs,  # (rows of the rollout,), like returns and old_values
    returns,
    advantages,  # of the rollout, or of the minibatch if IS_TAKEN; None: returns minus values
    values,  # (rows of the rollout,): written if STORES; else read if the policy's network has no value
    weights,  # (rows of the minibatch,) or None
    masks,  # (rows of the rollout, N_OUTPUTS) int32 or None
    old_values,  # or None: values are not clipped
    indices,  # (rows of the minibatch,), or None: the first rows of the rollout
    total,  # 0-d
    vf_loss_coeff,  # 0-d, or one for each network, like entropy_coeff
    entropy_coeff,
    clip_param,  # one for each network, or None: CLIP_PARAM applies to all
    slopes,  # (minibatch's rows, blocks of agents, H1) if observations are shared, else None
    of_agents,  # (programs, ROWS, H1) if observations are shared, else None
    partial,  # (programs, partial_stride)
    partial_stride,
    n_rows,
    n_parameters,
    F: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
    N_AGENTS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    N_TYPES: tl.constexpr,
    N_OUTPUTS: tl.constexpr,
    SIZES: tl.constexpr,
    CLIP_PARAM: tl.constexpr,
    IS_CLIPPED: tl.constexpr,
    VALUE_CLIP: tl.constexpr,
    IS_TAKEN: tl.constexpr,
    STORES: tl.constexpr,
    ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCT: tl.constexpr,
    IS_MANY: tl.constexpr,
):
    """Write each program's gradients and weighted sums of terms into ``partial``.

    A program writes one row of ``partial``, and strides over blocks of rows. Gradients are in the order w1, b1, w2, b2,
    outputs' weights and biases, the value last. The value, if any, is output N_OUTPUTS.

    If observations are shared, OWN_COLUMNS is not None, and ``n_rows`` counts rows of environments. A program then has
    one block of agents, and strides over environments. It adds the agents' own columns of the weights to the shared
    outputs. Instead of the gradient of w1, it writes the gradient of these sums twice: summed over the block's agents
    (``slopes``), and summed over its rows (``of_agents``).
    """
    is_shared: tl.constexpr = OWN_COLUMNS is not None
    has_room: tl.constexpr = not is_shared and F < BLOCK_F  # for a constant feature 1, with the first biases as weights
    clip = CLIP_PARAM
    if IS_MANY:
        network = tl.program_id(1).to(tl.int64)
        own_weights_at = network * n_parameters
        w1, b1, w2, b2 = w1 + own_weights_at, b1 + own_weights_at, w2 + own_weights_at, b2 + own_weights_at
        if w3 is not None:
            w3, b3 = w3 + own_weights_at, b3 + own_weights_at
        if v3 is not None:
            v3, c3 = v3 + own_weights_at, c3 + own_weights_at
        indices += network * (n_rows // N_AGENTS)
        if IS_TAKEN:
            advantages += network * n_rows
        vf_loss_coeff, entropy_coeff = vf_loss_coeff + network, entropy_coeff + network
        partial += network * tl.num_programs(0) * partial_stride
        if clip_param is not None:
            clip = tl.load(clip_param + network)
    scale = 1.0 / tl.load(total)
    entropy_weight = tl.load(entropy_coeff)
    is_upright: tl.constexpr = BLOCK_H1 >= 64 and BLOCK_H2 >= 64 and BLOCK_F == 16 and BLOCK_O == 16
    first = tl.program_id(0).to(tl.int64)
    if is_shared:
        n_blocks: tl.constexpr = (N_AGENTS + ROWS - 1) // ROWS
        agent = first % n_blocks * ROWS + tl.arange(0, ROWS)
        unit = tl.arange(0, BLOCK_H1)
        own = own_weights(w1, agent, F, H1, BLOCK_H1, N_AGENTS, OWN_COLUMNS)
        d_own = tl.zeros((ROWS, BLOCK_H1), tl.float32)
        first, by = first // n_blocks, tl.num_programs(0) // n_blocks
    else:
        first_weights = matrix(w1, H1, F, BLOCK_H1, BLOCK_F)
        if has_room:
            is_one = tl.arange(0, BLOCK_F) == F
            first_weights = tl.where(is_one[None, :], vector(b1, H1, BLOCK_H1)[:, None], first_weights)
        d_w1 = tl.zeros((BLOCK_H1, BLOCK_F) if is_upright else (BLOCK_F, BLOCK_H1), tl.float32)
        first, by = first * ROWS, tl.num_programs(0) * ROWS
    second_weights = matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1)
    d_w2 = tl.zeros((BLOCK_H1, BLOCK_H2), tl.float32)
    d_w3 = tl.zeros((BLOCK_H2, BLOCK_O), tl.float32)
    d_b1 = tl.zeros((BLOCK_H1,) if has_room else (ROWS // 16, 8, BLOCK_H1), tl.float32)
    d_b2 = tl.zeros((ROWS // 16, 8, BLOCK_H2), tl.float32)
    d_b3 = tl.zeros((ROWS // 16, 8, BLOCK_O), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum = sums, sums, sums, sums, sums
    features, column = tl.arange(0, BLOCK_F), tl.arange(0, BLOCK_O)[None, :]
    while first < n_rows:  # to save registers, biases are loaded in each iteration
        if is_shared:
            row, is_row = first * N_AGENTS + agent, agent < N_AGENTS
        else:
            row = first + tl.arange(0, ROWS)
            is_row = row < n_rows
        source = row
        if indices is not None:
            source = tl.load(indices + row // N_AGENTS, is_row, 0).to(tl.int64) * N_AGENTS + row % N_AGENTS
        if is_shared:
            hidden1 = activate(vector(observations + first * H1, H1, BLOCK_H1)[None, :] + own, ACTIVATION)
        else:
            is_inside = is_row[:, None] & (features < F)[None, :]
            seen = tl.load(observations + source[:, None] * F + features[None, :], is_inside, 0.0)
            if has_room:
                seen = tl.where(is_row[:, None] & is_one[None, :], 1.0, seen)
            first_sum = times(seen, tl.trans(first_weights), PRODUCT)
            if not has_room:
                first_sum += vector(b1, H1, BLOCK_H1)[None, :]
            hidden1 = activate(first_sum, ACTIVATION)
        second_sum = chained(hidden1, tl.trans(second_weights), PRODUCT)
        hidden2 = activate(second_sum + vector(b2, H2, BLOCK_H2)[None, :], ACTIVATION)
        last_weights, last_biases = _last(w3, b3, v3, c3, N_OUTPUTS, H2, BLOCK_O, BLOCK_H2)
        outputs = chained(hidden2, tl.trans(last_weights), PRODUCT) + last_biases[None, :]

        weight = is_row.to(tl.float32)
        if weights is not None:
            weight = tl.load(weights + row // N_AGENTS, is_row, 0.0)
        target = tl.load(returns + source, is_row, 0.0)
        d_outputs = tl.zeros((ROWS, BLOCK_O), tl.float32)
        if v3 is not None:
            value = tl.sum(tl.where(column == N_OUTPUTS, outputs, 0.0), 1)
            if old_values is None:
                error = value - target
                value_term, d_value = error * error, 2.0 * error
            else:
                old_value = tl.load(old_values + source, is_row, 0.0)
                value_term, d_value = clipped_error(value, target, old_value, VALUE_CLIP)
            d_value = d_value * weight * (tl.load(vf_loss_coeff) * scale)
            d_outputs = tl.where(column == N_OUTPUTS, d_value[:, None], d_outputs)
            value_sum += value_term * weight
            if STORES:
                tl.store(values + source, value, is_row)
        elif advantages is None:
            value = tl.load(values + source, is_row, 0.0)
        if N_TYPES > 0:
            if advantages is None:
                advantage = target - value
            else:
                advantage = tl.load(advantages + (row if IS_TAKEN else source), is_row, 0.0)
            is_allowed = is_row[:, None] & (column < N_OUTPUTS)
            if masks is not None:
                is_allowed = tl.load(masks + source[:, None] * N_OUTPUTS + column, is_allowed, 0) != 0
            log_prob, entropy = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
            types = ()
            for j in tl.static_range(N_TYPES):
                kind = _categorical(outputs, is_allowed, actions, source, is_row, column, j, N_TYPES, SIZES)
                log_prob += kind[0]
                entropy += kind[1]
                types = types + (kind,)
            log_ratio = log_prob - tl.load(log_probs + source, is_row, 0.0)
            kl = excess(log_ratio)
            if IS_CLIPPED:
                policy, d_log_prob = surrogate(log_ratio, advantage, clip)
            else:
                policy, d_log_prob = -log_prob * advantage, -advantage
            policy_sum += policy * weight
            entropy_sum += entropy * weight
            kl_sum += kl * weight
            clipped_sum += tl.where(tl.abs(kl + log_ratio) > clip, weight, 0.0)
            of_policy, of_entropy = (d_log_prob * weight * scale)[:, None], (entropy_weight * weight * scale)[:, None]
            for j in tl.static_range(N_TYPES):
                _, entropy_of_type, chance, product, is_chosen, is_free = types[j]
                d_logits = of_policy * (is_chosen.to(tl.float32) - chance)
                d_logits += of_entropy * (product + chance * entropy_of_type[:, None])
                d_outputs += tl.where(is_free, d_logits, 0.0)

        d_z2, d_w3, d_b3 = pull_back(d_outputs, hidden2, last_weights, d_w3, d_b3, ACTIVATION, PRODUCT)
        d_z1, d_w2, d_b2 = pull_back(d_z2, hidden1, second_weights, d_w2, d_b2, ACTIVATION, PRODUCT)
        if not has_room:
            d_b1 += fold(d_z1)
        if is_shared:
            d_own += d_z1
            at_sum = slopes + (first * n_blocks + tl.program_id(0) % n_blocks) * H1 + unit
            tl.store(at_sum, tl.sum(d_z1, 0), unit < H1)
        elif is_upright:
            d_w1 += across(d_z1, seen, PRODUCT)
        else:
            d_w1 += across(seen, d_z1, PRODUCT)
        first += by

    n_last: tl.constexpr = N_OUTPUTS if v3 is None else N_OUTPUTS + 1
    at = partial + tl.program_id(0).to(tl.int64) * partial_stride
    if is_shared:
        at_row = of_agents + (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]) * H1
        tl.store(at_row + unit[None, :], d_own, (unit < H1)[None, :])
    else:
        d_w1 = tl.trans(d_w1) if is_upright else d_w1
        store_transposed(at, d_w1, 0, F, H1, BLOCK_F, BLOCK_H1)
        at += F * H1
    d_b1 = tl.sum(tl.where(is_one[:, None], d_w1, 0.0), 0) if has_room else unfold(d_b1)
    store_behind_first(at, d_b1, d_w2, d_b2, d_w3, d_b3, H1, H2, n_last, BLOCK_H1, BLOCK_H2, BLOCK_O)
    at += H1 + H1 * H2 + H2 + H2 * n_last + n_last
    if N_TYPES > 0:
        tl.store(at, tl.sum(policy_sum))
        tl.store(at + 2, tl.sum(entropy_sum))
        tl.store(at + 3, tl.sum(kl_sum))
        tl.store(at + 4, tl.sum(clipped_sum))
    if v3 is not None:
        tl.store(at + 1, tl.sum(value_sum))


@triton.jit
def add_up(
    partial,  # (n_programs, n_columns)
    places,  # (n_columns,) int32: index in the gradient followed by the terms, or -1 for neither
    total,
    gradient,  # (n_parameters,)
    terms,  # (5, networks), in the order of `loss_kernels`
    n_programs,
    n_columns,
    n_parameters,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sum the rows of ``partial`` in order, to gradients and terms.

    Terms are divided by ``total``.
    """
    network = tl.program_id(1).to(tl.int64)
    partial, gradient = partial + network * n_programs * n_columns, gradient + network * n_parameters
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.load(places + column, column < n_columns, -1)
    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = 0
    while first < n_programs:
        row = first + tl.arange(0, ROWS)
        is_there = (row < n_programs)[:, None] & (place >= 0)[None, :]
        added += tl.load(partial + row[:, None] * n_columns + column[None, :], is_there, 0.0)
        first += ROWS
    summed = tl.sum(added, 0)
    tl.store(gradient + place, summed, (place >= 0) & (place < n_parameters))
    term = (place - n_parameters) * tl.num_programs(1) + network
    tl.store(terms + term, summed / tl.load(total), place >= n_parameters)


@triton.jit
def _last(w3, b3, v3, c3, N_OUTPUTS: tl.constexpr, H2: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_H2: tl.constexpr):
    """Load weights (BLOCK_O, BLOCK_H2) and biases of the outputs, the value last."""
    output, unit = tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_H2)[None, :]
    weights, biases = tl.zeros((BLOCK_O, BLOCK_H2), tl.float32), tl.zeros((BLOCK_O,), tl.float32)
    if w3 is not None:
        weights = matrix(w3, N_OUTPUTS, H2, BLOCK_O, BLOCK_H2)
        biases = vector(b3, N_OUTPUTS, BLOCK_O)
    if v3 is not None:
        is_value = output == N_OUTPUTS
        weights += tl.load(v3 + unit + 0 * output[:, None], is_value[:, None] & (unit < H2), 0.0)
        biases += tl.load(c3 + 0 * output, is_value, 0.0)
    return weights, biases


@triton.constexpr_function
def _first_choice(sizes, j):
    """Return the index of a type's first choice among those of all types."""
    return sum(sizes[:j])


@triton.jit
def _categorical(
    outputs, is_allowed, actions, source, is_row, column, j: tl.constexpr, N_TYPES: tl.constexpr, SIZES: tl.constexpr
):
    """Return an action type's log-probability, entropy, and tiles.

    The tiles are probabilities p, p log p, the chosen one, and those allowed.
    """
    start: tl.constexpr = _first_choice(SIZES, j)
    is_free = is_allowed & (column >= start) & (column < start + SIZES[j])
    is_chosen = column - start == tl.load(actions + source * N_TYPES + j, is_row, 0)[:, None]
    log_prob, entropy, chance, product = categorical(outputs, is_free, is_chosen)
    return log_prob, entropy, chance, product, is_chosen, is_free
