"""The trainer: collects, updates, logs and saves, again and again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Final

import torch

from warpdrive_min import forks
from warpdrive_min.backends.base import Launch
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import CheckpointError, ConfigError, WarpDriveError, known, require, whole
from warpdrive_min.files import Hold, hold, new_folder, remove_left, remove_unused, write_atomically
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training import build, ranks
from warpdrive_min.training.build import make_exact
from warpdrive_min.training.config import RunConfig, precision
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop import checkpoint, choices, evaluation, metrics
from warpdrive_min.training.loop.arrays import Agents, PolicyMap, SharedLayout
from warpdrive_min.training.loop.global_states import give_global_states
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, Row
from warpdrive_min.training.loop.policies import (
    PolicyGroup,
    Tensors,
    action_samplers,
    is_weight,
)
from warpdrive_min.training.loop.progress import ProgressLine
from warpdrive_min.training.loop.rollout import RolloutBuffer, RolloutRecorder
from warpdrive_min.training.loop.rollout_check import RolloutCheck, require_finite_state
from warpdrive_min.training.paths.captured import Captured
from warpdrive_min.training.paths.table import Choice

log = logging.getLogger(__name__)

WARPDRIVE_ARGUMENTS: Final = "warpdrive_min.dialect.layout:trainer_arguments"
"""Function that returns our arguments for WarpDrive's keywords."""
BEST_EPISODES: Final = 100
"""Episodes that a checkpoint is judged by, at most; fewer where there are fewer environments."""
RUN_CONFIG: Final = "run_config.json"
"""File of a run's folder with its settings."""
ENDING_S: Final = 5.0
"""Longest wait for another process to leave the run's folder, s: one that was killed may still be ending."""
EPISODE_STATES: Final = "warpdrive_min.dialect.episodes:episode_states"


class Trainer:
    """Trains the policies of a run config on the copies of a wrapper, on the wrapper's backend.

    An iteration is a rollout of ``train_batch_size / num_envs`` steps and an update of every policy that is to be
    trained. On a GPU each of the two is one CUDA graph; the host waits for the device only where it logs or saves.

    Args:
        env_wrapper: On a backend whose kernels the environment has.
        config: Run config: the object, what it is made of, or the path of its YAML file.
        policies: Agents of each policy, every agent once; None: all agents to the one policy.
        layout: Layout of the agents in the wrapper's arrays; None: of each role, where the environment has roles, or of
            all.
        folder: Name of the run's folder in ``basedir/name/tag``; None: the time.
        verbose: Show progress.
        warpdrive: WarpDrive's keywords, which 0.2 takes no more: ``policy_tag_to_agent_id_map``,
            ``create_separate_placeholders_for_each_policy``, ``obs_dim_corresponding_to_num_agents``, ``num_devices``,
            ``device_id``, ``results_dir``.

    Raises:
        ConfigError: The config breaks a rule, or does not fit the environment or the policies, or is of a population.
        BackendUnavailable: The environment has no kernels for the backend.
    """

    has_members: ClassVar[bool] = False
    """Trains a population."""
    _is_first_rollout: bool
    adds_to_folders: ClassVar[bool] = False
    """Writes beside the checkpoints of an earlier run, as WarpDrive does."""

    @own_defaults()
    def __init__(
        self,
        env_wrapper: EnvWrapper,
        config: RunConfig | Mapping[str, Any] | str | Path,
        policies: PolicyMap | None = None,
        *,
        layout: SharedLayout | None = None,
        folder: str | Path | None = None,
        verbose: bool = True,
        **warpdrive: Any,
    ) -> None:
        if warpdrive:
            given = resolve_name(WARPDRIVE_ARGUMENTS)(**warpdrive)
            policies, layout, folder = (
                policies or given["policies"],
                layout or given["layout"],
                folder or given["folder"],
            )
            warnings.warn(
                f"Trainer: WarpDrive's keywords go with 0.2 (got {known(warpdrive)}); use policies, layout and folder",
                DeprecationWarning,
                stacklevel=2,
            )
        self.config = RunConfig.of(config)
        self.wrapper = env_wrapper
        self.policy_map = policy_map(self.config, env_wrapper, policies)
        self.layout = layout or SharedLayout()
        self.world = ranks.World.of()
        self._check()
        trainer = self.config.trainer
        self.n_iterations = self.config.n_iterations(env_wrapper.episode_length)
        self.n_steps = trainer.train_batch_size // trainer.num_envs
        """Steps of a rollout."""
        self.iteration = 0
        """Iterations done."""
        self.env_steps = 0
        """Steps done, of all environments of all ranks together."""
        self.seed = self.world.agreed(trainer.seed if trainer.seed is not None else time.time_ns() % 2**31)
        self.best_return: float | None = None
        """Mean return of the best checkpoint, as it was saved; None: there is none."""
        self._recent = metrics.RecentReturns(trainer.num_envs * env_wrapper.episode_length * self.world.size)
        self.recent_return: dict[str, float | None] = {}
        """Mean return by policy, over the latest rows in which all environments had time for a whole episode."""
        self.has_reached_return = False
        """Training has stopped because its policies reached ``trainer.stop_return``."""
        self._start_environments()
        self._build()
        self.schedules.write(self.steps_per_iteration)  # so that `collect` and `update` by hand learn, too
        self._name = None if folder is None else str(folder)
        self._hold: Hold | None = None
        if self.world.size > 1:
            self.folder  # noqa: B018  (the ranks agree on it, and all are here)
        self._verbose = verbose and self.world.is_first
        self._sinks: list[metrics.Sink] | None = None
        self._started = time.perf_counter()
        """Time at which the run began, if it had never been stopped."""
        self._last_log = (self._started, 0)
        self._resumed_from: int | None = None
        self._has_begun = False
        self._has_folder = False
        """The run's folder holds this run: it has written there, or goes on from there."""

    @functools.cached_property
    def folder(self) -> Path:
        """Folder of the run's settings, metrics and checkpoints; one without a name is made when it is asked for."""
        runs = runs_of(self.config)
        if self._name:
            return runs / self._name
        return runs / self.world.agreed(reserve(runs).name if self.world.is_first else "")

    # -------------------------------------------------------------- the loop

    @own_defaults()
    def train(self, n_iterations: int | None = None) -> Row:
        """Train to the end of the run config, or for some iterations; returns the last row of metrics.

        Raises:
            TrainingError: A loss or a gradient is not finite, which names the policy and the iteration; or the
                environment gave a number that is not, or broke its contract. Nothing of that is saved.
        """
        n_iterations = self.n_iterations if n_iterations is None else whole("n_iterations", n_iterations, 0, 2**63 - 1)
        last = min(self.n_iterations, self.iteration + n_iterations)
        row: Row = {}
        self._begin()
        with ProgressLine(self.n_iterations, self.iteration, self._verbose) as progress:
            while self.iteration < last and not self.has_reached_return:
                self.iterate()
                if self.is_due(self.config.saving.metrics_log_freq) or self.iteration == 1:
                    row = self.log_metrics()  # the host waits here, and where it saves
                    progress.update(row)
                if self.is_due(self.config.saving.model_params_save_freq):
                    self.save_checkpoint()
        return row

    def _begin(self) -> None:
        """Open the sinks where ranks train together: all of them raise the error that the first one gets."""
        if self.world.size == 1 or self._has_begun:
            return
        error: Exception | None = None
        if self.world.is_first:
            try:
                self._open_sinks()
            except (WarpDriveError, OSError) as caught:
                error = caught
        if (error := self.world.agreed(error)) is not None:
            raise error
        self._has_begun = True

    @own_defaults()
    def iterate(self) -> None:
        """Collect a rollout, update every policy; enqueues. Each half is one CUDA graph from its second run on."""
        forks.threads()  # 1 in a process that was forked from the one that made this
        self.schedules.write(self.env_steps + self.steps_per_iteration)
        is_first = self._is_first_rollout
        self._is_first_rollout = False
        with self.check.nothing_written() if is_first else contextlib.nullcontext():
            self._collect()
        self._update()
        self.iteration += 1
        self.env_steps += self.steps_per_iteration
        if is_first or self.wrapper.backend.device.type == "cpu":  # where nothing waits
            self._require_sound(is_first=is_first)

    def _require_sound(self, *, is_first: bool = False) -> None:
        """Make sure that the environments gave what training can go on from; synchronises.

        Raises:
            TrainingError: A number is not finite, or they broke their contract.
        """
        if is_first or self.check.is_suspect():
            self.check.require_finite(self.iteration)
            self.check.require_contract()

    @own_defaults()
    @torch.no_grad()
    def collect(self) -> None:
        """Play T steps of all environments into the rollout buffers; no branch on what is on the device."""
        for recorder in self.recorders.values():
            recorder.begin()
        if callable(self.rollout_at_once):
            self.rollout_at_once()
        else:
            self._play_steps()
        for group in self.groups.values():
            group.end_rollout()
        if self.global_states is not None:
            self.global_states.end_rollout()

    def _play_steps(self) -> None:
        """Play the steps of a rollout one by one."""
        for t in range(self.n_steps):
            if self.global_states is not None:
                self.global_states.keep(t)
            # Act: a forward pass for each policy, then one kernel that draws for all agents of an array
            with precision(self.config.trainer.precision, self.wrapper.cuda_data_manager.device):
                for group in self.groups.values():
                    group.act(t)
            for actions in self.action_samplers:
                actions.sample(t, **self.exploration)  # kept as drawn, then clipped
            # Step: environments write the next row of observations themselves where one policy sees them whole
            self.step_into[t]()
            # Record: rewards, terminations, truncations, last observations of truncated episodes
            for recorder in self.recorders.values():
                recorder.record(t)
            if not self.wrapper.auto_reset:
                self.wrapper.reset_only_done_envs()

    @own_defaults()
    def update(self) -> None:
        """Compute returns, take the optimiser's steps and note what was seen, for each policy that learns."""
        for group in self.groups.values():
            if group.buffer is not None and group.algorithm is not None:
                group.algorithm.compute_returns(group.buffer)
                group.algorithm.update(group.buffer)
                group.take_moments(group.buffer)

    @property
    def steps_per_iteration(self) -> int:
        """Steps of all environments of all ranks together."""
        return self.config.trainer.train_batch_size * self.world.size

    @property
    def capture_s(self) -> float:
        """Time that the capture of the graphs took, s; 0 where there is none."""
        return self._collect.capture_s + self._update.capture_s

    @property
    def is_finished(self) -> bool:
        """The run config wants no further iteration."""
        return self.iteration >= self.n_iterations or self.has_reached_return

    def is_due(self, every: int) -> bool:
        """Tell whether something is done after this iteration; always after the last one."""
        return self.iteration % every == 0 or self.is_finished

    # -------------------------------------------------------------- construction

    def _check(self) -> None:
        wrapper, trainer, backend = self.wrapper, self.config.trainer, self.wrapper.env_backend
        rule = f"environment {wrapper.name!r} has no kernels for backend {backend!r}"
        require(wrapper.vectorised, "trainer", rule, do="give it one, or choose another backend")
        size = self.config.population.size
        rule = "must be null but for PopulationTrainer, which needs it"
        require((size is not None) == self.has_members, "run config population.size", rule, size, "use the other one")
        rule = f"must be the wrapper's number of environments {wrapper.n_envs}" + (f" / {size} members" if size else "")
        is_equal = trainer.num_envs * (size or 1) == wrapper.n_envs
        require(is_equal, "run config trainer.num_envs", rule, trainer.num_envs, "make them equal")
        rule, do = "needs environments that are exact too", "make the wrapper with exact=True"
        require(wrapper.exact or not trainer.exact, "run config trainer.exact", rule, trainer.exact, do)
        rule = f"must name the policies of the run config, {known(self.config.policy)}"
        require(set(self.policy_map) == set(self.config.policy), "policies", rule, list(self.policy_map))
        can_be = trainer.mode != "graph" or wrapper.backend.captures_graphs
        rule = f"backend {backend!r} has no CUDA graphs"
        require(can_be, "run config trainer.mode", rule, trainer.mode, "use 'auto' or 'eager'")

    def _start_environments(self) -> None:
        """Start all copies, and push what an environment leaves to the trainer."""
        if self.wrapper.reset_on_host:
            self.wrapper.reset()
        self.layout.push(self.wrapper, self.policy_map)
        seed_resets(self.wrapper.cuda_data_manager, build.derived_seed(self.seed, build.RESET_SEED, self.world.rank))
        self.wrapper.reset()

    def _build(self) -> None:
        """Make what an iteration runs on: policies, samplers, recorders, buffers and algorithms."""
        wrapper, config = self.wrapper, self.config
        backend, device = wrapper.backend, wrapper.cuda_data_manager.device
        arrays = self.layout.arrays(wrapper, self.policy_map)
        self.groups: dict[str, PolicyGroup] = build.make_groups(config, arrays, self.seed, device)
        """The policies, by name."""
        groups = list(self.groups.values())
        if config.trainer.exact:
            seeds = [build.derived_seed(self.seed, build.MODEL_SEED, index) for index in range(len(groups))]
            make_exact(groups, backend, seeds)
        self.sharing = choices.share_observations(config.trainer, wrapper, groups, arrays)
        """Why rollouts keep the observations of each agent; empty: they keep one row for all of an environment."""
        self.sampler = CUDASampler(wrapper.cuda_function_manager)
        self.sampler.init_random(build.derived_seed(self.seed, build.SAMPLER_SEED, self.world.rank))
        algorithms = {name: build.algorithm_class(config, name) for name in self.groups}
        clips = all(algorithm.clips_actions for algorithm in algorithms.values())
        self.action_samplers = action_samplers(wrapper, self.sampler, list(self.groups.values()), clips=clips)
        self.recorders = {
            each.suffix: RolloutRecorder(wrapper, self.n_steps, each)
            for each in {each.suffix: each for each in arrays.values()}.values()
        }
        """Recorders of the rewards, by the suffix of their array's name."""
        for suffix, recorder in self.recorders.items():
            if recorder.loses_truncations:
                missing = f"has no array final_observations{suffix}: an episode that is truncated counts as over"
                log.warning("environment %r %s", wrapper.name, missing)
        self.schedules = build.ScheduledTensors()
        for index, (name, group) in enumerate(self.groups.items()):
            if group.config.to_train:
                group.buffer = RolloutBuffer.of(group.arrays, self.recorders[group.arrays.suffix])
                seeds = [
                    build.derived_seed(seed, build.ALGORITHM_SEED, self.world.rank, index)
                    for seed in [member.seed for member in group.members] or [self.seed]
                ]
                given = seeds if group.members else seeds[0]
                group.algorithm = algorithm = algorithms[name](group, config.trainer, backend, given)
                for key, tensor in algorithm.scheduled.items():
                    self.schedules.add(group.settings(key), tensor)
        self.global_states = give_global_states(list(self.groups.values()), self.recorders)
        """Gathers what centralised critics see; None where that needs no gathering."""
        self.exploration: dict[str, Any] = {"greedy": config.sampler.params.use_argmax}
        for key, schedule in build.noise_schedules(config).items():
            self.exploration[key] = torch.zeros((), device=device, dtype=torch.float32)
            self.schedules.add([schedule], self.exploration[key])
        self.check = RolloutCheck(
            wrapper, list(self.groups.values()), self.recorders, has_cuts=config.trainer.compat is None
        )
        """Checks what the environments gave."""
        self._is_first_rollout = True
        direct = choices.steps_into_buffer(config.trainer, wrapper, groups)
        self.step_into: Sequence[Launch] = direct or [wrapper.step] * self.n_steps
        """Steps of the environments, one for each of a rollout."""
        for group in groups:
            group.is_direct = direct is not None
        recorder, greedy = self.recorders[groups[0].arrays.suffix], self.exploration["greedy"]
        self.rollout_at_once: Launch | str = choices.rollout_at_once(
            config.trainer, wrapper, groups, recorder, self.sampler, greedy=greedy
        )
        """Plays a whole rollout in one launch; or why it is played step by step."""
        if not callable(self.rollout_at_once):
            log.info("rollouts are played step by step: %s", self.rollout_at_once)
        self.keeping = choices.keep_passes(config.trainer, groups, is_at_once=callable(self.rollout_at_once))
        """Why learning makes a forward pass of its own, by policy; empty: it goes back from what acting computed."""
        choices.note_networks(config.trainer, groups)
        as_graph = choices.captures_graphs(config.trainer, wrapper, groups)
        self._collect: Captured = Captured(backend, self.collect, as_graph=as_graph)
        self._update: Captured = Captured(backend, self.update, as_graph=as_graph)

    # -------------------------------------------------------------- log

    @own_defaults()
    def log_metrics(self) -> Row:
        """Copy the metrics since the last call to the host, once, and write them where they go; synchronises.

        Raises:
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration.
        """
        updates, episodes = metrics.read(self.groups.values(), self.recorders, self.world)
        logged = self._last_log[1]
        rates = self._rates()
        scores = self.evaluate() if self.config.trainer.evaluator else {}
        best = {f"{name}/evaluated_return": score.mean_return for name, score in scores.items()}
        row = metrics.make_row(
            self.iteration,
            self.env_steps,
            time.perf_counter() - self._started,
            {name: episodes[name] | updates.get(name, {}) | self._scheduled(name) for name in self.groups},
            **rates,
            **best,
        )
        self._require_sound()
        for name, means in episodes.items():
            if means["episodes"]:
                metrics.check_return(name, means[EPISODIC_RETURN], f" at iteration {self.iteration:,}")
        for name, numbers in updates.items():
            metrics.check_finite(name, numbers, self.iteration, self.env_steps, logged)
        if self.world.size > 1:
            self.world.check_equal(self._shared_state())
        self._clear_statistics()
        if self.world.is_first:
            for sink in self._open_sinks():
                sink.write(row)
        self._judge(row)
        return row

    def _clear_statistics(self) -> None:
        """Forget the episodes that have ended, and the draws that were impossible; enqueues."""
        for recorder in self.recorders.values():
            recorder.clear_statistics()
        for actions in self.action_samplers:
            if actions.impossible is not None:
                actions.impossible.zero_()

    def _rates(self) -> dict[str, float]:
        """Return speed and times since the last call; waits for the device."""
        now, (before, logged) = time.perf_counter(), self._last_log
        self._last_log = (now, self.iteration)
        n_members = self.config.population.size or 1
        return {
            metrics.STEPS_PER_S: (self.iteration - logged) * self.steps_per_iteration * n_members / (now - before),
            "rollout_s": self._collect.take_seconds(),
            "update_s": self._update.take_seconds(),
        }

    def _scheduled(self, policy: str) -> dict[str, float]:
        """Return the scheduled numbers of a policy, as they are now."""
        algorithm = self.groups[policy].algorithm
        scheduled = {} if algorithm is None else algorithm.scheduled
        return {key: number for key, tensor in scheduled.items() for number in self.schedules.values(tensor)}

    def _judge(self, row: Row) -> None:
        """Note how good the policies are, and whether that is good enough."""
        self.recent_return = self._recent.add(row, list(self.groups))
        least_of_all = self.config.trainer.stop_return
        if least_of_all is None:
            return
        wanted = least_of_all if isinstance(least_of_all, Mapping) else dict.fromkeys(self._learners, least_of_all)
        reached = [(got := self.recent_return[name]) is not None and got >= least for name, least in wanted.items()]
        self.has_reached_return = bool(reached) and all(reached)

    def _open_sinks(self) -> list[metrics.Sink]:
        if self._sinks is None:
            self._take_folder()
            saving, settings = self.config.saving, self.config.to_dict() | {"seed": self.seed}
            self._sinks = metrics.open_sinks(saving.sinks, self.folder, saving.name, settings, self._resumed_from)
            write_atomically(self.folder / RUN_CONFIG, json.dumps(settings, indent=1) + "\n")
        return self._sinks

    def _take_folder(self) -> None:
        """Lock the run's folder before anything is written there.

        Raises:
            ConfigError: Another process writes to it, or it holds another run.
        """
        if self._hold is not None:
            return
        with _folder_can_be_made(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        what, do = f"run {self.folder}", "resume that run, or choose another folder"
        try:
            held = hold(self.folder, ENDING_S)
        except BlockingIOError as error:
            do = "wait for it, or choose another folder"
            raise ConfigError.of(what, "must not be written by another process", "one that runs", do) from error
        if not (self._has_folder or self.adds_to_folders):
            checkpoints = self.folder / checkpoint.FOLDER
            is_free = not checkpoints.is_dir() or not any(checkpoints.iterdir())
            require(is_free, what, "must not hold another run", "its checkpoints", do)
            metrics.require_new(self.folder)
        remove_left(self.folder)
        self._hold, self._has_folder = held, True

    def _close_sinks(self) -> None:
        for sink in self._sinks or []:
            sink.close()
        self._sinks, self._has_begun = None, False

    # -------------------------------------------------------------- checkpoints

    @own_defaults()
    def save_checkpoint(self) -> Path | None:
        """Write all of the run's state; returns where, on the first rank; synchronises.

        Where one policy learns, greedy episodes tell whether it is the best one yet.

        Raises:
            ConfigError: safetensors is not installed.
            TrainingError: A number of the environments or the policies is not finite.
        """
        is_best = self._is_best()
        state = self.sound_state()
        if state is None:
            return None
        self._take_folder()
        saving = self.config.saving
        return checkpoint.save(self.folder / checkpoint.FOLDER, *state, saving.keep_last, is_best)

    def _is_best(self) -> bool:
        """Play greedy episodes and tell whether no checkpoint before was better; false where several policies learn.

        Returns of training would tell of the policies before this one, and of drawn actions.
        """
        if not self.config.saving.keep_best or len(self._learners) != 1:
            return False  # the returns of several may be opposed: one number cannot say which are better
        mean_return = math.nan
        if self.world.is_first:
            seed = build.derived_seed(self.seed, build.BEST_SEED)  # the same episodes for every checkpoint
            scores = self.evaluate(min(self.wrapper.n_envs, BEST_EPISODES), seed=seed)
            mean_return = scores[self._learners[0]].mean_return
        mean_return = self.world.agreed(mean_return)
        if not math.isfinite(mean_return) or (self.best_return is not None and mean_return < self.best_return):
            return False
        self.best_return = mean_return
        return True

    @property
    def _learners(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.algorithm is not None]

    def state(self) -> tuple[dict[str, torch.Tensor], checkpoint.Header] | None:
        """Return all that the run goes on from, on the first rank: live tensors by name, and what they are of.

        With several ranks it synchronises, and copies what each has of its own.
        """
        own = self.world.gathered(self._own_state())
        if own is None:
            return None
        header = checkpoint.Header(
            iteration=self.iteration,
            env_steps=self.env_steps,
            seconds=time.perf_counter() - self._started,
            run_config=self.config.to_dict(),
            environment=self._environment(),
            seed=self.seed,
            best_return=self.best_return,
        )
        return self._shared_state() | own, header

    def sound_state(self) -> tuple[dict[str, torch.Tensor], checkpoint.Header] | None:
        """Return `state`, which is to be saved; synchronises.

        Raises:
            TrainingError: A number of the environments or the policies is not finite.
        """
        if not self._is_first_rollout:
            self._require_sound()
        state = self.state()
        if state is not None and not self.has_members:  # of whom one may have failed
            require_finite_state(state[0])
        return state

    @own_defaults()
    def load_checkpoint(self, path: str | Path | None = None, *, weights_only: bool = False) -> None:
        """Go on from a checkpoint, exactly as if training had not stopped there; synchronises.

        Args:
            path: Path of a checkpoint, or of a folder of them, whose latest counts; None: of this run's own folder.
            weights_only: Take the models and nothing else, into whatever run this is.

        Raises:
            CheckpointError: It is damaged, or is of another environment, other sizes or other models.
        """
        found = self.world.agreed(checkpoint.find(path or self.folder / checkpoint.FOLDER))
        saved, header = checkpoint.load(found)
        if weights_only:
            live, own = (
                {name: each[name] for name in each if is_weight(name)} for each in (self._shared_state(), saved)
            )
            checkpoint.restore(live, own, found)
            return
        had_folder = self._has_folder
        self.load_state(saved, header, found)
        own_folder = self.folder / checkpoint.FOLDER
        is_own = found.resolve().parent == own_folder.resolve()
        self._has_folder = had_folder or is_own
        # Those that are gone back behind would count as the latest.
        if self.world.is_first and is_own:
            self._take_folder()
            checkpoint.discard_after(own_folder, header.iteration)

    @own_defaults()
    def load_state(self, saved: Mapping[str, torch.Tensor], header: checkpoint.Header, found: str | Path) -> None:
        """Go on from what `state` returned, exactly as if training had not stopped there; synchronises.

        Args:
            saved: Tensors by name, on any device.
            header: Run that they are of.
            found: Place where they were, for errors.

        Raises:
            CheckpointError: They are of another environment, other sizes or other models; then nothing has changed.
        """
        here = self._environment()
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
        self._resumed_from, self.has_reached_return = self.iteration, False
        self._has_folder = True  # of a state that came otherwise than as a checkpoint
        self._recent.restart(self.env_steps)
        self._close_sinks()  # opened again, they drop the rows that will come again
        now = time.perf_counter()
        self._started, self._last_log = now - header.seconds, (now, self.iteration)

    def _shared_state(self) -> Tensors:
        """Return what is the same on all ranks, live: weights, and the optimisers' moments."""
        return {name: tensor for group in self.groups.values() for name, tensor in group.state().items()}

    def _own_state(self) -> Tensors:
        """Return what each rank has of its own, live: environments, statistics, what the algorithms remember."""
        data = self.wrapper.cuda_data_manager
        names = [name for name in data.array_names() if not data.attribute(name, "scratch")]
        state = {f"env/{name}": data.tensor(name) for name in names}
        for suffix, recorder in self.recorders.items():
            state |= {f"recorder{suffix}/{name}": tensor for name, tensor in recorder.state().items()}
        for group in self.groups.values():
            state |= group.own_state()
        return state

    def _environment(self) -> checkpoint.TrainedIn:
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

    # -------------------------------------------------------------- looking at what was learned

    def evaluate(self, n_episodes: int = 100, *, greedy: bool = True, seed: int = 0) -> dict[str, evaluation.Score]:
        """Play whole episodes in environments of their own and return each policy's score; synchronises.

        Args:
            n_episodes: One in each of as many environments.
            greedy: Take the likeliest choice, or the mean; False: draw, without the noise of DDPG.
            seed: Seed of starts and draws.
        """
        return evaluation.evaluate(
            self.wrapper, self.acting_models, self.policy_map, self.layout, n_episodes, greedy, seed
        )

    @property
    def choices(self) -> dict[str, dict[str, Choice]]:
        """Path of each part of the run, and why no faster one, by policy."""
        return {name: group.choices for name, group in self.groups.items()}

    @property
    def acting_models(self) -> dict[str, Any]:
        """Network of each policy that acts."""
        return {name: group.acting for name, group in self.groups.items()}

    def fetch_episode_states(self, list_of_states: Sequence[str], *arguments: Any, **named: Any) -> Any:
        """Play one episode in environments of its own and return its states, in WarpDrive's form; goes with 0.2.

        Arguments as of `warpdrive_min.dialect.episodes.episode_states`.
        """
        warnings.warn(
            "Trainer.fetch_episode_states: goes with 0.2; use warpdrive_min.dialect.episodes.episode_states, or record "
            "an episode with warpdrive_min.rendering.record",
            DeprecationWarning,
            stacklevel=2,
        )
        return resolve_name(EPISODE_STATES)(
            self.wrapper, self.acting_models, self.policy_map, self.layout, list_of_states, *arguments, **named
        )

    def graceful_close(self) -> None:
        """Close the files of metrics and let go of what was captured."""
        self._close_sinks()
        self._hold = None
        if self.world.is_first and "folder" in vars(self):
            remove_unused(self.folder)
        self._collect.forget()
        self._update.forget()


def runs_of(config: RunConfig) -> Path:
    """Return the folder that holds those of a run config's runs."""
    return Path(config.saving.basedir, config.saving.name, config.saving.tag)


def reserve(runs: Path) -> Path:
    """Make and return a run's folder, named after the time in seconds or the next number that is free.

    Raises:
        ConfigError: It cannot be made.
    """
    with _folder_can_be_made(runs):
        return new_folder(runs, map(str, itertools.count(int(time.time()))))


@contextlib.contextmanager
def _folder_can_be_made(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        rule = f"must be where folders can be made, as {folder}"
        raise ConfigError.of("run config saving.basedir", rule, error.strerror, "name another one") from error


def policy_map(
    config: RunConfig, wrapper: EnvWrapper, given: Mapping[str, Agents] | None = None
) -> dict[str, list[Any]]:
    """Return the agents of each policy: as given, or all to the one policy, or those of a role to the policy named so.

    Raises:
        ConfigError: Nothing is given, and the run config has several policies that are not named after such roles.
    """
    if given is not None:
        in_order = dict.fromkeys([*(policy for policy in config.policy if policy in given), *given])
        return {policy: list(given[policy]) for policy in in_order}
    if len(config.policy) == 1:
        return {next(iter(config.policy)): list(wrapper.env.action_space)}
    named = getattr(wrapper.env, "roles", {})
    roles = {policy: named.get(policy, getattr(wrapper.env, f"{policy}s", None)) for policy in config.policy}
    require(
        all(isinstance(agents, Mapping | Sequence) for agents in roles.values()),
        "policies",
        f"must say which agents the policies {known(config.policy)} have",
        None,
        "only policies named after a role of the environment, as tagger and runner, find theirs",
    )
    return {policy: list(agents) for policy, agents in roles.items() if agents is not None}
