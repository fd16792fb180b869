"""Environment steps, one at a time or many in a launch; cases of `cases.toml`."""

from __future__ import annotations

from typing import Final

from warpdrive_min import BACKENDS

from ..core.case import Pairs, pairs_differing_in
from ..core.measure import Timed
from ..core.point import ON_CPU, ORACLE, PLAIN, PLAIN_ENVS, Mode, Point, Preset
from .shared import (
    CARTPOLE,
    CROWD,
    EPISODE_LENGTHS,
    N_ENVS_OVER_AGENTS,
    ON_GPU,
    SIZES,
    TAG_CONTINUOUS,
    TAG_GRIDWORLD,
    agent_counts,
    default_mode,
    env_point,
    env_step_sizes,
    has_gpu,
    has_gpu_sizes,
)

# ------------------------------------------------------------------ points

A_MILLION: Final = 2**20
"""Agents of one environment, the maximum of Tag Continuous."""
ORACLE_PAIRS: Final = 1_300_000
"""Agent pairs in all environments up to which the reference is measured.

Above that a step takes it seconds."""
ORACLE_ENVS: Final = 100_000
"""Environments up to which the reference is measured; its rate has saturated."""
PLAIN_PAIRS: Final = 100_000_000
"""Agent pairs up to which vectorised NumPy is measured if it computes all."""
WITH_POLICY: Final = ("host", "pycuda")
"""Backends with a policy kernel."""
MOST_ENVS_OF_A_POLICY: Final = 100_000
"""Environments up to which `many_steps` has a policy."""


def env_step_points(preset: Preset) -> list[Point]:
    """Return environments x backends x sizes, and some points with exact floats.

    Preset full also has `A_MILLION` agents; rounding always decides for some of them.
    """
    sizes = env_step_sizes(preset)
    points: list[Point] = [
        env_point(env, backend, n_envs, n_agents, exact=False)
        for (env, n_agents), counts in sizes.items()
        for n_envs in counts
        for backend in backends_and_numpy(env, n_envs, n_agents)
    ]
    exact = [] if preset == "smoke" else [(*key, sizes[key][-1]) for key in (CARTPOLE, TAG_CONTINUOUS)]
    if preset == "full":
        exact.append(("tag_continuous", A_MILLION, 1))
    return points + [
        env_point(env, backend, n_envs, n_agents, exact=True)
        for env, n_agents, n_envs in exact
        for backend in BACKENDS
        if backend != "cpu"
    ]


def graph_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous in graphs and eagerly.

    Preset default has the smallest number of environments, which gains most, and the largest.
    """
    sizes = env_step_sizes(preset)
    return [
        env_point(env, backend, n_envs, n_agents, mode=mode)
        for env, n_agents in (CARTPOLE, TAG_CONTINUOUS)
        for n_envs in sizes.get((env, n_agents), ())[:: len(sizes[env, n_agents]) - 1 if preset == "default" else 1]
        for backend in backends(n_envs, n_agents)
        for mode in (("eager", "graph") if backend in ON_GPU else ("eager",))
    ]


def neighbor_search_points(preset: Preset) -> list[Point]:
    """Return Tag Continuous with cells and all pairs, up to a full GPU."""
    on_gpu = has_gpu()
    counts = (
        [60] if preset == "smoke" else [n for n in agent_counts(preset) if 500 <= n <= (10_000 if on_gpu else 1_000)]
    )
    return [
        env_point("tag_continuous", backend, N_ENVS_OVER_AGENTS if on_gpu else 1, n_agents, neighbor_search=search)
        for n_agents in counts
        for backend in BACKENDS
        if backend != "cpu" and (backend != "host" or n_agents <= 1_000)
        for search in ("all_pairs", "grid")
    ]


def published_points(preset: Preset) -> list[Point]:
    """Return the points of published measurements; smoke: a tiny one."""
    node, highest, on_gpu = (SIZES["published"][name] for name in ("node", "highest", "on_gpu"))
    if preset == "smoke":
        return [env_point(**node | {"n_envs": 3, "backend": backend}) for backend in (PLAIN, *ON_CPU)]
    everywhere = [node, highest] if has_gpu_sizes(preset) else [node]
    points = [env_point(**sizes, backend=backend) for sizes in everywhere for backend in (PLAIN, *BACKENDS)]
    return [*points, *(env_point(**sizes, backend=backend) for sizes in on_gpu for backend in ON_GPU)]


def step_points(preset: Preset) -> list[Point]:
    """Return CartPole and both Tags at the largest and a small size."""
    sizes = env_step_sizes(preset)
    return [
        env_point(env, backend, n_envs, n_agents)
        for env, n_agents in (CARTPOLE, TAG_GRIDWORLD, TAG_CONTINUOUS)
        if (counts := sizes.get((env, n_agents)))
        for n_envs in sorted({min(counts[-1], 100), counts[-1]})
        for backend in backends_and_numpy(env, n_envs, n_agents)
    ]


def many_steps_points(preset: Preset) -> list[Point]:
    """Return environments of one agent, and both Tag environments, by mode."""
    on_gpu = has_gpu_sizes(preset)
    sizes: dict[tuple[str, int], list[int]] = {CARTPOLE: [64], TAG_GRIDWORLD: [4]}
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
            env_point(**CROWD, backend=backend, n_envs=n_envs, mode=mode, kept=kept)
            for n_envs in (100, 2_000)
            for backend in ON_GPU
            for mode, kept in modes(backend)
        ]
    return points + [
        env_point("cartpole", backend, n_envs, 1, mode=mode, kept="all", policy="64-64", **how)
        for n_envs in sizes[CARTPOLE]
        if n_envs <= MOST_ENVS_OF_A_POLICY
        for backend in WITH_POLICY
        for how in ([{}, {"precision": "tf32"}] if backend in ON_GPU else [{}])
        for mode in (default_mode(backend), "fused")
    ]


def modes(backend: str) -> list[tuple[Mode, str]]:
    """Return single-step launches, and fused ones that keep last or all steps."""
    return [(default_mode(backend), "last"), ("fused", "last"), ("fused", "all")]


def backends(n_envs: int, n_agents: int) -> list[str]:
    """Return all backends; the reference only up to `ORACLE_PAIRS` and `ORACLE_ENVS`."""
    has_oracle = n_envs * n_agents**2 <= ORACLE_PAIRS and n_envs <= ORACLE_ENVS
    return [name for name in BACKENDS if name != "cpu" or has_oracle]


def backends_and_numpy(env: str, n_envs: int, n_agents: int) -> list[str]:
    """Return all backends, and vectorised NumPy where it is fast enough."""
    has_plain = env in PLAIN_ENVS and (env != "tag_continuous" or n_envs * n_agents**2 <= PLAIN_PAIRS)
    return [*([PLAIN] if has_plain else []), *backends(n_envs, n_agents)]


# ------------------------------------------------------------------ pairs


def env_step_pairs(preset: Preset) -> Pairs:
    """Return the pairs of `env_step`: backend over backend, many over few."""
    points = env_step_points(preset)
    compiled = [point for point in points if point["backend"] not in (ORACLE, PLAIN)]
    fastest = [point for point in points if point["backend"] in (PLAIN, "host", "pycuda")]
    few_and_many = [
        point
        for point in points
        if point["backend"] == "pycuda" and point["n_envs"] in (100, 2_000) and point["n_agents"] == TAG_GRIDWORLD[1]
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
