"""Compiled code, kept in the user's cache folder under a hash of everything that may change it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from warpdrive_min.errors import ConfigError, WarpDriveError
from warpdrive_min.files import UNFINISHED, replacing

SCHEMA = 1
"""Raise it when the meaning of a cached file changes."""
VARIABLE: Final = "WARPDRIVE_MIN_CACHE"
"""Environment variable that names the cache folder."""


def folder() -> Path:
    """Return the cache folder: $WARPDRIVE_MIN_CACHE, or warpdrive_min in the user's cache.

    Raises:
        ConfigError: No variable names one, and the user has no home.
    """
    return _place()[0]


def _place() -> tuple[Path, str]:
    """Return the cache folder, and the variable that it comes from."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen), VARIABLE
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen, "warpdrive_min"), "XDG_CACHE_HOME"
    try:
        return Path.home() / ".cache" / "warpdrive_min", "HOME"
    except RuntimeError as error:
        raise ConfigError.of("cache folder", "needs a home folder", error, f"set ${VARIABLE} or $HOME") from error


def require_writable() -> None:
    """Make the cache folder.

    Raises:
        ConfigError: It cannot be made or written; names it and the variable that it comes from.
    """
    path, variable = _place()
    if (why := obstacle(path)) is not None:
        rule, do = f"{path}, from ${variable}, must be a folder that can be written", f"set ${VARIABLE} to one that can"
        raise ConfigError.of("cache folder", rule, why, do)


def obstacle(path: Path) -> str | None:
    """Return why a folder can neither be made nor written; None: it can, and is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path, prefix=UNFINISHED).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def excerpt(text: str, most: int = 2000) -> str:
    """Shorten what a program printed to its head and tail; the cache keeps the whole, in a file that is named.

    Args:
        text: Output of a compiler or another program.
        most: Characters of a text that is returned as it is.
    """
    if len(text) <= most:
        return text
    where: object
    try:
        where = cached({"output": text}, ".txt", lambda path: path.write_bytes(text.encode(errors="surrogateescape")))
    except (OSError, WarpDriveError) as error:
        where = f"no file ({error})"
    head, tail = most // 2, most // 4
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters; all are in {where} ...]\n{text[-tail:]}"


def cached(key: Mapping[str, object], suffix: str, make: Callable[[Path], object]) -> Path:
    """Return the file of ``key``, made by ``make(path)`` unless it is there.

    ``make`` writes to a temporary file that is renamed when it is whole, so that processes that build
    the same thing at once, or die in it, never see half a file.

    Raises:
        ConfigError: The cache folder cannot be made or written.
    """
    text = json.dumps({"schema": SCHEMA, **key}, sort_keys=True, default=str)
    path = folder() / (hashlib.sha256(text.encode()).hexdigest()[:32] + suffix)
    if not os.path.exists(path):  # unlike `Path.exists`, false where the folder may not be read
        require_writable()
        with replacing(path) as unfinished:
            make(unfinished)
    return path
