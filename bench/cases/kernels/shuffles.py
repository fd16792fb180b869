"""The case `shuffle`: a permutation, drawn by our kernels or by `torch.randperm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from bench.case import Check, Point, Preset
from bench.cases.environments import SEED, available
from bench.cases.kernels.shared import OURS, implementations, on_gpu_too, prepared, worst
from bench.measure import Timed
from warpdrive_min.backends import Backend
from warpdrive_min.training.algorithms.shuffle import Shuffle


def shuffle(point: Point) -> Timed:
    """Draw a permutation: ours, or `torch.randperm` on the same device, which is called eagerly."""
    backend = available(point["backend"])
    n = point["n_indices"]
    draw, indices, oracle = (our_shuffle if point["implementation"] == OURS else torch_randperm)(backend, n)

    def check() -> Check:
        draw()
        before = indices.to("cpu", copy=True)
        draw()
        got = indices.to("cpu", copy=True)
        errors = {"missing indices": float((got.sort().values != torch.arange(n)).sum())}
        errors["repeated draws"] = float(n > FEW_INDICES and bool((got == before).all()))
        if oracle is not None:
            errors["other indices than NumPy's"] = float((oracle() != got).sum())
        return worst(errors, "all indices once" + (", and those of NumPy with the same seed" if oracle else ""))

    return prepared(
        point,
        backend,
        draw,
        check,
        units={"indices": n},
        least_bytes=indices.nbytes,
        mode=None if point["implementation"] == OURS else "eager",
    )


FEW_INDICES: Final = 20
"""Up to which the same permutation may come twice by chance."""

Permuting = tuple[Callable[[], None], torch.Tensor, Callable[[], torch.Tensor] | None]
"""What draws, where to, and what returns the draw that an oracle makes of the same seed and counter."""


def our_shuffle(backend: Backend, n: int) -> Permuting:
    """Set up `Shuffle`."""
    ours, oracle = Shuffle(backend, n, SEED), Shuffle("cpu", n, SEED)

    def same() -> torch.Tensor:
        oracle.counter.copy_(ours.counter - 1)
        oracle.permute()
        return oracle.indices

    return ours.permute, ours.indices, same


def torch_randperm(backend: Backend, n: int) -> Permuting:
    """Set up `torch.randperm` into a tensor that is kept."""
    indices = torch.zeros(n, dtype=torch.int64, device=backend.device)

    def draw() -> None:
        torch.randperm(n, out=indices)

    return draw, indices, None


def shuffle_points(preset: Preset) -> list[Point]:
    """Return numbers of indices up to those of a rollout of 100,000 environments."""
    sizes = [1_000] if preset == "smoke" else [10_000, 1_000_000]
    sizes += [10_000_000] if on_gpu_too(preset) else []
    return [point for n in sizes for point in implementations({"n_indices": n}, (OURS, "torch.randperm"))]
