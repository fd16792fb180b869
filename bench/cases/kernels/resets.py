"""The case `reset`: every environment is restarted, by its own kernel or by copying saved arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from bench.case import Check, Point, Preset
from bench.cases.env_case import start_env
from bench.cases.environments import SEED, available
from bench.cases.kernels.shared import OURS, arrays_of, implementations, mark_done, on_gpu_too, prepared, worst
from bench.measure import Timed
from warpdrive_min import CUDADataManager, CUDAEnvironmentReset, CUDAFunctionManager, DataFeed
from warpdrive_min.backends import Backend
from warpdrive_min.consistency import copy_state, difference
from warpdrive_min.constants import DONE, EPISODE, TIMESTEP


def reset(point: Point) -> Timed:
    """Restart every environment: by its own kernel, or by copying saved arrays, as those without one are restarted."""
    backend = available(point["backend"])
    return (own_reset if point["implementation"] == OURS else saved_reset)(point, backend)


def own_reset(point: Point, backend: Backend) -> Timed:
    """Restart by the kernel `reset` of the environment; the check restarts some on NumPy too, from the same state."""
    n_checked = max(1, min(point["n_envs"], CHECKED_AGENTS // point["n_agents"]))
    wrapper = start_env(point, point["backend"], point["n_envs"])
    oracle = start_env(point, "cpu", n_checked)
    data, expected = wrapper.cuda_data_manager, oracle.cuda_data_manager
    generator = torch.Generator().manual_seed(SEED)

    def check() -> Check:
        mark_done(data, generator)
        copy_state(data, expected)
        wrapper.env_resetter.reset_when_done(data)
        oracle.env_resetter.reset_when_done(expected)
        want, got = arrays_of(expected), arrays_of(data)
        errors = {
            name: difference(
                array.numpy(), got[name][: len(array)].numpy(), expected.attribute(name, "period", 0.0)
            ).error
            for name, array in want.items()
        }
        oracle_name = f"NumPy, {n_checked} environments, of which half have ended, from the same state"
        return worst(errors, oracle_name, wrapper.env.tolerance)

    written = (data.tensor(name) for name in ("observations", DONE, TIMESTEP, EPISODE))
    return prepared(
        point,
        backend,
        lambda: wrapper.env_resetter.reset_when_done(data, "force_reset"),
        check,
        units={"env_resets": point["n_envs"]},
        least_bytes=sum(array.nbytes for array in written),
    )


def saved_reset(point: Point, backend: Backend) -> Timed:
    """Restart by copying `SAVED_WORDS` numbers for each agent; the check spoils all and restarts half of them."""
    n_envs, n_agents = point["n_envs"], point["n_agents"]
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
    feed = DataFeed()
    start = np.random.default_rng(SEED).random((n_envs, n_agents, SAVED_WORDS), np.float32)
    feed.add_data("state", start, save_copy_and_apply_at_reset=True)
    data.push_data_to_device(feed)
    resetter = CUDAEnvironmentReset(CUDAFunctionManager(n_agents, n_envs, backend=backend))
    generator = torch.Generator().manual_seed(SEED)

    def check() -> Check:
        state = data.tensor("state")
        state.add_(1)
        is_done = mark_done(data, generator)
        before = arrays_of(data)
        resetter.reset_when_done(data)
        got = arrays_of(data)
        saved = torch.from_numpy(start)
        want = {
            "state": torch.where(is_done[:, None, None], saved, before["state"]),
            DONE: torch.zeros_like(before[DONE]),
            TIMESTEP: torch.where(is_done, 0, before[TIMESTEP]),
            EPISODE: before[EPISODE] + is_done,
        }
        errors = {name: float((got[name] - array).abs().max()) for name, array in want.items()}
        return worst(errors, "torch: the saved rows of the environments that have ended, the others as they were")

    return prepared(
        point,
        backend,
        lambda: resetter.reset_when_done(data, "force_reset"),
        check,
        units={"env_resets": n_envs},
        least_bytes=2 * start.nbytes,
    )


CHECKED_AGENTS: Final = 2_000
"""Agents of the environments that are reset beside the oracle."""
SAVED_WORDS: Final = 8
"""Numbers that are restored for each agent."""


def reset_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous, by their own kernels and by saved arrays."""
    sizes: list[dict[str, Any]] = [{"env": "cartpole", "n_envs": 64, "n_agents": 1}]
    if preset != "smoke":
        sizes = [
            {"env": "cartpole", "n_envs": 10_000, "n_agents": 1},
            {"env": "tag_continuous", "n_envs": 100, "n_agents": 110},
        ]
    if on_gpu_too(preset):
        sizes += [
            {"env": "cartpole", "n_envs": 1_000_000, "n_agents": 1},
            {"env": "tag_continuous", "n_envs": 2_000, "n_agents": 110},
        ]
    own = [point for size in sizes for point in implementations(size, (OURS,))]
    saved = [{name: value for name, value in size.items() if name != "env"} for size in sizes]
    return own + [point for size in saved for point in implementations(size, ("saved arrays",))]
