"""Backends: one language on one device each; `BACKENDS` is their table."""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min.errors import BackendUnavailable, known
from warpdrive_min.lazy import on_first_use

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Availability, Backend
else:
    __getattr__ = on_first_use(__name__, {"base": ("Availability", "Backend")})

__all__ = ["BACKENDS", "REPLACED_BY", "Availability", "Backend", "availability", "get"]


class Backends(UserDict[str, "Backend"]):
    """Backends by name, imported on first use; listing the names imports none.

    An entry begins as its module and class.
    """

    def __getitem__(self, name: str) -> Backend:
        found: Any = self.data[name]
        if isinstance(found, tuple):
            module, kind = found
            self.data[name] = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
        return self.data[name]


_CLASSES: Any = {
    "cpu": ("cpu", "CpuBackend"),
    "host": ("host", "HostBackend"),
    "numba": ("numba_cuda", "NumbaBackend"),
    "pycuda": ("pycuda_driver", "PyCudaBackend"),
}
BACKENDS: Final = Backends(_CLASSES)
"""Backends by name, which `availability` describes."""

REPLACED_BY: Final[dict[str, str]] = {}
"""Replacements of backends for a whole process, of the same language.

`compat` sets them.
"""


def get(name: str) -> Backend:
    """Return an available backend by name, or its replacement (`REPLACED_BY`).

    Raises:
        BackendUnavailable: The name is unknown, or the backend cannot run here; names the reason and what to install.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        raise BackendUnavailable(f"env_backend: unknown backend (got {name!r}); known are {known(BACKENDS)}")
    return BACKENDS[REPLACED_BY.get(name, name)].require()


def availability() -> dict[str, Availability]:
    """Return each backend's availability, with a reason and what to install."""
    return {name: backend.availability() for name, backend in BACKENDS.items()}
