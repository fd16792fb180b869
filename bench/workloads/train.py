"""Policies that play, and trainers that learn from it, as a user runs them: `rollout`, `train`."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch

from warpdrive_min import CUDADataManager, EnvWrapper
from warpdrive_min.constants import EPISODE, TIMESTEP, Constants
from warpdrive_min.envs import ENVS
from warpdrive_min.training.config import PolicyConfig, RunConfig
from warpdrive_min.training.metrics import Row
from warpdrive_min.training.policies import PolicyGroup
from warpdrive_min.training.trainer import Trainer

from ..core.case import Case
from ..core.measure import Timed
from ..core.point import ON_CPU, Check, Point, Preset
from ..core.quiet import quiet
from ..judge.anchors import ANCHORS, SEPARATE
from .env_step import place
from .shared import (
    ON_GPU,
    SEED,
    Arrays,
    Pairs,
    Repeated,
    are_finite,
    available,
    compared,
    counterpart,
    default_mode,
    env_config,
    errors,
    pairs_over,
    repeated,
    steps_of,
    timed,
)

SCHEDULES: Final = ("lr", "vf_loss_coeff", "entropy_coeff")
"""Settings of a policy that may change by steps of all environments."""
NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "32-32": {"fc_dims": [32, 32]},
    "64-64": {"fc_dims": [64, 64]},
    "256-256": {"fc_dims": [256, 256]},
    SEPARATE: {"fc_dims": [64, 64], "activation": "tanh", "shared": False, "init_method": "orthogonal"},
}
"""Keys of the networks by their name on the axis; what they leave out is as in the run config."""
SPLIT_OVER: Final = 3
"""Iterations from which the shares of rollout and update are taken."""
NO_CHECKPOINTS: Final = 10**9
"""Iterations to the first one."""

Settings = dict[str, Any]
"""A run config as a mapping, which a case changes before it becomes one again."""


# ------------------------------------------------------------------ trainers


@cache
def shipped(env: str, name: str) -> RunConfig:
    """Return a run config that lies beside an environment, ``run_config<name>.yaml``."""
    return RunConfig.load(Path(inspect.getfile(ENVS[env])).with_name(f"run_config{name}.yaml"))


def settings(point: Point) -> Settings:
    """Return the run of a point: the shipped one of its environment and algorithm, in other sizes.

    What the shipped one lowers by steps of all environments stays as it begins: with millions of steps an iteration it
    would be at its end, zero, after the first one.
    """
    changed = shipped(point["env"], "_ppo" if point["algorithm"] == "PPO" else "").to_dict()
    changed["env"] = env_config(point["env"], point["n_agents"], n_taggers=point.get("n_taggers"))
    changed["trainer"] |= {
        "num_envs": point["n_envs"],
        "num_episodes": point["n_envs"] * point["n_steps"],
        "train_batch_size": point["n_envs"] * point["n_steps"],
        "env_backend": point["backend"],
        "seed": SEED,
        "precision": point["precision"],
        "mode": point["mode"],
        "exact": point.get("exact", False),
    }
    for policy in changed["policy"].values():
        policy["algorithm"] = point["algorithm"]
        for name in SCHEDULES:
            policy[name] = policy[name][0][1] if isinstance(policy[name], list) else policy[name]
        if point["algorithm"] == "DDPG":  # learns from as many rows as it played, which is what WarpDrive does
            policy["batch_size"] = point["n_envs"] * point["n_steps"] * point["n_agents"]
        model = policy["model"]
        for network in (model["actor"], model["critic"]) if "actor" in model else (model,):
            network |= NETWORKS[point["network"]]
            if "fused" in point:
                network["fused"] = point["fused"]
    return changed


class WatchedTrainer(Trainer):
    """A trainer that keeps its rows of metrics, and leaves no file behind when it is gone.

    Args:
        env: Name of the environment in `ENVS`.
        settings: The run.
        exact: Floats of the environment are bit-identical on every backend.
        saves: Save checkpoints as the run says, not only one at the end.
    """

    def __init__(self, env: str, settings: Mapping[str, Any], *, exact: bool = False, saves: bool = False) -> None:
        folder = tempfile.mkdtemp(prefix="warpdrive-bench-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        saving = settings["saving"] | {"basedir": folder, "sinks": ()}
        if not saves:
            saving |= {"model_params_save_freq": NO_CHECKPOINTS, "keep_best": False}
        config = RunConfig.from_dict({**settings, "saving": saving})
        wrapper = EnvWrapper(
            ENVS[env](**config.env),
            num_envs=config.trainer.num_envs * (config.population.size or 1),
            env_backend=config.trainer.env_backend,
            seed=config.trainer.seed or 0,
            auto_reset=True,
            exact=exact or config.trainer.exact,
        )
        self.rows: list[tuple[float, Row]] = []
        """Rows of metrics, each with the time at which it was there, s of the clock."""
        super().__init__(wrapper, config, verbose=False)

    def log_metrics(self) -> Row:
        """Keep the row."""
        row = super().log_metrics()
        self.rows.append((time.perf_counter(), row))
        return row

    def warm_up(self) -> float:
        """Compile and capture an iteration, and go back to where training was; returns what that took, s."""
        began = time.perf_counter()
        go_back = self.snapshot()
        self.iterate_times(2)
        go_back()
        return time.perf_counter() - began

    def weights(self) -> torch.Tensor:
        """Return a copy of all weights of the policies that learn, one after the other, on the CPU."""
        learning = [group for group in self.groups.values() if group.algorithm is not None]
        models = [model for group in learning for model in group.models.values()]
        return torch.cat([weight.detach().flatten().cpu() for model in models for weight in model.parameters()])

    def snapshot(self) -> Callable[[], None]:
        """Copy weights, optimisers, environments and random counters; returns what goes on from there, which waits."""
        state = self.state()
        assert state is not None, "a trainer of one rank has all of its state"
        tensors, header = state
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        return lambda: self.load_state(copies, header, "of the snapshot")

    def iterate_times(self, n: int) -> None:
        """Play and learn some times; enqueues."""
        for _ in range(n):
            self.iterate()

    def split(self) -> dict[str, float]:
        """Iterate until both phases are captured, and measure how long each takes: ``rollout_s``, ``update_s``."""
        self.iterate_times(2)  # both phases have run eagerly, and are captured
        with quiet():
            self.log_metrics()
            self.iterate_times(SPLIT_OVER)
            row = self.log_metrics()
        shares = {name: row[name] / SPLIT_OVER for name in ("rollout_s", "update_s")}
        return shares | {"capture_s": self.capture_s}


def player(point: Point, *, exact: bool = False) -> WatchedTrainer:
    """Return the trainer of a point, whose rollout is its own and whose policies are as they start."""
    return WatchedTrainer(point["env"], settings({**point, "algorithm": "A2C"}), exact=exact)


def plays(trainer: WatchedTrainer, mode: Any) -> Repeated:
    """Return one rollout of a trainer as a run."""
    return repeated(trainer.wrapper.backend, trainer.collect, mode, n=1)


# ------------------------------------------------------------------ workloads


def rollout(point: Point) -> Timed:
    """Let the policies play every step of a rollout and keep what could be learned from, in one graph or eagerly."""
    available(point["backend"])
    trainer = player(point)
    rollouts = plays(trainer, point["mode"])
    check, twin = rollout_check(point, trainer, rollouts.run), twin_check(point, played)
    return iterations(point, trainer, rollouts, check, twin, {"steps_per_run": point["n_steps"]}, learns=False)


def train(point: Point) -> Timed:
    """Play a rollout and learn from it, in one CUDA graph each or eagerly."""
    backend = available(point["backend"])
    on_gpu = backend.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = WatchedTrainer(point["env"], settings(point))
    notes = trainer.split()
    if on_gpu:
        notes["peak_bytes"] = torch.cuda.max_memory_allocated()
    iterates = Repeated(trainer.iterate, 1, point["mode"])
    return iterations(point, trainer, iterates, learning_check(trainer), twin_check(point, learned), notes)


def iterations(
    point: Point,
    trainer: WatchedTrainer,
    repeats: Repeated,
    check: Callable[[], Check],
    twin: Callable[[], Check],
    notes: Mapping[str, Any],
    *,
    learns: bool = True,
) -> Timed:
    """Return the timing of a trainer's iterations, or of their rollouts alone."""
    return timed(
        trainer.wrapper.backend,
        repeats,
        check,
        is_of_torch=True,
        work=steps_of(trainer.config.trainer.train_batch_size, point["n_agents"]),
        n_bytes=least_bytes(trainer),
        n_ops=least_ops(trainer, learns=learns) if point["precision"] == "fp32" else 0,
        notes=notes,
        snapshot=trainer.snapshot,
        twin=twin,
    )


# ------------------------------------------------------------------ checks

TWIN_ENVS: Final = 8
TWIN_STEPS: Final = 16
TWIN_ITERATIONS: Final = 3
"""The first is eager everywhere, the second is captured, the third is a replay."""

Comparison = Callable[[], tuple[float, str]]
"""Returns how far two runs are apart that must be the same to the bit, and what they are."""


NO_TWIN: Final = "none before the timing, which another trainer would slow down"
"""Oracle of what has no twin yet."""


def twin_check(point: Point, run: Callable[[Point], Arrays]) -> Callable[[], Check]:
    """Return the check of a small run against its twin; it raises Skip where the twin's backend cannot run.

    Args:
        point: Whose sizes are made small.
        run: Plays and learns, `TWIN_ITERATIONS` times; returns what it came to.
    """

    def check() -> Check:
        small = {**point, "n_envs": TWIN_ENVS, "n_steps": min(TWIN_STEPS, point["n_steps"])}
        twin = twin_of(small)
        which = f"{twin['backend']}, {twin['mode']}, exact floats"
        error = max(errors(run(twin), run(small)).values())
        return Check(
            passed=error == 0,
            max_error=error,
            oracle=f"{TWIN_ITERATIONS} iterations of {TWIN_ENVS} environments against {which}: to the bit",
        )

    return check


def twin_of(point: Point) -> Point:
    """Return the point that must come to the same: on a GPU in the other mode, on a CPU on another backend.

    Exact training must come to the same on a CPU as on a GPU, and there once more.

    Raises:
        Skip: That backend cannot run here.
    """
    if point.get("exact"):
        return {**point, "backend": "host", "mode": "eager"}
    if point["backend"] in ON_GPU:
        return {**point, "mode": "eager" if point["mode"] == "graph" else "graph"}
    return {**point, "backend": counterpart(point["backend"])}


def learned(point: Point) -> Arrays:
    """Return the weights that some iterations teach."""
    trainer = WatchedTrainer(point["env"], settings(point), exact=True)
    trainer.iterate_times(TWIN_ITERATIONS)
    return {"weights": trainer.weights()}


def played(point: Point) -> Arrays:
    """Return where the environments are after some rollouts, and the weights that the last one teaches."""
    trainer = player(point, exact=True)
    rollouts = plays(trainer, point["mode"])  # has played once
    for _ in range(TWIN_ITERATIONS - 1):
        rollouts.run()
    trainer.update()
    data = trainer.wrapper.cuda_data_manager
    names = [*named(data, Constants.OBSERVATIONS, Constants.ACTIONS, Constants.REWARDS), EPISODE, TIMESTEP]
    return {name: data.tensor(name).cpu() for name in names} | {"weights": trainer.weights()}


def named(data: CUDADataManager, *names: str) -> list[str]:
    """Return the arrays of these names, of each role and key of a Dict, with a row for each agent."""
    return [
        each
        for each in data.array_names()
        if any(each == name or each.startswith(f"{name}_") for name in names) and len(data.get_shape(each)) > 1
    ]


def learning_check(trainer: WatchedTrainer, compare: Comparison = lambda: (0.0, NO_TWIN)) -> Callable[[], Check]:
    """Return the check of a trainer: its weights and metrics stay finite and move, and a comparison finds no error.

    The check raises TrainingError for metrics that are not finite.
    """
    last = trainer.weights()

    def check() -> Check:
        nonlocal last
        trainer.iterate()
        trainer.log_metrics()
        before, last = last, trainer.weights()
        moved = float((last - before).abs().max())
        error, oracle = compare()
        return Check(
            passed=error == 0 and 0 < moved < float("inf"),
            max_error=error,
            oracle=oracle,
            detail=f"weights moved by up to {moved:.3g} in an iteration",
        )

    return check


def rollout_check(point: Point, trainer: WatchedTrainer, run: Callable[[], None]) -> Callable[[], Check]:
    """Return the check of a rollout: it plays all its steps to finite numbers."""
    data = trainer.wrapper.cuda_data_manager

    def check() -> Check:
        episode, timestep = (data.tensor(name).clone() for name in (EPISODE, TIMESTEP))
        for name in named(data, Constants.REWARDS):
            data.tensor(name).fill_(torch.nan)
        run()
        goes_on = data.tensor(EPISODE) == episode
        n_played = (data.tensor(TIMESTEP) - timestep)[goes_on]
        # Some episodes are over; where none goes on, each was restarted, of which the episodes' numbers tell.
        is_whole = bool((n_played == point["n_steps"]).all())
        shown = named(data, Constants.OBSERVATIONS, Constants.REWARDS)
        is_finite = are_finite(*(data.tensor(name) for name in shown))
        return Check(
            passed=is_finite and is_whole,
            max_error=0.0,
            oracle=NO_TWIN,
            detail=f"{len(n_played)} episodes took all {point['n_steps']} steps: {is_whole}; finite: {is_finite}",
        )

    return check


# ------------------------------------------------------------------ what it must cost


def least_bytes(trainer: WatchedTrainer) -> int:
    """Return bytes that an iteration must move: what the steps do, and observations written and read once.

    A policy that goes through them several times, or for the value too, reads them again. What all agents of an
    environment see counts once.
    """
    n_bytes = trainer.wrapper.env.bytes_per_step  # with the row of each agent, written once
    for group in trainer.groups.values():
        n_bytes += 4 * group.arrays.n_features * (3 * rows_seen(trainer, group) - group.arrays.n_agents)
    return int(trainer.config.trainer.train_batch_size * n_bytes)


def least_ops(trainer: WatchedTrainer, *, learns: bool = True) -> int:
    """Return multiplications with additions that an iteration must do: each weight once a row, twice more to learn.

    Gradients of what a layer is fed with, and what happens between the layers, come on top. What a first layer makes of
    what all agents of an environment see counts once.

    Args:
        trainer: The trainer.
        learns: An update follows the rollout.
    """
    total = 0
    for group in trainer.groups.values():
        arrays = group.arrays
        share = rows_seen(trainer, group) / arrays.n_agents
        weights = partial(n_weights, n_features=arrays.n_features, share=share)
        n_rows = trainer.config.trainer.train_batch_size * arrays.n_agents
        total += round(n_rows * weights(group.acting))
        if learns and group.algorithm is not None:
            total += round(2 * rows_learned(group.config, n_rows) * sum(map(weights, group.models.values())))
    return total


def rows_seen(trainer: WatchedTrainer, group: PolicyGroup) -> int:
    """Return the rows of observations of an environment that differ by more than who is oneself."""
    return group.arrays.n_agents if trainer.wrapper.env.own_columns is None else 1


def n_weights(model: torch.nn.Module, *, n_features: int = 0, share: float = 1) -> float:
    """Return how many weights of a model a row is multiplied with; those of features count for a share."""
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    return sum(weight.numel() * (share if weight.shape[1] == n_features else 1) for weight in weights)


def rows_learned(policy: PolicyConfig, n_rows: int) -> int:
    """Return how many rows go through a policy's networks in an update, of a rollout with ``n_rows``."""
    if policy.algorithm == "DDPG":
        return policy.batch_size * policy.updates_per_iteration
    return n_rows * (policy.n_epochs if policy.algorithm == "PPO" else 1)


# ------------------------------------------------------------------ points


def training_point(
    env: str,
    backend: str,
    n_envs: int,
    n_agents: int,
    n_steps: int,
    *,
    network: str = "",
    precision: str = "fp32",
    mode: str = "",
    **first: Any,
) -> dict[str, Any]:
    """Return a point of a trainer; ``algorithm`` stands before the network, and other axes behind the mode."""
    network = network or ("256-256" if env in ("tag_continuous", "covid19_economy") else "32-32")
    algorithm = {"algorithm": first.pop("algorithm")} if "algorithm" in first else {}
    how = {"network": network, "precision": precision, "mode": mode or default_mode(backend)}
    return place(env, backend, n_envs, n_agents, n_steps=n_steps, **algorithm, **how, **first)


ROLLOUT_SIZES: Final = (
    ("cartpole", 100, 1, 100),
    ("cartpole", 10_000, 1, 100),
    ("cartpole", 100_000, 1, 50),
    ("tag_gridworld", 2_000, 5, 100),
    ("tag_continuous", 100, 110, 50),
    ("tag_continuous", 2_000, 110, 50),
    ("covid19_economy", 60, 52, 90),
    ("covid19_economy", 1_000, 52, 90),
    ("rice", 1_000, 27, 20),
)
"""Environment, number of environments, agents of each, and steps, on a GPU."""
LARGEST: Final = (ROLLOUT_SIZES[2], ROLLOUT_SIZES[3], ROLLOUT_SIZES[5])


def rollout_points(preset: Preset) -> list[Point]:
    """Return CartPole on the CPU; beyond smoke also Tag Continuous there, and on a GPU three environments.

    The largest of each on `pycuda` also in other precisions and eagerly, and that of CartPole with a wider network.
    """

    def point(backend: str, size: tuple[str, int, int, int], **how: Any) -> Point:
        env, n_envs, n_agents, n_steps = size
        return training_point(env, backend, n_envs, n_agents, n_steps, **how)

    if preset == "smoke":
        return [point(backend, ("cartpole", 16, 1, 8)) for backend in ON_CPU]
    points = [point(backend, ("cartpole", n_envs, 1, 100)) for backend in ON_CPU for n_envs in (100, 1_000)]
    points += [point(backend, ("tag_continuous", 10, 110, 50)) for backend in ON_CPU]
    points += [point("pycuda", size) for size in ROLLOUT_SIZES]
    points += [point("numba", size) for size in (LARGEST if preset == "default" else ROLLOUT_SIZES)]
    hows: tuple[dict[str, str], ...] = ({"precision": "tf32"}, {"precision": "bf16"}, {"mode": "eager"})
    points += [point("pycuda", size, **how) for size in LARGEST for how in hows]
    return [*points, point("pycuda", LARGEST[0], network="256-256")]


VARIED: Final = {("cartpole", 16_384, 1, "PPO"), ("tag_continuous", 2_000, 110, "A2C")}
"""Points that presets below full show in bfloat16, without graphs, and on torch's own kernels too; and preset default
on Numba.
"""


EXACT: Final = {("cartpole", 10_000, "A2C"), ("cartpole", 16_384, "PPO"), ("pendulum", 10_000, "DDPG")}
"""Points that are trained exactly, too."""
COVID19_ENVS: Final = (60, 1_000)
"""Environments in which the COVID-19 economy is trained: as many as in the run config of its authors, and more."""
RICE_ENVS: Final = (60, 1_000, 10_000)
"""Environments in which RICE is trained."""


def train_points(preset: Preset) -> list[Point]:
    """Return a small CartPole on the CPU; from preset default on also all points that others were measured on."""

    def cartpole(backend: str, n_envs: int, n_steps: int, algorithm: str) -> Point:
        return training_point("cartpole", backend, n_envs, 1, n_steps, algorithm=algorithm)

    if preset == "smoke":
        return [cartpole("cpu", 16, 32, "A2C"), cartpole("host", 16, 32, "PPO")]
    exact_on_host = [{**cartpole("host", 1_000, 100, algorithm), "exact": True} for algorithm in ("A2C", "PPO")]
    points = [
        cartpole(backend, n_envs, 100, algorithm)
        for backend in ON_CPU
        for n_envs in (100, 1_000)
        for algorithm in ("A2C", "PPO")
    ]
    axes = [{"backend": "pycuda", **anchor.axes} for anchor in ANCHORS]
    multiplying = [each for each in axes if each["env"] == "tag_continuous" or each["algorithm"] == "PPO"]
    varied = [each for each in axes if (each["env"], each["n_envs"], each["n_agents"], each["algorithm"]) in VARIED]
    points += [training_point(**each) for each in axes]
    points += [
        training_point("covid19_economy", backend, n_envs, 52, 90, algorithm="PPO")
        for n_envs in COVID19_ENVS
        for backend in ("pycuda", "numba")
    ]
    points += [training_point("rice", "pycuda", n_envs, 27, 20, algorithm="PPO") for n_envs in RICE_ENVS]
    on_numba = varied if preset == "default" else axes
    points += [training_point(**{**each, "backend": "numba"}) for each in on_numba]
    points += [training_point(**each, precision="tf32") for each in (axes if preset == "full" else multiplying)]
    hows: tuple[dict[str, Any], ...] = ({"precision": "bf16"}, {"mode": "eager"}, {"fused": False})
    for how in hows:
        points += [training_point(**each, **how) for each in (axes if preset == "full" else varied)]
    exact = [each for each in axes if (each["env"], each["n_envs"], each["algorithm"]) in EXACT]
    return [*points, *exact_on_host, *(training_point(**each, exact=True) for each in exact)]


def train_pairs(preset: Preset) -> Pairs:
    """Return Tag Continuous in 2,000 environments over 100 (a claim of WarpDrive's), and exact training over other."""
    usual = {"env": "tag_continuous", "backend": "pycuda", "n_agents": 110, "algorithm": "A2C", "precision": "fp32"}
    points = train_points(preset)
    sizes = [point for point in points if usual.items() <= point.items() and "fused" not in point]
    exact = [point for point in points if "exact" in point]
    return [
        *pairs_over([point for point in sizes if point["mode"] == "graph"], "n_envs", 100, ignored=["n_steps"]),
        *(({axis: value for axis, value in point.items() if axis != "exact"}, point) for point in exact),
    ]


# ------------------------------------------------------------------ cases

ROLLOUT: Final = compared(
    name="rollout",
    title="let the policies play and keep what could be learned from",
    scope="rollout",
    points=rollout_points,
    setup=rollout,
    over=("backend", "cpu"),
)
TRAIN: Final = Case(
    name="train",
    title="play a rollout of the policies and learn from it",
    scope="train",
    workload=Timed,
    points=train_points,
    setup=train,
    pairs=train_pairs,
)
