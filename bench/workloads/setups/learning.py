"""Training runs to a threshold or to the end, and their curves."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from warpdrive_min import EnvWrapper
from warpdrive_min.training.loop import evaluation
from warpdrive_min.training.loop.metrics import Row
from warpdrive_min.training.record.trained import load_policies
from warpdrive_min.training.scale.population import PopulationTrainer

from ...core.point import Check, Curve, Measurement, Metric, Point
from ...core.stats import median, median_interval
from ..shared import MEMBERS, continues_after_threshold
from .timing import counterpart
from .trainers import SCHEDULES, Settings, WatchedTrainer, shipped

EVALUATED: Final = 100
"""Episodes of the policy's evaluation before and after training."""

CHECKED: Final = 20
"""Episodes that are also played on another backend."""

CHECKED_ERRORS: Final = 4
"""Largest difference of their mean returns, in standard errors."""


class LearningRun(WatchedTrainer):
    """Trainer that stops at a policy's threshold, or at the end.

    The threshold applies to `Trainer.recent_return`. The first episodes to end are short ones, which in some
    environments are all good and in others all bad.

    Args:
        env: Name of the environment in `ENVS`.
        settings: Run config of the run.
        learner: Policy that is evaluated.
        threshold: Minimum mean return; None: train to the end.
    """

    def __init__(self, env: str, settings: Settings, learner: str, threshold: float | None) -> None:
        stop = {} if threshold is None else {"stop_return": {learner: threshold}}
        super().__init__(env, settings | {"trainer": settings["trainer"] | stop}, saves=threshold is None)
        self.returns: list[dict[str, float | None]] = []
        """`judged_return` of each row."""

    @property
    def judged_return(self) -> dict[str, float | None]:
        """Mean return of each policy; None: too few steps or episodes."""
        return self.recent_return

    def log_metrics(self) -> Row:
        """Log metrics, and keep the returns."""
        row = super().log_metrics()
        self.returns.append(self.judged_return)
        return row

    def learn(self) -> Curve:
        """Train; return the curve, which starts now."""
        began = time.perf_counter()
        self.train()
        return Curve(
            env_steps=[int(row["env_steps"]) for _, row in self.rows],
            seconds=[round(when - began, 6) for when, _ in self.rows],
            mean_return={name: [each[name] for each in self.returns] for name in self.groups},
        )


class PopulationRun(LearningRun, PopulationTrainer):
    """Trainer of a population; stops when each member reaches the threshold."""

    @property
    def judged_return(self) -> dict[str, float | None]:
        """Median of members' mean returns; None until all have one."""
        known = [value for value in self.recent_returns if value is not None]
        return {self.group.name: median(known) if len(known) == len(self.members) else None}


Learning: TypeAlias = tuple[Callable[[], Measurement], Callable[[], Check]]
"""Function that trains and returns the measurement, and the trainer's check."""


def learning_of_policies(point: Point) -> Learning:
    """Set up the training of policies; one is evaluated."""
    learner, is_whole = point["learner"], continues_after_threshold(point)
    trainer = LearningRun(point["env"], settings(point), learner, None if is_whole else point["threshold"])
    # Random opponents must stay random. From one start state two greedy policies always play the same game.
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
    """Set up the training of a population to the threshold."""
    size, learner, threshold = point["population"], point["learner"], point["threshold"]
    trainer = PopulationRun(point["env"], settings(point) | {"population": {"size": size}}, learner, threshold)

    def play(where: EnvWrapper) -> MeanReturn:
        network = copy.deepcopy(trainer.network).to(where.backend.device)
        models = {trainer.group.name: network}
        return _over_members(evaluation.evaluate(where, models, trainer.policy_map, n_episodes=CHECKED).values())

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
                "members_to_threshold": Metric.exact(len(reached), "members", "higher"),
                "env_steps_per_s": Metric.exact(rate, "env_steps/s", "higher"),
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
    """Return steps and time to the threshold: medians, and the last member's."""
    found = {}
    for name, unit in (("env_steps_to_threshold", "env_steps"), ("seconds_to_threshold", "s")):
        known = [value for value in members[name] if value is not None]
        times = [*known, *[math.inf] * n_missing]
        middle, (low, high) = median(times), median_interval(times)
        if math.isfinite(high):
            found[name] = Metric(value=middle, unit=unit, direction="lower", low=low, high=high)
        if not n_missing:
            found[f"{name}_of_all"] = Metric.exact(max(known), unit, "lower")
    return found


MeanReturn: TypeAlias = tuple[float, float]
"""Mean return of several episodes, and its standard error."""


def _over_members(scores: Iterable[evaluation.Score]) -> MeanReturn:
    """Return the mean over members and its standard error."""
    returns = np.array([score.mean_return for score in scores])
    scatter = float(returns.std(ddof=min(1, len(returns) - 1)))
    return float(returns.mean()), scatter / math.sqrt(len(returns))


NOT_REACHED: Final = {"seconds_to_threshold": "not reached in all its episodes"}


def best_score(trainer: LearningRun) -> evaluation.Score:
    """Evaluate the best checkpoint on the episodes of the last weights."""
    trained = load_policies(trainer.folder, type(trainer.wrapper.env)(**trainer.config.env))
    (score,) = evaluation.evaluate(
        trained.wrapper(trainer.wrapper.env_backend), trained.models, trained.policies, n_episodes=EVALUATED
    ).values()
    return score


def settings(point: Point) -> Settings:
    """Return a point's run: the shipped one with one trained policy.

    With more environments, each still plays the same number of steps between updates and of episodes in total.
    Schedules count the steps of all environments, so they are stretched.
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
            policy[key] = stretch(policy[key], n_envs / trainer.num_envs)
        policy["to_train"] = policy["to_train"] if continues_after_threshold(point) else name == point["learner"]
    return changed


def stretch(schedule: Any, times: float) -> Any:
    """Return a schedule, or mapping of them, stretched by ``times``."""
    if isinstance(schedule, Mapping):
        return {part: stretch(each, times) for part, each in schedule.items()}
    return [[step * times, value] for step, value in schedule] if isinstance(schedule, list) else schedule


def figures(curve: Curve, learner: str, threshold: float, *, is_timed: bool = True) -> dict[str, Metric]:
    """Return when a curve reaches the threshold, and where it ends.

    Untimed it has no rates and seconds: runs to the end include checkpoints and evaluations.
    """
    found = {}
    returns = curve.mean_return[learner]
    for index, value in enumerate(returns):
        if value is not None and value >= threshold:
            found["env_steps_to_threshold"] = Metric.exact(curve.env_steps[index], "env_steps", "lower")
            if is_timed:
                found["seconds_to_threshold"] = Metric.exact(curve.seconds[index], "s", "lower")
            break
    if known := [value for value in returns if value is not None]:
        found["final_return"] = Metric.exact(known[-1], "return", "higher")
    if is_timed:
        found["env_steps_per_s"] = Metric.exact(curve.env_steps[-1] / curve.seconds[-1], "env_steps/s", "higher")
    return found


def same_return(trainer: LearningRun, play: Callable[[EnvWrapper], MeanReturn]) -> Check:
    """Check a mean return on another CPU backend.

    Raises:
        Skip: That backend cannot run here.
    """
    wrapper = trainer.wrapper
    other = counterpart(wrapper.env_backend)
    elsewhere = EnvWrapper(type(wrapper.env)(**trainer.config.env), env_backend=other, auto_reset=True)
    (here, error_here), (there, error_there) = play(wrapper), play(elsewhere)
    error = abs(here - there)
    allowed = CHECKED_ERRORS * math.hypot(error_here, error_there) + 1e-4 * abs(here)
    oracle = f"mean return of the same {CHECKED} episodes on {other}, within {CHECKED_ERRORS} standard errors"
    return Check.within(error, allowed, oracle, f"{here:.6g} here, {there:.6g} there; {allowed:.3g} apart at most")


Z: Final = 1.96
"""Standard errors from a mean to its 95 % interval's ends."""


def return_metric(mean: float, standard_error: float) -> Metric:
    """Return a mean return as a metric with its 95 % interval."""
    half = Z * standard_error
    return Metric(value=mean, unit="return", direction="higher", low=mean - half, high=mean + half)


def _scored(score: evaluation.Score) -> Metric:
    return return_metric(score.mean_return, score.standard_error)
