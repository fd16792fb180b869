"""Time the smoke points of repeated cases with pytest-benchmark.

A round lasts as long as a sample of the sweep. Dispatch is never timed alone: on a CPU a run returns when it is done,
and on a GPU the clock uses events. Publish and gate only figures from `python -m bench run`.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
import torch

from bench.core.case import Case
from bench.core.errors import Skip
from bench.core.measure import PLANS, Timed, Timer
from bench.core.point import Point, point_name
from bench.workloads.cases import CASES
from bench.workloads.shared import ON_GPU

PLAN: Final = PLANS["default"]


class Stamp:
    """Event on the current stream; differences are in seconds.

    A difference waits for the later event.
    """

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def __sub__(self, earlier: Stamp) -> float:
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def _point(case: Case, point: Point) -> Any:
    on_gpu = torch.cuda.is_available() and point["backend"] in ON_GPU
    timer = pytest.mark.benchmark(timer=Stamp if on_gpu else time.perf_counter)
    return pytest.param(case, point, id=point_name(case.name, point), marks=timer)


POINTS: Final = [
    _point(case, point) for case in CASES.values() if case.workload is Timed for point in case.points("smoke")
]


@pytest.mark.parametrize(("case", "point"), POINTS)
def test_throughput(benchmark: Any, case: Case, point: Point) -> None:
    """Check and time the point."""
    try:
        timed = case.setup(point)
    except Skip as skip:
        pytest.skip(str(skip))
    assert isinstance(timed, Timed), f"{case.name} says that its points are timed"
    timed.check().require("before")
    runs = Timer(timed).runs_per_sample(PLAN.sample_s)
    benchmark.group = case.name
    benchmark.extra_info.update(
        point=dict(point), work_per_run=dict(timed.facts.work), mode=timed.facts.mode, case_version=case.version
    )
    benchmark.pedantic(timed.run, rounds=PLAN.n_samples, iterations=runs, warmup_rounds=5)
    timed.check().require("after")
