"""Random permutations and rows on the device, drawn by graph replays too."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Final

import torch

from warpdrive_min import backends
from warpdrive_min.backends.base import Argument, Backend, Launch
from warpdrive_min.errors import require
from warpdrive_min.function_manager import CUDAFunctionManager, KernelPlan, core_sources
from warpdrive_min.rng import seed_words
from warpdrive_min.training.paths.triton.launch import planned_ahead

MANY: Final = 2**20
"""Number of indices from which on a thread permutes several.

With fewer indices, some multiprocessors would have none.
"""
PER_THREAD: Final = 8
"""Indices of a thread, if there are many."""


class RandomIndices:
    """Indices drawn by a kernel from `counter` and seed, on every backend.

    Args:
        backend: Backend of the draws, or its name.
        n: Number of indices of a seed.
        seed: Seed of the draws; several seeds have n indices each, side by side.

    Raises:
        ConfigError: The total number is not from 1 to 2^31 - 1.
        ValueError: A seed is negative or has more than 64 bits.
    """

    def __init__(self, backend: str | Backend, n: int, seed: int | Sequence[int]) -> None:
        seeds = [seed] if isinstance(seed, int) else seed
        n *= len(seeds)
        require(1 <= n < 2**31, "random indices.n", "must be from 1 to 2^31 - 1", n)
        self._backend = backends.get(backend) if isinstance(backend, str) else backend
        device = self._backend.device
        self.indices = torch.zeros(n, dtype=torch.int32, device=device)
        """Indices of the last draw, (seeds * n,) int32; static."""
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)
        """Number of draws so far, (1,) int32."""
        words = list(itertools.chain.from_iterable(map(seed_words, seeds)))
        self.seed = torch.tensor(words, dtype=torch.int32, device="cpu").to(device)
        """Low and high word of each seed, (2 * seeds,) int32."""

    @property
    def _n_threads(self) -> int:
        return len(self.indices)

    @property
    def _plan(self) -> KernelPlan:
        return KernelPlan(CUDAFunctionManager(1, self._n_threads, backend=self._backend), core_sources("shuffle"), {})

    @functools.cached_property
    def _functions(self) -> CUDAFunctionManager:
        return self._plan.load()

    def rehearse(self) -> None:
        """Compile the kernels, for `ahead.compiled`."""
        planned_ahead(self._plan)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors to resume from."""
        return {"counter": self.counter, "seed": self.seed}

    def _prepare(self, name: str, **given: Argument) -> Launch:
        kernel = self._functions.kernel(name)
        given |= {"indices": self.indices, "counter": self.counter, "seed": self.seed, "n_envs": self._n_threads}
        return self._functions.prepare(kernel, [given[parameter.name] for parameter in kernel.parameters])


class Shuffle(RandomIndices):
    """Permutations of 0 to n - 1 in `indices`, one per seed."""

    def __init__(self, backend: str | Backend, n: int, seed: int | Sequence[int]) -> None:
        super().__init__(backend, n, seed)
        self._n = n

    @property
    def _n_threads(self) -> int:
        n = len(self.indices)
        return -(-n // PER_THREAD) if n >= MANY else n

    @functools.cached_property
    def prepared(self) -> Launch:
        """Launch of the next draw, without its count."""
        half_bits = ((self._n - 1).bit_length() + 1) // 2
        return self._prepare("permute", half_bits=half_bits, n=self._n, n_indices=len(self.indices))

    def permute(self) -> None:
        """Draw the next permutations into `indices`; enqueues."""
        self.prepared()
        self.counter.add_(1)


class RowDraw(RandomIndices):
    """Uniform draws of rows with replacement, below a size on the device."""

    def __init__(self, backend: str | Backend, n: int, seed: int) -> None:
        super().__init__(backend, n, seed)
        self._draw: tuple[int, Launch] | None = None

    def draw(self, size: torch.Tensor) -> None:
        """Draw n rows below ``size``, (1,) int32 and at least 1, into `indices`; enqueues."""
        if self._draw is None or self._draw[0] != size.data_ptr():
            self._draw = (size.data_ptr(), self._prepare("draw_rows", size=size))
        self._draw[1]()
        self.counter.add_(1)
