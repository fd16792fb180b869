"""What several cases of kernels share: points made ready, arrays compared, implementations listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from bench.case import Check, Facts, Mode, Point, Preset
from bench.cases.repeats import repeated, torch_threads
from bench.measure import Timed
from warpdrive_min import BACKENDS, CUDADataManager
from warpdrive_min.backends import Backend
from warpdrive_min.constants import DONE

OURS: Final = "ours"
"""Implementation of which there is one for each backend; what is named after torch runs once on each device."""


def prepared(
    point: Point,
    backend: Backend,
    work: Callable[[], object],
    check: Callable[[], Check],
    *,
    units: Mapping[str, int],
    least_bytes: int,
    least_ops: int = 0,
    mode: Mode | None = None,
    n: int | None = None,
) -> Timed:
    """Return a point whose run does some work several times.

    Args:
        point: The point.
        backend: That it runs on.
        work: Enqueues it once.
        check: Holds it against its oracle.
        units: How much work once is.
        least_bytes: That must be moved for it once.
        least_ops: Operations that must be done for it once.
        mode: As a graph or eagerly; None: as a graph where there are graphs.
        n: How many times it is done in a run, if not as often as a step.
    """
    each = repeated(backend, work, mode, n)
    is_torch = str(point["implementation"]).startswith("torch")
    return Timed(
        run=each.run,
        synchronize=backend.synchronize,
        check=check,
        facts=Facts(
            mode=each.mode,
            device=backend.device,
            threads=torch_threads(backend) if is_torch else backend.threads,
            work={kind: amount * each.n for kind, amount in units.items()},
            bytes_per_run=least_bytes * each.n,
            ops_per_run=least_ops * each.n,
            notes={"launched_per_run": each.n},
        ),
    )


def worst(errors: Mapping[str, float], oracle: str, allowed: float = 0.0) -> Check:
    """Judge a point by the array that is furthest off."""
    name = max(errors, key=lambda each: errors[each])
    return Check(
        passed=errors[name] <= allowed,
        max_error=errors[name],
        oracle=oracle,
        detail=f"largest in {name}: {errors[name]:.3g}, {allowed:.3g} at most",
    )


def arrays_of(data: CUDADataManager) -> dict[str, torch.Tensor]:
    """Return copies on the CPU of all arrays but the kernels' workspace."""
    names = (name for name in data.array_names() if not data.attribute(name, "scratch", False))
    return {name: data.tensor(name).to("cpu", copy=True) for name in names}


def mark_done(data: CUDADataManager, generator: torch.Generator) -> torch.Tensor:
    """Let each environment have ended with a chance of one half, the first one surely; returns the flags."""
    flags = torch.randint(0, 2, (data.n_envs,), generator=generator, dtype=torch.int32)
    flags[0] = 1
    data.tensor(DONE).copy_(flags)
    return flags != 0


def on_gpu_too(preset: Preset) -> bool:
    """Tell whether sizes are listed that fill a GPU."""
    return preset == "full" or (preset != "smoke" and torch.cuda.is_available())


def implementations(point: Point, names: tuple[str, ...]) -> list[Point]:
    """Return a point with every implementation; torch's own do not depend on the backend, only on its device."""
    return [
        {"implementation": name, "backend": backend, **point}
        for backend in BACKENDS
        for name in names
        if not name.startswith("torch") or backend in ("cpu", "pycuda")
    ]
