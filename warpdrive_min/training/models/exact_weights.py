"""Initial weights of exact training, independent of a library's rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from warpdrive_min.kernels import maths_numpy


def initialise(model: torch.nn.Module, method: str | None, seed: Sequence[int], member: int | None = None) -> None:
    """Draw initial weights by a method of `FullyConnected`'s table.

    They are uniform like torch's and Xavier's, or orthogonal. Orthogonal rows or columns come from Gaussian ones, in
    float64, and are rounded once.

    Args:
        model: Model on any device.
        method: `ModelConfig.init_method`.
        seed: Seed of the random numbers.
        member: Number of the member whose weights to draw, in networks of a population; None: an ordinary network.
    """
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            sizes = getattr(module, "sizes", [module.out_features])
            gains = {"policy_head": 0.01, "vf_head": 1.0}
            gain = gains.get(name.rpartition(".")[2], getattr(module, "gain", math.sqrt(2)))
            limit = 1 / math.sqrt(getattr(module, "fan", module.in_features))
            weights = [_initial(draws, method, size, module.in_features, gain, limit) for size in sizes]
            limit = 0.0 if method == "orthogonal" else limit
            biases = _uniform(draws, (module.out_features,), limit)
            with torch.no_grad():
                own = ... if member is None else member
                module.weight[own].copy_(torch.from_numpy(np.concatenate(weights)))
                module.bias[own].copy_(torch.from_numpy(biases))


def _initial(draws: np.random.Generator, method: str | None, n_out: int, n_in: int, gain: float, limit: float) -> Any:
    if method == "orthogonal":
        return (_orthogonal(draws, n_out, n_in) * gain).astype(np.float32)
    return _uniform(draws, (n_out, n_in), math.sqrt(6 / (n_in + n_out)) if method == "xavier" else limit)


def _uniform(draws: np.random.Generator, shape: tuple[int, ...], limit: float) -> Any:
    """Return uniform floats in [-limit, limit)."""
    return (draws.random(shape, np.float32) * np.float32(2) - np.float32(1)) * np.float32(limit)


def _orthogonal(draws: np.random.Generator, n_out: int, n_in: int) -> Any:
    """Return orthonormal rows, or orthonormal columns if there are more rows.

    By the Gram-Schmidt process, applied twice to each vector.
    """
    n_long, n_short = max(n_out, n_in), min(n_out, n_in)
    first, second = (draws.random((n_short, n_long), np.float32) for _ in range(2))
    size = np.sqrt(np.float32(-2) * maths_numpy.log(np.float32(1) - first))
    rows = (size * maths_numpy.maths(exact=True).cos(np.float32(2 * np.pi) * second)).astype(np.float64)
    for j in range(n_short):
        for _ in range(2 if j else 0):
            shares = _sums(rows[:j] * rows[j])
            rows[j] -= np.add.accumulate(shares[:, None] * rows[:j], axis=0)[-1]
        rows[j] /= np.sqrt(_sums(rows[j : j + 1] ** 2))
    return rows if n_out <= n_in else np.ascontiguousarray(rows.T)


def _sums(x: Any) -> Any:
    """Return the sum of each row, added in order from first to last."""
    return np.add.accumulate(x, axis=1)[:, -1]
