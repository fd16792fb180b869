"""Every benchmark of the project, each stated once. Whatever measures, gates or plots reads `CASES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from bench.case import Case, Correctness, Point, Prepared, Preset
from bench.environments import EPISODE_LENGTHS, SEED, available, env_config
from bench.learn import learn, learn_points
from bench.train import train, train_points
from envs import ENVS
from warpdrive_min import BACKENDS, CUDADataManager, CUDAFunctionManager, CUDASampler, DataFeed, EnvWrapper, capture
from warpdrive_min.backends import Backend
from warpdrive_min.consistency import step_by_step
from warpdrive_min.constants import Constants
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import category_counts

GRAPH_STEPS: Final = 50
"""Steps in a captured graph; long enough that its launch costs nothing."""
EAGER_STEPS: Final = 4
"""Steps of a run on a CPU: one Philox block serves four draws, so that every run costs the same."""
CHECKED_STEPS: Final = 8
CHECKED_STEPS_OF_MANY: Final = 2
"""Of more agents than `CHECKED_AGENTS`, whose pairs take the oracle seconds a step."""
CHECKED_AGENTS: Final = 2_000
"""Agents of the environments that are stepped beside the oracle; the first ones of the point."""

# ------------------------------------------------------------------ env_step


def env_step(point: Point) -> Prepared:
    """Sample uniform random actions, step, restart what ended: `GRAPH_STEPS` times in a graph, eagerly on a CPU."""
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    draw = random_policy(wrapper, SEED)

    def steps(n: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(n):
                draw()
                wrapper.step()

        return run

    mode, n_steps = ("graph", GRAPH_STEPS) if backend.captures_graphs else ("eager", EAGER_STEPS)
    steps(1)()
    run = capture(backend, steps(n_steps)) if mode == "graph" else steps(n_steps)
    n_checked = max(1, min(point["n_envs"], CHECKED_AGENTS // point["n_agents"]))
    checked_steps = CHECKED_STEPS if point["n_agents"] <= CHECKED_AGENTS else CHECKED_STEPS_OF_MANY
    oracle = start_env(point, "cpu", n_checked)

    def check() -> Correctness:
        seen = step_by_step(wrapper, oracle, draw, checked_steps)
        return Correctness(
            passed=seen.max_error <= wrapper.env.tolerance,
            max_error=seen.max_error,
            oracle=f"NumPy, {n_checked} environments, {checked_steps} steps from the same state",
            detail=str(seen),
        )

    env_steps = n_steps * point["n_envs"]
    return Prepared(
        run=run,
        synchronize=backend.synchronize,
        work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
        check=check,
        mode=mode,
        device=backend.device,
        threads=backend.threads,
        bytes_per_run=env_steps * (wrapper.env.bytes_per_step + sampler_bytes(wrapper)),
        ops_per_run=env_steps * wrapper.env.ops_per_step,
        notes={"steps_per_run": n_steps},
    )


def start_env(point: Point, backend: str, n_envs: int) -> EnvWrapper:
    """Build and start the environment of a point."""
    config = env_config(point["env"], point["n_agents"], point.get("neighbor_search", "auto"))
    wrapper = EnvWrapper(
        ENVS[point["env"]](**config),
        num_envs=n_envs,
        env_backend=backend,
        seed=SEED,
        auto_reset=True,
        exact=point.get("exact", False),
    )
    wrapper.reset()
    return wrapper


def sampler_bytes(wrapper: EnvWrapper) -> int:
    """Bytes a draw must move for one environment: the distribution, the actions and the counter in and out."""
    space = next(iter(wrapper.env.action_space.values()))
    if hasattr(space, "low"):  # uniform between bounds that all environments share
        return 4 * wrapper.n_agents * space.shape[0] + 8
    categories = category_counts(space)
    return 4 * wrapper.n_agents * (sum(categories) + len(categories)) + 8


# ------------------------------------------------------------------ sampler


def sampler(point: Point) -> Prepared:
    """Draw one action for every agent from probabilities: ours, or torch's on the same device."""
    backend = available(point["backend"])
    shape = (point["n_envs"], point["n_agents"], point["n_actions"])
    weights = np.random.default_rng(SEED).random(shape, np.float32)
    probabilities = torch.from_numpy(weights / weights.sum(-1, keepdims=True)).to(backend.device)
    make = {"ours": our_sampler, "torch.multinomial": torch_multinomial, "torch.Categorical": torch_categorical}
    draw, actions = make[point["implementation"]](backend, probabilities)
    draw()
    n_draws = GRAPH_STEPS if backend.captures_graphs else EAGER_STEPS

    def block() -> None:
        for _ in range(n_draws):
            draw()

    captured = backend.captures_graphs and point["implementation"] != "torch.Categorical"
    n_samples = n_draws * point["n_envs"] * point["n_agents"]
    return Prepared(
        run=capture(backend, block) if captured else block,
        synchronize=backend.synchronize,
        work={"samples": n_samples},
        check=lambda: check_frequencies(draw, actions, probabilities),
        mode="graph" if captured else "eager",
        device=backend.device,
        threads=backend.threads if point["implementation"] == "ours" else torch_threads(backend),
        bytes_per_run=n_samples * 4 * (point["n_actions"] + 1),
        ops_per_run=n_samples * 2 * point["n_actions"],
        notes={"draws_per_run": n_draws},
    )


Draw = tuple[Callable[[], None], Callable[[], torch.Tensor]]
"""What draws, and what returns the last actions, (n_envs, n_agents)."""


def our_sampler(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `CUDASampler`."""
    n_envs, n_agents, n_actions = probabilities.shape
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
    feed = DataFeed()
    feed.add_data(Constants.ACTIONS, np.zeros((n_agents, 1), np.int32), n_copies=n_envs)
    data.push_data_to_device(feed)
    ours = CUDASampler(CUDAFunctionManager(n_agents, n_envs, backend=backend))
    ours.register_actions(data, Constants.ACTIONS, n_actions)
    ours.init_random(SEED)
    return lambda: ours.sample(data, probabilities), lambda: data.tensor(Constants.ACTIONS)[..., 0]


def torch_multinomial(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `torch.multinomial`, which takes the rows of all environments together."""
    rows = probabilities.flatten(0, 1)
    last = torch.zeros((len(rows), 1), dtype=torch.int64, device=backend.device)

    def draw() -> None:
        torch.multinomial(rows, 1, out=last)

    return draw, lambda: last.view(probabilities.shape[:2])


def torch_categorical(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `torch.distributions.Categorical`, built anew for each draw as a policy's output asks for."""
    last: list[torch.Tensor] = []

    def draw() -> None:
        last[:] = [torch.distributions.Categorical(probs=probabilities).sample()]

    return draw, lambda: last[0]


def torch_threads(backend: Backend) -> int | None:
    """Threads of torch's own sampler."""
    return torch.get_num_threads() if backend.device.type == "cpu" else None


def check_frequencies(
    draw: Callable[[], None], actions: Callable[[], torch.Tensor], probabilities: torch.Tensor
) -> Correctness:
    """Compare how often each action came with how often it should, in standard errors."""
    n_draws = max(1, 200_000 // probabilities[..., 0].numel())
    counts = torch.zeros(probabilities.shape[-1], dtype=torch.float64)
    for _ in range(n_draws):
        draw()
        drawn = actions().flatten().cpu()
        counts += torch.bincount(drawn, minlength=len(counts)).double()
    each = probabilities.double().cpu()
    mean, variance = n_draws * each.sum((0, 1)), n_draws * (each * (1 - each)).sum((0, 1))
    worst = float(((counts - mean).abs() / variance.sqrt()).max())
    return Correctness(
        passed=worst < 6,
        max_error=worst,
        oracle="frequencies, in standard errors",
        detail=f"{n_draws} draws of every agent",
    )


# ------------------------------------------------------------------ points


def env_step_points(preset: Preset) -> list[Point]:
    """Environments x backends x sizes; NumPy is spared the sizes at which a step takes it seconds."""
    counts = env_step_sizes(preset)
    points: list[Point] = [
        {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "exact": False}
        for (env, n_agents), sizes in counts.items()
        for n_envs in sizes
        for backend in BACKENDS
        if backend != "cpu" or n_envs * n_agents**2 <= NUMPY_PAIRS
    ]
    if preset != "smoke":
        points += [
            {"env": env, "backend": backend, "n_envs": counts[env, n_agents][-1], "n_agents": n_agents, "exact": True}
            for env, n_agents in (("cartpole", 1), ("tag_continuous", 110))
            for backend in BACKENDS
            if backend != "cpu"
        ]
    return points


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


def sampler_points(preset: Preset) -> list[Point]:
    """Return ours and torch's samplers on each backend's device."""
    if preset == "smoke":
        on_cpu = on_gpu = [(8, 1, 2)]
    else:
        on_cpu = [(100, 110, 21)]
        on_gpu = [*on_cpu, (10_000, 1, 2), (2_000, 1_000, 10)]
    return [
        {"implementation": name, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "n_actions": n_actions}
        for backend in BACKENDS
        for n_envs, n_agents, n_actions in (on_cpu if backend in ("cpu", "host") else on_gpu)
        for name in ("ours", "torch.multinomial", "torch.Categorical")
        if name == "ours"
        or backend in ("cpu", "pycuda")  # torch's own do not depend on the backend, only on its device
    ]


CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        Case(
            name="env_step",
            summary="sample random actions, step every environment, restart those that ended",
            scope="env",
            version=1,
            points=env_step_points,
            setup=env_step,
        ),
        Case(
            name="neighbor_search",
            summary="step Tag Continuous, looking for neighbours among all pairs of agents or in a grid of cells",
            scope="env",
            version=1,
            points=neighbor_search_points,
            setup=env_step,
        ),
        Case(
            name="sampler",
            summary="draw an action for every agent: ours against torch.multinomial and Categorical",
            scope="kernel",
            version=1,
            points=sampler_points,
            setup=sampler,
        ),
        Case(
            name="train",
            summary="play a rollout of the policies and learn from it",
            scope="train",
            version=1,
            points=train_points,
            setup=train,
        ),
        Case(
            name="learn",
            summary="train from a seed until the mean return reaches a threshold",
            scope="learn",
            version=1,
            points=learn_points,
            setup=learn,
        ),
    )
}
"""All benchmarks, by name."""
