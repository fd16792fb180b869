"""WarpDrive's Lightning module, data set and callbacks; one iteration per epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import Dataset

from warpdrive_min.compat.trainers import TrainerA2C
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import require
from warpdrive_min.training import lightning
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.arrays import PolicyMap

log = logging.getLogger(__name__)


OF_RUN: Final = (
    "cuda_envs",
    "current_timestep",
    "fetch_episode_states",
    "graceful_close",
    "load_model_checkpoint",
    "models",
    "num_envs",
    "num_iters",
    "policies",
    "policies_to_train",
    "save_dir",
    "save_model_checkpoint",
    "training_batch_size",
)
"""Attributes of WarpDrive's trainer that its module also has."""


class WarpDriveModule(lightning.WarpDriveModule):
    """Our module with its own run and one Lightning epoch per iteration.

    Metrics, by our names, are logged every ``saving.metrics_log_freq`` epochs. The run's checkpoints are written every
    ``saving.model_params_save_freq`` epochs.

    Args:
        env_wrapper: As for `TrainerA2C`, like all others except ``verbose``.
        config: As for `TrainerA2C`.
        policy_tag_to_agent_id_map: As for `TrainerA2C`.
        create_separate_placeholders_for_each_policy: As for `TrainerA2C`.
        obs_dim_corresponding_to_num_agents: As for `TrainerA2C`.
        results_dir: As for `TrainerA2C`.
        verbose: Ignored; Lightning shows the progress.

    Raises:
        ConfigError: As for `TrainerA2C`.
    """

    def __init__(
        self,
        env_wrapper: EnvWrapper | None = None,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        policy_tag_to_agent_id_map: PolicyMap | None = None,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        results_dir: str | Path | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(
            TrainerA2C(
                env_wrapper,
                config,
                policy_tag_to_agent_id_map,
                create_separate_placeholders_for_each_policy,
                obs_dim_corresponding_to_num_agents,
                results_dir=results_dir,
                verbose=False,
            )
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name) if name in OF_RUN else super().__getattr__(name)

    def train_dataloader(self) -> WarpDriveDataset:
        """Return the one iteration of an epoch."""
        return WarpDriveDataset(lambda batch_index: self.run.iteration + batch_index, batch_size=1)

    def on_train_epoch_end(self) -> None:
        """Log, save and stop as configured; synchronises if it logs or saves."""
        saving = self.run.config.saving
        if self.run.is_due(saving.metrics_log_freq):
            super().on_train_epoch_end()
        if self.run.is_due(saving.model_params_save_freq):
            self.run.save_checkpoint()


class WarpDriveDataset(Dataset[Any]):
    """Items made on request.

    Args:
        generate_data: Function that makes an item, ``generate_data(batch_index=0)``.
        batch_size: Number of items.
    """

    def __init__(self, generate_data: Callable[..., Any], batch_size: int) -> None:
        self.generate_data, self.batch_size = generate_data, batch_size

    def __getitem__(self, batch_index: int = 0) -> Any:
        if batch_index >= self.batch_size:
            raise IndexError(batch_index)  # ends a loop over the items
        return self.generate_data(batch_index=batch_index)

    def __len__(self) -> int:
        return self.batch_size


class CUDACallback(lightning.LIGHTNING.Callback):  # type: ignore[misc]  # the package is a variable
    """Callback that restarts all environments when training starts.

    A resumed run keeps its episodes.

    Args:
        module: Module to train.
    """

    def __init__(self, module: WarpDriveModule) -> None:
        self.module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restart the environments; enqueues."""
        if self.module.run.iteration == 0:
            self.module.cuda_envs.reset_all_envs()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the end of training."""
        log.info("training is complete")


class PerfStatsCallback(lightning.LIGHTNING.Callback):  # type: ignore[misc]  # the package is a variable
    """Callback that measures and prints training speed.

    It synchronises at every iteration, as WarpDrive's does.

    Args:
        batch_size: Steps per iteration, summed over environments.
        num_iters: Iteration after which it also prints.
        log_freq: Iterations between prints.

    Raises:
        ConfigError: ``batch_size`` or ``num_iters`` is missing, or one of the three is not positive.
    """

    def __init__(self, batch_size: int | None = None, num_iters: int | None = None, log_freq: int = 1) -> None:
        self.batch_size, self.num_iters, self.log_freq = batch_size or 0, num_iters or 0, log_freq
        got, rule = (batch_size, num_iters, log_freq), "needs batch_size, num_iters and log_freq of at least 1"
        require(min(self.batch_size, self.num_iters, log_freq) >= 1, "PerfStatsCallback", rule, got)
        self.iters = 0
        self.training_time = 0.0
        """Time in iterations, s."""
        self.total_time = 0.0
        """Time in Lightning's trainer, s."""
        self._started_iteration_s = self._started_fit_s = 0.0

    @property
    def steps(self) -> int:
        """Steps summed over environments."""
        return self.iters * self.batch_size

    def get_perf_stats(self, with_fit: bool = False) -> dict[str, float]:
        """Return the mean time per iteration and the steps per second.

        ``with_fit`` includes the time between iterations.
        """
        times = {"training": self.training_time} | ({"total": self.total_time} if with_fit else {})
        stats = {}
        for what, seconds in times.items():
            stats[f"Mean {what} time per iter (ms)"] = 1e3 * seconds / self.iters
            stats[f"Mean steps per sec ({what})"] = self.steps / seconds
        return stats

    def pretty_print(self, stats: Mapping[str, float]) -> None:
        """Print a table."""
        print(f"Speed after iteration {self.iters} of {self.num_iters}")
        for name, value in stats.items():
            print(f"  {name:40} {value:12,.2f}")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the total clock."""
        self._started_fit_s = now()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start the iteration clock."""
        self._started_iteration_s = now()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop the iteration clock, and print if due."""
        self.training_time += now() - self._started_iteration_s
        self.iters += 1
        self._print_if_due()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop the total clock, and print if due."""
        self.total_time += now() - self._started_fit_s
        self._print_if_due(with_fit=True)

    def _print_if_due(self, with_fit: bool = False) -> None:
        if self.iters and (self.iters % self.log_freq == 0 or self.iters == self.num_iters):
            self.pretty_print(self.get_perf_stats(with_fit))


def now() -> float:
    """Return the time, s, after all enqueued GPU work; synchronises."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
