"""Trainer: collects rollouts, updates policies, logs and saves."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import torch

from warpdrive_min import forks
from warpdrive_min.backends.base import Launch
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import WarpDriveError, known, require, require_int
from warpdrive_min.lazy import renamed_attribute
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.tracing import named
from warpdrive_min.training import build
from warpdrive_min.training.build import make_exact
from warpdrive_min.training.config import BEST_EPISODES, RunConfig, precision
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop import checkpoint, evaluation
from warpdrive_min.training.loop.arrays import Agents, PolicyMap, SharedLayout
from warpdrive_min.training.loop.choices import Choices
from warpdrive_min.training.loop.gathered import GatheredRollout
from warpdrive_min.training.loop.global_states import give_global_states
from warpdrive_min.training.loop.metrics import Row
from warpdrive_min.training.loop.policies import (
    PolicyGroup,
    action_samplers,
)
from warpdrive_min.training.loop.progress import ProgressLine
from warpdrive_min.training.loop.rollout import RolloutBuffer, RolloutRecorder
from warpdrive_min.training.loop.rollout_check import RolloutCheck
from warpdrive_min.training.paths import ahead
from warpdrive_min.training.paths.captured import Captured
from warpdrive_min.training.paths.table import Choice
from warpdrive_min.training.paths.triton.launch import compiled_ahead
from warpdrive_min.training.run import Run

log = logging.getLogger(__name__)

WARPDRIVE_ARGUMENTS: Final = "warpdrive_min.dialect.layout:trainer_arguments"
"""Function that returns our arguments for WarpDrive's keywords."""
EPISODE_STATES: Final = "warpdrive_min.dialect.episodes:episode_states"


class Trainer(Run):
    """Trainer of a run config's policies, on a wrapper's environments.

    An iteration is a rollout of ``train_batch_size / num_envs`` steps and an update of every policy to train. On
    a GPU each half is one CUDA graph; the host waits for the device only to log or save.

    Args:
        env_wrapper: Wrapper on a backend whose kernels the environment has.
        config: Run config: the object, a mapping, or the path of a YAML file.
        policies: Agents of each policy, every agent once; None: as of `policy_map`.
        layout: Layout of the agents in the wrapper's arrays; None: one set for each role, or for all agents.
        folder: Name of the run's folder in ``basedir/name/tag``; None: the time.
        verbose: Print progress.
        saves: Write settings, metrics and checkpoints; False: no file.
        warpdrive: WarpDrive's keywords, which 0.2 removes: ``policy_tag_to_agent_id_map``,
            ``create_separate_placeholders_for_each_policy``, ``obs_dim_corresponding_to_num_agents``, ``num_devices``,
            ``device_id``, ``results_dir``.

    Raises:
        ConfigError: The config breaks a rule, does not fit the environment or the policies, or is of a population.
        BackendUnavailable: The environment has no kernels for the backend.
    """

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
        saves: bool = True,
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
                f"Trainer: 0.2 removes WarpDrive's keywords (got {known(warpdrive)}); use policies, layout and folder",
                DeprecationWarning,
                stacklevel=2,
            )
        config = RunConfig.of(config)
        agents, trainer = policy_map(config, env_wrapper, policies), config.trainer
        build.require_fit(config, env_wrapper, agents, has_members=self.has_members)
        super().__init__(config, env_wrapper, agents, layout or SharedLayout(), folder, saves=saves)
        self.n_iterations = config.n_iterations(env_wrapper.episode_length)
        self.n_steps = trainer.train_batch_size // trainer.num_envs
        """Steps of a rollout."""
        self._start_environments()
        self._build()
        self.schedules.write(self.steps_per_iteration)  # for direct calls of `collect` and `update`
        if self.world.size > 1 and self._saves:
            self.folder  # noqa: B018  (all ranks must agree on it here)
        self._verbose = verbose and self.world.is_first
        self._start_clock()

    # -------------------------------------------------------------- the loop

    @own_defaults()
    def train(self, n_iterations: int | None = None, *, wait: bool = True) -> Row:
        """Train to the end or for some iterations; return the last row.

        A thread writes the checkpoints meanwhile.

        Args:
            n_iterations: Number of iterations; None: all that remain.
            wait: Return when the last checkpoint is on disk; see `save_checkpoint`.

        Raises:
            DiskFullError: There was no room for a checkpoint.
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration. Or the environment
                gave a non-finite number or broke its contract. Nothing of that is saved.
        """
        n_iterations = (
            self.n_iterations if n_iterations is None else require_int("n_iterations", n_iterations, 0, 2**63 - 1)
        )
        last = min(self.n_iterations, self.iteration + n_iterations)
        row: Row = {}
        self._begin()
        try:
            with ProgressLine(self.n_iterations, self.iteration, self._verbose) as progress:
                while self.iteration < last and not self.has_reached_return:
                    self.iterate()
                    if self.is_due(self.config.saving.metrics_log_freq) or self.iteration == 1:
                        row = self.log_metrics()  # the host waits only here and to save
                        progress.update(row)
                    elif self.wrapper.backend.device.type == "cpu":
                        progress.advance(self.iteration)
                    if self.is_due(self.config.saving.model_params_save_freq):
                        self.save_checkpoint(wait=False)
        finally:
            if wait:
                self.wait_for_checkpoints()
        return row

    def _begin(self) -> None:
        """Open the first rank's sinks; all ranks raise its error."""
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
        """Run a rollout and an update, CUDA graphs from the second run on; enqueues."""
        forks.threads()  # 1 in a fork of the process that built this
        self.schedules.write(self.env_steps + self.steps_per_iteration)
        is_first = self._is_first_rollout
        self._is_first_rollout = False
        with self.check.unwritten_is_nan() if is_first else contextlib.nullcontext():
            self._collect()
        self._update()
        self.iteration += 1
        self.env_steps += self.steps_per_iteration
        if is_first or self.wrapper.backend.device.type == "cpu":  # where a check costs no wait
            self._check_environments(is_first=is_first)

    @own_defaults()
    @torch.no_grad()
    def collect(self) -> None:
        """Collect T steps into the rollout buffers, without device-dependent branches."""
        for recorder in self.recorders.values():
            recorder.begin()
        if callable(self.fused_rollout):
            self.fused_rollout()
        else:
            self._play_steps()
        for group in self.groups.values():
            group.end_rollout()
        if self.global_states is not None:
            self.global_states.end_rollout()

    def _play_steps(self) -> None:
        """Play a rollout step by step."""
        for t in range(self.n_steps):
            if self.global_states is not None:
                self.global_states.store(t)
            # Act: a forward pass for each policy, then one kernel that draws for all agents of an array
            with precision(self.config.trainer.precision, self.wrapper.cuda_data_manager.device):
                for act in self._acts:
                    act(t)
            for actions in self.action_samplers:
                actions.sample(t, **self.exploration)  # stored as drawn, then clipped
            # Step: environments write the next row of observations directly if one policy sees them all
            self.step_into[t]()
            # Record: rewards, terminations, truncations, last observations of truncated episodes
            for recorder in self.recorders.values():
                recorder.record(t)
            if not self.wrapper.auto_reset:
                self.wrapper.reset_only_done_envs()

    @own_defaults()
    def update(self) -> None:
        """Compute returns, update weights and merge moments, for each learning policy."""
        for group in self.groups.values():
            group.learn()

    @property
    def capture_s(self) -> float:
        """Time of capturing the graphs, s; 0 without graphs."""
        return self._collect.capture_s + self._update.capture_s

    @property
    def is_finished(self) -> bool:
        """True if the run config needs no further iteration."""
        return self.iteration >= self.n_iterations or self.has_reached_return

    def is_due(self, every: int) -> bool:
        """Return True if ``every`` divides the iteration, or at the end."""
        return self.iteration % every == 0 or self.is_finished

    # -------------------------------------------------------------- construction

    def _start_environments(self) -> None:
        """Reset all environments, and push arrays that they lack."""
        if self.wrapper.reset_on_host:
            self.wrapper.reset()
        self.layout.push(self.wrapper, self.policy_map)
        seed_resets(self.wrapper.cuda_data_manager, build.derived_seed(self.seed, build.RESET_SEED, self._stream))
        self.wrapper.reset()

    @property
    def _stream(self) -> int:
        """Number of this rank's random streams; exact ranks share the first.

        They number their environments over all ranks instead.
        """
        return 0 if self.config.trainer.exact else self.world.rank

    def _build(self) -> None:
        """Create policies, samplers, recorders, buffers and algorithms."""
        wrapper, config = self.wrapper, self.config
        backend, device = wrapper.backend, wrapper.cuda_data_manager.device
        arrays = self.layout.arrays(wrapper, self.policy_map)
        self.groups: dict[str, PolicyGroup] = build.make_groups(config, arrays, self.seed, device)
        """Policies by name."""
        groups = list(self.groups.values())
        if config.trainer.exact:
            make_exact(groups, backend, self.seed, self.world)
        chosen = Choices(config.trainer, wrapper, groups)
        self.why_no_shared_observations = chosen.share_observations(arrays)
        """Reason for one observation row per agent; empty: shared rows."""
        self.sampler = CUDASampler(wrapper.cuda_function_manager)
        self.sampler.init_random(build.derived_seed(self.seed, build.SAMPLER_SEED, self._stream))
        algorithms = {name: build.algorithm_class(config, name) for name in self.groups}
        clips = all(algorithm.clips_actions for algorithm in algorithms.values())
        self.action_samplers = action_samplers(wrapper, self.sampler, list(self.groups.values()), clips=clips)
        self.recorders = {
            each.suffix: RolloutRecorder(wrapper, self.n_steps, each)
            for each in {each.suffix: each for each in arrays.values()}.values()
        }
        """Recorders of rewards, by the suffix of their array's name."""
        for suffix, recorder in self.recorders.items():
            if recorder.loses_truncations:
                missing = f"has no array final_observations{suffix}: a truncated episode counts as terminated"
                log.warning("environment %r %s", wrapper.name, missing)
        self.schedules = build.ScheduledTensors()
        for index, (name, group) in enumerate(self.groups.items()):
            if group.config.to_train:
                group.buffer = RolloutBuffer.of(group.arrays, self.recorders[group.arrays.suffix])
                if group.exact is not None and self.world.size > 1:
                    group.gathered = GatheredRollout(group.buffer, self.world)
                seeds = [
                    build.derived_seed(seed, build.ALGORITHM_SEED, self._stream, index)
                    for seed in [member.seed for member in group.members] or [self.seed]
                ]
                given = seeds if group.members else seeds[0]
                group.algorithm = algorithm = algorithms[name](group, config.trainer, backend, given)
                for key, tensor in algorithm.scheduled.items():
                    self.schedules.add(group.settings(key), tensor)
        self.global_states = give_global_states(list(self.groups.values()), self.recorders)
        """Global states to gather for centralised critics; None if not needed."""
        for group in groups:
            if group.gathered is not None:
                group.gathered.complete()
        self.exploration: dict[str, Any] = {"greedy": config.sampler.params.use_argmax}
        for key, schedule in build.noise_schedules(config).items():
            self.exploration[key] = torch.zeros((), device=device, dtype=torch.float32)
            self.schedules.add([schedule], self.exploration[key])
        self.check = RolloutCheck(
            wrapper, list(self.groups.values()), self.recorders, has_cuts=config.trainer.compat is None
        )
        """Checks of the environments' outputs."""
        self._is_first_rollout = True
        direct = chosen.step_into_buffer()
        for group in groups:
            group.is_direct = direct is not None
        recorder, greedy = self.recorders[groups[0].arrays.suffix], self.exploration["greedy"]
        as_graph = chosen.captures_graphs()
        self._evaluator = evaluation.Evaluator(wrapper, self.policy_map, self.layout, as_graph=as_graph)
        rollouts_rehearsed = partial(chosen.rehearse_fused_rollout, recorder, greedy=greedy)
        with ahead.compiled(device, partial(self._rehearse, rollouts_rehearsed)):
            self.fused_rollout: Launch | str = chosen.bind_fused_rollout(recorder, self.sampler, greedy=greedy)
            """Launch of a whole rollout, or the reason against it."""
            n_single = 0 if callable(self.fused_rollout) else self.n_steps
            self.step_into: Sequence[Launch] = [direct(t) if direct else wrapper.step for t in range(n_single)]
            """Step of the environments, for each step of a rollout that is not one launch."""
            self._prepare_launches()
        self._prepare_evaluation()
        if not callable(self.fused_rollout):
            log.info("rollouts are played step by step: %s", self.fused_rollout)
        self.why_no_saved_passes = chosen.save_passes(is_one_launch=callable(self.fused_rollout))
        """Reason why learning repeats forward passes, by policy; or empty."""
        chosen.record_network_choices()
        rollout, update = chosen.paths("rollout"), f"update ({chosen.paths('learning', 'Adam')})"
        self._collect: Captured = Captured(backend, self.collect, as_graph=as_graph, name=rollout)
        self._update: Captured = Captured(backend, self.update, as_graph=as_graph, name=update)
        self._acts = [named(f"act of {group.name}", group.act) for group in groups]

    def _rehearse(self, rehearse_rollout: Callable[[], bool]) -> None:
        """Launch the kernels of learning, acting and evaluation, for `ahead.compiled`.

        The slowest are first. A kernel of whole rollouts acts by itself.
        """
        learning = [group for group in self.groups.values() if group.exact is None and group.buffer is not None]
        with precision(self.config.trainer.precision, self.wrapper.cuda_data_manager.device):
            for group in learning:
                if (rehearse := getattr(group.algorithm, "rehearse", None)) is not None:
                    rehearse(group.buffer)
            if not rehearse_rollout():
                for group in learning:
                    group.rehearse()
        self._prepare_evaluation()
        if self._saves:
            compiled_ahead(checkpoint.prepare)

    def _prepare_launches(self) -> None:
        """Prepare launches of the first iteration.

        Their kernels compile at the same time.
        """
        for group in self.groups.values():
            if group.batch is not None and (prepare := getattr(group.algorithm, "prepare", None)) is not None:
                prepare(group.batch)
        if not callable(self.fused_rollout):
            for actions in self.action_samplers:
                actions.prepare(greedy=self.exploration["greedy"])
            for recorder in self.recorders.values():
                recorder.prepare(0)

    def _prepare_evaluation(self) -> None:
        """Create the environments of the first checkpoint's evaluation, on a GPU."""
        on_gpu, is_played = self.wrapper.backend.device.type == "cuda", self.world.is_first and len(self._learners) == 1
        if on_gpu and is_played and self._saves and self.config.saving.keep_best:
            self._evaluator.prepare(self.acting_models, self._n_greedy_episodes, seed=self._greedy_seed)

    # -------------------------------------------------------------- evaluation

    def evaluate(self, n_episodes: int = 100, *, greedy: bool = True, seed: int = 0) -> dict[str, evaluation.Score]:
        """Return each policy's score in separate whole episodes; synchronises.

        For a population it is each member's score, by number. The environments of the last two calls stay, and play
        again where the arguments are the same.

        Args:
            n_episodes: Episodes, one per environment; for each member of a population.
            greedy: Take the likeliest choice, or the mean; False: draw, without the noise of DDPG.
            seed: Seed of resets and draws.
        """
        return self._evaluator.scores(self.acting_models, n_episodes, greedy=greedy, seed=seed)

    @property
    def choices(self) -> dict[str, dict[str, Choice]]:
        """Path of each part of the run and why none is faster, by policy."""
        return {name: group.choices for name, group in self.groups.items()}

    @property
    def acting_models(self) -> dict[str, Any]:
        """Acting network of each policy."""
        return {name: group.acting for name, group in self.groups.items()}

    @property
    def _n_greedy_episodes(self) -> int:
        trainer = self.config.trainer
        return min(trainer.num_envs * (self.world.size if trainer.exact else 1), BEST_EPISODES)

    @property
    def _greedy_seed(self) -> int:
        return build.derived_seed(self.seed, build.BEST_SEED)

    def _greedy_scores(self) -> dict[str, evaluation.Score]:
        """Return scores in greedy episodes, the same for every checkpoint."""
        return self.evaluate(self._n_greedy_episodes, seed=self._greedy_seed)

    def fetch_episode_states(self, list_of_states: Sequence[str], *arguments: Any, **named: Any) -> Any:
        """Return an episode's states in WarpDrive's form; 0.2 removes this.

        Plays in separate environments. Arguments as of `warpdrive_min.dialect.episodes.episode_states`.
        """
        warnings.warn(
            "Trainer.fetch_episode_states: 0.2 removes it; use warpdrive_min.dialect.episodes.episode_states, or "
            "record an episode with warpdrive_min.rendering.record",
            DeprecationWarning,
            stacklevel=2,
        )
        return resolve_name(EPISODE_STATES)(
            self.wrapper, self.acting_models, self.policy_map, self.layout, list_of_states, *arguments, **named
        )

    rollout_at_once = renamed_attribute("rollout_at_once", "fused_rollout")
    sharing = renamed_attribute("sharing", "why_no_shared_observations")
    keeping = renamed_attribute("keeping", "why_no_saved_passes")

    def graceful_close(self) -> None:
        """Wait for the checkpoints, close the files and release the captured graphs.

        Raises:
            DiskFullError: There was no room for the last checkpoint; the rest is done.
        """
        try:
            self.wait_for_checkpoints()
        finally:
            self._close_sinks()
            self._files.close()
            self._evaluator.close()
            self._collect.release()
            self._update.release()


def policy_map(
    config: RunConfig, wrapper: EnvWrapper, given: Mapping[str, Agents] | None = None
) -> dict[str, list[Any]]:
    """Return each policy's agents: given, all, or those of its role.

    Raises:
        ConfigError: None are given, and one of several policies is not named after a role.
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
        f"must give the agents of the policies {known(config.policy)}",
        None,
        "only policies with the name of a role, as tagger and runner, find their agents themselves",
    )
    return {policy: list(agents) for policy, agents in roles.items() if agents is not None}
