"""Environments that are stepped, one step at a time, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.agreement import Agreement, step_by_step
from warpdrive_min.policies import random_policy

from ...core.errors import Skip
from ...core.measure import Timed
from ...core.point import ORACLE, PLAIN, Check, Point, why_no_plain
from ..plain import BATCHES
from ..plain.check import agreement
from ..shared import SEED
from .environments import CHECKED_AGENTS, CHECKED_STEPS, checked_envs, sampler_bytes, start_env
from .timing import available, repeated, snapshot_of, timed_steps

CHECKED_STEPS_OF_MANY: Final = 2
"""Checked steps with more agents than `CHECKED_AGENTS`.

Their pairs take the reference seconds per step."""


def env_step(point: Point, *, draws: bool = True) -> Timed:
    """Sample random actions, step, and restart ended environments.

    Args:
        point: The point; its ``mode``, if any, selects graph or eager.
        draws: Sample in each step; else the actions of one draw are taken again and again.
    """
    if point["backend"] == PLAIN:
        return numpy_step(point, draws=draws)
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    draw = random_policy(wrapper, SEED)
    draw()

    def advance() -> None:
        if draws:
            draw()
        wrapper.step()

    steps = repeated(backend, advance, point.get("mode"))
    oracle = start_env(point, "cpu", checked_envs(point))

    return timed_steps(
        point,
        steps,
        checked(point, oracle, partial(step_by_step, wrapper, oracle, draw)),
        episode_length=wrapper.episode_length,
        n_bytes=wrapper.env.bytes_per_step + (sampler_bytes(wrapper) if draws else 0),
        n_ops=wrapper.env.ops_per_step,
        snapshot=partial(snapshot_of, wrapper.cuda_data_manager),
    )


def numpy_step(point: Point, *, draws: bool) -> Timed:
    """Do the same in vectorised NumPy; arguments as for `env_step`.

    Raises:
        Skip: The environment has no plain NumPy code.
    """
    if reason := why_no_plain([point["env"]]):
        raise Skip(reason)
    oracle = start_env(point, ORACLE, checked_envs(point), auto_reset=False)
    batch = BATCHES[point["env"]](oracle.env.config, point["n_envs"], SEED)
    drawn = batch.draw()
    return timed_steps(
        point,
        repeated(BACKENDS[ORACLE], lambda: batch.step(batch.draw() if draws else drawn)),
        checked(point, oracle, partial(agreement, batch, oracle)),
        episode_length=oracle.episode_length,
        n_bytes=oracle.env.bytes_per_step,
        n_ops=oracle.env.ops_per_step,
        snapshot=batch.snapshot,
    )


def checked(point: Point, oracle: EnvWrapper, compare: Callable[[int], Agreement]) -> Callable[[], Check]:
    """Return the check of a point: some steps compared with its reference."""
    n_steps = CHECKED_STEPS if point["n_agents"] <= CHECKED_AGENTS else CHECKED_STEPS_OF_MANY

    def check() -> Check:
        seen = compare(n_steps)
        against = f"NumPy, {oracle.n_envs} environments, {n_steps} steps from the same state"
        return Check.within(seen.max_error, oracle.env.tolerance, against, str(seen))

    return check
