"""Files that appear whole or not at all."""

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
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as scratch:
        unfinished = Path(scratch) / path.name
        yield unfinished
        os.replace(unfinished, path)
