"""Signals that stop a command: a command cleans up, ends its children and says what it has saved.

It imports little, as a signal may come while the rest is imported, which takes seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from warpdrive_min.processes import end_children, is_rank, kill_all

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGXCPU")
SIGNALS: Final = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Signals that end a command: Ctrl-C, a job scheduler, a closed terminal, Ctrl-\\, a limit of CPU time."""
RANK_SIGNALS: Final = tuple(number for number in SIGNALS if number != signal.SIGTERM)
"""Signals that end a rank in order; SIGTERM kills it, as torch's launcher does when another rank has failed."""
COMMANDS: Final = ("warpdrive_min", "bench", "warpdrive_min.bench")
"""Modules that are `stoppable` commands."""
ENDING_S: Final = 10.0
"""Longest time that a command may take to clean up, s."""
PREFIX: Final = ".wd-"
"""Beginning of the names of folders for temporary files; short, as paths of sockets in them must be."""
NOTHING: Final = "nothing was saved; run the same command again"

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


class Stopped(SystemExit):
    """A signal that asks a command to end; no `Exception`, so that error handlers let it pass.

    Its code is 128 and the number of the signal, as a shell has it.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@dataclass(slots=True)
class _Command:
    """The command that runs in this process."""

    saved: Callable[[], str] = lambda: NOTHING
    stopped: Stopped | None = None
    """Set when a signal has come."""
    folder: Path | None = None
    """Folder of its temporary files."""


_COMMAND: Final = _Command()
_ENDING: Final = threading.Lock()
"""Taken by the thread that ends this process."""


def on_stop_say(saved: Callable[[], str]) -> None:
    """Set the function that returns what a stopped command has saved and how to resume it."""
    _COMMAND.saved = saved


def saved() -> str:
    """Return what this command has saved so far and how to resume it."""
    return _COMMAND.saved()


def handle(handler: Handler, numbers: Iterable[signal.Signals] | None = None) -> dict[signal.Signals, Any]:
    """Set a signal handler, and return the handlers before; an ignored signal stays ignored.

    So a command goes on under `nohup`, which ignores SIGHUP, and in a script's background, which ignores SIGINT. A rank
    takes SIGINT all the same, which is how its launcher stops it.

    Args:
        handler: The handler.
        numbers: Signals; None: `SIGNALS`, in a rank `RANK_SIGNALS`.
    """
    ranks = is_rank()
    chosen = (RANK_SIGNALS if ranks else SIGNALS) if numbers is None else numbers
    before = {number: signal.getsignal(number) for number in chosen}
    taken = {
        number: old
        for number, old in before.items()
        if old is not signal.SIG_IGN or (ranks and number == signal.SIGINT)
    }
    for number in taken:
        signal.signal(number, handler)
    if ranks:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_SIGNALS)  # see `processes.tied`
    return taken


def ignore() -> None:
    """Ignore the signals from now on: what cleans up is not to be stopped."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_at_once() -> None:
    """Let the signals end this process with its line, without cleaning up: while modules are imported."""
    handle(_end)


def is_starting() -> bool:
    """Tell whether `python -m` is starting one of our commands; other programs keep their handlers."""
    pairs = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    is_ours = any(option[:1] == "-" and option[-1:] == "m" and name in COMMANDS for option, name in pairs)
    return is_ours and sys.argv[:1] == ["-m"]


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the signals end this command with its line; its exit code is 128 and the signal's number.

    Outside of `tidy` there is nothing to clean up: it ends at once.
    """
    handle(_end)
    try:
        yield
    except (SystemExit, Exception) as end:
        # Libraries in C may make another error of what the handler raised within them.
        number = _COMMAND.stopped.number if _COMMAND.stopped else None
        if isinstance(end, Stopped):
            number = end.number
        if number is None or (isinstance(end, SystemExit) and not end.code):
            raise
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        _end(number)  # libraries take seconds to end
    finally:
        ignore()


@contextmanager
def tidy(exit_code: int = 1) -> Iterator[None]:
    """Let the signals unwind this command, and remove its temporary files and end its children at the end.

    Temporary files of this process and of its children are in a folder of their own. Those that killed commands have
    left are removed first.

    Args:
        exit_code: Exit code if the folder cannot be made.

    Raises:
        SystemExit: The folder cannot be made.
    """
    from multiprocessing import util  # noqa: PLC0415  (slow to import)

    from warpdrive_min.files import own_folder  # noqa: PLC0415

    handle(_unwind)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with ExitStack() as stack:
        try:
            _COMMAND.folder = stack.enter_context(own_folder(Path(tempfile.gettempdir()), PREFIX))
        except OSError as error:
            rule = f"temporary files: must have a folder that can be written (got {error.strerror or error})"
            do = "make room there, name another folder in $TMPDIR, or raise the limit (ulimit -f)"
            os.write(2, f"{rule}; {do}\n".encode())
            raise SystemExit(exit_code) from error
        tempfile.tempdir = os.environ["TMPDIR"] = str(_COMMAND.folder)
        try:
            yield
        finally:
            ignore()
            end_children()
            util._exit_function()  # type: ignore[attr-defined]  # noqa: SLF001  (removes its folder while it is there)
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]


def _end(number: int, frame: FrameType | None = None) -> None:
    """Write the line and end this process."""
    if _ENDING.acquire(blocking=False):  # once: this may be a signal's handler within another one's
        if not is_rank():  # the launcher says it for all ranks
            # Past all buffers, which may be in use where the signal came.
            os.write(2, f"stopped by {signal.Signals(number).name}: {saved()}\n".encode())
        os._exit(128 + number)


def _unwind(number: int, frame: FrameType | None) -> None:
    """Raise `Stopped` in the main thread; should that not end the process, end it all the same."""
    ignore()
    _COMMAND.stopped = Stopped(number)
    late = threading.Timer(ENDING_S, _give_up, (number,))
    late.daemon = True
    late.start()
    kill_all()  # threads that wait for a child would hold the main thread up
    raise _COMMAND.stopped


def _give_up(number: int) -> None:
    if _COMMAND.folder is not None:
        shutil.rmtree(_COMMAND.folder, ignore_errors=True)
    _end(number)
