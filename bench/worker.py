"""A process of its own that sets points up, checks and times them: one protocol, one loop, one client.

A request and its answer are JSON objects over a socket that the process inherits. Whoever answers has a method
``ask(method, **arguments)``: a `Server` in its own process, a `Worker` for one elsewhere, on the code of this checkout
or of another one. A peer's process answers the same client, see `peers/worker.py`.

A point of a GPU is measured in a process of its own, alike whatever was measured before it: a process that has captured
several CUDA graphs launches out of all of them more slowly, for good (ADR 0014).
"""

from __future__ import annotations

import contextlib
import gc
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
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, STDOUT, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

import torch

if __name__ == "__main__":  # run by its path, which says whether the package lies in another one
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[1] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench"

# Of a side at an older commit these are that one's: only names that it has, in the files where it has them
from . import machine, measure
from .case import Case, Job, Skip
from .cases import CASES
from .measure import Plan, Timed, Timer
from .record import Context, Host, Record, StartTime, parsed
from .workloads.shared import ON_GPU

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
    PROCESSES.set_forkserver_preload([f"{__package__}.tie", __name__, *COMPILER])


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


class StartingFrom:
    """A stopwatch that brings the work back to one state before each block, outside of the time.

    Args:
        timed: Work with a snapshot; its present state is the first.
    """

    def __init__(self, timed: Timed) -> None:
        assert timed.snapshot is not None, "work that goes back has a snapshot"
        self._snapshot, self._stopwatch = timed.snapshot, timed.stopwatch or measure.stopwatch_for(timed)
        self.move()

    def move(self) -> None:
        """Start the blocks to come from the present state."""
        self._restore = self._snapshot()

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        self._restore()
        return self._stopwatch.time(block)


class Server:
    """Answers requests in this process; holds one point at a time.

    Args:
        cases: The cases that it knows.
    """

    def __init__(self, cases: Mapping[str, Case] = CASES) -> None:
        self._cases = cases
        self._timed: Timed | None = None
        self._timer: Timer | None = None
        self._start: StartingFrom | None = None

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError. Waits for the device."""
        try:
            reply: Message = getattr(self, method)(**arguments)
        except WorkerError:
            raise
        except Exception as error:
            raise WorkerError(type(error).__name__, str(error)) from error
        return reply

    def describe(self) -> Message:
        """Return machine, commit and installed packages, and the folder of the code."""
        return {
            "root": str(machine.ROOT),
            "machine": machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "git": machine.git_state(machine.ROOT),
            "dependencies_hash": machine.dependencies_hash(),
        }

    def measure(self, case: str, point: Message, context: Mapping[str, Any]) -> Message:
        """Set up, check, measure, check and record one point; returns the record."""
        record = Job(self._cases[case], point).run(Context(**context))
        return {"record": json.loads(record.to_line())}

    def set_up(self, case: str, point: Message) -> Message:
        """Make a point ready and check it; ``has_snapshot`` says whether it can go back to where it is now."""
        self._let_go()
        if case not in self._cases:
            raise Skip(f"this code has no case {case}")
        found, self._host = self._cases[case], Host.before()
        timed = found.setup(point)
        if not isinstance(timed, Timed):
            raise Skip(f"{case} is run once, it has no blocks to be timed in turns")
        before = asdict(timed.check().require("before"))
        self._timed, facts = timed, timed.facts
        return {
            "case_version": found.version,
            "scope": found.scope,
            "facts": {**asdict(facts), "device": facts.device.type},
            "has_snapshot": getattr(timed, "snapshot", None) is not None,  # the code of a side may lack it
            "check": before,
        }

    def warm_up(self, sample_s: float, warm_up_cap_s: float, *, goes_back: bool) -> Message:
        """Choose the length of a block and warm up.

        Args:
            sample_s: Least length of a block, s.
            warm_up_cap_s: Longest warm-up, s.
            goes_back: Each block, here and in `sample`, starts from one state: that of the set-up, till `go_on`.
        """
        assert self._timed is not None, "a point is set up before it is warmed up"
        self._start = StartingFrom(self._timed) if goes_back else None
        self._timer = self._timer_of(self._timed)
        self._timer.settle(Plan(sample_s=sample_s, warm_up_cap_s=warm_up_cap_s))
        return {"runs_per_sample": self._timer.runs, "warm_up": self._timer.warm_up}

    def begin(self, runs: int, n_blocks: int) -> Message:
        """Set the runs of a block, and skip ``n_blocks`` blocks."""
        assert self._timed is not None, "a point is set up before it begins"
        assert self._timer is not None, "a point is warmed up before it begins"
        self._timer.runs = runs
        for _ in range(n_blocks):
            self.sample()
            self.go_on()
        return {}

    def sample(self) -> Message:
        """Time one block and wait for it; returns ``wall_ns`` and ``device_ns`` of one run."""
        assert self._timer is not None, "a point is warmed up before it is sampled"
        wall_ns, device_ns = self._timer.sample()
        return {"wall_ns": wall_ns, "device_ns": device_ns}

    def go_on(self) -> Message:
        """Let the blocks to come start where the last one has ended."""
        if self._start:
            self._start.move()
        return {}

    def finish(self, *, with_twin: bool) -> Message:
        """Check the point again, and its twin where asked, and let go of it."""
        assert self._timed is not None, "a point is set up before it is finished"
        try:
            host = self._host.after(self._timed.facts.device)
            if hasattr(self._timed, "check_after"):  # the code of a side may lack it
                check = self._timed.check_after(with_twin=with_twin)
            else:
                check = self._timed.check()
            return {"check": asdict(check.require("after")), "host": host.model_dump()}
        finally:
            self._let_go()

    def _timer_of(self, timed: Timed) -> Timer:
        return Timer(replace(timed, stopwatch=self._start) if self._start else timed)

    def _let_go(self) -> None:
        """Free what a point took: the other side, or the next point, may need it."""
        if self._timed is None:
            return
        self._timed = self._timer = self._start = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def serve(connection: Connection, server: Answering | None = None) -> None:
    """Answer requests until one says that it was the last."""
    requests = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    server = server or Server()

    def ask_for_quiet(wants_quiet: bool) -> int:
        connection.send_bytes(json.dumps({"wants_quiet": wants_quiet}).encode())
        return int(json.loads(requests.get())["n_siblings"])

    while request := json.loads(requests.get()):
        if request.get("has_siblings"):
            from .quiet import SIBLINGS  # noqa: PLC0415  (the code of a side may lack it)

            SIBLINGS.ask_for_quiet = ask_for_quiet
        try:
            reply = server.ask(request["method"], **request["arguments"])
        except WorkerError as error:
            reply = {"error": error.kind, "message": error.message}
        connection.send_bytes(json.dumps(reply).encode())


def _as_copy(work: Callable[[Connection], None], connection: Connection) -> None:
    from warpdrive_min.processes import end_with_parent  # noqa: PLC0415  (the code of a side may lack it)

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
    def copy(cls) -> Worker:
        """Start a process on the code of this checkout."""
        from warpdrive_min.processes import register  # noqa: PLC0415  (of this checkout; the code of a side may lack it)

        prepare_copies()
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_as_copy, args=(serve, theirs))
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
        """Start a process on the code under a folder: of this very file, which takes cases and timer from there.

        Raises:
            WorkerError: The process ends, or takes its code from elsewhere.
        """
        root = root.resolve()
        # -P: this file's folder stays off the path, so `bench` is the package under root.
        words = [sys.executable, "-P", str(Path(__file__).resolve())]
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
        from warpdrive_min.processes import Child  # noqa: PLC0415  (of this checkout; the code of a side may lack it)

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
            from warpdrive_min.backends.cache import excerpt  # noqa: PLC0415  (as `tied`)

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
    from warpdrive_min.stopping import SIGNALS  # noqa: PLC0415  (of this checkout; the code of a side may lack it)

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


def finding(root: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds the code under a folder first, and packages where it did before."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))}


# ------------------------------------------------------------------ points of a sweep


def run_point(job: Job, context: Context) -> Record:
    """Measure one point; where its process dies the record has failed."""
    if not is_on_gpu(job):
        return job.run(context)
    failed = partial(Record.of, job.case, job.point, context, started=StartTime(), status="failed")
    try:
        with Worker.copy() as worker:
            reply = worker.ask("measure", case=job.case.name, point=dict(job.point), context=asdict(context))
        return parsed(Record, reply["record"], job.case.name)
    except WorkerError as error:
        return failed(reason=str(error))


def is_on_gpu(job: Job) -> bool:
    """Return whether a point is measured on a GPU of this machine."""
    return torch.cuda.is_available() and job.point["backend"] in ON_GPU


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
