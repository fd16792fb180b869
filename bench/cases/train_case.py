"""The case `train`: whole iterations of the trainer, as a user runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from bench.anchors import ANCHORS, SEPARATE
from bench.case import Check, Facts, Point, Preset
from bench.cases.environments import ON_CPU, ON_GPU, SEED, available, env_config
from bench.cases.training import Settings, WatchedTrainer, after_the_timing, counterpart, cpu_threads, shipped
from bench.measure import Timed
from warpdrive_min.training.config import PolicyConfig

NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "32-32": {"fc_dims": [32, 32]},
    "64-64": {"fc_dims": [64, 64]},
    "256-256": {"fc_dims": [256, 256]},
    SEPARATE: {"fc_dims": [64, 64], "activation": "tanh", "shared": False, "init_method": "orthogonal"},
}
"""Keys of the networks by their name on the axis; what they leave out is as in the run config."""
SPLIT_OVER: Final = 3
"""Iterations from which the shares of rollout and update are taken."""
TWIN_ENVS: Final = 8
TWIN_STEPS: Final = 16
TWIN_ITERATIONS: Final = 3
"""The first is eager everywhere, the second is captured, the third is a replay."""


def train(point: Point) -> Timed:
    """Play a rollout and learn from it, in one CUDA graph each or eagerly."""
    backend = available(point["backend"])
    on_gpu = backend.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = WatchedTrainer(point["env"], settings(point))
    iterate(trainer, 2)  # both phases have run eagerly, and are captured
    trainer.log_metrics()
    iterate(trainer, SPLIT_OVER)
    row = trainer.log_metrics()
    notes = {name: row[name] / SPLIT_OVER for name in ("rollout_s", "update_s")} | {"capture_s": trainer.capture_s}
    if on_gpu:
        notes["peak_bytes"] = torch.cuda.max_memory_allocated()
    env_steps = trainer.config.trainer.train_batch_size
    return Timed(
        run=trainer.iterate,
        synchronize=backend.synchronize,
        check=checks(point, trainer),
        facts=Facts(
            mode=point["mode"],
            device=backend.device,
            threads=cpu_threads(trainer),
            work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
            bytes_per_run=least_bytes(trainer),
            ops_per_run=least_ops(trainer) if point["precision"] == "fp32" else 0,
            notes=notes,
        ),
    )


def iterate(trainer: WatchedTrainer, n_iterations: int) -> None:
    """Play and learn some times; enqueues."""
    for _ in range(n_iterations):
        trainer.iterate()


def settings(point: Point) -> Settings:
    """Return the run of a point: the shipped one of its environment and algorithm, in other sizes."""
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
    }
    for policy in changed["policy"].values():
        policy["algorithm"] = point["algorithm"]
        if point["algorithm"] == "DDPG":  # learns from as many rows as it played, which is what WarpDrive does
            policy["batch_size"] = point["n_envs"] * point["n_steps"] * point["n_agents"]
        for network in networks(policy):
            network |= NETWORKS[point["network"]]
            if "fused" in point:
                network["fused"] = point["fused"]
    return changed


def networks(policy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sections of a policy's networks."""
    model = policy["model"]
    return [model["actor"], model["critic"]] if "actor" in model else [model]


# ------------------------------------------------------------------ what proves it right


def checks(point: Point, trainer: WatchedTrainer) -> Callable[[], Check]:
    """Return the check of a point: its weights and metrics stay finite and move, and small twins learn as they should.

    The check raises TrainingError for metrics that are not finite.
    """
    last = trainer.weights()
    compared = after_the_timing(lambda: twins(point))

    def check() -> Check:
        nonlocal last
        trainer.iterate()
        trainer.log_metrics()
        before, last = last, trainer.weights()
        moved = float((last - before).abs().max())
        error, oracle = compared()
        return Check(
            passed=error == 0 and 0 < moved < float("inf"),
            max_error=error,
            oracle=oracle,
            detail=f"weights moved by up to {moved:.3g} in an iteration",
        )

    return check


def twins(point: Point) -> tuple[float, str]:
    """Return how far the weights of two small runs differ that must be the same to the bit, and what they are.

    On a GPU one is replayed from graphs and one is not; on a CPU one has its environments on another backend.

    Raises:
        Skip: That backend cannot run here.
    """
    small = {**point, "n_envs": TWIN_ENVS, "n_steps": min(TWIN_STEPS, point["n_steps"])}
    if point["backend"] in ON_GPU:
        other = {**small, "mode": "eager" if point["mode"] == "graph" else "graph"}
    else:
        other = {**small, "backend": counterpart(point["backend"])}
    error = float((_learned(small) - _learned(other)).abs().max())
    which = f"{other['backend']}, {other['mode']}, exact floats"
    return error, f"{TWIN_ITERATIONS} iterations of {TWIN_ENVS} environments against {which}: the weights to the bit"


def _learned(point: Point) -> torch.Tensor:
    trainer = WatchedTrainer(point["env"], settings(point), exact=True)
    iterate(trainer, TWIN_ITERATIONS)
    return trainer.weights()


# ------------------------------------------------------------------ what it must cost


def least_bytes(trainer: WatchedTrainer) -> int:
    """Return bytes that an iteration must move: what the steps do, and observations written and read once.

    A policy that goes through them several times, or for the value too, reads them again.
    """
    wrapper, batch_size = trainer.wrapper, trainer.config.trainer.train_batch_size
    observed = sum(group.arrays.n_agents * group.arrays.n_features * 4 * 2 for group in trainer.groups.values())
    return int(batch_size * (wrapper.env.bytes_per_step + observed))


def least_ops(trainer: WatchedTrainer) -> int:
    """Return multiplications with additions that an iteration must do: each weight once a row, twice more to learn.

    Gradients of what a layer is fed with, and what happens between the layers, come on top.
    """
    total = 0
    batch_size = trainer.config.trainer.train_batch_size
    for group in trainer.groups.values():
        n_rows = batch_size * group.arrays.n_agents
        weights = {
            name: sum(w.numel() for w in model.parameters() if w.dim() > 1) for name, model in group.models.items()
        }
        total += n_rows * weights.get("actor", weights.get("model", 0))
        if group.algorithm is not None:
            total += 2 * rows_learned(group.config, n_rows) * sum(weights.values())
    return total


def rows_learned(policy: PolicyConfig, n_rows: int) -> int:
    """Return how many rows go through a policy's networks in an update, of a rollout with ``n_rows``."""
    if policy.algorithm == "DDPG":
        return policy.batch_size * policy.updates_per_iteration
    return n_rows * (policy.n_epochs if policy.algorithm == "PPO" else 1)


# ------------------------------------------------------------------ points


def train_points(preset: Preset) -> list[Point]:
    """Return a small CartPole on the CPU; from preset default on also all points that others were measured on."""
    if preset == "smoke":
        return [
            _point(backend, n_envs=16, n_steps=32, algorithm=name)
            for backend, name in zip(ON_CPU, ("A2C", "PPO"), strict=True)
        ]
    points: list[Point] = [
        _point(backend, n_envs=n_envs, n_steps=100, algorithm=name)
        for backend in ON_CPU
        for n_envs in (100, 1_000)
        for name in ("A2C", "PPO")
    ]
    on_gpu = [{"backend": backend, **each.axes} for each in ANCHORS for backend in ON_GPU]
    points += [_point(**axes) for axes in on_gpu]
    fastest = [axes for axes in on_gpu if axes["backend"] == "pycuda"]
    points += [_point(**axes, precision="tf32") for axes in fastest if _multiplies(axes) or preset == "full"]
    largest = [axes for axes in fastest if _key(axes) in VARIED or preset == "full"]
    points += [_point(**axes, precision="bf16") for axes in largest]
    points += [_point(**axes, mode="eager") for axes in largest]
    points += [_point(**axes, fused=False) for axes in largest]
    return points


VARIED: Final = {("cartpole", 16_384, "PPO"), ("tag_continuous", 2_000, "A2C")}
"""Points that presets below full show in bfloat16, without graphs, and on torch's own kernels too."""


def _multiplies(axes: Mapping[str, Any]) -> bool:
    """Return whether a point spends most of its time on matrices, so that their precision counts."""
    return bool(axes["env"] == "tag_continuous" or axes["algorithm"] == "PPO")


def _key(axes: Mapping[str, Any]) -> tuple[str, int, str]:
    return axes["env"], axes["n_envs"], axes["algorithm"]


def _point(
    backend: str,
    *,
    env: str = "cartpole",
    n_envs: int,
    n_agents: int = 1,
    n_steps: int,
    algorithm: str,
    network: str = "32-32",
    precision: str = "fp32",
    mode: str = "",
    **more: int,
) -> dict[str, Any]:
    return {
        "env": env,
        "backend": backend,
        "n_envs": n_envs,
        "n_agents": n_agents,
        "n_steps": n_steps,
        "algorithm": algorithm,
        "network": network,
        "precision": precision,
        "mode": mode or ("graph" if backend in ON_GPU else "eager"),
        **more,
    }
