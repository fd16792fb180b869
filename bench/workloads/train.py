"""Rollouts and training, as a user runs them: `rollout`, `train`."""

from __future__ import annotations

from typing import Any, Final

from ..core.case import Pairs, pairs_differing_in
from ..core.measure import Timed
from ..core.point import ON_CPU, Point, Preset
from ..judge.published.anchors import ANCHORS
from .shared import SIZES, training_point

# ------------------------------------------------------------------ points


def rollout_points(preset: Preset) -> list[Point]:
    """Return CartPole on the CPU; beyond smoke all sizes on a GPU.

    The largest size of each on `pycuda` is also measured in other precisions and eagerly, and CartPole's with a wider
    network.
    """

    def point(backend: str, size: tuple[str, int, int, int], **how: Any) -> Point:
        env, n_envs, n_agents, n_steps = size
        return training_point(env, backend, n_envs, n_agents, n_steps, **how)

    if preset == "smoke":
        return [point(backend, ("cartpole", 16, 1, 8)) for backend in ON_CPU]
    points = [point(backend, ("cartpole", n_envs, 1, 100)) for backend in ON_CPU for n_envs in (100, 1_000)]
    points += [point(backend, ("tag_continuous", 10, 110, 50)) for backend in ON_CPU]
    rollouts, largest = SIZES["rollouts"], SIZES["largest_rollouts"]
    points += [point("pycuda", size) for size in rollouts]
    points += [point("numba", size) for size in (largest if preset == "default" else rollouts)]
    hows: tuple[dict[str, str], ...] = ({"precision": "tf32"}, {"precision": "bf16"}, {"mode": "eager"})
    points += [point("pycuda", size, **how) for size in largest for how in hows]
    return [*points, point("pycuda", largest[0], network="256-256")]


VARIED: Final = {("cartpole", 16_384, 1, "PPO"), ("tag_continuous", 2_000, 110, "A2C")}
"""Points also measured in bfloat16, without graphs and on torch's own kernels.

This holds below preset full. In preset default only these run on Numba."""
EXACT: Final = {("cartpole", 10_000, "A2C"), ("cartpole", 16_384, "PPO"), ("pendulum", 10_000, "DDPG")}
"""Points that are also trained with exact floats."""
COVID19_ENVS: Final = (60, 1_000)
"""Environments of the COVID-19 economy: its authors' run config, and more."""
RICE_ENVS: Final = (60, 1_000, 10_000)
"""Environments of RICE."""
GATED: Final = "GRU 64"
"""Network with gated units, which learn from whole rollouts."""


def train_points(preset: Preset) -> list[Point]:
    """Return CartPole on the CPU; beyond smoke all published points."""

    def cartpole(backend: str, n_envs: int, n_steps: int, algorithm: str) -> Point:
        return training_point("cartpole", backend, n_envs, 1, n_steps, algorithm=algorithm)

    if preset == "smoke":
        gated = training_point("cartpole", "host", 16, 1, 8, algorithm="A2C", network=GATED)
        return [cartpole("cpu", 16, 32, "A2C"), cartpole("host", 16, 32, "PPO"), gated]
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
    points += [
        training_point("cartpole", "pycuda", 16_384, 1, 64, algorithm="PPO", network=GATED, precision=precision)
        for precision in ("fp32", "tf32")
    ]
    exact = [each for each in axes if (each["env"], each["n_envs"], each["algorithm"]) in EXACT]
    return [*points, *exact_on_host, *(training_point(**each, exact=True) for each in exact)]


def train_pairs(preset: Preset) -> Pairs:
    """Return Tag Continuous in many over few environments, and exact training."""
    usual = {"env": "tag_continuous", "backend": "pycuda", "n_agents": 110, "algorithm": "A2C", "precision": "fp32"}
    points = train_points(preset)
    sizes = [point for point in points if usual.items() <= point.items() and "fused" not in point]
    exact = [point for point in points if "exact" in point]
    return [
        *pairs_differing_in([point for point in sizes if point["mode"] == "graph"], "n_envs", 100, ignored=["n_steps"]),
        *(({axis: value for axis, value in point.items() if axis != "exact"}, point) for point in exact),
    ]


# ------------------------------------------------------------------ set-up


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
