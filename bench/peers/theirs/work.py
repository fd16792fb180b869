"""Work of a peer, as an adapter makes it of a point."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Point = Mapping[str, Any]
"""Value of each axis, and ``options`` of the peer."""

RUN_STEPS = 50
"""Steps of all environments in a run of what steps within one program."""
TRACED = 8
"""Environments of which a step is shown, so that it can be held against our own reference."""


class Unavailable(Exception):  # noqa: N818  (not a failure)
    """The point cannot run in this interpreter; the message says why."""


@dataclass(frozen=True)
class Work:
    """One point of a peer, made ready to be timed."""

    run: Callable[[], None]
    """Does one block of work; need not wait for it."""
    wait: Callable[[], None]
    """Waits until all of it is done."""
    env_steps: int
    """Steps of one run, over all environments."""
    trace: Callable[[], dict[str, Any]]
    """Returns a step that can be checked (``before``, ``actions``, ``after``, ``rewards``: lists with a row for each
    environment, and ``config`` of what differs from ours), or ``says``: what was checked here instead. Raises if
    something is wrong. It waits."""
    counts: str
    """Meaning of an environment's step, in a few words."""
    mode: str = "eager"
    """``fused``: a run is one compiled program."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    threads: int | None = 1
    """Threads of the CPU that do the work; None on a GPU."""
    compiled: Callable[[], int] | None = None
    """Returns how many programs have been compiled since the point was made ready; None: it compiles nothing, or does
    not tell."""
    laps: list[int] | None = None
    """Gets the times, ns, at which the same parts of every run begin, each of which waits for the one before. None: a
    run is timed as a whole."""
    notes: Mapping[str, Any] = field(default_factory=dict)


def shown(rows: int, **arrays: Any) -> dict[str, Any]:
    """Return arrays of so many environments, such as `Work.trace` has them, as lists with a row for each."""
    return {name: values.reshape(rows, -1).tolist() for name, values in arrays.items()}


def nothing() -> None:
    """Wait for nothing: the work is done when its call returns."""


def temporary_folder(peer: str) -> str:
    """Create a folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"{peer}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def card() -> str | None:
    """Return the UUID of the first NVIDIA GPU that this process may use, as its driver says; None: there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetUuid(found, device):
        return None
    return str(uuid.UUID(bytes=bytes(found)))
