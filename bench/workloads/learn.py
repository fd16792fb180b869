"""Training from a seed until the policy is good enough, or to the end, and its learning curve: `learn`."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from warpdrive_min import EnvWrapper
from warpdrive_min.training import evaluation
from warpdrive_min.training.metrics import Row
from warpdrive_min.training.population import PopulationTrainer
from warpdrive_min.training.trained import load_policies

from ..core.case import Case
from ..core.measure import Curve, Measurement, Metric, Once
from ..core.point import ON_CPU, Check, Facts, Point, Preset
from ..core.stats import median, median_interval
from .shared import FP32, MEMBERS, ON_GPU, UNTIL_END, available, counterpart, default_mode, torch_threads
from .train import SCHEDULES, Settings, WatchedTrainer, shipped, train_points

SEEDS: Final = range(5)
"""Seeds of runs that end at the threshold."""
WHOLE_SEEDS: Final = range(20)
"""Seeds of runs that go on to the end of the run config."""
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
    """Policy that is judged. Alone it learns too, until it reaches the threshold; others play as they are at the start,
    which is close to uniformly at random. In a whole run every policy learns that the run config says."""

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
    Task(env="tag_gridworld", algorithm="A2C", learner="tagger", threshold=35.0),
    Task(env="tag_gridworld", algorithm="A2C", learner="runner", threshold=0.8),
    Task(env="tag_gridworld", algorithm="PPO", learner="tagger", threshold=35.0),
    Task(env="tag_gridworld", algorithm="PPO", learner="runner", threshold=0.8),
    Task(env="tag_continuous", algorithm="A2C", learner="tagger", threshold=45.0),
    Task(env="tag_continuous", algorithm="A2C", learner="runner", threshold=-25.0),
    Task(env="tag_continuous", algorithm="PPO", learner="tagger", threshold=50.0),
    Task(env="tag_continuous", algorithm="PPO", learner="runner", threshold=-20.0),
)
"""Thresholds of Gymnasium where it has one (CartPole-v1, Acrobot-v1, MountainCarContinuous-v0); of MountainCar five
below its -110, for the policy still explores; of Pendulum within 10 % of -152, which RL Baselines3 Zoo's table has for
its tuned DDPG without noise. Of the Tag environments well beyond what play at random gives: `return_before`.
"""


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
"""Every run config that is to learn. Both kinds of agents learn in those of Tag, and the taggers are judged: at random
they have 5.6 and 36.8, and what they reach falls again while the runners learn to escape; so the bar of Tag Continuous
is, with A2C, what no seed has at random (39.6 at most). In the COVID-19 economy the nation's welfare is, which is the
governors' doing: some 360 at random, 448 at level 7 throughout. In RICE the utility of all regions is: 191 at random,
and 226 at the best rates that never change.
"""


class LearningRun(WatchedTrainer):
    """A trainer that stops where one of its policies is good enough, unless it goes on to the end and keeps the best.

    What counts is `Trainer.recent_return`: the first episodes to end are the short ones, of which some environments
    have only good ones, and others only bad ones.

    Args:
        env: Name of the environment in `ENVS`.
        settings: The run.
        learner: Policy that is judged.
        threshold: Least mean return; None: train to the end.
    """

    def __init__(self, env: str, settings: Settings, learner: str, threshold: float | None) -> None:
        stop = {} if threshold is None else {"stop_return": {learner: threshold}}
        super().__init__(env, settings | {"trainer": settings["trainer"] | stop}, saves=threshold is None)
        self.returns: list[dict[str, float | None]] = []
        """For each row the `judged_return`."""

    @property
    def judged_return(self) -> dict[str, float | None]:
        """Mean return of each policy; None: too few steps, or no episode ended."""
        return self.recent_return

    def log_metrics(self) -> Row:
        """Log, and keep the returns."""
        row = super().log_metrics()
        self.returns.append(self.judged_return)
        return row

    def learn(self) -> Curve:
        """Train; returns the curve, which begins now."""
        began = time.perf_counter()
        self.train()
        return Curve(
            env_steps=[int(row["env_steps"]) for _, row in self.rows],
            seconds=[round(when - began, 6) for when, _ in self.rows],
            mean_return={name: [each[name] for each in self.returns] for name in self.groups},
        )


class PopulationRun(LearningRun, PopulationTrainer):
    """A trainer of a population, which stops where each member has been good enough; arguments as of `LearningRun`."""

    @property
    def judged_return(self) -> dict[str, float | None]:
        """Median over members of their mean returns; None: one has none yet."""
        known = [value for value in self.recent_returns if value is not None]
        return {self.group.name: median(known) if len(known) == len(self.members) else None}


def learn(point: Point) -> Once:
    """Train until the learner, or each member of a population, reaches the threshold, or to the end of the run."""
    backend = available(point["backend"])
    run, check = (learning_of_members if "population" in point else learning_of_policies)(point)
    return Once(
        run=run,
        check=check,
        facts=Facts(mode=default_mode(backend.name), device=backend.device, threads=torch_threads(backend)),
    )


Learning: TypeAlias = tuple[Callable[[], Measurement], Callable[[], Check]]
"""Trains and returns what it came to, and checks the trainer."""


def learning_of_policies(point: Point) -> Learning:
    """Set up the training of a trainer's policies, of which one is judged."""
    learner, is_whole = point["learner"], is_to_the_end(point)
    trainer = LearningRun(point["env"], settings(point), learner, None if is_whole else point["threshold"])
    # Who plays at random must go on to do so, and from one start two that take their likeliest actions play one game.
    is_greedy = len(trainer.groups) == 1

    def scores() -> dict[str, Metric]:
        return {name: _scored(score) for name, score in trainer.evaluate(EVALUATED, greedy=is_greedy).items()}

    def play(where: EnvWrapper) -> MeanReturn:
        models = {name: copy.deepcopy(each.acting).to(where.backend.device) for name, each in trainer.groups.items()}
        played = evaluation.evaluate(where, models, trainer.policy_map, n_episodes=CHECKED, greedy=is_greedy)
        return played[learner].mean_return, played[learner].standard_error

    untrained = scores()
    warm_up_s = trainer.warm_up()

    def run() -> Measurement:
        curve, trained = trainer.learn(), scores()
        return Measurement(
            curve=curve,
            metrics={
                **figures(curve, learner, point["threshold"], is_timed=not is_whole),
                "return_before": untrained[learner],
                "return_after": trained[learner],
                **({"return_best": _scored(best_score(trainer))} if trainer.best_return is not None else {}),
                **{f"return_after_{name}": trained[name] for name in trained if is_whole and name != learner},
            },
            notes={
                "evaluation": f"{EVALUATED} episodes, {'greedy' if is_greedy else 'drawn'}",
                "warm_up_s": round(warm_up_s, 3),
            },
            unread={} if is_whole or trainer.has_reached_return else NOT_REACHED,
        )

    return run, lambda: same_return(trainer, play)


def learning_of_members(point: Point) -> Learning:
    """Set up the training of a population until each member has reached the threshold, or its episodes are used up."""
    size, learner, threshold = point["population"], point["learner"], point["threshold"]
    trainer = PopulationRun(point["env"], settings(point) | {"population": {"size": size}}, learner, threshold)

    def play(where: EnvWrapper) -> MeanReturn:
        network = copy.deepcopy(trainer.network).to(where.backend.device)
        return _over_members(evaluation.evaluate_members(where, network, trainer.policy_map, n_episodes=CHECKED))

    untrained = trainer.evaluate(CHECKED).values()
    warm_up_s = trainer.warm_up()

    def run() -> Measurement:
        curve, trained = trainer.learn(), trainer.evaluate(CHECKED).values()
        when = dict(zip(curve.env_steps, curve.seconds, strict=True))
        reached = trainer.reached_at
        members: dict[str, list[float | None]] = {
            "env_steps_to_threshold": [reached.get(member) for member in range(size)],
            "seconds_to_threshold": [when[reached[member]] if member in reached else None for member in range(size)],
            "return_after": [score.mean_return for score in trained],
        }
        n_missing = size - len(reached)
        rate = curve.env_steps[-1] * size / curve.seconds[-1]
        return Measurement(
            curve=curve,
            metrics={
                **figures_of_members(members, n_missing),
                "members_to_threshold": Metric.exactly(len(reached), "members", "higher"),
                "env_steps_per_s": Metric.exactly(rate, "env_steps/s", "higher"),
                "return_before": return_metric(*_over_members(untrained)),
                "return_after": return_metric(*_over_members(trained)),
            },
            notes={
                "evaluation": f"{CHECKED} episodes of each member, greedy",
                "warm_up_s": round(warm_up_s, 3),
                MEMBERS: members,
            },
            unread={"seconds_to_threshold_of_all": f"not reached by {n_missing} members"} if n_missing else {},
        )

    return run, lambda: same_return(trainer, play)


def figures_of_members(members: Mapping[str, Sequence[float | None]], n_missing: int) -> dict[str, Metric]:
    """Return what the threshold takes: medians over members, as far as they are finite, and the last one's."""
    found = {}
    for name, unit in (("env_steps_to_threshold", "env_steps"), ("seconds_to_threshold", "s")):
        known = [value for value in members[name] if value is not None]
        times = [*known, *[math.inf] * n_missing]
        middle, (low, high) = median(times), median_interval(times)
        if math.isfinite(high):
            found[name] = Metric(value=middle, unit=unit, direction="lower", low=low, high=high)
        if not n_missing:
            found[f"{name}_of_all"] = Metric.exactly(max(known), unit, "lower")
    return found


MeanReturn: TypeAlias = tuple[float, float]
"""Mean return of some episodes, and its standard error."""


def _over_members(scores: Iterable[evaluation.Score]) -> MeanReturn:
    """Return the mean over members of their mean returns, with the error that the members' scatter gives."""
    returns = np.array([score.mean_return for score in scores])
    scatter = float(returns.std(ddof=min(1, len(returns) - 1)))
    return float(returns.mean()), scatter / math.sqrt(len(returns))


NOT_REACHED: Final = {"seconds_to_threshold": "not reached in all its episodes"}


def is_to_the_end(point: Point) -> bool:
    """Tell whether a run goes on to the end of its run config, whatever it reaches."""
    return point.get("until") == UNTIL_END["until"]


def best_score(trainer: LearningRun) -> evaluation.Score:
    """Play the episodes that the last weights played with those of the best checkpoint."""
    trained = load_policies(trainer.folder, type(trainer.wrapper.env)(**trainer.config.env))
    (score,) = evaluation.evaluate(
        trained.wrapper(trainer.wrapper.env_backend), trained.models, trained.policies, n_episodes=EVALUATED
    ).values()
    return score


def settings(point: Point) -> Settings:
    """Return the run of a point: the shipped one, in which one policy learns; of a whole run as it is shipped.

    More environments play as many steps each between updates, and as many episodes each in all; schedules, which count
    the steps of all, are stretched.
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
        for key in SCHEDULES:
            policy[key] = stretched(policy[key], n_envs / trainer.num_envs)
        policy["to_train"] = policy["to_train"] if is_to_the_end(point) else name == point["learner"]
    return changed


def stretched(schedule: Any, times: float) -> Any:
    """Return a schedule, or a mapping of them, whose points lie so many times as late."""
    if isinstance(schedule, Mapping):
        return {part: stretched(each, times) for part, each in schedule.items()}
    return [[step * times, value] for step, value in schedule] if isinstance(schedule, list) else schedule


def figures(curve: Curve, learner: str, threshold: float, *, is_timed: bool = True) -> dict[str, Metric]:
    """Return when a curve first reaches the threshold, unless it does not, and where it ends.

    Not timed it has no rates and seconds: those of a whole run have checkpoints and their evaluations in them.
    """
    found = {}
    returns = curve.mean_return[learner]
    for index, value in enumerate(returns):
        if value is not None and value >= threshold:
            found["env_steps_to_threshold"] = Metric.exactly(curve.env_steps[index], "env_steps", "lower")
            if is_timed:
                found["seconds_to_threshold"] = Metric.exactly(curve.seconds[index], "s", "lower")
            break
    if known := [value for value in returns if value is not None]:
        found["final_return"] = Metric.exactly(known[-1], "return", "higher")
    if is_timed:
        found["env_steps_per_s"] = Metric.exactly(curve.env_steps[-1] / curve.seconds[-1], "env_steps/s", "higher")
    return found


def same_return(trainer: LearningRun, play: Callable[[EnvWrapper], MeanReturn]) -> Check:
    """Play the same episodes with the same weights on the trainer's backend and on another one of the CPU.

    Raises:
        Skip: That backend cannot run here.
    """
    wrapper = trainer.wrapper
    other = counterpart(wrapper.env_backend)
    elsewhere = EnvWrapper(type(wrapper.env)(**trainer.config.env), env_backend=other, auto_reset=True)
    (here, error_here), (there, error_there) = play(wrapper), play(elsewhere)
    error = abs(here - there)
    allowed = CHECKED_ERRORS * math.hypot(error_here, error_there) + 1e-4 * abs(here)
    return Check(
        passed=error <= allowed,
        max_error=error,
        oracle=f"mean return of the same {CHECKED} episodes on {other}, within {CHECKED_ERRORS} standard errors",
        detail=f"{here:.6g} here, {there:.6g} there; {allowed:.3g} apart at most",
    )


Z: Final = 1.96
"""Standard errors on either side of a mean that make its 95 % interval."""


def return_metric(mean: float, standard_error: float) -> Metric:
    """Return a mean return as a figure, with its 95 % interval."""
    half = Z * standard_error
    return Metric(value=mean, unit="return", direction="higher", low=mean - half, high=mean + half)


def _scored(score: evaluation.Score) -> Metric:
    return return_metric(score.mean_return, score.standard_error)


# ------------------------------------------------------------------ points

POPULATIONS: Final = (256, 1_024)
"""Members of populations of CartPole on a GPU."""
MANY_ENVS: Final = 2_048
MORE_ENVS: Final = {"A2C": (16_384,), "PPO": (16_384, 65_536)}
"""Environments of CartPole on a GPU; those of PPO as PureJaxRL was measured on it, which multiplies in TF32 there."""


def learn_points(preset: Preset) -> list[Point]:
    """Return CartPole from one seed; from preset paper on every task from all seeds, also in more environments.

    On `pycuda` each task is also learned in the precisions in which its environment's training is timed, so that a
    speed has a curve. All tasks take an hour on a CPU. NumPy learns CartPole alone, and only a GPU has thousands of
    environments, or the time for whole runs.
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
    timed = dict.fromkeys((str(point["env"]), str(point["precision"])) for point in train_points("full"))
    points += [
        task_point(task, "pycuda", seed) | {"precision": precision}
        for env, precision in timed
        for task in TASKS
        for seed in SEEDS
        if task.env == env and precision != FP32
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
    workload=Once,
    points=learn_points,
    setup=learn,
)
