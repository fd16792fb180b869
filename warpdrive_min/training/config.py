"""Run configs: what is trained, how, and what is kept of it, as `run_config.yaml` says it.

Key by key in `docs/run_config.md`. Time in schedules is counted in steps of all environments together.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

from warpdrive_min.backends import BACKENDS
from warpdrive_min.errors import ConfigError, known
from warpdrive_min.training.precision import Precision
from warpdrive_min.training.schedules import ParamScheduler, Schedule
from warpdrive_min.training.sections import RuleError, Section, read

Algorithm = Literal["A2C", "PPO", "DDPG"]
Activation = Literal["relu", "tanh", "elu", "silu", "gelu"]
InitMethod = Literal["xavier", "orthogonal"]
Mode = Literal["auto", "graph", "eager"]
Sink = Literal["jsonl", "csv", "tensorboard", "wandb"]

OFF: Final = -1
"""Of `TrainerConfig.neg_pos_env_ratio`."""
MAX_SEED: Final = 2**63 - 1
NAME: Final = re.compile(r"\w[\w.-]*")
"""Name of a policy; files and metrics are named after it."""
EXPONENT: Final = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+\Z")
"""A number with an exponent, in YAML."""
INSTALL: Final = 'pip install "warpdrive-min[train]"'


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig(Section):
    """How all policies are trained together; counts of environments and steps are those of one GPU."""

    PLACE: ClassVar[str] = "trainer"

    num_gpus: int = 1
    """Processes that train together, each with environments of its own on a GPU of its own."""
    num_envs: int = 10
    """Environments."""
    num_episodes: int = 10_000
    """Episodes of full length, over all environments, after which training ends."""
    train_batch_size: int = 10_000
    """Steps, over all environments, from which a policy learns at a time; a multiple of ``num_envs``."""
    env_backend: str = "pycuda"
    """Backend of the environments."""
    seed: int | None = None
    """Seed of starts, actions, weights and minibatches; None: from the clock."""
    n_step: int = 1
    """Rewards, steps, that DDPG sums before it asks the critic."""
    neg_pos_env_ratio: float = OFF
    """Environments without a success that A2C and PPO learn from, for each one with; -1: all."""
    evaluator: bool = False
    """Play greedy episodes in environments of their own whenever metrics are logged."""
    precision: Precision = "fp32"
    """In which matrices are multiplied; weights and losses are float32 always."""
    mode: Mode = "auto"
    """Replay the iteration as a CUDA graph, or launch kernel by kernel; "auto": a graph where the backend can."""
    stop_return: float | dict[str, float] | None = None
    """Mean return at which training stops, of the latest episodes, enough for one in each environment; None: never."""
    compat: Literal["warpdrive"] | None = None
    """Learn by WarpDrive's rule: its returns, to which a time limit is an end, and one update for each batch."""
    max_rows: int | None = 2**20
    """Rows (step, environment, agent) that go through a model at a time; gradients add up. None: all."""

    def _check(self) -> None:
        for key in ("num_gpus", "num_envs", "num_episodes", "train_batch_size", "n_step", "max_rows"):
            self._require(key, getattr(self, key) is None or getattr(self, key) >= 1, "must be at least 1")
        self._require("seed", 0 <= (self.seed or 0) <= MAX_SEED, "must be from 0 to 2^63 - 1")
        self._require("env_backend", self.env_backend in BACKENDS, f"must be one of {', '.join(BACKENDS)}")
        self._require(
            "neg_pos_env_ratio",
            self.neg_pos_env_ratio > 0 or self.neg_pos_env_ratio == OFF,
            f"must be positive, or {OFF} for all environments",
        )
        below = self.train_batch_size // self.num_envs * self.num_envs
        above = below + self.num_envs
        self._require(
            "train_batch_size",
            below == self.train_batch_size,
            f"must be a multiple of num_envs = {self.num_envs}",
            f"take {below} or {above}" if below else f"take {above}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Section):
    """The network of a policy."""

    PLACE: ClassVar[str] = "policy.model"

    type: str = "fully_connected"
    """Name of the model in the model factory."""
    fc_dims: tuple[int, ...] = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """After each hidden layer."""
    shared: bool = True
    """Actions and value come from the same hidden layers; False: each has its own."""
    init_method: InitMethod | None = None
    """How weights start; None: as torch starts them."""
    output_w: float = 1.0
    """Factor of continuous actions, which are ``output_w * tanh(head) + output_b``."""
    output_b: float = 0.0
    """Centre of continuous actions, in their unit."""
    log_std_init: float = 0.0
    """Logarithm of the spread of continuous actions at the start; of A2C and PPO."""
    learn_log_std: bool = True
    """Learn that spread; False: it stays."""
    fused: bool | None = None
    """Go through all layers in one kernel, which needs a GPU and Triton; None: where that can be."""
    model_ckpt_filepath: str = ""
    """Checkpoint to take weights from at the start, or WarpDrive's file of them; "": none."""

    def _check(self) -> None:
        self._require("fc_dims", bool(self.fc_dims), "must have a hidden layer")
        self._require("fc_dims", min(self.fc_dims) >= 1, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorModelConfig(ModelConfig):
    """The network of DDPG that acts."""

    PLACE: ClassVar[str] = "policy.model.actor"

    type: str = "fully_connected_actor"
    """Name of the model in the model factory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticModelConfig(ModelConfig):
    """The network of DDPG that values observations with actions."""

    PLACE: ClassVar[str] = "policy.model.critic"

    type: str = "fully_connected_action_value_critic"
    """Name of the model in the model factory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticFiles(Section):
    """Checkpoints, or WarpDrive's files, to take the weights of DDPG from at the start; "": none."""

    PLACE: ClassVar[str] = "policy.model.model_ckpt_filepath"

    actor: str = ""
    """Of the actor."""
    critic: str = ""
    """Of the critic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticConfig(Section):
    """The two networks of DDPG."""

    PLACE: ClassVar[str] = "policy.model"

    actor: ActorModelConfig = field(default_factory=ActorModelConfig)
    """Acts."""
    critic: CriticModelConfig = field(default_factory=CriticModelConfig)
    """Values observations with actions."""
    model_ckpt_filepath: ActorCriticFiles = field(default_factory=ActorCriticFiles)
    """Where to take weights from at the start."""

    def _check(self) -> None:
        for key, network in (("actor", self.actor), ("critic", self.critic)):
            if network.model_ckpt_filepath:
                raise RuleError(
                    self.PLACE,
                    f"{key}.model_ckpt_filepath",
                    f'must be "" (got {network.model_ckpt_filepath!r}); name it in model.model_ckpt_filepath.{key}',
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRates(Section):
    """Learning rates of DDPG, one for each network."""

    PLACE: ClassVar[str] = "policy.lr"

    actor: Schedule = 1e-4
    """Of the actor."""
    critic: Schedule = 1e-4
    """Of the critic."""

    def _check(self) -> None:
        for key in ("actor", "critic"):
            self._require(key, _lowest(getattr(self, key)) >= 0, "must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig(Section):
    """How one policy learns."""

    PLACE: ClassVar[str] = "policy"

    to_train: bool = False
    """Learn; False: only act."""
    algorithm: Algorithm = "A2C"
    """By which it learns."""
    vf_loss_coeff: Schedule = 0.01
    """Weight of the squared error of the value in the loss."""
    entropy_coeff: Schedule = 0.05
    """Weight of the entropy in the loss."""
    clip_grad_norm: bool = True
    """Shorten gradients longer than ``max_grad_norm``."""
    max_grad_norm: float = 0.5
    """Norm of the whole gradient."""
    normalize_advantage: bool = False
    """Shift and scale the advantages of a batch to mean 0, standard deviation 1."""
    normalize_return: bool = False
    """Likewise the returns."""
    clip_param: float = 0.2
    """How far PPO lets the probability of an action change in ratio before its gradient stops."""
    gamma: float = 0.98
    """Weight of the next step's reward, relative to that of this one."""
    lr: Schedule | LearningRates = 1e-4
    """Learning rate of Adam; DDPG may have one for each network."""
    tau: float | None = None
    """Share of the online networks that DDPG's targets take over with each update; DDPG needs it."""
    gae_lambda: float | None = None
    """Decay of temporal differences in the advantage; None: 1 (returns alone) for A2C, 0.95 for PPO."""
    n_epochs: int = 4
    """Times that PPO goes through a batch."""
    n_minibatches: int = 4
    """Parts that PPO cuts a batch into, an update each; divides ``train_batch_size``."""
    value_clip: float | None = None
    """How far PPO lets a value move before its gradient stops; None: any way."""
    target_kl: float | None = None
    """Divergence from the policy that played, nats, at 1.5 times which PPO leaves a batch; None: never."""
    adam_eps: float = 1e-8
    """Added to the root of Adam's second moment."""
    buffer_size: int = 1_000_000
    """Transitions that DDPG remembers, of environments and agents; a rollout must fit."""
    batch_size: int = 256
    """Transitions of an update of DDPG."""
    updates_per_iteration: int = 1
    """Updates of DDPG after each rollout."""
    learning_starts: int = 0
    """Transitions that DDPG remembers before its first update."""
    noise: Literal["ou", "gaussian"] = "ou"
    """How DDPG explores: by an Ornstein-Uhlenbeck process, or by independent draws."""
    model: ModelConfig | ActorCriticConfig = field(default_factory=ModelConfig)
    """The network; of DDPG both, an `ActorCriticConfig`."""

    @classmethod
    def types(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the type of each key: that of ``model`` follows from the algorithm."""
        model = ActorCriticConfig if given.get("algorithm") == "DDPG" else ModelConfig
        return {**super(PolicyConfig, cls).types(given), "model": model}

    def _check(self) -> None:
        for key in ("vf_loss_coeff", "entropy_coeff"):
            self._require(key, _lowest(getattr(self, key)) >= 0, "must not be negative")
        for key in ("max_grad_norm", "value_clip", "target_kl", "adam_eps"):
            self._require(key, getattr(self, key) is None or getattr(self, key) > 0, "must be positive")
        for key in ("gamma", "gae_lambda"):
            self._require(key, 0 <= (getattr(self, key) or 0) <= 1, "must be from 0 to 1")
        for key in ("clip_param", "tau"):
            self._require(
                key, getattr(self, key) is None or 0 < getattr(self, key) <= 1, "must be above 0 and at most 1"
            )
        for key in ("n_epochs", "n_minibatches", "buffer_size", "batch_size", "updates_per_iteration"):
            self._require(key, getattr(self, key) >= 1, "must be at least 1")
        self._require("learning_starts", self.learning_starts >= 0, "must not be negative")
        if self.algorithm == "DDPG":
            self._require("tau", self.tau is not None, "must be given for DDPG", "0.05 is WarpDrive's")
            rule = "must be an ActorCriticConfig for algorithm DDPG, which has two networks"
            self._require("model", isinstance(self.model, ActorCriticConfig), rule)
        else:
            why = f"for algorithm {self.algorithm}, which has one network"
            self._require("model", isinstance(self.model, ModelConfig), f"must be a ModelConfig {why}")
            self._require("lr", not isinstance(self.lr, LearningRates), f"must be one schedule {why}")
        if not isinstance(self.lr, LearningRates):
            self._require("lr", _lowest(self.lr) >= 0, "must not be negative")

    @property
    def models(self) -> dict[str, ModelConfig]:
        """The networks by their part: ``model``; of DDPG ``actor`` and ``critic``."""
        if isinstance(self.model, ModelConfig):
            return {"model": self.model}
        return {"actor": self.model.actor, "critic": self.model.critic}

    @property
    def weight_files(self) -> dict[str, str]:
        """Where to take weights from at the start, by the part of the networks that have such a place."""
        if isinstance(self.model, ModelConfig):
            files = {"model": self.model.model_ckpt_filepath}
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerParams(Section):
    """The noise around continuous actions of DDPG: ``noise = (1 - damping) * noise + stddev * normal``."""

    PLACE: ClassVar[str] = "sampler.params"

    damping: Schedule = 0.15
    """Share of the noise that a step takes away; of Ornstein-Uhlenbeck noise."""
    stddev: Schedule = 0.2
    """Spread of what a step adds, before ``scale``."""
    scale: Schedule = 1.0
    """Factor of the noise in the action, in the unit of the action; 0: none."""
    use_argmax: bool = False
    """Take the likeliest action, or the mean, of every policy while it trains."""

    def _check(self) -> None:
        for key in ("damping", "stddev", "scale"):
            self._require(key, _lowest(getattr(self, key)) >= 0, "must not be negative")
        self._require("damping", max(ParamScheduler(self.damping).values) <= 1, "must be at most 1")

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The numbers of the noise, by the keyword of the draw."""
        return {"damping": self.damping, "stddev": self.stddev, "scale": self.scale}


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerConfig(Section):
    """How actions are drawn in training."""

    PLACE: ClassVar[str] = "sampler"

    params: SamplerParams = field(default_factory=SamplerParams)
    """Keywords of the draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavingConfig(Section):
    """What is kept of a run, where and how often."""

    PLACE: ClassVar[str] = "saving"

    metrics_log_freq: int = 100
    """Iterations from one line of metrics to the next."""
    model_params_save_freq: int = 1_000
    """Iterations from one checkpoint to the next."""
    basedir: str = "/tmp"
    """Folder of all runs."""
    name: str = "default"
    """Folder in it, of runs of one kind."""
    tag: str = "experiment"
    """Folder in that, of runs of one purpose."""
    keep_last: int = 3
    """Checkpoints that are kept, the latest ones."""
    keep_best: bool = True
    """Keep also that of the best mean episodic return."""
    sinks: tuple[Sink, ...] = ("jsonl",)
    """Where metrics go."""

    def _check(self) -> None:
        for key in ("metrics_log_freq", "model_params_save_freq", "keep_last"):
            self._require(key, getattr(self, key) >= 1, "must be at least 1")
        for key in ("basedir", "name", "tag"):
            self._require(key, bool(getattr(self, key)), "must not be empty")
        self._require("sinks", len(set(self.sinks)) == len(self.sinks), "must name each only once")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig(Section):
    """A run: the environment, the trainer, the policies, how actions are drawn and what is saved."""

    name: str = ""
    """Name of the environment, by which the command line finds it; "": it is given otherwise."""
    env: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """What all policies share."""
    policy: dict[str, PolicyConfig] = field(default_factory=dict)
    """The policies by name, at least one."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """How actions are drawn."""
    saving: SavingConfig = field(default_factory=SavingConfig)
    """What is kept."""

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
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"run config: must be a mapping with keys {known(cls.types({}))} (got {mapping!r})")
        return read(cls, mapping)

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Return the config of a YAML file, in which 1e-3 is a number.

        Raises:
            ConfigError: The file is missing or no YAML, PyYAML is not installed, or as `from_dict`.
        """
        try:
            yaml = importlib.import_module("yaml")
        except ImportError as error:
            raise ConfigError(f"run config: needs the package pyyaml to read YAML (got {error}); {INSTALL}") from error
        # PyYAML reads YAML 1.1, where a number with an exponent needs a point and the exponent's sign.
        loader: Any = type("Loader", (yaml.SafeLoader,), {})
        loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))
        try:
            return cls.from_dict(yaml.load(Path(path).read_bytes(), loader))
        except OSError as error:
            raise ConfigError(f"run config: must be a file that can be read (got {error}); give its path") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"run config: {path} must be YAML (got {error}); correct it there") from error

    def n_iterations(self, episode_length: int) -> int:
        """Return how many batches all episodes make together, of ``episode_length`` steps each; a rest is not played.

        Raises:
            ConfigError: They do not fill one batch.
        """
        size, n_steps = self.trainer.train_batch_size, self.trainer.num_episodes * episode_length
        if n_steps < size:
            raise RuleError(
                "",
                "trainer.num_episodes",
                f"must fill a batch, num_episodes * episode_length >= train_batch_size = {size} (got {n_steps}); "
                f"take at least {-(-size // episode_length)}",
            )
        return n_steps // size

    def _check(self) -> None:
        try:
            json.dumps(self.to_dict()["env"])
        except (TypeError, ValueError) as error:
            self._require("env", False, "must hold numbers, strings, lists and mappings only, to be saved", str(error))
        self._require("policy", bool(self.policy), "must name at least one", "for all agents alike: policy.shared")
        for name, policy in self.policy.items():
            if not NAME.fullmatch(name):
                what = f"must be named by letters, digits, '_', then '-' and '.' too (got {name!r}); it names files"
                raise RuleError("", "policy", what)
            self._check_batch(name, policy)
        if isinstance(self.trainer.stop_return, Mapping) and (unknown := self.trainer.stop_return.keys() - self.policy):
            raise RuleError(
                "",
                "trainer.stop_return",
                f"must name policies of the run (got {known(unknown)}); known are {known(self.policy)}",
            )

    def _check_batch(self, name: str, policy: PolicyConfig) -> None:
        """Check what a policy does with a batch against its size."""
        size, n_parts = self.trainer.train_batch_size, policy.n_minibatches
        if policy.algorithm == "PPO" and self.trainer.compat is None and size % n_parts:
            below = next(n for n in range(n_parts, 0, -1) if size % n == 0)
            above = next((n for n in range(n_parts, size) if size % n == 0), size)
            raise RuleError(
                "",
                f"policy.{name}.n_minibatches",
                f"must divide train_batch_size = {size} (got {n_parts}); take {below} or {above}",
            )


def _lowest(schedule: Schedule) -> float:
    return float(min(ParamScheduler(schedule).values))
