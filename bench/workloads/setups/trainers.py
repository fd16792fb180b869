"""Trainers of points, as a user runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import torch

from warpdrive_min import EnvWrapper
from warpdrive_min.envs import ENVS
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.metrics import Row
from warpdrive_min.training.ranks import World
from warpdrive_min.training.trainer import Trainer

from ...core.exclusive import exclusive
from ...core.point import Point
from ..shared import CONFIGS, SEED, env_config, run_config_file
from .starts import scratch_folder

SCHEDULES: Final = ("lr", "vf_loss_coeff", "entropy_coeff")
"""Policy settings that may change with the env steps."""
SPLIT_OVER: Final = 3
"""Iterations over which the shares of rollout and update are measured."""
NO_CHECKPOINTS: Final = 10**9
"""Iterations until the first checkpoint; never reached."""
Settings = dict[str, Any]
"""Run config as a mapping, changed before it is parsed again."""


@cache
def shipped(env: str, name: str) -> RunConfig:
    """Return an environment's shipped ``run_config<name>.yaml``."""
    return RunConfig.load(run_config_file(env, name))


def settings(point: Point) -> Settings:
    """Return a point's run: the shipped run config in other sizes.

    Schedules by steps of all environments keep their first value. With millions of steps per iteration they would end,
    at zero, after the first one.
    """
    changed = shipped(point["env"], "_ppo" if point["algorithm"] == "PPO" else "").to_dict()
    changed["env"] = env_config(point["env"], point["n_agents"], n_taggers=point.get("n_taggers"))
    changed["trainer"] |= {
        "num_envs": point["n_envs"],
        "num_episodes": point["n_envs"] * point["n_steps"],
        "train_batch_size": point["n_envs"] * point["n_steps"],
        "env_backend": point["backend"],
        "seed": SEED,
        "precision": point["precision"],
        "mode": point["mode"],
        "exact": point.get("exact", False),
    }
    for policy in changed["policy"].values():
        policy["algorithm"] = point["algorithm"]
        for name in SCHEDULES:
            policy[name] = policy[name][0][1] if isinstance(policy[name], list) else policy[name]
        if point["algorithm"] == "DDPG":  # trains on as many rows as it played, as WarpDrive does
            policy["batch_size"] = point["n_envs"] * point["n_steps"] * point["n_agents"]
        model = policy["model"]
        for network in (model["actor"], model["critic"]) if "actor" in model else (model,):
            network |= CONFIGS["networks"][point["network"]]
            if "fused" in point:
                network["fused"] = point["fused"]
    return changed


class WatchedTrainer(Trainer):
    """Trainer that keeps its metrics, and deletes its files.

    Args:
        env: Name of the environment in `ENVS`.
        settings: Run config of the run.
        exact: Floats of the environment are bit-identical on every backend.
        saves: Save checkpoints as the run says, not only one at the end.
    """

    def __init__(self, env: str, settings: Mapping[str, Any], *, exact: bool = False, saves: bool = False) -> None:
        saving = settings["saving"] | {"basedir": str(scratch_folder(self, "bench")), "sinks": ()}
        if not saves:
            saving |= {"model_params_save_freq": NO_CHECKPOINTS, "keep_best": False}
        config = RunConfig.from_dict({**settings, "saving": saving})
        n_envs, is_exact = config.trainer.num_envs * (config.population.size or 1), exact or config.trainer.exact
        wrapper = EnvWrapper(
            ENVS[env](**config.env),
            num_envs=n_envs,
            env_backend=config.trainer.env_backend,
            seed=config.trainer.seed or 0,
            auto_reset=True,
            exact=is_exact,
            envs_before=World.of().rank * n_envs if is_exact else 0,
        )
        self.rows: list[tuple[float, Row]] = []
        """Rows of metrics, each with its time on the monotonic clock, s."""
        super().__init__(wrapper, config, verbose=False)

    def log_metrics(self) -> Row:
        """Store the row."""
        row = super().log_metrics()
        self.rows.append((time.perf_counter(), row))
        return row

    def warm_up(self) -> float:
        """Compile and capture an iteration, restore the state, and return the seconds."""
        began = time.perf_counter()
        go_back = self.snapshot()
        self.iterate_times(2)
        go_back()
        return time.perf_counter() - began

    def weights(self) -> torch.Tensor:
        """Return all weights of the trained policies, on the CPU."""
        learning = [group for group in self.groups.values() if group.algorithm is not None]
        models = [model for group in learning for model in group.models.values()]
        return torch.cat([weight.detach().flatten().cpu() for model in models for weight in model.parameters()])

    def snapshot(self) -> Callable[[], None]:
        """Copy the whole training state; return a function that restores it.

        A trainer checks the first rollout after loading a state. Restoring a snapshot that was taken after a rollout
        skips that check: each timed block starts from a snapshot, while a user waits for the check once per run.
        """
        state, is_first_rollout = self.state(), self._is_first_rollout
        assert state is not None, "a trainer of one rank has all of its state"
        tensors, header = state
        copies = {name: tensor.clone() for name, tensor in tensors.items()}

        def restore() -> None:
            self.load_state(copies, header, "of the snapshot")
            self._is_first_rollout = is_first_rollout

        return restore

    def iterate_times(self, n: int) -> None:
        """Play and train ``n`` times; enqueues."""
        for _ in range(n):
            self.iterate()

    def split(self) -> dict[str, float]:
        """Measure rollout and update separately: ``rollout_s``, ``update_s``."""
        self.iterate_times(2)  # both phases have run eagerly, and are captured
        with exclusive():
            self.log_metrics()
            self.iterate_times(SPLIT_OVER)
            row = self.log_metrics()
        shares = {name: row[name] / SPLIT_OVER for name in ("rollout_s", "update_s")}
        return shares | {"capture_s": self.capture_s}


def fixed_policy_trainer(point: Point, *, exact: bool = False) -> WatchedTrainer:
    """Return the trainer of a point with its initial policies."""
    return WatchedTrainer(point["env"], settings({**point, "algorithm": "A2C"}), exact=exact)


def n_weights(model: torch.nn.Module, *, n_features: int = 0, share: float = 1) -> float:
    """Return the number of weights that multiply a row."""
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    return sum(weight.numel() * (share if weight.shape[1] == n_features else 1) for weight in weights)
