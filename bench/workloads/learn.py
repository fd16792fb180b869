"""Training from a seed to a threshold or to the end: `learn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ..core.case import Case
from ..core.measure import Once
from ..core.point import ON_CPU, Facts, Point, Preset
from ..judge.anchors import ANCHORS
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


TASKS: Final = (
    Task(env="cartpole", algorithm="A2C", threshold=475.0),
    Task(env="cartpole", algorithm="PPO", threshold=475.0),
    Task(env="acrobot", algorithm="PPO", threshold=-100.0),
    Task(env="mountain_car", algorithm="PPO", threshold=-115.0),
    Task(env="continuous_mountain_car", algorithm="DDPG", threshold=90.0),
    Task(env="pendulum", algorithm="PPO", threshold=-165.0),
    Task(env="pendulum", algorithm="DDPG", threshold=-165.0),
    Task(env="tag_gridworld", algorithm="A2C", learner="tagger", threshold=35.0),
    Task(env="tag_gridworld", algorithm="A2C", learner="runner", threshold=0.8),
    Task(env="tag_gridworld", algorithm="PPO", learner="tagger", threshold=35.0),
    Task(env="tag_gridworld", algorithm="PPO", learner="runner", threshold=0.8),
    Task(env="tag_continuous", algorithm="A2C", learner="tagger", threshold=45.0),
    Task(env="tag_continuous", algorithm="A2C", learner="runner", threshold=-25.0),
    Task(env="tag_continuous", algorithm="PPO", learner="tagger", threshold=50.0),
    Task(env="tag_continuous", algorithm="PPO", learner="runner", threshold=-20.0),
)
"""Tasks with their thresholds.

From Gymnasium where it has one (CartPole-v1, Acrobot-v1, MountainCarContinuous-v0). MountainCar: five below its -110,
because the policy still explores. Pendulum: within 10 % of the -152 of RL Baselines3 Zoo's tuned DDPG without noise.
Tag: well beyond random play, see `return_before`."""
WHOLE_TASKS: Final = (
    *(task for task in TASKS if task.learner == "shared"),
    Task(env="tag_gridworld", algorithm="A2C", learner="tagger", threshold=15.0),
    Task(env="tag_gridworld", algorithm="PPO", learner="tagger", threshold=30.0),
    Task(env="tag_continuous", algorithm="A2C", learner="tagger", threshold=40.0),
    Task(env="tag_continuous", algorithm="PPO", learner="tagger", threshold=45.0),
    Task(env="covid19_economy", algorithm="A2C", learner="government", threshold=400.0),
    Task(env="covid19_economy", algorithm="PPO", learner="government", threshold=420.0),
    Task(env="rice", algorithm="A2C", threshold=215.0),
    Task(env="rice", algorithm="PPO", threshold=220.0),
)
"""Tasks of runs to the end: every run config.

In Tag both kinds of agents train, and the taggers are evaluated. Random taggers reach 5.6 and 36.8, and a trained
return falls again while the runners learn to escape. So with A2C the threshold of Tag Continuous is just above every
random seed (39.6 at most). The COVID-19 economy is judged by the nation's welfare, which the governors determine: about
360 at random, 448 at constant level 7. RICE is judged by the utility of all regions: 191 at random, 226 at the best
constant rates."""


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
        return [task_point(task, backend, SEEDS[0]) for backend in (*ON_CPU, *ON_GPU)]
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


# ------------------------------------------------------------------ case

LEARN: Final = Case(
    name="learn",
    title="train from a seed until the mean return reaches a threshold",
    scope="learn",
    workload=Once,
    points=learn_points,
    setup=learn,
)
