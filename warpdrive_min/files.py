"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write to, which then takes the place of ``path``; an error leaves what was there.

    The folder is made if missing. The temporary path is in it, and ends as ``path`` does.

    Raises:
        OSError: The file cannot be written.
    """
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
        OSError: It cannot be written; nothing is left of the attempt.
    """
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
