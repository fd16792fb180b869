"""Run configs: training, its policies and what is kept of a run, as `run_config.yaml` says it.

Key by key in `docs/run_config.md`. Time in schedules is counted in steps of all environments together.
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
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import numpy as np
import torch
from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
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
from warpdrive_min.packages import optional_package

Algorithm = Literal["A2C", "PPO", "DDPG"]
Activation = Literal["relu", "tanh", "elu", "silu", "gelu"]
InitMethod = Literal["xavier", "orthogonal"]
Mode = Literal["auto", "graph", "eager"]
Precision = Literal["fp32", "tf32", "bf16"]
Sink = Literal["jsonl", "csv", "tensorboard", "wandb"]

OFF: Final = -1
"""Value of `TrainerConfig.neg_pos_env_ratio` that turns it off."""
MAX_UNITS, MAX_LAYERS = 2**16, 100
"""Largest layer of a network, and most layers."""
MAX_STEPS: Final = 1_000_000
"""Most steps of an optimiser in an iteration, each a launch."""
MAX_FILE: Final = 2**22
"""Longest file of a run config, bytes."""
MAX_NODES: Final = 1_000_000
"""Most values of a run config."""
NAME: Final = re.compile(r"\w[\w.-]*")
"""Name of a policy; files and metrics are named after it."""
EXPONENT: Final = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+\Z")
"""Number with an exponent, in YAML."""
INSTALL: Final = 'pip install "warpdrive-min[train]"'

# ------------------------------------------------------------------ schedules

Points = Sequence[Sequence[float]]
"""``[timestep, value]`` in the order of time; lists, as YAML and JSON have them."""
SCHEDULE_RULE: Final = "must be a number, or a list of [timestep, value] in the order of time"


def is_number(value: Any) -> bool:
    """Tell whether a value is an integer or float, of Python's or NumPy's, and finite; true and false are none."""
    is_real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        return is_real and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def is_schedule(value: Any) -> bool:
    """Tell whether a value is a finite number, or a list of ``[timestep, value]`` in the order of time."""
    if not isinstance(value, list):
        return is_number(value)
    are_points = all(isinstance(point, list) and len(point) == 2 and all(map(is_number, point)) for point in value)
    return bool(value) and are_points and all(first[0] <= second[0] for first, second in pairwise(value))


class ParamScheduler:
    """Number by timestep: linear between the points of its schedule, constant before and after them.

    Two points at one timestep are a step.

    Raises:
        ConfigError: The schedule is neither a number nor a list of ``[timestep, value]`` in the order of time.
    """

    def __init__(self, schedule: float | Points) -> None:
        require(is_schedule(schedule), "schedule", SCHEDULE_RULE, schedule)
        points = schedule if isinstance(schedule, Sequence) else [[0, schedule]]
        self.schedule = schedule
        self.type = "piecewise_linear" if isinstance(schedule, Sequence) else "constant"
        self._times, self.values = zip(*points, strict=True)
        """`values`: those of the points, between which all others lie."""

    def get_param_value(self, timestep: int) -> float:
        """Return the value at a timestep.

        Raises:
            ConfigError: The timestep is negative.
        """
        require(timestep >= 0, "schedule.timestep", "must not be negative", timestep)
        return float(np.interp(timestep, self._times, self.values))


def _schedule(given: Any, low: float = -math.inf, high: float = math.inf) -> Any:
    if not is_schedule(given):
        raise PydanticCustomError("float_type", SCHEDULE_RULE)
    values = ParamScheduler(given).values
    if min(values) < low:
        raise PydanticCustomError("schedule_low", "must not be negative")
    if max(values) > high:
        raise PydanticCustomError("schedule_high", f"must be at most {high:g}")
    return given


Schedule = Annotated[float | Points, PlainValidator(_schedule)]
"""Constant, or points between which the value is linear."""
NonNegativeSchedule = Annotated[float | Points, PlainValidator(partial(_schedule, low=0))]
UnitSchedule = Annotated[float | Points, PlainValidator(partial(_schedule, low=0, high=1))]

# ------------------------------------------------------------------ precision


def present(device: torch.device) -> Precision:
    """Return the precision that holds now."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """Multiply matrices in a precision within the block; what is captured there keeps it.

    Weights, moments, losses and returns are float32 always.
    """
    before = torch.get_float32_matmul_precision()
    if name == present(device) != "bf16":  # as every step of a rollout finds it on a CPU
        yield
        return
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        # No cache of cast weights: a captured graph must cast them anew in each replay.
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
"""Relative path that stays inside its parent; checkpoints and certificates come from others."""
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class _Section(Config):
    WHO: ClassVar[str] = "run config"

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_integer(cls, given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        """Keep an integer where a float belongs, so that a saved run config says what was given."""
        value = handler(given)
        return given if isinstance(given, int) and isinstance(value, float) else value


class TrainerConfig(_Section):
    """Settings of the trainer, for all policies together; counts of environments and steps are those of one GPU."""

    PLACE: ClassVar[str] = "trainer"

    num_gpus: Annotated[PositiveInt, Field(le=1024)] = 1
    """Processes that train together, each with environments of its own on a GPU of its own."""
    num_envs: PositiveInt = 10
    """Environments."""
    num_episodes: Count = 10_000
    """Episodes of full length, over all environments, after which training ends."""
    train_batch_size: PositiveInt = 10_000
    """Steps, over all environments, from which a policy learns at a time; a multiple of ``num_envs``."""
    env_backend: str = "pycuda"
    """Backend of the environments."""
    seed: Seed | None = None
    """Seed of starts, actions, weights and minibatches; None: from the clock."""
    n_step: Annotated[PositiveInt, Field(le=10_000)] = 1
    """Rewards, steps, that DDPG sums before it asks the critic."""
    neg_pos_env_ratio: float = OFF
    """Environments without a success that A2C and PPO learn from, for each one with; -1: all."""
    evaluator: bool = False
    """Play greedy episodes in environments of their own whenever metrics are logged."""
    precision: Precision = "fp32"
    """Precision of products of matrices; weights and losses are float32 always."""
    exact: bool = False
    """Train to the same bits on `host` and `pycuda`, by kernels with one order of operations."""
    mode: Mode = "auto"
    """Replay the iteration as a CUDA graph, or launch kernel by kernel; "auto": a graph where the backend can."""
    fused_rollout: bool | None = None
    """Act, step and record a whole rollout in one launch; None: on a GPU and in exact runs, where that can be."""
    shared_observations: bool | None = None
    """Keep, and learn from, the one row of observations that agents of an environment share, where they do so but for
    who is oneself; None: where the first layer is large."""
    kept_passes: bool | None = None
    """Keep what acting computes for learning, which then makes no forward pass of its own, where a rollout is learned
    from once by a wide network; None: where that takes no more than half of the GPU's memory."""
    stop_return: float | dict[str, float] | None = None
    """Mean return at which training stops, of the latest episodes, enough for one in each environment; None: never."""
    compat: Literal["warpdrive"] | None = None
    """Learn by WarpDrive's rule: its returns, to which a time limit is an end, and one update for each batch."""
    max_rows: PositiveInt | None = 2**20
    """Rows (step, environment, agent) that go through a model at a time; gradients add up. None: all."""

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
    """Numbers that a "gru" remembers of each agent."""
    sequence_length: PositiveInt | None = None
    """Steps through which the gradient of a "gru" goes back, a divisor of a rollout's; None: all of a rollout."""
    shared: bool = True
    """Actions and value come from the same hidden layers; False: each has its own."""
    init_method: InitMethod | None = None
    """Start of the weights; None: torch's."""
    normalize_observations: bool = False
    """Shift and scale each feature that the network sees by its mean and standard deviation in training so far."""
    output_w: float = 1.0
    """Factor of continuous actions, which are ``output_w * tanh(head) + output_b``."""
    output_b: float = 0.0
    """Centre of continuous actions, in their unit."""
    log_std_init: Annotated[float, Field(ge=-50, le=50)] = 0.0
    """Logarithm of the spread of continuous actions at the start; of A2C and PPO."""
    learn_log_std: bool = True
    """Learn that spread; False: it stays."""
    fused: bool | None = None
    """Go through all layers in one kernel, which needs a GPU and Triton; None: where that can be."""
    model_ckpt_filepath: str = ""
    """Checkpoint to take weights from at the start, or WarpDrive's file of them; "": none."""


class ActorModelConfig(ModelConfig):
    """Network of DDPG that acts."""

    PLACE: ClassVar[str] = "policy.model.actor"

    type: str = "fully_connected_actor"
    """Name of the model in the model factory."""


class CriticModelConfig(ModelConfig):
    """Network of DDPG that values observations with actions."""

    PLACE: ClassVar[str] = "policy.model.critic"

    type: str = "fully_connected_action_value_critic"
    """Name of the model in the model factory."""


class ActorCriticFiles(_Section):
    """Checkpoints, or WarpDrive's files, to take the weights of DDPG from at the start; "": none."""

    PLACE: ClassVar[str] = "policy.model.model_ckpt_filepath"

    actor: str = ""
    """File of the actor."""
    critic: str = ""
    """File of the critic."""


class ActorCriticConfig(_Section):
    """Both networks of DDPG."""

    PLACE: ClassVar[str] = "policy.model"

    actor: ActorModelConfig = ActorModelConfig()
    """Network that acts."""
    critic: CriticModelConfig = CriticModelConfig()
    """Network that values observations with actions."""
    model_ckpt_filepath: ActorCriticFiles = ActorCriticFiles()
    """Files to take weights from at the start."""

    def _check(self) -> None:
        for key, network in (("actor", self.actor), ("critic", self.critic)):
            file, do = network.model_ckpt_filepath, f"name it in model.model_ckpt_filepath.{key}"
            require(not file, f"{key}.model_ckpt_filepath", 'must be ""', file, do)


class CentralisedCriticConfig(ModelConfig):
    """Network of A2C and PPO that values the state of the whole environment."""

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
    """Learn; False: only act."""
    algorithm: Algorithm = "A2C"
    """Algorithm by which it learns."""
    vf_loss_coeff: NonNegativeSchedule = 0.01
    """Weight of the squared error of the value in the loss."""
    entropy_coeff: NonNegativeSchedule = 0.05
    """Weight of the entropy in the loss."""
    clip_grad_norm: bool = True
    """Shorten gradients longer than ``max_grad_norm``."""
    max_grad_norm: PositiveFloat = 0.5
    """Norm of the whole gradient."""
    normalize_advantage: bool = False
    """Shift and scale the advantages of a batch to mean 0, standard deviation 1."""
    normalize_return: bool = False
    """Shift and scale the returns likewise."""
    normalize_rewards: bool = False
    """Divide rewards that A2C and PPO learn from by the standard deviation of discounted returns in training so far."""
    clip_param: PositiveShare = 0.2
    """Distance to which PPO lets the probability of an action change in ratio before its gradient stops."""
    gamma: UnitFloat = 0.98
    """Weight of the next step's reward, relative to that of this one."""
    lr: NonNegativeSchedule | LearningRates = 1e-4
    """Learning rate of Adam; DDPG may have one for each network."""
    tau: PositiveShare | None = None
    """Share of the online networks that DDPG's targets take over with each update; DDPG needs it."""
    gae_lambda: UnitFloat | None = None
    """Decay of temporal differences in the advantage; None: 1 (returns alone) for A2C, 0.95 for PPO."""
    n_epochs: Annotated[PositiveInt, Field(le=1_000)] = 4
    """Times that PPO goes through a batch."""
    n_minibatches: PositiveInt = 4
    """Parts that PPO cuts a batch into, an update each; divides ``train_batch_size``."""
    value_clip: PositiveFloat | None = None
    """Distance to which PPO lets a value move before its gradient stops; None: any way."""
    target_kl: PositiveFloat | None = None
    """Divergence from the policy that played, nats, at 1.5 times which PPO leaves a batch; None: never."""
    adam_eps: PositiveShare = 1e-8
    """Added to the root of Adam's second moment."""
    buffer_size: PositiveInt = 1_000_000
    """Transitions that DDPG remembers, of environments and agents; a rollout must fit."""
    batch_size: PositiveInt = 256
    """Transitions of an update of DDPG."""
    updates_per_iteration: Annotated[PositiveInt, Field(le=MAX_STEPS)] = 1
    """Updates of DDPG after each rollout."""
    learning_starts: NonNegativeInt = 0
    """Transitions that DDPG remembers before its first update."""
    noise: Literal["ou", "gaussian"] = "ou"
    """Exploration of DDPG: by an Ornstein-Uhlenbeck process, or by independent draws."""
    model: ModelConfig | ActorCriticConfig = Field(default_factory=lambda given: _model_config(given)())
    """Network; of DDPG both, an `ActorCriticConfig`."""
    centralised_critic: CentralisedCriticConfig | None = None
    """Network of its own that gives the values of A2C and PPO, from the observations of all agents of the environment,
    and ``{}`` for that with its defaults; None: the value follows from an agent's own observations, in ``model``."""

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
            rule = "must be false for DDPG, which learns from rewards as it remembers them"
            self._require("normalize_rewards", not self.normalize_rewards, rule, "leave it out, or scale the rewards")
        else:
            why = f"for algorithm {self.algorithm}, which has one network"
            self._require("model", isinstance(self.model, ModelConfig), f"must be a ModelConfig {why}")
            self._require("lr", not isinstance(self.lr, LearningRates), f"must be one schedule {why}")

    @property
    def models(self) -> dict[str, ModelConfig]:
        """Networks by their part: ``model``, and a centralised ``critic``; of DDPG ``actor`` and ``critic``."""
        if isinstance(self.model, ModelConfig):
            return {"model": self.model} | ({"critic": self.centralised_critic} if self.centralised_critic else {})
        return {"actor": self.model.actor, "critic": self.model.critic}

    @property
    def weight_files(self) -> dict[str, str]:
        """Files to take weights from at the start, by the part of the networks that have such a place."""
        if isinstance(self.model, ModelConfig):
            files = {part: network.model_ckpt_filepath for part, network in self.models.items()}
        else:
            files = self.model.model_ckpt_filepath.to_dict()
        return {part: file for part, file in files.items() if file}

    def schedule(self, key: str) -> Schedule:
        """Return a schedule by its key: ``lr``, ``vf_loss_coeff``, ``entropy_coeff``.

        Learning rates of DDPG are ``lr/actor`` and ``lr/critic``, both of them ``lr`` where it is one.
        """
        name, _, part = key.partition("/")
        given = getattr(self, name)
        return cast(Schedule, getattr(given, part) if isinstance(given, LearningRates) else given)


class SamplerParams(_Section):
    """Noise around continuous actions of DDPG: ``noise = (1 - damping) * noise + stddev * normal``."""

    PLACE: ClassVar[str] = "sampler.params"

    damping: UnitSchedule = 0.15
    """Share of the noise that a step takes away; of Ornstein-Uhlenbeck noise."""
    stddev: NonNegativeSchedule = 0.2
    """Spread of what a step adds, before ``scale``."""
    scale: NonNegativeSchedule = 1.0
    """Factor of the noise in the action, in the unit of the action; 0: none."""
    use_argmax: bool = False
    """Take the likeliest action, or the mean, of every policy while it trains."""

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Numbers of the noise, by the keyword of the draw."""
        return {"damping": self.damping, "stddev": self.stddev, "scale": self.scale}


class SamplerConfig(_Section):
    """Settings of the draws of actions in training."""

    PLACE: ClassVar[str] = "sampler"

    params: SamplerParams = SamplerParams()
    """Keywords of the draw."""


class SavingConfig(_Section):
    """Parts of a run that are kept, where and how often."""

    PLACE: ClassVar[str] = "saving"

    metrics_log_freq: Count = 100
    """Iterations from one line of metrics to the next."""
    model_params_save_freq: Count = 1_000
    """Iterations from one checkpoint to the next."""
    basedir: Name = "/tmp"
    """Folder of all runs."""
    name: InnerFolder = "default"
    """Folder in it, of runs of one kind."""
    tag: InnerFolder = "experiment"
    """Folder in that, of runs of one purpose."""
    keep_last: Count = 3
    """Checkpoints that are kept, the latest ones."""
    keep_best: bool = True
    """Keep also the best checkpoint, by greedy episodes played when it is saved; where one policy learns."""
    sinks: Annotated[tuple[Sink, ...], AS_TUPLE] = ("jsonl",)
    """Sinks of metrics."""

    def _check(self) -> None:
        self._require("sinks", len(set(self.sinks)) == len(self.sinks), "must name each only once")


@dataclass(frozen=True, slots=True)
class Member:
    """One agent of a population."""

    seed: int
    """Seed of its weights and of the order of its minibatches."""
    setting: Mapping[str, Any]
    """Values of the table by key of the policy, which go before the policy's own."""


Wanted = list[tuple[str, Any, tuple[Any, ...]]]
"""Settings: key, value and the values that are allowed."""


class PopulationConfig(_Section):
    """Agents that are trained side by side and independently: every setting of a table from every seed.

    The lists but `seeds` are the columns of the table, with an entry for each setting.
    """

    PLACE: ClassVar[str] = "population"

    size: Annotated[PositiveInt, Field(le=2**16)] | None = None
    """Agents, a multiple of the settings; each has environments, batches and steps as the run config says of one.
    None: an ordinary run."""
    seeds: Annotated[tuple[Seed, ...], AS_TUPLE] = ()
    """Seeds of weights and minibatches, ``size / settings`` of them; none: those from ``trainer.seed`` on."""
    lr: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of learning rates, schedules; empty: that of the policy, as of the other columns."""
    vf_loss_coeff: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of weights of the value's error, schedules."""
    entropy_coeff: Annotated[tuple[NonNegativeSchedule, ...], AS_TUPLE] = ()
    """Column of weights of the entropy, schedules."""
    clip_param: Annotated[tuple[PositiveShare, ...], AS_TUPLE] = ()
    """Column of distances at which PPO clips."""
    max_grad_norm: Annotated[tuple[PositiveFloat, ...], AS_TUPLE] = ()
    """Column of norms to which gradients are shortened."""

    @property
    def columns(self) -> dict[str, tuple[Any, ...]]:
        """Columns of the table that are given, by key of the policy."""
        columns = {key: getattr(self, key) for key in type(self).model_fields if key not in ("size", "seeds")}
        return {key: column for key, column in columns.items() if column}

    @property
    def n_settings(self) -> int:
        """Settings of the table; 1 where there is none."""
        return max([1, *map(len, self.columns.values())])

    def members(self, first_seed: int) -> list[Member]:
        """Return the agents, those of one setting side by side; ``first_seed`` counts where no seeds are given."""
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
    """A run: the environment, the trainer, the policies, how actions are drawn and what is saved."""

    OF_OTHERS: ClassVar[Sequence[str]] = ("env",)

    name: str = ""
    """Name of the environment, by which the command line finds it; "": it is given otherwise."""
    env: Annotated[dict[str, Any], NULL_IS_EMPTY] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    trainer: TrainerConfig = TrainerConfig()
    """Settings that all policies share."""
    policy: Annotated[dict[str, PolicyConfig], NULL_IS_EMPTY] = Field(default_factory=dict)
    """The policies by name, at least one."""
    sampler: SamplerConfig = SamplerConfig()
    """Draws of actions."""
    saving: SavingConfig = SavingConfig()
    """Parts that are kept."""
    population: PopulationConfig = PopulationConfig()
    """Agents that are trained side by side."""

    @classmethod
    def of(cls, config: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
        """Return a config itself, or what `from_dict` makes of a mapping and `load` of a path.

        Raises:
            ConfigError: As those.
        """
        if isinstance(config, RunConfig):
            return config
        return cls.load(config) if isinstance(config, str | Path) else cls.from_dict(config)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> RunConfig:
        """Return the config that a mapping says, as YAML or JSON has it; the mapping is copied and left as it is.

        Raises:
            ConfigError: A key is unknown, a value is of the wrong type, or a rule is broken; says where.
        """
        is_mapping = isinstance(mapping, Mapping)
        require(is_mapping, "run config", f"must be a mapping with keys {known(cls.model_fields)}", mapping)
        return cls.read(mapping)

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Return the config of a YAML file, in which 1e-3 is a number.

        Raises:
            ConfigError: The file is missing or no YAML, PyYAML is not installed, or as `from_dict`.
        """
        return cls.from_dict(_read_yaml(path))

    def n_iterations(self, episode_length: int) -> int:
        """Return how many batches all episodes make together, of ``episode_length`` steps each; a rest is not played.

        Raises:
            ConfigError: They do not fill one batch.
        """
        size, n_steps = self.trainer.train_batch_size, self.trainer.num_episodes * episode_length
        if n_steps < size:
            rule = f"must fill a batch, num_episodes * episode_length >= train_batch_size = {size}"
            do = f"take at least {-(-size // episode_length)}"
            raise ConfigError.of("trainer.num_episodes", rule, n_steps, do, self.WHO)
        return n_steps // size

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
        """Check that all of a run has kernels with one order of operations."""
        trainer = self.trainer
        wanted: Wanted = [
            ("trainer.num_gpus", trainer.num_gpus, (1,)),
            ("trainer.precision", trainer.precision, ("fp32",)),
            ("trainer.compat", trainer.compat, (None,)),
            ("trainer.neg_pos_env_ratio", trainer.neg_pos_env_ratio, (OFF,)),
            ("population.size", self.population.size, (None,)),
        ]
        for name, policy in self.policy.items():
            wanted.append((f"policy.{name}.centralised_critic", policy.centralised_critic, (None,)))
            for part, network in policy.models.items():
                where = f"policy.{name}.model" + ("" if part == "model" else f".{part}")
                wanted += [
                    (f"{where}.type", network.type, (type(network)().type,)),
                    (f"{where}.activation", network.activation, ("relu", "tanh")),
                    (f"{where}.normalize_observations", network.normalize_observations, (False,)),
                    (f"{where}.fused", network.fused, (None, False)),
                ]
        _require_all(wanted, "with trainer.exact", "change it, or leave exact out")

    def _check_population(self) -> None:
        """Check that agents can be trained side by side: by A2C or PPO, one policy each, by batched products alone."""
        trainer = self.trainer
        where, rule = "with population.size", "must be one policy that learns, {} population.size"
        learners = [name for name, policy in self.policy.items() if policy.to_train]
        require(len(self.policy) == len(learners) == 1, "policy", rule.format("with"), known(self.policy))
        wanted: Wanted = [
            ("trainer.num_gpus", trainer.num_gpus, (1,)),
            ("trainer.compat", trainer.compat, (None,)),
            ("trainer.neg_pos_env_ratio", trainer.neg_pos_env_ratio, (OFF,)),
            ("trainer.exact", trainer.exact, (False,)),
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
        """Check what a policy does with a batch against what all share."""
        if self.trainer.compat is not None and policy.centralised_critic is not None:
            rule = f"must be null with policy.{name}.centralised_critic, which WarpDrive has not"
            raise ConfigError.of("trainer.compat", rule, self.trainer.compat, "leave one of them out")
        is_normalised = policy.normalize_rewards or any(each.normalize_observations for each in policy.models.values())
        rule = f"must be null where policy.{name} normalises observations or rewards, which WarpDrive cannot"
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
    """Return the divisors of a number that are next to another one, at most and at least as large as that."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    all_of_them = [*small, *(number // n for n in small)]
    return max(n for n in all_of_them if n <= near), min((n for n in all_of_them if n >= near), default=number)


def _read_yaml(path: str | Path) -> Any:
    """Return what a YAML file says.

    Raises:
        ConfigError: It cannot be read, is no YAML, or is too long or nested too deeply.
    """
    yaml = optional_package("yaml", "run config", INSTALL, "pyyaml")
    # PyYAML reads YAML 1.1, where a number with an exponent needs a point and the exponent's sign.
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # the latter: a path with a null byte
        raise ConfigError.of("run config", "must be a file that can be read", error, "give its path") from error
    what, do = "run config", "correct it there"
    require(len(content) <= MAX_FILE, what, f"{path} must have at most {MAX_FILE:,} bytes", "more")
    try:
        reader = loader(content)
        if (node := reader.get_single_node()) is None:
            return None
        _, size = _extent(node, {})
        require(size <= MAX_NODES, what, f"{path} must have at most {MAX_NODES:,} values, with those of aliases", size)
        _require_unique_keys(node, path)
        return reader.construct_document(node)
    except RecursionError as error:
        rule = f"{path} must not be nested deeper than {MAX_DEPTH} levels, nor contain itself"
        raise ConfigError.of(what, rule, do=do) from error
    except ConfigError:
        raise
    except Exception as error:  # of malformed scalars PyYAML raises any kind
        raise ConfigError.of(what, f"{path} must be YAML", error, do) from error


def _extent(node: Any, known_extents: dict[int, tuple[int, int]], depth: int = 0) -> tuple[int, int]:
    """Return the depth and the size of a node of YAML, in which an alias counts as what it stands for.

    Raises:
        RecursionError: It is nested too deeply, or contains itself.
    """
    if id(node) not in known_extents:
        below = [node.value] if isinstance(node.value, str) else node.value
        parts = [part for each in below for part in (each if isinstance(each, tuple) else (each,))]
        if depth > MAX_DEPTH:
            raise RecursionError
        extents = [_extent(part, known_extents, depth + 1) for part in parts if not isinstance(part, str)]
        heights, sizes = zip((0, 0), *extents, strict=True)
        known_extents[id(node)] = (1 + max(heights), 1 + sum(sizes))
    height, size = known_extents[id(node)]
    if depth + height > MAX_DEPTH:
        raise RecursionError
    return height, size


def _require_unique_keys(root: Any, path: str | Path) -> None:
    """Raise `ConfigError` if a mapping in a YAML file repeats a key; PyYAML would take the last value."""
    nodes, visited = [root], set[int]()
    while nodes:
        node = nodes.pop()
        if isinstance(node.value, str) or id(node) in visited:
            continue
        visited.add(id(node))
        keys = set[tuple[str, str]]()
        for part in node.value:
            nodes += part if isinstance(part, tuple) else (part,)
            key = part[0] if isinstance(part, tuple) else None
            if key is not None and isinstance(key.value, str):
                rule = f"{path}, line {key.start_mark.line + 1}: a mapping must have each key once"
                require((key.tag, key.value) not in keys, "run config", rule, key.value, "remove one of the two")
                keys.add((key.tag, key.value))


def _require_all(wanted: Wanted, where: str, do: str) -> None:
    """Raise `ConfigError` at the first setting, named by its key, that has another value than those allowed."""
    for key, value, allowed in wanted:
        require(value in allowed, key, f"must be {' or '.join(map(json.dumps, allowed))} {where}", value, do)


def _model_config(policy: Mapping[str, Any]) -> type[ModelConfig | ActorCriticConfig]:
    """Return the kind of the network, which follows from the algorithm."""
    return ActorCriticConfig if policy.get("algorithm") == "DDPG" else ModelConfig
