"""Copies of an environment as an environment of TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from warpdrive_min.bridges.batched import BatchedEnvironment, Bridge, each_part
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
"""Group that holds the entries of several agents."""
NOTHING_MORE: Final[Mapping[str, tuple[bool | None, ...]]] = {
    "break_when_any_done": (False,),
    "break_when_all_done": (None, False),
    "auto_reset": (True,),
    "auto_cast_to_device": (False,),
    "return_contiguous": (None, False, True),
    "set_truncated": (False,),
    "trust_policy": (False, True),
}
"""Options of a rollout with which nothing happens between its steps; every other one must be None."""


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

    `rollout` takes random steps in one launch where it can, and `rollout_obstacle` says why it cannot.

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
        if seed is not None:
            seed_words(seed)  # raises here what the restart would
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
        self.batched.step(actions, shapes)
        entries, rewards = self._observed(), self.batched.rewards_by_set()
        for group, shape in self._shapes.items():
            entries[group]["reward"] = rewards[self._sets[group]].reshape(*shape, 1)
        data = self._data(entries)
        terminated, truncated = self.batched.terminated_and_truncated()
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        return data.update({name: flags[:, None] for name, flags in ends.items()})

    def rollout(self, max_steps: int, policy: Any = None, callback: Any = None, **options: Any) -> TensorDictBase:
        """Take steps as `torchrl.envs.EnvBase.rollout`, which says what the arguments are and what comes back.

        Without a policy, or with a `RandomPolicy`, and with ``break_when_any_done=False``, all but the last are one
        launch, with the actions that single ones would draw. It enqueues, and synchronises as the restart does.

        Raises:
            ActionError: The policy's actions have another shape, or are real numbers for discrete ones.
        """
        if self.rollout_obstacle(max_steps, policy, callback, **options):
            return super().rollout(max_steps, policy, callback, **options)
        return self._rollout_at_once(max_steps, self.rand_action if policy is None else policy)

    def rollout_obstacle(self, max_steps: int, policy: Any = None, callback: Any = None, **options: Any) -> str:
        """Say why `rollout` would take its steps one by one; empty: in one launch. Compiles to tell."""
        if policy is not None and type(policy) is not RandomPolicy:
            return "the policy acts on what it sees"
        if not options.get("break_when_all_done") and options.get("break_when_any_done") is not False:
            return "TorchRL looks after each step whether to stop; pass break_when_any_done=False"
        unasked: tuple[bool | None, ...] = (None,)
        more = [
            name
            for name, value in {"callback": callback, **options}.items()
            if not any(value is each for each in NOTHING_MORE.get(name, unasked))
        ]
        if more or type(self) is not TorchRLEnv:
            return f"more happens than steps, by {', '.join(more) or type(self).__name__}"
        return self.batched.rollout_obstacle() if max_steps > 1 else "it has one step"

    def _rollout_at_once(self, n_steps: int, draw: Callable[[TensorDictBase], TensorDictBase]) -> TensorDictBase:
        """Take all steps but the last in one launch, and that one alone: after it nothing restarts."""
        ((group, shape),), (key,) = self._shapes.items(), self._action_keys.values()
        start = self.reset()
        drawn = [draw(TensorDict({}, self.batch_size, device=self.device)) for _ in range(n_steps)]
        actions = [each.get(key) for each in drawn]
        steps = self.batched.rollout(actions[:-1], tuple(self.full_action_spec[key].shape))
        end = self._step(drawn[-1])
        first, last = (data if self._is_flat else data.get(group) for data in (start, end))

        def rows(one: torch.Tensor) -> torch.Tensor:
            """Return a tensor with an entry of ``one``, which has the axis of copies in front, for each step."""
            return one.new_empty((len(one), n_steps, *one.shape[1:]))

        def by_copy(of_steps: torch.Tensor) -> torch.Tensor:
            """Return the steps of what the data manager's arrays are, as rows of entries."""
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
        """Return the entries of what each group sees; TorchRL looks for an action mask beside the action."""
        seen, masks, observed = self.batched.observations_by_set(), self.batched.action_masks(), {}
        for group, shape in self._shapes.items():
            parts = {key: part.reshape(*shape, *part.shape[2:]) for key, part in seen[self._sets[group]].items()}
            mask = parts.pop(Constants.ACTION_MASK, masks.get(self._sets[group]))
            observed[group] = {"observation": each_part(lambda part: part, parts)}
            if mask is not None:
                observed[group][Constants.ACTION_MASK] = mask.view(torch.bool).reshape(*shape, -1)
        return observed

    def _data(self, entries: dict[str, dict[str, Any]], *steps: int) -> TensorDict:
        """Return the entries of each group, of a rollout with so many steps behind the axis of copies."""
        batch = (*self.batch_size, *steps)
        if self._is_flat:
            return TensorDict(entries[GROUP], batch, device=self.device)
        groups = {
            group: TensorDict(of_group, (*batch, *self._shapes[group][1:]), device=self.device)
            for group, of_group in entries.items()
        }
        return TensorDict(groups, batch, device=self.device)


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
        bounds = (torch.as_tensor(bound, dtype=torch.float32, device="cpu") for bound in (space.low, space.high))
        low, high = (bound.expand(shape) for bound in bounds)
        return Bounded(low, high, shape, device, torch.float32)
    raise ConfigError(f"TorchRLEnv: actions must be Discrete, MultiDiscrete or Box (got {type(space).__name__})")
