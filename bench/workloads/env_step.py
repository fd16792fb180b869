"""Environment steps, one at a time or many in a launch, and single kernels."""

from __future__ import annotations

from functools import partial

from ..core.measure import Timed
from ..core.point import Point


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


def _kernel(name: str, noun: str, point: Point) -> Timed:
    """Set up a `setups.kernels` kernel, called repeatedly."""
    from .setups import kernels

    return kernels.measured(getattr(kernels, name), point, noun)


sampler = partial(_kernel, "sampler", "draws")
reset, return_scan, shuffle, record, launch = (
    partial(_kernel, name, "launched") for name in ("reset", "return_scan", "shuffle", "record", "launch")
)
