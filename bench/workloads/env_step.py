"""Environment steps, one at a time or many in a launch; cases of `cases.toml`."""

from __future__ import annotations

from ..core.case import Pairs, pairs_differing_in
from ..core.measure import Timed
from ..core.point import ORACLE, PLAIN, Point, Preset
from .points import points_of

# ------------------------------------------------------------------ pairs


def env_step_pairs(preset: Preset) -> Pairs:
    """Return the pairs of `env_step`: backend over backend, many over few."""
    points = points_of("env_step", preset)
    compiled = [point for point in points if point["backend"] not in (ORACLE, PLAIN)]
    fastest = [point for point in points if point["backend"] in (PLAIN, "host", "pycuda")]
    few_and_many = [
        point
        for point in points
        if point["backend"] == "pycuda" and point["n_envs"] in (100, 2_000) and point["n_agents"] == 5
    ]
    on_gpu = [point for point in points if point["backend"] == "pycuda" and not point["exact"]]
    scaling = [
        *pairs_differing_in([p for p in on_gpu if (p["env"], p["n_envs"]) == ("tag_gridworld", 100)], "n_agents", 20),
        *pairs_differing_in([p for p in on_gpu if p["env"] == "cartpole"], "n_envs", 100_000),
    ]
    return [
        *(pair for pair in scaling if pair[1]["n_agents"] == 1_000 or pair[1]["n_envs"] == 1_000_000),
        *pairs_differing_in([point for point in points if point["backend"] in (ORACLE, "pycuda")], "backend", ORACLE),
        *pairs_differing_in(fastest, "backend", PLAIN),
        *pairs_differing_in(compiled, "backend", "host", "numba"),
        *pairs_differing_in(few_and_many, "n_envs", 100),
    ]


# ------------------------------------------------------------------ set-up


def env_step(point: Point) -> Timed:
    """Sample uniform random actions, step, and restart ended environments."""
    from .setups import stepping

    return stepping.env_step(point)


def step(point: Point) -> Timed:
    """Step and restart ended environments, with the same actions each time."""
    from .setups import stepping

    return stepping.env_step(point, draws=False)


def many_steps(point: Point) -> Timed:
    """Step environments: many steps per launch, or one at a time.

    Actions are random, or from the point's ``policy``.
    """
    from .setups import many_steps, stepping

    if "policy" in point:
        return many_steps.steps_of_policy(point)
    return many_steps.random_steps(point) if point["mode"] == "fused" else stepping.env_step(point)
