"""Optional packages, and classes named by path."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from warpdrive_min.errors import ConfigError

DISTRIBUTION: Final = "warpdrive-min"
"""Name of our distribution; no package index has it."""
ROOT: Final = Path(__file__).resolve().parents[1]
"""Folder of the checkout, or of the installed packages."""


def bench_package() -> str:
    """Return the name of the benchmarks' package: in a checkout `bench`."""
    return "warpdrive_min.bench" if find_spec("warpdrive_min.bench") else "bench"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    A checkout is installed from its folder. A wheel is installed again from where it came, as pip recorded it.
    """
    if (ROOT / "pyproject.toml").is_file():
        folder = "." if os.path.samefile(os.curdir, ROOT) else ROOT
        return f'pip install -e "{folder}[{extra}]"'
    if url := _origin():
        return f'pip install "{DISTRIBUTION}[{extra}] @ {url}"'
    return f'pip install "PATH_OR_URL_OF_WHEEL[{extra}]"'


def with_own_install_commands(text: str) -> str:
    """Replace another checkout's install commands in a text by this one's."""
    return re.sub(r'pip install -e "[^"]*\[(\w+)\]"', lambda found: install_command(found[1]), text)


def _origin() -> str:
    """Return the URL that pip installed us from; empty: unknown."""
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        vcs, url = origin.get("vcs_info"), str(origin["url"])
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
    return ""


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
