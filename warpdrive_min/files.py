"""Files that are written whole or not at all, and folders that end with the process that works in them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from warpdrive_min.errors import DiskFullError

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system's errors where there is no room: on the disk, of the user's share, in a file."""
UNFINISHED: Final = ".partial-"
"""Beginning of the names of folders in which a file is written that takes the place of another one."""


@contextmanager
def replacing(path: Path, n_bytes: int | None = None) -> Iterator[Path]:
    """Give a path to write to, which then takes the place of ``path``; an error leaves what was there.

    The folder is made if missing. The temporary path is in it, and ends as ``path`` does.

    Args:
        path: File.
        n_bytes: Length that it will have, if known.

    Raises:
        DiskFullError: There is no room for it.
        OSError: The file cannot be written.
    """
    with room_for(path, n_bytes), _replacing(path) as unfinished:
        yield unfinished


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with own_folder(path.parent, UNFINISHED) as scratch:
        unfinished = scratch / path.name
        yield unfinished
        # On the disk before it is renamed, or a crash of the machine could leave an empty file.
        with unfinished.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, and the folders that it needs; until it is whole, what was there stays.

    Raises:
        OSError: It cannot be written; nothing is left of the attempt. `DiskFullError` where there is no room.
    """
    with replacing(path, len(text.encode())) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def room_for(path: Path, n_bytes: int | None = None, do: str = "make room") -> Iterator[None]:
    """Say of an error that comes of a full disk what is needed, and what is free.

    Args:
        path: File or folder that is written.
        n_bytes: Its length, if known.
        do: Advice.

    Raises:
        DiskFullError: There is no room for it.
    """
    try:
        yield
    except Exception as error:
        number = _system_error(error)
        if number not in FULL or isinstance(error, DiskFullError):
            raise
        there = next(folder for folder in path.absolute().parents if folder.is_dir())
        rule = f"needs {'more' if n_bytes is None else f'{n_bytes:,}'} free bytes"
        advice = f"{os.strerror(number).lower()}: {do}"
        raise DiskFullError.of(str(path), rule, shutil.disk_usage(there).free, advice) from error


def _system_error(error: Exception) -> int | None:
    """Return the number of the system's error; libraries in Rust leave it in the text."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return error.errno if isinstance(error, OSError) else int(found[1]) if found else None


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Lend a new folder, which is removed at the end, as those are before that killed processes have left.

    A process holds the lock of its folder as long as it lives, so that of nobody who works is taken away.

    Args:
        parent: Folder that it is made in.
        prefix: Beginning of its name, of no other files but such folders.

    Raises:
        OSError: It cannot be made.
    """
    remove_left(parent, prefix)
    folder, lock = Path(tempfile.mkdtemp(dir=parent, prefix=prefix)), None
    try:
        lock = lock_of(folder, wait=True)
        while not folder.exists():  # before it was locked, another process took it for one that was left
            if lock is not None:
                os.close(lock)
            folder.mkdir(mode=0o700)
            lock = lock_of(folder, wait=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_left(parent: Path, prefix: str = UNFINISHED) -> None:
    """Remove what processes that were killed have left of their `own_folder`."""
    for left in parent.glob(f"{prefix}????????"):
        if (lock := lock_of(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def lock_of(path: Path, *, wait: bool = False) -> int | None:
    """Take the lock of a file or folder, which is let go by closing the descriptor that is returned, or by death.

    None: another process has it, the path is gone or a link, or this system has no such locks (Windows, and of folders
    some network file systems).

    Args:
        path: File or folder.
        wait: Wait for who has it.
    """
    with suppress(OSError):
        return _lock(path, wait)
    return None


def _lock(path: Path, wait: bool) -> int | None:
    """Lock as `lock_of` does; raises BlockingIOError if another process has the lock."""
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415  (not on Windows)

    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time read the files of a folder and replace them; the folder is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = lock_of(folder, wait=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def new_folder(parent: Path, names: Iterable[str]) -> Path:
    """Make a folder under the first of some names that is free, and return it.

    Of several processes that do so at once each gets another one.

    Raises:
        OSError: It cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        with suppress(FileExistsError):
            (parent / name).mkdir()
            return parent / name
    raise FileExistsError(errno.EEXIST, "all names are taken", str(parent))


def remove_unused(folder: Path) -> None:
    """Remove a folder in which nothing was written; another one stays."""
    with suppress(OSError):
        folder.rmdir()


class Hold:
    """Lock of a folder that one process at a time writes to; ends with its last user, or with the process."""

    def __init__(self, descriptor: int | None) -> None:
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor)


_HELD: Final[WeakValueDictionary[tuple[int, int], Hold]] = WeakValueDictionary()


def hold(folder: Path, wait_s: float = 0.0) -> Hold:
    """Lock a folder for this process, all of whose users share the lock.

    Where the system has no such locks (see `lock_of`), nobody is refused.

    Args:
        folder: Folder, which must be there.
        wait_s: Longest wait for another process, which may be ending, s.

    Raises:
        BlockingIOError: Another process has it.
    """
    state, until = os.stat(folder), time.monotonic() + wait_s
    place = (state.st_dev, state.st_ino)
    while (held := _HELD.get(place)) is None:
        try:
            held = _HELD[place] = Hold(_lock(folder.resolve(), wait=False))
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
        except OSError:  # no locks of folders here
            held = _HELD[place] = Hold(None)
    return held
