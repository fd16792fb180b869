"""Launch every kernel of a backend on small and odd sizes.

For compute-sanitizer:

compute-sanitizer --tool memcheck  python -m tests.every_kernel pycuda
compute-sanitizer --tool racecheck python -m tests.every_kernel numba
compute-sanitizer --tool racecheck python -m tests.every_kernel numba rice covid19_economy

With names of environments it launches only theirs. The kernels are those of `bench.static.probe` and of
`tests.training.triton_kernels`, which also compile them without a GPU.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

from bench.static.probe import PROGRAMS
from tests.support import SCENARIOS, TAG_CONFIGS
from tests.training.builders import CLASSIC, PPO, make_run
from tests.training.builders import RUNS as TRAINING_RUNS
from warpdrive_min import BACKENDS
from warpdrive_min.envs import ENVS

TAG = {**TAG_CONFIGS["partial, exits"], "episode_length": 3}
GRID = {"num_taggers": 300, "grid_length": 9, "episode_length": 3}
GRID_3001 = {**GRID, "num_taggers": 3000, "grid_length": 99, "use_full_observation": False}
RUNS = [(name, {**config, "episode_length": 3}, 37, None) for name, config in SCENARIOS.values()] + [
    ("cartpole", {"episode_length": 3}, 300, None),
    ("pendulum", {"episode_length": 3}, 300, None),
    ("tag_continuous", {**TAG, "use_full_observation": True}, 5, None),
    ("tag_continuous", {**TAG, "num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10}, 3, None),
    ("tag_continuous", {**TAG, "num_taggers": 30, "num_runners": 220, "num_other_agents_observed": 20}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 60, "num_runners": 600, "num_other_agents_observed": 20}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 60, "num_runners": 600, "num_other_agents_observed": 10}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 9, "num_runners": 60, "neighbor_search": "grid"}, 3, None),
    ("tag_continuous", {**TAG, "num_taggers": 9, "num_runners": 60, "neighbor_search": "grid"}, 3, 2),
    ("tag_continuous", {**TAG, "num_taggers": 99, "num_runners": 999, "neighbor_search": "all_pairs"}, 1, None),
    ("tag_gridworld", GRID, 2, None),
    ("tag_gridworld", GRID_3001, 2, None),
    ("tag_gridworld", GRID, 2, 7),
    ("tag_gridworld", GRID_3001, 2, 5),
]
"""Environment, config, number of copies, and blocks per copy (None: default)."""
CORE: list[tuple[str, dict[str, Any]]] = [
    ("sampling", {"n_envs": 33, "n_agents": 1, "categories": (2,)}),
    ("sampling", {"n_envs": 5, "n_agents": 7, "categories": (3, 4)}),
    ("sampling", {"n_envs": 2, "n_agents": 200, "categories": (10,)}),
    ("sampling", {"n_envs": 3, "n_agents": 70, "categories": (21, 21)}),
    ("sampling", {"n_envs": 33, "n_agents": 1, "n_types": 1}),
    ("sampling", {"n_envs": 5, "n_agents": 7, "n_types": 3}),
    ("sampling", {"n_envs": 2, "n_agents": 200, "n_types": 2}),
    ("resetting", {"n_envs": 131, "n_agents": 3}),
    ("scanning", {"n_envs": 37, "n_agents": 5, "n_steps": 7}),
    *(("shuffling", {"n_envs": n_rows}) for n_rows in (1, 5, 1000)),
]
"""Programs of the core's kernels."""


class Launches:
    """Calls of a program, made once and stored."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def part(self, name: str, units: int, call: Callable[[], object]) -> tuple[str, int, list[dict[str, Any]]]:
        """Call, and store the call."""
        call()
        self.calls.append(call)
        return name, units, []


def launch(kind: str, backend: str, program: dict[str, Any]) -> None:
    """Launch a program's kernels five times, after one reset.

    Some episodes end during this.
    """
    launches = Launches()
    for _ in PROGRAMS[kind]({**program, "more": True}, backend, launches):
        pass
    for _ in range(4):
        for call in launches.calls[kind == "environment" :]:
            call()


def main(backend: str, *names: str) -> None:
    """Launch the kernels of environments, core and training."""
    if unknown := sorted({*names} - {run[0] for run in RUNS}):
        raise SystemExit(f"every_kernel: no environment is named {', '.join(unknown)}")
    runs = [run for run in RUNS if not names or run[0] in names]
    for name, config, n_envs, blocks in runs:
        print(f"{n_envs} x {name}", flush=True)
        source = f"warpdrive_min.envs:{ENVS[name].__name__}"
        program = {"source": source, "config": config, "n_envs": n_envs, "blocks_per_env": blocks, "n_steps": 5}
        for auto_reset in (False, True):
            launch("environment", backend, {**program, "auto_reset": auto_reset})
    for kind, program in () if names else CORE:
        print(kind, flush=True)
        launch(kind, backend, program)
    for part in () if names else (fused, exact):
        print(part.__name__, flush=True)
        part(backend)
    BACKENDS[backend].synchronize()
    print(f"{len(runs)} environments of {backend} have run" if names else f"every kernel of {backend} has run")


def fused(backend: str) -> None:
    """Launch Triton's kernels, alone, and all in training."""
    if BACKENDS[backend].device.type != "cuda":
        return
    from tests.training.triton_kernels import launch_all  # needs Triton

    with BACKENDS[backend].device:
        launch_all(more=True)
    two_layers = "cartpole", CLASSIC, {"shared": {**PPO, "model": {"fc_dims": [8, 8]}}}
    for run in (*TRAINING_RUNS, two_layers):
        with tempfile.TemporaryDirectory() as folder:
            make_run(run, backend, trainer={"mode": "eager"}, basedir=folder).train(2)


def exact(backend: str) -> None:
    """Train networks with exact kernels.

    Rows are processed at once and in parts.
    """
    for name in () if backend == "numba" else ("A2C", "PPO", "PPO, continuous", "DDPG"):
        with tempfile.TemporaryDirectory() as folder:
            exact = {"mode": "eager", "exact": True, "max_rows": 300}
            n_envs = 8 if name == "DDPG" else 70
            make_run(name, backend, n_envs=n_envs, trainer=exact, wrapper={"exact": True}, basedir=folder).train(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
