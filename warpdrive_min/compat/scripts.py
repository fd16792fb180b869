"""WarpDrive's example training scripts, as functions."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from warpdrive_min.compat.env_wrapper import EnvWrapper
from warpdrive_min.compat.trainers import TrainerA2C, TrainerDDPG
from warpdrive_min.compat.words import ENVIRONMENTS
from warpdrive_min.errors import near_or_known, require


def setup_trainer_and_train(
    run_configuration: Mapping[str, Any],
    device_id: int = 0,
    num_devices: int = 1,
    event_messenger: Any = None,
    results_directory: str | Path | None = None,
    verbose: bool = True,
    *,
    env_backend: str,
) -> None:
    """Train on one of WarpDrive's environments, as its example scripts do.

    Args:
        run_configuration: Run config with a ``name`` in `ENVIRONMENTS`.
        device_id: Index of this process.
        num_devices: Number of processes that train together.
        event_messenger: Ignored: the cache of compiled code needs no coordination.
        results_directory: Name of the run's folder; None: chosen automatically.
        verbose: Show progress.
        env_backend: Backend.

    Raises:
        ConfigError: The environment is unknown, or the config breaks a rule.
        BackendUnavailable: The backend cannot run here.
    """
    name, policies = str(run_configuration.get("name")), run_configuration["policy"]
    do = near_or_known(name, ENVIRONMENTS)
    require(name in ENVIRONMENTS, "run config name", "unknown environment", name, do)
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    env = getattr(importlib.import_module(module), attribute)(**run_configuration["env"])
    n_envs = run_configuration["trainer"]["num_envs"]
    wrapper = EnvWrapper(env, num_envs=n_envs, env_backend=env_backend, process_id=device_id)
    everyone: list[Hashable] = list(env.action_space)
    roles = {"tagger": list(getattr(env, "taggers", ())), "runner": list(getattr(env, "runners", ()))}
    is_ddpg = any(policy.get("algorithm") == "DDPG" for policy in policies.values())
    trainer = (TrainerDDPG if is_ddpg else TrainerA2C)(
        env_wrapper=wrapper,
        config=run_configuration,
        policy_tag_to_agent_id_map={next(iter(policies)): everyone} if len(policies) == 1 else roles,
        num_devices=num_devices,
        device_id=device_id,
        results_dir=results_directory,
        verbose=verbose,
    )
    trainer.train()
    trainer.graceful_close()
    stats = trainer.perf_stats
    if verbose:
        print(f"Training steps/s: {stats.steps / stats.total_time:.2f}")


setup_on_pycuda = functools.partial(setup_trainer_and_train, env_backend="pycuda")
"""WarpDrive's ``setup_trainer_and_train`` of its script for PyCUDA."""
setup_on_numba = functools.partial(setup_trainer_and_train, env_backend="numba")
"""WarpDrive's ``setup_trainer_and_train`` of its script for Numba."""
