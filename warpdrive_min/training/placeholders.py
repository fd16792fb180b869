"""What WarpDrive's environments leave to the trainer: arrays of observations, actions, rewards, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.constants import Constants
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import Observations
from warpdrive_min.errors import ConfigError
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.spaces import category_counts

Agents = Sequence[Hashable]


def create_and_push_data_placeholders(
    env_wrapper: EnvWrapper | None = None,
    action_sampler: CUDASampler | None = None,
    policy_tag_to_agent_id_map: Mapping[str, Agents] | None = None,
    create_separate_placeholders_for_each_policy: bool = False,
    obs_dim_corresponding_to_num_agents: str = "first",
    training_batch_size_per_env: int | None = None,
    push_data_batch_placeholders: bool = True,
) -> None:
    """Push what an environment's step reads and writes for a trainer, and the batches that the trainer fills.

    Of each policy, or of all agents where they share, ``n`` agents:

    | array | shape |
    |---|---|
    | ``observations[_<policy>][_<key>]`` | ``(n_envs, n, *features)``, restored by resets |
    | ``sampled_actions[_<policy>]`` | ``(n_envs, n, n_types)`` int32, float32 if continuous |
    | ``sampled_actions_<type>[_<policy>]`` | ``(n_envs, n, 1)``, where there are several types |
    | ``rewards[_<policy>]`` | ``(n_envs, n)`` float32 |

    and always of each policy, with ``T`` rows of time: ``sampled_actions_batch_<policy>`` ``(T, n_envs, n, n_types)``,
    ``rewards_batch_<policy>`` ``(T, n_envs, n)``, ``processed_observations_batch_<policy>`` ``(T, n_envs, n, size)``;
    and ``done_flags_batch`` ``(T, n_envs)``. What the environment pushed itself stays. Synchronises.

    Args:
        env_wrapper: Started wrapper.
        action_sampler: Gets each array of actions registered.
        policy_tag_to_agent_id_map: Agents of each policy, every agent once; None: one policy, ``shared``.
        create_separate_placeholders_for_each_policy: Arrays of each policy; else of all agents.
        obs_dim_corresponding_to_num_agents: Axis of the agents in an observation array: ``"first"`` after that of
            the environments, or ``"last"``.
        training_batch_size_per_env: ``T``.
        push_data_batch_placeholders: Push the batches too.

    Raises:
        ConfigError: The wrapper has not started or has no kernels, an agent is in no policy or in two, agents that
            share arrays have different spaces, an argument is out of range, or the environment pushed an array of
            another shape, or one for all policies, itself.
    """
    if env_wrapper is None or not env_wrapper.vectorised or env_wrapper.reset_on_host:
        raise ConfigError("placeholders: need a wrapper on a backend whose kernels it has, after its first reset()")
    if obs_dim_corresponding_to_num_agents not in ("first", "last"):
        raise ConfigError(
            f"placeholders: the agents' axis must be 'first' or 'last' (got {obs_dim_corresponding_to_num_agents!r})"
        )
    agents: list[Hashable] = list(env_wrapper.env.action_space)
    policies = policy_tag_to_agent_id_map or {"shared": agents}
    check_policies(policies, agents)
    if create_separate_placeholders_for_each_policy and len(policies) < 2:
        raise ConfigError("placeholders: separate ones need more than one policy; leave them off")
    if create_separate_placeholders_for_each_policy and env_wrapper.cuda_data_manager.is_data_on_device(
        Constants.ACTIONS
    ):
        raise ConfigError(
            f"placeholders: environment {env_wrapper.name!r} reads the actions of all agents from one array, "
            f"{Constants.ACTIONS!r} (got separate ones for each policy); leave them off"
        )
    groups = (
        {f"_{policy}": members for policy, members in policies.items()}
        if create_separate_placeholders_for_each_policy
        else {"": agents}
    )
    feed = DataFeed()
    for suffix, members in groups.items():
        _require_one_space(env_wrapper, members)
        _add_step_arrays(feed, env_wrapper, suffix, members, obs_dim_corresponding_to_num_agents)
    if push_data_batch_placeholders:
        if training_batch_size_per_env is None or training_batch_size_per_env < 1:
            raise ConfigError(
                f"placeholders: training_batch_size_per_env must be at least 1 (got {training_batch_size_per_env})"
            )
        for policy, members in policies.items():
            _add_batches(feed, env_wrapper, policy, members, training_batch_size_per_env)
    data = env_wrapper.cuda_data_manager
    data.push_data_to_device(_without_known(feed, data), torch_accessible=True)
    if action_sampler is not None:
        for suffix, members in groups.items():
            _register(action_sampler, data, suffix, env_wrapper.env.action_space[members[0]])


def get_obs(
    obs: Observations,
    agent_ids: Agents,
    obs_dim_corresponding_to_num_agents: str = "first",
    key: Hashable | None = None,
) -> npt.NDArray[Any]:
    """Stack the agents' observations, or one entry of each: ``(n, *features)``, or ``(*features, n)`` for "last".

    "last" swaps the first and the last axis, and does nothing for one agent.
    """
    stacked = np.stack([np.asarray(obs[agent] if key is None else obs[agent][key]) for agent in agent_ids])
    is_last = obs_dim_corresponding_to_num_agents == "last" and len(agent_ids) > 1
    return np.swapaxes(stacked, 0, -1) if is_last else stacked


def get_flattened_obs_size(observation_space: Any) -> int:
    """Return the number of values in an observation; in a dict the action mask does not count."""
    if isinstance(observation_space, Mapping) or hasattr(observation_space, "spaces"):
        spaces = getattr(observation_space, "spaces", observation_space)
        return sum(math.prod(space.shape) for key, space in spaces.items() if key != Constants.ACTION_MASK)
    return math.prod(observation_space.shape)


# ------------------------------------------------------------------ the arrays


def _add_step_arrays(feed: DataFeed, wrapper: EnvWrapper, suffix: str, agents: Agents, agents_axis: str) -> None:
    n_envs = wrapper.n_envs
    # The observations of the very reset that gave the copies their state; a core wrapper does not keep them.
    observations = getattr(wrapper, "first_observations", None) or wrapper.obs_at_reset()
    first = observations[agents[0]]
    for key in first if isinstance(first, Mapping) else [None]:
        name = Constants.OBSERVATIONS + suffix + (f"_{key}" if key is not None else "")
        feed.add_data(name, get_obs(observations, agents, agents_axis, key), True, n_copies=n_envs)
    types, dtype = _action_types(wrapper.env.action_space[agents[0]])
    for name, n_types in _action_arrays(suffix, types).items():
        feed.add_data(name, np.zeros((len(agents), n_types), dtype), n_copies=n_envs)
    feed.add_data(Constants.REWARDS + suffix, np.zeros(len(agents), np.float32), n_copies=n_envs)


def _add_batches(feed: DataFeed, wrapper: EnvWrapper, policy: str, agents: Agents, n_steps: int) -> None:
    types, dtype = _action_types(wrapper.env.action_space[agents[0]])
    size = get_flattened_obs_size(wrapper.env.observation_space[agents[0]])
    rows = (wrapper.n_envs, len(agents))
    for name, row in {
        f"{Constants.ACTIONS}_batch_{policy}": np.zeros((*rows, len(types)), dtype),
        f"{Constants.REWARDS}_batch_{policy}": np.zeros(rows, np.float32),
        f"{Constants.PROCESSED_OBSERVATIONS}_batch_{policy}": np.zeros((*rows, size), np.float32),
        f"{Constants.DONE_FLAGS}_batch": np.zeros(wrapper.n_envs, np.int32),
    }.items():
        feed.add_data(name, row, n_copies=n_steps)


def _without_known(feed: DataFeed, data: CUDADataManager) -> DataFeed:
    """Return the entries that are not on the device; those that are must be as they would be."""
    new = DataFeed()
    for name, entry in feed.items():
        if not data.is_data_on_device(name):
            new[name] = entry
            continue
        want = (entry["attributes"]["n_copies"], *np.shape(entry["data"]))
        if data.get_shape(name) != want:
            raise ConfigError(
                f"placeholders: {name!r} is there with another shape (got {data.get_shape(name)}, expected {want}); "
                "leave it to the environment or to this call"
            )
    return new


def _register(sampler: CUDASampler, data: CUDADataManager, suffix: str, space: Any) -> None:
    types, dtype = _action_types(space)
    names = list(_action_arrays(suffix, types))
    for name, n_choices in zip(names[1:] or names, types, strict=True):
        sampler.register_actions(data, name, n_choices, is_deterministic=dtype is np.float32)


def _action_arrays(suffix: str, types: Sequence[int]) -> dict[str, int]:
    """Return the number of types of each action array: of all types, and where there are several, of each."""
    parts = {f"{Constants.ACTIONS}_{index}{suffix}": 1 for index in range(len(types))} if len(types) > 1 else {}
    return {Constants.ACTIONS + suffix: len(types), **parts}


def _action_types(space: Any) -> tuple[tuple[int, ...], type[np.int32] | type[np.float32]]:
    """Return the choices of each action type (1 for each value of a continuous one), and the dtype of actions."""
    if hasattr(space, "low"):
        return (1,) * math.prod(space.shape), np.float32
    return category_counts(space), np.int32


# ------------------------------------------------------------------ what is checked


def check_policies(policies: Mapping[str, Agents], agents: Agents) -> None:
    """Raise `ConfigError` unless every agent is in one policy and in no other."""
    mapped = [agent for members in policies.values() for agent in members]
    if len(mapped) != len(agents) or set(mapped) != set(agents):
        raise ConfigError(
            f"placeholders: policy_tag_to_agent_id_map must hold each of the agents {list(agents)} once (got {mapped})"
        )


def _require_one_space(wrapper: EnvWrapper, agents: Agents) -> None:
    spaces = wrapper.env.observation_space, wrapper.env.action_space
    forms = {agent: tuple(_form(space[agent]) for space in spaces) for agent in agents}
    for agent, form in forms.items():
        if form != forms[agents[0]]:
            raise ConfigError(
                f"placeholders: agents that share arrays must have the same spaces (got {form} for {agent!r} and "
                f"{forms[agents[0]]} for {agents[0]!r}); use separate placeholders for each policy"
            )


def _form(space: Any) -> tuple[Any, ...]:
    """Return what two spaces must have in common for one array to hold both."""
    if isinstance(space, Mapping) or hasattr(space, "spaces"):
        return tuple((key, _form(each)) for key, each in getattr(space, "spaces", space).items())
    if hasattr(space, "low"):
        return tuple(space.shape)
    return category_counts(space)
