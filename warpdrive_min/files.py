"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from warpdrive_min.errors import DiskFullError

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system's errors where there is no room: on the disk, of the user's share, in a file."""


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
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as scratch:
        unfinished = Path(scratch) / path.name
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
