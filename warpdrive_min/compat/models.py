"""WarpDrive's models: probabilities of each action type.

A model is built for a wrapper and a policy's name. Built-in models are adapters of our networks with the same weights.
Users' models on `ModelBaseFullyConnected`, added to `ModelFactory`, are adapted to our side for training.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn

from warpdrive_min.constants import Constants
from warpdrive_min.dialect import weights
from warpdrive_min.dialect.layout import WarpDriveLayout, batch_rows
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import (
    ActorModelConfig,
    CriticModelConfig,
    ModelConfig,
    PolicyConfig,
)
from warpdrive_min.training.loop.arrays import AgentArrays, flat_entries, get_flattened_obs_size
from warpdrive_min.training.loop.rollout import empty_observation
from warpdrive_min.training.models import fully_connected as models
from warpdrive_min.training.models import parts

Tensor = torch.Tensor
Policies = Mapping[str, Sequence[Hashable]]

FORBIDDEN: Final = -1e20
"""Value added to the logit of a forbidden choice."""


def apply_logit_mask(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return logits with -1e20 added where the mask is 0."""
    return logits if mask is None else logits + (1 - mask) * FORBIDDEN


# ------------------------------------------------------------------ base of models


def as_mapping(model_config: Mapping[str, Any] | Sequence[int]) -> Mapping[str, Any]:
    """Return a mapping; widths of layers become one."""
    return model_config if isinstance(model_config, Mapping) else {"fc_dims": list(model_config)}


class ModelBaseFullyConnected(nn.Module):
    """Base of WarpDrive's models: sizes, heads and observations of one policy.

    A subclass provides `fc` and ``forward``.

    Args:
        env: Started wrapper with the arrays that a trainer pushes.
        model_config: Mapping with ``fc_dims``, and for continuous actions ``output_w`` and ``output_b``; or only the
            widths, as in WarpDrive 1.x.
        policy: Name of the policy.
        policy_tag_to_agent_id_map: Agents of each policy.
        create_separate_placeholders_for_each_policy: Each policy has its own arrays.
        obs_dim_corresponding_to_num_agents: Agents' axis of observations, ``"first"`` or ``"last"``.
        include_policy_head: Make `policy_head`, a list of layers, or one layer for continuous actions.
        include_value_head: Make `vf_head`.
    """

    name = "model_base_fully_connected"

    def __init__(
        self,
        env: EnvWrapper,
        model_config: Mapping[str, Any] | Sequence[int],
        policy: str,
        policy_tag_to_agent_id_map: Policies,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        include_policy_head: bool = True,
        include_value_head: bool = True,
    ) -> None:
        super().__init__()
        self._env = weakref.ref(env)  # so that copies of the model do not copy the environments
        self.policy = policy
        self.policy_tag_to_agent_id_map = policy_tag_to_agent_id_map
        self.create_separate_placeholders_for_each_policy = create_separate_placeholders_for_each_policy
        self.obs_dim_corresponding_to_num_agents = obs_dim_corresponding_to_num_agents
        model_config = as_mapping(model_config)
        self.fc_dims = list(model_config["fc_dims"])
        self.action_scale, self.action_bias = model_config.get("output_w", 1.0), model_config.get("output_b", 0.0)
        agent = policy_tag_to_agent_id_map[policy][0]
        self.observation_space = env.env.observation_space[agent]
        self.flattened_obs_size = get_flattened_obs_size(self.observation_space)
        self.space = ActionSpace.of(env.env.action_space[agent])
        self.is_deterministic = self.space.is_continuous
        self.flattened_action_size = self.space.n_types
        self.output_dims = list(self.space.categories) or [self.space.n_types]
        self.action_mask: Tensor | None = None
        """Mask of the last step, (n_envs, n_agents, choices); None without masks."""
        self.fc: nn.Module = nn.ModuleDict()
        width = self.fc_dims[-1]
        if include_policy_head:
            heads = [nn.Linear(width, size) for size in self.output_dims]
            self.policy_head = heads[0] if self.is_deterministic else nn.ModuleList(heads)
        if include_value_head:
            self.vf_head = nn.Linear(width, 1)

    @property
    def env(self) -> EnvWrapper:
        """Wrapper; the model does not keep it alive."""
        wrapper = self._env()
        assert wrapper is not None, "a model must not outlive its environments"
        return wrapper

    def process_one_step_obs(self) -> Tensor:
        """Return the policy's current observations and set `action_mask`; enqueues.

        Observations are (n_envs, n_agents, size).
        """
        arrays = self._arrays()
        observations, mask = empty_observation(arrays, (self.env.n_envs, arrays.n_agents))
        arrays.observe(observations, mask)
        self.action_mask = self.action_mask if mask is None else mask
        return observations

    def get_flattened_obs(self) -> Tensor:
        """Return observations of all agents in the policy's arrays; enqueues.

        They are (n_envs, agents of the arrays, size).
        """
        return torch.cat([flat_entries(part).float() for part in self._arrays().observations], -1)

    def reshape_and_flatten_obs(self, obs: Tensor) -> Tensor:
        """Reshape an array of observations to (n_envs, agents of the array, size)."""
        members = self.policy_tag_to_agent_id_map[self.policy]
        layout = self._layout()
        return flat_entries(layout.by_agent(obs, len(members) if layout.saved[0] else self.env.n_agents))

    def push_processed_obs_to_batch(self, batch_index: int, processed_obs: Tensor, ring_buffer: Any = None) -> None:
        """Store the result of `process_one_step_obs` in the policy's batch; enqueues.

        Args:
            batch_index: Row; a negative one stores nothing.
            processed_obs: (n_envs, n_agents, size).
            ring_buffer: `RingBufferManager`; if it has the batch's name, the row goes to that buffer.
        """
        if batch_index < 0:
            return
        name = f"{Constants.PROCESSED_OBSERVATIONS}_batch_{self.policy}"
        if ring_buffer is not None and ring_buffer.has(name):
            ring_buffer.get(name).enqueue(processed_obs)
            return
        self.env.cuda_data_manager.tensor(name)[batch_index] = processed_obs

    def probabilities(self, head: Tensor) -> list[Tensor]:
        """Return probabilities per action type, or continuous actions, from a head.

        The head is (..., outputs).
        """
        if self.is_deterministic:
            return [part.contiguous() for part in torch.split(head, 1, -1)]
        parts = torch.split(apply_logit_mask(head, self.action_mask), self.output_dims, -1)
        return [part.softmax(-1) for part in parts]

    def _layout(self) -> WarpDriveLayout:
        separate, axis = self.create_separate_placeholders_for_each_policy, self.obs_dim_corresponding_to_num_agents
        return WarpDriveLayout(separate, axis)

    def _arrays(self) -> AgentArrays:
        return self._layout().arrays(self.env, self.policy_tag_to_agent_id_map)[self.policy]


class _BuiltIn(ModelBaseFullyConnected):
    """Adapter of one of our networks; its state_dict has WarpDrive's keys.

    Args:
        env: As for `ModelBaseFullyConnected`, like all others except ``core``.
        model_config: As for `ModelBaseFullyConnected`.
        others: Remaining arguments, in order.
        core: Network; None: a new one.
        named: Remaining arguments, by name.
    """

    config_type: ClassVar[type[ModelConfig]]
    build: ClassVar[Callable[[int, ActionSpace, Any], nn.Module]]

    def __init__(
        self,
        env: EnvWrapper,
        model_config: Mapping[str, Any] | Sequence[int],
        *others: Any,
        core: Any = None,
        **named: Any,
    ) -> None:
        named |= {"include_policy_head": False, "include_value_head": False}
        super().__init__(env, model_config, *others, **named)
        if core is None:
            config = self.config_type.read(as_mapping(model_config))
            core = type(self).build(self.flattened_obs_size, self.space, config)
        self.core = core

    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Return a copy of the weights under WarpDrive's names."""
        return weights.to_warpdrive_state_dict(self.core)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy weights under WarpDrive's names into the network, in place.

        Raises:
            DataError: A name is missing or unknown, or a shape differs; ``strict`` is ignored.
        """
        weights.load_warpdrive_state_dict(self.core, state_dict)


class FullyConnected(_BuiltIn):
    """Probabilities and value from one trunk; see `ModelBaseFullyConnected`."""

    name = "torch_fully_connected"
    config_type = ModelConfig
    build = models.create_actor_critic

    def forward(
        self,
        obs: Tensor | None = None,
        action: Tensor | None = None,
        *,
        batch_index: int = -1,
        batch_size: int | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """Return probabilities (..., choices) of each action type, and the value (...).

        Without ``obs``, as in WarpDrive's trainers before 2.7, the model reads the current observations. They become
        the row ``batch_index`` of the policy's batch; a negative index stores nothing.
        """
        if obs is None:
            obs = self.process_one_step_obs()
            self.push_processed_obs_to_batch(batch_index, obs)
        head, value = self.core(obs)
        return self.probabilities(head), value


class FullyConnectedActor(_BuiltIn):
    """Actions or probabilities; see `ModelBaseFullyConnected`."""

    name = "torch_fully_connected_actor"
    config_type = ActorModelConfig
    build = models.create_actor

    def forward(self, obs: Tensor, action: Tensor | None = None) -> list[Tensor]:
        """Return each action, (..., 1)."""
        return self.probabilities(self.core(obs))


class FullyConnectedActionValueCritic(_BuiltIn):
    """Value of actions; see `ModelBaseFullyConnected`."""

    name = "torch_fully_connected_q"
    config_type = CriticModelConfig
    build = models.create_critic

    def forward(self, obs: Tensor, action: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the value (...) of actions: (..., n_types), or a tensor per type."""
        actions = action if isinstance(action, Tensor) else torch.cat(list(action), -1)
        value: Tensor = self.core(obs, actions)
        return value


BUILT_IN: Final[dict[str, type[_BuiltIn]]] = {
    "fully_connected": FullyConnected,
    "fully_connected_actor": FullyConnectedActor,
    "fully_connected_action_value_critic": FullyConnectedActionValueCritic,
}


# ------------------------------------------------------------------ factory


class ModelFactory(parts.ModelFactory):
    """WarpDrive's models by name, the run config's ``model.type``."""

    _classes: ClassVar[dict[str, Callable[..., nn.Module] | str]] = dict(BUILT_IN)
    model_pool = _classes

    @classmethod
    def add(cls, model_name: str, model_path: str | Path | type[nn.Module], object_name: str | None = None) -> None:
        """Add a model, also for the trainers of `warp_drive`.

        Args:
            model_name: A new name.
            model_path: Class, or its place: the path of a ``.py`` file, or the dotted name of a module. The class takes
                the arguments of `ModelBaseFullyConnected`. Its ``forward(obs)`` returns (list of probabilities, value).
                DDPG's actor returns a list of actions, and its critic's ``forward(obs, action)`` a value.
            object_name: Name of the class in the file or module.

        Raises:
            ConfigError: The name is taken, the file, module or class does not exist, or it is no ``torch.nn.Module``.
        """
        super().add(model_name, model_path, object_name)
        made = type(f"Trained_{model_name}", (_AdaptedModel,), {"build": staticmethod(cls.create(model_name))})
        parts.ModelFactory.add(model_name, made)


# ------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class Building:
    """Trainer that models are being built for."""

    env: EnvWrapper
    policies: Policies
    arrays: tuple[bool, str]
    """Separate arrays for each policy, and the agents' axis of observations."""
    configs: Mapping[str, PolicyConfig]
    given: Mapping[str, Any]
    """The user's run config sections by policy, with keys of the user's models."""
    n_steps: int
    """Steps of a rollout: rows of the batches."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of WarpDrive's models common to all policies."""
        return {
            "env": self.env,
            "policy_tag_to_agent_id_map": self.policies,
            "create_separate_placeholders_for_each_policy": self.arrays[0],
            "obs_dim_corresponding_to_num_agents": self.arrays[1],
        }

    def declare_batches(self) -> None:
        """Declare names and shapes of the batches before rollouts, without memory.

        Users' models read them in the constructor, as WarpDrive's own does.
        """
        data = self.env.cuda_data_manager
        for policy, agents in self.policies.items():
            for name, row in batch_rows(self.env, policy, agents).items():
                zero = torch.zeros((), dtype=torch.from_numpy(row).dtype, device=data.device)
                data.use_external(name, zero.expand(self.n_steps, *row.shape))


_building: ContextVar[Building] = ContextVar("_building")


@contextlib.contextmanager
def building(what: Building) -> Iterator[Building]:
    """Build a user's models for a trainer, within a ``with`` statement."""
    token = _building.set(what)
    try:
        yield what
    finally:
        _building.reset(token)


class _AdaptedModel(nn.Module):
    """Adapter of a user's model to our side; heads are logits.

    Any constructor arguments work. Weights keep the names of the user's model, in checkpoints and WarpDrive's files.
    """

    build: ClassVar[Callable[..., nn.Module]]

    def __init__(self, n_features: int, space: ActionSpace, config: ModelConfig) -> None:
        super().__init__()
        what = _building.get(None)
        if what is None:
            raise ConfigError(
                f"model {config.type!r}: is written for WarpDrive (got a trainer of this project); train it with a "
                "trainer of warp_drive, or add one built with (n_features, space, config) to this project's factory"
            )
        policy, part = next(
            (name, part)
            for name, each in what.configs.items()
            for part, network in each.models.items()
            if network is config
        )
        what.declare_batches()
        given = (what.given.get(policy) or {}).get("model") or {}
        extra = given if part == "model" else given.get(part) or {}
        of_model: dict[str, Any] = {"model_config": {**config.to_dict(), **extra}}
        parameters = inspect.signature(self.build).parameters
        if "fc_dims" in parameters and "model_config" not in parameters:  # WarpDrive 1.2 to 2.0
            of_model = {"fc_dims": of_model["model_config"]["fc_dims"]}
        self.model = self.build(policy=policy, **of_model, **what.arguments)
        self._shared = [weakref.ref(each) for each in (what.env, getattr(what.env, "given", what.env), what.env.env)]
        """Environments that the user's model and its copies (DDPG's targets) may hold."""
        parts.initialise(self.model, config.init_method)
        self._is_continuous = space.is_continuous

    def __deepcopy__(self, memo: dict[int, Any]) -> _AdaptedModel:
        """Return a copy of the network that shares its environments."""
        memo.update({id(each): each for ref in self._shared if (each := ref()) is not None})
        made = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def forward(self, observations: Tensor, *actions: Tensor) -> Any:
        """Return (head, value); for an actor actions, for a critic a value."""
        outputs = self.model(observations, *actions)
        if isinstance(outputs, Tensor):
            return outputs
        if isinstance(outputs, tuple):
            return self._head(outputs[0]), outputs[1]
        return self._head(outputs)

    def act(self, observations: Tensor) -> Tensor:
        """Return the head, or an actor's actions."""
        outputs = self(observations)
        head: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return head

    def _head(self, parts: Sequence[Tensor]) -> Tensor:
        head = torch.cat(list(parts), -1)
        # The logarithms of probabilities are logits; log 0 is undefined.
        return head if self._is_continuous else head.clamp(min=torch.finfo(head.dtype).tiny).log()

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the state of the user's model."""
        return self.model.state_dict(*arguments, **named)

    def get_submodule(self, target: str) -> nn.Module:
        """Return a part of the user's model."""
        return self.model.get_submodule(target)


def as_warpdrive_model(core: nn.Module, kind: str, **arguments: Any) -> nn.Module:
    """Return a training network as WarpDrive's users know it.

    That is their own model, or a built-in one around the network.

    Args:
        core: Network.
        kind: Name of the built-in model.
        arguments: Its constructor's arguments.
    """
    inner = core.module if isinstance(core, models.Adapted) else core
    return inner.model if isinstance(inner, _AdaptedModel) else BUILT_IN[kind](core=core, **arguments)
