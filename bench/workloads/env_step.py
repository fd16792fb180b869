"""Environments that are stepped, with or without draws: `env_step`, `graph`, `neighbor_search`, `published`, `step`."""

from __future__ import annotations

from typing import Any, Final

import torch

from bench.case import Case, Check, Point, Preset
from bench.measure import Timed
from bench.workloads.shared import (
    EPISODE_LENGTHS,
    ON_CPU,
    ON_GPU,
    SEED,
    Pairs,
    available,
    env_config,
    over,
    pairs_over,
    repeated,
    timed,
)
from envs import ENVS
from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.consistency import step_by_step
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import category_counts

CHECKED_STEPS: Final = 8
CHECKED_STEPS_OF_MANY: Final = 2
"""Checked steps of more agents than `CHECKED_AGENTS`, whose pairs take the oracle seconds a step."""
CHECKED_AGENTS: Final = 2_000
"""Agents of the environments that are held against the oracle; the first ones of the point."""


def env_step(point: Point, *, draws: bool = True) -> Timed:
    """Sample uniform random actions, step, restart what ended: many times in a graph, eagerly on a CPU.

    Args:
        point: Its ``mode``, where it has one, says whether there is a graph.
        draws: Sample in each step; else the actions of one draw are taken again and again.
    """
    backend = available(point["backend"])
    n_envs, n_agents = point["n_envs"], point["n_agents"]
    wrapper = start_env(point, point["backend"], n_envs)
    draw = random_policy(wrapper, SEED)
    draw()

    def advance() -> None:
        if draws:
            draw()
        wrapper.step()

    steps = repeated(backend, advance, point.get("mode"))
    oracle = start_env(point, "cpu", checked_envs(point))
    checked_steps = CHECKED_STEPS if n_agents <= CHECKED_AGENTS else CHECKED_STEPS_OF_MANY

    def check() -> Check:
        agreement = step_by_step(wrapper, oracle, draw, checked_steps)
        return Check(
            passed=agreement.max_error <= wrapper.env.tolerance,
            max_error=agreement.max_error,
            oracle=f"NumPy, {checked_envs(point)} environments, {checked_steps} steps from the same state",
            detail=str(agreement),
        )

    return timed(
        backend,
        steps,
        check,
        work={"env_steps": n_envs, "agent_steps": n_envs * n_agents},
        threads=backend.threads,
        n_bytes=n_envs * (wrapper.env.bytes_per_step + (sampler_bytes(wrapper) if draws else 0)),
        n_ops=n_envs * wrapper.env.ops_per_step,
        notes={"steps_per_run": steps.n},
    )


def step(point: Point) -> Timed:
    """Step and restart what ended, with actions that stay: the kernel alone."""
    return env_step(point, draws=False)


def start_env(point: Point, backend: str, n_envs: int) -> EnvWrapper:
    """Build and start the environment of a point."""
    wrapper = build_env(point, backend, n_envs)
    wrapper.reset()
    return wrapper


def build_env(point: Point, backend: str, n_envs: int) -> EnvWrapper:
    """Build the environment of a point; compiles its kernels."""
    config = env_config(point["env"], point["n_agents"], point.get("neighbor_search", "auto"), point.get("n_taggers"))
    return EnvWrapper(
        ENVS[point["env"]](**config),
        num_envs=n_envs,
        env_backend=backend,
        seed=SEED,
        auto_reset=True,
        exact=point.get("exact", False),
    )


def checked_envs(point: Point) -> int:
    """Return how many environments of a point are held against the oracle."""
    n_envs: int = min(point["n_envs"], CHECKED_AGENTS // point["n_agents"])
    return max(1, n_envs)


def sampler_bytes(wrapper: EnvWrapper) -> int:
    """Return bytes a draw must move for one environment: the distribution, the actions, the counter in and out."""
    space = next(iter(wrapper.env.action_space.values()))
    if hasattr(space, "low"):  # uniform between bounds that all environments share
        return 4 * wrapper.n_agents * int(space.shape[0]) + 8
    categories = category_counts(space)
    return 4 * wrapper.n_agents * (sum(categories) + len(categories)) + 8


# ------------------------------------------------------------------ points

AGENT_COUNTS: Final = [5, 20, 110, 500, 1_000, 2_000, 5_000, 10_000]
"""Agents in each of `N_ENVS_OVER_AGENTS` environments."""
N_ENVS_OVER_AGENTS: Final = 100
NUMPY_PAIRS: Final = 1_300_000
"""Pairs of agents in all environments up to which NumPy is measured; above, a step takes it seconds."""
CARTPOLE: Final = ("cartpole", 1)
TAG_GRIDWORLD: Final = ("tag_gridworld", 5)
TAG_CONTINUOUS: Final = ("tag_continuous", 110)


def place(env: str, backend: str, n_envs: int, n_agents: int, **axes: Any) -> dict[str, Any]:
    """Return a point of an environment."""
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, **axes}


def backends(n_envs: int, n_agents: int) -> list[str]:
    """Return all backends, NumPy up to `NUMPY_PAIRS`."""
    return [name for name in BACKENDS if name != "cpu" or n_envs * n_agents**2 <= NUMPY_PAIRS]


def env_step_sizes(preset: Preset) -> dict[tuple[str, int], list[int]]:
    """Return the numbers of environments that are measured, by environment and number of agents."""
    classic = [(env, 1) for env in EPISODE_LENGTHS]
    if preset == "smoke":
        return {key: [64] for key in classic} | {TAG_GRIDWORLD: [4], ("tag_continuous", 5): [4]}
    on_gpu = torch.cuda.is_available() or preset == "full"
    sizes = {key: [1, 100, 10_000] + ([1_000_000] if on_gpu else []) for key in classic}
    sizes[CARTPOLE] = sorted({*sizes[CARTPOLE], 100_000})
    sizes |= {key: [1, 10, 100] + ([1_000, 2_000] if on_gpu else []) for key in (TAG_GRIDWORLD, TAG_CONTINUOUS)}
    if preset == "full":
        sizes["tag_continuous", 5] = [100, 1_000, 10_000, 100_000]
        sizes[TAG_GRIDWORLD] = [*sizes[TAG_GRIDWORLD], 100_000]
    for env in ("tag_gridworld", "tag_continuous"):
        for n_agents in AGENT_COUNTS:
            if on_gpu or n_agents <= 1_000:
                sizes.setdefault((env, n_agents), [N_ENVS_OVER_AGENTS])
    return sizes


def env_step_points(preset: Preset) -> list[Point]:
    """Return environments x backends x sizes, and the largest CartPole and Tag Continuous with exact floats."""
    sizes = env_step_sizes(preset)
    points: list[Point] = [
        place(env, backend, n_envs, n_agents, exact=False)
        for (env, n_agents), counts in sizes.items()
        for n_envs in counts
        for backend in backends(n_envs, n_agents)
    ]
    exact = [] if preset == "smoke" else [CARTPOLE, TAG_CONTINUOUS]
    return points + [
        place(env, backend, sizes[env, n_agents][-1], n_agents, exact=True)
        for env, n_agents in exact
        for backend in BACKENDS
        if backend != "cpu"
    ]


def graph_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous as graphs, where there are any, and with every launch by itself."""
    sizes = env_step_sizes(preset)
    return [
        place(env, backend, n_envs, n_agents, mode=mode)
        for env, n_agents in (CARTPOLE, TAG_CONTINUOUS)
        for n_envs in sizes.get((env, n_agents), ())
        for backend in backends(n_envs, n_agents)
        for mode in (("eager", "graph") if backend in ON_GPU else ("eager",))
    ]


def step_points(preset: Preset) -> list[Point]:
    """Return CartPole and the Tag environments at the largest sizes of `env_step`, and at 100 environments."""
    sizes = env_step_sizes(preset)
    return [
        place(env, backend, n_envs, n_agents)
        for env, n_agents in (CARTPOLE, TAG_GRIDWORLD, TAG_CONTINUOUS)
        if (counts := sizes.get((env, n_agents)))
        for n_envs in sorted({min(counts[-1], 100), counts[-1]})
        for backend in backends(n_envs, n_agents)
    ]


def neighbor_search_points(preset: Preset) -> list[Point]:
    """Return Tag Continuous with cells and with all pairs, in so many environments that a GPU is full."""
    on_gpu = torch.cuda.is_available()
    counts = [60] if preset == "smoke" else [n for n in AGENT_COUNTS if 500 <= n <= (10_000 if on_gpu else 1_000)]
    return [
        place("tag_continuous", backend, N_ENVS_OVER_AGENTS if on_gpu else 1, n_agents, neighbor_search=search)
        for n_agents in counts
        for backend in BACKENDS
        if backend != "cpu" and (backend != "host" or n_agents <= 1_000)
        for search in ("all_pairs", "grid")
    ]


NODE: Final[dict[str, Any]] = {"env": "tag_continuous", "n_envs": 60, "n_agents": 105, "n_taggers": 5}
"""Sizes of WarpDrive's comparison of a GPU with a node of 16 CPUs."""
HIGHEST: Final[dict[str, Any]] = {"env": "tag_gridworld", "n_envs": 2_000, "n_agents": 1_000}
"""Sizes of its highest figure."""
GPU_ALONE: Final[tuple[dict[str, Any], ...]] = (
    {"env": "cartpole", "n_envs": 1_000, "n_agents": 1},
    {"env": "tag_gridworld", "n_envs": 1_000, "n_agents": 100},
    {"env": "tag_continuous", "n_envs": 2_000, "n_agents": 1_000, "n_taggers": 100},
)
"""Sizes of WarpDrive as it was measured for this project, and of its highest figure with a search for neighbours, which
would take NumPy minutes a step.
"""
PUBLISHED_SIZES: Final = (NODE, HIGHEST, *GPU_ALONE)


def published_points(preset: Preset) -> list[Point]:
    """Return the node's point on every backend, the others where there is a GPU to compare; smoke: a tiny node."""
    if preset == "smoke":
        return [place(**NODE | {"n_envs": 3, "backend": backend}) for backend in ON_CPU]
    points: list[Point] = [place(**NODE, backend=backend) for backend in BACKENDS]
    if torch.cuda.is_available() or preset == "full":
        points += [place(**HIGHEST, backend=backend) for backend in BACKENDS]
        points += [place(**sizes, backend=backend) for sizes in GPU_ALONE for backend in ON_GPU]
    return points


# ------------------------------------------------------------------ cases


def env_step_pairs(preset: Preset) -> Pairs:
    """Return each backend over NumPy and over C++, CUDA C over Numba, and many environments over few."""
    points = env_step_points(preset)
    compiled = [point for point in points if point["backend"] != "cpu"]
    on_gpu = [point for point in points if point["backend"] in ON_GPU]
    few_and_many = [
        point
        for point in on_gpu
        if point["backend"] == "pycuda" and point["n_envs"] in (100, 2_000) and point["n_agents"] == TAG_GRIDWORLD[1]
    ]
    return [
        *pairs_over(points, "backend", "cpu", ignored={"exact"}),
        *pairs_over(compiled, "backend", "host"),
        *pairs_over(on_gpu, "backend", "numba"),
        *pairs_over(few_and_many, "n_envs", 100),
    ]


ENV_STEP: Final = Case(
    name="env_step",
    title="sample random actions, step every environment, restart those that ended",
    scope="env",
    version=1,
    workload=Timed,
    points=env_step_points,
    setup=env_step,
    pairs=env_step_pairs,
)
GRAPH: Final = Case(
    name="graph",
    title="env_step with every launch by itself, and all of many steps in one graph",
    scope="env",
    version=1,
    workload=Timed,
    points=graph_points,
    setup=env_step,
    pairs=over(graph_points, "mode", "eager"),
)
NEIGHBOR_SEARCH: Final = Case(
    name="neighbor_search",
    title="step Tag Continuous, looking for neighbours among all pairs of agents or in a grid of cells",
    scope="env",
    version=1,
    workload=Timed,
    points=neighbor_search_points,
    setup=env_step,
    pairs=over(neighbor_search_points, "neighbor_search", "all_pairs"),
)
PUBLISHED: Final = Case(
    name="published",
    title="env_step at sizes that others were measured at",
    scope="env",
    version=1,
    workload=Timed,
    points=published_points,
    setup=env_step,
    pairs=lambda preset: [
        *over(published_points, "backend", "cpu")(preset),
        *over(published_points, "backend", "host")(preset),
    ],
)
STEP: Final = Case(
    name="step",
    title="step every environment and restart those that ended, with actions that stay",
    scope="kernel",
    version=1,
    workload=Timed,
    points=step_points,
    setup=step,
    pairs=over(step_points, "backend", "cpu"),
)
