"""Parts that the bridges share: the copies of an environment as batched tensors, with actions, seeds and restarts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from warpdrive_min.constants import DONE, EPISODE, FINAL_OBSERVATIONS, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import ActionError, require
from warpdrive_min.resetter import OWN_KERNEL
from warpdrive_min.spaces import Dict


class BatchedEnvironment:
    """The copies of an environment; no method but `restart` with a seed synchronises.

    Args:
        who: The bridge, for errors.
        env: A wrapper; or an environment, with
        options: keyword arguments of `EnvWrapper`.

    Raises:
        ConfigError: Options besides a wrapper, no kernels for the backend, or observations that are several arrays.
        DataError: The environment has no ``observations``, ``sampled_actions`` or ``rewards``.
    """

    def __init__(self, who: str, env: Any, options: Mapping[str, Any]) -> None:
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
        self.observation_spaces: Mapping[Hashable, Any] = self.wrapper.env.observation_space
        is_dict = any(isinstance(space, Dict) for space in self.observation_spaces.values())
        require(not is_dict, what, "must have one array of observations, not several in a dict")
        self.data = self.wrapper.cuda_data_manager
        self.device = self.data.device
        if self.wrapper.reset_on_host:
            self.wrapper.reset()
            self.data.tensor(EPISODE).zero_()  # so that the first `restart` starts the first episode again
        self._actions = self.data.tensor(Constants.ACTIONS)
        self._observations = self.data.tensor(Constants.OBSERVATIONS)
        self._rewards = self.data.tensor(Constants.REWARDS)
        self._has_reasons = all(self.data.is_data_on_device(name) for name in (TERMINATED, TRUNCATED))

    # -------------------------------------------------------------- what a bridge may ask for

    @property
    def action_space(self) -> Any:
        """Action space that all agents share."""
        return self._shared(self.action_spaces, "action")

    @property
    def observation_space(self) -> Any:
        """Observation space that all agents share."""
        return self._shared(self.observation_spaces, "observation")

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of the array of actions, ``(n_envs, n_agents, n_types)``."""
        return tuple(self._actions.shape)

    @property
    def action_dtype(self) -> str:
        """NumPy's name of its dtype: int32, or float32 for continuous actions."""
        return self.data.get_dtype(Constants.ACTIONS)

    def _shared(self, spaces: Mapping[Hashable, Any], what: str) -> Any:
        first = spaces[self.agents[0]]
        for agent, space in spaces.items():
            rule, got = f"all agents must have the {what} space {first} of agent {self.agents[0]!r}", f"{space}"
            require(space == first, f"{self.who}: agent {agent!r}", rule, got, "use PettingZooParallelEnv")
        return first

    def require_one(self, *, env: bool = False, agent: bool = False) -> None:
        """Raise `ConfigError` if there are several copies or several agents where one is needed."""
        require(not env or self.n_envs == 1, f"{self.who}.num_envs", "must be 1", self.n_envs)
        do = "use PettingZooParallelEnv or TorchRLEnv, or GymnasiumVectorEnv(..., agents_as_envs=True)"
        rule = f"environment {self.wrapper.name!r} must have 1 agent"
        require(not agent or self.n_agents == 1, self.who, rule, self.n_agents, do)

    def require_no_auto_reset(self) -> None:
        """Raise `ConfigError` if environments restart themselves."""
        require(not self.wrapper.auto_reset, f"{self.who}.auto_reset", "must be False", self.wrapper.auto_reset)

    def require_final_observations(self) -> None:
        """Raise `ConfigError` if a step that restarts an environment does not keep how its episode ended."""
        keeps = self._has_reasons and self.data.is_data_on_device(FINAL_OBSERVATIONS)
        has_kernel = self.wrapper.cuda_function_manager.has_function(OWN_KERNEL)
        needed = f"a kernel 'reset' and the arrays {FINAL_OBSERVATIONS!r}, 'terminated' and 'truncated'"
        rule = f"with auto_reset, environment {self.wrapper.name!r} needs {needed}"
        require(keeps and has_kernel, self.who, rule, do="use auto_reset=False")

    def agent_names(self) -> list[str]:
        """Return a name for each agent: its role if the environment tells taggers from runners, and its id."""
        roles = {agent: role for role in ("tagger", "runner") for agent in getattr(self.wrapper.env, f"{role}s", ())}
        return [f"{roles.get(agent, 'agent')}_{agent}" for agent in self.agents]

    # -------------------------------------------------------------- restart and step

    def restart(self, seed: int | None = None, mask: torch.Tensor | None = None) -> None:
        """Start new episodes, with a seed the first ones of that seed; a seed synchronises.

        Args:
            seed: Of the starts of all copies; None: go on drawing.
            mask: ``(n_envs,)`` bool, on the device: which copies restart; None: all.
        """
        if seed is not None:
            seed_resets(self.data, seed)
            episode = self.data.tensor(EPISODE)
            episode.masked_fill_(torch.ones_like(episode, dtype=torch.bool) if mask is None else mask, 0)
        if mask is not None:
            self.data.tensor(DONE).copy_(mask)
        self.wrapper.env_resetter.reset_when_done(self.data, "force_reset" if mask is None else "if_done")

    def step(self, actions: Any, shape: tuple[int, ...]) -> None:
        """Write the actions and take one step.

        Args:
            actions: An array or tensor; one that lies on another device than the environments is copied there first.
            shape: What it must have: ``(n_envs, n_agents, n_types)``, with some axes merged or left out.

        Raises:
            ActionError: Another shape, or real numbers for discrete actions.
        """
        given = torch.as_tensor(actions, device=self.device)
        if tuple(given.shape) != shape:
            raise ActionError(f"{self.who}.step: actions must have shape {shape} (got {tuple(given.shape)})")
        if given.is_floating_point() and not self._actions.is_floating_point():
            raise ActionError(f"{self.who}.step: actions must be integers (got {given.dtype})")
        self._actions.copy_(given.reshape(self._actions.shape))
        self.wrapper.step()

    # -------------------------------------------------------------- what the last step gave

    def observations(self) -> torch.Tensor:
        """Return a copy of what the agents see, ``(n_envs, n_agents, n_features)``."""
        return self._observations.clone()

    def final_observations(self) -> torch.Tensor:
        """Return a copy of the last observations of ended episodes, shaped alike; stale where none ended."""
        return self.data.tensor(FINAL_OBSERVATIONS).clone()

    def rewards(self) -> torch.Tensor:
        """Return a copy of the rewards, ``(n_envs, n_agents)``."""
        return self._rewards.clone()

    def ended(self) -> torch.Tensor:
        """Tell which episodes the step ended, ``(n_envs,)`` bool."""
        return self.data.tensor(DONE) != 0

    def terminated_and_truncated(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tell which episodes the step ended by the dynamics, and which by the time limit; both ``(n_envs,)`` bool.

        An environment without arrays of these names counts as truncated when its time is up.
        """
        if self._has_reasons:
            return self.data.tensor(TERMINATED) != 0, self.data.tensor(TRUNCATED) != 0
        out_of_time = self.data.tensor(TIMESTEP) >= self.wrapper.episode_length
        return self.ended() & ~out_of_time, self.ended() & out_of_time


class Bridge:
    """Base of what other libraries step; it sets ``batched``."""

    batched: BatchedEnvironment

    @property
    def wrapper(self) -> EnvWrapper:
        """Wrapper that runs the copies."""
        return self.batched.wrapper
