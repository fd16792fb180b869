"""Training with Lightning's trainer, callbacks, loggers and checkpoints.

Needs the package `lightning` or `pytorch_lightning`; the one that the program has imported first has priority.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import torch

from warpdrive_min.errors import CheckpointError, ConfigError, known, require
from warpdrive_min.packages import install_command
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN
from warpdrive_min.training.trainer import Trainer

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")
STATE: Final = "warpdrive_min"
"""Entry of the run in Lightning's checkpoints."""
PRECISION: Final = "32-true"
"""Lightning's precision; the run config sets the actual number types."""


def package() -> Any:
    """Return Lightning's package; classes of its two names do not mix.

    Raises:
        ConfigError: Lightning is not installed.
    """
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    rule = f"needs one of the packages {known(PACKAGES)}"
    raise ConfigError.of("lightning", rule, None, install_command("lightning"))


LIGHTNING: Any = package()


class WarpDriveModule(LIGHTNING.LightningModule):  # type: ignore[misc]  # the package is a variable
    """Run under Lightning's trainer; policies learn exactly as in ``run.train()``.

    A step of Lightning is one iteration, and ``saving.metrics_log_freq`` iterations are an epoch. After each epoch the
    run's metrics are logged under their names in the run, such as ``<policy>/mean_episodic_return``, for callbacks to
    monitor. Training ends with the run config, or earlier if Lightning's trainer stops. Lightning's checkpoints hold
    the full state to resume from. The run also writes to its own sinks, but saves no checkpoints of its own.

    The run stays on the device of its environments: Lightning has no tensor of it to move.

    Args:
        run: Trainer of the policies.
    """

    def __init__(self, run: Trainer) -> None:
        super().__init__()
        self.run = run
        self.automatic_optimization = False

    def setup(self, stage: str) -> None:
        """Check that Lightning's settings do not conflict with the run.

        Raises:
            ConfigError: Lightning would train in several processes, on another GPU or in another precision.
        """
        n_processes = max(self.trainer.world_size, self.run.world.size)
        do = "give Trainer(devices=1), or train on several GPUs with warpdrive_min.training.trainer.Trainer"
        require(n_processes == 1, "lightning", "must train in one process", n_processes, do)
        own, chosen = self.run.wrapper.cuda_data_manager.device, self.trainer.strategy.root_device
        is_own = not (own.type == chosen.type == "cuda") or own == chosen  # Lightning makes its GPU the current one
        rule = f"must be on the GPU of the run's environments, {own}"
        require(is_own, "lightning", rule, chosen, f"give Trainer(devices=[{own.index}])")
        given, do = self.trainer.precision, "leave it out, and name the precision in the run config, trainer.precision"
        require(given == PRECISION, "lightning", f"Trainer(precision=...) must be {PRECISION!r}", given, do)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser whose steps Lightning counts."""
        return Iterating(self.run)

    def train_dataloader(self) -> Any:
        """Return the iterations of an epoch."""
        return Iterations(self.run)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Run one iteration; enqueues, except while the first ones are captured."""
        self.optimizers().step()

    def on_train_epoch_end(self) -> None:
        """Log a row of metrics; stop if the run is finished; synchronises.

        Raises:
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration.
        """
        for name, value in self.run.log_metrics().items():
            self.log(name, value, prog_bar=name.endswith(EPISODIC_RETURN))
        self.trainer.should_stop |= self.run.is_finished

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the run's full state to a checkpoint of Lightning; synchronises."""
        checkpoint[STATE] = pack(self.run)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resume exactly from a checkpoint of Lightning; synchronises.

        Raises:
            CheckpointError: It has no run, or one of another release, environment, size or model.
        """
        unpack(self.run, checkpoint)


class Iterating(torch.optim.Optimizer):
    """Optimiser whose steps are iterations of a run.

    Lightning counts optimiser steps, and times its checkpoints by them.

    Args:
        run: Run to train.
    """

    def __init__(self, run: Trainer) -> None:
        models = [model for group in run.groups.values() for model in group.models.values()]
        super().__init__([parameter for model in models for parameter in model.parameters()], {})
        self._run = run

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no single loss
        """Run one iteration after the closure with Lightning's hooks."""
        if closure is not None:
            closure()
        self._run.iterate()


class Iterations:
    """Remaining iteration numbers of a run, which Lightning takes by epochs.

    Args:
        run: Run to train.
    """

    def __init__(self, run: Trainer) -> None:
        self._run = run

    def __len__(self) -> int:
        """Return the iterations of an epoch; the last may have fewer."""
        return self._run.config.saving.metrics_log_freq

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._run.iteration, self._run.n_iterations))

    def state_dict(self) -> dict[str, Any]:
        """Return the run's position, which lets Lightning resume within an epoch."""
        return {"iteration": self._run.iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: the run has been restored before."""


def pack(run: Trainer) -> dict[str, Any]:
    """Return a run's full state in plain CPU containers; synchronises."""
    state = run.checked_state()
    assert state is not None, "the run is the only one"
    tensors, header = state
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    return {"schema": checkpoint.SCHEMA, "header": asdict(header), "tensors": copies}


def unpack(run: Trainer, found: dict[str, Any]) -> None:
    """Resume a run from a checkpoint that `pack` has filled; synchronises.

    Raises:
        CheckpointError: It has no run, or one of another release, environment, size or model.
    """
    rule, do = f"a checkpoint must have the entry {STATE!r}", "name one that was saved while a WarpDriveModule trained"
    require(STATE in found, "lightning", rule, [*found], do, CheckpointError)
    saved, entries = found[STATE], ("header", "schema", "tensors")
    is_whole = isinstance(saved, Mapping) and saved.keys() >= {*entries} and isinstance(saved["header"], Mapping)
    require(is_whole, "lightning", f"the entry {STATE!r} must have {known(entries)}", saved, do, CheckpointError)
    checkpoint.check_schema("lightning", saved["schema"], saved["header"])
    run.load_state(saved["tensors"], checkpoint.read_header("lightning", saved["header"]), "of Lightning")
