"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def on_first_use(package: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a name on first use.

    Args:
        package: Name of the package.
        names: Names by the module of the package that defines them; the modules can be used as attributes too.
    """
    modules = {name: module for module, each in names.items() for name in each}

    def get(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get


class LazyModule:
    """A module that its first attribute imports, and that then takes this object's place.

    Args:
        name: Name of the module.
        namespace: `globals()` of the importing module.
        alias: Name there; None: that of the module.
    """

    def __init__(self, name: str, namespace: dict[str, Any], alias: str | None = None) -> None:
        self._name, self._namespace, self._alias = name, namespace, alias or name

    def __getattr__(self, attribute: str) -> Any:
        module = self._namespace[self._alias] = importlib.import_module(self._name)
        return getattr(module, attribute)
