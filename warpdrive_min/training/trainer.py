"""The trainer: collects, updates, logs and saves, again and again."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import torch

from warpdrive_min import forks
from warpdrive_min.backends.base import Launch
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import WarpDriveError, known, require, whole
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training import build
from warpdrive_min.training.build import make_exact
from warpdrive_min.training.config import RunConfig, precision
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop import choices, evaluation
from warpdrive_min.training.loop.arrays import Agents, PolicyMap, SharedLayout
from warpdrive_min.training.loop.global_states import give_global_states
from warpdrive_min.training.loop.metrics import Row
from warpdrive_min.training.loop.policies import (
    PolicyGroup,
    action_samplers,
)
from warpdrive_min.training.loop.progress import ProgressLine
from warpdrive_min.training.loop.rollout import RolloutBuffer, RolloutRecorder
from warpdrive_min.training.loop.rollout_check import RolloutCheck
from warpdrive_min.training.paths.captured import Captured
from warpdrive_min.training.paths.table import Choice
from warpdrive_min.training.run import Run

log = logging.getLogger(__name__)

WARPDRIVE_ARGUMENTS: Final = "warpdrive_min.dialect.layout:trainer_arguments"
"""Function that returns our arguments for WarpDrive's keywords."""
BEST_EPISODES: Final = 100
"""Episodes that a checkpoint is judged by, at most; fewer where there are fewer environments."""
EPISODE_STATES: Final = "warpdrive_min.dialect.episodes:episode_states"


class Trainer(Run):
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
        config = RunConfig.of(config)
        agents, trainer = policy_map(config, env_wrapper, policies), config.trainer
        build.require_fit(config, env_wrapper, agents, has_members=self.has_members)
        super().__init__(config, env_wrapper, agents, layout or SharedLayout(), folder)
        self.n_iterations = config.n_iterations(env_wrapper.episode_length)
        self.n_steps = trainer.train_batch_size // trainer.num_envs
        """Steps of a rollout."""
        self._start_environments()
        self._build()
        self.schedules.write(self.steps_per_iteration)  # so that `collect` and `update` by hand learn, too
        if self.world.size > 1:
            self.folder  # noqa: B018  (the ranks agree on it, and all are here)
        self._verbose = verbose and self.world.is_first
        self._start_clock()

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

    # -------------------------------------------------------------- looking at what was learned

    def evaluate(self, n_episodes: int = 100, *, greedy: bool = True, seed: int = 0) -> dict[str, evaluation.Score]:
        """Play whole episodes in environments of their own and return each policy's score; synchronises.

        Of a population it is each member's score, by its number.

        Args:
            n_episodes: One in each of as many environments; of a population for each member.
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

    def _greedy_scores(self) -> dict[str, evaluation.Score]:
        """Return the scores of the same greedy episodes for every checkpoint."""
        seed = build.derived_seed(self.seed, build.BEST_SEED)
        return self.evaluate(min(self.config.trainer.num_envs, BEST_EPISODES), seed=seed)

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
        self._files.close()
        self._collect.forget()
        self._update.forget()


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
