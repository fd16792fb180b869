"""Processes that answer requests: one protocol, one loop of the server, one client.

A request and its answer are JSON objects over a socket that the process inherits. Whoever answers has a method
``ask(method, **arguments)``: a `Server` in its own process, a `Worker` for one elsewhere, on the code of this checkout
or of another one. A peer's process answers the same client, see `peers/worker.py`.

A point of a GPU is measured in a process of its own, alike whatever was measured before it: a process that has captured
several CUDA graphs launches out of all of them more slowly, for good (ADR 0014).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, STDOUT, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import torch

from warpdrive_min.backends.cache import excerpt
from warpdrive_min.processes import Child, end_with_parent, register
from warpdrive_min.stopping import SIGNALS

from ..core import machine
from ..core.quiet import SIBLINGS

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

Message = dict[str, Any]
"""JSON object."""

ENDING_S: Final = 10.0
"""Time that a process may take to end that was asked to, s."""
LONGEST: Final = 1 << 24
"""Bytes of the longest answer; what claims to be longer is none."""
STARTER: Final = "BENCH_STARTER"
"""Variable of the environment that names the process which starts copies, for `tie`."""
CAN_COPY: Final = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES: Final[ForkServerContext | SpawnContext] = (
    multiprocessing.get_context("forkserver") if CAN_COPY else multiprocessing.get_context("spawn")
)
"""Starts processes, where it can as copies of one that has imported all this and has not touched a GPU."""
if CAN_COPY:
    # On a GPU torch's optimiser imports its compiler, which takes a second; on a CPU there is a kernel in its place.
    COMPILER: Final = ["torch._dynamo"] if torch.backends.cuda.is_built() else []
    PROCESSES.set_forkserver_preload([f"{__package__}.tie", f"{__package__}.server", *COMPILER])


def prepare_copies() -> None:
    """Start the process that copies come from, unless it runs, in this thread: it ends with the thread (`tie`)."""
    os.environ[STARTER] = str(os.getpid())
    if CAN_COPY:
        with _shielded():
            forkserver.ensure_running()


class WorkerError(RuntimeError):
    """A process could not do what it was asked; ``kind`` is the name of the exception that it met, or "Died"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message if kind in ("Skip", "Died") else f"{kind}: {message}")
        self.kind, self.message = kind, message


class Answering(Protocol):
    """A server, or a client of one."""

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError. Waits for the device."""
        ...


# ------------------------------------------------------------------ in the process


def serve(connection: Connection, server: Answering) -> None:
    """Serve requests until the last one, which is empty."""
    requests = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()

    def ask_for_quiet(wants_quiet: bool) -> int:
        connection.send_bytes(json.dumps({"wants_quiet": wants_quiet}).encode())
        return int(json.loads(requests.get())["n_siblings"])

    while request := json.loads(requests.get()):
        if request.get("has_siblings"):
            SIBLINGS.ask_for_quiet = ask_for_quiet
        try:
            reply = server.ask(request["method"], **request["arguments"])
        except WorkerError as error:
            reply = {"error": error.kind, "message": error.message}
        connection.send_bytes(json.dumps(reply).encode())


def _as_copy(work: Callable[[Connection], None], connection: Connection) -> None:
    end_with_parent(os.getppid())
    work(connection)


def _read(connection: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    """Take requests; end the process as soon as who asks is gone: the next one must find the GPU free."""
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)


# ------------------------------------------------------------------ from another process


class Worker:
    """A process that answers requests; use it in a ``with``, which ends it.

    Args:
        name: Its name in messages.
        connection: Socket to it.
        wait: Waits for its end, for so many seconds; returns its exit code, or None if it goes on.
        kill: Ends it and what it has started.
        timeout_s: Longest wait for an answer, s; None: any.
        noise: File of what it prints; None: that is on the error output.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        wait: Callable[[float], int | None],
        kill: Callable[[], None],
        timeout_s: float | None = None,
        noise: IO[bytes] | None = None,
    ) -> None:
        self._name, self._connection, self._wait, self.kill = name, connection, wait, kill
        self._timeout_s, self._noise = timeout_s, noise

    @classmethod
    def copy(cls, work: Callable[[Connection], None]) -> Worker:
        """Start a copy of the process that has imported everything, to serve requests with a function."""
        prepare_copies()
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_as_copy, args=(work, theirs))
        with _shielded():
            process.start()
        register(process)
        theirs.close()

        def wait(seconds: float) -> int | None:
            process.join(seconds)
            return process.exitcode

        return cls("the worker", ours, wait, process.kill)

    @classmethod
    def on(cls, root: Path) -> Worker:
        """Start the server of the code under a folder, with its cases and its timer.

        Raises:
            WorkerError: There is none, the process ends, or takes its code from elsewhere.
        """
        root = root.resolve()
        words = program(root, "process/server.py", "worker.py")
        worker = cls.start(f"the worker on {root}", words, cwd=root, env=_environment(root))
        try:
            worker.require_code(root)
        except BaseException as error:
            worker.__exit__(type(error))
            raise
        return worker

    @classmethod
    def start(
        cls,
        name: str,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        timeout_s: float | None = None,
        is_quiet: bool = False,
    ) -> Worker:
        """Start a program that takes the number of its socket as its last word; OSError if it does not start.

        Args:
            name: Its name in messages.
            words: Program and arguments.
            env: Its environment.
            cwd: Its folder.
            timeout_s: Longest wait for an answer, s; None: any.
            is_quiet: Keep what it prints; its last line is told if it dies.
        """
        with contextlib.ExitStack() as opened:
            noise = opened.enter_context(tempfile.TemporaryFile()) if is_quiet else None
            ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
            process = Child(
                [*words, str(theirs.fileno())],
                cwd=cwd,
                env=dict(env),
                stdin=DEVNULL,
                stdout=noise or 2,
                stderr=STDOUT,
                pass_fds=(theirs.fileno(),),
            )
            connection = Connection(ours.detach())
            theirs.close()
            opened.pop_all()

        def wait(seconds: float) -> int | None:
            with contextlib.suppress(TimeoutExpired):
                return process.wait(seconds)
            return None

        return cls(name, connection, wait, process.kill, timeout_s, noise)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            with contextlib.suppress(OSError):
                self._connection.send_bytes(b"null")
        else:  # who asked is stopped, and waits for no point to end
            self.kill()
        if self._wait(ENDING_S) is None:
            self.kill()
            self._wait(ENDING_S)
        self._connection.close()
        if self._noise:
            self._noise.close()

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; waits.

        Raises:
            WorkerError: It raised, died, was too slow, or did not answer with a JSON object.
        """
        self.send(method=method, arguments=arguments)
        return self.receive(method)

    def send(self, **message: Any) -> None:
        """Send a request, or leave to go on; whether it arrives, `receive` tells."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(message).encode())

    def receive(self, method: str) -> Message:
        """Return the answer to a request, or a question on the way to it; waits.

        Raises:
            WorkerError: As `ask`.
        """
        try:
            if not self._connection.poll(self._timeout_s):
                raise self._ended(f"did not answer {method} within {self._timeout_s:g} s; raise --timeout")
            answer = self._connection.recv_bytes(LONGEST)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._ended(f"died at {method}") from None
        except OSError as error:
            raise self._ended(f"must answer {method} with a JSON object (got {error})") from error
        try:
            reply = json.loads(answer)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise self._ended(f"must answer {method} with a JSON object (got {answer[:80]!r})")
        if "error" in reply:
            raise WorkerError(reply["error"], excerpt(str(reply["message"])))
        return reply

    def fileno(self) -> int:
        """Return the number of the socket, which can be waited for."""
        return self._connection.fileno()

    def require_code(self, root: Path) -> None:
        """Make sure that the process has taken the code under a folder; raises WorkerError."""
        found = self.ask("describe")["root"]
        if Path(found) != root:
            raise WorkerError("ImportError", f"the code is taken from {found}, not {root}")

    def _ended(self, why: str) -> WorkerError:
        """End the process and return the error that says why, with how it ended if it did so itself."""
        code = self._wait(ENDING_S) if why.startswith("died") else None
        self.kill()
        self._wait(ENDING_S)
        if code is not None:
            why += f" by signal {-code}" if code < 0 else f" with exit code {code}"
            why += f"; its last words: {_last_line(self._noise):.200}" if self._noise else "; see the error output"
        return WorkerError("Died", f"{self._name}: {why}")


@contextlib.contextmanager
def _shielded() -> Iterator[None]:
    """Let processes that start within never get signals of the whole group: their starter ends them.

    A terminal sends SIGINT and SIGHUP to all, `timeout` and schedulers of jobs SIGTERM.
    """
    resource_tracker.ensure_running()  # `multiprocessing` would start it within, and let SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _last_line(noise: IO[bytes]) -> str:
    noise.seek(0)
    lines = noise.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


def _environment(root: Path) -> dict[str, str]:
    """Return the environment of a worker; $BENCH_GIT_SHA names the commit of this checkout, and of no other."""
    kept = {name: value for name, value in os.environ.items() if root == machine.ROOT or name != "BENCH_GIT_SHA"}
    return finding(root, kept)


def program(root: Path, *names: str) -> list[str]:
    """Return the words that start a program of the code under a folder.

    Args:
        root: Folder of a checkout, of this or of another commit, or of an install.
        names: Its file in the bench, the newest name first.

    Raises:
        WorkerError: There is no such file.
    """
    packages = (root / "bench", root / "warpdrive_min" / "bench")
    for file in (package / name for name in names for package in packages):
        if file.exists():
            return [sys.executable, "-P", str(file)]  # -P: the file's folder stays off the path
    raise WorkerError("ImportError", f"{root} has no {names[0]} in its bench; name a newer commit")


def finding(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds the code under a folder first, and packages where it did before."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))}
