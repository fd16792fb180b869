"""Work of a peer, which an adapter creates from a point."""

from __future__ import annotations

import atexit
import ctypes
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Point = Mapping[str, Any]
"""Axes of a point, and the ``options`` of the peer."""

RUN_STEPS = 50
"""Steps of all environments in a run of one program."""
TRACED = 8
"""Number of environments whose step is checked against our reference."""


class Unavailable(Exception):  # noqa: N818  (not a failure)
    """The point cannot run in this interpreter."""


@dataclass(frozen=True)
class Work:
    """Point of a peer, ready to be timed."""

    run: Callable[[], None]
    """Starts one block of work."""
    wait: Callable[[], None]
    """Waits for all work."""
    env_steps: int
    """Steps of one run, over all environments."""
    trace: Callable[[], dict[str, Any]]
    """Returns a step to check, or ``says``: the peer's own check.

    The step is ``before``, ``actions``, ``after``, ``rewards`` (lists with a row per environment) and ``config``
    (differences from ours). Waits."""
    counts: str
    """Meaning of an environment step."""
    mode: str = "eager"
    """``fused``: a run is one compiled program."""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    threads: int | None = 1
    """CPU threads; None on a GPU."""
    compiled: Callable[[], int] | None = None
    """Returns the number of programs compiled since set-up; None: no counter."""
    laps: list[int] | None = None
    """Receives the start times of the parts of a run, ns.

    Each part waits for the previous one. None: a run has no parts."""
    own_ns: Callable[[], int] | None = None
    """Returns the time of the last run, ns, if the software times it itself."""
    notes: Mapping[str, Any] = field(default_factory=dict)


def as_lists(rows: int, **arrays: Any) -> dict[str, Any]:
    """Return arrays as lists with a row per environment, for `Work.trace`."""
    return {name: values.reshape(rows, -1).tolist() for name, values in arrays.items()}


def do_not_wait() -> None:
    """Do not wait: the work is synchronous."""


def temporary_folder(peer: str) -> str:
    """Create a folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"{peer}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def use_threads(n: int) -> None:
    """Let torch use ``n`` threads; 0: as many as by default."""
    import torch  # noqa: PLC0415  (theirs)

    if n:
        torch.set_num_threads(n)


def torch_processor() -> dict[str, str]:
    """Return the name and architecture of the device that torch uses."""
    import torch  # noqa: PLC0415  (theirs)

    if not torch.cuda.is_available():
        return {"processor": platform.machine(), "architecture": torch.backends.cpu.get_cpu_capability()}
    major, minor = torch.cuda.get_device_capability()
    return {"processor": torch.cuda.get_device_name(), "architecture": f"sm_{major}{minor}"}


def gpu_uuid() -> str | None:
    """Return the UUID of the first visible NVIDIA GPU; None if absent."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetUuid(found, device):
        return None
    return str(uuid.UUID(bytes=bytes(found)))
