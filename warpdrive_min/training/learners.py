"""From a run config to policies that play and learn: models, algorithms and their seats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import ConfigError
from warpdrive_min.training import checkpoint
from warpdrive_min.training.a2c import A2C
from warpdrive_min.training.config import ActorCriticConfig, PolicyConfig, RunConfig
from warpdrive_min.training.ddpg import DDPG, WarpDriveDDPG
from warpdrive_min.training.fused import is_supported, missing
from warpdrive_min.training.models import (
    create_actor,
    create_actor_critic,
    create_critic,
    load_warpdrive_state_dict,
)
from warpdrive_min.training.ppo import PPO
from warpdrive_min.training.rollout import Batch, Player
from warpdrive_min.training.seats import Seat

ON_POLICY: Final = {"A2C": A2C, "PPO": PPO}

MODEL_SEED, SAMPLER_SEED, RESET_SEED, ALGORITHM_SEED = range(4)
"""What a seed is for; see `derived_seed`."""


class Algorithm(Protocol):
    """Makes one policy better."""

    scheduled: dict[str, torch.Tensor]
    """Numbers that the trainer writes before each update, 0-d, by the key of their schedule."""
    metrics: dict[str, torch.Tensor]
    """What the last update was like, 0-d."""

    def update(self) -> None:
        """Learn from the batch; enqueues, and can be captured."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors from which learning goes on, the same on all ranks."""
        ...

    def own_state(self) -> dict[str, torch.Tensor]:
        """Return those that each rank has its own of: what it remembers, and what counts its draws."""
        ...


@dataclass(slots=True)
class Learner:
    """One policy of a run."""

    name: str
    config: PolicyConfig
    player: Player
    models: dict[str, torch.nn.Module]
    """By their part in the policy: ``model``, or ``actor`` and ``critic``."""
    algorithm: Algorithm | None = None
    """None: the policy plays and does not learn."""


def derived_seed(seed: int, *words: int) -> int:
    """Return a seed of 63 bits for one of several uses of a run's seed."""
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def make_learners(config: RunConfig, seats: Mapping[str, Seat], seed: int, device: torch.device) -> dict[str, Learner]:
    """Build the models of all policies; the same seed gives the same weights on every device.

    Raises:
        ConfigError: An algorithm does not fit the actions, or a model cannot be built.
    """
    learners = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, MODEL_SEED))
        for name, seat in seats.items():
            policy = config.policy[name]
            models = make_models(name, policy, seat)
            for model in models.values():
                model.to(device)
            if any(network.fused for network in policy.models.values()) and not is_supported(device):
                raise ConfigError(
                    f"run config policy.{name}.model.fused: needs a GPU, Triton and a C compiler (got {device.type}; "
                    f"missing: {missing() or 'none'}); leave the key out, or set it to false"
                )
            is_noisy = "actor" in models
            player = Player(seat, models["actor" if is_noisy else "model"], is_noisy)
            learners[name] = Learner(name, policy, player, models)
    return learners


def make_models(name: str, policy: PolicyConfig, seat: Seat) -> dict[str, torch.nn.Module]:
    """Build the networks of one policy, with the weights that its config names.

    Raises:
        ConfigError: The algorithm does not fit the actions, or a model cannot be built or loaded.
    """
    size, space = seat.n_features, seat.space
    if isinstance(policy.model, ActorCriticConfig):
        if not space.is_continuous:
            raise ConfigError(
                f"run config policy.{name}.algorithm: DDPG needs continuous actions (got {space.categories} choices); "
                "use A2C or PPO"
            )
        models = {
            "actor": create_actor(size, space, policy.model.actor),
            "critic": create_critic(size, space, policy.model.critic),
        }
    else:
        models = {"model": create_actor_critic(size, space, policy.model)}
    for part, file in policy.weight_files.items():
        load_weights(models[part], file, f"policy/{name}/{part}/")
    return models


def load_weights(model: torch.nn.Module, file: str, prefix: str) -> None:
    """Fill a model from a checkpoint, of which it takes the tensors below ``prefix``, or from WarpDrive's state_dict.

    Raises:
        CheckpointError: It has no such tensors, or of other shapes.
        DataError: A state_dict has no such tensors, or of other shapes.
    """
    if Path(file).is_file():
        load_warpdrive_state_dict(model, torch.load(file, map_location="cpu", weights_only=True))
        return
    tensors, _ = checkpoint.load(file)
    saved = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    checkpoint.restore(model.state_dict(), saved, file)


def make_algorithm(learner: Learner, config: RunConfig, batch: Batch, backend: Backend, seed: int) -> Algorithm:
    """Build what trains a policy.

    Raises:
        ConfigError: The settings do not fit together.
    """
    seat = learner.player.seat
    if learner.config.algorithm == "DDPG":
        networks = learner.models["actor"], learner.models["critic"]
        settings = learner.name, learner.config, config.trainer.n_step, *networks
        if config.trainer.compat == "warpdrive":
            return WarpDriveDDPG(*settings, batch, config.trainer.precision)
        return DDPG(*settings, seat.space, batch, backend, seed, config.trainer.precision)
    kind: Any = ON_POLICY[learner.config.algorithm]
    made: Algorithm = kind(
        learner.name, learner.config, config.trainer, learner.models["model"], seat, batch, backend, seed
    )
    return made
