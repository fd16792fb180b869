"""Environments that are stepped, with or without draws: `env_step`, `graph`, `neighbor_search`, `published`, `step`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.consistency import Agreement, step_by_step
from warpdrive_min.environment import CUDAEnvironmentContext, agent_sets
from warpdrive_min.envs import ENVS
from warpdrive_min.errors import known, require
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import category_counts
from warpdrive_min.validation.subject import load_class

from ..core.case import Case, Skip
from ..core.measure import Timed
from ..core.point import ON_CPU, ORACLE, PLAIN, PLAIN_ENVS, Check, Point, Preset, class_and_config, why_no_plain
from .plain import BATCHES
from .plain.check import agreement
from .shared import (
    EPISODE_LENGTHS,
    ON_GPU,
    SEED,
    Pairs,
    Repeated,
    available,
    compared,
    env_config,
    pairs_over,
    repeated,
    snapshot_of,
    steps_of,
    timed,
)

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
    if point["backend"] == PLAIN:
        return plain_step(point, draws=draws)
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

    return stepping(
        point,
        steps,
        checked(point, oracle, partial(step_by_step, wrapper, oracle, draw)),
        n_bytes=wrapper.env.bytes_per_step + (sampler_bytes(wrapper) if draws else 0),
        n_ops=wrapper.env.ops_per_step,
        snapshot=partial(snapshot_of, wrapper.cuda_data_manager),
    )


def plain_step(point: Point, *, draws: bool) -> Timed:
    """Do the same in plain NumPy, checked step by step against the oracle; arguments as for `env_step`.

    Raises:
        Skip: The environment has no plain NumPy code.
    """
    if reason := why_no_plain([point["env"]]):
        raise Skip(reason)
    oracle = start_env(point, ORACLE, checked_envs(point), auto_reset=False)
    batch = BATCHES[point["env"]](oracle.env.config, point["n_envs"], SEED)
    drawn = batch.draw()
    return stepping(
        point,
        repeated(BACKENDS[ORACLE], lambda: batch.step(batch.draw() if draws else drawn)),
        checked(point, oracle, partial(agreement, batch, oracle)),
        n_bytes=oracle.env.bytes_per_step,
        n_ops=oracle.env.ops_per_step,
        snapshot=batch.snapshot,
    )


def stepping(
    point: Point,
    steps: Repeated,
    check: Callable[[], Check],
    *,
    n_bytes: int,
    n_ops: int,
    snapshot: Callable[[], Callable[[], None]],
) -> Timed:
    """Return the timing of steps of all environments of a point.

    Args:
        point: Whose backend has its threads pinned; plain NumPy has the one of the oracle.
        steps: Steps of a run.
        check: Holds them against an oracle.
        n_bytes: Least bytes that a step of one environment moves.
        n_ops: Least operations of the same.
        snapshot: As of `Timed`.
    """
    n_envs = point["n_envs"]
    return timed(
        BACKENDS.get(point["backend"], BACKENDS[ORACLE]),
        steps,
        check,
        is_pinned=True,
        work=steps_of(n_envs, point["n_agents"]),
        n_bytes=n_envs * n_bytes,
        n_ops=n_envs * n_ops,
        notes={"steps_per_run": steps.n},
        snapshot=snapshot,
    )


def checked(point: Point, oracle: EnvWrapper, compare: Callable[[int], Agreement]) -> Callable[[], Check]:
    """Return the check of a point by so many steps beside its oracle."""
    n_steps = CHECKED_STEPS if point["n_agents"] <= CHECKED_AGENTS else CHECKED_STEPS_OF_MANY

    def check() -> Check:
        seen = compare(n_steps)
        return Check(
            passed=seen.max_error <= oracle.env.tolerance,
            max_error=seen.max_error,
            oracle=f"NumPy, {oracle.n_envs} environments, {n_steps} steps from the same state",
            detail=str(seen),
        )

    return check


def step(point: Point) -> Timed:
    """Step and restart what ended, with actions that stay: the kernel alone."""
    return env_step(point, draws=False)


def start_env(point: Point, backend: str, n_envs: int, *, auto_reset: bool = True) -> EnvWrapper:
    """Build and start the environment of a point."""
    wrapper = build_env(point, backend, n_envs, auto_reset=auto_reset)
    wrapper.reset()
    return wrapper


def build_env(point: Point, backend: str, n_envs: int, *, auto_reset: bool = True) -> EnvWrapper:
    """Build the environment of a point; compiles its kernels."""
    return EnvWrapper(
        environment_of(point),
        num_envs=n_envs,
        env_backend=backend,
        seed=SEED,
        auto_reset=auto_reset,
        exact=point.get("exact", False),
    )


def is_outside(name: str) -> bool:
    """True if a name, which a config in JSON may follow, is ``module:Class`` or a path."""
    target = name.partition("{")[0]
    return target not in ENVS and (":" in target or os.path.exists(target))


def environment_of(point: Point) -> CUDAEnvironmentContext:
    """Return the environment of a point: one of `ENVS`, or of a class outside, and its config in JSON.

    Raises:
        ConfigError: There is no such class, or it does not take this config.
    """
    name, own = class_and_config(point["env"])
    if is_outside(name):
        return load_class(name)(**own)
    require(name in ENVS, "environment", f"must be one of {known(ENVS)}, module:Class, or an existing path", name)
    config = env_config(name, point["n_agents"], point.get("neighbor_search", "auto"), point.get("n_taggers"))
    return ENVS[name](**config)


def checked_envs(point: Point) -> int:
    """Return how many environments of a point are held against the oracle."""
    n_envs: int = min(point["n_envs"], CHECKED_AGENTS // point["n_agents"])
    return max(1, n_envs)


def sampler_bytes(wrapper: EnvWrapper) -> int:
    """Return bytes a draw must move for one environment: the distribution, the actions, the counter in and out."""
    total = 0
    for agents in agent_sets(wrapper.env).values():
        space = wrapper.env.action_space[agents[0]]
        if hasattr(space, "low"):  # uniform between bounds that all environments share
            total += 4 * len(agents) * int(space.shape[0]) + 8
        else:
            categories = category_counts(space)
            total += 4 * len(agents) * (sum(categories) + len(categories)) + 8
    return total


# ------------------------------------------------------------------ points

AGENT_COUNTS: Final = [5, 20, 110, 500, 1_000, 2_000, 5_000, 10_000]
"""Agents in each of `N_ENVS_OVER_AGENTS` environments."""
A_MILLION: Final = 2**20
"""Agents of one environment, the most that Tag Continuous has."""
N_ENVS_OVER_AGENTS: Final = 100
ORACLE_PAIRS: Final = 1_300_000
"""Pairs of agents in all environments up to which the oracle is measured; above, a step takes it seconds."""
ORACLE_ENVS: Final = 100_000
"""Environments up to which the oracle is measured; its rate does not grow any more."""
PLAIN_PAIRS: Final = 100_000_000
"""Pairs of agents up to which plain NumPy is measured where it looks at all of them."""
CARTPOLE: Final = ("cartpole", 1)
TAG_GRIDWORLD: Final = ("tag_gridworld", 5)
TAG_CONTINUOUS: Final = ("tag_continuous", 110)
RICE: Final = ("rice", 27)
COVID19_ECONOMY: Final = ("covid19_economy", 52)


def place(env: str, backend: str, n_envs: int, n_agents: int, **axes: Any) -> dict[str, Any]:
    """Return a point of an environment."""
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, **axes}


def backends(n_envs: int, n_agents: int) -> list[str]:
    """Return all backends, the oracle up to `ORACLE_PAIRS` and `ORACLE_ENVS`."""
    has_oracle = n_envs * n_agents**2 <= ORACLE_PAIRS and n_envs <= ORACLE_ENVS
    return [name for name in BACKENDS if name != "cpu" or has_oracle]


def codes(env: str, n_envs: int, n_agents: int) -> list[str]:
    """Return all backends, and plain NumPy for `PLAIN_ENVS`, in Tag Continuous up to `PLAIN_PAIRS`."""
    has_plain = env in PLAIN_ENVS and (env != "tag_continuous" or n_envs * n_agents**2 <= PLAIN_PAIRS)
    return [*([PLAIN] if has_plain else []), *backends(n_envs, n_agents)]


def env_step_sizes(preset: Preset) -> dict[tuple[str, int], list[int]]:
    """Return the numbers of environments that are measured, by environment and number of agents.

    Preset default has every second one: with all other cases it takes less than an hour on a machine with a GPU.
    """
    classic = [(env, 1) for env in EPISODE_LENGTHS]
    if preset == "smoke":
        return {key: [64] for key in classic} | {TAG_GRIDWORLD: [4], ("tag_continuous", 5): [4], RICE: [4]}
    on_gpu = torch.cuda.is_available() or preset == "full"
    of_one = [1, 100, 10_000, *([1_000_000] if on_gpu else [])]
    of_tag = [1, 10, 100, *([1_000, 2_000] if on_gpu else [])]
    if preset == "default":
        of_one, of_tag = of_one[1:], [10, 100, *of_tag[4:]]
    sizes = {key: list(of_one) for key in classic} | {key: list(of_tag) for key in (TAG_GRIDWORLD, TAG_CONTINUOUS)}
    sizes[CARTPOLE] = sorted({*of_one, 100_000})
    sizes[RICE] = [60, 1_000, *([10_000] if on_gpu else [])]
    if preset == "full":
        sizes["tag_continuous", 5] = [100, 1_000, 10_000, 100_000]
        sizes[TAG_GRIDWORLD] = [*sizes[TAG_GRIDWORLD], 100_000]
    sizes[COVID19_ECONOMY] = [60, *([1_000, 10_000] if on_gpu else [])]  # of 60 is WarpDrive's own number
    for env in ("tag_gridworld", "tag_continuous"):
        for n_agents in agent_counts(preset):
            if on_gpu or n_agents <= 1_000:
                sizes.setdefault((env, n_agents), [N_ENVS_OVER_AGENTS])
    return sizes


def agent_counts(preset: Preset) -> list[int]:
    """Return `AGENT_COUNTS`, in preset default every second one."""
    return AGENT_COUNTS[:: 2 if preset == "default" else 1]


def env_step_points(preset: Preset) -> list[Point]:
    """Return environments x backends x sizes, and with exact floats the largest CartPole and Tag Continuous.

    In presets full and paper with `A_MILLION` agents, too, of whom some are always where rounding decides.
    """
    sizes = env_step_sizes(preset)
    points: list[Point] = [
        place(env, backend, n_envs, n_agents, exact=False)
        for (env, n_agents), counts in sizes.items()
        for n_envs in counts
        for backend in codes(env, n_envs, n_agents)
    ]
    exact = [] if preset == "smoke" else [(*key, sizes[key][-1]) for key in (CARTPOLE, TAG_CONTINUOUS)]
    if preset in ("full", "paper"):
        exact.append(("tag_continuous", A_MILLION, 1))
    return points + [
        place(env, backend, n_envs, n_agents, exact=True)
        for env, n_agents, n_envs in exact
        for backend in BACKENDS
        if backend != "cpu"
    ]


def graph_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous as graphs, where there are any, and with every launch by itself.

    Preset default has the fewest environments, which gain the most, and the most.
    """
    sizes = env_step_sizes(preset)
    return [
        place(env, backend, n_envs, n_agents, mode=mode)
        for env, n_agents in (CARTPOLE, TAG_CONTINUOUS)
        for n_envs in sizes.get((env, n_agents), ())[:: len(sizes[env, n_agents]) - 1 if preset == "default" else 1]
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
        for backend in codes(env, n_envs, n_agents)
    ]


def neighbor_search_points(preset: Preset) -> list[Point]:
    """Return Tag Continuous with cells and with all pairs, in so many environments that a GPU is full."""
    on_gpu = torch.cuda.is_available()
    counts = (
        [60] if preset == "smoke" else [n for n in agent_counts(preset) if 500 <= n <= (10_000 if on_gpu else 1_000)]
    )
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
CROWD: Final[dict[str, Any]] = {"env": "tag_continuous", "n_agents": 1_000, "n_taggers": 100}
"""Agents of which a block steps an environment in CUDA C alone."""
GPU_ALONE: Final[tuple[dict[str, Any], ...]] = (
    {"env": "cartpole", "n_envs": 1_000, "n_agents": 1},
    {"env": "tag_gridworld", "n_envs": 1_000, "n_agents": 100},
    {**CROWD, "n_envs": 2_000},
)
"""Sizes of WarpDrive as it was measured for this project, and of its highest figure with a search for neighbours, which
would take NumPy minutes a step.
"""


def published_points(preset: Preset) -> list[Point]:
    """Return the node's point on every backend, the highest one where there is a GPU to compare; smoke: a tiny node."""
    if preset == "smoke":
        return [place(**NODE | {"n_envs": 3, "backend": backend}) for backend in (PLAIN, *ON_CPU)]
    points: list[Point] = [place(**NODE, backend=backend) for backend in (PLAIN, *BACKENDS)]
    if torch.cuda.is_available() or preset == "full":
        points += [place(**HIGHEST, backend=backend) for backend in (PLAIN, *BACKENDS)]
    return points + [place(**sizes, backend=backend) for sizes in GPU_ALONE for backend in ON_GPU]


# ------------------------------------------------------------------ pairs


def env_step_pairs(preset: Preset) -> Pairs:
    """Return GPUs over C++, CUDA C over the oracle and over Numba, it and C++ over plain NumPy, and many over few."""
    points = env_step_points(preset)
    compiled = [point for point in points if point["backend"] not in (ORACLE, PLAIN)]
    fastest = [point for point in points if point["backend"] in (PLAIN, "host", "pycuda")]
    few_and_many = [
        point
        for point in points
        if point["backend"] == "pycuda" and point["n_envs"] in (100, 2_000) and point["n_agents"] == TAG_GRIDWORLD[1]
    ]
    return [
        *pairs_over([point for point in points if point["backend"] in (ORACLE, "pycuda")], "backend", ORACLE),
        *pairs_over(fastest, "backend", PLAIN),
        *pairs_over(compiled, "backend", "host", "numba"),
        *pairs_over(few_and_many, "n_envs", 100),
    ]


# ------------------------------------------------------------------ cases

ENV_STEP: Final = Case(
    name="env_step",
    title="sample random actions, step every environment, restart those that ended",
    scope="env",
    workload=Timed,
    points=env_step_points,
    setup=env_step,
    pairs=env_step_pairs,
)
GRAPH: Final = compared(
    name="graph",
    title="env_step with every launch by itself, and all of many steps in one graph",
    scope="env",
    points=graph_points,
    setup=env_step,
    over=("mode", "eager"),
)
NEIGHBOR_SEARCH: Final = compared(
    name="neighbor_search",
    title="step Tag Continuous, looking for neighbours among all pairs of agents or in a grid of cells",
    scope="env",
    points=neighbor_search_points,
    setup=env_step,
    over=("neighbor_search", "all_pairs"),
)
PUBLISHED: Final = compared(
    name="published",
    title="env_step at sizes that others were measured at",
    scope="env",
    points=published_points,
    setup=env_step,
    over=("backend", "cpu", PLAIN, "host"),
)
STEP: Final = compared(
    name="step",
    title="step every environment and restart those that ended, with actions that stay",
    scope="kernel",
    points=step_points,
    setup=step,
    over=("backend", PLAIN),
)
