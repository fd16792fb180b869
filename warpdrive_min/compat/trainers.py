"""WarpDrive's trainers: ours with its arguments, methods, files and metrics."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min.compat.env_wrapper import as_env_wrapper
from warpdrive_min.compat.models import BUILT_IN, Building, as_warpdrive_model, building
from warpdrive_min.compat.words import METRICS
from warpdrive_min.config import Config
from warpdrive_min.constants import Constants
from warpdrive_min.dialect.episodes import episode_states
from warpdrive_min.dialect.layout import trainer_arguments
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.environment import ids_in
from warpdrive_min.errors import ConfigError, did_you_mean, known, require
from warpdrive_min.files import append
from warpdrive_min.training import trainer
from warpdrive_min.training.algorithms.actor_critic import ActorCriticAlgorithm
from warpdrive_min.training.algorithms.ddpg import DDPG
from warpdrive_min.training.build import derived_seed, load_weights
from warpdrive_min.training.config import (
    ModelConfig,
    PolicyConfig,
    RunConfig,
    SavingConfig,
    TrainerConfig,
)
from warpdrive_min.training.loop.arrays import PolicyMap
from warpdrive_min.training.loop.evaluation import EvaluationEnvs
from warpdrive_min.training.loop.metrics import Row
from warpdrive_min.training.loop.policies import acting_part

KINDS: Final = {
    "model": "fully_connected",
    "actor": "fully_connected_actor",
    "critic": "fully_connected_action_value_critic",
}
"""Built-in model of each part of a policy."""
FILE: Final = re.compile(r"_(\d+)\.state_dict$")
"""Suffix of a weights file, with its timestep."""
BASEDIR: Final = "/tmp"
"""Folder of all runs in WarpDrive's default config."""
CLIP_PARAM: Final = 0.01
"""WarpDrive's default of ``clip_param``."""
NOT_CALLED: Final = (
    *("_initialize_policy_algorithm", "_initialize_policy_model", "_send_policy_model_to_device"),
    *("_initialize_optimizer", "_evaluate_policies", "_update_model_params", "_generate_rollout_batch"),
    *("_sample_actions", "_bookkeep_rewards_and_done_flags", "_log_metrics", "_load_model_checkpoint_helper"),
)
"""Methods that WarpDrive's subclasses override and our trainer does not call."""
PLAY_SEED: Final = 16
"""Stream of seeds for played episodes, next to those of `build`."""


class TrainerBase(trainer.Trainer):
    """Trainer of a run config's policies, based on our `Trainer`.

    Weights are saved as WarpDrive's files next to the checkpoints, and metrics as lines of ``results.json``.

    Args:
        env_wrapper: Wrapper on a backend with kernels of the environment.
        config: Run config; a mapping is copied and not modified.
        policy_tag_to_agent_id_map: Agents of each policy, every agent once.
        create_separate_placeholders_for_each_policy: Each policy has its own arrays, ``observations_<policy>``.
        obs_dim_corresponding_to_num_agents: Axis of the agents in observations, ``"first"`` or ``"last"``.
        num_devices: Number of processes that train together.
        device_id: Index of this process.
        results_dir: Name of the run's folder in ``basedir/name/tag``; None: the time.
        verbose: Show progress.

    Raises:
        ConfigError: The config breaks a rule, or does not fit the environment or the policies; or a subclass
            overrides methods that are not called.
    """

    adds_to_folders = True

    def __init__(
        self,
        env_wrapper: EnvWrapper | None = None,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        policy_tag_to_agent_id_map: PolicyMap | None = None,
        create_separate_placeholders_for_each_policy: bool = False,
        obs_dim_corresponding_to_num_agents: str = "first",
        num_devices: int = 1,
        device_id: int = 0,
        results_dir: str | Path | None = None,
        verbose: bool = True,
    ) -> None:
        if env_wrapper is None or config is None:
            raise ConfigError(f"trainer: needs env_wrapper and config (got {env_wrapper} and {config}); pass both")
        filled = [name for name in NOT_CALLED if hasattr(type(self), name)]
        rule = "must not fill methods of WarpDrive's trainer that this project's never calls"
        do = "derive it from a copy of WarpDrive's trainer beside the script, which trains here, or write a model"
        require(not filled, f"trainer {type(self).__name__}", rule, filled, do)
        given, env_wrapper = env_wrapper, as_env_wrapper(env_wrapper)
        settings = run_config(config) if isinstance(config, Mapping) else RunConfig.of(config)
        given_map = trainer.policy_map(settings, env_wrapper, policy_tag_to_agent_id_map)
        policies = {name: ids_in(env_wrapper.env.action_space, agents) for name, agents in given_map.items()}
        self._given = (config.get("policy") or {}) if isinstance(config, Mapping) else {}
        if _stops_at_trainer.get():
            arrays = (create_separate_placeholders_for_each_policy, obs_dim_corresponding_to_num_agents)
            n_steps = settings.trainer.train_batch_size // settings.trainer.num_envs
            found = Building(env_wrapper, policies, arrays, settings.policy, self._given, n_steps)
            raise _TrainerMadeError(settings, found)
        self._n_played = 0
        arguments = trainer_arguments(
            policies,
            create_separate_placeholders_for_each_policy,
            obs_dim_corresponding_to_num_agents,
            num_devices,
            device_id,
            results_dir,
        )
        super().__init__(env_wrapper, settings, **arguments, verbose=verbose)
        self.cuda_envs = given
        self.cuda_sample_controller = self.sampler
        self.policies = list(self.config.policy)
        self.policies_to_train = [name for name, policy in self.config.policy.items() if policy.to_train]
        self.policy_tag_to_agent_id_map = self.policy_map
        self.num_envs = self.config.trainer.num_envs
        self.num_episodes = self.config.trainer.num_episodes
        self.num_iters = self.n_iterations
        self.training_batch_size = self.config.trainer.train_batch_size
        self.training_batch_size_per_env = self.training_batch_size // self.num_envs
        self.num_devices, self.device_id, self.verbose = num_devices, device_id, verbose
        self.perf_stats = PerfStats()
        self.metrics = Metrics()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save_dir = str(self.folder)
        self._set_timestep(file for policy in self.config.policy.values() for file in policy.weight_files.values())

    def _build(self) -> None:
        """Build models with arguments for users' own ones, and adapt all to WarpDrive."""
        arrays, configs = self.layout.saved, self.config.policy
        models = Building(self.wrapper, self.policy_map, arrays, configs, self._given, self.n_steps)
        with building(models):
            super()._build()
        data = self.wrapper.cuda_data_manager
        for name, group in self.groups.items():
            if group.buffer is not None and self.why_no_shared_observations:
                if group.buffer.passes is not None:
                    group.buffer.passes.source = None  # users read the copies
                data.use_external(f"{Constants.PROCESSED_OBSERVATIONS}_batch_{name}", group.buffer.observations[:-1])
                data.use_external(f"{Constants.ACTIONS}_batch_{name}", group.buffer.actions)
                data.use_external(f"{Constants.REWARDS}_batch_{name}", group.buffer.rewards)
        for name, group in self.groups.items():
            what, rule = f"run config policy.{name}.model.type", "WarpDrive's trainers have no recurrent models"
            got, do = group.config.models[acting_part(group.models)].type, "use warpdrive_min.training.trainer.Trainer"
            require(group.memory is None, what, rule, got, do)
        self.trainers = {name: group.algorithm for name, group in self.groups.items() if group.algorithm}
        """Algorithms by policy."""
        self._seen = {
            part: {
                name: as_warpdrive_model(
                    group.models[part],
                    kind,
                    model_config=group.config.models[part].to_dict(),
                    policy=name,
                    **models.arguments,
                )
                for name, group in self.groups.items()
                if part in group.models
            }
            for part, kind in KINDS.items()
        }

    @property
    def current_timestep(self) -> dict[str, int]:
        """Env steps so far by policy, summed over environments.

        All policies have learned from the same steps.
        """
        return dict.fromkeys(self.policies, self.env_steps)

    # -------------------------------------------------------------- metrics

    def log_metrics(self) -> Row:
        """Log as our trainer, and add a line to ``results.json``; synchronises."""
        row = super().log_metrics()
        stats = self.perf_stats
        stats.iters, stats.total_time = self.iteration, row["seconds"]
        stats.steps = self.iteration * self.training_batch_size * self.world.size
        stats.rollout_time += row["rollout_s"]
        stats.training_time += row["update_s"]
        if self.world.is_first:
            results = "results.json" if self.num_devices == 1 else f"results_device_{self.device_id}.json"
            line = {
                "Iterations Completed": self.iteration,
                **{policy: self._results(policy, row) for policy in self.policies},
                "Perf. Stats": stats.get_perf_stats(),
            }
            append(Path(self.save_dir, results), json.dumps(line) + "\n")
        return row

    def _results(self, policy: str, row: Row) -> dict[str, float]:
        named = {METRICS[key]: row[f"{policy}/{key}"] for key in METRICS if f"{policy}/{key}" in row}
        return {"Current timestep": self.env_steps, **named}

    # -------------------------------------------------------------- weights

    def save_checkpoint(self, *, wait: bool = True) -> Path | None:
        """Write the full state of the run, and WarpDrive's weights; synchronises."""
        path = super().save_checkpoint(wait=wait)
        if path is not None:
            self._save_weights()
        return path

    def save_model_checkpoint(self, iteration: int = 0) -> None:
        """Write WarpDrive's weights files if due at an iteration; synchronises.

        Args:
            iteration: Index from 0; due are multiples of ``saving.model_params_save_freq`` and the last one.
        """
        is_due = iteration % self.config.saving.model_params_save_freq == 0 or iteration == self.num_iters - 1
        if is_due and self.world.is_first:
            self._save_weights()

    def _save_weights(self) -> None:
        for part, models in self._seen.items():
            for policy, model in models.items():
                name = policy if part == "model" else f"{policy}_{part}"
                torch.save(model.state_dict(), self.folder / f"{name}_{self.env_steps}.state_dict")

    def load_model_checkpoint(self, ckpts_dict: Mapping[str, Any] | None = None) -> None:
        """Load weights from files, and the timestep from their names; synchronises.

        Args:
            ckpts_dict: File of each policy, WarpDrive's or one of our checkpoints; for DDPG ``{"actor": file,
                "critic": file}``. None: those of the run config.

        Raises:
            ConfigError: A policy or a part is unknown.
            DataError: The weights belong to another model.
            CheckpointError: The file does not exist, or the checkpoint has other models.
        """
        if ckpts_dict is None:
            ckpts_dict = {name: policy.weight_files for name, policy in self.config.policy.items()}
        files = []
        for policy, given in ckpts_dict.items():
            do = f"known are {known(self.groups)}"
            require(policy in self.groups, "load_model_checkpoint", f"unknown policy {policy!r}", do=do)
            group = self.groups[policy]
            parts = group.models
            for part, file in (given if isinstance(given, Mapping) else {"model": given}).items():
                do = f"it has {known(parts)}"
                require(part in parts, "load_model_checkpoint", f"{policy!r} has no {part!r}", do=do)
                load_weights(parts[part], str(file), f"policy/{policy}/{part}/")
                files.append(str(file))
            if isinstance(group.algorithm, DDPG):
                at_once = torch.ones((), device=self.wrapper.cuda_data_manager.device, dtype=torch.float32)
                group.algorithm.target_actor.update(at_once)
                group.algorithm.target_critic.update(at_once)
        self._set_timestep(files)

    def _set_timestep(self, files: Iterable[str]) -> None:
        """Continue from the highest timestep in the files' names."""
        found = [int(match[1]) for file in files if (match := FILE.search(file))]
        if found:
            self.env_steps = max(found)

    # -------------------------------------------------------------- episodes

    def fetch_episode_states(
        self,
        list_of_states: Sequence[str] | None = None,
        env_id: int = 0,
        include_rewards_actions: bool = False,
        include_probabilities: bool = False,
        policy: str = "",
        **sample_params: Any,
    ) -> Any:
        """Play one episode in separate environments and return its states; synchronises.

        Args:
            list_of_states: Names of arrays with a row for each environment.
            env_id: Index of the environment.
            include_rewards_actions: Also return actions and rewards.
            include_probabilities: Also return the probabilities of the choices; for continuous actions the mean.
            policy: Policy whose actions and rewards are returned, if each policy has its own arrays.
            sample_params: ``use_argmax=True`` takes the most likely choices, or the means.

        Returns:
            States by name, (episode_length + 1, ...) each, NaN after the end. With ``include_rewards_actions`` a
            tuple with actions and rewards, (episode_length, ...) each, 0 after the end. With
            ``include_probabilities`` also ``{step: {policy: [per action type, (n_agents, choices)]}}``.

        Raises:
            ConfigError: No states are named, ``env_id`` is out of range, or a keyword is unknown.
            DataError: A state does not exist, or has no row per environment.
        """
        if not list_of_states or not 0 <= env_id < self.num_envs:
            raise ConfigError(
                f"fetch_episode_states: needs names of states and env_id from 0 to {self.num_envs - 1} "
                f"(got {list_of_states} and {env_id})"
            )
        greedy = _is_greedy("fetch_episode_states", sample_params)
        suffix = f"_{policy}" if policy else ""
        played = [Constants.ACTIONS + suffix, Constants.REWARDS + suffix] if include_rewards_actions else []
        found = episode_states(
            self.wrapper,
            self.acting_models,
            self.policy_map,
            self.layout,
            [*list_of_states, *played],
            env_id,
            include_probabilities=include_probabilities,
            greedy=greedy,
            seed=self._next_seed(),
        )
        states, chances = found if include_probabilities else (found, {})
        result: list[Any] = [{name: states[name] for name in list_of_states}]
        for name in played:
            dtype = np.float32 if self.cuda_envs.cuda_data_manager.tensor(name).is_floating_point() else np.int32
            result.append(np.nan_to_num(states[name][1:]).astype(dtype))
        if include_probabilities:
            result.append(
                {
                    step: {
                        name: np.split(each, np.cumsum(self._sizes(name))[:-1], -1) for name, each in of_step.items()
                    }
                    for step, of_step in chances.items()
                }
            )
        return result[0] if len(result) == 1 else tuple(result)

    def evaluate_episodes(self, **sample_params: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Play one episode in ``num_envs`` separate environments; synchronises.

        Args:
            sample_params: ``use_argmax=True`` takes the most likely choices, or the means.

        Returns:
            Rewards summed over the episode, (n_envs, n_agents), and its steps, (n_envs,), each by policy.

        Raises:
            ConfigError: A keyword is unknown.
        """
        greedy = _is_greedy("evaluate_episodes", sample_params)
        arguments = (self.wrapper, self.acting_models, self.policy_map, self.layout, self.num_envs, self._next_seed())
        with EvaluationEnvs(*arguments) as envs:
            rewards, steps = envs.play(greedy)
        return rewards, dict.fromkeys(rewards, steps.long())

    def _sizes(self, policy: str) -> tuple[int, ...]:
        space = self.groups[policy].arrays.space
        return space.categories or (1,) * space.n_types

    def _next_seed(self) -> int:
        """Return a new seed for an episode."""
        self._n_played += 1
        return derived_seed(self.seed, PLAY_SEED, self._n_played)


class TrainerA2C(TrainerBase):
    """Trainer of A2C and PPO; see `TrainerBase`."""

    def _build(self) -> None:
        super()._build()
        self.models = self._seen["model"]
        """Models by policy; each returns (list of probabilities, value)."""
        self.optimizers = {
            name: each.optimiser for name, each in self.trainers.items() if isinstance(each, ActorCriticAlgorithm)
        }


class TrainerDDPG(TrainerBase):
    """Trainer of DDPG; see `TrainerBase`."""

    def _build(self) -> None:
        super()._build()
        self.actor_models, self.critic_models = self._seen["actor"], self._seen["critic"]
        ddpg = {name: each for name, each in self.trainers.items() if isinstance(each, DDPG)}
        self.actor_optimizers = {name: each.actor_optimiser for name, each in ddpg.items()}
        self.critic_optimizers = {name: each.critic_optimiser for name, each in ddpg.items()}


# ------------------------------------------------------------------ inspection of a script


_stops_at_trainer: ContextVar[bool] = ContextVar("_stops_at_trainer", default=False)


class _TrainerMadeError(BaseException):
    """Signal that a script made its trainer.

    A `BaseException`, because a script might catch an `Exception`.
    """


def first_trainer(script: Callable[[], Any]) -> tuple[RunConfig, Building]:
    """Run a script up to its first trainer; return the trainer's config and models.

    Raises:
        ConfigError: It makes none.
    """
    token = _stops_at_trainer.set(True)
    try:
        script()
    except _TrainerMadeError as reached:
        config, models = reached.args
        return config, models
    finally:
        _stops_at_trainer.reset(token)
    raise ConfigError(
        "perform_auto_vertical_scaling: the function must make a trainer of warp_drive (got none); let it build one"
    )


# ------------------------------------------------------------------ settings


def run_config(given: Mapping[str, Any]) -> RunConfig:
    """Return the run config of a mapping for WarpDrive, without modifying it.

    A batch size that is not a multiple of the environments is rounded down, with a warning. Defaults are WarpDrive's:
    PPO uses its ``clip_param``, and splits its batch into 4 minibatches, or fewer that divide it. Metrics go only to
    ``results.json``, and with ``saving.use_wandb`` to Weights & Biases. Keys of a user's own model go to that model.
    Unused keys are dropped with a warning: WarpDrive ignores them.

    Raises:
        ConfigError: A value is of the wrong type, or a rule is broken; or a policy has options that WarpDrive lacks:
            a centralised critic, or running normalisation.
    """
    config = _known_keys(copy.deepcopy(dict(given)), RunConfig, "")
    saving = {"sinks": [], "basedir": BASEDIR, **(config.get("saving") or {})}
    if saving.pop("use_wandb", False):
        saving["sinks"] = [*saving["sinks"], "wandb"]
    config["saving"] = _known_keys(saving, SavingConfig, "saving.")
    settings = config["trainer"] = _known_keys(dict(config.get("trainer") or {}), TrainerConfig, "trainer.")
    n_envs, size = (settings.get(key) for key in ("num_envs", "train_batch_size"))
    if isinstance(n_envs, int) and isinstance(size, int) and size > n_envs > 0 and size % n_envs:
        settings["train_batch_size"] = size - size % n_envs
        warnings.warn(
            f"run config trainer.train_batch_size: must be a multiple of num_envs = {n_envs} (got {size}); "
            f"{settings['train_batch_size']} is taken",
            stacklevel=3,
        )
    for name, policy in (config.get("policy") or {}).items():
        if not isinstance(policy, dict):
            continue
        if policy.get("algorithm") == "PPO":
            policy.setdefault("clip_param", CLIP_PARAM)
        if policy.get("algorithm") == "PPO" and "n_minibatches" not in policy:
            size = settings.get("train_batch_size", 10_000)
            policy["n_minibatches"] = next(n for n in range(PolicyConfig().n_minibatches, 0, -1) if size % n == 0)
        model = policy.get("model") or {}
        parts = [key for key in ("actor", "critic") if isinstance(model.get(key), dict)]
        for section in [model[key] for key in parts] or [model]:
            is_own = section.get("type", "fully_connected") not in BUILT_IN
            kept = _known_keys(section, ModelConfig, None if is_own else f"policy.{name}.model.")
            section.clear()
            section.update(kept)
        config["policy"][name] = _known_keys(policy, PolicyConfig, f"policy.{name}.")
    read = RunConfig.from_dict(config)
    for name, policy in read.policy.items():
        extra = {f"policy.{key}": getattr(policy, key) for key in ("centralised_critic", "normalize_rewards")}
        for network in policy.models.values():
            extra[f"{network.PLACE}.normalize_observations"] = network.normalize_observations
        for key, got in extra.items():
            what = f"run config {key.replace('policy', f'policy.{name}')}"
            rule, do = "does not exist in WarpDrive's trainers", "use warpdrive_min.training.trainer.Trainer"
            require(not got, what, rule, got, do)
    return read


def _known_keys(section: dict[str, Any], kind: type[Config], place: str | None) -> dict[str, Any]:
    """Return a section without unknown keys; warns if ``place`` is given."""
    for key in section.keys() - kind.model_fields.keys() if place is not None else ():
        do = did_you_mean(str(key), kind.model_fields) or f"keys are {known(kind.model_fields)}"
        warnings.warn(f"run config {place}{key}: this key has no effect; {do}", stacklevel=4)
    return {key: value for key, value in section.items() if key in kind.model_fields}


def _is_greedy(who: str, sample_params: Mapping[str, Any]) -> bool:
    """Return True if sampling parameters ask for the most likely choice.

    Noise is not used, so its scale is 0.
    """
    unknown = {name: value for name, value in sample_params.items() if (name, value) != ("scale", 0)}
    greedy = bool(unknown.pop("use_argmax", False))
    require(not unknown, who, "takes use_argmax, and scale=0", unknown, "noise is for training, leave it out")
    return greedy


# ------------------------------------------------------------------ statistics


@dataclass(slots=True)
class PerfStats:
    """Times of a run, up to its last metrics."""

    iters: int = 0
    steps: int = 0
    """Env steps summed over environments."""
    rollout_time: float = 0.0
    """Time of rollouts, s: policies, sampling and env steps, which are one graph."""
    training_time: float = 0.0
    """Time of updates, s."""
    total_time: float = 0.0
    """Total time, s."""

    def get_perf_stats(self) -> dict[str, float]:
        """Return times per iteration and steps per second."""
        times = {"rollout": self.rollout_time, "training time": self.training_time, "total": self.total_time}
        n = max(1, self.iters)
        return {
            "Mean rollout time per iter (ms)": self.rollout_time * 1000 / n,
            "Mean training time per iter (ms)": self.training_time * 1000 / n,
            "Mean total time per iter (ms)": self.total_time * 1000 / n,
            **{f"Mean steps per sec ({name})": self.steps / time for name, time in times.items() if time},
        }

    @staticmethod
    def pretty_print(stats: Mapping[str, float]) -> None:
        """Print the result of `get_perf_stats`."""
        _print("Speed performance stats", stats)


class Metrics:
    """Printer of the policies' metrics."""

    def pretty_print(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Print the metrics of each policy."""
        for policy, numbers in metrics.items():
            _print(f"Metrics for policy {policy!r}", numbers)


class SamplerParamsLog:
    """Printer of the sampling parameters."""

    def pretty_print(self, params: Mapping[str, float]) -> None:
        """Print the parameters."""
        _print("Sampler params", params)


def _print(title: str, numbers: Mapping[str, float]) -> None:
    print("=" * 40, title, "=" * 40, sep="\n")
    for name, number in numbers.items():
        print(f"{name:40}: {number:10.5f}")
