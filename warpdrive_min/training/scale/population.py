"""Trainer of a population: many independent agents in one training loop.

The agents, called members, differ in seeds and settings.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import CUDAEnvironmentContext
from warpdrive_min.errors import TrainingError, require
from warpdrive_min.training.config import Member, RunConfig
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop import checkpoint, metrics, sinks
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, Row
from warpdrive_min.training.loop.policies import Tensors
from warpdrive_min.training.models.members import BEST, BEST_RETURNS, Members
from warpdrive_min.training.trainer import Trainer

log = logging.getLogger(__name__)

MEMBERS_FILE: Final = "members.csv"
"""Name of a run's file with a row for each member and logged iteration."""
QUANTILES: Final = (0, 0.25, 0.5, 0.75, 1)
"""Quantiles of the members' returns in a row: minimum, quartiles, maximum."""
NOT_REACHED: Final = -1


class PopulationTrainer(Trainer):
    """Trainer of ``population.size`` members, each as a `Trainer` trains one agent.

    Environments, batches and steps of the run config are those of one member. The wrapper has the environments of all
    members, in blocks of ``num_envs`` each. An env step is one launch for all, and a layer is one batched product.
    Members share nothing: each has its own weights, moments, minibatches, gradient norms and rates. A member stops
    learning when it reaches ``trainer.stop_return`` or its numbers are not finite; the others continue.

    Arguments are those of `Trainer`.

    Raises:
        ConfigError: As in `Trainer`, or the run config is not of a population.
        BackendUnavailable: As in `Trainer`.
    """

    has_members: ClassVar[bool] = True

    @own_defaults()
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        do = "start one process for each population"
        require(self.world.size == 1, "population", "trains in one process", f"{self.world.size} ranks", do)
        (self.group,) = self.groups.values()
        self.members: list[Member] = list(self.group.members)
        """Seed and settings of each member."""
        n_members = len(self.members)
        self._reached_at = torch.full((n_members,), NOT_REACHED, dtype=torch.int64, device="cpu")
        self._has_failed = torch.zeros(n_members, dtype=torch.bool, device="cpu")
        keeps = self.config.saving.keep_best
        self._best = {name: tensor.clone() for name, tensor in self.group.weights().items()} if keeps else {}
        self._best_returns = torch.full((n_members,), -math.inf, dtype=torch.float32, device="cpu")
        self._was_stopped = self._has_stopped()
        """Members that had stopped before the last row, (members,) NumPy bool."""
        self._failure = ""
        self._table: sinks.Csv | None = None

    @property
    def network(self) -> Members:
        """Networks of all members."""
        network: Members = self.group.models["model"]
        return network

    @property
    def recent_returns(self) -> list[float | None]:
        """Mean return of each member, like `recent_return`."""
        means = self._recent.means.get(self.group.name, np.full(len(self.members), math.nan))
        return [float(mean) if math.isfinite(mean) else None for mean in means]

    @property
    def reached_at(self) -> dict[int, int]:
        """Env steps (of one member) to ``trainer.stop_return``, by member number.

        Members that have not reached it are missing.
        """
        return {member: int(steps) for member, steps in enumerate(self._reached_at.tolist()) if steps != NOT_REACHED}

    @property
    def failed(self) -> list[int]:
        """Numbers of the members whose results were not finite."""
        return torch.nonzero(self._has_failed).flatten().tolist()

    # -------------------------------------------------------------- log

    @own_defaults()
    def log_metrics(self) -> Row:
        """Copy the metrics of all members to the host and write them; synchronises.

        Raises:
            TrainingError: All members had numbers that were not finite; names the last one.
        """
        row = super().log_metrics()
        if self._has_failed.all():
            raise TrainingError(f"population: {self._failure}; all other members have failed before")
        return row

    def _check_numbers(self, updates: metrics.Numbers, episodes: metrics.Numbers, last_iteration: int) -> None:
        """Stop members whose numbers are not finite."""
        self._was_stopped = self._has_stopped()
        numbers, n_envs = updates[self.group.name], self.config.trainer.num_envs
        is_broken = np.any([wrong for each in metrics.faults(numbers).values() for wrong in each.values()], 0)
        for member in np.flatnonzero(is_broken & ~self._was_stopped).tolist():
            who = f"{self.group.name}/member {member}"
            of_member = {name: float(values[member]) for name, values in numbers.items()}
            try:
                metrics.check_finite(who, of_member, self.iteration, self.env_steps, last_iteration)
            except TrainingError as error:
                cause = self.check.non_finite_error(self.iteration, slice(member * n_envs, (member + 1) * n_envs))
                self._failure = f"{who}: {cause}" if cause else str(error)
                log.warning("%s; this member stops learning", self._failure)
                self._has_failed[member] = True
        self._mark_stopped()

    def _evaluated_returns(self) -> dict[str, Any]:
        return {self.group.name: np.array([score.mean_return for score in self.evaluate().values()])}

    def _has_reached_target(self, least: Mapping[str, float]) -> bool:
        """Record members at the wanted return; True if all stopped."""
        returns = self._recent.means[self.group.name]
        is_reached = (returns >= least.get(self.group.name, math.inf)) & ~self._has_stopped()
        self._reached_at[torch.from_numpy(is_reached)] = self.env_steps
        self._mark_stopped()
        return bool(self._has_stopped().all())

    def _has_stopped(self) -> Any:
        """Return a mask of members that stopped learning, (members,) NumPy bool."""
        return ((self._reached_at != NOT_REACHED) | self._has_failed).numpy()

    def _mark_stopped(self) -> None:
        assert self.group.stopped is not None
        self.group.stopped.copy_(torch.from_numpy(self._has_stopped()))

    def _write_row(self, row: Mapping[str, Any]) -> Row:
        """Write means to the sinks, and a row per active member."""
        prefix = f"{self.group.name}/"
        columns = {name.removeprefix(prefix): each for name, each in row.items() if isinstance(each, np.ndarray)}
        finite = {name: values[np.isfinite(values)] for name, values in columns.items()}
        means = {name: float(values.mean()) if len(values) else math.nan for name, values in finite.items()}
        returns = finite[EPISODIC_RETURN]
        quartiles = np.quantile(returns, QUANTILES) if len(returns) else np.full(len(QUANTILES), math.nan)
        summary = {
            **means,
            **{f"{EPISODIC_RETURN}_q{share * 100:g}": float(q) for share, q in zip(QUANTILES, quartiles, strict=True)},
            "members_that_reached": len(self.reached_at),
            "members_that_failed": len(self.failed),
        }
        of_run = {name: each for name, each in row.items() if not name.startswith(prefix)}
        written = super()._write_row(of_run | {prefix + name: each for name, each in summary.items()})
        self._write_members(row, columns)
        return written

    def _write_members(self, row: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        if not (self._saves and self.config.saving.sinks):
            return
        if self._table is None:
            self._table = sinks.Csv(self.folder / MEMBERS_FILE, self._files.resumed_from)
        n_seeds = len(self.members) // self.config.population.n_settings
        rows = [
            {
                **{name: row[name] for name in ("iteration", "env_steps", "seconds")},
                "member": index,
                "seed": self.members[index].seed,
                "setting": index // n_seeds,
                **{key: value for key, value in self.members[index].setting.items() if not isinstance(value, list)},
                **{name: float(values[index]) for name, values in columns.items()},
            }
            for index in np.flatnonzero(~self._was_stopped).tolist()
        ]
        if rows:
            self._table.write(*rows)

    def _close_sinks(self) -> None:
        super()._close_sinks()
        if self._table is not None:
            self._table.close()
        self._table = None

    # -------------------------------------------------------------- checkpoints

    def _is_best(self) -> bool:
        """Play greedy episodes and save the weights of members at their best.

        Returns False: the best weights are per member, not per checkpoint.
        """
        if self._best:
            scores = self._greedy_scores()
            returns = torch.tensor([score.mean_return for score in scores.values()], dtype=torch.float32, device="cpu")
            is_better = (returns >= self._best_returns) & returns.isfinite()
            self._best_returns[is_better] = returns[is_better]
            self.best_return = float(self._best_returns.max())
            chosen = is_better.to(self.group.arrays.rewards.device)
            for name, tensor in self.group.weights().items():
                mask = chosen.view(-1, *(1,) * (tensor.dim() - 1))
                self._best[name].copy_(torch.where(mask, tensor, self._best[name]))
        return False

    def _shared_state(self) -> Tensors:
        best = {f"{BEST}{name}": tensor for name, tensor in self._best.items()}
        state = {BEST_RETURNS: self._best_returns} if best else {}
        state |= {"population/reached_at": self._reached_at, "population/failed": self._has_failed}
        return super()._shared_state() | best | state

    def load_state(self, saved: Mapping[str, torch.Tensor], header: checkpoint.Header, found: str | Path) -> None:
        """Resume exactly from the result of `state`; synchronises.

        Raises:
            CheckpointError: As in `Trainer.load_state`.
        """
        super().load_state(saved, header, found)
        self._mark_stopped()


def trainer_class(config: RunConfig) -> type[Trainer]:
    """Return the trainer for a run config: of one agent or of a population."""
    return Trainer if config.population.size is None else PopulationTrainer


def replay_trainer(env: CUDAEnvironmentContext, config: RunConfig) -> Trainer:
    """Return a run at its start, on its config's backend, that writes no files."""
    trainer = config.trainer
    wrapper = EnvWrapper(
        env,
        num_envs=trainer.num_envs * (config.population.size or 1),
        env_backend=trainer.env_backend,
        auto_reset=True,
        exact=trainer.exact,
    )
    return trainer_class(config)(wrapper, config, verbose=False, saves=False)
