"""WarpDrive's array layouts and training batches.

Arrays may be separate for each policy. Agents may be the last axis of observations.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.constants import Constants
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import Observations, ids_in
from warpdrive_min.errors import ConfigError, require
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.loop.arrays import (
    Agents,
    PolicyMap,
    SharedLayout,
    action_arrays,
    get_flattened_obs_size,
    push_missing,
)
from warpdrive_min.training.ranks import World


class WarpDriveLayout(SharedLayout):
    """WarpDrive's layout: arrays per policy or for all agents.

    In observations, agents are the second axis or the last.

    Args:
        separate: Each policy has its own arrays, ``observations_<policy>`` and so on.
        agents_axis: Axis of the agents in observations: ``"first"`` after that of the environments, or ``"last"``. A
            single agent has no axis to move.

    Raises:
        ConfigError: ``agents_axis`` is neither.
    """

    def __init__(self, separate: bool = False, agents_axis: str = "first") -> None:
        is_axis = agents_axis in ("first", "last")
        require(is_axis, "obs_dim_corresponding_to_num_agents", "must be 'first' or 'last'", agents_axis)
        self.saved = (bool(separate), agents_axis)

    @classmethod
    def from_saved(cls, saved: Sequence[Any]) -> WarpDriveLayout:
        """Return the layout from its entry in a checkpoint's header."""
        return cls(*saved)

    def sets(self, env: Any, policies: PolicyMap) -> Mapping[str, Agents]:
        """Return the agents of each set of arrays, by the suffix of its names."""
        return {f"_{policy}": agents for policy, agents in policies.items()} if self.saved[0] else super().sets(env, {})

    def stacked(self, rows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Stack the agents' observations; moves no axis for a single agent."""
        stacked = super().stacked(rows)
        return np.swapaxes(stacked, 0, -1) if self.saved[1] == "last" and len(rows) > 1 else stacked

    def by_agent(self, array: torch.Tensor, n_agents: int) -> torch.Tensor:
        """Return the view (n_envs, n_agents, ...) of an array of observations."""
        is_last = self.saved[1] == "last" and n_agents > 1 and array.dim() > 2
        return array.movedim(-1, 1) if is_last else array

    def feed(self, wrapper: EnvWrapper, policies: PolicyMap) -> DataFeed:
        """Return the arrays that a trainer's step reads and writes.

        See `SharedLayout.feed`.

        Raises:
            ConfigError: As in `SharedLayout.feed`. Or arrays are separate, and the run has one policy or the
                environment one array of actions.
        """
        is_fine = not self.saved[0] or len(policies) > 1
        require(is_fine, "placeholders", "separate ones need more than one policy", list(policies), "leave them off")
        feed = super().feed(wrapper, policies)
        is_fine = not (self.saved[0] and wrapper.cuda_data_manager.is_data_on_device(Constants.ACTIONS))
        rule = f"environment {wrapper.name!r} reads the actions of all agents from one array, {Constants.ACTIONS!r}"
        require(is_fine, "placeholders", rule, "separate ones for each policy", "leave them off")
        return feed


def create_and_push_data_placeholders(
    env_wrapper: EnvWrapper | None = None,
    action_sampler: CUDASampler | None = None,
    policy_tag_to_agent_id_map: PolicyMap | None = None,
    create_separate_placeholders_for_each_policy: bool = False,
    obs_dim_corresponding_to_num_agents: str = "first",
    training_batch_size_per_env: int | None = None,
    push_data_batch_placeholders: bool = True,
) -> None:
    """Push a trainer's step arrays and training batches to the device.

    The step arrays are those of `SharedLayout.feed`, with the suffix ``_<policy>`` if each policy has its own. Batches
    are always separate for each policy. With ``T`` steps and ``n`` agents they are:

    - ``sampled_actions_batch_<policy>`` ``(T, n_envs, n, n_types)``
    - ``rewards_batch_<policy>`` ``(T, n_envs, n)``
    - ``processed_observations_batch_<policy>`` ``(T, n_envs, n, size)``
    - ``done_flags_batch`` ``(T, n_envs)``, for all policies

    Arrays that the environment pushed itself stay. Synchronises.

    Args:
        env_wrapper: Started wrapper.
        action_sampler: Sampler in which each array of actions is registered.
        policy_tag_to_agent_id_map: Agents of each policy, every agent once; None: one policy, ``shared``.
        create_separate_placeholders_for_each_policy: Use separate arrays for each policy.
        obs_dim_corresponding_to_num_agents: Axis of the agents in an observation array, ``"first"`` or ``"last"``.
        training_batch_size_per_env: ``T``.
        push_data_batch_placeholders: Push the batches too.

    Raises:
        ConfigError: As in `WarpDriveLayout.feed`; or an argument is out of range, or the environment pushed an array
            of another shape.
    """
    if env_wrapper is None:
        raise ConfigError.of("placeholders", "need a wrapper", None, "pass it after its first reset()")
    layout = WarpDriveLayout(create_separate_placeholders_for_each_policy, obs_dim_corresponding_to_num_agents)
    ids = env_wrapper.env.action_space
    mapping: PolicyMap = policy_tag_to_agent_id_map or {"shared": list(ids)}
    policies = {policy: ids_in(ids, agents) for policy, agents in mapping.items()}
    feed = layout.feed(env_wrapper, policies)
    if push_data_batch_placeholders:
        n_steps = training_batch_size_per_env or 0
        what, rule = "placeholders: training_batch_size_per_env", "must be at least 1"
        require(n_steps >= 1, what, rule, training_batch_size_per_env)
        for policy, of_policy in policies.items():
            for name, row in batch_rows(env_wrapper, policy, of_policy).items():
                feed.add_data(name, row, n_copies=n_steps)
    push_missing(env_wrapper, feed)
    if action_sampler is not None:
        for suffix, members in layout.sets(env_wrapper.env, policies).items():
            space = ActionSpace.of(env_wrapper.env.action_space[members[0]])
            names = list(action_arrays(suffix, space.n_types))
            choices = space.categories or (1,) * space.n_types
            for name, n_choices in zip(names[1:] or names, choices, strict=True):
                action_sampler.register_actions(env_wrapper.cuda_data_manager, name, n_choices, space.is_continuous)


def get_obs(
    obs: Observations,
    agent_ids: Agents,
    obs_dim_corresponding_to_num_agents: str = "first",
    key: Hashable | None = None,
) -> npt.NDArray[Any]:
    """Stack the agents' observations, or one entry of each.

    Returns ``(n, *features)``, or ``(*features, n)`` for "last". "last" swaps the first and the last axis; it changes
    nothing for one agent.
    """
    layout = WarpDriveLayout(agents_axis=obs_dim_corresponding_to_num_agents)
    return layout.stacked([np.asarray(obs[agent] if key is None else obs[agent][key]) for agent in agent_ids])


def batch_rows(wrapper: EnvWrapper, policy: str, agents: Agents) -> dict[str, npt.NDArray[Any]]:
    """Return one step's row of zeros for each batch of a policy, by name."""
    actions = ActionSpace.of(wrapper.env.action_space[agents[0]])
    size = get_flattened_obs_size(wrapper.env.observation_space[agents[0]])
    rows = (wrapper.n_envs, len(agents))
    return {
        f"{Constants.ACTIONS}_batch_{policy}": np.zeros((*rows, actions.n_types), actions.dtype),
        f"{Constants.REWARDS}_batch_{policy}": np.zeros(rows, np.float32),
        f"{Constants.PROCESSED_OBSERVATIONS}_batch_{policy}": np.zeros((*rows, size), np.float32),
        f"{Constants.DONE_FLAGS}_batch": np.zeros(wrapper.n_envs, np.int32),
    }


def trainer_arguments(
    policy_tag_to_agent_id_map: PolicyMap | None = None,
    create_separate_placeholders_for_each_policy: bool = False,
    obs_dim_corresponding_to_num_agents: str = "first",
    num_devices: int | None = None,
    device_id: int | None = None,
    results_dir: str | Path | None = None,
) -> dict[str, Any]:
    """Translate WarpDrive's keywords to arguments of `Trainer`.

    Raises:
        ConfigError: The number of processes, or this process's rank, differs from the process group's.
    """
    World.of(num_devices, device_id)
    layout = WarpDriveLayout(create_separate_placeholders_for_each_policy, obs_dim_corresponding_to_num_agents)
    return {"policies": policy_tag_to_agent_id_map, "layout": layout, "folder": results_dir}
