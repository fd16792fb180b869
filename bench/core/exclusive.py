"""Pause concurrent points while one is timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


class CrowdedError(RuntimeError):
    """A point and its siblings exceed the GPU's memory."""


@dataclass(slots=True)
class Siblings:
    """Processes that set up and check points concurrently with this one."""

    ask_for_exclusive: Callable[[bool], int] = lambda wants_exclusive: 0
    """Requests or ends the pause; blocks until granted.

    Returns the number of paused processes."""
    n: int = 0
    """Number of processes paused by the last request, all using the GPU."""


SIBLINGS: Final = Siblings()


@contextmanager
def exclusive() -> Iterator[None]:
    """Pause sibling processes during a timed section.

    Synchronises first: a paused process must leave no work on the GPU.

    Raises:
        CrowdedError: Memory was short, so that torch's allocator waited and released its cache.
    """
    if (loaded := sys.modules.get("torch")) and loaded.cuda.is_initialized():
        loaded.cuda.synchronize()
    SIBLINGS.n = SIBLINGS.ask_for_exclusive(True)
    try:
        yield
    finally:
        SIBLINGS.ask_for_exclusive(False)
    if not SIBLINGS.n:
        return
    import torch  # noqa: PLC0415  (takes seconds)

    if torch.cuda.memory_stats().get("num_alloc_retries"):
        raise CrowdedError(
            f"--at-once: the GPU ran out of memory (a point and {SIBLINGS.n} others); set up fewer at once"
        )
