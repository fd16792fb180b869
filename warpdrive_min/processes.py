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
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Option of Linux's ``prctl``: the signal that a process gets when the thread that started it ends."""


def tied(words: Sequence[str]) -> list[str]:
    """Return the words that start a program which is killed as soon as this process has ended, however that was.

    The tie holds from its first instruction on, and it is no other program by it: the words become ``words``. It is to
    the thread that starts them, which must live as long as the program. Systems other than Linux know no such tie.

    Args:
        words: Program and arguments.

    Raises:
        OSError: The program cannot be started; it would be too late to say so once the words run.
    """
    if shutil.which(words[0]) is None:
        number = errno.EACCES if os.path.exists(words[0]) else errno.ENOENT
        raise OSError(number, os.strerror(number), words[0])
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *words]


def end_with_parent(parent: int) -> None:
    """Let this process be killed as soon as its parent has ended; does nothing on systems other than Linux.

    Args:
        parent: Process that started this one; if it is none's parent any more it has ended already.

    Raises:
        OSError: Linux does not allow it.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
