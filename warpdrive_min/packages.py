"""Imports on first use, and packages that only some features need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from warpdrive_min.errors import ConfigError


def optional_package(module: str, who: str, install: str, name: str = "") -> Any:
    """Import a module of a package that need not be installed; ``name`` is the package's, if not the module's.

    Raises:
        ConfigError: It, or something that it needs, is not installed; says what, and the line that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError.of(who, f"needs the package {name or module.partition('.')[0]}", error, install) from error


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
