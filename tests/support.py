"""Helpers that several test files share."""

from __future__ import annotations

import html.parser
import os
import shutil
import subprocess
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from warpdrive_min import BACKENDS, CUDADataManager, CUDAFunctionManager, DataFeed
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.cli import app


def run(*words: object, exits: int | None = 0) -> Result:
    """Run `python -m warpdrive_min` in this process; return its result.

    Args:
        words: Words of the command line.
        exits: Expected exit code; None: any.
    """
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert exits in (None, result.exit_code), result.output
    return result


def run_python(*words: object, cwd: Path | None = None, env: Mapping[str, str] = os.environ, **more: str) -> str:
    """Run a Python program in a new process; return its standard output."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env={**env, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quick_compiler(folder: Path) -> dict[str, str]:
    """Return $CXX for a new process, whose kernels are built quickly, not for speed.

    Its command is a script in ``folder``.
    """
    path = folder / "quick-c++"
    path.write_text(f'#!/bin/sh\nexec {cuda_c.cpu_compiler() or "false"} "$@" -Og\n')
    path.chmod(0o755)
    return {"CXX": str(path)}


def is_simulated(backend: str) -> bool:
    """Return true for Numba's simulator.

    It is thousands of times slower.
    """
    return backend == "numba" and simulated()


def _parameter(name: str) -> Any:
    on_gpu = name in ("numba", "pycuda") and not is_simulated(name)
    return pytest.param(name, marks=[pytest.mark.gpu] if on_gpu else [])


def by_night(*values: Any) -> Any:
    """Return a slow parameter, tested at night; other ones check the same code by day."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def by_day(cases: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """Return cases as parameters, those that are not chosen as nightly."""
    return [case if case in chosen else by_night(*(case if isinstance(case, tuple) else (case,))) for case in cases]


BACKENDS_HERE = [_parameter(name) for name, backend in BACKENDS.items() if backend.availability().available]
"""Backends of this machine, as parameters; without a GPU `numba` is simulated."""

OTHER_BACKENDS = [each for each in BACKENDS_HERE if each.values != ("cpu",)]
"""Backends that are compared with the NumPy reference."""

on_every_backend = pytest.mark.parametrize("backend", BACKENDS_HERE)
on_every_other_backend = pytest.mark.parametrize("backend", OTHER_BACKENDS)
FAST_BACKENDS = [each for each in BACKENDS_HERE if not is_simulated(each.values[0])]
"""All but Numba's simulator, for statistics over thousands of draws."""
on_every_fast_backend = pytest.mark.parametrize("backend", FAST_BACKENDS)


def on_backends(
    name: str, cases: Iterable[Any], backends: Sequence[Any] = OTHER_BACKENDS, **by_day: Container[Any]
) -> Any:
    """Parametrise a test with cases and backends.

    Cases that ``by_day`` omits for a backend are nightly.

    Numba compiles for seconds for each constant, as does a C++ compiler.
    """

    def title(case: Any) -> str:
        return "-".join(map(str, case)) if isinstance(case, tuple) else str(case)

    def marks(backend: Any, case: Any) -> list[Any]:
        is_quick = case in by_day.get(backend.values[0], (case,))
        return [*backend.marks, *([] if is_quick else [pytest.mark.nightly])]

    return pytest.mark.parametrize(
        (name, "backend"),
        [
            pytest.param(case, *backend.values, marks=marks(backend, case), id=f"{title(case)}-{backend.values[0]}")
            for case in cases
            for backend in backends
        ],
    )


COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
"""C++ compilers of this machine."""
on_each_compiler = pytest.mark.parametrize("compiler", COMPILERS, indirect=True)
"""Run with each C++ compiler in $CXX."""

needs_host = pytest.mark.skipif(not BACKENDS["host"].availability().available, reason="found no C++ compiler")
needs_cuda_compiler = pytest.mark.skipif(cuda_c.gpu_compiler() is None, reason="found no CUDA compiler")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="found no nvcc")


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Browser of this machine, in which tests open pages."""


class Page(html.parser.HTMLParser):
    """Elements of a page with attributes, and its scripts and style by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._kind = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        usual = {"script": "text/javascript", "style": "text/css"}.get(tag, "")
        self._kind = usual and (dict(attributes).get("type") or usual)

    def handle_endtag(self, tag: str) -> None:
        self._kind = ""

    def handle_data(self, data: str) -> None:
        if self._kind:
            self.scripts[self._kind] = self.scripts.get(self._kind, "") + data

    @property
    def links(self) -> list[str | None]:
        """Addresses to which links lead."""
        return [each["href"] for tag, each in self.elements if tag == "a" and "href" in each]

    @property
    def loaded(self) -> list[str | None]:
        """Addresses that the page loads."""
        return [each[name] for tag, each in self.elements if tag != "a" for name in ("src", "href") if name in each]


def managers(
    backend: str, n_agents: int = 3, n_envs: int = 2, blocks: int = 1, episode_length: int = 4
) -> tuple[CUDADataManager, CUDAFunctionManager]:
    """Return new data and function managers of a backend."""
    data = CUDADataManager(n_agents, n_envs, blocks, episode_length=episode_length, backend=backend)
    return data, CUDAFunctionManager(n_agents, n_envs, blocks, backend=backend)


def push(data: CUDADataManager, name: str, value: Any, **attributes: Any) -> None:
    """Push one entry."""
    feed = DataFeed()
    feed.add_data(name, value, **attributes)
    data.push_data_to_device(feed)


_FIVE = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 2.0,
    "episode_length": 40,
    "max_acceleration": 0.1,
    "min_acceleration": -0.1,
    "max_turn": 2.356,
    "min_turn": -2.356,
    "num_acceleration_levels": 5,
    "num_turn_levels": 5,
    "edge_hit_penalty": -0.1,
    "num_other_agents_observed": 2,
    "tagging_distance": 0.1,
    "tag_reward_for_tagger": 10.0,
    "step_penalty_for_tagger": -0.01,
    "tag_penalty_for_runner": -10.0,
    "step_reward_for_runner": 0.01,
    "end_of_game_reward_for_runner": 1.0,
    "seed": 274880,
}
TAG_CONFIGS: dict[str, dict[str, Any]] = {
    f"{'full' if full else 'partial'}, {'exits' if exits else 'stays'}": {
        **_FIVE,
        "use_full_observation": full,
        "runner_exits_game_after_tagged": exits,
    }
    for full in (True, False)
    for exits in (True, False)
}
"""Five agents in WarpDrive's test modes: full or partial, runners exit or stay."""

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("cartpole", {"episode_length": 30}),
    "cartpole, pool": ("cartpole", {"episode_length": 30, "reset_pool_size": 4}),
    "mountain_car": ("mountain_car", {"episode_length": 30}),
    "continuous_mountain_car": ("continuous_mountain_car", {"episode_length": 30, "reset_pool_size": 4}),
    "acrobot": ("acrobot", {"episode_length": 30}),
    "pendulum": ("pendulum", {"episode_length": 30}),
    "tag_gridworld": ("tag_gridworld", {"num_taggers": 4, "grid_length": 6, "episode_length": 30}),
    "tag_gridworld, partial, pool": (
        "tag_gridworld",
        {"num_taggers": 4, "grid_length": 6, "episode_length": 30, "use_full_observation": False, "reset_pool_size": 5},
    ),
    "tag_continuous": ("tag_continuous", TAG_CONFIGS["partial, exits"]),
    "tag_continuous, cells": ("tag_continuous", {**TAG_CONFIGS["partial, exits"], "neighbor_search": "grid"}),
    "tag_continuous, spread": (
        "tag_continuous",
        {
            **TAG_CONFIGS["partial, exits"],
            "num_runners": 10,
            "num_other_agents_observed": 11,
            "neighbor_search": "grid",
        },
    ),
    "covid19_economy": (
        "covid19_economy",
        {"episode_length": 30, "stringency_days": 3, "subsidy_days": 5, "vaccination_start": 4, "start_spread": 0.5},
    ),
    "rice": ("rice", {"num_regions": 4, "episode_length": 30, "reset_pool_size": 4}),
    "rice, trade": ("rice", {"num_regions": 3, "episode_length": 20, "trade": True, "reset_pool_size": 4}),
    "rice, negotiation": (
        "rice",
        {"num_regions": 3, "episode_length": 20, "trade": True, "negotiation": True, "reset_pool_size": 4},
    ),
}
"""Every environment in each of its kernels' forms: name in `ENVS`, and config."""
KINDS = (
    "cartpole, pool",
    "pendulum",
    "tag_gridworld, partial, pool",
    "tag_continuous, spread",
    "covid19_economy",
    "rice, negotiation",
)
"""One scenario for each kind of kernel, as Numba compiles all slowly."""
QUICK_KINDS = [kind for kind in KINDS if kind not in ("tag_continuous, spread", "covid19_economy")]
"""Kinds that Numba compiles, and simulates, in less time."""


def random_tag_config(seed: int) -> dict[str, Any]:
    """Draw a config with an early tag."""
    generator = np.random.default_rng(seed)
    n_taggers, n_runners = (int(n) for n in generator.integers(1, 7, 2))
    n_agents = n_taggers + n_runners
    return {
        "num_taggers": n_taggers,
        "num_runners": n_runners,
        "grid_length": float(generator.uniform(1, 20)),
        "episode_length": int(generator.integers(5, 60)),
        "max_speed": float(generator.uniform(0.5, 2)),
        "skill_level_runner": float(generator.uniform(0.5, 1.5)),
        "skill_level_tagger": float(generator.uniform(0.5, 1.5)),
        "max_acceleration": float(generator.uniform(0.1, 1)),
        "min_acceleration": float(generator.uniform(-1, -0.1)),
        "max_turn": float(generator.uniform(0.1, 7)),
        "min_turn": float(generator.uniform(-7, -0.1)),
        "num_acceleration_levels": int(generator.integers(0, 12)),
        "num_turn_levels": int(generator.integers(0, 12)),
        "edge_hit_penalty": float(-generator.uniform(0, 1)),
        "use_full_observation": bool(generator.integers(2)),
        "num_other_agents_observed": int(generator.integers(1, n_agents)),
        "tagging_distance": float(generator.uniform(0.1, 0.4)),
        "tag_reward_for_tagger": float(generator.uniform(3, 10)),  # above any two penalties, so that a tag shows
        "tag_penalty_for_runner": float(-generator.uniform(0, 10)),
        "step_penalty_for_tagger": float(-generator.uniform(0, 1)),
        "step_reward_for_runner": float(generator.uniform(0, 1)),
        "end_of_game_reward_for_runner": float(generator.uniform(0, 5)),
        "runner_exits_game_after_tagged": bool(generator.integers(2)),
        "seed": seed,
    }
