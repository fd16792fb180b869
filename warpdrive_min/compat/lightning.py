"""WarpDrive's module, data set and callbacks for Lightning: the core's, with epochs of one iteration."""

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
"""Names of WarpDrive's trainer that its module has too."""


class WarpDriveModule(lightning.WarpDriveModule):
    """The core's module, which makes its run itself and takes an epoch of Lightning's for each iteration.

    Rows of metrics, by the core's names, are logged every ``saving.metrics_log_freq`` epochs, and the run's own
    checkpoints are written every ``saving.model_params_save_freq``.

    Args:
        env_wrapper: As of `TrainerA2C`.
        config: Likewise.
        policy_tag_to_agent_id_map: Likewise.
        create_separate_placeholders_for_each_policy: Likewise.
        obs_dim_corresponding_to_num_agents: Likewise.
        results_dir: Likewise.
        verbose: Accepted for WarpDrive's calls; Lightning shows the progress.

    Raises:
        ConfigError: As of `TrainerA2C`.
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
        """Log and save where the run config says so, and stop where it does; synchronises where it logs or saves."""
        saving = self.run.config.saving
        if self.run.is_due(saving.metrics_log_freq):
            super().on_train_epoch_end()
        if self.run.is_due(saving.model_params_save_freq):
            self.run.save_checkpoint()


class WarpDriveDataset(Dataset[Any]):
    """Items made when they are asked for.

    Args:
        generate_data: Makes one, ``generate_data(batch_index=0)``.
        batch_size: Items.
    """

    def __init__(self, generate_data: Callable[..., Any], batch_size: int) -> None:
        self.generate_data, self.batch_size = generate_data, batch_size

    def __getitem__(self, batch_index: int = 0) -> Any:
        if batch_index >= self.batch_size:
            raise IndexError(batch_index)  # ends a loop over the items
        return self.generate_data(batch_index=batch_index)

    def __len__(self) -> int:
        return self.batch_size


class CUDACallback(lightning.LIGHTNING.Callback):  # type: ignore[misc]  # of a package that is a variable
    """Restarts all environments when training starts; a run that goes on from a checkpoint keeps its episodes.

    Args:
        module: That is trained.
    """

    def __init__(self, module: WarpDriveModule) -> None:
        self.module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restart them; enqueues."""
        if self.module.run.iteration == 0:
            self.module.cuda_envs.reset_all_envs()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say that training has ended."""
        log.info("training is complete")


class PerfStatsCallback(lightning.LIGHTNING.Callback):  # type: ignore[misc]  # of a package that is a variable
    """Measures and prints how fast training is; synchronises at every iteration, as WarpDrive's does.

    Args:
        batch_size: Steps of an iteration, of all environments together.
        num_iters: Iterations after which it prints, too.
        log_freq: Iterations from one print to the next.

    Raises:
        ConfigError: ``batch_size`` or ``num_iters`` is missing, or one of the three is not positive.
    """

    def __init__(self, batch_size: int | None = None, num_iters: int | None = None, log_freq: int = 1) -> None:
        self.batch_size, self.num_iters, self.log_freq = batch_size or 0, num_iters or 0, log_freq
        got, rule = (batch_size, num_iters, log_freq), "needs batch_size, num_iters and log_freq of at least 1"
        require(min(self.batch_size, self.num_iters, log_freq) >= 1, "PerfStatsCallback", rule, got)
        self.iters = 0
        self.training_time = 0.0
        """Spent in iterations, s."""
        self.total_time = 0.0
        """Spent in Lightning's trainer, s."""
        self._started_iteration_s = self._started_fit_s = 0.0

    @property
    def steps(self) -> int:
        """Steps of all environments together."""
        return self.iters * self.batch_size

    def get_perf_stats(self, with_fit: bool = False) -> dict[str, float]:
        """Return the mean time of an iteration and the steps per second; ``with_fit``: with all that is between too."""
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
        """Start the clock of all."""
        self._started_fit_s = now()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start the clock of an iteration."""
        self._started_iteration_s = now()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop it, and print if it is time to."""
        self.training_time += now() - self._started_iteration_s
        self.iters += 1
        self._print_if_due()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop the clock of all, and print if it is time to."""
        self.total_time += now() - self._started_fit_s
        self._print_if_due(with_fit=True)

    def _print_if_due(self, with_fit: bool = False) -> None:
        if self.iters and (self.iters % self.log_freq == 0 or self.iters == self.num_iters):
            self.pretty_print(self.get_perf_stats(with_fit))


def now() -> float:
    """Return the time, s, once the GPU has done what it was told before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
