"""Run configs: training, policies, sampling and saving, as in `run_config.yaml`.

`docs/run_config.md` lists every key. Schedules count the env steps of all environments together.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, cast

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from warpdrive_min.backends import BACKENDS
from warpdrive_min.config import (
    AS_TUPLE,
    MAX_DEPTH,
    NULL_IS_EMPTY,
    Config,
    Count,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    UnitFloat,
)
from warpdrive_min.errors import ConfigError, known, require
from warpdrive_min.lazy import LazyModule
from warpdrive_min.packages import install_command, optional_package

if TYPE_CHECKING:
    import torch
else:  # a run config is read without its import, which takes seconds
    torch = LazyModule("torch", globals())

Algorithm = Literal["A2C", "PPO", "DDPG"]
Activation = Literal["relu", "tanh", "elu", "silu", "gelu"]
InitMethod = Literal["xavier", "orthogonal"]
Mode = Literal["auto", "graph", "eager"]
Precision = Literal["fp32", "tf32", "bf16"]
Sink = Literal["jsonl", "csv", "tensorboard", "wandb"]

OFF: Final = -1
"""Value of `TrainerConfig.neg_pos_env_ratio` that turns it off."""
MAX_UNITS, MAX_LAYERS = 2**16, 100
"""Maximum units of a layer, and maximum number of layers."""
BEST_EPISODES: Final = 100
"""Maximum episodes to judge a checkpoint by; fewer with fewer environments."""
MAX_STEPS: Final = 1_000_000
"""Maximum optimiser steps in an iteration; each is a launch."""
MAX_FILE: Final = 2**22
"""Maximum size of a run config file, bytes."""
MAX_NODES: Final = 1_000_000
"""Maximum number of values in a run config."""
MAX_ZERO_LR: Final = 0.05
"""Largest share of a run, at its end, whose learning rate may be 0 without a warning."""
NAME: Final = re.compile(r"\w[\w.-]*")
"""Pattern of policy names; files and metrics use them."""
EXPONENT: Final = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+\Z")
"""Pattern of YAML numbers with an exponent."""

# ------------------------------------------------------------------ schedules

Points = Sequence[Sequence[float]]
"""``[timestep, value]`` pairs in order of time, as lists."""
SCHEDULE_RULE: Final = "must be a number, or a list of [timestep, value] in the order of time"


def is_number(value: Any) -> bool:
    """Return True for a finite Python or NumPy number, except booleans."""
    is_real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        return is_real and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def is_schedule(value: Any) -> bool:
    """Return True for a finite number or ordered ``[timestep, value]`` pairs."""
    if not isinstance(value, list):
        return is_number(value)
    are_points = all(isinstance(point, list) and len(point) == 2 and all(map(is_number, point)) for point in value)
    return bool(value) and are_points and all(first[0] <= second[0] for first, second in pairwise(value))


class ParamScheduler:
    """Value by timestep: linear between a schedule's points, constant outside.

    Two points at one timestep form a step.

    Raises:
        ConfigError: The schedule is neither a number nor a list of ``[timestep, value]`` in the order of time.
    """

    def __init__(self, schedule: float | Points) -> None:
        require(is_schedule(schedule), "schedule", SCHEDULE_RULE, schedule)
        points = schedule if isinstance(schedule, Sequence) else [[0, schedule]]
        self.schedule = schedule
        self.type = "piecewise_linear" if isinstance(schedule, Sequence) else "constant"
        self._times, self.values = zip(*points, strict=True)
        """`values`: values of the points; all other values lie between them."""

    def get_param_value(self, timestep: int) -> float:
        """Return the value at a timestep.

        Raises:
            ConfigError: The timestep is negative.
        """
        require(timestep >= 0, "schedule.timestep", "must not be negative", timestep)
        return float(np.interp(timestep, self._times, self.values))

    @property
    def zero_from(self) -> float | None:
        """Timestep from which the value stays 0; None: it never falls to 0."""
        n = max((index for index, value in enumerate(self.values, start=1) if value), default=0)
        return self._times[n] if 0 < n < len(self._times) else None


def _schedule(given: Any, low: float = -math.inf, high: float = math.inf) -> Any:
    if not is_schedule(given):
        raise PydanticCustomError("float_type", SCHEDULE_RULE)
    values = ParamScheduler(given).values
    if min(values) < low:
        raise PydanticCustomError("schedule_low", "must not be negative")
    if max(values) > high:
        raise PydanticCustomError("schedule_high", f"must be at most {high:g}")
    return given


if TYPE_CHECKING:
    Schedule = float | Points
    """Constant, or points with linear interpolation."""
    NonNegativeSchedule = float | Points
    UnitSchedule = float | Points
else:  # pydantic would build a schema of the type, which no validation uses
    Schedule = Annotated[Any, PlainValidator(_schedule)]
    NonNegativeSchedule = Annotated[Any, PlainValidator(partial(_schedule, low=0))]
    UnitSchedule = Annotated[Any, PlainValidator(partial(_schedule, low=0, high=1))]

# ------------------------------------------------------------------ precision


def present(device: torch.device) -> Precision:
    """Return the current precision of matrix products on a device."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """Set the precision of matrix products within the block.

    Captured graphs keep it. Weights, moments, losses and returns are always float32.
    """
    before = torch.get_float32_matmul_precision()
    if name == present(device) != "bf16":  # the usual case on a CPU, at every env step
        yield
        return
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        # No cache of cast weights: a captured graph must cast them in each replay.
        with torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


# ------------------------------------------------------------------ sections


Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Units = Annotated[PositiveInt, Field(le=MAX_UNITS)]


def _inside(name: str) -> str:
    path = PurePath(name)
    if path.anchor or ".." in path.parts:
        raise PydanticCustomError("folder", "must be a folder inside basedir, without a leading / and without ..")
    return name


InnerFolder = Annotated[Name, AfterValidator(_inside)]
"""Relative path inside its parent, as checkpoints may come from others."""
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class _Section(Config):
    WHO: ClassVar[str] = "run config"
    KEEPS_INTEGERS: ClassVar[bool] = True


class TrainerConfig(_Section):
    """Trainer settings of all policies; environments and steps count per GPU."""

    PLACE: ClassVar[str] = "trainer"

    num_gpus: Annotated[PositiveInt, Field(le=1024)] = 1
    """Number of GPUs, with one process and separate environments each."""
    num_envs: PositiveInt = 10
    """Number of environments."""
    num_episodes: Count = 10_000
    """Full-length episodes, over all environments, after which training ends."""
    train_batch_size: PositiveInt = 10_000
    """Env steps per batch, over all environments; a multiple of ``num_envs``."""
    env_backend: str = "pycuda"
    """Backend of the environments."""
    seed: Seed | None = None
    """Seed of resets, actions, weights and minibatches; None: from the clock."""
    n_step: Annotated[PositiveInt, Field(le=10_000)] = 1
    """Rewards that DDPG sums before it uses the critic's value."""
    neg_pos_env_ratio: float = OFF
    """Unsuccessful environments per success in A2C and PPO batches; -1: all."""
    evaluator: bool = False
    """Play greedy episodes in separate environments whenever metrics are logged."""
    precision: Precision = "fp32"
    """Precision of matrix products; weights and losses are always float32."""
    exact: bool = False
    """Train bit-identically on `host` and `pycuda`, with one order of operations."""
    mode: Mode = "auto"
    """Run as CUDA graphs or single kernels; "auto": graphs if supported."""
    fused_rollout: bool | None = None
    """Run each rollout in one launch; None: on GPUs or in exact runs, if possible."""
    shared_observations: bool | None = None
    """Store one observation row per environment and learn from it.
    Agents must share the row, except for columns that mark each agent. None: if the first layer is large."""
    kept_passes: bool | None = None
    """Keep the forward passes of acting, so that learning repeats none.
    For rollouts from which a wide network learns once. None: if they take at most half of the GPU's memory."""
    stop_return: float | dict[str, float] | None = None
    """Mean return at which training stops; None: never.
    The mean is over the latest episodes, enough for one in each environment."""
    compat: Literal["warpdrive"] | None = None
    """Use WarpDrive's rule: its returns, truncation as end, one update per batch."""
    max_rows: PositiveInt | None = 2**20
    """Rows (step, env, agent) per forward pass, with summed gradients; None: all."""

    def _check(self) -> None:
        self._require("env_backend", self.env_backend in BACKENDS, f"must be one of {', '.join(BACKENDS)}")
        is_ratio = self.neg_pos_env_ratio > 0 or self.neg_pos_env_ratio == OFF
        self._require("neg_pos_env_ratio", is_ratio, f"must be positive, or {OFF} for all environments")
        below = self.train_batch_size // self.num_envs * self.num_envs
        do = (f"take {below} or " if below else "take ") + str(below + self.num_envs)
        rule = f"must be a multiple of num_envs = {self.num_envs}"
        self._require("train_batch_size", below == self.train_batch_size, rule, do)


class ModelConfig(_Section):
    """Network of a policy."""

    PLACE: ClassVar[str] = "policy.model"

    type: str = "fully_connected"
    """Name of the model in the model factory."""
    fc_dims: Annotated[tuple[Units, ...], Field(min_length=1, max_length=MAX_LAYERS), AS_TUPLE] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    hidden_size: Units = 64
    """Size of the state of a "gru" for each agent."""
    sequence_length: PositiveInt | None = None
    """Backpropagation steps of a "gru", a divisor of a rollout's; None: all."""
    shared: bool = True
    """Share hidden layers between policy and value; False: separate layers."""
    init_method: InitMethod | None = None
    """Initialisation of the weights; None: torch's."""
    normalize_observations: bool = False
    """Standardise observed features by mean and std in training so far."""
    output_w: float = 1.0
    """Factor of continuous actions: ``output_w * tanh(head) + output_b``."""
    output_b: float = 0.0
    """Centre of continuous actions, in their unit."""
    log_std_init: Annotated[float, Field(ge=-50, le=50)] = 0.0
    """Initial log standard deviation of continuous actions, for A2C and PPO."""
    learn_log_std: bool = True
    """Learn this standard deviation; False: it is constant."""
    fused: bool | None = None
    """Run all layers in one kernel (GPU with Triton); None: if possible."""
    model_ckpt_filepath: str = ""
    """Checkpoint or WarpDrive file with initial weights; "": none."""


class ActorModelConfig(ModelConfig):
    """Actor network of DDPG."""

    PLACE: ClassVar[str] = "policy.model.actor"

    type: str = "fully_connected_actor"
    """Name of the model in the model factory."""


class CriticModelConfig(ModelConfig):
    """Critic network of DDPG, which values observations with actions."""

    PLACE: ClassVar[str] = "policy.model.critic"

    type: str = "fully_connected_action_value_critic"
    """Name of the model in the model factory."""


class ActorCriticFiles(_Section):
    """Checkpoints or WarpDrive files with DDPG's initial weights; "": none."""

    PLACE: ClassVar[str] = "policy.model.model_ckpt_filepath"

    actor: str = ""
    """File of the actor."""
    critic: str = ""
    """File of the critic."""


class ActorCriticConfig(_Section):
    """Both networks of DDPG."""

    PLACE: ClassVar[str] = "policy.model"

    actor: ActorModelConfig = ActorModelConfig()
    """Actor network."""
    critic: CriticModelConfig = CriticModelConfig()
    """Critic network, which values observations with actions."""
    model_ckpt_filepath: ActorCriticFiles = ActorCriticFiles()
    """Files with initial weights."""

    def _check(self) -> None:
        for key, network in (("actor", self.actor), ("critic", self.critic)):
            file, do = network.model_ckpt_filepath, f"name it in model.model_ckpt_filepath.{key}"
            require(not file, f"{key}.model_ckpt_filepath", 'must be ""', file, do)


class CentralisedCriticConfig(ModelConfig):
    """Critic of A2C and PPO for the whole environment's state."""

    PLACE: ClassVar[str] = "policy.centralised_critic"

    type: str = "fully_connected_centralised_critic"
    """Name of the model in the model factory."""


class LearningRates(_Section):
    """Learning rates of DDPG, one for each network."""

    PLACE: ClassVar[str] = "policy.lr"

    actor: NonNegativeSchedule = 1e-4
    """Rate of the actor."""
    critic: NonNegativeSchedule = 1e-4
    """Rate of the critic."""


class PolicyConfig(_Section):
    """Settings of one policy."""

    PLACE: ClassVar[str] = "policy"

    to_train: bool = False
    """Train the policy; False: it only acts."""
    algorithm: Algorithm = "A2C"
    """Learning algorithm."""
    vf_loss_coeff: NonNegativeSchedule = 0.01
    """Weight of the squared value error in the loss."""
    entropy_coeff: NonNegativeSchedule = 0.05
    """Weight of the entropy in the loss."""
    clip_grad_norm: bool = True
    """Clip gradients longer than ``max_grad_norm``."""
    max_grad_norm: PositiveFloat = 0.5
    """Maximum norm of the whole gradient."""
    normalize_advantage: bool = False
    """Standardise the advantages of a batch to mean 0 and std 1."""
    normalize_return: bool = False
    """Standardise the returns of a batch in the same way."""
    normalize_rewards: bool = False
    """Divide A2C's and PPO's rewards by the running std of discounted returns."""
    clip_param: PositiveShare = 0.2
    """Distance from 1 at which PPO's ratio loses its gradient."""
    gamma: UnitFloat = 0.98
    """Discount factor of the next step's reward."""
    lr: NonNegativeSchedule | LearningRates = 1e-4
    """Learning rate of Adam; DDPG may have one for each network."""
    tau: PositiveShare | None = None
    """Share of online weights per update of DDPG's targets; DDPG needs it."""
    gae_lambda: UnitFloat | None = None
    """Lambda of generalised advantages; None: 1 (returns) in A2C, 0.95 in PPO."""
    n_epochs: Annotated[PositiveInt, Field(le=1_000)] = 4
    """Passes of PPO over a batch."""
    n_minibatches: PositiveInt = 4
    """Minibatches of a PPO batch, one update each; divides ``train_batch_size``."""
    value_clip: PositiveFloat | None = None
    """Change of a value at which PPO's gradient stops; None: no limit."""
    target_kl: PositiveFloat | None = None
    """KL from the acting policy, nats; PPO stops a batch at 1.5x; None: never."""
    adam_eps: PositiveShare = 1e-8
    """Term added to the root of Adam's second moment."""
    buffer_size: PositiveInt = 1_000_000
    """Agent transitions in DDPG's replay buffer; a rollout must fit."""
    batch_size: PositiveInt = 256
    """Transitions per update of DDPG."""
    updates_per_iteration: Annotated[PositiveInt, Field(le=MAX_STEPS)] = 1
    """DDPG updates after each rollout."""
    learning_starts: NonNegativeInt = 0
    """Transitions in DDPG's replay buffer before its first update."""
    noise: Literal["ou", "gaussian"] = "ou"
    """Exploration noise of DDPG: Ornstein-Uhlenbeck or independent Gaussian."""
    model: ModelConfig | ActorCriticConfig = Field(default_factory=lambda given: _model_config(given)())
    """Network; for DDPG an `ActorCriticConfig` with both networks."""
    centralised_critic: CentralisedCriticConfig | None = None
    """Separate network for A2C's and PPO's values; ``{}``: its defaults.
    It sees the observations of all agents in an environment. None: ``model`` values an agent's own observations."""

    @field_validator("lr", mode="before")
    @classmethod
    def _read_lr(cls, given: Any) -> Any:
        return LearningRates.read(given) if isinstance(given, Mapping) else given

    @field_validator("model", mode="before")
    @classmethod
    def _read_model(cls, given: Any, info: ValidationInfo) -> Any:
        return given if isinstance(given, Config) else _model_config(info.data).read(given)

    def _check(self) -> None:
        if self.algorithm == "DDPG":
            self._require("tau", self.tau is not None, "must be given for DDPG", "0.05 is WarpDrive's")
            rule = "must be an ActorCriticConfig for algorithm DDPG, which has two networks"
            self._require("model", isinstance(self.model, ActorCriticConfig), rule)
            rule, do = (
                "must be A2C or PPO for a centralised critic",
                "leave centralised_critic out, or use one of these",
            )
            self._require("algorithm", self.centralised_critic is None, rule, do)
            rule = "must be false for DDPG, whose replay buffer holds unscaled rewards"
            self._require("normalize_rewards", not self.normalize_rewards, rule, "leave it out, or scale the rewards")
        else:
            why = f"for algorithm {self.algorithm}, which has one network"
            self._require("model", isinstance(self.model, ModelConfig), f"must be a ModelConfig {why}")
            self._require("lr", not isinstance(self.lr, LearningRates), f"must be one schedule {why}")

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Networks by part: ``model`` and ``critic``, or DDPG's ``actor`` and ``critic``."""
        if isinstance(self.model, ModelConfig):
            return {"model": self.model} | ({"critic": self.centralised_critic} if self.centralised_critic else {})
        return {"actor": self.model.actor, "critic": self.model.critic}

    @property
    def weight_files(self) -> dict[str, str]:
        """Files with initial weights, by network part that has one."""
        if isinstance(self.model, ModelConfig):
            files = {part: network.model_ckpt_filepath for part, network in self.models.items()}
        else:
            files = self.model.model_ckpt_filepath.to_dict()
        return {part: file for part, file in files.items() if file}

    def schedule(self, key: str) -> Schedule:
        """Return a schedule by its key: ``lr``, ``vf_loss_coeff``, ``entropy_coeff``.

        DDPG has ``lr/actor`` and ``lr/critic``; both are ``lr`` if it is one schedule.
        """
        name, _, part = key.partition("/")
        given = getattr(self, name)
        return cast(Schedule, getattr(given, part) if isinstance(given, LearningRates) else given)


class SamplerParams(_Section):
    """Noise of DDPG's actions: ``noise = (1 - damping) * noise + stddev * normal``."""

    PLACE: ClassVar[str] = "sampler.params"

    damping: UnitSchedule = 0.15
    """Share of Ornstein-Uhlenbeck noise that a step removes."""
    stddev: NonNegativeSchedule = 0.2
    """Standard deviation of the noise that a step adds, before ``scale``."""
    scale: NonNegativeSchedule = 1.0
    """Factor of the noise, in the action's unit; 0: no noise."""
    use_argmax: bool = False
    """Take every policy's likeliest action or mean in training."""

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Noise parameters, by keyword of the draw."""
        return {"damping": self.damping, "stddev": self.stddev, "scale": self.scale}


class SamplerConfig(_Section):
    """Settings of action sampling in training."""

    PLACE: ClassVar[str] = "sampler"

    params: SamplerParams = SamplerParams()
    """Keywords of the draw."""


class SavingConfig(_Section):
    """Settings of saving: parts of a run, folder and frequency."""

    PLACE: ClassVar[str] = "saving"

    metrics_log_freq: Count = 100
    """Iterations between lines of metrics."""
    model_params_save_freq: Count = 1_000
    """Iterations between checkpoints."""
    basedir: Name = "runs"
    """Folder of all runs."""
    name: InnerFolder = "default"
    """Folder in ``basedir``, for runs of one kind."""
    tag: InnerFolder = "experiment"
    """Folder in ``name``, for runs of one purpose."""
    keep_last: Count = 3
    """Number of latest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the best checkpoint by greedy episodes (one learning policy)."""
    sinks: Annotated[tuple[Sink, ...], AS_TUPLE] = ("jsonl",)
    """Sinks of metrics."""

    def _check(self) -> None:
        self._require("sinks", len(set(self.sinks)) == len(self.sinks), "must name each only once")


@dataclass(frozen=True, slots=True)
class Member:
    """One agent of a population."""

    seed: int
    """Seed of its weights and minibatch order."""
    setting: Mapping[str, Any]
    """Settings of the table by policy key; they override the policy's."""


Wanted = list[tuple[str, Any, tuple[Any, ...]]]
"""Settings: key, value and allowed values."""


class PopulationConfig(_Section):
    """Independent agents trained together, one per table setting and seed.

    All lists except `seeds` are columns of the table, with an entry for each setting.
    """

    PLACE: ClassVar[str] = "population"

    size: Annotated[PositiveInt, Field(le=2**16)] | None = None
    """Number of agents, a multiple of the settings; None: no population.
    Each agent has the environments, batches and steps that the run config states for one."""
    seeds: Annotated[tuple[Seed, ...], AS_TUPLE] = ()
    """``size / settings`` weight and minibatch seeds; empty: from ``trainer.seed`` on."""
    lr: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of learning-rate schedules; each empty column uses the policy's value."""
    vf_loss_coeff: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of schedules of the value error's weight."""
    entropy_coeff: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of schedules of the entropy's weight."""
    clip_param: Annotated[tuple[PositiveShare, ...], AS_TUPLE] = ()
    """Column of PPO's clip distances."""
    max_grad_norm: Annotated[tuple[PositiveFloat, ...], AS_TUPLE] = ()
    """Column of maximum gradient norms."""

    @property
    def columns(self) -> dict[str, tuple[Any, ...]]:
        """Columns of the table that are not empty, by policy key."""
        columns = {key: getattr(self, key) for key in type(self).model_fields if key not in ("size", "seeds")}
        return {key: column for key, column in columns.items() if column}

    @property
    def n_settings(self) -> int:
        """Number of settings in the table; 1 without a table."""
        return max([1, *map(len, self.columns.values())])

    def members(self, first_seed: int) -> list[Member]:
        """Return the agents by setting; default seeds count from ``first_seed``."""
        assert self.size is not None, "a population has a size"
        seeds = self.seeds or range(first_seed, first_seed + self.size // self.n_settings)
        columns = self.columns
        settings = [{key: column[i] for key, column in columns.items()} for i in range(self.n_settings)]
        return [Member(seed, setting) for setting in settings for seed in seeds]

    def _check(self) -> None:
        if self.size is None:
            for key in type(self).model_fields:
                self._require(key, not getattr(self, key), "needs population.size", "give it, or leave this out")
            return
        for key, column in self.columns.items():
            rule = f"must have an entry for each setting, {self.n_settings} as the longest column"
            self._require(key, len(column) == self.n_settings, rule, "repeat what several settings share")
        n_seeds, rest = divmod(self.size, self.n_settings)
        rule = f"must be a multiple of the {self.n_settings} settings of the table"
        self._require("size", rest == 0, rule, f"take {(n_seeds + 1) * self.n_settings}")
        rule = f"must be size / settings = {n_seeds} different ones"
        self._require("seeds", not self.seeds or len(set(self.seeds)) == len(self.seeds) == n_seeds, rule)


class RunConfig(_Section):
    """A run: environment, trainer, policies, sampling and saving."""

    OF_OTHERS: ClassVar[Sequence[str]] = ("env",)

    name: str = ""
    """Environment name on the command line; "": passed otherwise."""
    env: Annotated[dict[str, Any], NULL_IS_EMPTY] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    trainer: TrainerConfig = TrainerConfig()
    """Settings that all policies share."""
    policy: Annotated[dict[str, PolicyConfig], NULL_IS_EMPTY] = Field(default_factory=dict)
    """Policies by name, at least one."""
    sampler: SamplerConfig = SamplerConfig()
    """Action sampling."""
    saving: SavingConfig = SavingConfig()
    """Saved parts of the run."""
    population: PopulationConfig = PopulationConfig()
    """Agents that are trained together."""

    @classmethod
    def of(cls, config: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
        """Return a config, or build it from a mapping or path.

        Raises:
            ConfigError: As of `from_dict` and `load`.
        """
        if isinstance(config, RunConfig):
            return config
        return cls.load(config) if isinstance(config, str | Path) else cls.from_dict(config)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> RunConfig:
        """Build a config from a mapping with YAML or JSON values.

        Raises:
            ConfigError: A key is unknown, a value has the wrong type, or a rule is broken; names the place.
        """
        is_mapping = isinstance(mapping, Mapping)
        require(is_mapping, "run config", f"must be a mapping with keys {known(cls.model_fields)}", mapping)
        return cls.read(mapping)

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Read the config of a YAML file; 1e-3 is a number.

        Raises:
            ConfigError: The file is missing or not YAML, PyYAML is not installed, or as `from_dict`.
        """
        return cls.from_dict(_read_yaml(path))

    def n_iterations(self, episode_length: int) -> int:
        """Return the number of full batches in all episodes.

        Raises:
            ConfigError: The episodes do not fill one batch.
        """
        size, n_steps = self.trainer.train_batch_size, self.trainer.num_episodes * episode_length
        if n_steps < size:
            rule = f"must fill a batch, num_episodes * episode_length >= train_batch_size = {size}"
            do = f"take at least {-(-size // episode_length)}"
            raise ConfigError.of("trainer.num_episodes", rule, n_steps, do, self.WHO)
        return n_steps // size

    def early_zeros(self, n_steps: int) -> dict[str, float]:
        """Return the steps at which learning rates become 0 too early, by key.

        ``n_steps`` are the env steps of the run, which schedules count: those of all ranks, for a member of a
        population its own.
        """
        rates: dict[str, Any] = {f"policy.{name}.lr": each.lr for name, each in self.policy.items() if each.to_train}
        if self.population.lr:
            rates = {f"population.lr[{index}]": rate for index, rate in enumerate(self.population.lr)}
        for key in [key for key, rate in rates.items() if isinstance(rate, LearningRates)]:
            rates |= {f"{key}.{part}": rate for part, rate in rates.pop(key).to_dict().items()}
        ends = {key: ParamScheduler(rate).zero_from for key, rate in rates.items()}
        return {key: end for key, end in ends.items() if end is not None and end < (1 - MAX_ZERO_LR) * n_steps}

    def _check(self) -> None:
        try:
            json.dumps(self.env)
        except (TypeError, ValueError) as error:
            self._require("env", False, "must hold numbers, strings, lists and mappings only, to be saved", str(error))
        self._require("policy", self.policy, "must name at least one", "for all agents alike: policy.shared")
        for name, policy in self.policy.items():
            rule = "must be named by letters, digits, '_', then '-' and '.' too"
            require(NAME.fullmatch(name), "policy", rule, name, "it names files")
            self._check_batch(name, policy)
        wanted = self.trainer.stop_return
        unknown = wanted.keys() - self.policy.keys() if isinstance(wanted, Mapping) else set()
        rule = f"must name policies of the run, which are {known(self.policy)}"
        require(not unknown, "trainer.stop_return", rule, known(unknown))
        if self.population.size is not None:
            self._check_population()
        if self.trainer.exact:
            self._check_exact()

    def _check_exact(self) -> None:
        """Check that all parts of a run have exact kernels."""
        trainer = self.trainer
        rule = 'must be "fp32" with trainer.exact: the order in which tensor cores add is not specified'
        do = "change it, or leave exact out"
        require(trainer.precision == "fp32", "trainer.precision", rule, trainer.precision, do)
        wanted: Wanted = [("trainer.compat", trainer.compat, (None,))]
        for name, policy in self.policy.items():
            for network in policy.models.values():
                recurrent = ("gru",) if type(network) is ModelConfig else ()
                where = network.PLACE.replace("policy", f"policy.{name}", 1)
                wanted += [
                    (f"{where}.type", network.type, (type(network)().type, *recurrent)),
                    (f"{where}.activation", network.activation, ("relu", "tanh")),
                    (f"{where}.fused", network.fused, (None, False)),
                ]
        _require_all(wanted, "with trainer.exact", do)

    def _check_population(self) -> None:
        """Check a population's limits: A2C or PPO, one policy, batched products."""
        trainer = self.trainer
        where, rule = "with population.size", "must be one policy that learns, {} population.size"
        learners = [name for name, policy in self.policy.items() if policy.to_train]
        require(len(self.policy) == len(learners) == 1, "policy", rule.format("with"), known(self.policy))
        wanted: Wanted = [
            ("trainer.num_gpus", trainer.num_gpus, (1,)),
            ("trainer.compat", trainer.compat, (None,)),
            ("trainer.neg_pos_env_ratio", trainer.neg_pos_env_ratio, (OFF,)),
        ]
        _require_all(wanted, where, "leave one of them out")
        for name, policy in self.policy.items():
            place, do = f"policy.{name}", "leave one of them out"
            is_on_policy = isinstance(policy.model, ModelConfig)
            require(is_on_policy, f"{place}.algorithm", f"must be A2C or PPO {where}", policy.algorithm, do)
            has_critic = policy.centralised_critic is not None
            require(not has_critic, f"{place}.centralised_critic", f"must be null {where}", "a critic", do)
            require(not policy.models["model"].fused, f"{place}.model.fused", f"must not be true {where}", True, do)
            has_norm = policy.clip_grad_norm or not self.population.max_grad_norm
            rule = "must be true with population.max_grad_norm"
            require(has_norm, f"{place}.clip_grad_norm", rule, False, do)
            has_clip = policy.algorithm == "PPO" or not self.population.clip_param
            rule = "must be PPO with population.clip_param"
            require(has_clip, f"{place}.algorithm", rule, policy.algorithm, do)

    def _check_batch(self, name: str, policy: PolicyConfig) -> None:
        """Check a policy's use of a batch against the shared settings."""
        if self.trainer.compat is not None and policy.centralised_critic is not None:
            rule = f"must be null with policy.{name}.centralised_critic, which WarpDrive does not have"
            raise ConfigError.of("trainer.compat", rule, self.trainer.compat, "leave one of them out")
        is_normalised = policy.normalize_rewards or any(each.normalize_observations for each in policy.models.values())
        rule = f"must be null where policy.{name} normalises observations or rewards, which WarpDrive does not support"
        is_ours = self.trainer.compat is None or not is_normalised
        require(is_ours, "trainer.compat", rule, self.trainer.compat, "leave one of them out")
        size, n_parts = self.trainer.train_batch_size, policy.n_minibatches
        if policy.algorithm != "PPO" or self.trainer.compat is not None:
            return
        if size % n_parts:
            choices = " or ".join(map(str, dict.fromkeys(divisors_around(size, n_parts))))
            rule, do = f"must divide train_batch_size = {size}", f"take {choices}"
            raise ConfigError.of(f"policy.{name}.n_minibatches", rule, n_parts, do)
        rule = f"must make at most {MAX_STEPS:,} updates with n_minibatches = {n_parts}"
        require(policy.n_epochs * n_parts <= MAX_STEPS, f"policy.{name}.n_epochs", rule, policy.n_epochs)


def divisors_around(number: int, near: int) -> tuple[int, int]:
    """Return the nearest divisors of a number, <= ``near`` and >= ``near``."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = [*small, *(number // n for n in small)]
    return max(n for n in divisors if n <= near), min((n for n in divisors if n >= near), default=number)


def _read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or is too long or nested too deeply.
    """
    yaml = optional_package("yaml", "run config", install_command("train"), "pyyaml")
    # PyYAML reads YAML 1.1, where a number with an exponent needs a point and a signed exponent.
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        raise ConfigError.of("run config", "must be a file that can be read", error, "give its path") from error
    what, do = "run config", "correct it there"
    require(len(content) <= MAX_FILE, what, f"{path} must have at most {MAX_FILE:,} bytes", "more")
    try:
        reader = loader(content)
        if (node := reader.get_single_node()) is None:
            return None
        _check_nodes(node, path)
        return reader.construct_document(node)
    except RecursionError as error:
        rule = f"{path} must not be nested deeper than {MAX_DEPTH} levels, nor contain itself"
        raise ConfigError.of(what, rule, do=do) from error
    except ConfigError:
        raise
    except Exception as error:  # PyYAML raises many types for malformed scalars
        raise ConfigError.of(what, f"{path} must be YAML", error, do) from error


def _check_nodes(root: Any, path: str | Path) -> None:
    """Raise `ConfigError` for a repeated key or too many values.

    PyYAML would accept repeated keys.
    Values of aliases count each time.

    Raises:
        RecursionError: A node is nested too deeply, or contains itself.
    """
    nodes, n_nodes = [(root, 0)], 0
    while nodes:
        node, depth = nodes.pop()
        n_nodes += 1
        rule = f"{path} must have at most {MAX_NODES:,} values, with those of aliases"
        require(n_nodes <= MAX_NODES, "run config", rule, "more")
        if depth > MAX_DEPTH:
            raise RecursionError
        keys = set[tuple[str, str]]()
        for part in () if isinstance(node.value, str) else node.value:
            nodes += [(each, depth + 1) for each in (part if isinstance(part, tuple) else (part,))]
            key = part[0] if isinstance(part, tuple) else None
            if key is not None and isinstance(key.value, str):
                rule = f"{path}, line {key.start_mark.line + 1}: a mapping must have each key once"
                require((key.tag, key.value) not in keys, "run config", rule, key.value, "remove one of the two")
                keys.add((key.tag, key.value))


def _require_all(wanted: Wanted, where: str, do: str) -> None:
    """Raise `ConfigError` at the first setting whose value is not allowed."""
    for key, value, allowed in wanted:
        require(value in allowed, key, f"must be {' or '.join(map(json.dumps, allowed))} {where}", value, do)


def _model_config(policy: Mapping[str, Any]) -> type[ModelConfig | ActorCriticConfig]:
    """Return the class of a policy's network config, by its algorithm."""
    return ActorCriticConfig if policy.get("algorithm") == "DDPG" else ModelConfig
