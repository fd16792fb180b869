"""TorchRL bridge: copies of an environment as one TorchRL environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from warpdrive_min.bridges.batched import BatchedEnvironment, Bridge, map_parts
from warpdrive_min.bridges.packages import needed_by
from warpdrive_min.constants import Constants
from warpdrive_min.errors import ConfigError
from warpdrive_min.rng import seed_words

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
    from torchrl.envs.utils import RandomPolicy  # type: ignore[import-untyped]

GROUP = "agents"
"""Name of the group with the entries of several agents."""
NO_MORE_ENTRIES: Final[Mapping[str, tuple[bool | None, ...]]] = {
    "break_when_any_done": (False,),
    "break_when_all_done": (None, False),
    "auto_reset": (True,),
    "auto_cast_to_device": (False,),
    "return_contiguous": (None, False, True),
    "set_truncated": (False,),
    "trust_policy": (False, True),
}
"""Rollout options that need no work between steps; all others must be None."""


class TorchRLEnv(Bridge, EnvBase):  # type: ignore[misc]
    """All copies of an environment as one TorchRL environment.

    ``batch_size`` is ``(n_envs,)``; data stay on the environments' device.

    | entry | shape |
    |---|---|
    | ``"observation"`` | ``(n_envs, n_features)`` |
    | ``"action"`` | ``(n_envs,)``, or ``(n_envs, n_types)`` |
    | ``"reward"`` | ``(n_envs, 1)`` |
    | ``"done"``, ``"terminated"``, ``"truncated"`` | ``(n_envs, 1)`` |

    With several agents the first three are in the group ``"agents"``; an environment with roles has one group per role.
    The axis of agents follows that of environments: ``("agents", "observation")`` is ``(n_envs, n_agents,
    n_features)``. Agents end together. Discrete actions are categories, int64, not one-hot. ``group_map`` names the
    agents.

    A Dict of observations gives ``"observation"`` an entry per key, such as ``("observation", "map")``. An action mask
    is an entry next to the action: ``"action_mask"`` ``(n_envs, n_choices)`` bool; choices of all types are
    concatenated.

    `rollout` takes random steps in one launch if possible; `rollout_obstacle` returns the reason if not.

    TorchRL requests restarts through the entry ``_reset``. Steps and restarts enqueue and do not synchronise, except
    the first restart after `set_seed`. TorchRL's own loops synchronise to check for ends.

    Args:
        env: An environment with arrays; or an `EnvWrapper` of one.
        options: Keyword arguments of `EnvWrapper`, if ``env`` is not one.

    Raises:
        ConfigError: ``auto_reset`` is on, or agents of a group have different spaces.
    """

    def __init__(self, env: Any, **options: Any) -> None:
        batched = BatchedEnvironment("TorchRLEnv", env, options)
        batched.require_no_auto_reset()
        batched.require_one_space()
        batch = (batched.n_envs,)
        super().__init__(device=batched.device, batch_size=torch.Size(batch))
        self.batched = batched
        self._sets = {agent_set.removeprefix("_") or GROUP: agent_set for agent_set in batched.rows}
        """Suffix of the array names, by group."""
        names, device = batched.agent_names(), batched.device
        self.group_map = {
            group: [names[row] for row in batched.rows[agent_set]] for group, agent_set in self._sets.items()
        }
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
            seen[group] = {entry: make_observation_spec(value, shape) for entry, value in entries.items()}
            actions[group] = {"action": make_action_spec(batched.action_spaces[first], shape, device)}
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
        """Set the seed of the next restart's first starts; None changes nothing."""
        if seed is not None:
            seed_words(seed)  # raise the restart's error here
        self._next_seed = seed

    def _reset(self, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        """Restart the copies selected by the entry ``_reset``, or all."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.batched.restart(self._next_seed, None if mask is None else mask.reshape(self.batch_size))
        self._next_seed = None
        return self._data(self._observed())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = {self._sets[group]: tensordict.get(key) for group, key in self._action_keys.items()}
        shapes = {
            self._sets[group]: tuple(self.full_action_spec[key].shape) for group, key in self._action_keys.items()
        }
        self.batched.step(actions, shapes)
        entries, rewards = self._observed(), self.batched.rewards_by_set()
        for group, shape in self._shapes.items():
            entries[group]["reward"] = rewards[self._sets[group]].reshape(*shape, 1)
        data = self._data(entries)
        terminated, truncated = self.batched.terminated_and_truncated()
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        return data.update({name: flags[:, None] for name, flags in ends.items()})

    def rollout(self, max_steps: int, policy: Any = None, callback: Any = None, **options: Any) -> TensorDictBase:
        """Take steps as `torchrl.envs.EnvBase.rollout`, with its arguments and result.

        All steps but the last are one launch if the policy is None or a `RandomPolicy`, and
        ``break_when_any_done=False``. Actions equal those of single steps. It enqueues, and synchronises only as the
        restart does.

        Raises:
            ActionError: The policy's actions have a wrong shape, or are real numbers for discrete actions.
        """
        if self.rollout_obstacle(max_steps, policy, callback, **options):
            return super().rollout(max_steps, policy, callback, **options)
        return self._fused_rollout(max_steps, self.rand_action if policy is None else policy)

    def rollout_obstacle(self, max_steps: int, policy: Any = None, callback: Any = None, **options: Any) -> str:
        """Return the reason why `rollout` takes single steps; "" if not. Compiles."""
        if policy is not None and type(policy) is not RandomPolicy:
            return "the policy needs the observations of each step"
        if not options.get("break_when_all_done") and options.get("break_when_any_done") is not False:
            return "TorchRL checks after each step whether to stop; pass break_when_any_done=False"
        unasked: tuple[bool | None, ...] = (None,)
        more = [
            name
            for name, value in {"callback": callback, **options}.items()
            if not any(value is each for each in NO_MORE_ENTRIES.get(name, unasked))
        ]
        if more or type(self) is not TorchRLEnv:
            return f"more happens than steps, by {', '.join(more) or type(self).__name__}"
        return self.batched.rollout_obstacle() if max_steps > 1 else "it has one step"

    def _fused_rollout(self, n_steps: int, draw: Callable[[TensorDictBase], TensorDictBase]) -> TensorDictBase:
        """Take all steps but the last in one launch, and the last without a restart."""
        ((group, shape),), (key,) = self._shapes.items(), self._action_keys.values()
        start = self.reset()
        drawn = [draw(TensorDict({}, self.batch_size, device=self.device)) for _ in range(n_steps)]
        actions = [each.get(key) for each in drawn]
        steps = self.batched.rollout(actions[:-1], tuple(self.full_action_spec[key].shape))
        end = self._step(drawn[-1])
        first, last = (data if self._is_flat else data.get(group) for data in (start, end))

        def rows(one: torch.Tensor) -> torch.Tensor:
            """Allocate a tensor with a time axis after the axis of copies."""
            return one.new_empty((len(one), n_steps, *one.shape[1:]))

        def by_copy(of_steps: torch.Tensor) -> torch.Tensor:
            """Reshape steps of the data manager's arrays to rows of entries."""
            return of_steps.reshape(-1, *shape, *of_steps.shape[3:]).transpose(0, 1)

        seen, led_to, rewards = rows(first.get("observation")), rows(last.get("observation")), rows(last.get("reward"))
        seen[:, 0] = first.get("observation")
        seen[:, 1:] = by_copy(steps.observations)
        ended = (steps.done != 0).T.reshape(-1, n_steps - 1, *[1] * (led_to.dim() - 2))
        torch.where(ended, by_copy(steps.final_observations), by_copy(steps.observations), out=led_to[:, :-1])
        led_to[:, -1] = last.get("observation")
        rewards[:, :-1] = by_copy(steps.rewards[..., None])
        rewards[:, -1] = last.get("reward")
        terminated, truncated = (flags.T[..., None] != 0 for flags in (steps.terminated, steps.truncated))
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        ends = {name: torch.cat([flags, end.get(name)[:, None]], 1) for name, flags in ends.items()}
        after = self._data({group: {"observation": led_to, "reward": rewards}}, n_steps).update(ends)
        data = self._data({group: {"observation": seen, "action": torch.stack(actions, 1)}}, n_steps)
        data.update({name: flags.new_zeros(flags.shape) for name, flags in ends.items()}).set("next", after)
        data.refine_names(..., "time")
        return data

    def _observed(self) -> dict[str, dict[str, Any]]:
        """Return the observation entries of each group.

        TorchRL expects an action mask next to the action.
        """
        seen, masks, observed = self.batched.observations_by_set(), self.batched.action_masks(), {}
        for group, shape in self._shapes.items():
            parts = {key: part.reshape(*shape, *part.shape[2:]) for key, part in seen[self._sets[group]].items()}
            mask = parts.pop(Constants.ACTION_MASK, masks.get(self._sets[group]))
            observed[group] = {"observation": map_parts(lambda part: part, parts)}
            if mask is not None:
                observed[group][Constants.ACTION_MASK] = mask.view(torch.bool).reshape(*shape, -1)
        return observed

    def _data(self, entries: dict[str, dict[str, Any]], *steps: int) -> TensorDict:
        """Return the entries of each group; ``steps`` is the time axis of a rollout."""
        batch = (*self.batch_size, *steps)
        if self._is_flat:
            return TensorDict(entries[GROUP], batch, device=self.device)
        groups = {
            group: TensorDict(of_group, (*batch, *self._shapes[group][1:]), device=self.device)
            for group, of_group in entries.items()
        }
        return TensorDict(groups, batch, device=self.device)


def make_observation_spec(entry: torch.Tensor | dict[str, torch.Tensor], rows: torch.Size) -> Any:
    """Return TorchRL's spec of an observation entry; bools are categories."""
    if isinstance(entry, dict):
        return Composite({key: make_observation_spec(part, rows) for key, part in entry.items()}, shape=rows)
    if entry.dtype == torch.bool:
        return Categorical(2, entry.shape, entry.device, torch.bool)
    return Unbounded(entry.shape, entry.device, entry.dtype)


def make_action_spec(space: Any, rows: torch.Size, device: torch.device) -> Any:
    """Return TorchRL's spec of an action space, for rows of actions.

    Raises:
        ConfigError: The space is not Discrete, MultiDiscrete or Box.
    """
    if hasattr(space, "nvec"):
        return MultiCategorical([int(n) for n in space.nvec], torch.Size((*rows, *space.shape)), device)
    if hasattr(space, "n"):
        return Categorical(int(space.n), rows, device)
    if hasattr(space, "low"):
        shape = torch.Size((*rows, *space.shape))
        bounds = (torch.as_tensor(bound, dtype=torch.float32, device="cpu") for bound in (space.low, space.high))
        low, high = (bound.expand(shape) for bound in bounds)
        return Bounded(low, high, shape, device, torch.float32)
    raise ConfigError(f"TorchRLEnv: actions must be Discrete, MultiDiscrete or Box (got {type(space).__name__})")
