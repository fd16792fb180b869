"""Common parts of workloads: environments' configs, backends, repeated work, arrays held against an oracle, pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min import BACKENDS, CUDADataManager, capture
from warpdrive_min.backends import Availability, Backend
from warpdrive_min.backends import availability as of_backends
from warpdrive_min.consistency import difference

from ..core.case import Case, Skip
from ..core.measure import Timed
from ..core.point import ON_CPU, PLAIN, Check, Facts, Mode, Point, Preset, shared_axes

SEED: Final = 274880
"""Seed of all cases that have no axis of seeds."""

FP32: Final = "fp32"
"""Precision of points without that axis."""
UNTIL_END: Final = {"until": "end"}
"""Axis of a run that continues after the threshold."""
MEMBERS: Final = "members"
"""Note of a population's record: metrics of its members, null below the threshold."""
ON_GPU: Final = tuple(name for name in BACKENDS if name not in ON_CPU)
EPISODE_LENGTHS: Final = {
    "cartpole": 500,
    "mountain_car": 500,
    "continuous_mountain_car": 1_000,
    "acrobot": 500,
    "pendulum": 500,
}
"""Steps of an episode in environments of one agent, as in WarpDrive's run configs."""
FULLY_OBSERVED_AGENTS: Final = 110
"""Agents up to which those of Tag GridWorld observe all others; above, the observations would fill the memory."""
TAG_SIDE: Final = 20.0
"""Side of Tag Continuous's square, as in WarpDrive's run config."""
ROOMY_AGENTS: Final = 110
"""Agents that WarpDrive's run config puts there."""
CROWDED_AGENTS: Final = 10_000
"""Agents up to which they share that square; more of them each have as much room as one of `ROOMY_AGENTS`."""


def env_config(env: str, n_agents: int, neighbor_search: str = "auto", n_taggers: int | None = None) -> dict[str, Any]:
    """Return the config of a benchmarked environment: that of the published run configs.

    Args:
        env: Its name in `ENVS`.
        n_agents: All of them.
        neighbor_search: Of Tag Continuous.
        n_taggers: Of Tag Continuous; None: one in eleven agents.
    """
    if env in EPISODE_LENGTHS:
        return {"episode_length": EPISODE_LENGTHS[env]}
    if env == "covid19_economy":
        return {"episode_length": 540}
    if env == "rice":
        return {"num_regions": n_agents}
    if env == "tag_gridworld":
        return {
            "num_taggers": n_agents - 1,
            "grid_length": 100,
            "episode_length": 100,
            "wall_hit_penalty": 0.1,
            "tag_penalty_for_runner": 5.0,
            "use_full_observation": n_agents <= FULLY_OBSERVED_AGENTS,
            "seed": 20,
        }
    n_taggers = n_taggers or max(1, n_agents // 11)
    side = TAG_SIDE * (math.sqrt(n_agents / ROOMY_AGENTS) if n_agents > CROWDED_AGENTS else 1)
    return {
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "grid_length": side,
        "episode_length": 500,
        "max_acceleration": 0.1,
        "min_acceleration": -0.1,
        "max_turn": 2.356,
        "min_turn": -2.356,
        "num_acceleration_levels": 20,
        "num_turn_levels": 20,
        "use_full_observation": False,
        "num_other_agents_observed": min(10, n_agents - 1),
        "neighbor_search": neighbor_search,
        "tagging_distance": 0.02 * TAG_SIDE / side,
        "tag_reward_for_tagger": 10.0,
        "tag_penalty_for_runner": -10.0,
        "end_of_game_reward_for_runner": 1.0,
        "seed": SEED,
    }


def are_finite(*arrays: torch.Tensor) -> bool:
    """Tell whether all numbers are, by their sums: arrays that fill half of a GPU leave no room for a copy."""
    return all(bool(torch.isfinite(each.sum())) for each in arrays)


# ------------------------------------------------------------------ backends


def availability() -> dict[str, Availability]:
    """Say of each value of the axis `backend` whether it can run here, or why not and what to install."""
    return {**of_backends(), PLAIN: Availability(True, "NumPy")}


def available(name: str) -> Backend:
    """Return the backend, or skip the point with the reason and what to install."""
    state = BACKENDS[name].availability()
    if not state.available:
        raise Skip(f"{name}: {state}")
    return BACKENDS[name]


def counterpart(backend: str) -> str:
    """Return the backend of the CPU that another one is held against: NumPy, and C++ for NumPy itself.

    Raises:
        Skip: It cannot run here.
    """
    return available("host" if backend == "cpu" else "cpu").name


def default_mode(backend: str) -> Mode:
    """Return ``graph`` on a GPU, else ``eager``."""
    return "graph" if backend in ON_GPU else "eager"


def torch_threads(backend: Backend) -> int | None:
    """Return the threads of torch's own operations, which the environments' kernels have too; None on a GPU."""
    return torch.get_num_threads() if backend.device.type == "cpu" else None


# ------------------------------------------------------------------ repeated work

GRAPH_STEPS: Final = 50
"""Steps in a captured graph; long enough that its launch costs nothing."""
EAGER_STEPS: Final = 4
"""Steps of a run on a CPU: one Philox block serves four draws, so that every run costs the same."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that a run does several times."""

    run: Callable[[], None]
    """Enqueues all of it."""
    n: int
    """Number of repetitions."""
    mode: Mode


def repeated(backend: Backend, work: Callable[[], object], mode: Mode | None = None, n: int | None = None) -> Repeated:
    """Do the work once, so that all is compiled, and return it many times over.

    Args:
        backend: That it runs on.
        work: Enqueues the same launches each time.
        mode: As one graph or eagerly; None: as a graph where there are graphs.
        n: How many times; None: `GRAPH_STEPS` where there are graphs, also if they are not used, else `EAGER_STEPS`.
    """
    n = n or (GRAPH_STEPS if backend.captures_graphs else EAGER_STEPS)
    mode = mode or ("graph" if backend.captures_graphs else "eager")

    def run() -> None:
        for _ in range(n):
            work()

    work()
    return Repeated(capture(backend, run) if mode == "graph" else run, n, mode)


def timed(
    backend: Backend,
    repeats: Repeated,
    check: Callable[[], Check],
    *,
    work: Mapping[str, int],
    is_of_torch: bool = False,
    is_pinned: bool = False,
    n_bytes: int = 0,
    n_ops: int = 0,
    notes: Mapping[str, Any] | None = None,
    snapshot: Callable[[], Callable[[], None]] | None = None,
    twin: Callable[[], Check] | None = None,
) -> Timed:
    """Return a workload that is timed; its amounts of work, bytes and operations are those of one repetition.

    Args:
        backend: That it runs on.
        repeats: What a run does.
        check: Holds it against an oracle.
        work: Amount of each kind of work.
        is_of_torch: The threads of a CPU are those of torch's own operations.
        is_pinned: Each thread of a CPU has a core of its own while samples are taken, where there are as many.
        n_bytes: Least bytes that are moved.
        n_ops: Least operations.
        notes: What a record tells beside.
        snapshot: As of `Timed`.
        twin: As of `Timed`.
    """
    cores = backend.own_cores if is_pinned else None
    return Timed(
        pinned=backend.pinned if cores else nullcontext,
        run=repeats.run,
        synchronize=backend.synchronize,
        check=check,
        snapshot=snapshot,
        twin=twin,
        facts=Facts(
            mode=repeats.mode,
            device=backend.device,
            threads=torch_threads(backend) if is_of_torch else backend.threads,
            work={kind: amount * repeats.n for kind, amount in work.items()},
            bytes_per_run=n_bytes * repeats.n,
            ops_per_run=n_ops * repeats.n,
            notes={**(notes or {}), **({"threads_pinned_to": cores} if cores else {})},
        ),
    )


def steps_of(n_envs: int, n_agents: int) -> dict[str, int]:
    """Return the work of a step of environments."""
    return {"env_steps": n_envs, "agent_steps": n_envs * n_agents}


def snapshot_of(data: CUDADataManager) -> Callable[[], None]:
    """Copy all arrays but the kernels' workspace, random counters too; returns what writes them back. Enqueues."""
    live = [data.tensor(name) for name in data.array_names() if not data.attribute(name, "scratch", False)]
    copies = [tensor.clone() for tensor in live]

    def restore() -> None:
        for tensor, copy in zip(live, copies, strict=True):
            tensor.copy_(copy)

    return restore


# ------------------------------------------------------------------ what holds it against an oracle

Arrays = Mapping[str, Any]
"""NumPy arrays, or tensors on the CPU, by name."""


def errors(want: Arrays, got: Arrays, periods: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Return the largest difference of each wanted array; infinite if absent, not a number or of another shape.

    Args:
        want: Arrays of an oracle.
        got: Arrays that are held against them.
        periods: Of arrays of angles, by name.
    """
    largest = {}
    for name, array in want.items():
        one, two = np.asarray(array), np.asarray(got.get(name, ()))
        is_alike = name in got and one.shape == two.shape
        largest[name] = difference(one, two, (periods or {}).get(name, 0.0)).error if is_alike else float("inf")
    return largest


# ------------------------------------------------------------------ pairs, and cases that are made of them


Pairs = list[tuple[Point, Point]]
"""Base and other of each ratio."""


def pairs_over(points: Sequence[Point], axis: str, *bases: Any, ignored: Sequence[str] = ()) -> Pairs:
    """Return pairs of points that differ in one axis, of which the base has one of some values.

    Args:
        points: All that there are.
        axis: In which they differ; see `shared_axes`.
        bases: Values of the base on that axis; none is the other side of one that stands behind it.
        ignored: Axes in which they may differ too.
    """

    def place(point: Point) -> tuple[Any, ...]:
        return shared_axes(point, axis, *ignored)

    pairs = []
    for n, base in enumerate(bases, start=1):
        of_base = {place(point): point for point in points if point[axis] == base}
        others = [point for point in points if point[axis] not in bases[:n] and place(point) in of_base]
        pairs += [(of_base[place(point)], point) for point in others]
    return pairs


def compared(*, points: Callable[[Preset], Sequence[Point]], over: tuple[str, ...], **declared: Any) -> Case:
    """Return a timed case whose points are paired with a baseline.

    Args:
        points: Returns the points of a preset.
        over: Axis, and values of the bases on it; see `pairs_over`.
        declared: Other fields of the case.
    """
    axis, *bases = over
    return Case(
        workload=Timed,
        points=points,
        pairs=lambda preset: pairs_over(points(preset), axis, *bases),
        **declared,
    )
