"""Training from a seed to a threshold or to the end: `learn`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..core.archive import read_toml
from ..core.measure import Once
from ..core.point import ON_CPU, Facts, Point, Preset
from ..judge.published.anchors import ANCHORS
from .shared import ON_GPU, UNTIL_END, default_mode, shipped_envs

# ------------------------------------------------------------------ tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Training task."""

    env: str
    algorithm: str
    threshold: float
    """Mean episodic return that counts as learned."""
    learner: str = "shared"
    """Policy that is evaluated.

    It is trained until it reaches the threshold; other policies stay at their initial weights, close to uniformly
    random. In a run to the end, all policies train that the run config names."""

    @property
    def n_envs(self) -> int:
        """Environments of the shipped run config."""
        return shipped_envs(self.env, self.algorithm)


_TASKS: Final = read_toml(Path(__file__).with_name("tasks.toml"))
TASKS: Final = [Task(**each) for each in _TASKS["to_threshold"]]
"""Tasks of runs that stop at the threshold."""
WHOLE_TASKS: Final = [
    *(task for task in TASKS if task.learner == "shared"),
    *(Task(**each) for each in _TASKS["to_end"]),
]
"""Tasks of runs to the end: every run config."""


# ------------------------------------------------------------------ points

SEEDS: Final = range(5)
"""Seeds of runs that stop at the threshold."""
WHOLE_SEEDS: Final = range(20)
"""Seeds of runs to the end of the run config."""
POPULATIONS: Final = (256, 1_024)
"""Members of populations of CartPole on a GPU."""
MANY_ENVS: Final = 2_048
MORE_ENVS: Final = {"A2C": (16_384,), "PPO": (16_384, 65_536)}
"""Numbers of environments of CartPole on a GPU.

Those of PPO match PureJaxRL's measurements, whose products are in TF32 there."""


def learn_points(preset: Preset) -> list[Point]:
    """Return CartPole from one seed; in preset full all tasks and seeds.

    On `pycuda` each task is also trained in the precisions in which its training is timed, so that each speed has a
    curve. All tasks take an hour on a CPU. NumPy trains CartPole only. Points with thousands of environments and runs
    to the end are for a GPU.
    """
    if preset == "smoke":
        easy = Task(env="cartpole", algorithm="PPO", threshold=40.0)
        return [task_point(easy, backend, 0) for backend in ON_CPU]
    if preset == "default":
        (task,) = (task for task in TASKS if (task.env, task.algorithm) == ("cartpole", "PPO"))
        members = task_point(task, "pycuda", SEEDS[0]) | {"population": POPULATIONS[0]}
        return [*(task_point(task, backend, SEEDS[0]) for backend in (*ON_CPU, *ON_GPU)), members]
    points = [task_point(task, backend, seed) for task in TASKS for backend in ("host", *ON_GPU) for seed in SEEDS]
    cartpole = [task for task in TASKS if task.env == "cartpole"]
    points += [task_point(task, "cpu", seed) for task in cartpole for seed in SEEDS]
    many: list[tuple[Task, int, dict[str, str]]] = [
        (task, n_envs, precision)
        for task in cartpole
        for n_envs in (MANY_ENVS, *MORE_ENVS[task.algorithm])
        for precision in ({}, {"precision": "tf32"})
    ]
    many += [(task, MANY_ENVS, {}) for task in TASKS if task.env == "acrobot"]
    points += [
        task_point(task, "pycuda", seed) | {"precision": precision}
        for precision in ("tf32", "bf16")
        for env in dict.fromkeys(anchor.env for anchor in ANCHORS)
        for task in TASKS
        for seed in SEEDS
        if task.env == env
    ]
    points += [task_point(task, "pycuda", seed) | UNTIL_END for task in WHOLE_TASKS for seed in WHOLE_SEEDS]
    points += [
        task_point(task, "pycuda", SEEDS[0]) | {"population": size} | precision
        for task in cartpole
        for size in POPULATIONS
        for precision in ({}, {"precision": "tf32"})
    ]
    return points + [
        task_point(task, backend, seed, n_envs) | precision
        for task, n_envs, precision in many
        for backend in ON_GPU
        for seed in SEEDS
    ]


def task_point(task: Task, backend: str, seed: int, n_envs: int | None = None) -> dict[str, Any]:
    """Return a task's point, by default with its run config's environments."""
    return {
        "env": task.env,
        "backend": backend,
        "n_envs": n_envs or task.n_envs,
        "algorithm": task.algorithm,
        "learner": task.learner,
        "threshold": task.threshold,
        "seed": seed,
    }


# ------------------------------------------------------------------ set-up


def learn(point: Point) -> Once:
    """Train until the policy reaches the threshold, or to the end."""
    from .setups.learning import learning_of_members, learning_of_policies
    from .setups.timing import available, torch_threads

    backend = available(point["backend"])
    run, check = (learning_of_members if "population" in point else learning_of_policies)(point)
    return Once(
        run=run,
        check=check,
        facts=Facts(mode=default_mode(backend.name), device=backend.device, threads=torch_threads(backend)),
    )
