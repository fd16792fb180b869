"""Ctrl-C and SIGTERM: what is finished is kept, one line says so and how to go on, and nothing else is left.

It imports no other module before it stands ready: to import them all takes seconds, and a signal may come by then.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals by which a person or a scheduler of jobs ends a command."""
ENDING_S: Final = 10.0
"""Longest time that a command which was stopped may take to end, s."""
PREFIX: Final = ".wd-bench-"
"""Beginning of the names of folders for temporary files; short, as paths of sockets, which are in them too, must be."""


@dataclass(slots=True)
class Kept:
    """Files that get what this command has finished, piece by piece."""

    files: Sequence[Path] = ()
    """Files of JSON lines."""
    words: tuple[str, ...] | None = None
    """Words with which the command goes on where it was; None: it starts again."""
    folder: Path | None = None
    """Folder of all temporary files."""
    stopped_by: int | None = None
    """Number of the signal that unwinds it; None: none has come."""

    def line(self, number: int) -> str:
        """Say what a command that is stopped has kept, and how to go on."""
        counts = {file: file.read_bytes().count(b"\n") for file in self.files if file.exists()}
        places = [f"{count} record{'s' * (count > 1)} in {file}" for file, count in counts.items() if count]
        given, words = sys.argv[1:], self.words if places else None
        if words and not any(word.partition("=")[0] == words[0] for word in given):
            given = [*given, *words]
        does = "starts again" if words is None else "goes on"
        kept = f"kept {' and '.join(places)}" if places else "nothing was finished"
        return f"stopped by {signal.Signals(number).name}: {kept}; `python -m {__package__} {shlex.join(given)}` {does}"


KEPT: Final = Kept()
"""Files of the command that runs in this process."""
_ENDING: Final = threading.Lock()
"""Taken by the thread that ends this process."""


def keeps(*files: Path, words: tuple[str, ...] | None = (), folders: Sequence[Path] = ()) -> None:
    """Tell in which files a command keeps what it has finished, and with which more words it goes on.

    What commands that were killed were writing beside them goes.

    Args:
        files: Files of JSON lines.
        words: Words, as ("--resume", "RUN_ID"); none: the same command goes on; None: it starts again.
        folders: Folders of what else it writes.
    """
    from warpdrive_min.files import remove_left  # noqa: PLC0415  (takes seconds, where it was not imported)

    KEPT.files, KEPT.words = files, words
    for folder in {*folders, *(file.parent for file in files)}:
        remove_left(folder)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the signals end this process with 128 and their number, after one line on standard error.

    Until `tidy` begins, and after its end, there is nothing to clean up: the process ends at once.

    Raises:
        SystemExit: The command has ended by itself.
    """
    _on_signals(_end_at_once)
    try:
        yield
    except (SystemExit, Exception) as end:
        # A signal's, whoever has caught it; libraries in C may make another error of what it raised within them.
        code = end.code if isinstance(end, SystemExit) else None
        number = code - 128 if isinstance(code, int) else KEPT.stopped_by
        if number in SIGNALS:
            with suppress(OSError):
                sys.stdout.flush()
            _end_at_once(number)  # all is tidy, and libraries take seconds to take leave
        raise
    finally:
        for each in SIGNALS:  # nothing is left to stop, and what an interpreter that ends makes of a signal is its own
            signal.signal(each, signal.SIG_IGN)


@contextmanager
def tidy() -> Iterator[None]:
    """Let the signals unwind what runs, and remove all temporary files and processes at the end.

    Files that are temporary, of this process and of all that it starts, go to a folder of its own. Before, those that
    commands that were killed have left are removed.

    Raises:
        SystemExit: The folder cannot be made.
    """
    from multiprocessing import util  # noqa: PLC0415  (this takes seconds)

    from warpdrive_min.backends import cache  # noqa: PLC0415
    from warpdrive_min.errors import ConfigError  # noqa: PLC0415
    from warpdrive_min.files import own_folder, remove_left  # noqa: PLC0415

    _on_signals(_unwind)
    with suppress(ConfigError):  # what compiles says that there is no such folder
        remove_left(cache.folder())
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    place = Path(tempfile.gettempdir())
    os.environ.setdefault("RAY_TMPDIR", str(place))  # clusters are found there, and their sockets' paths are long
    with ExitStack() as stack:
        try:
            KEPT.folder = stack.enter_context(own_folder(place, PREFIX))
        except OSError as error:
            rule = f"bench: needs a folder for temporary files in {place} (got {error})"
            raise SystemExit(f"{rule}; make room there, or name another place in $TMPDIR") from error
        tempfile.tempdir = os.environ["TMPDIR"] = str(KEPT.folder)
        try:
            yield
        finally:
            _end_children()
            # It removes its own folder there, and must find it.
            util._exit_function()  # type: ignore[attr-defined]  # noqa: SLF001
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]
    _on_signals(_end_at_once)


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as in a shell's background, or as it ends
            signal.signal(each, handler)


def _end_children() -> None:
    """Kill whatever this process has started and who started it has not ended, and wait; on Linux, which lists them."""
    for file in Path("/proc/self/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it stays for who may still ask for its exit code


def _end_at_once(number: int, frame: FrameType | None = None) -> None:
    """Say what is kept, past all buffers, which may be in use where the signal came, and end."""
    if _ENDING.acquire(blocking=False):  # once: this may be a signal's handler within another one's
        os.write(2, f"{KEPT.line(number)}\n".encode())
        os._exit(128 + number)


def _unwind(number: int, frame: FrameType | None) -> None:
    """Raise `Stopped` where the main thread is; should somebody hold that up, end all the same."""
    from warpdrive_min.stopping import Stopped  # noqa: PLC0415  (imported long ago)

    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    KEPT.stopped_by = number
    late = threading.Timer(ENDING_S, _give_up, (number,))
    late.daemon = True
    late.start()
    raise Stopped(number)


def _give_up(number: int) -> None:
    if KEPT.folder is not None:
        shutil.rmtree(KEPT.folder, ignore_errors=True)
    _end_at_once(number)
