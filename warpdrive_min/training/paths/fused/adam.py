"""Adam on a GPU in two kernels per step.

Torch needs a dozen launches, which take longer than learning from a small minibatch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from warpdrive_min.training.paths.triton.launch import launch
from warpdrive_min.training.paths.triton.sizes import power_of_two

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Launch

Tensor = torch.Tensor

LEAST: Final = 1_024
"""Smallest block of parameters of a program."""
MOST_PROGRAMS: Final = 1_024
"""Largest number of programs; each reads the partial sums of all."""


def adam(
    *, max_norm: float | Tensor, eps: float, almost_zero: float, betas: tuple[float, float], **tensors: Tensor
) -> Launch:
    """Return a launch of one step of `FlatAdam`; it enqueues.

    Arguments are its tensors and numbers.
    """
    from warpdrive_min.training.paths.triton import adam_kernels

    vectors = [tensors[name] for name in ("parameters", "gradient", "exp_avg", "exp_avg_sq")]
    numbers = [tensors[name] for name in ("step", "norm", "n_skipped", "lr", "skip")]
    parameters, gradient, step = vectors[0], vectors[1], numbers[0]
    n_vectors = step.numel()
    n = parameters.numel() // n_vectors
    block = power_of_two(-(-n // MOST_PROGRAMS), LEAST)
    n_programs = -(-n // block)
    partial = torch.empty(n_vectors, n_programs + 1, device=parameters.device, dtype=torch.float32)
    norms = max_norm if isinstance(max_norm, Tensor) else None
    constants = {
        "MAX_NORM": 0.0 if isinstance(max_norm, Tensor) else max_norm,
        "EPS": eps,
        "ALMOST_ZERO": almost_zero,
        "BETA1": betas[0],
        "BETA2": betas[1],
        "LOG_BETA1": math.log(betas[0]),
        "LOG_BETA2": math.log(betas[1]),
        "PARTS": power_of_two(n_programs),
        "BLOCK": block,
    }

    def take_step() -> None:
        grid = (n_programs, n_vectors)
        launch(adam_kernels.add_squares, grid)(gradient, step, partial, n, BLOCK=block)
        launch(adam_kernels.take_step, grid)(*vectors, *numbers, norms, partial, n, **constants)

    return take_step
