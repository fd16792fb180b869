"""Records that a stopped command has saved, and the command that goes on."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from warpdrive_min import stopping
from warpdrive_min.errors import ConfigError
from warpdrive_min.files import remove_left

PROGRAM = __name__.rpartition(".process.")[0]
"""Package that a command line names."""


@dataclass(slots=True)
class Kept:
    """Files that a command adds its results to, one by one."""

    files: Sequence[Path] = ()
    """Files of JSON lines."""
    words: tuple[str, ...] | None = None
    """Words with which the command goes on where it was; None: it starts again."""

    def text(self) -> str:
        """Return how many records are in the files, and the command that goes on."""
        counts = {file: file.read_bytes().count(b"\n") for file in self.files if file.exists()}
        places = [f"{count} record{'s' * (count > 1)} in {file}" for file, count in counts.items() if count]
        given, words = sys.argv[1:], self.words if places else None
        if words and not any(word.partition("=")[0] == words[0] for word in given):
            given = [*given, *words]
        does = "starts again" if words is None else "goes on"
        kept = f"kept {' and '.join(places)}" if places else "nothing was finished"
        return f"{kept}; `python -m {__package__.rpartition('.')[0]} {shlex.join(given)}` {does}"


def keeps(*files: Path, words: tuple[str, ...] | None = (), folders: Sequence[Path] = ()) -> None:
    """Set the files of this command's results, and the words with which it goes on.

    Temporary files beside them of commands that were killed are removed.

    Args:
        files: Files of JSON lines.
        words: Words, as ("--resume", "RUN_ID"); none: the same command goes on; None: it starts again.
        folders: Folders of what else it writes.
    """
    from warpdrive_min.backends import cache  # noqa: PLC0415  (imports torch)

    stopping.on_stop_say(Kept(files, words).text)
    with suppress(ConfigError):  # no cache folder; the first compilation reports it
        remove_left(cache.folder())
    for folder in {*folders, *(file.parent for file in files)}:
        remove_left(folder)


@contextmanager
def tidy() -> Iterator[None]:
    """Unwind on a signal and clean up, see `warpdrive_min.stopping.tidy`; clusters of Ray are found where they were."""
    stopping.on_stop_say(Kept().text)
    os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())
    with stopping.tidy():
        yield
