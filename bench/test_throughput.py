"""Time points with pytest-benchmark; `$BENCH_PRESET` chooses them.

A round lasts as long as a sample of the sweep. Dispatch is never timed alone: on a CPU a run returns when it is done,
and on a GPU the clock uses events. Publish and gate only figures from `python -m bench run`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest
import torch

from bench.core.case import Job
from bench.core.errors import Skip
from bench.core.measure import PLANS, Stamp, Timed, Timer
from bench.core.point import point_name
from bench.options import points_of_tools
from bench.workloads.shared import ON_GPU

PLAN: Final = PLANS["default"]


def _point(job: Job) -> Any:
    device = torch.device("cuda" if torch.cuda.is_available() and job.point["backend"] in ON_GPU else "cpu")
    timer = pytest.mark.benchmark(timer=partial(Stamp, device))
    return pytest.param(job, id=point_name(job.case.name, job.point), marks=timer)


POINTS: Final = list(map(_point, points_of_tools()[1]))


@pytest.mark.parametrize("job", POINTS)
def test_throughput(benchmark: Any, job: Job) -> None:
    """Check and time the point."""
    try:
        timed = job.case.setup(job.point)
    except Skip as skip:
        pytest.skip(str(skip))
    assert isinstance(timed, Timed), f"{job.case.name} says that its points are timed"
    timed.check().require("before")
    runs = Timer(timed).runs_per_sample(PLAN.sample_s)
    benchmark.group = job.case.name
    benchmark.extra_info.update(
        point=dict(job.point), work_per_run=dict(timed.facts.work), mode=timed.facts.mode, case_version=job.case.version
    )
    benchmark.pedantic(timed.run, rounds=PLAN.n_samples, iterations=runs, warmup_rounds=5)
    timed.check().require("after")
