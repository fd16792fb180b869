"""Report of a stopped command's output files and resuming command."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from warpdrive_min import stopping
from warpdrive_min.errors import ConfigError
from warpdrive_min.files import remove_leftovers

from ..core.point import PROGRAM

NOTHING: Final = "nothing was saved"


def saved_text(files: Sequence[Path] = (), words: tuple[str, ...] | None = None, nothing: str = NOTHING) -> str:
    """Return each file's number of records, and the command that resumes.

    Args:
        files: Files of JSON lines.
        words: Options that resume the command; None: it starts again.
        nothing: Text for files without a record.
    """
    counts = {file: file.read_bytes().count(b"\n") for file in files if file.exists()}
    places = [f"{count} record{'s' * (count > 1)} in {file}" for file, count in counts.items() if count]
    given, resuming = sys.argv[1:], words if places else None
    if resuming and not any(word.partition("=")[0] == resuming[0] for word in given):
        given = [*given, *resuming]
    does = "starts again" if resuming is None else "continues"
    kept = f"saved {' and '.join(places)}" if places else nothing
    return f"{kept}; `python -m {PROGRAM} {shlex.join(given)}` {does}"


def register_outputs(
    *files: Path,
    words: tuple[str, ...] | None = (),
    folders: Sequence[Path] = (),
    nothing: str = NOTHING,
) -> None:
    """Set this command's output files and the options that resume it.

    Removes temporary files of killed commands in their folders and in the cache.

    Args:
        files: Files of JSON lines.
        words: Options, as ("--resume", "RUN_ID"); (): the same command resumes; None: it starts again.
        folders: Folders of other outputs.
        nothing: Text for files without a record.
    """
    from warpdrive_min.backends import cache  # noqa: PLC0415  (imports torch)

    stopping.set_saved_work_report(partial(saved_text, files, words, nothing))
    with suppress(ConfigError):  # no cache folder; the first compilation reports it
        remove_leftovers(cache.folder())
    for folder in {*folders, *(file.parent for file in files)}:
        remove_leftovers(folder)


@contextmanager
def tidy(exit_code: int = 1) -> Iterator[None]:
    """Unwind on a signal and clean up; see `stopping.clean_up_on_signal`.

    $RAY_TMPDIR keeps its value, so that running Ray clusters are found.

    Args:
        exit_code: Exit code if there is no temporary folder.
    """
    stopping.set_saved_work_report(saved_text)
    with suppress(OSError):  # `stopping.clean_up_on_signal` reports it
        os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())
    with stopping.clean_up_on_signal(exit_code):
        yield
