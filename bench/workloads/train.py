"""Rollouts and training, as a user runs them: `rollout`, `train`."""

from __future__ import annotations

from ..core.measure import Timed
from ..core.point import Point


def rollout(point: Point) -> Timed:
    """Play a rollout and keep its data, in a graph or eagerly."""
    from .setups.iterations import arrays_after_rollouts, iterations, reference_run_check, rollout_check, rollout_run
    from .setups.timing import available
    from .setups.trainers import fixed_policy_trainer

    available(point["backend"])
    trainer = fixed_policy_trainer(point)
    rollouts = rollout_run(trainer, point["mode"])
    check, reference_run = (
        rollout_check(point, trainer, rollouts.run),
        reference_run_check(point, arrays_after_rollouts),
    )
    return iterations(point, trainer, rollouts, check, reference_run, {"steps_per_run": point["n_steps"]}, learns=False)


def train(point: Point) -> Timed:
    """Play a rollout and train on it, in graphs or eagerly."""
    import torch

    from .setups.iterations import iterations, learning_check, reference_run_check, weights_after_training
    from .setups.timing import Repeated, available
    from .setups.trainers import WatchedTrainer, settings

    backend = available(point["backend"])
    on_gpu = backend.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = WatchedTrainer(point["env"], settings(point))
    notes = trainer.split()
    if on_gpu:
        notes["peak_bytes"] = torch.cuda.max_memory_allocated()
    iterates = Repeated(trainer.iterate, 1, point["mode"])
    return iterations(
        point, trainer, iterates, learning_check(trainer), reference_run_check(point, weights_after_training), notes
    )
