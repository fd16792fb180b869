"""Timing of repeated work on a backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from warpdrive_min import BACKENDS, CUDADataManager, capture
from warpdrive_min.backends import Backend

from ...core.errors import Skip
from ...core.measure import Timed
from ...core.point import ORACLE, Check, Facts, Mode, Point
from ..shared import outside_sources, steps_of

# ------------------------------------------------------------------ backends


def available(name: str) -> Backend:
    """Return the backend; raises Skip with the reason and what to install."""
    state = BACKENDS[name].availability()
    if not state.available:
        raise Skip(f"{name}: {state}")
    return BACKENDS[name]


def counterpart(backend: str) -> str:
    """Return a backend's reference: NumPy, or C++ for NumPy.

    Raises:
        Skip: It cannot run here.
    """
    return available("host" if backend == "cpu" else "cpu").name


def torch_threads(backend: Backend) -> int | None:
    """Return the threads of torch and the kernels; None on a GPU."""
    return torch.get_num_threads() if backend.device.type == "cpu" else None


# ------------------------------------------------------------------ repeated work

GRAPH_STEPS: Final = 50
"""Env steps in a captured graph, enough to hide its launch."""
EAGER_STEPS: Final = 4
"""Env steps of a run on a CPU.

One Philox block serves four draws, so every run costs the same."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that a run repeats."""

    run: Callable[[], None]
    """Enqueues all repetitions."""
    n: int
    """Number of repetitions."""
    mode: Mode


def repeated(backend: Backend, work: Callable[[], object], mode: Mode | None = None, n: int | None = None) -> Repeated:
    """Do the work once, to compile it, and return it repeated.

    Args:
        backend: Backend of the work.
        work: Enqueues the same launches each time.
        mode: One graph or eager; None: a graph if the backend captures them.
        n: Repetitions; None: `GRAPH_STEPS` if the backend captures graphs, even in eager mode, else `EAGER_STEPS`.
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
    period: int = 1,
    reference_run: Callable[[], Check] | None = None,
) -> Timed:
    """Return a timed workload, from the amounts of one repetition.

    Args:
        backend: Backend of the work.
        repeats: Work of a run.
        check: Compares it with a reference.
        work: Amount of each kind of work.
        is_of_torch: On a CPU the threads are those of torch's own operations.
        is_pinned: Pin each CPU thread to its own core while sampling, if there are enough cores.
        n_bytes: Minimum bytes moved.
        n_ops: Minimum operations.
        notes: Additional notes of the record.
        snapshot: As in `Timed`.
        period: As in `Timed`.
        reference_run: As in `Timed`.
    """
    cores = backend.own_cores if is_pinned else None
    return Timed(
        pinned=backend.pinned if cores else nullcontext,
        run=repeats.run,
        synchronize=backend.synchronize,
        check=check,
        snapshot=snapshot,
        period=period,
        reference_run=reference_run,
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


def timed_steps(
    point: Point,
    steps: Repeated,
    check: Callable[[], Check],
    *,
    episode_length: int,
    n_bytes: int,
    n_ops: int,
    snapshot: Callable[[], Callable[[], None]],
) -> Timed:
    """Return the timing of steps of all environments of a point.

    Args:
        point: The point; its backend's threads are pinned. The NumPy baseline has the reference's thread.
        steps: Steps of a run.
        check: Compares them with a reference.
        episode_length: Most steps of an episode. A sample of one environment takes whole episodes, for the steps of Tag
            become cheaper as runners leave.
        n_bytes: Minimum bytes that one env step moves.
        n_ops: Minimum operations of one env step.
        snapshot: As in `Timed`.
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
        notes={"steps_per_run": steps.n, **outside_sources(point["env"])},
        snapshot=snapshot,
        period=episode_length // math.gcd(episode_length, steps.n) if n_envs == 1 else 1,
    )


def snapshot_of(data: CUDADataManager) -> Callable[[], None]:
    """Copy all arrays except workspace; return their restoring function. Enqueues."""
    live = [data.tensor(name) for name in data.array_names() if not data.attribute(name, "scratch", False)]
    copies = [tensor.clone() for tensor in live]

    def restore() -> None:
        for tensor, copy in zip(live, copies, strict=True):
            tensor.copy_(copy)

    return restore


def are_finite(*arrays: torch.Tensor) -> bool:
    """True if all numbers are finite, tested by sums to save memory."""
    return all(bool(torch.isfinite(each.sum())) for each in arrays)
