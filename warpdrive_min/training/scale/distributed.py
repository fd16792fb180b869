"""Start, group and end of processes that train together, one GPU each.

`ranks.py` and `optimiser.py` have the collective computations. `docs/scaling.md` describes the use.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from warpdrive_min import backends, cores, processes
from warpdrive_min.errors import TrainingError, require
from warpdrive_min.files import own_folder, write_atomically
from warpdrive_min.stopping import RANK_SIGNALS, Stopped, ignore_signals, set_handlers
from warpdrive_min.training.paths.captured import release_graphs
from warpdrive_min.training.ranks import World

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

TIMEOUT: Final = timedelta(minutes=10)
"""Timeout of a collective operation.

The first operations wait for other ranks to compile kernels.
"""
ALWAYS_ALLOWED_PROCESSES: Final = 8
"""Number of processes that any machine may start."""
THREADS: Final = "OMP_NUM_THREADS"
FORWARDED_SIGNALS: Final = "signals_to_handle"
"""Setting of torch's launcher: signals that it forwards to the ranks."""
LOST_CONNECTION: Final = re.compile(
    r"gloo.*(closed by peer|Connection reset|Broken pipe|Connection refused)", re.DOTALL
)
"""Text of Gloo's error on a rank whose peer has ended."""
ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torchrun with the path for a rank's error."""


@contextlib.contextmanager
def process_group(env_backend: str) -> Iterator[World]:
    """Join torchrun's process group within a ``with`` statement.

    Without torchrun, yields a world of one process. On a GPU backend the process selects the GPU of its local rank, so
    create wrappers and trainers inside. Ranks communicate by NCCL on GPUs, else by Gloo. If ``OMP_NUM_THREADS`` is not
    set, the processes of a machine share its threads equally. At the end the ranks wait for each other. A rank is
    killed when its parent process ends.

    Args:
        env_backend: Name of the backend of the environments.

    Raises:
        BackendUnavailable: The backend is unknown or cannot run here.
        ConfigError: This rank has no GPU.
    """
    if not processes.is_rank():
        yield World()
        return
    # An orphaned rank would wait for the others, for minutes and without handling signals.
    processes.end_with_parent(os.getppid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_SIGNALS)
    with _error_for_the_launcher():
        device = own_gpu(int(os.environ["LOCAL_RANK"])) if on_gpu(env_backend) else None
        if THREADS not in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
        # Import before the group is opened: the functions' default group is the one open at import. Optimisers would
        # import it later, and keep the group and its threads until the process ends. Such threads can crash the exit.
        from torch.distributed import nn  # noqa: F401, PLC0415

        distributed.init_process_group("gloo" if device is None else "nccl", timeout=TIMEOUT, device_id=device)
        try:
            world = World.of()
            yield world
            world.wait()
        finally:
            release_graphs()  # NCCL's shutdown waits for the last graph with captured NCCL calls
        # A failing rank does not close the group: closing waits for the others, which wait for this rank.
        distributed.destroy_process_group()


def joined(env_backend: str) -> contextlib.AbstractContextManager[World]:
    """Old name of `process_group`."""
    warnings.warn("joined is now process_group", DeprecationWarning, stacklevel=2)
    return process_group(env_backend)


class RankLostError(TrainingError):
    """Another rank has ended; its error is the cause."""


@contextlib.contextmanager
def _lost_ranks_named() -> Iterator[None]:
    """Turn Gloo's error about a closed connection into a `RankLostError`."""
    try:
        yield
    except RuntimeError as error:
        if not LOST_CONNECTION.search(str(error)):
            raise
        do = "its error is the cause"
        raise RankLostError.of("rank", "needs all other ranks, and one has ended", os.environ["RANK"], do) from error


@contextlib.contextmanager
def _error_for_the_launcher() -> Iterator[None]:
    """Write a rank's error to the file that torchrun or `launch` reads."""
    try:
        with _lost_ranks_named():
            yield
    except Exception as error:
        if (path := os.environ.get(ERROR_FILE)) is not None:
            more = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            report = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": more}}
            # Write atomically: the launcher reads the file even if it ends this rank during the write. A full disk may
            # be the error itself, so a failed write must not hide it.
            with contextlib.suppress(OSError):
                write_atomically(Path(path), json.dumps(report))
        raise


def on_gpu(env_backend: str) -> bool:
    """Return True if a backend runs on a GPU.

    Raises:
        BackendUnavailable: The backend is unknown or cannot run here.
    """
    return backends.get(env_backend).captures_graphs


def _require_gpus(n: int) -> None:
    n_gpus = torch.cuda.device_count()
    rule = f"each of the {n} processes needs its own GPU"
    require(n <= n_gpus, "training", rule, n_gpus, f"start at most {n_gpus} processes, each with all GPUs visible")


def own_gpu(local_rank: int) -> torch.device:
    """Select the GPU of a local rank and return it.

    Raises:
        ConfigError: The machine has too few GPUs.
    """
    _require_gpus(local_rank + 1)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def require_processes(n: int, env_backend: str | None = None) -> None:
    """Check that this machine can train in n processes.

    Arguments are as in `launch`.

    Raises:
        ConfigError: The machine has fewer GPUs than processes, or fewer cores than processes above
            `ALWAYS_ALLOWED_PROCESSES`.
        BackendUnavailable: The backend is unknown or cannot run here.
    """
    if env_backend is not None and on_gpu(env_backend):
        _require_gpus(n)
    most = max(ALWAYS_ALLOWED_PROCESSES, cores.n_cores())
    rule = f"must have at most {most} processes on this machine: one per core, or {ALWAYS_ALLOWED_PROCESSES}"
    require(n <= most, "training", rule, n, "start fewer")


def launch(n: int, argv: Sequence[str], env_backend: str | None = None, module: str = "warpdrive_min") -> None:
    """Run a module in n processes, as torchrun does.

    The command is ``python -m module *argv``; waits for all of them. The processes run on this machine and share this
    process's standard output and error. If one fails, the others are ended. If this process is killed, all are killed.

    Args:
        n: Number of processes.
        argv: Arguments of the command.
        env_backend: Backend of the environments. On a GPU backend each process needs a GPU. None: each process checks
            this itself.
        module: Module to run as a script, which calls `process_group`.

    Raises:
        ConfigError: As in `require_processes`.
        BackendUnavailable: As in `require_processes`.
        TrainingError: A process failed or was killed; the message has its error.
        Stopped: A signal of `SIGNALS` ended all processes. They get it as SIGINT and have half a minute to end. The
            exit code is 128 + the signal's number.
    """
    require_processes(n, env_backend)
    from torch.distributed.elastic.multiprocessing.api import (  # noqa: PLC0415  (slow to import)
        DefaultLogsSpecs,
        SignalException,
    )
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    with own_folder(Path(tempfile.gettempdir()), "warpdrive-launch-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=n,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # a free port
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        )
        if hasattr(config, FORWARDED_SIGNALS):  # torch 2.9 and later; earlier, SIGTERM ends the ranks without saving
            setattr(config, FORWARDED_SIGNALS, "SIGUSR2")
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it repeats each rank's end
        try:
            with _restored_signal_handlers(), _stop_all_ranks(SignalException) as caught:
                program, *arguments = processes.tied_to_parent([sys.executable, "-m", module, *argv])
                elastic_launch(config, program)(*arguments)
        except ChildFailedError as error:
            failed = {rank: end for rank, end in error.failures.items() if not _is_consequence(end)} or error.failures
            # Ranks with one error, such as a setting that all refuse, are named by the first one's.
            firsts = {_error_of(end) or rank: rank for rank, end in reversed(failed.items())}
            ends = "; ".join(f"rank {rank}: {_describe_failure(failed[rank])}" for rank in sorted(firsts.values()))
            do = "their output is above, and the others were ended; fix the cause and resume from the last checkpoint"
            raise TrainingError.of("launch", f"none of {n} ranks may fail", ends, do) from error
        except SignalException as error:
            raise Stopped(caught[0] if caught else error.sigval) from error


def _error_of(failure: ProcessFailure) -> str:
    """Return the error that a rank wrote, with its class, or ""."""
    report: Any = failure.message
    return str(report["message"]) if isinstance(report, dict) else ""  # a dict is the rank's, a str torch's


def _is_consequence(failure: ProcessFailure) -> bool:
    """True if a rank ended because another one had.

    The launcher ended it, or it waited for the other.
    """
    return failure.exitcode == -signal.SIGTERM or _error_of(failure).startswith(f"{RankLostError.__name__}: ")


def _describe_failure(failure: ProcessFailure) -> str:
    """Describe how a rank ended, with its error if it wrote one."""
    how = f"exit code {failure.exitcode}" if failure.exitcode > 0 else signal.Signals(-failure.exitcode).name
    return ", ".join(filter(None, (f"process {failure.pid}", how, _error_of(failure))))


@contextlib.contextmanager
def _stop_all_ranks(end: type[Exception]) -> Iterator[list[int]]:
    """Collect stop signals, and make the launcher send SIGINT to all ranks.

    On SIGINT the ranks save; SIGTERM would kill them at once.

    Args:
        end: Exception of the launcher, which carries the signal to send.
    """
    caught: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        ignore_signals()
        logging.disable(logging.WARNING)  # the launcher logs each process that it ends
        raise end(f"got signal {number}", signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        set_handlers(pass_on)
    is_disabled = logging.root.manager.disable
    try:
        yield caught
    finally:
        logging.disable(is_disabled)


@contextlib.contextmanager
def _restored_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers, which torch's launcher replaces permanently."""
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # the launcher replaces them in the main thread only
            for kind, handler in before.items():
                signal.signal(kind, handler)
