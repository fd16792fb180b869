"""CUDA graphs: launches captured once and replayed as one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.collector import collection_paused
from warpdrive_min.errors import require


def capture(backend: Backend, work: Callable[[], None]) -> Callable[[], None]:
    """Capture the launches of ``work``; return a function that replays them.

    The replay enqueues on the current stream. It keeps ``work`` alive, and so its environments or policies. Run
    ``work`` once before the capture, so that everything is compiled and allocated; the capture itself runs nothing.
    Kernels count on the device, so each replay continues from the last one.

    Raises:
        ConfigError: The backend runs on the CPU, which has no graphs.
    """
    rule = f"backend {backend.name!r} has no CUDA graphs"
    require(backend.captures_graphs, "capture", rule, do="call the work itself")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Freeing a dead module or graph would break the capture. A collection before it would take 0.1 s.
    with collection_paused(), backend.stream() as stream, torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.synchronize()

    def replay(keep: Callable[[], None] = work) -> None:
        graph.replay()

    return replay
