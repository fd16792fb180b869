"""The trainer: plays, learns, logs and saves, again and again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import seed_resets
from warpdrive_min.errors import CheckpointError, ConfigError, known
from warpdrive_min.files import write_atomically
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training import checkpoint, evaluation, ranks
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.learners import (
    ALGORITHM_SEED,
    RESET_SEED,
    SAMPLER_SEED,
    Learner,
    derived_seed,
    make_algorithm,
    make_learners,
)
from warpdrive_min.training.metrics import (
    STEPS_PER_S,
    Row,
    Sink,
    check_finite,
    make_row,
    open_sinks,
)
from warpdrive_min.training.phase import Phase
from warpdrive_min.training.placeholders import create_and_push_data_placeholders
from warpdrive_min.training.progress import ProgressLine
from warpdrive_min.training.recorder import Recorder
from warpdrive_min.training.rollout import Actors, Rollout, make_batch
from warpdrive_min.training.schedules import ParamScheduler, Schedule
from warpdrive_min.training.seats import seats
from warpdrive_min.training.state import is_weight, own_state, shared_state, weights
from warpdrive_min.training.statistics import mean_return, read

log = logging.getLogger(__name__)

Agents = Sequence[Hashable]


class Trainer:
    """Trains the policies of a run config on the copies of a wrapper, on the wrapper's backend.

    An iteration is a rollout of ``train_batch_size / num_envs`` steps and an update of every policy that is to be
    trained. On a GPU each of the two is one CUDA graph; the host waits for the device only where it logs or saves.

    Args:
        env_wrapper: On a backend whose kernels the environment has.
        config: Run config: the object, what it is made of, or the path of its YAML file.
        policy_tag_to_agent_id_map: Agents of each policy, every agent once; None: all agents to the one policy.
        create_separate_placeholders_for_each_policy: Each policy has arrays of its own, ``observations_<policy>``.
        obs_dim_corresponding_to_num_agents: Axis of the agents in arrays of observations: ``"first"`` after that of
            the environments, or ``"last"``.
        num_devices: GPUs that train together; None: as many as ranks of the process group.
        device_id: Rank of this one; None: that in the process group.
        results_dir: Name of the run's folder in ``basedir/name/tag``; None: the time.
        verbose: Show progress.

    Raises:
        ConfigError: The config breaks a rule, or does not fit the environment or the policies.
        BackendUnavailable: The environment has no kernels for the backend.
    """

    def __init__(
        self,
        env_wrapper: EnvWrapper,
        config: RunConfig | Mapping[str, Any] | str | Path,
        policy_tag_to_agent_id_map: Mapping[str, Agents] | None = None,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        num_devices: int | None = None,
        device_id: int | None = None,
        results_dir: str | Path | None = None,
        verbose: bool = True,
    ) -> None:
        self.config = RunConfig.of(config)
        self.wrapper = env_wrapper
        self.policy_map = policy_map(self.config, env_wrapper, policy_tag_to_agent_id_map)
        self.world = ranks.World.of(num_devices, device_id)
        self._check()
        trainer = self.config.trainer
        self.n_iterations = self.config.n_iterations(env_wrapper.episode_length)
        self.iteration = 0
        """Iterations done."""
        self.env_steps = 0
        """Steps done, of all environments of all ranks together."""
        self.best_return: float | None = None
        """Highest mean episodic reward that was saved, the mean over the policies that learn."""
        self._last_return: float | None = None
        self.recent_return: dict[str, float | None] = {}
        """Of each policy, over the latest rows of metrics in which all environments had time for a whole episode."""
        self._recent: list[Row] = []
        self._recent_from = 0
        self.seed = self.world.agreed(trainer.seed if trainer.seed is not None else time.time_ns() % 2**31)
        self._arrays = (create_separate_placeholders_for_each_policy, obs_dim_corresponding_to_num_agents)
        self._start_environments()
        self._build()
        saving = self.config.saving
        runs = Path(saving.basedir, saving.name, saving.tag)
        self.folder = runs / (str(results_dir) if results_dir else str(self.world.agreed(unused_number(runs))))
        """Where the run leaves its settings, metrics and checkpoints."""
        self._verbose = verbose and self.world.is_first
        self._sinks: list[Sink] | None = None
        self._started = time.perf_counter()
        self._last_log = (self._started, 0)
        self._logged_iteration = 0
        self._seconds_before = 0.0
        self._resumed_from: int | None = None
        self.has_reached_return = False
        """Training has stopped because its policies reached ``trainer.stop_return``."""

    # -------------------------------------------------------------- the loop

    def train(self, n_iterations: int | None = None) -> Row:
        """Train to the end of the run config, or for some iterations; returns the last row of metrics.

        Raises:
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration.
        """
        last = self.n_iterations if n_iterations is None else min(self.n_iterations, self.iteration + n_iterations)
        row: Row = {}
        with ProgressLine(self.n_iterations, self.iteration, self._verbose) as progress:
            while self.iteration < last and not self.has_reached_return:
                self.iterate()
                if self.is_due(self.config.saving.metrics_log_freq) or self.iteration == 1:
                    row = self.log_metrics()
                    progress.update(row)
                if self.is_due(self.config.saving.model_params_save_freq):
                    self.save_checkpoint()
        return row

    def iterate(self) -> None:
        """Play a rollout and learn from it; enqueues, but for the captures, and neither logs nor saves."""
        self._set_schedules()
        self._play.run()
        self._learn.run()
        self.iteration += 1
        self.env_steps += self.config.trainer.train_batch_size * self.world.size

    @property
    def capture_s(self) -> float:
        """What the capture of the graphs took, s; 0 where there is none."""
        return self._play.capture_s + self._learn.capture_s

    @property
    def is_finished(self) -> bool:
        """The run config wants no further iteration."""
        return self.iteration >= self.n_iterations or self.has_reached_return

    def is_due(self, every: int) -> bool:
        """Tell whether something is done after this iteration; always after the last one."""
        return self.iteration % every == 0 or self.is_finished

    def _learn_all(self) -> None:
        for learner in self.learners.values():
            if learner.algorithm is not None:
                learner.algorithm.update()

    def _set_schedules(self) -> None:
        """Write the numbers of this iteration, those that have changed, into their tensors; enqueues."""
        now = self.env_steps + self.config.trainer.train_batch_size * self.world.size
        for schedule, tensor in self._schedules:
            value = schedule.get_param_value(now)
            if self._written.get(id(tensor)) != value:
                tensor.fill_(value)
                self._written[id(tensor)] = value

    # -------------------------------------------------------------- construction

    def _check(self) -> None:
        wrapper, trainer = self.wrapper, self.config.trainer
        if not wrapper.vectorised:
            raise ConfigError(
                f"trainer: environment {wrapper.name!r} has no kernels for backend {wrapper.env_backend!r}; "
                "give it one, or choose another backend"
            )
        if trainer.num_envs != wrapper.n_envs:
            raise ConfigError(
                f"run config trainer.num_envs: must be the wrapper's number of environments {wrapper.n_envs:,} "
                f"(got {trainer.num_envs:,}); make them equal"
            )
        if set(self.policy_map) != set(self.config.policy):
            raise ConfigError(
                f"policy_tag_to_agent_id_map: must name the policies of the run config, {known(self.config.policy)} "
                f"(got {known(self.policy_map)})"
            )
        if trainer.mode == "graph" and not wrapper.backend.captures_graphs:
            raise ConfigError(
                f"run config trainer.mode: backend {wrapper.env_backend!r} has no CUDA graphs (got 'graph'); "
                "use 'auto' or 'eager'"
            )

    def _start_environments(self) -> None:
        """Start all copies, and push what an environment leaves to the trainer."""
        separate, agents_axis = self._arrays
        if self.wrapper.reset_on_host:
            self.wrapper.reset()
        create_and_push_data_placeholders(
            self.wrapper,
            policy_tag_to_agent_id_map=self.policy_map,
            create_separate_placeholders_for_each_policy=separate,
            obs_dim_corresponding_to_num_agents=agents_axis,
            push_data_batch_placeholders=False,
        )
        seed_resets(self.wrapper.cuda_data_manager, derived_seed(self.seed, RESET_SEED, self.world.rank))
        self.wrapper.reset()

    def _build(self) -> None:
        wrapper, config = self.wrapper, self.config
        device = wrapper.cuda_data_manager.device
        taken = seats(wrapper, self.policy_map, *self._arrays)
        self.learners: dict[str, Learner] = make_learners(config, taken, self.seed, device)
        """The policies, by name."""
        self.sampler = CUDASampler(wrapper.cuda_function_manager)
        self.sampler.init_random(derived_seed(self.seed, SAMPLER_SEED, self.world.rank))
        players = {name: learner.player for name, learner in self.learners.items()}
        self._actors = Actors(wrapper, self.sampler, players)
        n_steps = config.trainer.train_batch_size // config.trainer.num_envs
        self._recorders = {
            suffix: Recorder(wrapper, n_steps, Constants.REWARDS + suffix, self._arrays[1], keys)
            for suffix, keys in {seat.suffix: seat.keys for seat in taken.values()}.items()
        }
        batches = {}
        self._schedules: list[tuple[ParamScheduler, torch.Tensor]] = []
        self._written: dict[int, float] = {}
        for index, learner in enumerate(self.learners.values()):
            if learner.config.to_train:
                seat = learner.player.seat
                batch = batches[learner.name] = make_batch(wrapper, seat, self._recorders[seat.suffix])
                seed = derived_seed(self.seed, ALGORITHM_SEED, self.world.rank, index)
                learner.algorithm = make_algorithm(learner, config, batch, wrapper.backend, seed)
                self._schedules += [
                    (ParamScheduler(learner.config.schedule(name)), tensor)
                    for name, tensor in learner.algorithm.scheduled.items()
                ]
        of_noise = self._noise()
        noise = {name: torch.zeros((), device=device) for name in of_noise}
        self._schedules += [(ParamScheduler(of_noise[name]), tensor) for name, tensor in noise.items()]
        draw = {**noise, "greedy": config.sampler.params.use_argmax}
        clips = config.trainer.compat != "warpdrive"
        self.rollout = Rollout(
            wrapper, self._actors, batches, self._recorders, draw, clips=clips, precision=config.trainer.precision
        )
        as_graph = wrapper.backend.captures_graphs and config.trainer.mode != "eager"
        self._play = Phase(wrapper.backend, self.rollout.play, as_graph=as_graph)
        self._learn = Phase(wrapper.backend, self._learn_all, as_graph=as_graph)

    def _noise(self) -> dict[str, Schedule]:
        """Return the numbers of the noise of DDPG; of Gaussian noise nothing stays from step to step."""
        kinds = {name: policy.noise for name, policy in self.config.policy.items() if policy.algorithm == "DDPG"}
        if len(set(kinds.values())) > 1:
            raise ConfigError(
                f"run config policy: all policies of DDPG must explore by the same noise, of which sampler.params has "
                f"the numbers (got {kinds}); make them equal"
            )
        return self.config.sampler.params.schedules | ({"damping": 1.0} if "gaussian" in kinds.values() else {})

    # -------------------------------------------------------------- log

    def log_metrics(self) -> Row:
        """Copy the metrics since the last call to the host, once, and write them where they go; synchronises.

        Raises:
            TrainingError: A loss or a gradient is not finite; names the policy and the iteration.
        """
        updates, episodes = read(self.learners, self._recorders, self.world)
        now, (before, steps_before) = time.perf_counter(), self._last_log
        self._last_log = (now, self.env_steps)
        rates = {
            STEPS_PER_S: (self.env_steps - steps_before) / (now - before),
            "rollout_s": self._play.take_seconds(),
            "update_s": self._learn.take_seconds(),
        }
        row = make_row(
            self.iteration,
            self.env_steps,
            self._seconds(),
            {name: episodes[name] | updates.get(name, {}) | self._present(name) for name in self.learners},
            **rates,
            **self._evaluated(),
        )
        for name, metrics in updates.items():
            check_finite(name, metrics, self.iteration, self.env_steps, self._logged_iteration)
        self.world.check_equal(shared_state(self.learners))
        self._logged_iteration = self.iteration
        for recorder in self._recorders.values():
            recorder.clear_statistics()
        if self.world.is_first:
            for sink in self._open_sinks():
                sink.write(row)
        self._judge(row)
        return row

    def _evaluated(self) -> dict[str, float]:
        """Return what the policies reach when they do their best, if that is asked for."""
        if not self.config.trainer.evaluator:
            return {}
        return {f"{name}/evaluated_return": score.mean_return for name, score in self.evaluate().items()}

    def _present(self, policy: str) -> dict[str, float]:
        """Return the scheduled numbers of a policy, as they are now."""
        algorithm = self.learners[policy].algorithm
        return {} if algorithm is None else {key: self._written[id(t)] for key, t in algorithm.scheduled.items()}

    def _judge(self, row: Row) -> None:
        """Note how good the policies are, and whether that is good enough."""
        n_steps = self.wrapper.n_envs * self.wrapper.episode_length * self.world.size
        self._recent.append(row)
        self.recent_return = {
            name: mean_return(self._recent, name, n_steps, self._recent_from) for name in self.learners
        }
        while len(self._recent) > 1 and row["env_steps"] - self._recent[0]["env_steps"] >= n_steps:
            self._recent_from = int(self._recent.pop(0)["env_steps"])
        trained = [name for name, learner in self.learners.items() if learner.algorithm is not None]
        known_returns = [got for name in trained if (got := self.recent_return[name]) is not None]
        if trained and len(known_returns) == len(trained):
            self._last_return = sum(known_returns) / len(trained)
        least_of_all = self.config.trainer.stop_return
        if least_of_all is None:
            return
        wanted = least_of_all if isinstance(least_of_all, Mapping) else dict.fromkeys(trained, least_of_all)
        reached = [(got := self.recent_return[name]) is not None and got >= least for name, least in wanted.items()]
        self.has_reached_return = bool(reached) and all(reached)

    def _open_sinks(self) -> list[Sink]:
        if self._sinks is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            settings = self.config.to_dict() | {"seed": self.seed}
            write_atomically(self.folder / "run_config.json", json.dumps(settings, indent=1) + "\n")
            saving = self.config.saving
            resumed = self._resumed_from
            self._sinks = open_sinks(saving.sinks, self.folder, saving.name, settings, resumed)
        return self._sinks

    def _close_sinks(self) -> None:
        for sink in self._sinks or []:
            sink.close()
        self._sinks = None

    # -------------------------------------------------------------- checkpoints

    def save_checkpoint(self) -> Path | None:
        """Write all of the run's state; returns where, on the first rank; synchronises.

        Raises:
            ConfigError: safetensors is not installed.
        """
        is_best = self._last_return is not None and (self.best_return is None or self._last_return > self.best_return)
        if is_best:
            self.best_return = self._last_return
        state = self.state()
        if state is None:
            return None
        saving = self.config.saving
        return checkpoint.save(self.folder / checkpoint.FOLDER, *state, saving.keep_last, is_best and saving.keep_best)

    def state(self) -> tuple[dict[str, torch.Tensor], checkpoint.Header] | None:
        """Return all that the run goes on from, on the first rank: live tensors by name, and what they are of.

        With several ranks it synchronises, and copies what each has of its own.
        """
        own = self.world.gathered(own_state(self.wrapper.cuda_data_manager, self._recorders, self.learners))
        if own is None:
            return None
        header = checkpoint.Header(
            iteration=self.iteration,
            env_steps=self.env_steps,
            seconds=self._seconds(),
            run_config=self.config.to_dict(),
            environment=self._environment(),
            seed=self.seed,
            best_return=self.best_return,
        )
        return shared_state(self.learners) | own, header

    def load_checkpoint(self, path: str | Path | None = None, *, weights_only: bool = False) -> None:
        """Go on from a checkpoint, exactly as if training had not stopped there; synchronises.

        Args:
            path: Of a checkpoint, or of a folder of them, whose latest counts; None: of this run's own folder.
            weights_only: Take the models and nothing else, into whatever run this is.

        Raises:
            CheckpointError: It is damaged, or is of another environment, other sizes or other models.
        """
        found = self.world.agreed(checkpoint.find(path or self.folder / checkpoint.FOLDER))
        saved, header = checkpoint.load(found)
        if weights_only:
            own = {name: saved[name] for name in saved if is_weight(name)}
            checkpoint.restore(weights(self.learners), own, found)
            return
        self.load_state(saved, header, found)
        own_folder = self.folder / checkpoint.FOLDER
        # Those that are gone back behind would count as the latest.
        if self.world.is_first and found.resolve().parent == own_folder.resolve():
            checkpoint.discard_after(own_folder, header.iteration)

    def load_state(self, saved: Mapping[str, torch.Tensor], header: checkpoint.Header, found: str | Path) -> None:
        """Go on from what `state` returned, exactly as if training had not stopped there; synchronises.

        Args:
            saved: Tensors by name, on any device.
            header: What they are of.
            found: Where they were, for errors.

        Raises:
            CheckpointError: They are of another environment, other sizes or other models; then nothing has changed.
        """
        if header.environment != self._environment():
            differing = {
                key: (value, self._environment().get(key))
                for key, value in header.environment.items()
                if value != self._environment().get(key)
            }
            raise CheckpointError(
                f"checkpoint {found}: must be of this run's environment and sizes "
                f"(got there and here: {differing}); build the run that saved it, or load its weights only"
            )
        shared, own = (
            shared_state(self.learners),
            own_state(self.wrapper.cuda_data_manager, self._recorders, self.learners),
        )
        mine = {
            name: tensor if name in shared or name not in own else tensor[self.world.rank]
            for name, tensor in saved.items()
        }
        checkpoint.restore(shared | own, mine, found)
        self.iteration, self.env_steps, self.seed = header.iteration, header.env_steps, header.seed
        self.best_return, self._seconds_before = header.best_return, header.seconds
        self._resumed_from, self.has_reached_return = self.iteration, False
        self._recent, self._recent_from = [], self.env_steps
        self._close_sinks()  # opened again, they drop the rows that will come again
        self._started = time.perf_counter()
        self._last_log = (self._started, self.env_steps)

    def _environment(self) -> dict[str, Any]:
        wrapper = self.wrapper
        return {
            "name": wrapper.name,
            "n_envs": wrapper.n_envs,
            "n_agents": wrapper.n_agents,
            "episode_length": wrapper.episode_length,
            "arrays": list(self._arrays),
            "ranks": self.world.size,
            "policies": {name: [str(agent) for agent in agents] for name, agents in self.policy_map.items()},
        }

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started

    # -------------------------------------------------------------- looking at what was learned

    def evaluate(self, n_episodes: int = 100, *, greedy: bool = True, seed: int = 0) -> dict[str, evaluation.Score]:
        """Play whole episodes in environments of their own and return each policy's score; synchronises.

        Args:
            n_episodes: One in each of as many environments.
            greedy: Take the likeliest choice, or the mean; False: draw, without the noise of DDPG.
            seed: Of starts and draws.
        """
        return evaluation.evaluate(
            self.wrapper, self._models(), self.policy_map, self._arrays, n_episodes, greedy, seed
        )

    def fetch_episode_states(
        self,
        list_of_states: Sequence[str],
        env_id: int = 0,
        include_rewards_actions: bool = False,
        include_probabilities: bool = False,
        *,
        greedy: bool = False,
        seed: int = 0,
    ) -> Any:
        """Play one episode in environments of its own and return its states; see `evaluation.episode_states`."""
        return evaluation.episode_states(
            self.wrapper,
            self._models(),
            self.policy_map,
            self._arrays,
            list_of_states,
            env_id,
            include_rewards_actions,
            include_probabilities,
            greedy,
            seed,
        )

    def _models(self) -> dict[str, Any]:
        return {name: learner.player.model for name, learner in self.learners.items()}

    def graceful_close(self) -> None:
        """Close the files of metrics and let go of what was captured."""
        self._close_sinks()
        self._play.forget()
        self._learn.forget()


def unused_number(runs: Path) -> int:
    """Return the time in seconds, or what follows it, so that no run has a folder of that name yet."""
    number = int(time.time())
    while (runs / str(number)).exists():
        number += 1
    return number


def policy_map(
    config: RunConfig, wrapper: EnvWrapper, given: Mapping[str, Agents] | None = None
) -> dict[str, list[Hashable]]:
    """Return the agents of each policy: as given, or all to the one policy, or taggers and runners to theirs.

    Raises:
        ConfigError: Nothing is given, and the run config has several policies that are not named after such roles.
    """
    if given is not None:
        named = {policy: list(agents) for policy, agents in given.items()}
        in_order = {policy: named.pop(policy) for policy in config.policy if policy in named}
        return in_order | named
    if len(config.policy) == 1:
        return {next(iter(config.policy)): list(wrapper.env.action_space)}
    roles = {policy: getattr(wrapper.env, f"{policy}s", None) for policy in config.policy}
    if not all(isinstance(agents, Mapping | Sequence) for agents in roles.values()):
        raise ConfigError(
            f"policy_tag_to_agent_id_map: must say which agents the policies {known(config.policy)} have (got None); "
            "only policies named after a role of the environment, as tagger and runner, find theirs"
        )
    return {policy: list(agents) for policy, agents in roles.items() if agents is not None}
