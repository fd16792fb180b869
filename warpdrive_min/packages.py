"""Optional packages, and classes named by path."""

from __future__ import annotations

import importlib
import os
from typing import Any

from warpdrive_min.errors import ConfigError


def optional_package(module: str, who: str, install: str, name: str = "") -> Any:
    """Import a module of an optional package.

    ``name`` is the package's name, if it differs from the module's.

    Raises:
        ConfigError: The package or one that it needs is missing; names it, and the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError.of(who, f"needs the package {name or module.partition('.')[0]}", error, install) from error


def is_class_path(name: str) -> bool:
    """True if a name is an existing path or ``module:Class``."""
    return ":" in name or os.path.exists(name)
