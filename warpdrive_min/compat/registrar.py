"""WarpDrive's registrar: ours with the arguments of earlier versions."""

from __future__ import annotations

from typing import Final

from warpdrive_min import registrar
from warpdrive_min.compat.functions import Argfix

_RENAMED: Final = Argfix({"device": "env_backend", "use_cuda": "env_backend"})


class EnvironmentRegistrar(registrar.EnvironmentRegistrar):
    """Interface to our registrar's table; ``device`` and ``use_cuda`` are old names."""

    add = _RENAMED(registrar.EnvironmentRegistrar.add)
    has_env = _RENAMED(registrar.EnvironmentRegistrar.has_env)

    @_RENAMED
    def get(self, name: str, env_backend: str | bool = "cpu") -> type:
        """Return a class by name and backend; True means `pycuda`, False `cpu`."""
        names = {True: "pycuda", False: "cpu"}
        return super().get(name, env_backend if isinstance(env_backend, str) else names[env_backend])


env_registrar = EnvironmentRegistrar()
"""Shared registrar."""
