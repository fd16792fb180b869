"""Packages that only some features need."""

from __future__ import annotations

import importlib
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
