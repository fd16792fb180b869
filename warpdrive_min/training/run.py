"""Metrics, state and checkpoints of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import CheckpointError, require
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop import checkpoint, metrics
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, Row
from warpdrive_min.training.loop.policies import ActionSampler, PolicyGroup, Tensors, is_weight
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.loop.rollout_check import RolloutCheck, require_finite_state
from warpdrive_min.training.loop.sinks import Sink
from warpdrive_min.training.paths.captured import Captured
from warpdrive_min.training.ranks import World
from warpdrive_min.training.run_folder import RunFolder

if TYPE_CHECKING:
    from warpdrive_min.training.build import ScheduledTensors
    from warpdrive_min.training.loop.evaluation import Score


class Run:
    """Metrics, state and checkpoints of a run; `Trainer` adds the iteration.

    Args:
        config: Run config.
        env_wrapper: Environments.
        policies: Agents of each policy.
        layout: Layout of the agents in the arrays.
        folder: Name of the run's folder; None: the time.
        saves: Write settings, metrics and checkpoints; False: no file.
    """

    has_members: ClassVar[bool] = False
    """True if it trains a population."""
    adds_to_folders: ClassVar[bool] = False
    """True if it may share an earlier run's folder, as in WarpDrive."""

    groups: dict[str, PolicyGroup]
    """Policies by name."""
    recorders: dict[str, RolloutRecorder]
    """Recorders of rewards, by the suffix of their array's name."""
    action_samplers: list[ActionSampler]
    schedules: ScheduledTensors
    check: RolloutCheck
    """Checks of the environments' outputs."""
    _collect: Captured
    _update: Captured
    _is_first_rollout: bool

    def evaluate(self, n_episodes: int = 100, *, greedy: bool = True, seed: int = 0) -> dict[str, Score]:
        """Return each policy's score in separate whole episodes; synchronises."""
        raise NotImplementedError

    def _greedy_scores(self) -> dict[str, Score]:
        """Return scores in greedy episodes, the same for every checkpoint."""
        raise NotImplementedError

    def __init__(
        self,
        config: RunConfig,
        env_wrapper: EnvWrapper,
        policies: dict[str, list[Any]],
        layout: SharedLayout,
        folder: str | Path | None,
        *,
        saves: bool,
    ) -> None:
        self.config, self.wrapper, self.policy_map, self.layout = config, env_wrapper, policies, layout
        self.world, trainer, self._saves = World.of(), config.trainer, saves
        self.iteration = 0
        """Number of finished iterations."""
        self.env_steps = 0
        """Env steps done, over the environments of all ranks."""
        self.seed = self.world.agreed(trainer.seed if trainer.seed is not None else time.time_ns() % 2**31)
        self.best_return: float | None = None
        """Mean return of the best checkpoint when saved; None if absent."""
        self._recent = metrics.RecentReturns(trainer.num_envs * env_wrapper.episode_length * self.world.size)
        self.recent_return: dict[str, float | None] = {}
        """Mean return by policy, over rows that span a full episode everywhere."""
        self.has_reached_return = False
        """True if training stopped because policies reached ``trainer.stop_return``."""
        self._files = RunFolder(config, folder, self.world, is_shared=self.adds_to_folders)
        self._writer = checkpoint.Writer()
        self._has_begun = False

    def _start_clock(self) -> None:
        self._started = time.perf_counter()
        """Start time of the run, corrected for interruptions."""
        self._last_log = (self._started, 0)

    @property
    def folder(self) -> Path:
        """Folder of settings, metrics and checkpoints; created on access if unnamed."""
        return self._files.path

    @property
    def steps_per_iteration(self) -> int:
        """Env steps of an iteration, over the environments of all ranks."""
        return self.config.trainer.train_batch_size * self.world.size

    @property
    def target_returns(self) -> Mapping[str, float]:
        """Mean return at which training stops, by policy: ``trainer.stop_return``."""
        least = self.config.trainer.stop_return
        if isinstance(least, Mapping):
            return least
        return {} if least is None else dict.fromkeys(self._learners, least)

    # -------------------------------------------------------------- rows

    @property
    def recent_steps(self) -> tuple[int, int]:
        """Env steps of `recent_return`, and of the last row alone."""
        return self._recent.spans

    @own_defaults()
    def log_metrics(self) -> Row:
        """Log metrics since the last call, with one copy; synchronises.

        Raises:
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration.
        """
        # Enqueued together while the GPU still runs
        updates, episodes, sums = metrics.read(self.groups.values(), self.recorders, self.world, self.check.sums())
        last_iteration = self._last_log[1]
        rates = self._rates()
        evaluated = self._evaluated_returns() if self.config.trainer.evaluator else {}
        row = metrics.make_row(
            self.iteration,
            self.env_steps,
            time.perf_counter() - self._started,
            {name: episodes[name] | updates.get(name, {}) | self._scheduled(name) for name in self.groups},
            **rates,
            **{f"{name}/evaluated_return": mean_return for name, mean_return in evaluated.items()},
        )
        self._check_environments(sums)
        self._check_numbers(updates, episodes, last_iteration)
        if self.world.size > 1:
            self.world.check_equal(self._shared_state())
        self._clear_statistics()
        self.recent_return = self._recent.add(row, list(self.groups))
        if self.target_returns:
            self.has_reached_return = self._has_reached_target(self.target_returns)
        return self._write_row(row)

    def _check_numbers(self, updates: metrics.Numbers, episodes: metrics.Numbers, last_iteration: int) -> None:
        """Check that training can continue with the numbers of `metrics.read`."""
        for name, means in episodes.items():
            if means["episodes"]:
                metrics.check_return(name, means[EPISODIC_RETURN], f" at iteration {self.iteration:,}")
        for name, numbers in updates.items():
            metrics.check_finite(name, numbers, self.iteration, self.env_steps, last_iteration)

    def _evaluated_returns(self) -> dict[str, Any]:
        """Return the mean return of greedy episodes, by policy."""
        return {name: score.mean_return for name, score in self.evaluate().items()}

    def _has_reached_target(self, least: Mapping[str, float]) -> bool:
        """Return True if all named policies reach their target returns."""
        returns = [(self.recent_return[name], wanted) for name, wanted in least.items()]
        return bool(returns) and all(got is not None and got >= wanted for got, wanted in returns)

    def _write_row(self, row: Row) -> Row:
        """Write a row to the sinks, and return it."""
        if self.world.is_first:
            for sink in self._open_sinks():
                sink.write(row)
        return row

    def _clear_statistics(self) -> None:
        """Reset the statistics of ended episodes and impossible draws; enqueues."""
        for recorder in self.recorders.values():
            recorder.clear_statistics()
        for actions in self.action_samplers:
            if actions.impossible is not None:
                actions.impossible.zero_()

    def _rates(self) -> dict[str, float]:
        """Return speed and times since the last call; synchronises."""
        now, (before, logged) = time.perf_counter(), self._last_log
        self._last_log = (now, self.iteration)
        n_members = self.config.population.size or 1
        return {
            metrics.STEPS_PER_S: (self.iteration - logged) * self.steps_per_iteration * n_members / (now - before),
            "rollout_s": self._collect.take_seconds(),
            "update_s": self._update.take_seconds(),
        }

    def _scheduled(self, policy: str) -> dict[str, Any]:
        """Return a policy's scheduled values now; (members,) for a population."""
        group = self.groups[policy]
        scheduled = {} if group.algorithm is None else group.algorithm.scheduled
        values = {key: self.schedules.values(tensor) for key, tensor in scheduled.items()}
        return {key: np.array(each) if group.members else each[0] for key, each in values.items()}

    def _open_sinks(self) -> list[Sink]:
        return self._files.open_sinks(self.seed) if self._saves else []

    def _close_sinks(self) -> None:
        self._files.close_sinks()
        self._has_begun = False

    def _check_environments(self, sums: Mapping[str, float] | None = None, *, is_first: bool = False) -> None:
        """Check the outputs of the environments; synchronises.

        Args:
            sums: Those of `RolloutCheck.sums`, if they are read.
            is_first: Check everything.

        Raises:
            TrainingError: A number is not finite, or the environments broke their contract.
        """
        if is_first or self.check.is_suspect(sums):
            # One member may fail alone
            if not self.has_members and (error := self.check.non_finite_error(self.iteration)) is not None:
                raise error
            self.check.require_contract()

    # -------------------------------------------------------------- checkpoints

    @own_defaults()
    def save_checkpoint(self, *, wait: bool = True) -> Path | None:
        """Save the run; return its path on the first rank; synchronises.

        A trainer with ``saves=False`` does nothing.

        If one policy learns, greedy episodes decide whether it is the best so far.

        Args:
            wait: Return when the checkpoint is on disk. False: a thread writes it, and the next save or
                `wait_for_checkpoints` waits for it and raises its error.

        Raises:
            ConfigError: safetensors is not installed.
            DiskFullError: There is no room for it, or was none for the one before.
            TrainingError: A number of the environments or the policies is not finite.
        """
        if not self._saves:
            return None
        is_best = self._is_best()
        state = self.checked_state()
        if state is None:
            return None
        self._files.lock()
        path = self._writer.save(self._files.checkpoints, *state, self.config.saving.keep_last, is_best)
        if wait:
            self._writer.wait()
        return path

    def wait_for_checkpoints(self) -> None:
        """Wait until the last checkpoint of this process is on disk.

        Raises:
            DiskFullError: There was no room for it.
        """
        self._writer.wait()

    def _is_best(self) -> bool:
        """Play greedy episodes; return True if no earlier checkpoint was better.

        False if several policies learn. Returns of training would be those of earlier policies and of sampled actions.
        """
        if not self.config.saving.keep_best or len(self._learners) != 1:
            return False  # returns of several may conflict: no number ranks their checkpoints
        mean_return = self._greedy_scores()[self._learners[0]].mean_return if self.world.is_first else math.nan
        mean_return = self.world.agreed(mean_return)
        if not math.isfinite(mean_return) or (self.best_return is not None and mean_return < self.best_return):
            return False
        self.best_return = mean_return
        return True

    @property
    def _learners(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.algorithm is not None]

    def state(self) -> tuple[dict[str, torch.Tensor], checkpoint.Header] | None:
        """Return live tensors and header on the first rank, else None.

        With several ranks it synchronises, and copies the tensors that each rank owns.
        """
        own = self.world.gathered(self._own_state())
        if own is None:
            return None
        header = checkpoint.Header(
            iteration=self.iteration,
            env_steps=self.env_steps,
            seconds=time.perf_counter() - self._started,
            run_config=self.config.to_dict(),
            environment=self.environment(),
            seed=self.seed,
            best_return=self.best_return,
        )
        return self._shared_state() | own, header

    def whole_state(self) -> Tensors:
        """Return the state as of one process with all environments; synchronises.

        Arrays with a row for each environment have those of all ranks; others are the first rank's. Empty on the other
        ranks.
        """
        state, own = self.state(), self._own_state()
        tensors = {} if state is None else state[0]
        return {
            name: tensor if name not in own else tensor.flatten(0, 1)[None] if self._has_rows(name) else tensor[:1]
            for name, tensor in tensors.items()
        }

    def _has_rows(self, name: str) -> bool:
        """True if a rank's tensor has a row for each of its environments."""
        section, *_, last = name.split("/")
        if section != "env":
            return section != "policy" or last == "memory"
        data = self.wrapper.cuda_data_manager
        return bool(data.attribute(last, "n_copies") or data.attribute(last, "per_env"))

    def checked_state(self) -> tuple[dict[str, torch.Tensor], checkpoint.Header] | None:
        """Return `state` after the checks before saving; synchronises.

        Raises:
            TrainingError: A number of the environments or the policies is not finite.
        """
        if not self._is_first_rollout:
            self._check_environments()
        state = self.state()
        if state is not None and not self.has_members:  # one member may have failed
            require_finite_state(state[0])
        return state

    @own_defaults()
    def load_checkpoint(self, path: str | Path | None = None, *, weights_only: bool = False) -> None:
        """Resume exactly from a checkpoint; synchronises.

        Later checkpoints of this run's own folder are removed, unless the trainer has ``saves=False``.

        Args:
            path: Checkpoint, or a folder whose latest one counts; None: this run's own folder.
            weights_only: Load only the models, into any run.

        Raises:
            CheckpointError: It is damaged, or has another environment, other sizes or other models.
        """
        self._writer.wait()
        found = self.world.agreed(checkpoint.find(path or self._files.checkpoints))
        saved, header = checkpoint.load(found)
        if weights_only:
            live, own = (
                {name: each[name] for name in each if is_weight(name)} for each in (self._shared_state(), saved)
            )
            checkpoint.restore(live, own, found)
            return
        had_folder = self._files.holds_run
        self.load_state(saved, header, found)
        if not self._saves:
            return
        own_folder = self._files.checkpoints
        is_own = found.resolve().parent == own_folder.resolve()
        self._files.holds_run = had_folder or is_own
        # Later ones would count as the latest checkpoint.
        if self.world.is_first and is_own:
            self._files.lock()
            checkpoint.discard_after(own_folder, header.iteration)

    @own_defaults()
    def load_state(self, saved: Mapping[str, torch.Tensor], header: checkpoint.Header, found: str | Path) -> None:
        """Resume exactly from the result of `state`; synchronises.

        Args:
            saved: Tensors by name, on any device.
            header: Header of the tensors' run.
            found: Origin of the tensors, for errors.

        Raises:
            CheckpointError: Environment, sizes or models differ; then nothing has changed.
        """
        here = self.environment()
        differing = {key: (there, here.get(key)) for key, there in header.environment.items() if there != here.get(key)}
        require(
            header.environment == here,
            f"checkpoint {found}",
            "must be of this run's environment and sizes, there and here",
            differing,
            "build the run that saved it, or load its weights only",
            error=CheckpointError,
        )
        shared, own = self._shared_state(), self._own_state()
        mine = {
            name: tensor if name in shared or name not in own else tensor[self.world.rank]
            for name, tensor in saved.items()
        }
        checkpoint.restore(shared | own, mine, found)
        self.iteration, self.env_steps, self.seed = header.iteration, header.env_steps, header.seed
        self.best_return = header.best_return
        self._is_first_rollout = True
        for recorder in self.recorders.values():
            recorder.faults.zero_()
        self._files.resumed_from, self.has_reached_return = self.iteration, False
        self._files.holds_run = True  # also for a state from outside the folder
        self._recent.restart(self.env_steps)
        self._close_sinks()  # reopened, they drop the rows that will be repeated
        now = time.perf_counter()
        self._started, self._last_log = now - header.seconds, (now, self.iteration)

    def _shared_state(self) -> Tensors:
        """Return live tensors equal on all ranks: weights and optimiser moments."""
        return {name: tensor for group in self.groups.values() for name, tensor in group.state().items()}

    def _own_state(self) -> Tensors:
        """Return live tensors of this rank: environments, statistics, policies' memory."""
        data = self.wrapper.cuda_data_manager
        names = [name for name in data.array_names() if not data.attribute(name, "scratch")]
        state = {f"env/{name}": data.tensor(name) for name in names}
        for suffix, recorder in self.recorders.items():
            state |= {f"recorder{suffix}/{name}": tensor for name, tensor in recorder.state().items()}
        for group in self.groups.values():
            state |= group.rank_state()
        return state

    def environment(self) -> checkpoint.TrainedIn:
        """Return the names and sizes that a checkpoint must match."""
        wrapper = self.wrapper
        return {
            "name": wrapper.name,
            "n_envs": wrapper.n_envs,
            "n_agents": wrapper.n_agents,
            "episode_length": wrapper.episode_length,
            "arrays": list(self.layout.saved),
            "ranks": self.world.size,
            "policies": {name: [str(agent) for agent in agents] for name, agents in self.policy_map.items()},
        }
