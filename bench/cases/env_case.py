"""The cases `env_step`, `graph`, `neighbor_search` and `step`: environments that are stepped, with or without draws."""

from __future__ import annotations

from typing import Any, Final

import torch

from bench.case import Check, Facts, Point, Preset
from bench.cases.environments import EPISODE_LENGTHS, ON_GPU, SEED, available, env_config
from bench.cases.repeats import repeated
from bench.measure import Timed
from envs import ENVS
from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.consistency import step_by_step
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import category_counts

CHECKED_STEPS: Final = 8
CHECKED_STEPS_OF_MANY: Final = 2
"""Of more agents than `CHECKED_AGENTS`, whose pairs take the oracle seconds a step."""
CHECKED_AGENTS: Final = 2_000
"""Agents of the environments that are stepped beside the oracle; the first ones of the point."""


def env_step(point: Point, *, draws: bool = True) -> Timed:
    """Sample uniform random actions, step, restart what ended: many times in a graph, eagerly on a CPU.

    Args:
        point: Its ``mode``, where it has one, says whether there is a graph.
        draws: Sample in each step; else the actions of one draw are taken again and again.
    """
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    draw = random_policy(wrapper, SEED)
    draw()

    def advance() -> None:
        if draws:
            draw()
        wrapper.step()

    steps = repeated(backend, advance, point.get("mode"))
    n_checked = max(1, min(point["n_envs"], CHECKED_AGENTS // point["n_agents"]))
    checked_steps = CHECKED_STEPS if point["n_agents"] <= CHECKED_AGENTS else CHECKED_STEPS_OF_MANY
    oracle = start_env(point, "cpu", n_checked)

    def check() -> Check:
        seen = step_by_step(wrapper, oracle, draw, checked_steps)
        return Check(
            passed=seen.max_error <= wrapper.env.tolerance,
            max_error=seen.max_error,
            oracle=f"NumPy, {n_checked} environments, {checked_steps} steps from the same state",
            detail=str(seen),
        )

    env_steps = steps.n * point["n_envs"]
    return Timed(
        run=steps.run,
        synchronize=backend.synchronize,
        check=check,
        facts=Facts(
            mode=steps.mode,
            device=backend.device,
            threads=backend.threads,
            work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
            bytes_per_run=env_steps * (wrapper.env.bytes_per_step + (sampler_bytes(wrapper) if draws else 0)),
            ops_per_run=env_steps * wrapper.env.ops_per_step,
            notes={"steps_per_run": steps.n},
        ),
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


def sampler_bytes(wrapper: EnvWrapper) -> int:
    """Bytes a draw must move for one environment: the distribution, the actions and the counter in and out."""
    space = next(iter(wrapper.env.action_space.values()))
    if hasattr(space, "low"):  # uniform between bounds that all environments share
        return 4 * wrapper.n_agents * int(space.shape[0]) + 8
    categories = category_counts(space)
    return 4 * wrapper.n_agents * (sum(categories) + len(categories)) + 8


# ------------------------------------------------------------------ points


def env_step_points(preset: Preset) -> list[Point]:
    """Environments x backends x sizes; NumPy is spared the sizes at which a step takes it seconds."""
    counts = env_step_sizes(preset)
    points: list[Point] = [
        _plain(env, n_agents, backend, n_envs)
        for (env, n_agents), sizes in counts.items()
        for n_envs in sizes
        for backend in BACKENDS
        if backend != "cpu" or n_envs * n_agents**2 <= NUMPY_PAIRS
    ]
    if preset != "smoke":
        points += [
            {**_plain(env, n_agents, backend, counts[env, n_agents][-1]), "exact": True}
            for env, n_agents in (("cartpole", 1), ("tag_continuous", 110))
            for backend in BACKENDS
            if backend != "cpu"
        ]
    return points


def graph_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous as graphs, where there are any, and with every launch by itself."""
    counts = env_step_sizes(preset)
    keys = [key for key in (("cartpole", 1), ("tag_continuous", 110)) if key in counts]
    return [
        {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "mode": mode}
        for env, n_agents in keys
        for n_envs in counts[env, n_agents]
        for backend in BACKENDS
        if backend != "cpu" or n_envs * n_agents**2 <= NUMPY_PAIRS
        for mode in (("eager", "graph") if backend in ON_GPU else ("eager",))
    ]


def _plain(env: str, n_agents: int, backend: str, n_envs: int) -> dict[str, Any]:
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "exact": False}


def step_points(preset: Preset) -> list[Point]:
    """Return CartPole and the Tag environments at the largest sizes of `env_step`, and at 100 environments."""
    counts = env_step_sizes(preset)
    keys = [key for key in (("cartpole", 1), ("tag_gridworld", 5), ("tag_continuous", 110)) if key in counts]
    return [
        {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents}
        for env, n_agents in keys
        for n_envs in sorted({min(counts[env, n_agents][-1], 100), counts[env, n_agents][-1]})
        for backend in BACKENDS
        if backend != "cpu" or n_envs * n_agents**2 <= NUMPY_PAIRS
    ]


def env_step_sizes(preset: Preset) -> dict[tuple[str, int], list[int]]:
    """Return the numbers of environments that are measured, by environment and number of agents."""
    classic = [(env, 1) for env in EPISODE_LENGTHS]
    tags = [("tag_gridworld", 5), ("tag_continuous", 110)]
    if preset == "smoke":
        return {key: [64] for key in classic} | {("tag_gridworld", 5): [4], ("tag_continuous", 5): [4]}
    on_gpu = torch.cuda.is_available() or preset == "full"
    sizes = {key: [1, 100, 10_000] + ([1_000_000] if on_gpu else []) for key in classic}
    sizes["cartpole", 1] = [1, 100, 10_000, 100_000] + ([1_000_000] if on_gpu else [])
    sizes |= {key: [1, 10, 100] + ([1_000, 2_000] if on_gpu else []) for key in tags}
    if preset == "full":
        sizes["tag_continuous", 5] = [100, 1_000, 10_000, 100_000]
        sizes["tag_gridworld", 5] = [*sizes["tag_gridworld", 5], 100_000]
    crowds = CROWDS if on_gpu else [n for n in CROWDS if n <= 1_000]
    return sizes | {(env, n): [AMONG] for env, _ in tags for n in crowds if (env, n) not in sizes}


CROWDS: Final = [5, 20, 110, 500, 1_000, 2_000, 5_000, 10_000]
"""Agents in each of `AMONG` environments."""
AMONG: Final = 100

NUMPY_PAIRS: Final = 1_300_000
"""Pairs of agents in all environments up to which NumPy is measured."""


def neighbor_search_points(preset: Preset) -> list[Point]:
    """Return Tag Continuous with cells and with all pairs, in so many environments that a GPU is full."""
    on_gpu = torch.cuda.is_available()
    crowds = [60] if preset == "smoke" else [500, 1_000, 2_000, 5_000, 10_000] if on_gpu else [500, 1_000]
    return [
        {
            "env": "tag_continuous",
            "backend": backend,
            "n_envs": AMONG if on_gpu else 1,
            "n_agents": n_agents,
            "neighbor_search": search,
        }
        for n_agents in crowds
        for backend in BACKENDS
        if BACKENDS[backend].language != "numpy" and (backend != "host" or n_agents <= 1_000)
        for search in ("all_pairs", "grid")
    ]
