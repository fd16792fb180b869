"""A run of a short piece of work: many times in one graph, or a few times eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from bench.case import Mode
from warpdrive_min import capture
from warpdrive_min.backends import Backend

GRAPH_STEPS: Final = 50
"""Steps in a captured graph; long enough that its launch costs nothing."""
EAGER_STEPS: Final = 4
"""Steps of a run on a CPU: one Philox block serves four draws, so that every run costs the same."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that a run does several times."""

    run: Callable[[], None]
    """Enqueues all of it."""
    n: int
    """How many times."""
    mode: Mode


def repeated(backend: Backend, work: Callable[[], object], mode: Mode | None = None, n: int | None = None) -> Repeated:
    """Do the work once, so that all is compiled, and return it many times over.

    Args:
        backend: That it runs on.
        work: Enqueues the same launches each time.
        mode: As one graph or eagerly; None: as a graph where there are graphs.
        n: How many times; None: `GRAPH_STEPS` where there are graphs, also if they are not used, else `EAGER_STEPS`.
    """
    n = n or (GRAPH_STEPS if backend.captures_graphs else EAGER_STEPS)
    mode = mode or ("graph" if backend.captures_graphs else "eager")

    def run() -> None:
        for _ in range(n):
            work()

    work()
    return Repeated(capture(backend, run) if mode == "graph" else run, n, mode)


def torch_threads(backend: Backend) -> int | None:
    """Return the threads of torch's own operations; None on a GPU."""
    return torch.get_num_threads() if backend.device.type == "cpu" else None
