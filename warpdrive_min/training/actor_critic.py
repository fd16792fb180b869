"""What A2C and PPO share: values, returns, advantages, and the way through a rollout's rows in minibatches."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Final, NamedTuple

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.training import losses
from warpdrive_min.training.config import PolicyConfig, TrainerConfig
from warpdrive_min.training.fused import is_supported
from warpdrive_min.training.fused import loss as fused_loss
from warpdrive_min.training.fused.rows import take
from warpdrive_min.training.optimiser import FlatAdam
from warpdrive_min.training.precision import precision
from warpdrive_min.training.ranks import average
from warpdrive_min.training.returns import ReturnScan
from warpdrive_min.training.rollout import Batch
from warpdrive_min.training.seats import Seat
from warpdrive_min.training.shuffle import Shuffle

Row = torch.Tensor | slice
"""Which rows (step, environment) of a rollout: their numbers, or a slice of all in order."""

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
"""Parts have a multiple of so many rows: kernels then load several numbers at once."""


class Rows(NamedTuple):
    """Some rows of a rollout, (rows, n_agents, ...) each."""

    observations: torch.Tensor
    masks: torch.Tensor | None
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    returns: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor | None
    """(rows, 1): 0 where a row does not count; None: all do."""


class Terms(NamedTuple):
    """What the loss of some rows is made of, one number a row and agent."""

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor


class ActorCriticAlgorithm(abc.ABC):
    """Learns from a rollout: `update` is all of it, and a CUDA graph captures it whole.

    Args:
        policy: Name of the policy.
        config: Its settings.
        trainer: Those that all policies share.
        model: Offers ``model(observations) -> (head, value)`` and ``value``.
        seat: The policy's agents.
        batch: What they saw and did.
        backend: Of the environments.
        seed: Of the order of minibatches.
    """

    def __init__(
        self,
        policy: str,
        config: PolicyConfig,
        trainer: TrainerConfig,
        model: Any,
        seat: Seat,
        batch: Batch,
        backend: Backend,
        seed: int,
    ) -> None:
        self.policy, self.config, self.model = policy, config, model
        self._space, self._batch = seat.space, batch
        self._precision, self._max_rows = trainer.precision, trainer.max_rows
        self._is_compat = trainer.compat == "warpdrive"
        self._ratio = trainer.neg_pos_env_ratio
        n_steps, n_envs, n_agents = batch.rewards.shape
        device = batch.rewards.device
        self._is_fused = getattr(config.model, "fused", None) is not False and is_supported(device)
        self.scheduled = {name: torch.zeros((), device=device) for name in ("lr", "vf_loss_coeff", "entropy_coeff")}
        """Numbers that may change with time, 0-d; written before each update."""
        self.optimiser = FlatAdam(
            model.parameters(),
            self.scheduled["lr"],
            config.max_grad_norm if config.clip_grad_norm else None,
            config.adam_eps,
        )
        self.metrics = {name: torch.zeros((), device=device) for name in METRICS}
        """Of the last minibatch of the last update, 0-d."""
        self.metrics["gradient_norm"] = self.optimiser.norm
        self.metrics["n_skipped_steps"] = self.optimiser.n_skipped
        self._values = torch.zeros(n_steps + 1, n_envs, n_agents, device=device)
        self._returns = torch.zeros(n_steps, n_envs, n_agents, device=device)
        self._advantages = torch.zeros_like(self._returns)
        self._cut_values = None if batch.cuts is None else torch.zeros(batch.cuts.shape[:3], device=device)
        self._weights = torch.ones(n_steps, n_envs, 1, device=device) if self._ratio > 0 else None
        lam = 1.0 if self._is_compat else config.gae_lambda if config.gae_lambda is not None else self.default_lambda
        self._scan = ReturnScan(backend, n_envs, n_agents, config.gamma, lam, compat=self._is_compat)
        self._n_rows = n_steps * n_envs
        self._shuffle = Shuffle(backend, self._n_rows, seed) if self.n_minibatches > 1 else None
        self._negatives = Shuffle(backend, n_envs, seed + 1) if self._ratio > 0 else None
        is_once = self.n_epochs == self.n_minibatches == 1
        is_plain = lam == 1 and not (config.normalize_advantage or config.normalize_return or self._is_compat)
        self._values_come_first = not (is_once and is_plain)
        """Advantages need all values before the first step; else the pass that learns gives them too."""

    default_lambda: ClassVar[float]
    """Of generalised advantages, where the config names none."""
    is_clipped: ClassVar[bool]
    """The policy's term is the clipped surrogate, and values may be clipped; else it is the policy gradient."""

    @property
    @abc.abstractmethod
    def n_epochs(self) -> int:
        """Times that an update goes through the rollout."""

    @property
    @abc.abstractmethod
    def n_minibatches(self) -> int:
        """Steps of the optimiser in each."""

    @abc.abstractmethod
    def terms(self, rows: Rows, head: torch.Tensor, values: torch.Tensor) -> Terms:
        """Return the terms of the loss of some rows, which the present head and values belong to."""

    # -------------------------------------------------------------- update

    def update(self) -> None:
        """Learn from the rollout in the batch; enqueues, does not synchronise."""
        with precision(self._precision, self._returns.device):
            if self._negatives is not None and self._weights is not None:
                self._choose_environments(self._negatives, self._weights)
            self._evaluate()
            stopped = torch.zeros((), dtype=torch.bool, device=self._returns.device)
            steps = [(epoch, k) for epoch in range(self.n_epochs) for k in range(self.n_minibatches)]
            for epoch, k in steps:
                if k == 0 and self._shuffle is not None:
                    self._shuffle.permute()
                stopped = self._step(self._minibatch(k), stopped, is_last=(epoch, k) == steps[-1])

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Fill returns, and values and advantages where the steps need them."""
        batch, (n_steps, n_envs, n_agents) = self._batch, self._returns.shape
        at_once = max(1, (self._max_rows or self._n_rows * n_agents) // (n_envs * n_agents))
        for start in range(0 if self._values_come_first else n_steps, n_steps + 1, at_once):
            part = slice(start, start + at_once)
            self._values[part] = self.model.value(batch.observations[part])
        if self._cut_values is not None and batch.cuts is not None:
            self._cut_values.copy_(self.model.value(batch.cuts))
        self._scan.scan(
            batch.rewards,
            self._values[:-1] if self._values_come_first else None,
            batch.terminated,
            batch.truncated,
            self._values[-1],
            self._cut_values,
            self._advantages if self._values_come_first else None,
            self._returns,
        )
        if self.config.normalize_return:
            self._returns.copy_(losses.normalise(self._returns, self._weights, per_row=self._is_compat))
            self._advantages.copy_(self._returns - self._values[:-1])

    def _choose_environments(self, order: Shuffle, into: torch.Tensor) -> None:
        """Weigh environments: those with a success 1, and of the others ``neg_pos_env_ratio`` as many, at random."""
        is_positive = self._batch.successes.any(0)
        n_positive = is_positive.sum()
        n_negative = (self._ratio * n_positive).floor()
        order.permute()
        shuffled = ~is_positive[order.indices]
        chosen = shuffled & (shuffled.cumsum(0) <= n_negative)
        weights = is_positive.float().index_add(0, order.indices, chosen.float())
        takes_all = (n_positive == 0) | (n_positive + n_negative >= len(is_positive))
        into.copy_(torch.where(takes_all, 1.0, weights)[None, :, None].expand_as(into))

    def _minibatch(self, k: int) -> Row:
        if self._shuffle is None:
            return slice(0, self._n_rows)
        size = self._n_rows // self.n_minibatches
        return self._shuffle.indices[k * size : (k + 1) * size]

    def _step(self, row: Row, stopped: torch.Tensor, *, is_last: bool) -> torch.Tensor:
        """Take one step of the optimiser; returns whether the policy has moved too far for further ones."""
        advantages = self._take(self._advantages, row)
        weights = None if self._weights is None else self._take(self._weights, row)
        if self.config.normalize_advantage:
            advantages = self._normalised(advantages, weights)
        n_counted = _count(advantages, weights)
        total = n_counted.clamp(min=1)
        sums = torch.zeros(5, device=total.device)
        for index, (part, within) in enumerate(self._parts(row)):
            head, values = self.model(self._take(self._batch.observations[:-1], part))
            if not self._values_come_first:
                self._values[:-1].flatten(0, 1)[part] = values.detach()
            counts = None if weights is None else weights[within]
            loss, terms = self._loss(part, head.float(), values.float(), advantages[within], counts, total)
            self.optimiser.accumulate(loss, first=index == 0)
            sums += terms
        if self.config.target_kl is not None:
            stopped = stopped | (average(sums[3]) > 1.5 * self.config.target_kl)
        skips = [stopped] if self.config.target_kl is not None else []
        if self._negatives is not None:  # a minibatch in which no environment counts teaches nothing
            skips.append(average(n_counted) == 0)
        self.optimiser.apply(functools.reduce(torch.logical_or, skips) if skips else None)
        if is_last:
            self._report(sums)
        return stopped

    def _loss(
        self,
        part: Row,
        head: torch.Tensor,
        values: torch.Tensor,
        advantages: torch.Tensor,
        weights: torch.Tensor | None,
        total: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of some rows, and what it is made of: policy, value, entropy, KL and clipped rows."""
        if self._is_fused:
            return self._fused_loss(part, head, values, advantages, weights, total)
        rows = self._rows(part, advantages, weights)
        if not self._values_come_first:
            rows = rows._replace(advantages=rows.returns - values.detach())
        terms = self.terms(rows, head, values)
        means = [_sum(term, weights) / total for term in (terms.policy, terms.value, terms.entropy)]
        loss = means[0] + self.scheduled["vf_loss_coeff"] * means[1] - self.scheduled["entropy_coeff"] * means[2]
        with torch.no_grad():
            kl = _sum(losses.approximate_kl(terms.log_ratio), weights) / total
            clipped = _sum(losses.clip_fraction(terms.log_ratio, self.config.clip_param), weights) / total
            return loss, torch.stack([*(mean.detach() for mean in means), kl, clipped])

    def _fused_loss(
        self,
        part: Row,
        head: torch.Tensor,
        values: torch.Tensor,
        advantages: torch.Tensor,
        weights: torch.Tensor | None,
        total: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._batch

        def rows(array: torch.Tensor) -> torch.Tensor:
            flat = array.flatten(0, 1)
            return flat[part] if isinstance(part, slice) else flat

        return fused_loss.loss(
            self._space,
            head,
            values,
            actions=rows(batch.actions),
            log_probs=rows(batch.log_probs),
            returns=rows(self._returns),
            masks=None if batch.masks is None else rows(batch.masks[:-1]),
            old_values=rows(self._values[:-1]),
            advantages=advantages if self._values_come_first else None,
            weights=None if weights is None else weights[:, 0],
            total=total,
            vf_loss_coeff=self.scheduled["vf_loss_coeff"],
            entropy_coeff=self.scheduled["entropy_coeff"],
            log_std=getattr(self.model, "log_std", None),
            indices=None if isinstance(part, slice) else part,
            clip_param=self.config.clip_param,
            is_clipped=self.is_clipped,
            value_clip=self.config.value_clip if self.is_clipped else None,
            is_root=True,
        )

    def _normalised(self, advantages: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        if not self._is_compat:
            return losses.normalise(advantages, weights)
        in_order = advantages.view_as(self._advantages)  # the rows are all of them
        return losses.normalise(in_order, self._weights, per_row=True).view_as(advantages)

    def _parts(self, row: Row) -> Iterator[tuple[Row, slice]]:
        """Split rows into parts that are passed through the model at once: their rows, and where they lie within."""
        n_agents = self._returns.shape[2]
        n_rows = row.stop if isinstance(row, slice) else len(row)
        at_once = self._max_rows // n_agents if self._max_rows else n_rows
        at_once = at_once // EVEN * EVEN or max(1, at_once)
        for start in range(0, n_rows, at_once):
            within = slice(start, min(start + at_once, n_rows))
            yield (within if isinstance(row, slice) else row[within]), within

    def _rows(self, row: Row, advantages: torch.Tensor, weights: torch.Tensor | None) -> Rows:
        batch = self._batch
        return Rows(
            observations=self._take(batch.observations[:-1], row),
            masks=None if batch.masks is None else self._take(batch.masks[:-1], row),
            actions=self._take(batch.actions, row),
            log_probs=self._take(batch.log_probs, row),
            values=self._take(self._values[:-1], row),
            returns=self._take(self._returns, row),
            advantages=advantages,
            weights=weights,
        )

    def _take(self, array: torch.Tensor, row: Row) -> torch.Tensor:
        """Return rows of an array (n_steps, n_envs, ...); slices are views."""
        flat = array.flatten(0, 1)
        if isinstance(row, slice):
            return flat[row]
        return take(flat, row) if self._is_fused else flat.index_select(0, row)

    def log_prob_and_entropy(self, rows: Rows, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of the rows' actions now, and the entropy, (rows, n_agents) each."""
        log_std = getattr(self.model, "log_std", None)
        return losses.log_prob_and_entropy(self._space, head, rows.actions, rows.masks, log_std)

    # -------------------------------------------------------------- metrics and state

    @torch.no_grad()
    def _report(self, sums: torch.Tensor) -> None:
        policy, value, entropy, kl, clipped = sums.unbind()
        loss = policy + self.scheduled["vf_loss_coeff"] * value - self.scheduled["entropy_coeff"] * entropy
        values = self._values[:-1]
        if not self._values_come_first:
            torch.sub(self._returns, values, out=self._advantages)
        for name, number in {
            "loss": loss,
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approximate_kl": kl,
            "clip_fraction": clipped,
            "explained_variance": losses.explained_variance(values, self._returns, self._weights),
            "mean_value": values.mean(),
            "mean_advantage": self._advantages.mean(),
            "mean_discounted_return": self._returns.mean(),
        }.items():
            self.metrics[name].copy_(number)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors of the optimiser."""
        return {f"optimiser/{name}": tensor for name, tensor in self.optimiser.state().items()}

    def own_state(self) -> dict[str, torch.Tensor]:
        """Return the live counters of what is drawn."""
        drawn = {"shuffle": self._shuffle, "negatives": self._negatives}
        return {
            f"{name}/{key}": tensor
            for name, each in drawn.items()
            if each is not None
            for key, tensor in each.state().items()
        }


def _sum(term: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    return (term if weights is None else term * weights).sum()


def _count(rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return how many of (rows, n_agents) count, 0-d."""
    if weights is None:
        return torch.full((), float(rows.numel()), device=rows.device)
    return weights.sum() * rows.shape[1]
