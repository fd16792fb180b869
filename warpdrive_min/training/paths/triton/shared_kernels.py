"""Triton kernels of a perceptron on shared observations, after its first layer."""

from __future__ import annotations

import triton
import triton.language as tl

from warpdrive_min.training.paths.triton.tiles import activate, chained, matrix, vector


@triton.jit
def own_weights(
    w1, agent, F: tl.constexpr, H1: tl.constexpr, BLOCK_H1: tl.constexpr, N_AGENTS: tl.constexpr, OWN: tl.constexpr
):
    """Load the agents' own columns of the first layer's weights, (agents, BLOCK_H1).

    ``w1`` is (H1, F). An agent's own column is the feature with which it marks itself.
    """
    unit = tl.arange(0, BLOCK_H1)[None, :]
    return tl.load(w1 + unit * F + OWN + agent[:, None], (agent < N_AGENTS)[:, None] & (unit < H1), 0.0)


@triton.jit(do_not_specialize=["n_envs"])
def forward(
    sums,  # (n_envs, H1)
    w1,  # (H1, F)
    w2,  # (H2, H1)
    b2,
    w3,  # (O, H2)
    b3,
    out,  # (n_envs, N_AGENTS, O)
    n_envs,
    F: tl.constexpr,
    H1: tl.constexpr,
    H2: tl.constexpr,
    O: tl.constexpr,
    BLOCK_H1: tl.constexpr,
    BLOCK_H2: tl.constexpr,
    BLOCK_O: tl.constexpr,
    N_AGENTS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Write ``out``; a program has one block of agents, and strides over environments."""
    n_blocks: tl.constexpr = (N_AGENTS + ROWS - 1) // ROWS
    agent = tl.program_id(0) % n_blocks * ROWS + tl.arange(0, ROWS)
    output = tl.arange(0, BLOCK_O)[None, :]
    own = own_weights(w1, agent, F, H1, BLOCK_H1, N_AGENTS, OWN_COLUMNS)
    second_weights = tl.trans(matrix(w2, H2, H1, BLOCK_H2, BLOCK_H1))
    third_weights = tl.trans(matrix(w3, O, H2, BLOCK_O, BLOCK_H2))
    second_bias, third_bias = vector(b2, H2, BLOCK_H2)[None, :], vector(b3, O, BLOCK_O)[None, :]
    env = (tl.program_id(0) // n_blocks).to(tl.int64)
    while env < n_envs:
        hidden = activate(vector(sums + env * H1, H1, BLOCK_H1)[None, :] + own, ACTIVATION)
        hidden = activate(chained(hidden, second_weights, PRODUCT) + second_bias, ACTIVATION)
        outputs = chained(hidden, third_weights, PRODUCT) + third_bias
        at = out + (env * N_AGENTS + agent[:, None]) * O + output
        tl.store(at, outputs, (agent < N_AGENTS)[:, None] & (output < O))
        env += tl.num_programs(0) // n_blocks
