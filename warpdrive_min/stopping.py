"""Signals that stop a command: clean up, end children, report saved work.

Imports little: a signal may arrive during the other imports, which take seconds.
"""

from __future__ import annotations

import atexit
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

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
"""Signals that end a command.

Sent by Ctrl-C, a job scheduler, a closed terminal, Ctrl-\\ or a CPU time limit.
"""
RANK_SIGNALS: Final = tuple(number for number in SIGNALS if number != signal.SIGTERM)
"""Signals on which a rank cleans up.

SIGTERM kills it: torch's launcher sends it when another rank failed.
"""
COMMANDS: Final = ("warpdrive_min", "bench", "warpdrive_min.bench")
"""Modules with a `stoppable` command."""
CLEANUP_TIMEOUT_S: Final = 10.0
"""Timeout of a command's clean-up, s."""
PREFIX: Final = ".wd-"
"""Prefix of temporary folders; short, for paths of sockets."""
NOTHING_SAVED: Final = "nothing was saved; run the same command again"

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


class Stopped(SystemExit):
    """Signal that ends a command, with exit code 128 + number.

    It is not an `Exception`, so that error handlers do not catch it. Shells use the same exit code.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@dataclass(slots=True)
class _Command:
    """Command that runs in this process."""

    saved: Callable[[], str] = lambda: NOTHING_SAVED
    stopped: Stopped | None = None
    """Signal that has arrived, if any."""
    folder: Path | None = None
    """Folder of its temporary files."""


_COMMAND: Final = _Command()
_ENDING: Final = threading.Lock()
"""Lock held by the thread that ends this process."""


def set_saved_work_report(saved: Callable[[], str]) -> None:
    """Set a function that reports saved work and how to resume it."""
    _COMMAND.saved = saved


def saved() -> str:
    """Return a report of the saved work and how to resume it."""
    return _COMMAND.saved()


def set_handlers(handler: Handler, numbers: Iterable[signal.Signals] | None = None) -> dict[signal.Signals, Any]:
    """Set a signal handler; return the handlers before.

    An ignored signal stays ignored. So a command continues under `nohup`, which ignores SIGHUP, and in a script's
    background, which ignores SIGINT. A rank handles SIGINT in any case, as its launcher stops it with this signal.

    Args:
        handler: Signal handler.
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_SIGNALS)  # see `processes.tied_to_parent`
    return taken


def ignore_signals() -> None:
    """Ignore the signals, so that they cannot stop the clean-up."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_at_once() -> None:
    """Make the signals end this process at once, with its message.

    Used while modules are imported, when there is nothing to clean up.
    """
    set_handlers(_end)


def is_starting() -> bool:
    """True if `python -m` is starting one of our commands.

    Other programs keep their handlers.
    """
    pairs = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    is_ours = any(option[:1] == "-" and option[-1:] == "m" and name in COMMANDS for option, name in pairs)
    return is_ours and sys.argv[:1] == ["-m"]


@contextmanager
def quick_exit() -> Iterator[None]:
    """End this process without the shutdown of libraries, which takes a second.

    Its other threads and the functions of `atexit` end first.
    """
    codes: list[int] = []

    def leave() -> None:
        with suppress(OSError, ValueError):  # the interpreter reports it
            for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by the shell
                stream.flush()
            if codes:
                os._exit(codes[0])

    atexit.register(leave)  # before all others, so that it is called last
    try:
        yield
    except SystemExit as end:
        codes.append((end.code or 0) & 0xFF if isinstance(end.code, int | None) else 1)
        raise
    except Exception:  # the interpreter prints it before `leave`
        codes.append(1)
        raise


@contextmanager
def stoppable() -> Iterator[None]:
    """Make the signals end this command with its message and exit code.

    The exit code is 128 plus the signal's number. Outside
    `clean_up_on_signal` it ends at once, as there is nothing to clean up.
    """
    set_handlers(_end)
    try:
        yield
    except (SystemExit, Exception) as end:
        # C libraries may convert the handler's exception to another error.
        number = _COMMAND.stopped.number if _COMMAND.stopped else None
        if isinstance(end, Stopped):
            number = end.number
        if number is None or (isinstance(end, SystemExit) and not end.code):
            raise
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        _end(number)  # libraries need seconds to shut down
    finally:
        ignore_signals()


@contextmanager
def clean_up_on_signal(exit_code: int = 1) -> Iterator[None]:
    """Make the signals unwind this command; clean up at the end.

    The clean-up removes temporary files and ends child processes. Temporary files of this process and its children have
    a separate folder. Folders that killed commands left are removed first.

    Args:
        exit_code: Exit code if the folder cannot be created.

    Raises:
        SystemExit: The folder cannot be created.
    """
    from multiprocessing import util  # noqa: PLC0415  (slow to import)

    from warpdrive_min.files import own_folder  # noqa: PLC0415

    set_handlers(_unwind)
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
            ignore_signals()
            end_children()
            util._exit_function()  # type: ignore[attr-defined]  # noqa: SLF001  (its folder must still exist)
            tempfile.tempdir = before[0]
            os.environ.pop("TMPDIR")
            if before[1] is not None:
                os.environ["TMPDIR"] = before[1]


def _end(number: int, frame: FrameType | None = None) -> None:
    """Print the message and end this process."""
    if _ENDING.acquire(blocking=False):  # once: one signal handler may interrupt another
        if not is_rank():  # the launcher prints it for all ranks
            # Bypasses all buffers, which the interrupted code may be using.
            os.write(2, f"stopped by {signal.Signals(number).name}: {saved()}\n".encode())
        os._exit(128 + number)


def _unwind(number: int, frame: FrameType | None) -> None:
    """Raise `Stopped` in the main thread; exit after a timeout."""
    ignore_signals()
    _COMMAND.stopped = Stopped(number)
    late = threading.Timer(CLEANUP_TIMEOUT_S, _end_late, (number,))
    late.daemon = True
    late.start()
    kill_all()  # threads that wait for a child would block the main thread
    raise _COMMAND.stopped


def _end_late(number: int) -> None:
    if _COMMAND.folder is not None:
        shutil.rmtree(_COMMAND.folder, ignore_errors=True)
    _end(number)
