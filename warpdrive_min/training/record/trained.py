"""Trained policies of a checkpoint, ready to act without a trainer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import CheckpointError, require
from warpdrive_min.registrar import env_registrar
from warpdrive_min.spaces import space_of
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.build import make_models
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.defaults import own_defaults, seeded_cpu_draws
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.arrays import SharedLayout, get_flattened_obs_size, saved_layout
from warpdrive_min.training.loop.evaluation import EvaluationEnvs
from warpdrive_min.training.loop.policies import acting_part
from warpdrive_min.training.models.members import BEST, BEST_RETURNS, Members, weights_of


@dataclass(frozen=True, slots=True)
class TrainedPolicies:
    """Policies of a checkpoint and their environment."""

    path: Path
    """Path of the checkpoint."""
    header: checkpoint.Header
    run_config: RunConfig
    env: Any
    """Environment: that of the training, unless another was passed."""
    policies: dict[str, list[Hashable]]
    """Agents of each policy."""
    models: dict[str, torch.nn.Module]
    """Acting network of each policy, on the CPU until `wrapper` moves it."""

    @property
    def environment_name(self) -> str:
        """Name of the environment."""
        return str(self.header.environment["name"])

    @property
    def layout(self) -> SharedLayout:
        """Layout of the arrays in training."""
        return saved_layout(self.header.environment["arrays"])

    def wrapper(self, env_backend: str, n_envs: int = 1) -> EnvWrapper:
        """Wrap the environment; move the models to its device.

        The wrapper is not started.

        Raises:
            BackendUnavailable: The backend is unknown or cannot run here.
            ConfigError: The environment has no kernels for it.
        """
        wrapper = EnvWrapper(self.env, num_envs=n_envs, env_backend=env_backend)
        for model in self.models.values():
            model.to(wrapper.backend.device)
        return wrapper

    def envs(self, env_backend: str, n_envs: int = 1, seed: int = 0) -> EvaluationEnvs:
        """Return new environments for the policies to act in; synchronises.

        Raises:
            BackendUnavailable: The backend is unknown or cannot run here.
            ConfigError: The environment has no kernels for it.
        """
        return EvaluationEnvs(self.wrapper(env_backend, n_envs), self.models, self.policies, self.layout, n_envs, seed)


def load_policies(path: str | Path, env: Any = None, member: int | None = None) -> TrainedPolicies:
    """Load the policies of a checkpoint, or of one member of a population.

    Args:
        path: As in `find_policies`.
        env: Environment to play, with the same name and agents; None builds it from the checkpoint's run config, and
            it must be in the registrar.
        member: Number of a population's member; None takes the one with the best weights, if the run keeps them.

    Raises:
        CheckpointError: The checkpoint does not exist, is damaged, or has another environment or other models.
        ConfigError: The environment is not registered, the run config breaks a rule, or the member does not exist.
    """
    trained, tensors = _load(path, env)
    size = trained.run_config.population.size
    if size is None:
        rule = "is for a population, and the checkpoint is of none"
        require(member is None, "member", rule, member, "leave it out")
    else:
        if member is None:
            rule = "must be named where a run has not kept the best weights"
            require(BEST_RETURNS in tensors, "member", rule, None, f"it is from 0 to {size - 1}")
            member = int(tensors[BEST_RETURNS].argmax())
        require(0 <= member < size, "member", f"must be from 0 to {size - 1}", member)
    for policy, model in trained.models.items():
        weights = _weights(trained, tensors, policy)
        checkpoint.restore(model.state_dict(), weights if member is None else weights_of(weights, member), trained.path)
    return trained


def load_population(path: str | Path, env: Any = None) -> TrainedPolicies:
    """Load the policies of all members of a population, as `Members`.

    Each member has its best weights up to the checkpoint if the run keeps them, else its weights at the checkpoint.

    Raises:
        CheckpointError: As in `load_policies`.
        ConfigError: As in `load_policies`, or the checkpoint is not of a population.
    """
    trained, tensors = _load(path, env)
    size = trained.run_config.population.size
    require(size is not None, f"checkpoint {trained.path}", "must be of a population", size, "use load_policies")
    for policy, model in trained.models.items():
        members = Members([model] * (size or 1))
        checkpoint.restore(members.state_dict(), _weights(trained, tensors, policy), trained.path)
        trained.models[policy] = members
    return trained


def _weights(trained: TrainedPolicies, tensors: Mapping[str, torch.Tensor], policy: str) -> dict[str, torch.Tensor]:
    """Return the weights of a policy's acting network.

    For a population they are the best of each member, if saved.
    """
    part = acting_part(trained.run_config.policy[policy].models)
    best = checkpoint.below(f"{BEST}policy/{policy}/{part}/", tensors)
    return best or checkpoint.below(f"policy/{policy}/{part}/", tensors)


def _load(path: str | Path, env: Any) -> tuple[TrainedPolicies, dict[str, torch.Tensor]]:
    """Return policies with initial weights, and the checkpoint's tensors."""
    found = find_policies(path)
    tensors, header = checkpoint.load(found)
    run = header.config
    name = header.environment["name"]
    if env is None:
        env = env_registrar.get(name)(**run.env)
    agents = {str(agent): agent for agent in env.action_space}
    trained = header.environment["policies"]
    is_same = env.name == name and sorted(agents) == sorted(agent for members in trained.values() for agent in members)
    rule = f"must be of the environment {env.name!r} with {env.num_agents} agents"
    got, do = f"{name} with {header.environment['n_agents']}", "play the one that it was trained in"
    require(is_same, f"checkpoint {found}", rule, got, do, error=CheckpointError)
    policies = {policy: [agents[agent] for agent in members] for policy, members in trained.items()}
    observations = env.reset()
    models = {}
    with own_defaults(), seeded_cpu_draws(0):  # initial weights, which are then overwritten
        for policy, members in policies.items():
            n_features = get_flattened_obs_size(space_of(observations[members[0]]))
            networks = make_models(policy, run.policy[policy], n_features, ActionSpace.of(env.action_space[members[0]]))
            models[policy] = networks[acting_part(networks)]
    return TrainedPolicies(found, header, run, env, policies, models), tensors


def find_policies(path: str | Path) -> Path:
    """Return the checkpoint at a path; for a run its best one, else its latest.

    Raises:
        CheckpointError: No checkpoint exists there.
    """
    folder = _folder(path)
    return checkpoint.best(folder) or checkpoint.find(folder)


def find_checkpoint(path: str | Path) -> Path:
    """Return the checkpoint to resume from: at the path, or the folder's latest.

    The folder is that of a run or of checkpoints.

    Raises:
        CheckpointError: No checkpoint exists there.
    """
    return checkpoint.find(_folder(path))


def _folder(path: str | Path) -> Path:
    """Return a run's checkpoint folder, else the path itself."""
    inside = Path(path, checkpoint.FOLDER)
    return inside if inside.is_dir() else Path(path)
