"""Copies of an environment as an environment of TorchRL."""

from __future__ import annotations

from typing import Any

import torch

from warpdrive_min.bridges.batched import BatchedEnvironment, Bridge, each_part
from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.constants import Constants
from warpdrive_min.errors import ConfigError

with needed_by(__name__, "torchrl"):
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import (  # type: ignore[import-untyped]
        Bounded,
        Categorical,
        Composite,
        MultiCategorical,
        Unbounded,
    )
    from torchrl.envs import EnvBase  # type: ignore[import-untyped]

GROUP = "agents"
"""Group that holds the entries of several agents."""


class TorchRLEnv(Bridge, EnvBase):  # type: ignore[misc]
    """All copies of an environment as one of TorchRL with ``batch_size`` ``(n_envs,)``, on their device.

    | entry | shape |
    |---|---|
    | ``"observation"`` | ``(n_envs, n_features)`` |
    | ``"action"`` | ``(n_envs,)``, or ``(n_envs, n_types)`` |
    | ``"reward"`` | ``(n_envs, 1)`` |
    | ``"done"``, ``"terminated"``, ``"truncated"`` | ``(n_envs, 1)`` |

    With several agents the first three lie in the group ``"agents"``, or of an environment with roles in one for each
    role, and have the axis of agents after that of environments: ``("agents", "observation")`` is
    ``(n_envs, n_agents, n_features)``. Agents end together. Discrete
    actions are categories, int64, not one-hot. ``group_map`` names the agents.

    Where observations are a Dict, ``"observation"`` has an entry for each key, as ``("observation", "map")``. An
    action mask lies beside the action: ``"action_mask"`` ``(n_envs, n_choices)`` bool, choices of all types in a row.

    TorchRL restarts what ended, through the entry ``_reset``. Here stepping and restarting enqueue and do not
    synchronise, but the first restart after `set_seed` does, and TorchRL's own loops, to see whether anything ended.

    Args:
        env: An environment with arrays; or an `EnvWrapper` of one.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is none.

    Raises:
        ConfigError: ``auto_reset``, or agents of a group whose spaces differ.
    """

    def __init__(self, env: Any, **options: Any) -> None:
        batched = BatchedEnvironment("TorchRLEnv", env, options)
        batched.require_no_auto_reset()
        batched.require_one_space()
        batch = (batched.n_envs,)
        super().__init__(device=batched.device, batch_size=torch.Size(batch))
        self.batched = batched
        self._sets = {of_set.removeprefix("_") or GROUP: of_set for of_set in batched.rows}
        """End of the names of each group's arrays."""
        names, device = batched.agent_names(), batched.device
        self.group_map = {group: [names[row] for row in batched.rows[of_set]] for group, of_set in self._sets.items()}
        self._is_flat = batched.n_agents == 1
        self._shapes = {
            group: torch.Size(batch if self._is_flat else (*batch, len(members)))
            for group, members in self.group_map.items()
        }
        self._action_keys = {group: "action" if self._is_flat else (group, "action") for group in self._sets}
        self._next_seed: int | None = None
        seen, actions, rewards = {}, {}, {}
        for group, entries in self._observed().items():
            shape, first = self._shapes[group], batched.agents[batched.rows[self._sets[group]][0]]
            seen[group] = {entry: spec_of_seen(value, shape) for entry, value in entries.items()}
            actions[group] = {"action": spec_of(batched.action_spaces[first], shape, device)}
            rewards[group] = {"reward": Unbounded((*shape, 1), device, torch.float32)}
        self.observation_spec, self.action_spec, self.reward_spec = map(self._grouped, (seen, actions, rewards))
        flag = Categorical(2, torch.Size((*batch, 1)), device, torch.bool)
        flags = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(flags, shape=batch, device=device)

    def _grouped(self, specs: dict[str, dict[str, Any]]) -> Composite:
        if self._is_flat:
            return Composite(specs[GROUP], shape=self.batch_size, device=self.device)
        groups = {
            group: Composite(of_group, shape=self._shapes[group], device=self.device)
            for group, of_group in specs.items()
        }
        return Composite(groups, shape=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        """Let the next restart give the first starts of a seed; None changes nothing."""
        self._next_seed = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        """Restart the copies that the entry ``_reset`` names, or all."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.batched.restart(self._next_seed, None if mask is None else mask.reshape(self.batch_size))
        self._next_seed = None
        return self._data(self._observed())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = {self._sets[group]: tensordict.get(key) for group, key in self._action_keys.items()}
        shapes = {
            self._sets[group]: tuple(self.full_action_spec[key].shape) for group, key in self._action_keys.items()
        }
        self.batched.step_sets(actions, shapes)
        entries, rewards = self._observed(), self.batched.rewards_by_set()
        for group, shape in self._shapes.items():
            entries[group]["reward"] = rewards[self._sets[group]].reshape(*shape, 1)
        data = self._data(entries)
        terminated, truncated = self.batched.terminated_and_truncated()
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        return data.update({name: flags[:, None] for name, flags in ends.items()})

    def _observed(self) -> dict[str, dict[str, Any]]:
        """Return the entries of what each group sees; TorchRL looks for an action mask beside the action."""
        seen, masks, observed = self.batched.observations_by_set(), self.batched.action_masks(), {}
        for group, shape in self._shapes.items():
            parts = {key: part.reshape(*shape, *part.shape[2:]) for key, part in seen[self._sets[group]].items()}
            mask = parts.pop(Constants.ACTION_MASK, masks.get(self._sets[group]))
            observed[group] = {"observation": each_part(lambda part: part, parts)}
            if mask is not None:
                observed[group][Constants.ACTION_MASK] = mask.view(torch.bool).reshape(*shape, -1)
        return observed

    def _data(self, entries: dict[str, dict[str, Any]]) -> TensorDict:
        if self._is_flat:
            return TensorDict(entries[GROUP], self.batch_size, device=self.device)
        groups = {
            group: TensorDict(of_group, self._shapes[group], device=self.device) for group, of_group in entries.items()
        }
        return TensorDict(groups, self.batch_size, device=self.device)


def spec_of_seen(entry: torch.Tensor | dict[str, torch.Tensor], rows: torch.Size) -> Any:
    """Return TorchRL's spec of an entry of what agents see; bools are categories."""
    if isinstance(entry, dict):
        return Composite({key: spec_of_seen(part, rows) for key, part in entry.items()}, shape=rows)
    if entry.dtype == torch.bool:
        return Categorical(2, entry.shape, entry.device, torch.bool)
    return Unbounded(entry.shape, entry.device, entry.dtype)


def spec_of(space: Any, rows: torch.Size, device: torch.device) -> Any:
    """Return TorchRL's spec of an action space, for rows of actions.

    Raises:
        ConfigError: It is neither Discrete, MultiDiscrete nor Box.
    """
    if hasattr(space, "nvec"):
        return MultiCategorical([int(n) for n in space.nvec], torch.Size((*rows, *space.shape)), device)
    if hasattr(space, "n"):
        return Categorical(int(space.n), rows, device)
    if hasattr(space, "low"):
        shape = torch.Size((*rows, *space.shape))
        low, high = (torch.as_tensor(bound, dtype=torch.float32).expand(shape) for bound in (space.low, space.high))
        return Bounded(low, high, shape, device, torch.float32)
    raise ConfigError(f"TorchRLEnv: actions must be Discrete, MultiDiscrete or Box (got {type(space).__name__})")
