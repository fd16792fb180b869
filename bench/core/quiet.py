"""Quiet while a point is timed: of the points that are set up and checked at once all others wait meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final


class CrowdedError(RuntimeError):
    """A point and its siblings do not fit into the memory of the GPU together."""


@dataclass(slots=True)
class Siblings:
    """Processes that set up and check points at the same time as this one; a process by itself has none."""

    ask_for_quiet: Callable[[bool], int] = lambda wants_quiet: 0
    """Asks for quiet, or says that it is over; waits until this process may go on, and returns how many others wait."""
    n: int = 0
    """Number of those that waited last, each of which has work on the GPU."""


SIBLINGS: Final = Siblings()


@contextmanager
def quiet() -> Iterator[None]:
    """Do what is timed while all siblings wait.

    Raises:
        CrowdedError: Memory was short, for which torch's allocator waits and gives back what it keeps.
    """
    SIBLINGS.n = SIBLINGS.ask_for_quiet(True)
    try:
        yield
    finally:
        SIBLINGS.ask_for_quiet(False)
    if not SIBLINGS.n:
        return
    import torch  # noqa: PLC0415  (takes seconds)

    if torch.cuda.memory_stats().get("num_alloc_retries"):
        raise CrowdedError(f"at once: a point beside {SIBLINGS.n} others must find memory (it ran out); take fewer")
