"""Iterations of trainers: timing, minimum cost, and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from warpdrive_min import CUDADataManager
from warpdrive_min.agreement.compare import Arrays, errors
from warpdrive_min.constants import EPISODE, TIMESTEP, Constants
from warpdrive_min.training.config import PolicyConfig
from warpdrive_min.training.loop.policies import PolicyGroup

from ...core.measure import Timed
from ...core.point import Check, Point
from ..shared import ON_GPU, steps_of
from .timing import Repeated, are_finite, counterpart, repeated, timed
from .trainers import WatchedTrainer, fixed_policy_trainer, n_weights, settings


def iterations(
    point: Point,
    trainer: WatchedTrainer,
    repeats: Repeated,
    check: Callable[[], Check],
    reference_run: Callable[[], Check],
    notes: Mapping[str, Any],
    *,
    learns: bool = True,
) -> Timed:
    """Return the timing of a trainer's iterations, or of their rollouts only."""
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
        reference_run=reference_run,
    )


def rollout_run(trainer: WatchedTrainer, mode: Any) -> Repeated:
    """Return one rollout of a trainer as a run."""
    return repeated(trainer.wrapper.backend, trainer.collect, mode, n=1)


# ------------------------------------------------------------------ checks

TWIN_ENVS: Final = 8
TWIN_STEPS: Final = 16
TWIN_ITERATIONS: Final = 3
"""Iterations of a small run: one eager, one captured, one replayed."""
Comparison = Callable[[], tuple[float, str]]
"""Returns the error of two bit-identical runs, and a description."""
NO_TWIN: Final = "none before the timing, which another trainer would slow down"
"""Reference's name in a check without a reference run."""


def reference_run_check(point: Point, run: Callable[[Point], Arrays]) -> Callable[[], Check]:
    """Return the check of a small run against a reference run.

    Args:
        point: The point; its sizes are reduced.
        run: Plays and learns, `TWIN_ITERATIONS` times; returns the resulting arrays.
    """

    def check() -> Check:
        small = {**point, "n_envs": TWIN_ENVS, "n_steps": min(TWIN_STEPS, point["n_steps"])}
        reference_run = reference_point(small)
        which = f"{reference_run['backend']}, {reference_run['mode']}, exact floats"
        error = max(errors(run(reference_run), run(small)).values())
        oracle = f"{TWIN_ITERATIONS} iterations of {TWIN_ENVS} environments against {which}: to the bit"
        return Check.within(error, 0, oracle)

    return check


def reference_point(point: Point) -> Point:
    """Return the point with equal results: other mode (GPU) or backend.

    Exact training must give the same on a CPU as on a GPU, and the same again there.

    Raises:
        Skip: That backend cannot run here.
    """
    if point.get("exact"):
        return {**point, "backend": "host", "mode": "eager"}
    if point["backend"] in ON_GPU:
        return {**point, "mode": "eager" if point["mode"] == "graph" else "graph"}
    return {**point, "backend": counterpart(point["backend"])}


def weights_after_training(point: Point) -> Arrays:
    """Return the weights after some training iterations."""
    trainer = WatchedTrainer(point["env"], settings(point), exact=True)
    trainer.iterate_times(TWIN_ITERATIONS)
    return {"weights": trainer.weights()}


def arrays_after_rollouts(point: Point) -> Arrays:
    """Return environments after some rollouts, and the weights after an update."""
    trainer = fixed_policy_trainer(point, exact=True)
    rollouts = rollout_run(trainer, point["mode"])  # plays one rollout already
    for _ in range(TWIN_ITERATIONS - 1):
        rollouts.run()
    trainer.update()
    data = trainer.wrapper.cuda_data_manager
    names = [*named(data, Constants.OBSERVATIONS, Constants.ACTIONS, Constants.REWARDS), EPISODE, TIMESTEP]
    return {name: data.tensor(name).cpu() for name in names} | {"weights": trainer.weights()}


def named(data: CUDADataManager, *names: str) -> list[str]:
    """Return the names of arrays for all roles and Dict keys."""
    return [
        each
        for each in data.array_names()
        if any(each == name or each.startswith(f"{name}_") for name in names) and len(data.get_shape(each)) > 1
    ]


def learning_check(trainer: WatchedTrainer, compare: Comparison = lambda: (0.0, NO_TWIN)) -> Callable[[], Check]:
    """Return the check that weights move, are finite, and pass a comparison.

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
    """Return the check that a rollout completes with finite numbers."""
    data = trainer.wrapper.cuda_data_manager

    def check() -> Check:
        episode, timestep = (data.tensor(name).clone() for name in (EPISODE, TIMESTEP))
        for name in named(data, Constants.REWARDS):
            data.tensor(name).fill_(torch.nan)
        run()
        goes_on = data.tensor(EPISODE) == episode
        n_played = (data.tensor(TIMESTEP) - timestep)[goes_on]
        # Some episodes are over. If none continues, each was restarted, which the episode numbers show.
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


# ------------------------------------------------------------------ minimum cost


def least_bytes(trainer: WatchedTrainer) -> int:
    """Return the minimum bytes of an iteration: steps, and observations once.

    A policy that reads observations several times, or for the value too, needs more. Observations shared by all agents
    of an environment count once.
    """
    n_bytes = trainer.wrapper.env.bytes_per_step  # includes each agent's row, written once
    for group in trainer.groups.values():
        n_bytes += 4 * group.arrays.n_features * (3 * rows_seen(trainer, group) - group.arrays.n_agents)
    return int(trainer.config.trainer.train_batch_size * n_bytes)


def least_ops(trainer: WatchedTrainer, *, learns: bool = True) -> int:
    """Return the minimum multiply-adds of an iteration.

    Gradients of a layer's inputs and operations between layers are not included. For observations shared by all agents
    of an environment, the first layer counts once.

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
    """Return the observation rows that differ beyond the agent's id."""
    return group.arrays.n_agents if trainer.wrapper.env.own_columns is None else 1


def rows_learned(policy: PolicyConfig, n_rows: int) -> int:
    """Return the rows that an update passes through its networks."""
    if policy.algorithm == "DDPG":
        return policy.batch_size * policy.updates_per_iteration
    return n_rows * (policy.n_epochs if policy.algorithm == "PPO" else 1)
