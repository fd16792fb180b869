"""Where each policy's agents sit in the arrays of a wrapper: what they observe, and where their actions go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, known
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.placeholders import check_policies, get_flattened_obs_size

Agents = Sequence[Hashable]


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """The agents of one policy, in the order of the policy's list."""

    policy: str
    agents: tuple[Hashable, ...]
    suffix: str
    """Of the names of its arrays: "", or ``_<policy>`` where each policy has arrays of its own."""
    rows: torch.Tensor | None
    """Places of the agents in these arrays, (n_agents,) int64; None: all, in order."""
    space: ActionSpace
    n_features: int
    """Entries of an observation, flattened; an action mask is none."""
    observed: tuple[torch.Tensor, ...] = field(repr=False)
    """Live arrays of observations, (n_envs, agents of the array, ...), whose entries lie side by side."""
    keys: tuple[str, ...]
    """Of a Dict, those of these arrays, in their order."""
    mask: torch.Tensor | None = field(repr=False)
    """Live array of action masks, (n_envs, agents of the array, choices); 0 forbids."""

    @property
    def n_agents(self) -> int:
        """Agents of the policy."""
        return len(self.agents)

    def observe(self, out: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Copy what the agents see into ``out`` (n_envs, n_agents, n_features), and their masks; enqueues."""
        first = 0
        for array in self.observed:
            entries = array.flatten(2) if array.dim() > 2 else array[..., None]
            part = out if len(self.observed) == 1 else out[..., first : first + entries.shape[2]]
            self.pick(entries, part)
            first += entries.shape[2]
        if self.mask is not None and mask is not None:
            self.pick(self.mask, mask)

    def pick(self, array: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the agents' rows of an array (n_envs, agents of the array, ...) into ``out``; enqueues."""
        if self.rows is None:
            out.copy_(array)
        elif array.dtype == out.dtype and out.is_contiguous():
            torch.index_select(array, 1, self.rows, out=out)
        else:
            out.copy_(array.index_select(1, self.rows))

    def place(self, values: torch.Tensor, into: torch.Tensor, axis: int = 1) -> None:
        """Write the agents' values into their rows of an array, of which ``axis`` counts agents; enqueues."""
        if self.rows is None:
            into.copy_(values)
        else:
            into.index_copy_(axis, self.rows, values)


def seats(
    wrapper: EnvWrapper,
    policy_tag_to_agent_id_map: Mapping[str, Agents],
    separate: bool = False,
    agents_axis: str = "first",
) -> dict[str, Seat]:
    """Return the seat of each policy.

    Args:
        wrapper: Started wrapper whose arrays are all there.
        policy_tag_to_agent_id_map: Agents of each policy, every agent once.
        separate: Each policy has arrays of its own, ``observations_<policy>`` and so on.
        agents_axis: Axis of the agents in an array of observations: ``"first"`` after that of the environments, or
            ``"last"``.

    Raises:
        ConfigError: An agent is in no policy or in two, agents of one policy differ in their actions, or an array is
            missing.
    """
    everyone = list(wrapper.env.action_space)
    check_policies(policy_tag_to_agent_id_map, everyone)
    found = {}
    for policy, members in policy_tag_to_agent_id_map.items():
        agents = tuple(members)
        spaces = {agent: ActionSpace.of(wrapper.env.action_space[agent]) for agent in agents}
        if len(set(spaces.values())) > 1:
            raise ConfigError(f"policy {policy!r}: its agents must have the same actions (got {spaces}); split it")
        suffix = f"_{policy}" if separate else ""
        of_array = list(agents) if separate else everyone
        places = [of_array.index(agent) for agent in agents]
        device = wrapper.cuda_data_manager.device
        is_last = agents_axis == "last" and len(of_array) > 1  # one agent's observations have no axis to move
        arrays, mask = _observations(wrapper, suffix, agents[0], is_last)
        found[policy] = Seat(
            policy=policy,
            agents=agents,
            suffix=suffix,
            rows=None if places == list(range(len(of_array))) else torch.tensor(places, device=device),
            space=spaces[agents[0]],
            n_features=get_flattened_obs_size(wrapper.env.observation_space[agents[0]]),
            observed=tuple(arrays.values()),
            keys=tuple(key for key in arrays if key is not None),
            mask=mask,
        )
    return found


def _observations(
    wrapper: EnvWrapper, suffix: str, agent: Hashable, is_last: bool
) -> tuple[dict[str | None, torch.Tensor], torch.Tensor | None]:
    """Return live arrays of observations by their keys, None where there is no Dict, and that of masks."""
    data, space = wrapper.cuda_data_manager, wrapper.env.observation_space[agent]
    keys = list(getattr(space, "spaces", {}))
    named = {key: f"{Constants.OBSERVATIONS}{suffix}_{key}" for key in keys} or {
        None: f"{Constants.OBSERVATIONS}{suffix}"
    }
    arrays: dict[str | None, torch.Tensor] = {}
    for key, name in named.items():
        if not data.is_data_on_device(name):
            raise ConfigError(f"training: needs the array {name!r}; known are {known(data.array_names())}")
        array = data.tensor(name)
        arrays[key] = array.movedim(-1, 1) if is_last and array.dim() > 2 else array
    mask = arrays.pop(Constants.ACTION_MASK, None)
    return arrays, mask


class ActionTable:
    """Agents whose actions lie in one array: their policies' heads meet here, and one kernel draws for all.

    Args:
        wrapper: With the array.
        sampler: Gets it registered.
        members: The seats around it, all of one action space.
        noise: Actions are a mean with Ornstein-Uhlenbeck noise, as DDPG explores; else they are drawn from logits, or
            from Gaussians.

    Raises:
        ConfigError: The policies differ in their action spaces.
    """

    def __init__(self, wrapper: EnvWrapper, sampler: CUDASampler, members: Sequence[Seat], *, noise: bool) -> None:
        self._data = wrapper.cuda_data_manager
        self._sampler = sampler
        self.members = tuple(members)
        self.space = members[0].space
        if any(seat.space != self.space for seat in members):
            spaces = {seat.policy: seat.space for seat in members}
            raise ConfigError(
                f"training: policies whose actions share an array must have one action space (got {spaces}); "
                "use create_separate_placeholders_for_each_policy"
            )
        self.name = Constants.ACTIONS + members[0].suffix
        self.actions = self._data.tensor(self.name)
        n_envs, n_agents, n_types = self.actions.shape
        device = self._data.device
        self.head = torch.zeros(n_envs, n_agents, self.space.n_outputs, device=device)
        self.log_prob = torch.zeros(n_envs, n_agents, device=device)
        self._log_std = torch.zeros(n_agents, n_types, device=device)
        is_masked = any(seat.mask is not None for seat in members)
        self._mask = torch.ones(self.head.shape, dtype=torch.int32, device=device) if is_masked else None
        self.is_noisy = noise
        """Actions are a mean with noise."""
        self._bounds = torch.tensor([self.space.low, self.space.high], device=device)
        categories = self.space.categories
        sampler.register_actions(self._data, self.name, categories or n_types, is_deterministic=not categories)

    def put(
        self,
        seat: Seat,
        head: torch.Tensor,
        mask: torch.Tensor | None = None,
        log_std: torch.Tensor | None = None,
    ) -> None:
        """Lay down what a policy says of its agents: head (n_envs, n_agents, n_outputs), masks; enqueues."""
        seat.place(head.float(), self.head)
        if mask is not None and self._mask is not None:
            seat.place(mask, self._mask)
        if log_std is not None:
            seat.place(log_std.detach().expand(seat.n_agents, -1), self._log_std, axis=0)

    def masked_head(self) -> torch.Tensor:
        """Return the head with the least number for each choice that is forbidden; enqueues."""
        if self._mask is None:
            return self.head
        return self.head.masked_fill(self._mask == 0, torch.finfo(self.head.dtype).min)

    def draw(self, greedy: bool = False, **params: Any) -> None:
        """Draw the actions of all agents into their array, with `log_prob`; enqueues.

        Args:
            greedy: Take the likeliest choice, or the mean.
            params: Numbers of the noise, see `CUDASampler.sample`.
        """
        if not self.space.is_continuous:
            given = {"log_prob": self.log_prob} | ({} if self._mask is None else {"mask": self._mask})
            self._sampler.sample(self._data, self.head, self.name, use_argmax=greedy, logits=True, **given)
        elif self.is_noisy:
            self._sampler.sample(self._data, self.head, self.name, use_argmax=greedy, **params)
        else:
            self._sampler.sample_gaussian(
                self._data, self.head, self._log_std, self.name, use_argmax=greedy, log_prob=self.log_prob
            )

    def clip(self) -> None:
        """Clip continuous actions to their space, after those drawn have been stored; enqueues."""
        if self.space.is_continuous:
            torch.clamp(self.actions, self._bounds[0], self._bounds[1], out=self.actions)


def tables(
    wrapper: EnvWrapper, sampler: CUDASampler, taken: Mapping[str, Seat], noisy: frozenset[str] = frozenset()
) -> list[ActionTable]:
    """Return the tables of all seats; ``noisy`` names the policies that explore by noise around a mean.

    Raises:
        ConfigError: Policies that share an array differ in their action spaces or in how they explore.
    """
    by_suffix: dict[str, list[Seat]] = {}
    for seat in taken.values():
        by_suffix.setdefault(seat.suffix, []).append(seat)
    made = []
    for members in by_suffix.values():
        explore_by_noise = {seat.policy in noisy for seat in members}
        if len(explore_by_noise) > 1:
            raise ConfigError(
                "training: policies whose actions share an array must all be DDPG or none "
                f"(got DDPG for {known(noisy)} only); use create_separate_placeholders_for_each_policy"
            )
        made.append(ActionTable(wrapper, sampler, members, noise=explore_by_noise.pop()))
    return made
