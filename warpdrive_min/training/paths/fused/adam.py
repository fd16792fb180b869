"""Adam on a GPU in two kernels per step, in CUDA C.

Torch needs a dozen launches, which take longer than learning from a small minibatch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training.paths.triton.launch import compiled_ahead

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Launch

Tensor = torch.Tensor

THREADS: Final = 256
PARAMETERS: Final = 1_024
"""Parameters of a block, if there are few."""
MOST_BLOCKS: Final = 1_024
"""Largest number of blocks of a vector; each reads the partial sums of all."""


def adam(
    backend: Backend,
    *,
    parameters: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    norm: Tensor,
    n_skipped: Tensor,
    lr: Tensor,
    skip: Tensor,
    max_norm: float | Tensor,
    eps: float,
    almost_zero: float,
    betas: tuple[float, float],
) -> Launch:
    """Return a launch of one step of `FlatAdam`; it enqueues.

    Arguments are the backend that makes the kernels, and the step's tensors and numbers.
    """
    n_vectors = step.numel()
    n = parameters.numel() // n_vectors
    n_blocks = min(-(-n // PARAMETERS), MOST_BLOCKS)
    constants = {"N_BLOCKS": n_blocks, "THREADS": THREADS, "N_AGENTS": 1, "ENVS_PER_BLOCK": 1, "BLOCKS_PER_ENV": 1}
    program = backend.program(KERNELS / "adam.cu", {**constants, "EXACT": False})
    partial = torch.zeros(n_vectors, n_blocks + 1, device=parameters.device, dtype=torch.float32)
    limits = max_norm if isinstance(max_norm, Tensor) else torch.full_like(lr, max_norm)
    grid = (n_blocks * n_vectors, 1, 1)

    def take_step() -> None:
        if compiled_ahead(program.load):
            return
        program.launch("add_squares", grid, gradient=gradient, step=step, partial=partial, n=n)
        program.launch(
            "take_step",
            grid,
            parameters=parameters,
            gradient=gradient,
            exp_avg=exp_avg,
            exp_avg_sq=exp_avg_sq,
            step=step,
            norm=norm,
            n_skipped=n_skipped,
            lr=lr,
            skip=skip,
            max_norm=limits,
            partial=partial,
            n=n,
            eps=eps,
            almost_zero=almost_zero,
            rest1=1 - betas[0],
            beta2=betas[1],
            rest2=1 - betas[1],
            log_beta1=math.log(betas[0]),
            log_beta2=math.log(betas[1]),
        )

    return take_step
