"""Policies on a wrapper's arrays; one kernel draws for each array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from warpdrive_min.backends import get
from warpdrive_min.constants import Constants
from warpdrive_min.errors import known, require
from warpdrive_min.tracing import named
from warpdrive_min.training.config import Member, PolicyConfig, TrainerConfig, present
from warpdrive_min.training.loop.rollout import Observation, RolloutBuffer, empty_observation
from warpdrive_min.training.models.normalisation import Moments, normalisers
from warpdrive_min.training.models.parts import Memory, Recurrent, by_member, gated_layers_of, layers_of, n_members_of
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.table import Choice, choose

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Launch
    from warpdrive_min.env_wrapper import EnvWrapper
    from warpdrive_min.sampler import CUDASampler
    from warpdrive_min.training.loop.arrays import AgentArrays
    from warpdrive_min.training.loop.gathered import GatheredRollout

Tensors = dict[str, torch.Tensor]
_UNKNOWN: Final = object()
ON_POLICY: Final = ("A2C", "PPO")
"""On-policy algorithms: they learn from the rollout as it was played."""


class Algorithm(Protocol):
    """Learning algorithm of one policy.

    Its constructor takes ``(group, trainer_config, backend, seed)``. If its class attribute ``clips_actions`` is true,
    continuous actions are clipped to their space after they are stored. If ``has_replay`` is true, a replay buffer of
    ``buffer_size`` transitions must hold a rollout.
    """

    scheduled: Tensors
    """Scheduled numbers that the trainer writes before updates, 0-d, by key."""
    metrics: Tensors
    """Metrics of the last update, 0-d."""

    def compute_returns(self, buffer: RolloutBuffer) -> None:
        """Compute the learning targets of a rollout; enqueues, capturable."""
        ...

    def update(self, buffer: RolloutBuffer) -> None:
        """Take the optimiser's steps; enqueues, capturable."""
        ...

    def state(self) -> Tensors:
        """Return the live tensors to resume from, equal on all ranks."""
        ...

    def rank_state(self) -> Tensors:
        """Return this rank's live tensors: memory and draw counters."""
        ...


@dataclass(slots=True, eq=False)
class PolicyGroup:
    """Agents that share a policy."""

    name: str
    config: PolicyConfig
    arrays: AgentArrays
    models: dict[str, Any]
    """Networks by part: ``model`` or ``actor``, and ``critic``.
    The first offers ``act(observations) -> head``."""
    buffer: RolloutBuffer | None = None
    gathered: GatheredRollout | None = field(default=None, repr=False)
    """Rollout over all ranks, in exact training; None: ranks learn from their own."""
    algorithm: Algorithm | None = None
    """Learning algorithm; None: the policy only acts."""
    is_direct: bool = False
    """True if the environments write observations into the buffer directly."""
    actions: ActionSampler = field(init=False, repr=False)
    """Sampler of the agents' array, which takes their head."""
    memory: Memory | None = field(init=False, repr=False)
    """State of a recurrent model across steps and rollouts, or None."""
    members: Sequence[Member] = ()
    """Agents of a population, with `Members` networks; else empty."""
    stopped: torch.Tensor | None = field(default=None, repr=False)
    """Members that stopped learning, (members,) bool; None in an ordinary run."""
    choices: dict[str, Choice] = field(default_factory=dict, repr=False)
    """Chosen paths by part of the run, as in `paths.table.PATHS`."""
    exact: Any = None
    """Kernels with one order of operations (`Exact`); None: others."""
    _seen: Observation | None = field(default=None, repr=False)
    _evaluation: Any = field(default=_UNKNOWN, repr=False)
    """`_kernel`, once it is chosen."""
    _evaluated: torch.Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.memory = (
            Memory(self.acting, self.arrays.timestep, self.arrays.n_agents)
            if isinstance(self.acting, Recurrent)
            else None
        )

    @property
    def batch(self) -> RolloutBuffer | None:
        """Rollout to learn from; None if the policy does not learn."""
        return self.buffer if self.gathered is None else self.gathered.everyone

    def learn(self) -> None:
        """Compute returns, update weights and merge moments; enqueues, capturable."""
        if self.buffer is None or self.algorithm is None:
            return
        batch = self.buffer if self.gathered is None else named(f"gather of {self.name}", self.gathered.gather)()
        named(f"returns of {self.name}", self.algorithm.compute_returns)(batch)
        named(f"update of {self.name}", self.algorithm.update)(batch)
        self.update_normalisers(batch)

    @property
    def agents(self) -> tuple[Hashable, ...]:
        """Agents in the order of the policy's list."""
        return self.arrays.agents

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a number per policy: 0-d, or ``(members,)``."""
        return (len(self.members),) if self.members else ()

    def settings(self, key: str) -> list[Any]:
        """Return config values by key: one, or one per member."""
        own = self.config.schedule(key)
        return [member.setting.get(key, own) for member in self.members] or [own]

    def setting(self, key: str) -> Any:
        """Return a config value by key; (members,) float32 if members differ."""
        values = self.settings(key)
        if len(set(values)) == 1:
            return values[0]
        return torch.tensor(values, device=self.arrays.rewards.device, dtype=torch.float32)

    def facts(self, trainer: TrainerConfig | None = None, **more: Any) -> Facts:
        """Return the facts that determine the policy's paths.

        Args:
            trainer: Settings of the run; None: the policy only acts.
            more: Facts known to a part of the run.
        """
        config, arrays, device = self.config, self.arrays, self.arrays.rewards.device
        wishes: dict[str, Any] = {"precision": present(device)}
        if trainer is not None:
            names = ("precision", "fused_rollout", "shared_observations", "kept_passes")
            wishes = {name: getattr(trainer, name) for name in names} | {"is_compat": trainer.compat is not None}
        given = {
            "device": device.type,
            "backend": arrays.backend,
            **({"shared_bytes": get(arrays.backend).most_shared_bytes()} if device.type == "cuda" else {}),
            **wishes,
            "is_exact": self.exact is not None,
            "fused": getattr(config.model, "fused", None),
            "network": layers_of(self.acting),
            "gated": gated_layers_of(self.acting),
            "is_box": arrays.space.is_continuous,
            "n_types": arrays.space.n_types,
            "is_masked": arrays.mask is not None,
            "is_recurrent": self.memory is not None,
            "is_population": n_members_of(self.acting) > 0,
            "has_critic": "critic" in self.models and not self.is_noisy,
            "own_columns": arrays.own_columns,
            "writes_last_observations": bool(arrays.last_observations),
            "learns": config.to_train,
            "is_on_policy": config.algorithm in ON_POLICY,
        }
        return Facts(**{**given, **more})

    def choose(self, part: str, facts: Facts) -> Choice:
        """Choose the path of a part, and record it."""
        self.choices[part] = choice = choose(part, facts)
        return choice

    @property
    def is_noisy(self) -> bool:
        """True if noise is added to the head, a mean without scale (DDPG)."""
        return "actor" in self.models

    @property
    def acting(self) -> Any:
        """Acting network."""
        return self.models[acting_part(self.models)]

    @torch.no_grad()
    def act(self, t: int = 0) -> None:
        """Observe, and write the head to draw actions from; enqueues.

        Args:
            t: Step of the rollout, and row of the buffer; without a buffer observations are overwritten.
        """
        observations, mask = self._observation_storage(t)
        if self.buffer is not None and self.buffer.is_read_in_place:
            self.arrays.observe_mask(mask)
        elif t == 0 or not self.is_direct:
            self.arrays.observe(observations, mask)
        log_std = None if self.is_noisy else getattr(self.acting, "log_std", None)
        self._update_memory(t)
        self.actions.write_outputs(self.arrays, self._head(t, observations), mask, log_std)

    def rehearse(self) -> None:
        """Launch the kernels of acting, for `ahead.compiled`."""
        assert self.buffer is not None
        if self.memory is None or self._kernel is not None:
            self._head(0, self.buffer.observations[0])

    def _head(self, t: int, observations: torch.Tensor) -> torch.Tensor:
        """Return the head for a step's stored observations; enqueues."""
        if self.buffer is not None and self.buffer.passes is not None:
            of_step: torch.Tensor = self.acting(self.buffer.passes.step(t, observations))[0]
            return of_step
        seen = observations if self.buffer is None else self.buffer.seen(observations)
        kernel = self._kernel
        if kernel is None:
            head: torch.Tensor = self.acting.act(seen) if self.memory is None else self.memory.act(observations)
            return head
        if self._evaluated is None:
            rows = len(observations), self.arrays.n_agents
            self._evaluated = observations.new_zeros(*rows, self.arrays.space.n_outputs)
        if self.memory is None:
            kernel(seen, self._evaluated)
        else:
            kernel.step(seen, self.memory.state, self._evaluated)
        return self._evaluated

    @property
    def _kernel(self) -> Any:
        """Evaluation of the head by a kernel, chosen at first use; None: the model."""
        if self._evaluation is _UNKNOWN:
            facts = self.facts()
            build = self.choose("acting", facts).path.build
            self._evaluation = None if build is None else build(facts, self.acting.as_network())
        return self._evaluation

    def store_actions(self, t: int) -> None:
        """Store drawn actions, and log-probabilities except for DDPG; enqueues."""
        if self.buffer is not None:
            self.arrays.pick(self.arrays.actions, self.buffer.actions[t])
            if not self.is_noisy:
                self.arrays.pick(self.actions.log_prob, self.buffer.log_probs[t])

    def end_rollout(self) -> None:
        """Store the observations after the last step; enqueues."""
        if self.buffer is None:
            return
        if self.is_direct:
            self.arrays.restore(self.buffer.observations[-1])
        else:
            self.arrays.observe(*self.buffer.observation(-1))
        if self.arrays.rows is not None:
            self.buffer.take_rows(self.arrays.rows)
        self._update_memory(len(self.buffer.actions))

    @torch.no_grad()
    def update_normalisers(self, buffer: RolloutBuffer) -> None:
        """Merge a rollout's observations into the moments of the models; enqueues."""
        of_observations: Moments | None = None
        for part, model in self.models.items():
            layers = normalisers(model)
            if part == "critic" and buffer.global_states is not None and layers:
                moments = Moments.of(buffer.global_states[:-1].flatten(0, -2), self.exact)
            elif layers:
                rows = self._rows_of_observations(buffer.observations[:-1])
                moments = of_observations = of_observations or Moments.of(rows, self.exact)
            for layer in layers:
                layer.merge(moments, self.stopped)

    def _rows_of_observations(self, observations: torch.Tensor) -> torch.Tensor:
        """Reshape (n_steps, n_envs, n_agents, F) to (rows, F) or (rows, members, F)."""
        if not self.members:
            return observations.flatten(0, -2)
        return by_member(observations, len(self.members)).flatten(1, -2).transpose(0, 1)

    def _update_memory(self, t: int) -> None:
        """Reset states of ended episodes; store states where learning begins; enqueues."""
        if self.memory is not None:
            self.memory.reset_ended()
            if self.buffer is not None:
                self.buffer.store_state(t, self.memory.state)

    def _observation_storage(self, t: int) -> Observation:
        """Return the storage for a step's observations."""
        if self.buffer is not None:
            return self.buffer.observation(t)
        if self._seen is None:
            self._seen = empty_observation(self.arrays, (len(self.arrays.rewards), self.arrays.n_agents))
        return self._seen

    # -------------------------------------------------------------- checkpoints

    def weights(self) -> Tensors:
        """Return the models' live weights, by checkpoint name."""
        return {
            f"policy/{self.name}/{part}/{key}": value
            for part, model in self.models.items()
            for key, value in model.state_dict().items()
        }

    def state(self) -> Tensors:
        """Return live tensors equal on all ranks: weights and optimiser moments."""
        learned = {} if self.algorithm is None else self.algorithm.state()
        return self.weights() | {f"policy/{self.name}/algorithm/{key}": value for key, value in learned.items()}

    def rank_state(self) -> Tensors:
        """Return this rank's live tensors: memories and counters."""
        own = {} if self.algorithm is None else self.algorithm.rank_state()
        if self.memory is not None:
            own = {**own, "memory": self.memory.state}
        return {f"policy/{self.name}/own/{key}": value for key, value in own.items()}


def acting_part(models: Mapping[str, Any]) -> str:
    """Return the part name of the acting network."""
    return "actor" if "actor" in models else "model"


def is_weight(name: str) -> bool:
    """Return True if a checkpoint's tensor belongs to a model."""
    section, *rest = name.split("/")
    return section == "policy" and rest[1] not in ("algorithm", "own")


class ActionSampler:
    """Sampler for all agents in one action array, from their policies' heads.

    Args:
        wrapper: Wrapper with the array.
        sampler: Sampler in which the array is registered.
        groups: Policies of the array, with one action space; all of them or none explore by noise around a mean.
        clips: Clip continuous actions to their space after storing them.

    Raises:
        ConfigError: The policies differ in their action spaces, or in how they explore.
    """

    def __init__(
        self, wrapper: EnvWrapper, sampler: CUDASampler, groups: Sequence[PolicyGroup], *, clips: bool = True
    ) -> None:
        first = groups[0].arrays
        noisy = [group.name for group in groups if group.is_noisy]
        who, do = "training: policies whose actions share an array", "give each policy its own arrays"
        require(len(noisy) in (0, len(groups)), who, "must all be DDPG or none", f"DDPG for {known(noisy)}", do)
        spaces = {group.name: group.arrays.space for group in groups}
        require(len(set(spaces.values())) == 1, who, "must have one action space", spaces, do)
        self.groups = tuple(groups)
        self._n_members = n_members_of(groups[0].acting)
        self._scales: torch.Tensor | None = None
        """Log standard deviations of a population's members, (members, n_types), or None."""
        self.space = first.space
        self._data, self._sampler, self._clips, self._is_noisy = wrapper.cuda_data_manager, sampler, clips, bool(noisy)
        self._name, self._actions = Constants.ACTIONS + first.suffix, first.actions
        n_envs, n_agents, n_types = first.actions.shape
        device = self._data.device
        self._head = torch.zeros(n_envs, n_agents, self.space.n_outputs, device=device, dtype=torch.float32)
        self._centre = torch.zeros_like(self._head) if self._n_members and self.space.is_continuous else self._head
        self.log_prob = torch.zeros(n_envs, n_agents, device=device, dtype=torch.float32)
        """Log-probability of the last draw, (n_envs, agents of the array)."""
        self._log_std = torch.zeros(n_agents, n_types, device=device, dtype=torch.float32)
        is_masked = any(group.arrays.mask is not None for group in groups)
        self._mask = torch.ones(self._head.shape, dtype=torch.int32, device=device) if is_masked else None
        self._bounds = torch.tensor([self.space.low, self.space.high], device=device, dtype=torch.float32)
        self.impossible: torch.Tensor | None = None
        """Draws without an allowed choice, (n_envs, agents) int32; None: Box."""
        self._draws: dict[bool, Launch] = {}
        """Prepared draws of discrete actions; True: greedy."""
        categories = self.space.categories
        sampler.register_actions(self._data, self._name, categories or n_types, is_deterministic=not categories)
        if categories:
            self.impossible = self._data.tensor(f"{self._name}_impossible")
        for group in groups:
            group.actions = self

    def write_outputs(
        self,
        arrays: AgentArrays,
        head: torch.Tensor,
        mask: torch.Tensor | None = None,
        log_std: torch.Tensor | None = None,
    ) -> None:
        """Write a policy's head (n_envs, n_agents, n_outputs) and masks; enqueues.

        For a population log_std is (members, n_types).
        """
        arrays.place(head.float(), self._head)
        if mask is not None and self._mask is not None:
            arrays.place(mask, self._mask)
        if self._n_members:
            self._scales = log_std
        elif log_std is not None:
            arrays.place(log_std.detach().expand(arrays.n_agents, -1), self._log_std, axis=0)

    def masked_head(self) -> torch.Tensor:
        """Return the head, with the lowest float for forbidden choices; enqueues."""
        if self._mask is None:
            return self._head
        return self._head.masked_fill(self._mask == 0, torch.finfo(self._head.dtype).min)

    def prepare(self, *, greedy: bool) -> None:
        """Prepare the launch of a draw of discrete actions; `sample` does so at first use."""
        if not self.space.is_continuous and greedy not in self._draws:
            given: dict[str, Any] = {"use_argmax": greedy, "logits": True, "log_prob": self.log_prob}
            given |= {} if self._mask is None else {"mask": self._mask}
            self._draws[greedy] = self._sampler.bound(self._data, self._head, self._name, **given)

    def sample(self, t: int | None = None, *, greedy: bool = False, **noise: Any) -> None:
        """Draw all agents' actions into their array, with `log_prob`; enqueues.

        Args:
            t: Step of the rollout, and row of the buffers for the draw; None: nothing is stored.
            greedy: Take the likeliest choice, or the mean.
            noise: Noise parameters for policies that use it; see `CUDASampler.sample`.
        """
        self.prepare(greedy=greedy)
        if not self.space.is_continuous:
            self._draws[greedy]()
        elif self._is_noisy:
            self._sampler.sample(self._data, self._head, self._name, use_argmax=greedy, **noise)
        else:
            self._draw_gaussian(greedy)
        if t is not None:
            for group in self.groups:
                group.store_actions(t)
        if self._clips and self.space.is_continuous:
            torch.clamp(self._actions, self._bounds[0], self._bounds[1], out=self._actions)

    def _draw_gaussian(self, greedy: bool) -> None:
        """Draw around the head.

        For a population draws have mean 0 and scale 1; each member's head and scale then transform them.
        """
        self._sampler.sample_gaussian(
            self._data, self._centre, self._log_std, self._name, use_argmax=greedy, log_prob=self.log_prob
        )
        if self._scales is None:
            return
        scales, exact = self._scales.detach(), self.groups[0].exact
        if exact is None:
            width, log_width = scales.exp(), scales.sum(-1)
        else:
            width, log_width = exact.exp(scales), reduce(torch.add, scales.unbind(-1))
        actions, heads, log_probs = (
            by_member(each, self._n_members, 0) for each in (self._actions, self._head, self.log_prob)
        )
        actions.mul_(width[:, None, None]).add_(heads)
        log_probs.sub_(log_width[:, None, None])


def action_samplers(
    wrapper: EnvWrapper, sampler: CUDASampler, groups: Sequence[PolicyGroup], *, clips: bool = True
) -> list[ActionSampler]:
    """Return a sampler for each array of actions.

    Raises:
        ConfigError: Policies that share an array differ in their action spaces, or in how they explore.
    """
    by_array: dict[str, list[PolicyGroup]] = {}
    for group in groups:
        by_array.setdefault(group.arrays.suffix, []).append(group)
    return [ActionSampler(wrapper, sampler, sharing, clips=clips) for sharing in by_array.values()]
