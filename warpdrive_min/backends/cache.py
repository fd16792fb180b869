"""Compiled code, kept in the user's cache folder under a hash of everything that may change it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from warpdrive_min.files import replacing

SCHEMA = 1
"""Raise it when the meaning of a cached file changes."""


def folder() -> Path:
    """Return the cache folder: $WARPDRIVE_MIN_CACHE, or warpdrive_min in the user's cache."""
    if chosen := os.environ.get("WARPDRIVE_MIN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warpdrive_min"


def cached(key: Mapping[str, object], suffix: str, make: Callable[[Path], None]) -> Path:
    """Return the file of ``key``, made by ``make(path)`` unless it is there.

    ``make`` writes to a temporary file that is renamed when it is whole, so that processes that build
    the same thing at once, or die in it, never see half a file.
    """
    text = json.dumps({"schema": SCHEMA, **key}, sort_keys=True, default=str)
    path = folder() / (hashlib.sha256(text.encode()).hexdigest()[:32] + suffix)
    if not path.exists():
        with replacing(path) as unfinished:
            make(unfinished)
    return path
