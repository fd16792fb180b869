"""The case `launch`: next to nothing is launched, one by one or in a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from bench.case import Check, Point, Preset
from bench.cases.environments import ON_CPU, available
from bench.cases.kernels.shared import OURS, implementations, prepared
from bench.measure import Timed
from warpdrive_min import CUDAFunctionManager
from warpdrive_min.backends import Backend


def launch(point: Point) -> Timed:
    """Launch next to nothing, one by one or in a graph: a kernel of one block, or torch's addition of one number."""
    backend = available(point["backend"])
    launches = torch.zeros(1, dtype=torch.int32, device=backend.device)
    work = counting_kernel(backend, launches) if point["implementation"] == OURS else lambda: launches.add_(1)
    made = prepared(
        point,
        backend,
        work,
        lambda: counted(made, launches),
        units={"calls": 1},
        least_bytes=2 * launches.nbytes,
        mode=point["mode"],
        n=LAUNCHES,
    )
    return made


LAUNCHES: Final = 100
"""In a run."""


def counting_kernel(backend: Backend, launches: torch.Tensor) -> Callable[[], Any]:
    """Set up the kernel of `count/count.cu`."""
    functions = CUDAFunctionManager(1, 1, backend=backend)
    kernels = Path(__file__).parents[1] / "count"
    functions.load(
        {
            "cuda_c": kernels / "count.cu",
            "numba": "bench.cases.count.count_numba",
            "numpy": "bench.cases.count.count_numpy",
        }
    )
    return functions.prepare(functions.kernel("count"), [launches])


def counted(made: Timed, launches: torch.Tensor) -> Check:
    """Hold what one run has counted against the launches that it declares."""
    launches.zero_()
    made.run()
    made.synchronize()
    error = abs(int(launches) - made.facts.work["calls"])
    return Check(error == 0, error, "the number of launches", f"{int(launches)} have run")


def launch_points(preset: Preset) -> list[Point]:
    """Return every backend and torch, eagerly and, where there are graphs, as one."""
    return [
        {**point, "mode": mode}
        for point in implementations({}, (OURS, "torch"))
        for mode in (("eager",) if point["backend"] in ON_CPU else ("eager", "graph"))
    ]
