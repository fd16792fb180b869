"""Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from threading import Lock
from typing import Final

_lock: Final = Lock()
_pauses: list[bool] = []
"""If the collector ran, at the start of each pause in progress."""


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage within the block, or in each call of a decorated function.

    Blocks of several threads may overlap. Threads other than the main one must do their work in such a block: a PyCUDA
    kernel that is collected in a thread without its context cannot be unloaded, and leaks.
    """
    with _lock:
        _pauses.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            if _pauses.pop() and not _pauses:
                gc.enable()
