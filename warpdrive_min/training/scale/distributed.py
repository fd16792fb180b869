"""Several processes that train together, one GPU each: how they are started, join each other and end.

What they compute together is in `ranks.py` and `optimiser.py`; how to use it in `docs/scaling.md`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

# Before a group is opened: its functions take the group that is open when they are imported for a default, and what
# imports them later, as optimisers do, keeps that group and its threads until the process ends, which they can crash.
import torch.distributed.nn
from torch import distributed

from warpdrive_min import backends, processes
from warpdrive_min.errors import TrainingError, require
from warpdrive_min.files import own_folder, write_atomically
from warpdrive_min.stopping import RANK_SIGNALS, Stopped, handle, ignore
from warpdrive_min.training.paths.captured import forget_graphs
from warpdrive_min.training.ranks import World

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

TIMEOUT: Final = timedelta(minutes=10)
"""Longest wait of a rank for the others at one point; the first waits are for kernels to be compiled."""
FEW: Final = 8
"""Processes that any machine may start."""
THREADS: Final = "OMP_NUM_THREADS"
LEFT_TO_IT: Final = "signals_to_handle"
"""Setting of torch's launcher: signals that it passes on to the ranks by itself."""
ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
"""Environment variable in which torchrun names the file that a rank leaves its error in."""


@contextlib.contextmanager
def joined(env_backend: str) -> Iterator[World]:
    """Be one of the processes that torchrun has started, within a ``with`` statement; alone if it has not.

    On a GPU backend the process gets the GPU of its local rank before anything is put there, so wrappers and
    trainers are made inside; and the ranks talk by NCCL, else by Gloo. Where the processes of a machine have no
    ``OMP_NUM_THREADS``, they share out its threads. At the end the ranks wait for each other. A rank is killed when
    the process that has started it ends.

    Args:
        env_backend: Name of the backend of the environments.

    Raises:
        BackendUnavailable: The backend is unknown or cannot run here.
        ConfigError: There is no GPU for this rank.
    """
    if not processes.is_rank():
        yield World()
        return
    # A rank that is left alone would wait for the others, for minutes and without looking at signals.
    processes.end_with_parent(os.getppid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, RANK_SIGNALS)
    with _error_for_the_launcher():
        device = own_gpu(int(os.environ["LOCAL_RANK"])) if on_gpu(env_backend) else None
        if THREADS not in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
        distributed.init_process_group("gloo" if device is None else "nccl", timeout=TIMEOUT, device_id=device)
        try:
            world = World.of()
            yield world
            world.wait()
        finally:
            forget_graphs()  # NCCL's end waits for the last graph that it is captured in
        # A rank that fails leaves the group as it is: to close it would wait for the others, and those for this one.
        distributed.destroy_process_group()


@contextlib.contextmanager
def _error_for_the_launcher() -> Iterator[None]:
    """Leave an error where torchrun, or `launch`, looks for the one that a rank ended with."""
    try:
        yield
    except Exception as error:
        if (path := os.environ.get(ERROR_FILE)) is not None:
            more = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            report = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": more}}
            # Whole or not at all: the launcher reads it also if it has ended this rank meanwhile. A full disk, which
            # may be the error, is not to hide it.
            with contextlib.suppress(OSError):
                write_atomically(Path(path), json.dumps(report))
        raise


def on_gpu(env_backend: str) -> bool:
    """Tell whether a backend runs on a GPU.

    Raises:
        BackendUnavailable: It is unknown or cannot run here.
    """
    return backends.get(env_backend).captures_graphs


def _require_gpus(n: int) -> None:
    n_gpus = torch.cuda.device_count()
    rule = f"each of the {n} processes needs a GPU of its own"
    require(n <= n_gpus, "training", rule, n_gpus, f"start at most {n_gpus} there, and let each see all of them")


def own_gpu(local_rank: int) -> torch.device:
    """Make the GPU of a local rank the current one, and return it.

    Raises:
        ConfigError: There are too few.
    """
    _require_gpus(local_rank + 1)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def require_processes(n: int, env_backend: str | None = None) -> None:
    """Make sure that this machine can run n processes that train together; arguments as of `launch`.

    Raises:
        ConfigError: There are fewer GPUs, or, above `FEW` processes, fewer cores than processes.
        BackendUnavailable: The backend is unknown or cannot run here.
    """
    if env_backend is not None and on_gpu(env_backend):
        _require_gpus(n)
    most = max(FEW, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    require(n <= most, "training", f"must have at most {most} processes on this machine, a core each", n, "start fewer")


def launch(n: int, argv: Sequence[str], env_backend: str | None = None, module: str = "warpdrive_min") -> None:
    """Run ``python -m module *argv`` in n processes of this machine, as torchrun does, and wait for them.

    They share this process's standard output and error. When one fails the others are ended, and when this process is
    killed they all are.

    Args:
        n: Processes.
        argv: Arguments of the command.
        env_backend: Backend of the environments: a GPU is needed for each process if it runs on GPUs; None: each
            process finds out for itself.
        module: Run as a script; calls `joined`.

    Raises:
        ConfigError: As `require_processes`.
        BackendUnavailable: Likewise.
        TrainingError: A process has failed, or was killed; says with which error.
        Stopped: A signal has ended them all, one of `SIGNALS`, which the processes get as SIGINT and have half
            a minute to end by; the code is 128 + its number.
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
        if hasattr(config, LEFT_TO_IT):  # torch 2.9 and later; before, SIGTERM ends the ranks without saving
            setattr(config, LEFT_TO_IT, "SIGUSR2")
        try:
            with _signal_handlers_kept(), _stopping_together(SignalException) as caught:
                program, *arguments = processes.tied([sys.executable, "-m", module, *argv])
                elastic_launch(config, program)(*arguments)
        except ChildFailedError as error:
            ended_here = -signal.SIGTERM
            failed = {rank: end for rank, end in error.failures.items() if end.exitcode != ended_here}
            ends = "; ".join(f"rank {rank}: {_end_of(end)}" for rank, end in (failed or error.failures).items())
            do = "what they said is above, and the others were ended; mend it and resume from the last checkpoint"
            raise TrainingError.of("launch", f"none of {n} ranks may fail", ends, do) from error
        except SignalException as error:
            raise Stopped(caught[0] if caught else error.sigval) from error


def _end_of(failure: ProcessFailure) -> str:
    """Return how a rank ended, and its error if it could leave one."""
    how = f"exit code {failure.exitcode}" if failure.exitcode > 0 else signal.Signals(-failure.exitcode).name
    told: Any = failure.message
    error = f", {told['message']}" if isinstance(told, dict) else ""  # what the rank left; else words of torch's
    return f"process {failure.pid}, {how}{error}"


@contextlib.contextmanager
def _stopping_together(end: type[Exception]) -> Iterator[list[int]]:
    """Collect the signals that ask to stop, and let the launcher send SIGINT to all ranks, which then save.

    SIGTERM would kill them where they are.

    Args:
        end: Error of the launcher's, with the signal that it is to send.
    """
    caught: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        ignore()
        logging.disable(logging.WARNING)  # the launcher tells of each process that it ends
        raise end(f"got signal {number}", signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        handle(pass_on)
    is_disabled = logging.root.manager.disable
    try:
        yield caught
    finally:
        logging.disable(is_disabled)


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Put back the handlers of signals, which torch's launcher replaces and leaves so."""
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # it replaces them in this one only
            for kind, handler in before.items():
                signal.signal(kind, handler)
