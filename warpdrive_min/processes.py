"""Child processes that end with their parent, even if it is killed.

`run` and `Child` start all our programs. `tied_to_parent` returns a command for torch's launcher, which starts ranks
itself. Also a program: ``python -I -S processes.py guard|tie PARENT PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

PR_SET_PDEATHSIG: Final = 1
"""Option of Linux's ``prctl``: signal at the end of the starting thread.

A process gets it when the thread that started it ends.
"""
PR_SET_CHILD_SUBREAPER: Final = 36
"""Option of Linux's ``prctl``: orphaned descendants become own children."""
RANK_VARIABLES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for each process."""


def is_rank() -> bool:
    """True if torchrun or `launch` started this process as a rank."""
    return os.environ.keys() >= set(RANK_VARIABLES)


def set_rank_variables(rank: int, n_processes: int, address: str, port: str | int) -> None:
    """Set the environment variables of a rank, as torchrun does."""
    values = (rank, rank, n_processes, n_processes, address, port)
    os.environ.update(zip(RANK_VARIABLES, map(str, values), strict=True))


# ------------------------------------------------------------------ forks


class Forks:
    """Forked process that calls each of some functions in a fork of its own.

    All end with this process. They print nothing, and an error ends only the fork of the function. Signals end them.

    Args:
        prepare: Function that is called first.
        functions: Functions to call; one core stays free of them.
    """

    def __init__(self, prepare: Callable[[], object], functions: Sequence[Callable[[], object]]) -> None:
        parent = os.getpid()
        self._lock = threading.Lock()
        self._pid: int | None = os.fork()
        if not self._pid:
            with _ending():
                _call_in_forks(parent, prepare, functions)
        register(self)

    def wait(self) -> None:
        """Wait until all functions have returned."""
        if (pid := self._pid) is None:
            return
        with contextlib.suppress(ChildProcessError):  # another thread has waited, or the system if it ignores SIGCHLD
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with self._lock, contextlib.suppress(ChildProcessError):
            if self._pid is not None:
                self._pid = None
                os.waitpid(pid, 0)

    def kill(self) -> None:
        """End the functions that still run."""
        with self._lock:
            if self._pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)


def _call_in_forks(parent: int, prepare: Callable[[], object], functions: Sequence[Callable[[], object]]) -> None:
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or nothing could wait
    end_with_parent(parent)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    prepare()
    parent = os.getpid()
    for n_running, function in enumerate(functions):
        if n_running >= max(1, (os.cpu_count() or 1) - 1):
            os.wait()
        if not os.fork():
            with _ending():
                end_with_parent(parent)
                function()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End a forked process with the block, without its parent's clean-up."""
    try:
        yield
    finally:
        os._exit(0)


# ------------------------------------------------------------------ starting a program


_ALIVE: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_is_stopping = threading.Event()


class Child(subprocess.Popen[str]):
    """Program that ends with this process, together with all its descendants.

    The child is a guard process between both. It kills the program's processes when this process or the program has
    ended, and ends with the program's exit code or signal. The program has its own session, so signals of a terminal do
    not reach it. The thread that starts it must live as long as the program.

    Args:
        command: Program and arguments.
        options: Options of `subprocess.Popen`.

    Raises:
        OSError: The program cannot be started.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(_program("guard", command, options.get("env")), start_new_session=True, **options)
        self.args = command  # in messages
        register(self)

    def kill(self) -> None:
        """Make the guard kill the program and its descendants."""
        self.terminate()


def run(
    command: Sequence[str], *, check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program; return its exit code and UTF-8 output.

    See `Child`.

    Args:
        command: Program and arguments.
        check: Raise an error if it fails.
        timeout: Timeout, s.
        options: Options of `subprocess.Popen`.

    Raises:
        OSError: It cannot be started.
        subprocess.CalledProcessError: It failed, with ``check``.
        subprocess.TimeoutExpired: It exceeded the timeout and was killed.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Child(command, **{**pipes, "encoding": "utf-8", "errors": "replace", **options}) as child:
        try:
            output, errors = child.communicate(timeout=timeout)
        except BaseException:
            child.kill()
            raise
    done = subprocess.CompletedProcess(command, child.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """Return the command of a program that dies with this process.

    Unlike with `Child`, there is no guard: the program itself gets its launcher's signals, and manages its own
    children. It starts with SIGINT, SIGHUP and SIGQUIT blocked, until `stopping.set_handlers` or `process_group`. An
    interpreter that got them while it starts would end with a traceback. The thread that starts it must live as long as
    the program. On systems other than Linux the program calls `end_with_parent` itself.

    Raises:
        OSError: The program cannot be started.
    """
    return _program("tie", command)


def _program(mode: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """Return the command that starts a program through this file.

    Raises:
        OSError: There is no such program; the started command could not report it.
    """
    if shutil.which(command[0], path=(os.environ if env is None else env).get("PATH")) is None:
        number = errno.EACCES if os.path.exists(command[0]) else errno.ENOENT
        raise OSError(number, os.strerror(number), command[0])
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), mode, str(os.getpid()), *command]


# ------------------------------------------------------------------ ending children


def register(child: Any) -> None:
    """Register a child for `kill_all`; kill it now if that was called."""
    _ALIVE.add(child)
    if _is_stopping.is_set():
        child.kill()


def kill_all() -> None:
    """Kill all registered children, also future ones, without waiting.

    This process is about to end.
    """
    _is_stopping.set()
    for child in list(_ALIVE):
        with contextlib.suppress(OSError):
            child.kill()


def is_stopping() -> bool:
    """True if `kill_all` was called; results of children may be cut short."""
    return _is_stopping.is_set()


def end_children() -> None:
    """Kill all remaining children, and wait.

    On Linux, which lists them, also children that are not registered.
    """
    guards = {child.pid for child in list(_ALIVE) if isinstance(child, Child)}
    for pid in children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGTERM if pid in guards else signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its owner may still ask for its exit code


def children() -> list[int]:
    """Return process ids of this process's children; empty except on Linux."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


# ------------------------------------------------------------------ ending with the parent

WATCH_S: Final = 1.0
"""Polling interval of the parent where the system sends no signal, s."""


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Make this process get a signal as soon as its parent ends.

    Linux sends it. On other systems a thread polls the parent every second; it ends when the process becomes another
    program.

    Args:
        parent: Id of the process that started this one; if it is no longer the parent, it has ended.
        number: Signal.

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


def _guard(parent: int, command: Sequence[str]) -> NoReturn:
    """Run a program until it or the parent ends; kill its descendants, exit like it."""

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
        _exec_tied(guard, command)
    os.closerange(0, min(os.sysconf("SC_OPEN_MAX"), 4096))  # pipes end when the program has closed them
    ended = status = 0
    while ended != program:  # orphaned descendants end here, too
        ended, status = os.wait()
    _kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP have no handlers
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code)


def _kill_descendants() -> None:
    """Kill children until none is left; orphans of killed ones become children."""
    while pids := children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            os.wait()


def _tie(parent: int, command: Sequence[str]) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
    _exec_tied(parent, command)


def _exec_tied(parent: int, command: Sequence[str]) -> NoReturn:
    """Replace this process by a program that dies with its parent."""
    end_with_parent(parent)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    {"guard": _guard, "tie": _tie}[sys.argv[1]](int(sys.argv[2]), sys.argv[3:])
