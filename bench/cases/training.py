"""What the cases of training share: shipped run configs, and a trainer that says what it saw."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from bench.cases.environments import available
from envs import ENVS
from warpdrive_min import EnvWrapper
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.metrics import Row
from warpdrive_min.training.trainer import Trainer

NO_CHECKPOINTS: Final = 10**9
"""Iterations to the first one."""

Settings = dict[str, Any]
"""A run config as a mapping, which a case changes before it becomes one again."""


@cache
def shipped(env: str, name: str) -> RunConfig:
    """Return a run config that lies beside an environment, ``run_config<name>.yaml``."""
    return RunConfig.load(Path(inspect.getfile(ENVS[env])).with_name(f"run_config{name}.yaml"))


class WatchedTrainer(Trainer):
    """A trainer that keeps its rows of metrics and leaves no file behind.

    Args:
        env: Name of the environment in `ENVS`.
        settings: The run.
        exact: Floats of the environment are bit-identical on every backend.
    """

    def __init__(self, env: str, settings: Mapping[str, Any], *, exact: bool = False) -> None:
        folder = tempfile.mkdtemp(prefix="warpdrive-bench-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        saving = settings["saving"] | {"basedir": folder, "sinks": (), "model_params_save_freq": NO_CHECKPOINTS}
        config = RunConfig.from_dict({**settings, "saving": saving})
        wrapper = EnvWrapper(
            ENVS[env](**config.env),
            num_envs=config.trainer.num_envs,
            env_backend=config.trainer.env_backend,
            seed=config.trainer.seed or 0,
            auto_reset=True,
            exact=exact,
        )
        self.rows: list[tuple[float, Row]] = []
        """Rows of metrics, each with the time at which it was there, s of the clock."""
        super().__init__(wrapper, config, verbose=False)

    def log_metrics(self) -> Row:
        """Keep the row."""
        row = super().log_metrics()
        self.rows.append((time.perf_counter(), row))
        return row

    def weights(self) -> torch.Tensor:
        """Return a copy of all weights of the policies that learn, one after the other, on the CPU."""
        learning = [group for group in self.groups.values() if group.algorithm is not None]
        models = [model for group in learning for model in group.models.values()]
        return torch.cat([weight.detach().flatten().cpu() for model in models for weight in model.parameters()])


def counterpart(backend: str) -> str:
    """Return the backend of the CPU that another one is held against: NumPy, and C++ of NumPy itself.

    Raises:
        Skip: It cannot run here.
    """
    return available("host" if backend == "cpu" else "cpu").name


def cpu_threads(trainer: Trainer) -> int | None:
    """Return how many threads of the CPU train, those of torch or of the environments; None on a GPU."""
    backend = trainer.wrapper.backend
    return None if backend.device.type == "cuda" else max(torch.get_num_threads(), backend.threads or 1)


def after_the_timing(compare: Callable[[], tuple[float, str]]) -> Callable[[], tuple[float, str]]:
    """Return a comparison that is made from its second call on: the first one is before the timing.

    Another trainer in the process makes each launch out of a CUDA graph slower, for good (ADR 0014).

    Args:
        compare: Returns an error and what was compared.
    """
    calls = 0

    def checked() -> tuple[float, str]:
        nonlocal calls
        calls += 1
        return compare() if calls > 1 else (0.0, "none before the timing, which another trainer would slow down")

    return checked
