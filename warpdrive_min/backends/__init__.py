"""The backends: which language runs where. `BACKENDS` is the one table of them."""

from __future__ import annotations

from typing import Final

from warpdrive_min.backends.base import Availability, Backend
from warpdrive_min.backends.cpu import CpuBackend
from warpdrive_min.backends.host import HostBackend
from warpdrive_min.backends.numba_cuda import NumbaBackend
from warpdrive_min.backends.pycuda_driver import PyCudaBackend
from warpdrive_min.errors import BackendUnavailable, known

__all__ = ["BACKENDS", "PLAYED_BY", "Availability", "Backend", "availability", "get"]

BACKENDS: Final[dict[str, Backend]] = {
    backend.name: backend for backend in (CpuBackend(), HostBackend(), NumbaBackend(), PyCudaBackend())
}

PLAYED_BY: Final[dict[str, str]] = {}
"""Backends whose part another one of the same language plays for a whole process; `compat` says which."""


def get(name: str) -> Backend:
    """Return the backend of that name, or the one that plays its part, ready to run.

    Raises:
        BackendUnavailable: The name is unknown, or the backend cannot run here; says why and what to install.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        raise BackendUnavailable(f"env_backend: unknown backend (got {name!r}); known are {known(BACKENDS)}")
    return BACKENDS[PLAYED_BY.get(name, name)].require()


def availability() -> dict[str, Availability]:
    """Say of each backend whether it can run here, or why not and what to install."""
    return {name: backend.availability() for name, backend in BACKENDS.items()}
