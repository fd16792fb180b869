"""Many steps in one launch, compared with single steps: `many_steps`."""

from __future__ import annotations

from typing import Final

from warpdrive_min import BACKENDS

from ..core.case import timed_case
from ..core.measure import Timed
from ..core.point import Mode, Point, Preset
from .shared import CARTPOLE, CROWD, EPISODE_LENGTHS, ON_GPU, TAG_CONTINUOUS, TAG_GRIDWORLD, env_point, has_gpu_sizes

MOST_ENVS_OF_A_POLICY: Final = 100_000


# ------------------------------------------------------------------ points


def many_steps_points(preset: Preset) -> list[Point]:
    """Return environments of one agent, and both Tag environments, by mode."""
    on_gpu = has_gpu_sizes(preset)
    few = {CARTPOLE: [64], TAG_GRIDWORLD: [4]}
    sizes: dict[tuple[str, int], list[int]] = few
    if preset != "smoke":
        of_one = [10_000, *([100_000, 1_000_000] if on_gpu else [])]
        sizes = {(env, 1): of_one[:: len(of_one) - 1 or 1] for env in EPISODE_LENGTHS}
        sizes[CARTPOLE] = of_one
        if preset == "full":
            sizes["mountain_car", 1] = of_one  # as other software is compared
        sizes[TAG_GRIDWORLD] = sizes[TAG_CONTINUOUS] = [100, *([2_000] if on_gpu else [])]
    points = [
        env_point(env, backend, n_envs, n_agents, mode=mode, kept=kept)
        for (env, n_agents), counts in sizes.items()
        for n_envs in counts
        for backend in BACKENDS
        if backend != "cpu"
        for mode, kept in modes(backend)
    ]
    if on_gpu:
        points += [
            env_point(**CROWD, backend="pycuda", n_envs=n_envs, mode=mode, kept=kept)
            for n_envs in (100, 2_000)
            for mode, kept in modes("pycuda")
        ]
    return points + [
        env_point("cartpole", backend, n_envs, 1, mode=mode, kept="all", policy="64-64", **how)
        for n_envs in sizes[CARTPOLE]
        if n_envs <= MOST_ENVS_OF_A_POLICY
        for backend, single in WITH_POLICY.items()
        for how in ([{}, {"precision": "tf32"}] if backend in ON_GPU else [{}])
        for mode in (single, "fused")
    ]


def modes(backend: str) -> list[tuple[Mode, str]]:
    """Return single-step launches, and fused ones that keep last or all steps."""
    single: Mode = "graph" if backend in ON_GPU else "eager"
    return [(single, "last"), ("fused", "last"), ("fused", "all")]


WITH_POLICY: Final[dict[str, Mode]] = {"host": "eager", "pycuda": "graph"}
"""Backends with a policy kernel, and their mode of single steps."""


# ------------------------------------------------------------------ set-up


def many_steps(point: Point) -> Timed:
    """Step environments: many steps per launch, or one at a time.

    Actions are random, or from the point's ``policy``.
    """
    from .setups import many_steps, stepping

    if "policy" in point:
        return many_steps.steps_of_policy(point)
    return many_steps.random_steps(point) if point["mode"] == "fused" else stepping.env_step(point)


# ------------------------------------------------------------------ case

MANY_STEPS: Final = timed_case(
    name="many_steps",
    title="env_step with many steps in one kernel launch, with random actions or a policy's",
    scope="env",
    points=many_steps_points,
    setup=many_steps,
    over=("mode", "graph", "eager"),
)
