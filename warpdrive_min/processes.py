"""Processes that end with the one that started them, also if it is killed.

Also a program: ``python -I -S processes.py PARENT PROGRAM ARGUMENT...`` becomes PROGRAM, which ends with PARENT.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Option of Linux's ``prctl``: the signal that a process gets when the thread that started it ends."""
STARTED_BY: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun gives each process."""


def is_rank() -> bool:
    """Tell whether torchrun, or `launch`, has started this process as one of several."""
    return os.environ.keys() >= set(STARTED_BY)


def be_rank(rank: int, n_processes: int, address: str, port: str | int) -> None:
    """Give this process the environment of one of several on a machine, as torchrun does."""
    values = (rank, rank, n_processes, n_processes, address, port)
    os.environ.update(zip(STARTED_BY, map(str, values), strict=True))


def tied(words: Sequence[str]) -> list[str]:
    """Return the words that start a program which is killed as soon as this process has ended, however that was.

    The tie holds from its first instruction on, and it is no other program by it: the words become ``words``. It is to
    the thread that starts them, which must live as long as the program. Systems other than Linux know no such tie:
    there a program calls `end_with_parent` itself.

    Args:
        words: Program and arguments.

    Raises:
        OSError: The program cannot be started; it would be too late to say so once the words run.
    """
    if shutil.which(words[0]) is None:
        number = errno.EACCES if os.path.exists(words[0]) else errno.ENOENT
        raise OSError(number, os.strerror(number), words[0])
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *words]


WATCH_S: Final = 1.0
"""Time between two looks at the parent, where the system does not tell of its end, s."""


def end_with_parent(parent: int) -> None:
    """Let this process be killed as soon as its parent has ended, whatever it is doing.

    Linux does it; on other systems a thread looks every second, which ends when the process becomes another program.

    Args:
        parent: Process that started this one; if it is none's parent any more it has ended already.

    Raises:
        OSError: Linux does not allow it.
    """
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent,), name="watch on the parent", daemon=True).start()
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    """Wait until the parent has ended, and end at once, without cleaning up, as if killed."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
