"""A2C and PPO: values, returns, advantages and minibatches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.perceptron import perceptron_of
from warpdrive_min.tracing import named
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.optimiser import ExactAdam, FlatAdam
from warpdrive_min.training.algorithms.returns import ReturnScan, RewardScale, Scanned
from warpdrive_min.training.algorithms.shuffle import Shuffle
from warpdrive_min.training.config import TrainerConfig, precision
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.paths import early
from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.fused import loss as fused_loss
from warpdrive_min.training.paths.fused.loss import Learned, Learning, LossRule, Minibatch
from warpdrive_min.training.paths.fused.rows import take
from warpdrive_min.training.paths.table import LOSS_KERNEL, Update
from warpdrive_min.training.paths.triton.columns import split
from warpdrive_min.training.ranks import average

Tensor = torch.Tensor
Rows = Tensor | slice
"""Rows (step, environment) of a rollout: indices, or an ordered slice."""
Within = slice | tuple[slice, slice]
"""Position of a part within the rows of a minibatch."""

METRICS: Final = (
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "approximate_kl",
    "clip_fraction",
    "explained_variance",
    "mean_value",
    "mean_advantage",
    "mean_discounted_return",
)
EVEN: Final = 16
"""Divisor of the rows of a part, for kernels with vector loads."""


class ActorCriticAlgorithm:
    """Actor-critic update: returns, minibatches, loss and steps, in one CUDA graph.

    Args:
        group: Policy with its buffer. Its model offers ``model(observations) -> (head, value)`` and ``value``. Or it
            offers ``act``, alongside a critic with ``critic(global_states) -> value``. Subclasses may override
            `evaluate` and `compute_values` to use other methods.
        trainer: Settings that all policies share.
        backend: Backend of the environments.
        seed: Seed of the order of minibatches; for a population the seeds of its members.
    """

    clips_actions: ClassVar[bool] = True
    has_replay: ClassVar[bool] = False
    default_lambda: ClassVar[float]
    """Default lambda of generalised advantages."""
    is_clipped: ClassVar[bool]
    """Use the clipped surrogate and optional value clipping; False: policy gradient."""

    def __init__(self, group: PolicyGroup, trainer: TrainerConfig, backend: Backend, seed: int | Sequence[int]) -> None:
        buffer, config = group.batch, group.config
        assert buffer is not None, "a policy that learns has a buffer"
        self.config, self.model, self._space = config, group.models["model"], group.arrays.space
        self.critic = group.models.get("critic")
        """Centralised critic; None: the model gives the values."""
        self._precision, self._max_rows = trainer.precision, trainer.max_rows
        self._ratio = trainer.neg_pos_env_ratio
        n_steps, n_envs, n_agents = buffer.rewards.shape
        device = buffer.rewards.device
        self.shape = group.shape
        """Shape of the policy's numbers: () or, for a population, (members,)."""
        self.stopped = group.stopped
        """Members that stopped learning, (members,) bool; None in an ordinary run."""
        self._exact: Exact | None = group.exact
        """Kernels with one order of operations; None: torch's and Triton's."""
        keys = ("lr", "vf_loss_coeff", "entropy_coeff")
        self.scheduled = {name: torch.zeros(self.shape, device=device, dtype=torch.float32) for name in keys}
        """Numbers with a schedule, written before each update."""
        clip_param = group.setting("clip_param")
        self.optimiser = self.make_optimiser(
            itertools.chain(*(model.parameters() for model in group.models.values())), group
        )
        self._rule = LossRule(
            self.scheduled["vf_loss_coeff"],
            self.scheduled["entropy_coeff"],
            clip_param[:, None, None] if isinstance(clip_param, Tensor) else clip_param,
            self.is_clipped,
            config.value_clip if self.is_clipped else None,
        )
        self._numbers = torch.zeros(len(METRICS), *self.shape, device=device, dtype=torch.float32)
        self.metrics = dict(zip(METRICS, self._numbers, strict=True))
        """Metrics of the last minibatch of the last update."""
        self.metrics["gradient_norm"] = self.optimiser.norm
        self.metrics["n_skipped_steps"] = self.optimiser.n_skipped
        self.values = torch.zeros(n_steps + 1, n_envs, n_agents, device=device, dtype=torch.float32)
        self.returns = torch.zeros(n_steps, n_envs, n_agents, device=device, dtype=torch.float32)
        self.advantages = torch.zeros_like(self.returns)
        last = buffer.truncated_observations
        self._truncated_values = (
            None if last is None else torch.zeros(*last.shape[:2], n_agents, device=device, dtype=torch.float32)
        )
        self.weights = torch.ones(n_steps, n_envs, 1, device=device, dtype=torch.float32) if self._ratio > 0 else None
        """(n_steps, n_envs, 1): 0 excludes an environment; None: all count."""
        self._scan = self.return_scan(backend, n_envs, n_agents)
        self._reward_scale = (
            RewardScale(backend, buffer, config.gamma, *self.shape, exact=group.exact)
            if config.normalize_rewards
            else None
        )
        self._n_rows = n_steps * n_envs
        self._n_together = self.rows_together(n_steps)
        is_dealt = self.n_minibatches > 1
        n_dealt = self._n_rows // self._n_together // math.prod(self.shape)
        self._shuffle = Shuffle(backend, n_dealt, seed) if is_dealt else None
        self._negatives = Shuffle(backend, n_envs, seed + 1) if self._ratio > 0 and isinstance(seed, int) else None
        is_once = self.n_epochs == self.n_minibatches == 1
        is_plain = not (config.normalize_advantage or config.normalize_return or self._scan.needs_values)
        self._values_come_first = not (is_once and is_plain)
        """True if values precede the first step; else the learning pass gives them."""
        facts = group.facts(trainer, selects_envs=self._ratio > 0, n_other_parameters=self._other_parameters())
        group.choices["Adam"] = self.optimiser.choice
        self._gathers = group.choose("minibatch rows", facts).is_fast
        """True if a kernel gathers rows."""
        evaluate = group.choose("acting", facts).path.build if self.critic is None else None
        self._evaluation = None if evaluate is None else evaluate(facts, self.model.as_network(), of_value=True)
        """Evaluation of values by a kernel; None: the model."""
        learning = group.choose("learning", facts)
        if learning.path.is_in_triton:
            early.prepare_triton()
        self._is_fused = learning.path is LOSS_KERNEL
        """True if the loss is a kernel."""
        self._one_pass = f"forward + loss + backward: {learning.path.name}"
        self._learning = self._in_one_pass(buffer, facts, learning.path.build)
        """Kernel of the loss and its gradients; None: torch differentiates."""

    def _other_parameters(self) -> int:
        """Count learned values outside the layers and a Box's scale."""
        layers = perceptron_of(self.model)
        if isinstance(layers, str) or self.shape:
            return 0
        known = [*layers.parameters, *([self.model.log_std] if self._space.is_continuous else [])]
        return self.optimiser.vector.numel() - sum(map(torch.numel, known))

    def _in_one_pass(
        self, buffer: RolloutBuffer, facts: Facts, build: Callable[[Update], Learning] | None
    ) -> Learning | None:
        config, comes_first = self.config, self._values_come_first
        is_plain = type(self).normalise is ActorCriticAlgorithm.normalise
        self._normalises_otherwise = config.normalize_advantage
        if build is None:
            return None
        arrays = self._arrays(buffer) | {"advantages": self.advantages if comes_first else None}
        self._values_of_rows = None if comes_first else self.values[:-1]
        """Values of the rollout's rows, filled by the learning pass."""
        n_rows = self._n_rows // self.n_minibatches // math.prod(self.shape)
        parameters, gradient = self.optimiser.vector.detach(), self.optimiser.gradient
        learned = Learned(parameters, gradient, self._space, arrays, self._rule, n_rows)
        at_once = self._rows_at_once(n_rows)
        normalises = config.normalize_advantage
        found = build(Update(self.model, learned, at_once, normalises, facts, self._exact, self._n_together))
        self._normalises_otherwise = config.normalize_advantage and not (found.normalises and is_plain)
        return found

    def _arrays(self, buffer: RolloutBuffer) -> dict[str, Tensor | None]:
        """Return the arrays of a rollout that kernels learn from."""
        return {
            "observations": buffer.observations,
            "actions": buffer.actions,
            "log_probs": buffer.log_probs,
            "returns": self.returns,
            "old_values": self.values,
            "masks": buffer.masks,
        }

    # -------------------------------------------------------------- overridable settings

    @property
    def n_epochs(self) -> int:
        """Passes of an update over the rollout."""
        return 1

    @property
    def n_minibatches(self) -> int:
        """Minibatches of a pass, with one optimiser step each."""
        return 1

    @property
    def n_updates(self) -> int:
        """Optimiser steps of an update."""
        return self.n_epochs * self.n_minibatches

    def make_optimiser(self, parameters: Iterable[torch.nn.Parameter], group: PolicyGroup) -> FlatAdam:
        """Create the optimiser of the parameters."""
        config = self.config
        max_norm = group.setting("max_grad_norm") if config.clip_grad_norm else None
        if self._exact is not None:
            return ExactAdam(self._exact, parameters, self.scheduled["lr"], max_norm, config.adam_eps)
        return FlatAdam(parameters, self.scheduled["lr"], max_norm, config.adam_eps, group.arrays.backend)

    def rows_together(self, n_steps: int) -> int:
        """Return the number of rows that minibatches and parts keep together."""
        return 1

    def return_scan(self, backend: Backend, n_envs: int, n_agents: int) -> ReturnScan:
        """Create the scan for returns and advantages."""
        lam = self.default_lambda if self.config.gae_lambda is None else self.config.gae_lambda
        return ReturnScan(backend, n_envs, n_agents, self.config.gamma, lam)

    def normalise(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Standardise returns or a minibatch's advantages."""
        return (losses if self._exact is None else self._exact).normalise(values, weights)

    # -------------------------------------------------------------- returns

    @torch.no_grad()
    def compute_returns(self, buffer: RolloutBuffer) -> None:
        """Fill returns, plus values and advantages if needed; enqueues."""
        with precision(self._precision, self.returns.device):
            if self._negatives is not None and self.weights is not None:
                self._choose_environments(buffer, self._negatives, self.weights)
            self.compute_values(buffer)
            scale = self._reward_scale
            rewards = buffer.rewards if scale is None else scale.scaled(buffer, self.stopped)
            self._scan.prepared(self._scanned(buffer, rewards))()
            if self.config.normalize_return:
                self.returns.copy_(self.normalised_returns())
                self.advantages.copy_(self.returns - self.values[:-1])

    def _scanned(self, buffer: RolloutBuffer, rewards: Tensor) -> Scanned:
        values, advantages = (self.values[:-1], self.advantages) if self._values_come_first else (None, None)
        ends, after = (buffer.terminated, buffer.truncated), (self.values[-1], self._truncated_values)
        return Scanned(rewards, values, *ends, *after, advantages, self.returns)

    def normalised_returns(self) -> Tensor:
        """Return the standardised returns of the rollout."""
        return self.normalise(self.returns, self.weights)

    def compute_values(self, buffer: RolloutBuffer) -> None:
        """Fill values of steps if needed, of the end, and of truncations; enqueues."""
        if self._evaluation is not None:
            if self._values_come_first:
                self._evaluation(buffer.seen(buffer.observations), self.values)
            else:
                self._evaluation(buffer.seen(buffer.observations[-1]), self.values[-1])
            if self._truncated_values is not None and buffer.truncated_observations is not None:
                self._evaluation(buffer.seen(buffer.truncated_observations), self._truncated_values)
            return
        n_steps, n_envs, n_agents = self.returns.shape
        at_once = max(1, (self._max_rows or self._n_rows * n_agents) // (n_envs * n_agents))
        valued, valued_last = self._valued(buffer)
        first = 0 if self._values_come_first and buffer.passes is None else n_steps
        if self._values_come_first and buffer.passes is not None:
            self.values[:-1].copy_(split(buffer.passes.outputs)[1])
        for start in range(first, n_steps + 1, at_once):
            part = slice(start, start + at_once)
            self.values[part] = self._value(buffer, valued[part])
        if self._truncated_values is not None and valued_last is not None:
            self._truncated_values.copy_(self._value(buffer, valued_last))

    def _value(self, buffer: RolloutBuffer, valued: Tensor) -> Tensor:
        """Return the values of some inputs that `_valued` returned."""
        values: Tensor = self.model.value(buffer.seen(valued)) if self.critic is None else self.critic(valued)
        return values

    def _valued(self, buffer: RolloutBuffer) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of values: observations, and those of truncations."""
        if self.critic is None:
            return buffer.observations, buffer.truncated_observations
        assert buffer.global_states is not None, "`give_global_states` has put them there"
        return buffer.global_states, buffer.truncated_global_states

    def _choose_environments(self, buffer: RolloutBuffer, order: Shuffle, into: Tensor) -> None:
        """Select successes and, at random, ``neg_pos_env_ratio`` times as many others."""
        is_positive = buffer.successes.any(0)
        n_positive = is_positive.sum()
        n_negative = (self._ratio * n_positive).floor()
        order.permute()
        shuffled = ~is_positive[order.indices]
        chosen = shuffled & (shuffled.cumsum(0) <= n_negative)
        weights = is_positive.float().index_add(0, order.indices, chosen.float())
        takes_all = (n_positive == 0) | (n_positive + n_negative >= len(is_positive))
        into.copy_(torch.where(takes_all, 1.0, weights)[None, :, None].expand_as(into))

    # -------------------------------------------------------------- steps

    def update(self, buffer: RolloutBuffer) -> None:
        """Take the optimiser's steps on the rollout; enqueues."""
        with precision(self._precision, self.returns.device):
            stopped = self.stopped
            if stopped is None:
                stopped = torch.zeros((), dtype=torch.bool, device=self.returns.device)
            steps = [(epoch, k) for epoch in range(self.n_epochs) for k in range(self.n_minibatches)]
            for epoch, k in steps:
                if k == 0 and self._shuffle is not None:
                    self._shuffle.permute()
                stopped = self._step(buffer, self._minibatch(k), stopped, is_last=(epoch, k) == steps[-1])

    def rehearse(self, buffer: RolloutBuffer) -> None:
        """Launch the kernels of gradients, values and steps, for `ahead.compiled`."""
        if self._learning is not None and self.weights is None and not self._normalises_otherwise:
            self._learning.find(fused_loss.Rows(_numbers(self._minibatch(0)), self._values_of_rows))
        if self.critic is None:
            self.compute_values(buffer)
        self.optimiser.rehearse()
        if self._shuffle is not None:
            self._shuffle.rehearse()
        if self._reward_scale is None:
            self._scan.rehearse(self._scanned(buffer, buffer.rewards))

    def prepare(self, buffer: RolloutBuffer) -> None:
        """Prepare the launches of kernels other than Triton's, as their first use does."""
        if self._shuffle is not None:
            self._shuffle.prepared  # noqa: B018
        if self._reward_scale is None:
            self._scan.prepared(self._scanned(buffer, buffer.rewards))

    def _minibatch(self, k: int) -> Rows:
        if self._shuffle is None:
            return slice(0, self._n_rows)
        size = self._n_rows // self.n_minibatches
        return self._shuffle.indices[k * size : (k + 1) * size]

    def _step(self, buffer: RolloutBuffer, rows: Rows, stopped: Tensor, *, is_last: bool) -> Tensor:
        """Take one optimiser step; return True if the policy moved too far."""
        if self._learning is not None and self.weights is None and not self._normalises_otherwise:
            n_counted = None
            named(self._one_pass, self._learning.find)(fused_loss.Rows(_numbers(rows), self._values_of_rows))
            sums = self._learning.terms
        else:
            sums, n_counted = self._gradient(buffer, rows)
        if self.config.target_kl is not None:
            stopped = stopped | (self._over_ranks(sums[3]) > 1.5 * self.config.target_kl)
        skips = [stopped] if self.config.target_kl is not None or self.stopped is not None else []
        if self._negatives is not None and n_counted is not None:
            # Skip minibatches in which no environment counts
            skips.append(self._over_ranks(n_counted) == 0)
        self.optimiser.apply(functools.reduce(torch.logical_or, skips) if skips else None)
        if is_last:
            self._report(sums)
        return stopped

    def _over_ranks(self, number: Tensor) -> Tensor:
        """Average a number over ranks; those of exact training are equal."""
        return average(number) if self._exact is None else number

    def _gradient(self, buffer: RolloutBuffer, rows: Rows) -> tuple[Tensor, Tensor]:
        """Write the gradient of rows; return loss terms and the row count."""
        advantages = self._take(self.advantages, rows)
        weights = None if self.weights is None else self._take(self.weights, rows)
        if self.config.normalize_advantage:
            advantages = self.normalise(advantages, weights)
        n_counted = self._count(advantages, weights)
        total = n_counted.clamp(min=1)
        if self._learning is not None:
            own = advantages if self._values_come_first else None
            chosen = fused_loss.Rows(_numbers(rows), self._values_of_rows, own, weights, total)
            named(self._one_pass, self._learning.find)(chosen)
            return self._learning.terms, n_counted
        sums = torch.zeros(N_TERMS, *self.shape, device=total.device, dtype=torch.float32)
        for index, (part, within) in enumerate(self._parts(rows)):
            with self._shared_by_ranks(part, within) as (mine, place, whole):
                head, values = named("forward", self.evaluate)(buffer, mine)
                if not self._values_come_first:
                    self.values[:-1].flatten(0, 1)[part] = whole(values.detach())
                counts = None if weights is None else weights[place]
                loss, terms = named("loss", self._loss)(
                    buffer, mine, head.float(), values.float(), advantages[place], counts, total
                )
                named("backward", self.optimiser.accumulate)(loss, first=index == 0)
            sums += terms
        return sums, n_counted

    @contextlib.contextmanager
    def _shared_by_ranks(self, rows: Rows, within: Within) -> Iterator[tuple[Rows, Within, Callable[[Tensor], Tensor]]]:
        """Share the rows of a part among the ranks of exact training.

        Yields this rank's rows, their place in the minibatch, and a function from its values (rows, n_agents) to those
        of all rows. Rows of a critic or of sequences are not shared: each rank learns from all of them.
        """
        exact = self._exact
        if exact is None or exact.world.size == 1 or self.critic is not None or self._n_together > 1:
            yield rows, within, lambda values: values
            return
        assert isinstance(within, slice)
        n_agents, first = self.returns.shape[2], within.start
        share = exact.share((within.stop - first) * n_agents, n_agents)
        own = slice(share.start // n_agents, share.stop // n_agents)
        place = slice(first + own.start, first + own.stop)
        with exact.sharing(share):
            yield (
                place if isinstance(rows, slice) else rows[own],
                place,
                lambda values: exact.whole(values.flatten(), share).view(-1, n_agents),
            )

    def evaluate(self, buffer: RolloutBuffer, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return heads (rows, n_agents, n_outputs) and values (rows, n_agents) of rows."""
        if buffer.passes is not None and isinstance(rows, slice):
            kept: tuple[Tensor, Tensor] = self.model(buffer.passes.rows(rows))
            return kept
        observations = self._take(buffer.observations[:-1], rows)
        if self.critic is None:
            outputs: tuple[Tensor, Tensor] = self.model(buffer.seen(observations))
            return outputs
        return self.model.act(observations), self.central_value(buffer, rows)

    def central_value(self, buffer: RolloutBuffer, rows: Rows) -> Tensor:
        """Return values (rows, n_agents) of rows by a centralised critic."""
        states, _ = self._valued(buffer)
        assert self.critic is not None
        values: Tensor = self.critic(self._take(states[:-1], rows))
        return values

    def _parts(self, rows: Rows) -> Iterator[tuple[Rows, Within]]:
        """Split rows into parts for one pass each; yield rows and positions."""
        n_rows = rows.stop if isinstance(rows, slice) else len(rows)
        at_once = self._rows_at_once(n_rows)
        for start in range(0, n_rows, at_once):
            within = slice(start, min(start + at_once, n_rows))
            yield (within if isinstance(rows, slice) else rows[within]), within

    def _rows_at_once(self, n_rows: int) -> int:
        n_agents = self.returns.shape[2]
        at_once = (self._max_rows // n_agents if self._max_rows else n_rows) // self._n_together
        return (at_once // EVEN * EVEN or max(1, at_once)) * self._n_together

    def _take(self, array: Tensor, rows: Rows) -> Tensor:
        """Return rows of an array (n_steps, n_envs, ...); slices are views."""
        flat = array.flatten(0, 1)
        if isinstance(rows, slice):
            return flat[rows]
        return take(flat, rows) if self._gathers else flat.index_select(0, rows)

    # -------------------------------------------------------------- loss

    def _loss(
        self,
        buffer: RolloutBuffer,
        rows: Rows,
        head: Tensor,
        values: Tensor,
        advantages: Tensor,
        weights: Tensor | None,
        total: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of rows and its terms (policy, value, entropy, KL, clipping)."""
        # The kernel selects rows by index.
        picked = slice(None) if self._is_fused and not isinstance(rows, slice) else rows
        minibatch = Minibatch(
            masks=None if buffer.masks is None else self._take(buffer.masks[:-1], picked),
            actions=self._take(buffer.actions, picked),
            log_probs=self._take(buffer.log_probs, picked),
            old_values=self._take(self.values[:-1], picked),
            returns=self._take(self.returns, picked),
            advantages=advantages,
            weights=weights,
        )
        rule = self._rule
        if self._is_fused:
            rows_of = minibatch if self._values_come_first else minibatch._replace(advantages=None)
            given: dict[str, Any] = {"log_std": self._log_std, "indices": _numbers(rows), "is_root": True}
            return fused_loss.loss(self._space, head, values, rows_of, rule, total, **given)
        if not self._values_come_first:
            minibatch = minibatch._replace(advantages=minibatch.returns - values.detach())
        if self._exact is not None:
            return self._exact_loss(self._exact, head, values, minibatch, total)
        *terms, log_ratio = self._terms(minibatch, head, values)
        means = [self._sum(term, weights) / total for term in terms]
        loss = means[0] + rule.vf_loss_coeff * means[1] - rule.entropy_coeff * means[2]
        with torch.no_grad():
            kl = self._sum(losses.approximate_kl(log_ratio), weights) / total
            clipped = self._sum(losses.clip_fraction(log_ratio, rule.clip_param), weights) / total
            return loss, torch.stack([*(mean.detach() for mean in means), kl, clipped])

    def _exact_loss(
        self, exact: Exact, head: Tensor, values: Tensor, rows: Minibatch, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return loss and terms by exact kernels."""
        return exact.loss(self._space, head, values, rows, self._rule, total, self._log_std)

    def _terms(self, rows: Minibatch, head: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return policy, value and entropy terms and log-ratios, by row and agent."""
        log_prob, entropy = losses.log_prob_and_entropy(self._space, head, rows.actions, rows.masks, self._log_std)
        log_ratio = log_prob - rows.log_probs
        assert rows.advantages is not None
        if self.is_clipped:
            policy = losses.clipped_surrogate_loss(log_ratio, rows.advantages, self._rule.clip_param)
        else:
            policy = losses.policy_gradient_loss(log_prob, rows.advantages)
        value = losses.value_loss(values, rows.returns, rows.old_values, self._rule.value_clip)
        return policy, value, entropy, log_ratio.detach()

    @property
    def _log_std(self) -> Tensor | None:
        """Log standard deviation of the Gaussian, which broadcasts to heads."""
        found: Tensor | None = getattr(self.model, "log_std", None)
        return found

    def _sum(self, term: Tensor, weights: Tensor | None) -> Tensor:
        return (term if weights is None else term * weights).sum()

    def _count(self, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Return the number of counted entries of (rows, n_agents), 0-d."""
        if weights is None:
            return torch.full((), float(rows.numel()), device=rows.device, dtype=torch.float32)
        return weights.sum(dtype=torch.float64).float() * rows.shape[1]

    # -------------------------------------------------------------- metrics and state

    @torch.no_grad()
    def _report(self, sums: Tensor) -> None:
        policy, value, entropy, *_ = sums.unbind()
        loss = policy.addcmul(self.scheduled["vf_loss_coeff"], value)
        loss = loss.addcmul(self.scheduled["entropy_coeff"], entropy, value=-1)
        if not self._values_come_first:
            torch.sub(self.returns, self.values[:-1], out=self.advantages)
        torch.stack((loss, *sums.unbind(), *self._figures()), out=self._numbers)

    def _figures(self) -> tuple[Tensor, ...]:
        """Return explained variance, and weighted mean value, advantage and return."""
        errors = self.returns - self.values[:-1] if self._values_come_first else self.advantages
        explained, error, returns = losses.fit(errors, self.returns, self.weights)
        advantages = losses.mean(self.advantages, self.weights) if self._values_come_first else error
        return explained, returns - error, advantages, returns

    def state(self) -> dict[str, Tensor]:
        """Return live tensors of the optimiser and the reward scaling."""
        parts = {"optimiser": self.optimiser, "rewards": self._reward_scale}
        return {f"{part}/{name}": each for part, of in parts.items() if of for name, each in of.state().items()}

    def rank_state(self) -> dict[str, Tensor]:
        """Return live counters of draws, and the returns of running episodes."""
        drawn = {"shuffle": self._shuffle, "negatives": self._negatives}
        states = {name: each.state() for name, each in drawn.items() if each is not None}
        if self._reward_scale is not None:
            states["rewards"] = self._reward_scale.rank_state()
        return {f"{name}/{key}": tensor for name, state in states.items() for key, tensor in state.items()}


class A2C(ActorCriticAlgorithm):
    """Advantage actor-critic with one step on the whole rollout.

    Loss: ``-log pi(a) A + vf_loss_coeff (V - R)^2 - entropy_coeff H``, the mean over the rollout.

    Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", algorithm S3, with all
    environments synchronous.
    """

    is_clipped: ClassVar[bool] = False
    default_lambda: ClassVar[float] = 1.0


class PPO(ActorCriticAlgorithm):
    """Proximal policy optimisation: epochs of minibatches with a clipped ratio.

    Loss: ``-min(r A, clip(r, 1 - clip_param, 1 + clip_param) A) + vf_loss_coeff (V - R)^2 - entropy_coeff H``.
    ``r`` is the ratio of the action's probability now to its probability when drawn. With ``value_clip`` the value's
    change counts up to that distance only, if this makes the error larger. With ``target_kl`` an update ends once the
    policy has moved by 1.5 times that divergence.

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7 and 9.
    """

    is_clipped: ClassVar[bool] = True
    default_lambda: ClassVar[float] = 0.95

    @property
    def n_epochs(self) -> int:
        """Passes of an update over the rollout, as configured."""
        return self.config.n_epochs

    @property
    def n_minibatches(self) -> int:
        """Minibatches of a pass, as configured."""
        return self.config.n_minibatches


def _numbers(rows: Rows) -> Tensor | None:
    """Return the indices of rows; None: all of them in order."""
    return None if isinstance(rows, slice) else rows
