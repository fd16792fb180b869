"""Half of an iteration: first run eagerly, then as one CUDA graph.

Timing it does not wait for the device.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.graph import capture
from warpdrive_min.tracing import named


class Captured:
    """Repeated work: eager the first time, then optionally a captured graph.

    Args:
        backend: Backend that runs the work.
        work: Function that enqueues the same launches each time.
        as_graph: Capture the work as a CUDA graph on its second run.
        name: Name of its ranges.
    """

    def __init__(self, backend: Backend, work: Callable[[], None], *, as_graph: bool, name: str = "") -> None:
        self._backend, self._work, self._as_graph, self._name = backend, work, as_graph, name
        self._replay: Callable[[], None] | None = None
        self._has_run = False
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._host_s = 0.0
        self.capture_s = 0.0
        """Duration of the capture, seconds."""

    def __call__(self) -> None:
        """Enqueue the work once; synchronises only for the one capture."""
        if self._as_graph and self._has_run and self._replay is None:
            start = time.perf_counter()
            self._replay = capture(self._backend, self._work)
            self.capture_s = time.perf_counter() - start
            _captured.add(self)
        is_eager = self._replay is None
        work = named(self._name if is_eager else f"{self._name}, CUDA graph", self._replay or self._work)
        self._has_run = True
        if self._backend.device.type == "cuda":
            start_event, end_event = _event(), _event()
            start_event.record()
            work()
            end_event.record()
            self._events.append((start_event, end_event))
        else:
            start = time.perf_counter()
            work()
            self._host_s += time.perf_counter() - start

    def take_seconds(self) -> float:
        """Return the duration of all runs since the last call, seconds; synchronises."""
        seconds, self._host_s = self._host_s, 0.0
        for start, end in self._events:
            end.synchronize()
            seconds += start.elapsed_time(end) / 1e3
        self._events.clear()
        return seconds

    def release(self) -> None:
        """Release the graph and its memory; the next run is eager."""
        self._replay, self._has_run = None, False


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


_captured: weakref.WeakSet[Captured] = weakref.WeakSet()


def release_graphs() -> None:
    """Release all CUDA graphs; NCCL cannot shut down while one is alive.

    The next run of each is eager.
    """
    for captured in list(_captured):
        captured.release()
    _captured.clear()
