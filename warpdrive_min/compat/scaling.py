"""WarpDrive's scaling: more environments on a GPU, and more GPUs."""

from __future__ import annotations

import copy
import functools
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.multiprocessing.spawn import spawn

from warpdrive_min.compat.models import Building, building
from warpdrive_min.compat.trainers import first_trainer
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import require
from warpdrive_min.processes import set_rank_variables
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.scale import distributed
from warpdrive_min.training.scale.autoscale import auto_scale

Setup = Callable[..., Any]
"""WarpDrive's ``setup_trainer_and_train``: builds a wrapper and trainer; trains."""


def perform_auto_vertical_scaling(
    setup_trainer_and_train: Setup, config: Mapping[str, Any], num_iters: int = 2
) -> dict[str, Any]:
    """Return the run config with the fastest number of environments and batch.

    See `auto_scale`. The function runs up to its first trainer, which gives the environment and the policies, and again
    for each number of environments. Trainers of increasing size are timed in this process. The steps of a rollout do
    not change.

    Args:
        setup_trainer_and_train: Called with ``run_configuration`` and ``verbose``.
        config: Run config; not modified.
        num_iters: Number of timed iterations.

    Raises:
        ConfigError: The function makes no trainer, its policies have separate arrays, or no environment fits.
    """

    def made(sized: Mapping[str, Any]) -> tuple[RunConfig, Building]:
        return first_trainer(lambda: setup_trainer_and_train(run_configuration=sized, verbose=False))

    settings, models = made(config)
    what, do = "perform_auto_vertical_scaling", "choose num_envs yourself, or leave separate placeholders off"
    require(not models.arrays[0], what, "policies must share arrays", do=do)
    n_steps = settings.trainer.train_batch_size // settings.trainer.num_envs

    def wrapper_of(num_envs: int) -> EnvWrapper:
        wrapper = made(_sized(config, num_envs, n_steps * num_envs))[1].env
        rule = f"the function must make trainer.num_envs = {num_envs} environments"
        do = "take their number from the config"
        require(wrapper.n_envs == num_envs, what, rule, wrapper.n_envs, do)
        return wrapper

    with building(models):
        best = auto_scale(settings, wrapper_of, models.policies, n_iterations=num_iters).saturation
    return _sized(config, best.num_envs, best.train_batch_size)


def _sized(config: Mapping[str, Any], num_envs: int, train_batch_size: int) -> dict[str, Any]:
    sized = copy.deepcopy(dict(config))
    sized["trainer"] |= {"num_envs": num_envs, "train_batch_size": train_batch_size}
    return sized


def perform_distributed_training(
    setup_trainer_and_train: Setup,
    config: Mapping[str, Any],
    results_dir: str | Path | None = None,
    *,
    env_backend: str,
) -> None:
    """Train in ``trainer.num_gpus`` processes of this machine, and wait for them.

    Args:
        setup_trainer_and_train: Called in each process with WarpDrive's keyword arguments. Its module must be
            importable, because processes are spawned.
        config: Run config; ``num_envs`` and ``train_batch_size`` are per process.
        results_dir: Name of the run's folder; None: chosen automatically.
        env_backend: Backend of the environments.

    Raises:
        torch.multiprocessing.ProcessRaisedException: A process failed; the others are terminated.
    """
    n_processes = config["trainer"].get("num_gpus", 1)
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    arguments = (n_processes, port, env_backend, setup_trainer_and_train, config, results_dir)
    spawn(_train_as_rank, arguments, nprocs=n_processes)


def _train_as_rank(
    rank: int,
    n_processes: int,
    port: int,
    env_backend: str,
    setup_trainer_and_train: Setup,
    config: Mapping[str, Any],
    results_dir: str | Path | None,
) -> None:
    set_rank_variables(rank, n_processes, "localhost", port)
    with distributed.process_group(env_backend):
        setup_trainer_and_train(
            run_configuration=config,
            device_id=rank,
            num_devices=n_processes,
            event_messenger=None,
            results_directory=results_dir,
            verbose=rank == 0,
        )


distribute_on_pycuda = functools.partial(perform_distributed_training, env_backend="pycuda")
"""WarpDrive's ``perform_distributed_training`` for PyCUDA."""
distribute_on_numba = functools.partial(perform_distributed_training, env_backend="numba")
"""WarpDrive's ``perform_distributed_training`` for Numba."""
