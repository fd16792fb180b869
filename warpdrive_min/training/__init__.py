"""Training: A2C, PPO and DDPG on the device of the environments."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Final

MOVED: Final = {
    "arrays": "loop",
    "autoscale": "scale",
    "central": "models",
    "certificate": "record",
    "checkpoint": "loop",
    "distributed": "scale",
    "evaluation": "loop",
    "members": "models",
    "metrics": "loop",
    "normalisation": "models",
    "policies": "loop",
    "population": "scale",
    "rollout": "loop",
    "trained": "record",
}
"""Folders of modules that were in this one."""


class _MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports moved modules by their old names, with a DeprecationWarning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return importlib.util.spec_from_loader(fullname, self) if package == __name__ and name in MOVED else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        name = spec.name.rpartition(".")[2]
        new = f"{__name__}.{MOVED[name]}.{name}"
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module its own spec back, which the import by the old name replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_MovedModules())
