"""Cache of compiled code, by hash of all inputs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from warpdrive_min.errors import ConfigError, WarpDriveError
from warpdrive_min.files import UNFINISHED, replacing

SCHEMA = 1
"""Version of the cached files; raise it when their meaning changes."""
VARIABLE: Final = "WARPDRIVE_MIN_CACHE"
"""Environment variable that names the cache folder."""
NUMBA_SUFFIX: Final = ".numba"
"""Suffix of files with Numba's machine code."""

PATIENCE_S: Final = 60.0
"""Longest wait for another process that builds the same file, s; it may be suspended."""
POLL_S: Final = 0.01
"""Interval in which its end is looked for, s."""

_reported: set[str] = set()
report_with: Callable[[str], None] = logging.getLogger(__name__).info
"""Function that gets a line about slow compilations; a command sets its own."""


def report(compilation: str) -> None:
    """Report a slow compilation, each text once per process."""
    if compilation not in _reported:
        _reported.add(compilation)
        report_with(f"compiling {compilation}; later runs use the cache")


def folder() -> Path:
    """Return the cache folder, by default in the user's cache.

    $WARPDRIVE_MIN_CACHE overrides it.

    Raises:
        ConfigError: No environment variable names it, and the user has no home folder.
    """
    return _folder_and_variable()[0]


def _folder_and_variable() -> tuple[Path, str]:
    """Return the cache folder, and the environment variable that set it."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen), VARIABLE
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen, "warpdrive_min"), "XDG_CACHE_HOME"
    try:
        return Path.home() / ".cache" / "warpdrive_min", "HOME"
    except RuntimeError as error:
        raise ConfigError.of("cache folder", "needs a home folder", error, f"set ${VARIABLE} or $HOME") from error


def require_writable() -> None:
    """Create the cache folder if it is missing.

    Raises:
        ConfigError: It cannot be created or written; names it and the environment variable that set it.
    """
    path, variable = _folder_and_variable()
    if (why := why_not_writable(path)) is not None:
        rule, do = f"{path}, from ${variable}, must be a folder that can be written", f"set ${VARIABLE} to one that can"
        raise ConfigError.of("cache folder", rule, why, do)


def why_not_writable(path: Path) -> str | None:
    """Return the reason why a folder is not writable, or None.

    Creates the folder.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path, prefix=UNFINISHED).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def excerpt(text: str, most: int = 2000) -> str:
    """Shorten a program's output to its head and tail.

    The full text is cached in a file, whose name is in the result.

    Args:
        text: Output of a compiler or another program.
        most: Length up to which a text is returned unchanged.
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


def entry(key: Mapping[str, object], suffix: str) -> Path:
    """Return the path of the cached file of ``key``, which may not exist."""
    text = json.dumps({"schema": SCHEMA, **key}, sort_keys=True, default=str)
    return folder() / (hashlib.sha256(text.encode()).hexdigest()[:32] + suffix)


def cached(key: Mapping[str, object], suffix: str, make: Callable[[Path], object]) -> Path:
    """Return the cached file of ``key``; ``make(path)`` creates it if missing.

    ``make`` writes to a temporary file that is renamed when complete, so that no process sees a partial file. A thread
    or process waits for another one that builds the same file, if the file system has locks.

    Raises:
        ConfigError: The cache folder cannot be created or written.
    """
    path = entry(key, suffix)
    if os.path.exists(path):  # unlike `Path.exists`, False if the folder is unreadable
        return path
    require_writable()
    with _locked(path.with_suffix(".lock")):
        if not os.path.exists(path):
            with replacing(path) as unfinished:
                make(unfinished)
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which exists meanwhile; it ends with its process."""
    try:
        lock = _acquired(path)
    except OSError as error:  # several may build
        if not isinstance(error, BlockingIOError):
            with suppress(OSError):
                path.unlink()
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        fcntl.flock(lock, fcntl.LOCK_UN)  # of a copy of the descriptor, too, which a fork may have
        os.close(lock)


def _acquired(path: Path) -> int:
    """Return a locked file's descriptor.

    Raises:
        OSError: There are no locks; or, as a BlockingIOError, another one has held it for `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
            os.close(lock)  # the one that held it has removed it
        except BlockingIOError:
            os.close(lock)
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        except BaseException:
            os.close(lock)
            raise
