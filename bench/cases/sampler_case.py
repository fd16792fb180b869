"""The case `sampler`: one action for every agent, ours against torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from bench.case import Check, Facts, Point, Preset
from bench.cases.environments import SEED, available
from bench.cases.repeats import repeated, torch_threads
from bench.measure import Timed
from warpdrive_min import BACKENDS, CUDADataManager, CUDAFunctionManager, CUDASampler, DataFeed
from warpdrive_min.backends import Backend
from warpdrive_min.constants import Constants


def sampler(point: Point) -> Timed:
    """Draw one action for every agent from probabilities: ours, or torch's on the same device."""
    backend = available(point["backend"])
    shape = (point["n_envs"], point["n_agents"], point["n_actions"])
    weights = np.random.default_rng(SEED).random(shape, np.float32)
    probabilities = torch.from_numpy(weights / weights.sum(-1, keepdims=True)).to(backend.device)
    make = {"ours": our_sampler, "torch.multinomial": torch_multinomial, "torch.Categorical": torch_categorical}
    draw, actions = make[point["implementation"]](backend, probabilities)
    captured = backend.captures_graphs and point["implementation"] != "torch.Categorical"
    draws = repeated(backend, draw, "graph" if captured else "eager")
    n_samples = draws.n * point["n_envs"] * point["n_agents"]
    return Timed(
        run=draws.run,
        synchronize=backend.synchronize,
        check=lambda: check_frequencies(draw, actions, probabilities),
        facts=Facts(
            mode=draws.mode,
            device=backend.device,
            threads=backend.threads if point["implementation"] == "ours" else torch_threads(backend),
            work={"samples": n_samples},
            bytes_per_run=n_samples * 4 * (point["n_actions"] + 1),
            ops_per_run=n_samples * 2 * point["n_actions"],
            notes={"draws_per_run": draws.n},
        ),
    )


MOST_DRAWS: Final = 2_000
"""Of a check: with few agents their number alone would take its time."""

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


def check_frequencies(
    draw: Callable[[], None], actions: Callable[[], torch.Tensor], probabilities: torch.Tensor
) -> Check:
    """Compare how often each action came with how often it should, in standard errors."""
    n_draws = max(1, min(MOST_DRAWS, 200_000 // probabilities[..., 0].numel()))
    counts = torch.zeros(probabilities.shape[-1], dtype=torch.float64)
    for _ in range(n_draws):
        draw()
        drawn = actions().flatten().cpu()
        counts += torch.bincount(drawn, minlength=len(counts)).double()
    each = probabilities.double().cpu()
    mean, variance = n_draws * each.sum((0, 1)), n_draws * (each * (1 - each)).sum((0, 1))
    worst = float(((counts - mean).abs() / variance.sqrt()).max())
    return Check(
        passed=worst < 6,
        max_error=worst,
        oracle="frequencies, in standard errors",
        detail=f"{n_draws} draws of every agent",
    )


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
