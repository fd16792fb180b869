"""Child processes, which end with the process that started them, even if it is killed.

`run` and `Child` start every program of ours; `tied` gives the words for torch's launcher, which starts ranks itself.
Also a program: ``python -I -S processes.py guard|tie PARENT PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

PR_SET_PDEATHSIG: Final = 1
"""Option of Linux's ``prctl``: the signal that a process gets when the thread that started it ends."""
PR_SET_CHILD_SUBREAPER: Final = 36
"""Option of Linux's ``prctl``: orphans among a process's descendants become its children."""
STARTED_BY: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun gives each process."""


def is_rank() -> bool:
    """Tell whether torchrun, or `launch`, has started this process as one of several."""
    return os.environ.keys() >= set(STARTED_BY)


def be_rank(rank: int, n_processes: int, address: str, port: str | int) -> None:
    """Give this process the environment of one of several on a machine, as torchrun does."""
    values = (rank, rank, n_processes, n_processes, address, port)
    os.environ.update(zip(STARTED_BY, map(str, values), strict=True))


# ------------------------------------------------------------------ starting a program


class Killable(Protocol):
    """A child process that can be killed at any time."""

    def kill(self) -> None:
        """Kill it, without waiting for its end."""
        ...


_ALIVE: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_is_stopping = threading.Event()


class Child(subprocess.Popen[str]):
    """A program that ends with this process, together with all processes that it starts.

    A guard between both, which is the child, ends them when this process or the program has ended, and then ends as the
    program did. The program is in a session of its own: signals of a terminal do not reach it. The thread that starts
    it must live as long as the program.

    Args:
        words: Program and arguments.
        options: As of `subprocess.Popen`.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        guarded = list(words) if sys.platform == "win32" else _program("guard", words, options.get("env"))
        super().__init__(guarded, start_new_session=True, **options)
        self.args = words  # in messages
        register(self)

    def kill(self) -> None:
        """Let the guard kill the program and all that it has started."""
        self.terminate()


def run(
    words: Sequence[str], *, check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its exit code and output, as UTF-8; see `Child`.

    Args:
        words: Program and arguments.
        check: Raise an error if it fails.
        timeout: Longest time, s.
        options: As of `subprocess.Popen`.

    Raises:
        OSError: It cannot be started.
        subprocess.CalledProcessError: It has failed; with ``check``.
        subprocess.TimeoutExpired: It took longer; it is killed.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Child(words, **{**pipes, "encoding": "utf-8", "errors": "replace", **options}) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except BaseException:
            child.kill()
            raise
    done = subprocess.CompletedProcess(words, child.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def tied(words: Sequence[str]) -> list[str]:
    """Return the words that start a program which is killed as soon as this process has ended.

    Unlike a `Child` it is the program itself, which gets the signals of its launcher, and its children are its own
    affair. It starts with SIGINT, SIGHUP and SIGQUIT blocked, until `stopping.handle` or `joined`: an interpreter that
    gets them while it starts ends with a traceback. The thread that starts it must live as long as the program. On
    systems other than Linux the program calls `end_with_parent` itself.

    Raises:
        OSError: The program cannot be started.
    """
    return _program("tie", words)


def _program(mode: str, words: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """Return the words that start a program by way of this file.

    Raises:
        OSError: There is no such program; once the words run it is too late to say so.
    """
    if shutil.which(words[0], path=(os.environ if env is None else env).get("PATH")) is None:
        number = errno.EACCES if os.path.exists(words[0]) else errno.ENOENT
        raise OSError(number, os.strerror(number), words[0])
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), mode, str(os.getpid()), *words]


# ------------------------------------------------------------------ ending children


def register(child: Killable) -> None:
    """Let `kill_all` kill a child; at once if it was called already."""
    _ALIVE.add(child)
    if _is_stopping.is_set():
        child.kill()


def kill_all() -> None:
    """Kill all registered children, and those to come, without waiting: this process is about to end."""
    _is_stopping.set()
    for child in list(_ALIVE):
        with contextlib.suppress(OSError):
            child.kill()


def end_children() -> None:
    """Kill every child that is left, and wait; those that are not registered too on Linux, which lists them."""
    guards = {child.pid for child in list(_ALIVE) if isinstance(child, Child)}
    for pid in children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGTERM if pid in guards else signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its owner may still ask for its exit code


def children() -> list[int]:
    """Return the process ids of this process's children; none on systems other than Linux."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


# ------------------------------------------------------------------ ending with the parent

WATCH_S: Final = 1.0
"""Time between two looks at the parent, where the system does not tell of its end, s."""


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Let this process get a signal as soon as its parent has ended, whatever it is doing.

    Linux sends it; on other systems a thread does, which looks every second and ends when the process becomes another
    program.

    Args:
        parent: Process that started this one; if it is not the parent any more it has ended already.
        number: The signal.

    Raises:
        OSError: Linux does not allow it.
    """
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent, number), name="watch on the parent", daemon=True).start()
        return
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _watch(parent: int, number: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _guard(parent: int, words: Sequence[str]) -> NoReturn:
    """Run a program until it or the parent has ended, kill all that it has started, and end as it did."""

    def stop(number: int, frame: object) -> None:
        _kill_descendants()
        os.killpg(0, signal.SIGKILL)  # this process, which leads the group, too

    stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.signal(number, stop) for number in stops}
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the parent may block some
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    end_with_parent(parent, signal.SIGTERM)
    guard, program = os.getpid(), os.fork()
    if program == 0:
        for number, handler in {**before, signal.SIGPIPE: signal.SIG_DFL}.items():
            signal.signal(number, handler)
        _become(guard, words)
    os.closerange(0, min(os.sysconf("SC_OPEN_MAX"), 4096))  # pipes end when the program has closed them
    ended = status = 0
    while ended != program:  # orphans among its descendants end here, too
        ended, status = os.wait()
    _kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # the signals that nobody can handle
            signal.signal(-code, signal.SIG_DFL)
        _without_core_file()
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill_descendants() -> None:
    """Kill the children until there are none: the orphans that their ends leave are children, too."""
    while pids := children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            os.wait()


def _without_core_file() -> None:
    import resource  # noqa: PLC0415  (not on Windows)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _tie(parent: int, words: Sequence[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
    _become(parent, words)


def _become(parent: int, words: Sequence[str]) -> NoReturn:
    """Become a program that is killed when the parent ends."""
    end_with_parent(parent)
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    {"guard": _guard, "tie": _tie}[sys.argv[1]](int(sys.argv[2]), sys.argv[3:])
