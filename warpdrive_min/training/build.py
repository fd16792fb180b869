"""Models, algorithms and schedules of policies, built from a run config."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import CheckpointError, known, require
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import (
    ActorCriticConfig,
    Member,
    ModelConfig,
    ParamScheduler,
    PolicyConfig,
    RunConfig,
    Schedule,
)
from warpdrive_min.training.defaults import own_defaults, seeded_cpu_draws
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.arrays import AgentArrays
from warpdrive_min.training.loop.global_states import n_state_features
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.models.central import create_centralised_critic
from warpdrive_min.training.models.exact_weights import initialise
from warpdrive_min.training.models.fully_connected import create_actor, create_actor_critic, create_critic
from warpdrive_min.training.models.gru import create_recurrent, is_recurrent
from warpdrive_min.training.models.members import Members
from warpdrive_min.training.models.normalisation import normalisers
from warpdrive_min.training.models.parts import PolicyHead, Trunk
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.ranks import World

ALGORITHMS: Final[dict[str | None, dict[str, str]]] = {
    None: {
        "A2C": "warpdrive_min.training.algorithms.actor_critic:A2C",
        "PPO": "warpdrive_min.training.algorithms.actor_critic:PPO",
        "DDPG": "warpdrive_min.training.algorithms.ddpg:DDPG",
    },
    "warpdrive": {
        "A2C": "warpdrive_min.dialect.learning:WarpDriveA2C",
        "PPO": "warpdrive_min.dialect.learning:WarpDrivePPO",
        "DDPG": "warpdrive_min.dialect.learning:WarpDriveDDPG",
    },
}
"""Algorithms by ``trainer.compat`` and name: module and class."""
RECURRENT: Final[dict[str, str]] = {
    "A2C": "warpdrive_min.training.algorithms.sequences:RecurrentA2C",
    "PPO": "warpdrive_min.training.algorithms.sequences:RecurrentPPO",
}
"""Algorithms for recurrent models, by name: module and class."""
OF_POPULATIONS: Final[dict[str, str]] = {
    "A2C": "warpdrive_min.training.scale.population_algorithms:PopulationA2C",
    "PPO": "warpdrive_min.training.scale.population_algorithms:PopulationPPO",
}
"""Algorithms for populations, by name: module and class."""
WARPDRIVE_WEIGHTS: Final = "warpdrive_min.dialect.weights:load_warpdrive_state_dict"
"""Loader of WarpDrive's weight files: module and function."""

MODEL_SEED, SAMPLER_SEED, RESET_SEED, ALGORITHM_SEED, BEST_SEED = range(5)
"""Purposes of seeds derived from a run's seed; see `derived_seed`."""


def derived_seed(seed: int, *words: int) -> int:
    """Return a 63-bit seed for one purpose, from a run's seed."""
    return int(np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def algorithm_class(config: RunConfig, policy: str) -> Any:
    """Return the class of a policy's algorithm; see `Algorithm`.

    Raises:
        ConfigError: The policy's model is recurrent, and the config asks for WarpDrive's rule or a population.
    """
    model, compat = config.policy[policy].model, config.trainer.compat
    if isinstance(model, ModelConfig) and is_recurrent(model.type):
        rule = f"must be null with the recurrent model of policy {policy!r}"
        do = "leave it out, or use 'fully_connected'"
        require(compat is None, "run config trainer.compat", rule, compat, do)
        size = config.population.size
        require(size is None, "run config population.size", rule, size, do)
        return resolve_name(RECURRENT[config.policy[policy].algorithm])
    table = ALGORITHMS[config.trainer.compat] if config.population.size is None else OF_POPULATIONS
    return resolve_name(table[config.policy[policy].algorithm])


def require_fit(config: RunConfig, wrapper: EnvWrapper, policies: Collection[str], *, has_members: bool) -> None:
    """Check that a run config fits its wrapper, policies and trainer.

    Raises:
        ConfigError: It does not fit.
    """
    trainer, backend = config.trainer, wrapper.env_backend
    rule = f"environment {wrapper.name!r} has no kernels for backend {backend!r}"
    require(wrapper.vectorised, "trainer", rule, do="give it one, or choose another backend")
    size = config.population.size
    rule = "must be null, except for PopulationTrainer, which needs it"
    require((size is not None) == has_members, "run config population.size", rule, size, "use the other one")
    rule = f"must be the wrapper's number of environments {wrapper.n_envs}" + (f" / {size} members" if size else "")
    is_equal = trainer.num_envs * (size or 1) == wrapper.n_envs
    require(is_equal, "run config trainer.num_envs", rule, trainer.num_envs, "make them equal")
    rule, do = "needs environments that are exact too", "make the wrapper with exact=True"
    require(wrapper.exact or not trainer.exact, "run config trainer.exact", rule, trainer.exact, do)
    if trainer.exact:
        before = World.of().rank * wrapper.n_envs
        rule = f"needs environments numbered over all ranks, {before} before those of this rank"
        do = f"make the wrapper with envs_before={before}"
        require(wrapper.envs_before == before, "run config trainer.exact", rule, wrapper.envs_before, do)
    rule = f"must name the policies of the run config, {known(config.policy)}"
    require(set(policies) == set(config.policy), "policies", rule, list(policies))
    can_be = trainer.mode != "graph" or wrapper.backend.captures_graphs
    rule = f"backend {backend!r} has no CUDA graphs"
    require(can_be, "run config trainer.mode", rule, trainer.mode, "use 'auto' or 'eager'")


def make_groups(
    config: RunConfig, arrays: Mapping[str, AgentArrays], seed: int, device: torch.device
) -> dict[str, PolicyGroup]:
    """Build the models of all policies.

    The same seed gives the same weights on every device.

    Raises:
        ConfigError: An algorithm does not fit the actions, or a model cannot be built.
    """
    groups = {}
    members = () if config.population.size is None else config.population.members(seed)

    def networks(name: str, policy: PolicyConfig, of_agents: AgentArrays) -> dict[str, torch.nn.Module]:
        made = make_models(name, policy, of_agents.n_features, of_agents.space)
        if policy.centralised_critic is not None:
            n_features = n_state_features(arrays.values())
            made["critic"] = create_centralised_critic(n_features, of_agents.n_agents, policy.centralised_critic)
        for part, file in policy.weight_files.items():
            load_weights(made[part], file, f"policy/{name}/{part}/")
        return made

    def network_of(member: Member, *given: Any) -> torch.nn.Module:
        with seeded_cpu_draws(derived_seed(member.seed, MODEL_SEED)):  # as in a run with this seed
            return networks(*given)["model"]

    with own_defaults(), seeded_cpu_draws(derived_seed(seed, MODEL_SEED)):
        for name, of_agents in arrays.items():
            policy = config.policy[name]
            if members:
                each = [network_of(member, name, policy, of_agents) for member in members]
                models: dict[str, torch.nn.Module] = {"model": Members(each)}
            else:
                models = networks(name, policy, of_agents)
            for model in models.values():
                model.to(device)
            for part, network in policy.models.items():
                place = f"run config {network.PLACE.replace('policy', f'policy.{name}')}"
                has_kernels = not network.fused or available.why_no_triton(device.type) is None
                rule, got = f"needs {available.NEEDS_TRITON}", available.triton_status(device.type)
                require(has_kernels, f"{place}.fused", rule, got, "leave the key out, or set it to false")
                is_fine = not network.normalize_observations or normalisers(models[part])
                rule, do = f"model {network.type!r} must have a Normaliser for it", "give it one, or leave the key out"
                require(is_fine, f"{place}.normalize_observations", rule, True, do)
            groups[name] = PolicyGroup(name, policy, of_agents, models, members=members)
            if members:
                groups[name].stopped = torch.zeros(len(members), dtype=torch.bool, device=device)
    return groups


def make_models(name: str, policy: PolicyConfig, n_features: int, space: ActionSpace) -> dict[str, torch.nn.Module]:
    """Build a policy's networks by part, except a centralised critic.

    Raises:
        ConfigError: The algorithm does not fit the actions, or a model cannot be built.
    """
    if isinstance(policy.model, ActorCriticConfig):
        what, rule = f"run config policy.{name}.algorithm", "DDPG needs continuous actions, not choices"
        require(space.is_continuous, what, rule, space.categories, "use A2C or PPO")
        for part, network in policy.models.items():
            what, rule = f"run config policy.{name}.model.{part}.type", "DDPG has no recurrent networks"
            require(not is_recurrent(network.type), what, rule, network.type, "use A2C or PPO")
        return {
            "actor": create_actor(n_features, space, policy.model.actor),
            "critic": create_critic(n_features, space, policy.model.critic),
        }
    create = create_recurrent if is_recurrent(policy.model.type) else create_actor_critic
    model = create(n_features, space, policy.model)
    if policy.centralised_critic is not None:
        model.delete_value_head()
    return {"model": model}


def load_weights(model: torch.nn.Module, file: str, prefix: str) -> None:
    """Fill a model from a checkpoint or from WarpDrive's state_dict.

    From a checkpoint it takes the tensors whose names start with ``prefix``.

    Raises:
        CheckpointError: Tensors are missing or have other shapes, or the file holds no weights.
        DataError: Tensors of a state_dict are missing or have other shapes.
    """
    if Path(file).is_file():
        what, rule = f"weights {file}", "must be a state_dict of tensors alone"
        do = "name WarpDrive's file or a checkpoint"
        try:
            with warnings.catch_warnings(action="ignore"):
                state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many types for foreign files
            raise CheckpointError.of(what, rule, type(error).__name__, do) from error
        is_one = isinstance(state, Mapping) and all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
        )
        require(is_one, what, rule, type(state).__name__, do, CheckpointError)
        resolve_name(WARPDRIVE_WEIGHTS)(model, state)
        return
    tensors, _ = checkpoint.load(file)
    checkpoint.restore(model.state_dict(), checkpoint.below(prefix, tensors), file)


def noise_schedules(config: RunConfig) -> dict[str, Schedule]:
    """Return the schedules of DDPG's noise; damping 1 makes it Gaussian.

    Raises:
        ConfigError: Policies of DDPG use different types of noise.
    """
    kinds = {name: policy.noise for name, policy in config.policy.items() if policy.algorithm == "DDPG"}
    rule = "all policies of DDPG must have the same noise, set in sampler.params"
    require(len(set(kinds.values())) <= 1, "run config policy", rule, kinds, "make them equal")
    return config.sampler.params.schedules | ({"damping": 1.0} if "gaussian" in kinds.values() else {})


class ScheduledTensors:
    """Tensors that the host updates from schedules between iterations."""

    def __init__(self) -> None:
        self._schedules: list[tuple[list[ParamScheduler], torch.Tensor]] = []
        self._written: dict[int, list[float]] = {}

    def add(self, schedules: Sequence[Schedule], tensor: torch.Tensor) -> None:
        """Let a 0-d tensor or a vector's entries follow schedules."""
        made = {repr(schedule): ParamScheduler(schedule) for schedule in schedules}
        self._schedules.append(([made[repr(schedule)] for schedule in schedules], tensor))

    def write(self, now: int) -> None:
        """Write the values at timestep ``now`` that have changed; enqueues."""
        for schedules, tensor in self._schedules:
            of_each = {schedule: schedule.get_param_value(now) for schedule in dict.fromkeys(schedules)}
            values = [of_each[schedule] for schedule in schedules]
            if self._written.get(id(tensor)) != values:
                if tensor.dim() == 0:
                    tensor.fill_(values[0])
                else:
                    # Pinned, so that the host does not wait for the copy
                    tensor.copy_(
                        torch.tensor(values, pin_memory=tensor.is_cuda, dtype=torch.float32, device="cpu"),
                        non_blocking=True,
                    )
                self._written[id(tensor)] = values

    def values(self, tensor: torch.Tensor) -> list[float]:
        """Return the values written last."""
        return self._written[id(tensor)]


def make_exact(groups: Sequence[PolicyGroup], backend: Backend, seed: int, world: World) -> None:
    """Switch policies to exact kernels and exact initial weights.

    The kernels have one order of operations. The weights do not depend on the rounding of a library.

    Args:
        groups: Policies with their models, before anything references their parameters.
        backend: `host` or `pycuda`.
        seed: Seed of the run; members of a population have their own.
        world: Ranks of the run.

    Raises:
        ConfigError: The backend runs another language than CUDA C.
    """
    exact = Exact(backend, world)
    for number, group in enumerate(groups):
        group.exact = exact
        seeds = [derived_seed(each, MODEL_SEED, number) for each in [member.seed for member in group.members] or [seed]]
        for index, (part, model) in enumerate(group.models.items()):
            for module in model.modules():
                if isinstance(module, Trunk | PolicyHead):
                    module.exact = exact
            if not group.config.weight_files:
                for member, own_seed in enumerate(seeds):
                    method = group.config.models[part].init_method
                    initialise(model, method, [own_seed, index], member if group.members else None)
