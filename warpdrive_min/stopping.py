"""Ctrl-C and SIGTERM in a command: it unwinds, one line says what is kept and how to go on, and no child is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, Final

from warpdrive_min.processes import is_rank

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals by which a person or a scheduler of jobs ends a command."""
NOTHING: Final = "nothing is kept of this command; the same one starts again"


class Stopped(SystemExit):
    """A signal that asks a command to end, which is no error: what catches errors lets it pass.

    Its code is 128 and the number of the signal, as a shell has it.

    Args:
        number: Number of the signal.
    """

    raised: ClassVar[Stopped | None] = None
    """Exception that the signal has raised, by which the command unwinds; None: none has come."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.kept = NOTHING
        """Says what is kept and how to go on; who knows better replaces it on the way up."""

    def say(self) -> None:
        """Print the line on standard error; of several ranks that is up to the one that has launched them."""
        if not is_rank():
            # By a single call of the system, for a handler may have come between others.
            os.write(2, f"stopped by {signal.Signals(self.number).name}: {self.kept}\n".encode())


@contextmanager
def stoppable() -> Iterator[None]:
    """Let the signals raise `Stopped` in the main thread, once, and say its line; afterwards they are ignored.

    Of several ranks SIGINT alone does: SIGTERM kills one, as it does where another one has failed for which it waits.
    """
    _on_signals(_unwind)
    try:
        yield
    except Stopped as stop:
        stop.say()
        raise
    except Exception as error:
        if Stopped.raised is None:
            raise
        Stopped.raised.say()  # of what it raised within them, libraries in C may make another error
        raise Stopped.raised from error
    finally:
        _ignore()  # there is nothing left to stop


def end_at_once() -> None:
    """Let the signals end this process with their line, without cleaning up: while modules are imported."""
    _on_signals(_end)


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    if is_rank():  # what its launcher started in a shell's background ignores, this must not
        signal.signal(signal.SIGINT, handler)
        return
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as in a shell's background
            signal.signal(each, handler)


def _ignore() -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _unwind(number: int, frame: FrameType | None) -> None:
    _ignore()  # what cleans up is not to be stopped
    Stopped.raised = Stopped(number)
    raise Stopped.raised


def _end(number: int, frame: FrameType | None) -> None:
    stop = Stopped(number)
    stop.say()
    os._exit(128 + number)
