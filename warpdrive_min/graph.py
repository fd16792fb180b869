"""CUDA graphs: a sequence of launches captured once and replayed as one."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import require


def capture(backend: Backend, work: Callable[[], None]) -> Callable[[], None]:
    """Capture what ``work`` enqueues and return the replay, which enqueues it on the current stream.

    The replay keeps ``work``, and so the environments or policies whose launches it is.
    ``work`` must have run once before, so that everything is compiled and allocated; the capture itself
    runs nothing. Kernels keep their counters on the device, so replays go on where the last one ended.

    Raises:
        ConfigError: The backend runs on the CPU, which has no graphs.
    """
    rule = f"backend {backend.name!r} has no CUDA graphs"
    require(backend.captures_graphs, "capture", rule, do="call the work itself")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with _nothing_collected(), backend.stream() as stream, torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.synchronize()
    return _Replay(graph, work)


@dataclass(frozen=True, slots=True)
class _Replay:
    """A graph, and what owns the kernels and arrays that it runs on: without it these would be freed."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        self.graph.replay()


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collect garbage now and not within the block: what a dead module or graph frees would break the capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
