"""WarpDrive's registrar: the core's, with the arguments of earlier versions too."""

from __future__ import annotations

from typing import Final

from warpdrive_min import registrar
from warpdrive_min.compat.functions import Argfix

_RENAMED: Final = Argfix({"device": "env_backend", "use_cuda": "env_backend"})


class EnvironmentRegistrar(registrar.EnvironmentRegistrar):
    """The core's registrar, of whose one table this is another door; ``device`` and ``use_cuda`` are old names."""

    add = _RENAMED(registrar.EnvironmentRegistrar.add)
    has_env = _RENAMED(registrar.EnvironmentRegistrar.has_env)

    @_RENAMED
    def get(self, name: str, env_backend: str | bool = "cpu") -> type:
        """Return the class of that name for a backend, as the core does; True and False mean `pycuda` and `cpu`."""
        names = {True: "pycuda", False: "cpu"}
        return super().get(name, env_backend if isinstance(env_backend, str) else names[env_backend])


env_registrar = EnvironmentRegistrar()
"""The registrar that everyone may use."""
