"""Arrays of agents: observations, actions and rewards of each policy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.constants import FINAL_OBSERVATIONS, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.environment import agent_sets
from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.sampler import by_type
from warpdrive_min.spaces import category_counts
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.fused.rows import can_move, move
from warpdrive_min.training.paths.fused.wide import OfAgents

if TYPE_CHECKING:
    from warpdrive_min.env_wrapper import EnvWrapper

Agents = Sequence[Hashable]
PolicyMap = Mapping[str, Agents]
"""Agents of each policy, every agent once."""

LAYOUTS: Final = {
    "shared": "warpdrive_min.training.loop.arrays:SharedLayout",
    "warpdrive": "warpdrive_min.dialect.layout:WarpDriveLayout",
}
"""Layouts of arrays by name: module and class."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentArrays:
    """Arrays of one policy's agents, each (n_envs, agents, ...)."""

    policy: str
    agents: tuple[Hashable, ...]
    """Agents in the order of the policy's list."""
    suffix: str
    """Suffix of array names: "", or ``_<role>`` for roles with own arrays."""
    rows: torch.Tensor | None
    """Indices of the agents in the arrays, (n_agents,) int64; None: all."""
    space: ActionSpace
    n_features: int
    """Entries of a flattened observation, without an action mask."""
    observations: tuple[torch.Tensor, ...] = field(repr=False)
    """Observation parts, entries side by side; one per key of a Dict."""
    mask: torch.Tensor | None = field(repr=False)
    """Action masks, (n_envs, agents of the array, choices) int32; 0 forbids."""
    last_observations: tuple[torch.Tensor, ...] = field(repr=False)
    """Parts of episodes' last observations; empty if the environment has none."""
    actions: torch.Tensor = field(repr=False)
    rewards: torch.Tensor = field(repr=False)
    timestep: torch.Tensor = field(repr=False)
    """Steps done in the episode, (n_envs,) int32; 0 at its start."""
    backend: str
    """Backend whose kernels run on the arrays."""
    keys: tuple[Hashable, ...] = ("",)
    """Keys of a Dict in `observations`' order; "" without a Dict."""
    own_columns: int | None = None
    """First column of the agents' own marks; None: rollouts keep all rows.
    Otherwise they have one observation row per environment, which agents share except for these columns."""

    @property
    def n_agents(self) -> int:
        """Number of agents of the policy."""
        return len(self.agents)

    @property
    def n_rows(self) -> int:
        """Observation rows per environment in a rollout."""
        return self.n_agents if self.own_columns is None else 1

    def why_not_whole(self, wrapper: EnvWrapper) -> str:
        """Return why a policy cannot read the observation array directly, or ""."""
        data = wrapper.cuda_data_manager
        if not data.is_data_on_device(Constants.OBSERVATIONS):
            return f"environment {wrapper.name!r} has no array 'observations'"
        whole = data.tensor(Constants.OBSERVATIONS)
        if self.rows is not None or len(self.observations) > 1 or self.observations[0] is not whole:
            return "it does not see all agents, or sees other arrays"
        if whole.dtype != torch.float32 or whole.dim() != 3:
            return f"observations are not float32 by environment and agent (got {whole.dtype} of {tuple(whole.shape)})"
        return ""

    def in_place(self) -> OfAgents | None:
        """Return the agents' rows in the environment's array; None if in several."""
        whole = self.observations[0]
        if len(self.observations) > 1 or self.own_columns is not None or whole.dim() != 3:
            return None
        if whole.dtype != torch.float32 or not whole.is_contiguous():
            return None
        return OfAgents(whole, None if self.rows is None else self.rows.int())

    def names_of_features(self, name: str) -> list[str]:
        """Return the array name of each observation entry, from a base name."""
        names = part_names(name + self.suffix, [key for key in self.keys if key]).values()
        widths = [flat_entries(part).shape[2] for part in self.observations]
        return [name for name, width in zip(names, widths, strict=True) for _ in range(width)]

    def restore(self, kept: torch.Tensor) -> None:
        """Restore the last observations (n_envs, n_rows, n_features); enqueues."""
        self.observations[0].copy_(kept)
        if self.own_columns is not None:
            self._marks(self.observations[0]).diagonal(dim1=1, dim2=2).fill_(1.0)

    def unmark(self, rows: torch.Tensor) -> None:
        """Clear the agents' marks in rows (..., n_features); enqueues."""
        if self.own_columns is not None:
            self._marks(rows).zero_()

    def _marks(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.own_columns is not None
        return rows[..., self.own_columns : self.own_columns + self.n_agents]

    def observe(self, out: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Copy observations to ``out`` (n_envs, n_rows, n_features), and masks; enqueues."""
        if self.own_columns is not None:
            out.copy_(self.observations[0][:, :1])
            self.unmark(out)
            return
        first = 0
        for array in self.observations:
            entries = flat_entries(array)
            part = out if len(self.observations) == 1 else out[..., first : first + entries.shape[2]]
            self.pick(entries, part)
            first += entries.shape[2]
        self.observe_mask(mask)

    def observe_mask(self, mask: torch.Tensor | None) -> None:
        """Copy action masks, if there are any, to ``mask``; enqueues."""
        if self.mask is not None and mask is not None:
            self.pick(self.mask, mask)

    def pick(self, array: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the agents' rows of an array (n_envs, agents, ...) to ``out``; enqueues."""
        if self.rows is None:
            out.copy_(array)
        elif available.why_no_triton(array.device.type) is None and can_move(out, array):
            move(out, array, self.rows, is_placing=False)
        elif array.dtype == out.dtype and out.is_contiguous():
            torch.index_select(array, 1, self.rows, out=out)
        else:
            out.copy_(array.index_select(1, self.rows))

    def place(self, values: torch.Tensor, into: torch.Tensor, axis: int = 1) -> None:
        """Write the agents' values to their rows along ``axis``; enqueues."""
        if self.rows is None:
            into.copy_(values)
        elif axis == 1 and available.why_no_triton(into.device.type) is None and can_move(values, into):
            move(values, into, self.rows, is_placing=True)
        else:
            into.index_copy_(axis, self.rows, values)


class SharedLayout:
    """Layout with one set of arrays per role, or one for all.

    The agents' axis follows the axis of environments. A subclass may change which agents share arrays, and their axis.
    """

    saved: tuple[bool, str] = (False, "first")
    """Header entry of a checkpoint: arrays per policy, and the agents' axis."""

    @classmethod
    def from_saved(cls, saved: Sequence[Any]) -> SharedLayout:
        """Return the layout for an entry of a checkpoint's header."""
        return cls()

    def sets(self, env: Any, policies: PolicyMap) -> Mapping[str, Agents]:
        """Return the agents of each set of arrays, by name suffix."""
        return agent_sets(env)

    def stacked(self, rows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Stack observations of single agents into one array."""
        return np.stack(rows)

    def by_agent(self, array: torch.Tensor, n_agents: int) -> torch.Tensor:
        """View an array of observations as (n_envs, n_agents, ...)."""
        return array

    def push(self, wrapper: EnvWrapper, policies: PolicyMap) -> None:
        """Push the arrays of `feed` that the environment lacks; synchronises.

        Raises:
            ConfigError: As of `feed`, or the environment pushed an array of another shape.
        """
        push_missing(wrapper, self.feed(wrapper, policies))

    def feed(self, wrapper: EnvWrapper, policies: PolicyMap) -> DataFeed:
        """Return the arrays of an env step, for each set of n agents.

        | array | shape |
        |---|---|
        | ``observations[_<key>]`` | ``(n_envs, n, *features)``, restored by resets |
        | ``sampled_actions`` | ``(n_envs, n, n_types)`` int32, float32 if continuous |
        | ``sampled_actions_<type>`` | ``(n_envs, n, 1)``, where there are several types |
        | ``rewards`` | ``(n_envs, n)`` float32 |

        Raises:
            ConfigError: The wrapper has not started or has no kernels, an agent is in no policy or in two, or agents
                that share arrays have different spaces.
        """
        rule = "need a wrapper on a backend whose kernels it has, after its first reset()"
        require(wrapper.vectorised and not wrapper.reset_on_host, "arrays", rule)
        check_policies(policies, list(wrapper.env.action_space))
        feed = DataFeed()
        for suffix, agents in self.sets(wrapper.env, policies).items():
            _require_one_space(wrapper, agents)
            self._add_step_arrays(feed, wrapper, suffix, agents)
        return feed

    def _add_step_arrays(self, feed: DataFeed, wrapper: EnvWrapper, suffix: str, agents: Agents) -> None:
        n_envs = wrapper.n_envs
        # Observations of the reset that set the environments' state; a core wrapper does not store them.
        observations = getattr(wrapper, "first_observations", None) or wrapper.obs_at_reset()
        first = observations[agents[0]]
        keys = list(first) if isinstance(first, Mapping) else []
        for key, name in part_names(Constants.OBSERVATIONS + suffix, keys).items():
            rows = [np.asarray(observations[agent][key] if keys else observations[agent]) for agent in agents]
            feed.add_data(name, self.stacked(rows), True, n_copies=n_envs)
        actions = ActionSpace.of(wrapper.env.action_space[agents[0]])
        for name, n_types in action_arrays(suffix, actions.n_types).items():
            feed.add_data(name, np.zeros((len(agents), n_types), actions.dtype), n_copies=n_envs)
        feed.add_data(Constants.REWARDS + suffix, np.zeros(len(agents), np.float32), n_copies=n_envs)

    def arrays(self, wrapper: EnvWrapper, policies: PolicyMap) -> dict[str, AgentArrays]:
        """Return the arrays of each policy's agents.

        Raises:
            ConfigError: An agent is in no policy or in two, agents of one policy differ in their actions or share no
                arrays, or an array is missing.
        """
        env, device = wrapper.env, wrapper.cuda_data_manager.device
        check_policies(policies, list(env.action_space))
        sets = self.sets(env, policies)
        by_policy = {}
        for policy, members in policies.items():
            agents = tuple(members)
            spaces = {agent: ActionSpace.of(env.action_space[agent]) for agent in agents}
            is_one = len(set(spaces.values())) == 1
            require(is_one, f"policy {policy!r}", "its agents must have the same actions", spaces, "split it")
            suffix = next(suffix for suffix, agent_set in sets.items() if agents[0] in agent_set)
            place = {agent: index for index, agent in enumerate(sets[suffix])}
            rule = f"its agents must share arrays, as {list(place)} do"
            require(place.keys() >= set(agents), f"policy {policy!r}", rule, list(agents), "give each role its own")
            places = [place[agent] for agent in agents]
            observed = self._observed(wrapper, Constants.OBSERVATIONS + suffix, agents[0], len(place))
            mask = observed.pop(Constants.ACTION_MASK, None)
            if mask is None and getattr(env, "masks_actions", False):
                mask = self.by_agent(_tensor(wrapper, Constants.ACTION_MASK + suffix), len(place))
            by_policy[policy] = AgentArrays(
                policy=policy,
                agents=agents,
                suffix=suffix,
                rows=None
                if places == list(range(len(place)))
                else torch.tensor(places, device=device, dtype=torch.int64),
                space=spaces[agents[0]],
                n_features=get_flattened_obs_size(env.observation_space[agents[0]]),
                observations=tuple(observed.values()),
                mask=mask,
                last_observations=self._last_observations(wrapper, suffix, list(observed), len(place)),
                keys=tuple(observed),
                actions=by_type(_tensor(wrapper, Constants.ACTIONS + suffix)),
                rewards=_tensor(wrapper, Constants.REWARDS + suffix),
                timestep=_tensor(wrapper, TIMESTEP),
                backend=wrapper.env_backend,
            )
        return by_policy

    def _observed(self, wrapper: EnvWrapper, name: str, agent: Hashable, n_agents: int) -> dict[Hashable, torch.Tensor]:
        """Return arrays of observations by their keys; "" without a Dict."""
        names = part_names(name, list(getattr(wrapper.env.observation_space[agent], "spaces", {})))
        return {key: self.by_agent(_tensor(wrapper, each), n_agents) for key, each in names.items()}

    def _last_observations(
        self, wrapper: EnvWrapper, suffix: str, keys: Sequence[Hashable], n_agents: int
    ) -> tuple[torch.Tensor, ...]:
        """Return arrays of episodes' last observations; empty if one is missing.

        A step with automatic reset stores them separately; otherwise the arrays of observations still hold them.
        """
        data = wrapper.cuda_data_manager
        name = (FINAL_OBSERVATIONS if wrapper.auto_reset else Constants.OBSERVATIONS) + suffix
        names = part_names(name, [key for key in keys if key]).values()
        if not all(map(data.is_data_on_device, (TERMINATED, TRUNCATED, *names))):
            return ()
        arrays = tuple(self.by_agent(data.tensor(name), n_agents) for name in names)
        return arrays if all(array.dim() > 1 and array.shape[1] == n_agents for array in arrays) else ()


def part_names(name: str, keys: Sequence[Hashable]) -> dict[Hashable, str]:
    """Return names of an array's parts by Dict key; "" without a Dict."""
    return {key: f"{name}_{key}" for key in keys} or {"": name}


def saved_layout(saved: Sequence[Any]) -> SharedLayout:
    """Return the core layout or WarpDrive's, by a checkpoint's header entry."""
    layout: type[SharedLayout] = resolve_name(LAYOUTS["shared" if tuple(saved) == SharedLayout.saved else "warpdrive"])
    return layout.from_saved(saved)


def flat_entries(array: torch.Tensor) -> torch.Tensor:
    """Flatten observations (n_envs, n_agents, ...) to (n_envs, n_agents, n_entries)."""
    return array.flatten(2) if array.dim() > 2 else array[..., None]


def get_flattened_obs_size(observation_space: Any) -> int:
    """Return the number of values in an observation, without action masks."""
    if isinstance(observation_space, Mapping) or hasattr(observation_space, "spaces"):
        spaces = getattr(observation_space, "spaces", observation_space)
        return sum(math.prod(space.shape) for key, space in spaces.items() if key != Constants.ACTION_MASK)
    return math.prod(observation_space.shape)


# ------------------------------------------------------------------ pushing


def push_missing(wrapper: EnvWrapper, feed: DataFeed) -> None:
    """Push missing entries; existing ones must match their shapes. Synchronises.

    Actions of one type may lack the axis of types.

    Raises:
        ConfigError: An existing entry has another shape.
    """
    data, missing = wrapper.cuda_data_manager, DataFeed()
    for name, entry in feed.items():
        want = (entry["attributes"]["n_copies"], *np.shape(entry["data"]))
        if not data.is_data_on_device(name):
            missing[name] = entry
        else:
            rule, do = f"exists already, and must be of shape {want}", "leave it to the environment or to this call"
            got = data.get_shape(name)
            is_fine = got == want or (name.startswith(Constants.ACTIONS) and (*got, 1) == want)
            require(is_fine, f"arrays: {name!r}", rule, got, do)
    data.push_data_to_device(missing, torch_accessible=True)


def action_arrays(suffix: str, n_types: int) -> dict[str, int]:
    """Return the widths of action arrays: all types, then each of several."""
    parts = {f"{Constants.ACTIONS}_{index}{suffix}": 1 for index in range(n_types)} if n_types > 1 else {}
    return {Constants.ACTIONS + suffix: n_types, **parts}


def _tensor(wrapper: EnvWrapper, name: str) -> torch.Tensor:
    data = wrapper.cuda_data_manager
    do = f"known are {known(data.array_names())}"
    require(data.is_data_on_device(name), "training", f"needs the array {name!r}", do=do)
    return data.tensor(name)


# ------------------------------------------------------------------ checks


def check_policies(policies: PolicyMap, agents: Agents) -> None:
    """Raise `ConfigError` unless every agent is in exactly one policy."""
    mapped = [agent for members in policies.values() for agent in members]
    is_each_once = len(mapped) == len(agents) and set(mapped) == set(agents)
    require(is_each_once, "policies", f"must hold each of the agents {list(agents)} once", mapped)


def _require_one_space(wrapper: EnvWrapper, agents: Agents) -> None:
    spaces = wrapper.env.observation_space, wrapper.env.action_space
    forms = {agent: tuple(_form(space[agent]) for space in spaces) for agent in agents}
    first, rule = agents[0], "agents that share arrays must have the same spaces"
    for agent, form in forms.items():
        if form != forms[first]:
            got = f"{form} for {agent!r} and {forms[first]} for {first!r}"
            raise ConfigError(f"arrays: {rule} (got {got}); give each policy its own arrays")


def _form(space: Any) -> tuple[Any, ...]:
    """Return the properties that spaces in one array must share."""
    if isinstance(space, Mapping) or hasattr(space, "spaces"):
        return tuple((key, _form(each)) for key, each in getattr(space, "spaces", space).items())
    if hasattr(space, "low"):
        return tuple(space.shape)
    return category_counts(space)
