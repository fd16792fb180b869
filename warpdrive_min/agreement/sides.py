"""Two sides of the consistency checker: kernels, or Python objects."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdrive_min.agreement.compare import Array
from warpdrive_min.agreement.stepping import write
from warpdrive_min.constants import DONE, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import ids_in
from warpdrive_min.errors import require

ActionRows = Sequence[Mapping[Hashable, Any]]
"""Actions by agent, one row per environment."""


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that share arrays."""

    suffix: str
    """Suffix of the arrays' names."""
    agents: Sequence[Hashable]
    observation_space: Any
    is_last: bool
    """True if the agents' axis of an observation array is last, not second."""

    @property
    def rewards(self) -> str:
        """Name of the array of rewards."""
        return Constants.REWARDS + self.suffix

    @property
    def observation_keys(self) -> dict[str, Hashable | None]:
        """Names of the observation arrays, with their key in a dict observation."""
        name = Constants.OBSERVATIONS + self.suffix
        spaces = getattr(self.observation_space, "spaces", None)
        return {name: None} if spaces is None else {f"{name}_{key}": key for key in spaces}

    @property
    def agents_axes(self) -> dict[str, int]:
        """Names of the compared arrays, with their agents' axis."""
        axis = -1 if self.is_last and len(self.agents) > 1 else 1
        return {self.rewards: 1, **dict.fromkeys(self.observation_keys, axis)}

    def observations(self, rows: ActionRows) -> dict[str, Array]:
        """Return the observation arrays from observations by agent, per environment."""
        arrays = {}
        for name, key in self.observation_keys.items():
            array = self.stack(rows, key)
            arrays[name] = np.swapaxes(array, 1, self.agents_axes[name])
        return arrays

    def stack(self, rows: ActionRows, key: Hashable | None = None) -> Array:
        """Stack values by agent, one row per environment: ``(n_envs, n_agents, ...)``.

        Args:
            rows: Values by agent.
            key: Key to take from each value, if values are dicts.

        Raises:
            ConfigError: A row lacks a value of an agent.
        """
        stacked = []
        for row in rows:
            ids = ids_in(row, self.agents)
            missing = [agent for agent in ids if agent not in row]
            rule, do = f"the Python environment gave nothing for agents {missing}", "give every agent one id everywhere"
            require(not missing, "consistency", rule, list(row), do)
            stacked.append(np.stack([np.asarray(row[agent] if key is None else row[agent][key]) for agent in ids]))
        return np.stack(stacked)


class KernelSide:
    """Side that runs kernels through a wrapper."""

    def __init__(self, wrapper: EnvWrapper, groups: Sequence[Group]) -> None:
        self.wrapper, self._groups = wrapper, groups

    def write(self, actions: ActionRows) -> None:
        """Write actions by agent, one row per environment."""
        arrays = {Constants.ACTIONS + group.suffix: group.stack(actions) for group in self._groups}
        write(self.wrapper.cuda_data_manager, arrays)

    def step(self, actions: ActionRows) -> None:
        """Take a step."""
        self.write(actions)
        self.wrapper.step_all_envs()

    def reset(self, done: Array) -> None:
        """Restart the environments that are done."""
        self.wrapper.reset_only_done_envs()

    def array(self, name: str) -> Array:
        """Return the current values of an array; synchronises."""
        array: Array = self.wrapper.cuda_data_manager.tensor(name).cpu().numpy()
        return array > 0 if name == DONE else array  # a kernel may set any non-zero flag


class PythonSide:
    """Side that steps one Python object per environment."""

    def __init__(self, objects: Sequence[Any], groups: Sequence[Group]) -> None:
        self._objects, self._groups = objects, groups
        self._rows = [each.reset() for each in objects]
        """Last observations of each object, by agent."""
        self._outcome: dict[str, Array] = {}

    def step(self, actions: ActionRows) -> None:
        """Take a step."""
        results = []
        for each, seen, row in zip(self._objects, self._rows, actions, strict=True):
            results.append(each.step(dict(zip(ids_in(seen, row), row.values(), strict=True))))
        self._rows = [result[0] for result in results]
        self._outcome = {group.rewards: group.stack([result[1] for result in results]) for group in self._groups}
        self._outcome[DONE] = np.array([bool(result[2]["__all__"]) for result in results])

    def reset(self, done: Array) -> None:
        """Restart the environments that are done."""
        for env in np.flatnonzero(done).tolist():
            self._rows[env] = self._objects[env].reset()

    def array(self, name: str) -> Array:
        """Return observations, rewards or flags by the kernels' array name."""
        observed = {name: array for group in self._groups for name, array in group.observations(self._rows).items()}
        return (self._outcome | observed)[name]
