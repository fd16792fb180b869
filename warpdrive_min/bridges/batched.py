"""Base of the bridges: batched tensors of an environment's copies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.backends.base import KEPT, Launch
from warpdrive_min.constants import DONE, EPISODE, FINAL_OBSERVATIONS, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import agent_sets, as_actions, require_actions, seed_resets
from warpdrive_min.errors import ConfigError, DataError, known, require
from warpdrive_min.resetter import OWN_KERNEL
from warpdrive_min.rollouts import Steps
from warpdrive_min.spaces import Box, Dict, action_bounds, category_counts, space_of
from warpdrive_min.training.loop.arrays import part_names

WHOLE = ""
"""Key of an observation that is one array, not a Dict."""
Parts = dict[Hashable, torch.Tensor]
"""Observation arrays ``(n_envs, n_agents, ...)`` by key."""


class BatchedEnvironment:
    """Copies of an environment, with batched actions, seeds and resets.

    On a GPU no method synchronises, with three exceptions: `restart` with seeds, the first `restart` with a mask, and
    `step` if `checks` is set.

    Args:
        who: Name of the bridge, for errors.
        env: An `EnvWrapper`, or an environment to wrap.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is an environment.
        synchronises: The bridge synchronises after every step, so value checks add no wait.
        reset_needed: Class of the error for a step that needs a reset first.

    Raises:
        ConfigError: Options for an `EnvWrapper`; no kernels for the backend; a Dict inside a Dict of observations; an
            observation array without a row for each agent in its space; or an action mask of a wrong length.
        DataError: An array is missing: ``observations`` (for a Dict ``observations_<key>``), ``sampled_actions``,
            ``rewards``, or ``action_mask`` if the environment masks actions.
    """

    def __init__(
        self,
        who: str,
        env: Any,
        options: Mapping[str, Any],
        *,
        synchronises: bool = False,
        reset_needed: type[ConfigError] = ConfigError,
    ) -> None:
        is_wrapper = isinstance(env, EnvWrapper)
        rule, do = "must not be given for an EnvWrapper, which has its own", "give them to the EnvWrapper"
        require(not (is_wrapper and options), f"{who}.options", rule, ", ".join(options), do)
        self.who = who
        self.wrapper = env if isinstance(env, EnvWrapper) else EnvWrapper(env, **options)
        what = f"{who}: environment {self.wrapper.name!r}"
        rule, do = "has only Python, no kernels for the backend", "name a source in kernel_sources"
        require(self.wrapper.vectorised, what, rule, self.wrapper.env_backend, do)
        self.n_envs, self.n_agents = self.wrapper.n_envs, self.wrapper.n_agents
        self.agents: list[Hashable] = list(self.wrapper.env.action_space)
        self.action_spaces: Mapping[Hashable, Any] = self.wrapper.env.action_space
        self.data = self.wrapper.cuda_data_manager
        self.device = self.data.device
        self.checks = synchronises or self.device.type == "cpu" or self.wrapper.debug
        """True if tensors on the environments' device are checked, which synchronises."""
        self._reset_needed, self._is_started = reset_needed, False
        self.is_closed = False
        if self.wrapper.reset_on_host:
            self.wrapper.reset()
            self.data.tensor(EPISODE).zero_()  # so that the first `restart` starts the first episode again
        self._sets = agent_sets(self.wrapper.env)
        self.places = {agent: (each, row) for each, members in self._sets.items() for row, agent in enumerate(members)}
        """Suffix of the array names ("" or ``_<role>``) and row, by agent."""
        self._actions = {each: self.data.tensor(Constants.ACTIONS + each) for each in self._sets}
        self.rows = {each: [self.agents.index(agent) for agent in members] for each, members in self._sets.items()}
        """Indices of a set's agents among all agents, by suffix of the array names."""
        self._rows = [torch.tensor(rows, device=self.device, dtype=torch.int64) for rows in self.rows.values()]
        self._spaces = {each: [self.action_spaces[agent] for agent in members] for each, members in self._sets.items()}
        self._bounds = {each: torch.from_numpy(action_bounds(spaces)) for each, spaces in self._spaces.items()}
        self._suffixes: dict[str, dict[Hashable, str]] = {each: {} for each in self._sets}
        self.observation_spaces: Mapping[Hashable, Any] = {
            agent: self._observation_space(agent, space) for agent, space in self.wrapper.env.observation_space.items()
        }
        self._masks = {each: self._mask(each) for each in self._sets if self._has_separate_masks(each)}
        self._rewards = [self.data.tensor(Constants.REWARDS + each) for each in self._sets]
        self._bound: tuple[torch.Tensor, Launch, Steps] | None = None
        self._has_reasons = all(self.data.is_data_on_device(name) for name in (TERMINATED, TRUNCATED))

    def _observation_space(self, agent: Hashable, space: Any) -> Any:
        """Return an agent's observation space and register its arrays.

        Action masks are int8.
        """
        what = f"{self.who}: agent {agent!r} of environment {self.wrapper.name!r}"
        parts, shown = parts_of(space), {}
        role = self.places[agent][0]
        for key, suffix in part_names("", list(getattr(space, "spaces", {}))).items():
            part, name = parts[key], Constants.OBSERVATIONS + role + suffix
            if hasattr(part, "spaces"):
                do = "give every array a key of one flat Dict"
                raise ConfigError.of(what, f"its observations under {key!r} must be one array", part, do)
            if not self.data.is_data_on_device(name):
                do = "push it in get_tensor_dictionary(), or by SharedLayout().push(wrapper, policies) after reset()"
                raise DataError.of(what, f"its observations of the space {part} need the array {name!r}", do=do)
            rows, want = self.data.get_shape(name), (self.n_envs, len(self._sets[role]), *part.shape)
            if rows != want:
                rule = f"its space {part} needs the array {name!r} of shape {want}"
                raise ConfigError.of(what, rule, rows, "pad the agents' observations with zeros to one shape")
            self._suffixes[role][key] = role + suffix
            if key == Constants.ACTION_MASK:
                self._require_mask(what, part.shape, self.action_spaces[agent])
                part = Box(0, 1, part.shape, np.int8)
            elif isinstance(part, Box) and np.dtype(part.dtype) != self.data.get_dtype(name):
                part = space_of(np.zeros(part.shape, self.data.get_dtype(name)))
            shown[key] = part
        return Dict(shown) if hasattr(space, "spaces") else shown[WHOLE]

    def _has_separate_masks(self, agent_set: str) -> bool:
        """True if a set's action masks are an array outside the observations."""
        is_seen = Constants.ACTION_MASK in self._suffixes[agent_set]
        return getattr(self.wrapper.env, "masks_actions", False) and not is_seen

    def _mask(self, agent_set: str) -> torch.Tensor:
        """Return the action masks of a set, after checking their shape."""
        what, name = f"{self.who}: environment {self.wrapper.name!r}", Constants.ACTION_MASK + agent_set
        rule, do = f"masks actions, and needs the array {name!r}", "push it in get_tensor_dictionary()"
        require(self.data.is_data_on_device(name), what, rule, do=do, error=DataError)
        mask, members = self.data.tensor(name), self._sets[agent_set]
        rows, want = tuple(mask.shape[:2]), (self.n_envs, len(members))
        require(rows == want, what, f"the array {name!r} must have {want} rows of copies and agents", rows)
        for agent in members:
            self._require_mask(f"{what}: agent {agent!r}", mask.shape[2:], self.action_spaces[agent])
        return mask

    def _require_mask(self, what: str, shape: Sequence[int], actions: Any) -> None:
        n_choices = 0 if hasattr(actions, "low") else sum(category_counts(actions))
        rule = f"its action mask needs one entry for each of the {n_choices} choices of {actions}"
        require(tuple(shape) == (n_choices,), what, rule, tuple(shape), "concatenate the masks of action types")

    # -------------------------------------------------------------- spaces and requirements

    @property
    def action_space(self) -> Any:
        """Action space that all agents share."""
        return self._shared(self.action_spaces, "action")

    @property
    def observation_space(self) -> Any:
        """Observation space that all agents share."""
        return self._shared(self.observation_spaces, "observation")

    def idle_actions(self) -> dict[str, npt.NDArray[Any]]:
        """Return the actions closest to 0, by set.

        Each is ``(n_envs, agents of the set, n_types)``, int64 or float32.
        """
        idle = {}
        for each, actions in self._actions.items():
            low, high = self._bounds[each].numpy()
            dtype = np.float32 if actions.is_floating_point() else np.int64
            idle[each] = np.repeat(np.clip(0, low, high)[None].astype(dtype), self.n_envs, 0)
        return idle

    def _shared(self, spaces: Mapping[Hashable, Any], what: str) -> Any:
        name, first = next(iter(spaces.items()))
        for agent, space in spaces.items():
            rule, got = f"all agents must have the {what} space {first} of agent {name!r}", f"{space}"
            require(space == first, f"{self.who}: agent {agent!r}", rule, got, "use PettingZooParallelEnv")
        return first

    def require_one(self, *, env: bool = False, agent: bool = False) -> None:
        """Raise `ConfigError` if one copy or one agent is needed and there are more."""
        require(not env or self.n_envs == 1, f"{self.who}.num_envs", "must be 1", self.n_envs)
        do = "use PettingZooParallelEnv or TorchRLEnv, or GymnasiumVectorEnv(..., agents_as_envs=True)"
        rule = f"environment {self.wrapper.name!r} must have 1 agent"
        require(not agent or self.n_agents == 1, self.who, rule, self.n_agents, do)

    def require_no_roles(self) -> None:
        """Raise `ConfigError` if the environment has roles with separate spaces."""
        roles, do = list(getattr(self.wrapper.env, "roles", {})), "use PettingZooParallelEnv or TorchRLEnv"
        rule = f"needs agents with equal spaces, and environment {self.wrapper.name!r} has roles with different spaces"
        require(not roles, self.who, rule, ", ".join(roles), do)

    def require_one_space(self) -> None:
        """Raise `ConfigError` if the spaces of a set's agents differ."""
        for members in self._sets.values():
            for spaces, what in ((self.observation_spaces, "observation"), (self.action_spaces, "action")):
                self._shared({agent: spaces[agent] for agent in members}, what)

    def require_no_auto_reset(self) -> None:
        """Raise `ConfigError` if the wrapper has ``auto_reset``."""
        require(not self.wrapper.auto_reset, f"{self.who}.auto_reset", "must be False", self.wrapper.auto_reset)

    def require_final_observations(self) -> None:
        """Raise `ConfigError` unless auto-reset records final observations and flags."""
        names = [FINAL_OBSERVATIONS + each for suffixes in self._suffixes.values() for each in suffixes.values()]
        keeps = self._has_reasons and all(map(self.data.is_data_on_device, names))
        has_kernel = self.wrapper.cuda_function_manager.has_function(OWN_KERNEL)
        needed = f"a kernel 'reset' and the arrays {known(names)}, 'terminated' and 'truncated'"
        rule = f"with auto_reset, environment {self.wrapper.name!r} needs {needed}"
        require(keeps and has_kernel, self.who, rule, do="use auto_reset=False")

    def agent_names(self) -> list[str]:
        """Return the name of each agent: role, or "agent", and id.

        Roles come from ``roles``, ``taggers`` and ``runners`` of the environment.
        """
        roles = {agent: role for role in ("tagger", "runner") for agent in getattr(self.wrapper.env, f"{role}s", ())}
        named = getattr(self.wrapper.env, "roles", {})
        roles |= {agent: role for role, members in named.items() for agent in members}
        return [f"{roles.get(agent, 'agent')}_{agent}" for agent in self.agents]

    # -------------------------------------------------------------- restart and step

    def restart(self, seed: int | Sequence[int | None] | None = None, mask: torch.Tensor | None = None) -> None:
        """Start new episodes; synchronises if a seed is given.

        Args:
            seed: Seed of all starts; its first episodes start. A list has one seed per copy: the first start of a copy
                is the one that its seed gives, and later starts use all seeds combined. None: continue the sequence.
            mask: ``(n_envs,)`` bool on the device: copies to restart; None: all.

        Raises:
            ConfigError: A seed is out of range, or the mask of the first restart excludes copies.
        """
        self._require_open("reset")
        if mask is not None and not self._is_started:
            rule = "the first reset must start all copies"
            require(bool(mask.all()), f"{self.who}.reset", rule, do="call it once without a mask")
        if isinstance(seed, Sequence):
            for each, chosen in self._by_seed(seed):
                self._restart(each, chosen if mask is None else chosen & mask)
            seed_resets(self.data, joint_seed(seed))
        else:
            self._restart(seed, mask)
        self._is_started = True

    def _require_open(self, method: str) -> None:
        require(not self.is_closed, f"{self.who}.{method}", "the environment is closed", do="create a new one")

    def _by_seed(self, seeds: Sequence[int | None]) -> list[tuple[int | None, torch.Tensor]]:
        """Group copies by seed: pairs of a seed and a mask ``(n_envs,)`` bool.

        None comes first: its copies keep the current seed.
        """
        rows: dict[int | None, list[int]] = {None: []}
        for row, seed in enumerate(seeds):
            rows.setdefault(seed, []).append(row)
        masks = {
            seed: torch.zeros(self.n_envs, dtype=torch.bool, device="cpu") for seed, copies in rows.items() if copies
        }
        for seed, mask in masks.items():
            mask[rows[seed]] = True
        return [(seed, mask.to(self.device)) for seed, mask in masks.items()]

    def _restart(self, seed: int | None, mask: torch.Tensor | None) -> None:
        if seed is not None:
            seed_resets(self.data, seed)
            episode = self.data.tensor(EPISODE)
            episode.masked_fill_(torch.ones_like(episode, dtype=torch.bool) if mask is None else mask, 0)
        if mask is not None:
            self.data.tensor(DONE).copy_(mask)
        self.wrapper.env_resetter.reset_when_done(self.data, "force_reset" if mask is None else "if_done")

    def step(
        self,
        actions: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        name_of: Callable[[str, Sequence[int]], str] | None = None,
    ) -> None:
        """Write the actions of each set and take one step.

        Args:
            actions: Arrays or tensors by set; copied to the device of the environments if on another one.
            shapes: Required shapes: ``(n_envs, agents of the set, n_types)``, with some axes merged or left out.
            name_of: Function from set and index to an action's name, for errors; None: "actions" with the index.

        Raises:
            ConfigError: `restart` was not called; of the class ``reset_needed``.
            ActionError: A wrong shape or kind of numbers, or a value outside its space; see `checks`.
        """
        self._require_open("step")
        parts = [self._checked(each, actions[each], shapes[each], name_of) for each in self._sets]
        rule, do = "no episode is running", "call reset() first"
        require(self._is_started, f"{self.who}.step", rule, do=do, error=self._reset_needed)
        for array, part in zip(self._actions.values(), parts, strict=True):
            array.copy_(part.reshape(array.shape))
        self.wrapper.step()

    def rollout_obstacle(self) -> str:
        """Return the reason why `rollout` is unavailable; "" if it is. Compiles."""
        if len(self._sets) > 1:
            return "roles have separate arrays"
        if self._masks or not all(map(self.data.is_data_on_device, (Constants.ACTIONS, *KEPT))):
            return "agents have more observations than the array 'observations'"
        try:
            return self.wrapper.restarting_rollouts().mode_for(keeps_all=True, is_random=False).reason
        except ConfigError as error:
            return str(error)

    def rollout(self, actions: Sequence[Any], shape: tuple[int, ...]) -> Steps:
        """Take several steps in one launch, and restart copies that end.

        Args:
            actions: Actions of each step, as for `step`.
            shape: Required shape of each, as for `step`.

        Returns:
            Results of the steps, in tensors that the next rollout of the same length overwrites.

        Raises:
            ActionError: As for `step`.
        """
        ((only, array),) = self._actions.items()
        given = [self._checked(only, each, shape) for each in actions]
        if self._bound is None or len(self._bound[0]) != len(given):
            rows = torch.empty((len(given), *array.shape), dtype=array.dtype, device=self.device)
            self._bound = rows, *self.wrapper.restarting_rollouts().bound(len(given), rows, "all", None)
        rows, launch, steps = self._bound
        rows.copy_(torch.stack(given).reshape(rows.shape))
        launch()
        return steps

    def _checked(
        self,
        agent_set: str,
        actions: Any,
        shape: tuple[int, ...],
        name_of: Callable[[str, Sequence[int]], str] | None = None,
    ) -> torch.Tensor:
        """Return the actions of a set as a tensor of the given shape."""
        what, dtype = f"{self.who}.step", self._actions[agent_set].dtype
        given = as_actions(f"{what}: actions", actions, shape, dtype)
        if self.checks or given.device.type == "cpu":

            def name(index: Sequence[int]) -> str:
                return f"{what}: " + (name_of(agent_set, index) if name_of else f"actions{index or ''}")

            require_actions(given, self._bounds[agent_set], self._spaces[agent_set], name)
        return given

    # -------------------------------------------------------------- results of the last step

    def observations(self) -> Parts:
        """Return copies of the observations, ``(n_envs, n_agents, ...)``; no roles."""
        return self._copies(Constants.OBSERVATIONS, "")

    def observations_by_set(self) -> dict[str, Parts]:
        """Return copies of the observations by set; see `places`.

        Each is ``(n_envs, agents of the set, ...)``.
        """
        return {each: self._copies(Constants.OBSERVATIONS, each) for each in self._sets}

    def final_observations(self) -> Parts:
        """Return copies of the final observations; stale where no episode ended."""
        return self._copies(FINAL_OBSERVATIONS, "")

    def _copies(self, name: str, agent_set: str) -> Parts:
        arrays = {key: self.data.tensor(name + suffix) for key, suffix in self._suffixes[agent_set].items()}
        return {key: _flags(array) if key == Constants.ACTION_MASK else array.clone() for key, array in arrays.items()}

    def action_masks(self) -> dict[str, torch.Tensor]:
        """Return copies of action masks that are outside the observations, by set.

        Each is ``(n_envs, agents of the set, n_choices)`` int8; choices of all types are concatenated.
        """
        return {each: _flags(mask) for each, mask in self._masks.items()}

    def rewards(self) -> torch.Tensor:
        """Return a copy of the rewards, ``(n_envs, n_agents)``."""
        if len(self._sets) == 1:
            return self._rewards[0].clone()
        rewards = self._rewards[0].new_empty(self.n_envs, self.n_agents)
        for part, rows in zip(self._rewards, self._rows, strict=True):
            rewards.index_copy_(1, rows, part)
        return rewards

    def rewards_by_set(self) -> dict[str, torch.Tensor]:
        """Return copies of the rewards by set, ``(n_envs, agents of the set)``."""
        return {each: rewards.clone() for each, rewards in zip(self._sets, self._rewards, strict=True)}

    def ended(self) -> torch.Tensor:
        """Return a mask of episodes that the step ended, ``(n_envs,)`` bool."""
        return self.data.tensor(DONE) != 0

    def terminated_and_truncated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masks of episodes that terminated or truncated, ``(n_envs,)`` bool.

        Without arrays of these names, an episode counts as truncated when its time is up.
        """
        if self._has_reasons:
            return self.data.tensor(TERMINATED) != 0, self.data.tensor(TRUNCATED) != 0
        out_of_time = self.data.tensor(TIMESTEP) >= self.wrapper.episode_length
        return self.ended() & ~out_of_time, self.ended() & out_of_time


def joint_seed(seeds: Sequence[int | None]) -> int:
    """Combine several seeds into one."""
    digest = hashlib.sha256(repr(list(seeds)).encode()).digest()
    return int.from_bytes(digest[:8])


def _flags(mask: torch.Tensor) -> torch.Tensor:
    return (mask != 0).view(torch.int8)


def parts_of(space: Any) -> Mapping[Hashable, Any]:
    """Return the spaces of an observation's parts by key."""
    return getattr(space, "spaces", None) or {WHOLE: space}


def map_parts(change: Callable[[Any], Any], parts: Mapping[Hashable, Any]) -> Any:
    """Apply a function to every part: a dict by key, or one result if no Dict."""
    changed = {key: change(part) for key, part in parts.items()}
    return changed[WHOLE] if changed.keys() == {WHOLE} else changed


class Bridge:
    """Base of the bridge classes; subclasses set ``batched``."""

    batched: BatchedEnvironment

    @property
    def wrapper(self) -> EnvWrapper:
        """Wrapper that runs the copies."""
        return self.batched.wrapper

    def close(self, **options: Any) -> None:
        """Close; later steps and resets fail. ``options`` are the library's own."""
        if "batched" in vars(self):  # Gymnasium below 1.3 also closes what its constructor refused
            self.batched.is_closed = True
        super().close(**options)  # type: ignore[misc]
