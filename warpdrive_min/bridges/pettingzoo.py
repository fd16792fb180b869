"""PettingZoo bridge: one multi-agent copy as a parallel environment."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.bridges.batched import BatchedEnvironment, Bridge, map_parts, parts_of
from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.constants import Constants
from warpdrive_min.conversion import as_tensor
from warpdrive_min.errors import ActionError, require, require_type

with needed_by(__name__, "pettingzoo"):
    import pettingzoo  # type: ignore[import-untyped]

    from warpdrive_min.bridges.spaces import mask_for_sample, to_gymnasium

IN_GAME = "still_in_the_game"
"""Array ``(n_envs, n_agents)`` that marks agents still in the game."""

Array = npt.NDArray[Any]


class PettingZooParallelEnv(Bridge, pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """One copy of an environment with named agents; every call synchronises.

    Values are NumPy. If the environment has roles, or mappings ``taggers`` and ``runners``, agents are named by role
    and id, ``"tagger_3"`` or ``"runner_0"``; else ``"agent_0"``.

    With the array ``still_in_the_game``, an agent that leaves the game terminates in that step. It receives this step's
    observation and reward and is removed from ``agents``. Without the array, all agents stay until the episode
    terminates or truncates.

    A Dict of observations stays a Dict, with each agent's own keys. An action mask among them is int8, 0 or 1. Any
    other mask is ``infos[agent]["action_mask"]``, in the form that ``action_space(agent).sample`` takes: for several
    types of actions, a tuple of arrays.

    Args:
        env: An environment with arrays; or an `EnvWrapper` with one copy of one.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is not one.

    Raises:
        ConfigError: The environment has several copies, or ``auto_reset``.
    """

    def __init__(self, env: Any, **options: Any) -> None:
        self.batched = batched = BatchedEnvironment("PettingZooParallelEnv", env, options, synchronises=True)
        batched.require_one(env=True)
        batched.require_no_auto_reset()
        names = batched.agent_names()
        self._rows = {name: row for row, name in enumerate(names)}
        self.metadata = {"name": batched.wrapper.name, "render_modes": []}
        self.render_mode = None
        self.possible_agents = names
        self.agents: list[str] = []
        self.observation_spaces = self._by_name(batched.observation_spaces)
        self.action_spaces = self._by_name(batched.action_spaces)

    def _by_name(self, spaces: Any) -> dict[str, Any]:
        return {name: to_gymnasium(spaces[self.batched.agents[row]]) for name, row in self._rows.items()}

    def observation_space(self, agent: str) -> Any:
        """Return the observation space of an agent."""
        return self._of_agent(self.observation_spaces, agent)

    def action_space(self, agent: str) -> Any:
        """Return the action space of an agent."""
        return self._of_agent(self.action_spaces, agent)

    def _of_agent(self, spaces: Mapping[str, Any], agent: str) -> Any:
        is_known, do = agent in self.possible_agents, f"known are {', '.join(self.possible_agents)}"
        require(is_known, "PettingZooParallelEnv", "unknown agent", agent, do)
        return spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start a new episode, a seed's first one if given; return observations, infos."""
        self.batched.restart(seed)
        self.agents = list(self.possible_agents)
        return self._observations(), self._infos()

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take one step.

        Args:
            actions: One for each of ``agents``.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that acted.

        Raises:
            ConfigError: No episode is under way.
            ActionError: An agent has no action, an action has no agent, or a value is outside its space.
        """
        require(self.agents, "PettingZooParallelEnv.step", "no episode is running", do="call reset()")
        arrays = self._action_arrays(actions)
        self.batched.step(arrays, {each: array.shape for each, array in arrays.items()}, self._name_of)
        terminated, truncated = (bool(ends.item()) for ends in self.batched.terminated_and_truncated())
        has_left = self._has_left()
        acted, reward = self.agents, self.batched.rewards()[0].tolist()
        terminations = {agent: terminated or has_left[self._rows[agent]] for agent in acted}
        truncations = dict.fromkeys(acted, truncated)
        observations, infos = self._observations(), self._infos()
        rewards = {agent: reward[self._rows[agent]] for agent in acted}
        self.agents = [agent for agent in acted if not (terminations[agent] or truncated)]
        return observations, rewards, terminations, truncations, infos

    def _name_of(self, agent_set: str, index: Sequence[int]) -> str:
        """Return the name of an action for errors."""
        agent = self.possible_agents[self.batched.rows[agent_set][index[1]]]
        return f"the action of {agent}" + (f"[{index[2]}]" if self.action_spaces[agent].shape else "")

    def _action_arrays(self, actions: dict[str, Any]) -> dict[str, Array]:
        """Return the actions of each set; agents out of the game do nothing."""
        do = "give a dict of each agent's action"
        if require_type("PettingZooParallelEnv.step: actions", actions, Mapping, do, ActionError).keys() != set(
            self.agents
        ):
            raise ActionError(
                f"PettingZooParallelEnv.step: needs one action for each of {', '.join(self.agents)} "
                f"(got {', '.join(map(str, actions)) or 'none'})"
            )
        arrays = self.batched.idle_actions()
        for agent, action in actions.items():
            space, (agent_set, row) = self.action_spaces[agent], self._place(agent)
            try:
                given = as_tensor(action).cpu().numpy()
            except (TypeError, ValueError, RuntimeError):  # text, or lists of different lengths
                given = np.asarray(None)
            array, is_bool = arrays[agent_set], given.dtype == np.bool_
            if given.shape != space.shape or is_bool or not np.can_cast(given.dtype, array.dtype, "same_kind"):
                raise ActionError(
                    f"PettingZooParallelEnv.step: the action of {agent} must be of {space} "
                    f"(got {given.dtype} of shape {given.shape})"
                )
            array[0, row] = given.ravel()
        return arrays

    def _has_left(self) -> list[bool]:
        if not self.batched.data.is_data_on_device(IN_GAME):
            return [False] * self.batched.n_agents
        has_left: list[bool] = (self.batched.data.tensor(IN_GAME)[0] == 0).tolist()
        return has_left

    def _place(self, agent: str) -> tuple[str, int]:
        return self.batched.places[self.batched.agents[self._rows[agent]]]

    def _infos(self) -> dict[str, dict[str, Any]]:
        """Return the action masks that are not in the observations, by agent."""
        masks = {agent_set: mask[0].cpu().numpy() for agent_set, mask in self.batched.action_masks().items()}
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        for agent, info in infos.items():
            agent_set, row = self._place(agent)
            if agent_set in masks:
                info[Constants.ACTION_MASK] = mask_for_sample(masks[agent_set][row], self.action_spaces[agent])
        return infos

    def _observations(self) -> dict[str, Any]:
        sets = {
            name: {key: part[0].cpu().numpy() for key, part in parts.items()}
            for name, parts in self.batched.observations_by_set().items()
        }
        seen = {}
        for agent in self.agents:
            agent_set, row = self._place(agent)
            keys = parts_of(self.observation_spaces[agent])
            seen[agent] = map_parts(operator.itemgetter((row, ...)), {key: sets[agent_set][key] for key in keys})
        return seen
