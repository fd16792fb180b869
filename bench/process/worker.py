"""Protocol between processes: JSON requests, a server loop, a client.

A request and its answer are JSON objects over an inherited socket. `Dispatcher.ask` answers in its own process,
`Worker.ask` in another one: on this code, at another commit, or in a peer's interpreter (`peers/worker.py`). The names
of requests and the fields of answers are an interface: older commits answer them with their own code.

Each point of a GPU is measured in a new process: after capturing several CUDA graphs, a process launches all of them
more slowly (ADR 0014).
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
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import DEVNULL, STDOUT, TimeoutExpired
from typing import IO, Any, Final, Protocol

from warpdrive_min.packages import with_own_install_commands
from warpdrive_min.processes import Child, end_with_parent, register
from warpdrive_min.stopping import SIGNALS

from ..core.errors import WorkerError as WorkerError
from ..core.exclusive import SIBLINGS
from ..core.machine import ROOT

Message = dict[str, Any]
"""JSON object."""

ENDING_S: Final = 10.0
"""Timeout for a process to end after its last request, s."""
LONGEST: Final = 1 << 24
"""Size limit of an answer, bytes."""
STARTER: Final = "BENCH_STARTER"
"""Environment variable with the process id that the fork server watches."""
PROCESSES: Final[Any] = multiprocessing.get_context("forkserver")
"""Context that starts processes from a fork server without CUDA."""


class RequestHandler(Protocol):
    """Server, or a client of one."""

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError. Waits for the device."""
        ...


Start = Callable[[], AbstractContextManager[RequestHandler]]
"""Starts a process that answers requests."""


# ------------------------------------------------------------------ in the process


class Dispatcher:
    """Answers a request with the method of its name."""

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError. Waits for the device."""
        try:
            reply: Message = getattr(self, method)(**arguments)
        except WorkerError:
            raise
        except Exception as error:
            raise WorkerError(type(error).__name__, str(error)) from error
        return reply


def serve(connection: Connection, server: RequestHandler) -> None:
    """Serve requests until an empty one."""
    requests = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()

    def ask_for_exclusive(wants_exclusive: bool) -> int:
        connection.send_bytes(json.dumps({"wants_exclusive": wants_exclusive}).encode())
        return int(json.loads(requests.get())["n_siblings"])

    while request := json.loads(requests.get()):
        if request.get("has_siblings"):
            SIBLINGS.ask_for_exclusive = ask_for_exclusive
        try:
            reply = server.ask(request["method"], **request["arguments"])
        except WorkerError as error:
            reply = {"error": error.kind, "message": error.message}
        connection.send_bytes(json.dumps(reply).encode())


def _read(connection: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    """Read requests; exit when the client is gone, to free the GPU."""
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(1)


# ------------------------------------------------------------------ from another process


@dataclass(eq=False)
class Worker:
    """Client of a process that answers requests; its context ends it.

    Args:
        name: Name in messages.
        connection: Socket of the process.
        wait: Waits for its end up to a number of seconds; returns the exit code, or None.
        kill: Ends the process and its children.
        timeout_s: Longest wait for an answer, s; None: no limit.
        noise: File with its output; None: it prints to stderr.
    """

    name: str
    connection: Connection
    wait: Callable[[float], int | None]
    kill: Callable[[], None]
    timeout_s: float | None = None
    log: IO[bytes] | None = None

    @classmethod
    def on(cls, root: Path) -> Worker:
        """Start the server of a folder's code, with its own cases.

        Raises:
            WorkerError: It has no server, or the process dies or imports other code.
        """
        root = root.resolve()
        words = program(root, "process/local.py", "process/server.py", "worker.py")
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
        """Start a program with its socket's number as last argument.

        Args:
            name: Name in messages.
            words: Program and arguments.
            env: Environment variables.
            cwd: Working directory.
            timeout_s: Longest wait for an answer, s; None: no limit.
            is_quiet: Capture its output; if it dies, the error quotes the last line.

        Raises:
            OSError: The program does not start.
        """
        with contextlib.ExitStack() as opened:
            log = opened.enter_context(tempfile.TemporaryFile()) if is_quiet else None
            ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
            process = Child(
                [*words, str(theirs.fileno())],
                cwd=cwd,
                env=dict(env),
                stdin=DEVNULL,
                stdout=log or 2,
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

        return cls(name, connection, wait, process.kill, timeout_s, log)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            with contextlib.suppress(OSError):
                self.connection.send_bytes(b"null")
        else:  # this process is stopped and does not wait for a point to end
            self.kill()
        if self.wait(ENDING_S) is None:
            self.kill()
            self.wait(ENDING_S)
        self.connection.close()
        if self.log:
            self.log.close()

    def ask(self, method: str, **arguments: Any) -> Message:
        """Send a request and wait for its answer.

        Raises:
            WorkerError: The process raised an error, died, timed out, or sent no JSON object.
        """
        self.send(method=method, arguments=arguments)
        return self.receive(method)

    def send(self, **message: Any) -> None:
        """Send a message; `receive` reports a failure."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(json.dumps(message).encode())

    def receive(self, method: str) -> Message:
        """Wait for the answer, or a request for `exclusive` before it.

        Raises:
            WorkerError: As `ask`.
        """
        try:
            if not self.connection.poll(self.timeout_s):
                raise self._ended(f"did not answer {method} within {self.timeout_s:g} s; increase --timeout")
            answer = self.connection.recv_bytes(LONGEST)
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
            from warpdrive_min.backends.cache import excerpt  # noqa: PLC0415  (imports torch)

            raise WorkerError(reply["error"], excerpt(with_own_install_commands(str(reply["message"]))))
        return reply

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for `multiprocessing.connection.wait`."""
        return self.connection.fileno()

    def require_code(self, root: Path, reply: Message | None = None) -> None:
        """Raise WorkerError unless a reply is from a folder's code; None: ask."""
        found = (reply or {}).get("root") or self.ask("describe")["root"]
        if Path(found) != root:
            raise WorkerError("ImportError", f"Python imports the code of {found} instead of {root}")

    def _ended(self, why: str) -> WorkerError:
        """Kill the process; return an error with reason and exit code."""
        code = self.wait(ENDING_S) if why.startswith("died") else None
        self.kill()
        self.wait(ENDING_S)
        if code is not None:
            why += f" by signal {-code}" if code < 0 else f" with exit code {code}"
            why += f"; its last line of output: {_last_line(self.log):.200}" if self.log else "; see the error output"
        return WorkerError("Died", f"{self.name}: {why}")


# ------------------------------------------------------------------ copies of this code


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts a copy of this code from the fork server.

    Args:
        serve: Function that serves requests there.
        preload: Module that the fork server imports.
    """

    serve: Callable[[Connection], None]
    preload: str = __name__

    def __call__(self) -> Worker:
        """Start a process."""
        self.prepare()
        ours, theirs = PROCESSES.Pipe()
        process: BaseProcess = PROCESSES.Process(target=self._run, args=(theirs,))
        with _signals_blocked():
            process.start()
        register(process)
        theirs.close()

        def wait(seconds: float) -> int | None:
            process.join(seconds)
            return process.exitcode

        return Worker("the worker", ours, wait, process.kill)

    def prepare(self) -> None:
        """Start the fork server if needed; it ends with this thread."""
        os.environ[STARTER] = str(os.getpid())
        import torch  # noqa: PLC0415  (slow to import)

        # On a GPU torch's optimiser imports its compiler, which takes a second.
        compiler = ["torch._dynamo"] if torch.backends.cuda.is_built() else []
        PROCESSES.set_forkserver_preload([f"{__package__}.parent_watch", self.preload, *compiler])
        with _signals_blocked():
            forkserver.ensure_running()

    def _run(self, connection: Connection) -> None:
        end_with_parent(os.getppid())
        self.serve(connection)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in processes that start inside; their parent ends them.

    A terminal sends SIGINT and SIGHUP to the whole process group; `timeout` and job schedulers send SIGTERM.
    """
    resource_tracker.ensure_running()  # `multiprocessing` would start it inside, and unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")


# ------------------------------------------------------------------ code in another folder


def _environment(root: Path) -> dict[str, str]:
    """Return a worker's environment; $BENCH_GIT_SHA is for this checkout only."""
    return env_with_code_first(
        root, {name: value for name, value in os.environ.items() if root == ROOT or name != "BENCH_GIT_SHA"}
    )


def program(root: Path, *names: str) -> list[str]:
    """Return the command that starts a folder's program.

    Args:
        root: Folder of a checkout, at any commit, or of an install.
        names: Paths of the program in `bench`, newest first: it has moved.

    Raises:
        WorkerError: The folder has no such file.
    """
    packages = (root / "bench", root / "warpdrive_min" / "bench")
    for file in (package / name for name in names for package in packages):
        if file.exists():
            return [sys.executable, "-P", str(file)]  # -P: keeps the file's folder off the path
    raise WorkerError("ImportError", f"{root} has no bench/{names[0]}; choose a newer commit")


def env_with_code_first(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds a folder's code first."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))}
