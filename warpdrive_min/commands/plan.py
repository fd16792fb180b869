"""Plan of a training: environment, run config and checkpoint of a command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warpdrive_min.commands.environments import (
    environment_class,
    environment_name,
    environments,
    given_environment,
    run_config_path,
)
from warpdrive_min.errors import CheckpointError, require
from warpdrive_min.lazy import LazyModule
from warpdrive_min.processes import is_rank
from warpdrive_min.training.config import RunConfig

if TYPE_CHECKING:
    from warpdrive_min.training import run_folder
    from warpdrive_min.training.loop import checkpoint
    from warpdrive_min.training.record import trained
else:  # for a resumed run only: they import torch
    checkpoint = LazyModule("warpdrive_min.training.loop.checkpoint", globals(), "checkpoint")
    run_folder = LazyModule("warpdrive_min.training.run_folder", globals(), "run_folder")
    trained = LazyModule("warpdrive_min.training.record.trained", globals(), "trained")

LATEST: Final = "latest"
PROGRAM: Final = "python -m warpdrive_min"


@dataclass(frozen=True, slots=True)
class Plan:
    """Resolved arguments of the command."""

    env_name: str
    """Key in the table of environments, or the path or ``module:Class`` that was given."""
    run_config: RunConfig
    checkpoint: Path | None
    """Checkpoint to resume from."""
    folder: str | None
    """Folder of the run; None: a new one."""

    @property
    def resumed_run(self) -> Path | None:
        """Folder of the run to resume; None without a checkpoint."""
        return None if self.checkpoint is None else self.checkpoint.parent.parent

    @property
    def env_option(self) -> str:
        """Option that names an environment which a run's folder does not."""
        return "" if self.env_name in environments() else f" -e {shlex.quote(self.env_name)}"

    def resume(self, folder: Path) -> str:
        """Return the command that continues a run."""
        return f"{PROGRAM} train --resume {shlex.quote(str(folder))}{self.env_option}"


def make_plan(
    env: str | None, config: Path | None, given: Mapping[str, Any], resume: str | None, results_dir: str | None
) -> Plan:
    """Return the command line's plan.

    Raises:
        WarpDriveError: An argument breaks a rule, or a file cannot be used.
    """
    name = None if env is None else given_environment(env, "train.env")
    found = None if resume in (None, LATEST) else trained.find_checkpoint(resume)
    if config is not None:
        if name is not None and str(config) == config.stem and not config.exists():
            config = run_config_path(name, config.stem)
        run = RunConfig.load(config)
    elif name is not None and found is None:
        run = RunConfig.load(run_config_path(name))
    if resume == LATEST:
        found = _latest(with_settings(run, given), results_dir)
    if found is None:
        return Plan(name or environment_name(run.name, "train.config"), with_settings(run, given), None, results_dir)
    seed = given.get("trainer.seed")
    require(seed is None, "train.seed", "a resumed run keeps its seed", seed, "leave it out")
    _, header = checkpoint.load(found)
    trained_in = header.environment["name"]
    if name is None:
        name = environment_name(trained_in, "train.resume")
    rule, do = f"{found} was trained in {trained_in}", "give that environment"
    require(environment_class(name).name == trained_in, "train.resume", rule, name, do, CheckpointError)
    if config is None:
        run = header.config
    else:  # keep the run's backend: the file's may not run here
        given = {"trainer.env_backend": header.config.trainer.env_backend, **given}
    run, n_gpus = with_settings(run, given), header.environment["ranks"]
    rule = f"a resumed run keeps its number of processes, {n_gpus:,}"
    require(is_rank() or run.trainer.num_gpus == n_gpus, "train.gpus", rule, run.trainer.num_gpus, "leave it out")
    folder = str(found.parent.parent.resolve()) if found.parent.name == checkpoint.FOLDER else None
    return Plan(name, run, found, results_dir if resume != LATEST and results_dir else folder)


def with_settings(run: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """Return a run config with some values replaced, by dotted key.

    Raises:
        ConfigError: A key is unknown, or a value breaks a rule.
    """
    values = run.to_dict()
    for key, value in given.items():
        *sections, last = key.split(".")
        place: Any = values
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        rule, do = f"{key} must be in a section of the run config", "its keys are in docs/run_config.md"
        require(isinstance(place, dict), "train.set", rule, ".".join(sections), do)
        place[last] = value
    return RunConfig.from_dict(values)


def _latest(run: RunConfig, results_dir: str | None) -> Path:
    """Return the latest checkpoint of the run that saved most recently."""
    runs = run_folder.runs_of(run)
    folders = [runs / results_dir / checkpoint.FOLDER] if results_dir else runs.glob(f"*/{checkpoint.FOLDER}")
    existing = [folder for folder in folders if folder.is_dir()]
    for folder in sorted(existing, key=lambda folder: folder.stat().st_mtime, reverse=True):
        if found := checkpoint.latest(folder):
            return found
    raise CheckpointError(
        f"train.resume: there must be a run with a checkpoint in {runs} (got none); train one, or name it"
    )


def unfused_settings(run: RunConfig) -> dict[str, Any]:
    """Return settings that replace fused kernels by separate ones, by dotted key."""
    off = dict.fromkeys(("fused_rollout", "shared_observations", "kept_passes"), False)
    models = {
        f"policy.{name}.model{'' if part == 'model' else f'.{part}'}.fused": False
        for name, policy in run.policy.items()
        for part in policy.models
    }
    return {"trainer.mode": "eager", **{f"trainer.{key}": value for key, value in off.items()}, **models}
