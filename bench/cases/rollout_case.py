"""The case `rollout`: policies that play, without learning from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from bench.case import Check, Facts, Point, Preset
from bench.cases import train_case as train
from bench.cases.environments import ON_CPU, ON_GPU, available
from bench.cases.repeats import repeated
from bench.cases.training import WatchedTrainer, after_the_timing, counterpart, cpu_threads
from bench.measure import Timed
from warpdrive_min.constants import EPISODE, TIMESTEP, Constants

PLAYED: Final = 3
"""Rollouts of a twin: the first is eager everywhere, the second is captured, the third is a replay."""


def rollout(point: Point) -> Timed:
    """Let the policies play every step of a rollout and keep what could be learned from, in one graph or eagerly."""
    backend = available(point["backend"])
    trainer = player(point)
    plays = repeated(backend, trainer.collect, point["mode"], n=1)
    env_steps = trainer.config.trainer.train_batch_size
    return Timed(
        run=plays.run,
        synchronize=backend.synchronize,
        check=checks(point, trainer, plays.run),
        facts=Facts(
            mode=plays.mode,
            device=backend.device,
            threads=cpu_threads(trainer),
            work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
            bytes_per_run=train.least_bytes(trainer),
            ops_per_run=least_ops(trainer) if point["precision"] == "fp32" else 0,
            notes={"steps_per_run": point["n_steps"]},
        ),
    )


def player(point: Point, *, exact: bool = False) -> WatchedTrainer:
    """Return the trainer of a point, whose rollout is its own and whose policies are as they start."""
    return WatchedTrainer(point["env"], train.settings({**point, "algorithm": "A2C"}), exact=exact)


def checks(point: Point, trainer: WatchedTrainer, run: Callable[[], None]) -> Callable[[], Check]:
    """Return the check of a point: a run plays all its steps, and a small twin plays and learns the same to the bit."""
    data = trainer.wrapper.cuda_data_manager
    compared = after_the_timing(lambda: twins(point))

    def check() -> Check:
        episode, timestep = (data.tensor(name).clone() for name in (EPISODE, TIMESTEP))
        data.tensor(Constants.REWARDS).fill_(torch.nan)
        run()
        goes_on = data.tensor(EPISODE) == episode
        n_played = (data.tensor(TIMESTEP) - timestep)[goes_on]
        # Some episodes are over; where none goes on, each was restarted, of which the episodes' numbers tell.
        is_whole = bool((n_played == point["n_steps"]).all())
        is_finite = all(
            bool(torch.isfinite(data.tensor(name).sum())) for name in (Constants.OBSERVATIONS, Constants.REWARDS)
        )
        error, oracle = compared()
        return Check(
            passed=is_finite and is_whole and error == 0,
            max_error=error,
            oracle=oracle,
            detail=f"{len(n_played)} episodes took all {point['n_steps']} steps: {is_whole}; finite: {is_finite}",
        )

    return check


def twins(point: Point) -> tuple[float, str]:
    """Return how far two small rollouts differ that must be the same to the bit, and what they are.

    On a GPU one is replayed from a graph and one is not; on a CPU one has its environments on another backend.

    Raises:
        Skip: That backend cannot run here.
    """
    small = {**point, "n_envs": train.TWIN_ENVS, "n_steps": min(train.TWIN_STEPS, point["n_steps"])}
    if point["backend"] in ON_GPU:
        other = {**small, "mode": "eager" if point["mode"] == "graph" else "graph"}
    else:
        other = {**small, "backend": counterpart(point["backend"])}
    one, two = _played(small), _played(other)
    error = max(float((one[name].double() - two[name].double()).abs().max()) for name in one)
    which = f"{other['backend']}, {other['mode']}, exact floats"
    return error, f"{PLAYED} rollouts of {train.TWIN_ENVS} environments and an update, against {which}: to the bit"


def _played(point: Point) -> dict[str, torch.Tensor]:
    """Return where the environments are after some rollouts, and the weights that the last one teaches."""
    trainer = player(point, exact=True)
    plays = repeated(trainer.wrapper.backend, trainer.collect, point["mode"], n=1)
    for _ in range(PLAYED - 1):
        plays.run()
    trainer.update()
    data = trainer.wrapper.cuda_data_manager
    names = (Constants.OBSERVATIONS, Constants.ACTIONS, Constants.REWARDS, EPISODE, TIMESTEP)
    return {name: data.tensor(name).cpu() for name in names} | {"weights": trainer.weights()}


def least_ops(trainer: WatchedTrainer) -> int:
    """Return multiplications with additions that a rollout must do: each weight of who acts once a row."""
    batch_size = trainer.config.trainer.train_batch_size
    total = 0
    for group in trainer.groups.values():
        weights = sum(weight.numel() for weight in group.acting.parameters() if weight.dim() > 1)
        total += batch_size * group.arrays.n_agents * weights
    return total


# ------------------------------------------------------------------ points


def rollout_points(preset: Preset) -> list[Point]:
    """Return CartPole on the CPU; beyond smoke also Tag Continuous there, and on a GPU three environments.

    The largest of each on `pycuda` also in other precisions and eagerly, and that of CartPole with a wider network.
    """
    if preset == "smoke":
        return [_point(backend, "cartpole", 16, 1, 8) for backend in ON_CPU]
    points = [_point(backend, "cartpole", n_envs, 1, 100) for backend in ON_CPU for n_envs in (100, 1_000)]
    points += [_point(backend, "tag_continuous", 10, 110, 50) for backend in ON_CPU]
    points += [_point(backend, *sizes) for sizes in SIZES for backend in ON_GPU]
    for sizes in LARGEST:
        points += [_point("pycuda", *sizes, precision=precision) for precision in ("tf32", "bf16")]
        points.append(_point("pycuda", *sizes, mode="eager"))
    return [*points, _point("pycuda", *LARGEST[0], network="256-256")]


SIZES: Final = (
    ("cartpole", 100, 1, 100),
    ("cartpole", 10_000, 1, 100),
    ("cartpole", 100_000, 1, 50),
    ("tag_gridworld", 2_000, 5, 100),
    ("tag_continuous", 100, 110, 50),
    ("tag_continuous", 2_000, 110, 50),
)
"""On a GPU: environment, number of environments, agents of each, steps."""
LARGEST: Final = (SIZES[2], SIZES[3], SIZES[5])


def _point(
    backend: str,
    env: str,
    n_envs: int,
    n_agents: int,
    n_steps: int,
    network: str = "",
    precision: str = "fp32",
    mode: str = "",
) -> dict[str, Any]:
    return {
        "env": env,
        "backend": backend,
        "n_envs": n_envs,
        "n_agents": n_agents,
        "n_steps": n_steps,
        "network": network or ("256-256" if env == "tag_continuous" else "32-32"),
        "precision": precision,
        "mode": mode or ("graph" if backend in ON_GPU else "eager"),
    }
