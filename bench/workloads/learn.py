"""Training from a seed until the policy is good enough, and its learning curve: `learn`."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.case import Case, Check, Facts, Point, Preset
from bench.measure import Once
from bench.record import Curve, Measurement, Metric
from bench.workloads.shared import ON_CPU, ON_GPU, available, counterpart, default_mode, torch_threads
from bench.workloads.train import Settings, WatchedTrainer, shipped
from warpdrive_min import EnvWrapper
from warpdrive_min.training import evaluation
from warpdrive_min.training.metrics import Row

SEEDS: Final = range(5)
EVALUATED: Final = 100
"""Episodes that the policy is judged by before and after."""
CHECKED: Final = 20
"""Episodes that are played on another backend too."""
CHECKED_ERRORS: Final = 4
"""Standard errors by which their mean returns may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Task that is learned."""

    env: str
    algorithm: str
    threshold: float
    """Mean episodic return that counts as learned."""
    learner: str = "shared"
    """Policy that learns; others play as they are at the start, which is close to uniformly at random."""

    @property
    def n_envs(self) -> int:
        """Environments of the shipped run config."""
        return shipped(self.env, f"_{self.algorithm.lower()}").trainer.num_envs


TASKS: Final = (
    Task(env="cartpole", algorithm="A2C", threshold=475.0),
    Task(env="cartpole", algorithm="PPO", threshold=475.0),
    Task(env="acrobot", algorithm="PPO", threshold=-100.0),
    Task(env="mountain_car", algorithm="PPO", threshold=-115.0),
    Task(env="continuous_mountain_car", algorithm="DDPG", threshold=90.0),
    Task(env="pendulum", algorithm="PPO", threshold=-165.0),
    Task(env="pendulum", algorithm="DDPG", threshold=-165.0),
    Task(env="tag_gridworld", algorithm="PPO", learner="tagger", threshold=35.0),
    Task(env="tag_gridworld", algorithm="PPO", learner="runner", threshold=0.8),
    Task(env="tag_continuous", algorithm="PPO", learner="tagger", threshold=50.0),
    Task(env="tag_continuous", algorithm="PPO", learner="runner", threshold=-20.0),
)
"""Thresholds of Gymnasium where it has one (CartPole-v1, Acrobot-v1, MountainCarContinuous-v0); of MountainCar five
below its -110, for the policy still explores; of Pendulum within 10 % of -152, which RL Baselines3 Zoo's table has for
its tuned DDPG without noise. Of the Tag environments well beyond what play at random gives: `return_before`.
"""


class LearningRun(WatchedTrainer):
    """A trainer that stops where one of its policies is good enough.

    What counts is `Trainer.recent_return`: the first episodes to end are the short ones, of which some environments
    have only good ones, and others only bad ones.

    Args:
        env: Name of the environment in `ENVS`.
        settings: The run.
        learner: Policy that is judged.
        threshold: Least mean return.
    """

    def __init__(self, env: str, settings: Settings, learner: str, threshold: float) -> None:
        stop = {"stop_return": {learner: threshold}}
        super().__init__(env, settings | {"trainer": settings["trainer"] | stop})
        self.returns: list[dict[str, float | None]] = []
        """For each row the mean return of each policy; None: too few steps, or no episode ended."""

    def log_metrics(self) -> Row:
        """Log, and keep the returns."""
        row = super().log_metrics()
        self.returns.append(self.recent_return)
        return row

    def warm_up(self) -> float:
        """Compile and capture an iteration, and go back to where training was; returns what that took, s."""
        began = time.perf_counter()
        state = self.state()
        assert state is not None, "this is the only rank"
        live, header = state
        saved = {name: tensor.clone() for name, tensor in live.items()}
        for _ in range(2):
            self.iterate()
        self.load_state(saved, header, "the start of the run")
        return time.perf_counter() - began


def learn(point: Point) -> Once:
    """Train until the learner reaches the threshold, or to the end of the run."""
    backend = available(point["backend"])
    learner = point["learner"]
    trainer = LearningRun(point["env"], settings(point), learner, point["threshold"])
    is_greedy = len(trainer.groups) == 1  # who plays at random must go on to do so

    def score() -> evaluation.Score:
        return trainer.evaluate(EVALUATED, greedy=is_greedy)[learner]

    untrained = score()
    warm_up_s = trainer.warm_up()

    def run() -> Measurement:
        began = time.perf_counter()
        trainer.train()
        trained = score()
        curve = Curve(
            env_steps=[int(row["env_steps"]) for _, row in trainer.rows],
            seconds=[round(when - began, 6) for when, _ in trainer.rows],
            mean_return={name: [each[name] for each in trainer.returns] for name in trainer.groups},
        )
        return Measurement(
            curve=curve,
            metrics={
                **figures(curve, learner, point["threshold"]),
                "return_before": _scored(untrained),
                "return_after": _scored(trained),
            },
            notes={
                "evaluation": f"{EVALUATED} episodes, {'greedy' if is_greedy else 'drawn'}",
                "warm_up_s": round(warm_up_s, 3),
            },
            unread={} if trainer.has_reached_return else {"seconds_to_threshold": "not reached in all its episodes"},
        )

    return Once(
        run=run,
        check=lambda: same_return(trainer, learner, is_greedy),
        facts=Facts(mode=default_mode(backend.name), device=backend.device, threads=torch_threads(backend)),
    )


def settings(point: Point) -> Settings:
    """Return the run of a point: the shipped one, in which one policy learns.

    More environments play as many steps each between updates, and as many episodes each in all.
    """
    config = shipped(point["env"], f"_{point['algorithm'].lower()}")
    changed = config.to_dict()
    trainer, n_envs = config.trainer, point["n_envs"]
    changed["trainer"] |= {
        "num_envs": n_envs,
        "num_episodes": math.ceil(trainer.num_episodes * n_envs / trainer.num_envs),
        "train_batch_size": trainer.train_batch_size // trainer.num_envs * n_envs,
        "env_backend": point["backend"],
        "seed": point["seed"],
        "precision": point.get("precision", trainer.precision),
    }
    for name, policy in changed["policy"].items():
        policy["to_train"] = name == point["learner"]
    return changed


def figures(curve: Curve, learner: str, threshold: float) -> dict[str, Metric]:
    """Return when a curve first reaches the threshold, unless it does not, and where it ends."""
    found = {}
    returns = curve.mean_return[learner]
    for index, value in enumerate(returns):
        if value is not None and value >= threshold:
            found["env_steps_to_threshold"] = Metric.exactly(curve.env_steps[index], "env_steps", "lower")
            found["seconds_to_threshold"] = Metric.exactly(curve.seconds[index], "s", "lower")
            break
    if known := [value for value in returns if value is not None]:
        found["final_return"] = Metric.exactly(known[-1], "return", "higher")
    found["env_steps_per_s"] = Metric.exactly(curve.env_steps[-1] / curve.seconds[-1], "env_steps/s", "higher")
    return found


def same_return(trainer: WatchedTrainer, learner: str, is_greedy: bool) -> Check:
    """Play the same episodes with the same weights on the trainer's backend and on another one of the CPU.

    Raises:
        Skip: That backend cannot run here.
    """
    wrapper = trainer.wrapper
    other = counterpart(wrapper.env_backend)
    elsewhere = EnvWrapper(type(wrapper.env)(**trainer.config.env), env_backend=other, auto_reset=True)
    scores = []
    for where in (wrapper, elsewhere):
        device = where.backend.device
        models = {name: copy.deepcopy(each.acting).to(device) for name, each in trainer.groups.items()}
        played = evaluation.evaluate(where, models, trainer.policy_map, n_episodes=CHECKED, greedy=is_greedy)
        scores.append(played[learner])
    here, there = scores
    error = abs(here.mean_return - there.mean_return)
    allowed = CHECKED_ERRORS * math.hypot(here.standard_error, there.standard_error) + 1e-4 * abs(here.mean_return)
    return Check(
        passed=error <= allowed,
        max_error=error,
        oracle=f"mean return of the same {CHECKED} episodes on {other}, within {CHECKED_ERRORS} standard errors",
        detail=f"{here.mean_return:.6g} here, {there.mean_return:.6g} there; {allowed:.3g} apart at most",
    )


def _scored(score: evaluation.Score) -> Metric:
    half = 1.96 * score.standard_error
    mean = score.mean_return
    return Metric(value=mean, unit="return", direction="higher", low=mean - half, high=mean + half)


# ------------------------------------------------------------------ points

MANY_ENVS: Final = 2_048
MORE_ENVS: Final = {"A2C": (16_384,), "PPO": (16_384, 65_536)}
"""Environments of CartPole on a GPU; those of PPO as PureJaxRL was measured on it, which multiplies in TF32 there."""


def learn_points(preset: Preset) -> list[Point]:
    """Return CartPole from one seed; from preset paper on every task from all seeds, also in more environments.

    All tasks take an hour on a CPU. NumPy learns CartPole alone, and only a GPU has thousands of environments.
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
        for n_envs in (MANY_ENVS, *(MORE_ENVS[task.algorithm] if preset == "full" else ()))
        for precision in ({}, {"precision": "tf32"})
    ]
    many += [(task, MANY_ENVS, {}) for task in TASKS if task.env == "acrobot"]
    return points + [
        task_point(task, backend, seed, n_envs) | precision
        for task, n_envs, precision in many
        for backend in ON_GPU
        for seed in SEEDS
    ]


def task_point(task: Task, backend: str, seed: int, n_envs: int | None = None) -> dict[str, Any]:
    """Return the point of a task; in as many environments as its run config has, if not told otherwise."""
    return {
        "env": task.env,
        "backend": backend,
        "n_envs": n_envs or task.n_envs,
        "algorithm": task.algorithm,
        "learner": task.learner,
        "threshold": task.threshold,
        "seed": seed,
    }


LEARN: Final = Case(
    name="learn",
    title="train from a seed until the mean return reaches a threshold",
    scope="learn",
    version=1,
    workload=Once,
    points=learn_points,
    setup=learn,
)
