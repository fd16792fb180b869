"""Several processes that train together, one GPU each: how they are started, join each other and end.

What they compute together is in `ranks.py` and `optimiser.py`; how to use it in `docs/scaling.md`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import torch
from torch import distributed

from warpdrive_min import backends
from warpdrive_min.errors import ConfigError, TrainingError
from warpdrive_min.training.phase import forget_graphs
from warpdrive_min.training.ranks import World

TIMEOUT: Final = timedelta(minutes=10)
"""How long a rank waits for the others at one point; the first ones wait for kernels to be compiled."""
STARTED_BY: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun gives each process."""
THREADS: Final = "OMP_NUM_THREADS"


def is_rank() -> bool:
    """Tell whether torchrun, or `launch`, has started this process as one of several."""
    return os.environ.keys() >= set(STARTED_BY)


@contextlib.contextmanager
def joined(env_backend: str) -> Iterator[World]:
    """Be one of the processes that torchrun has started, within a ``with`` statement; alone if it has not.

    On a GPU backend the process gets the GPU of its local rank before anything is put there, so wrappers and
    trainers are made inside; and the ranks talk by NCCL, else by Gloo. Where the processes of a machine have no
    ``OMP_NUM_THREADS``, they share out its threads. At the end the ranks wait for each other.

    Args:
        env_backend: Name of the backend of the environments.

    Raises:
        BackendUnavailable: The backend is unknown or cannot run here.
        ConfigError: There is no GPU for this rank.
    """
    if not is_rank():
        yield World()
        return
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
    # A rank that fails leaves the group as it is: to close it would wait for the others, and those wait for this one.
    distributed.destroy_process_group()


def on_gpu(env_backend: str) -> bool:
    """Tell whether a backend runs on a GPU.

    Raises:
        BackendUnavailable: It is unknown or cannot run here.
    """
    return backends.get(env_backend).captures_graphs


def own_gpu(local_rank: int) -> torch.device:
    """Make the GPU of a local rank the current one, and return it.

    Raises:
        ConfigError: There are too few.
    """
    n_gpus = torch.cuda.device_count()
    if local_rank >= n_gpus:
        raise ConfigError(
            f"training: each process of a machine needs a GPU of its own (got local rank {local_rank} and {n_gpus} "
            f"visible GPUs); start at most {n_gpus} there, and let each see all of them"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def launch(n: int, argv: Sequence[str], env_backend: str | None = None, module: str = "warpdrive_min") -> None:
    """Run ``python -m module *argv`` in n processes of this machine, as torchrun does, and wait for them.

    They share this process's standard output and error. When one fails the others are ended.

    Args:
        n: Processes.
        argv: Arguments of the command.
        env_backend: Backend of the environments: a GPU is needed for each process if it runs on GPUs; None: each
            process finds out for itself.
        module: Run as a script; calls `joined`.

    Raises:
        ConfigError: There are fewer GPUs than processes.
        BackendUnavailable: The backend is unknown or cannot run here.
        TrainingError: A process has failed, or was killed.
        SystemExit: A signal has ended them all; the code is 128 + its number.
    """
    if env_backend is not None and on_gpu(env_backend) and n > (n_gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"launch: each of the {n} processes needs a GPU of its own (got {n_gpus}); start at most {n_gpus}"
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415  (slow to import)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

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
    )
    try:
        with _signal_handlers_kept():
            elastic_launch(config, sys.executable)("-m", module, *argv)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        how = f"exit code {failure.exitcode}" if failure.exitcode > 0 else signal.Signals(-failure.exitcode).name
        raise TrainingError(
            f"launch: rank {rank} of {n} must not fail (got {how}, process {failure.pid}), and the others were ended; "
            "what it said is above; once that is mended, resume from the last checkpoint"
        ) from error
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from error


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
