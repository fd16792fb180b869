"""pytest-benchmark's view: `pytest bench` times the smoke points of every case that repeats.

A round is one run of the point and the wait for it, so that dispatch alone is never timed. The figures to publish or
gate on come from `python -m bench run`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench.case import Case, Point, Skip, label
from bench.cases import CASES

POINTS = [
    pytest.param(case, point, id=label(case, point))
    for case in CASES.values()
    if case.repeats
    for point in case.points("smoke")
]


@pytest.mark.parametrize(("case", "point"), POINTS)
def test_throughput(benchmark: Any, case: Case, point: Point) -> None:
    """The point is right, and is timed."""
    try:
        prepared = case.setup(point)
    except Skip as skip:
        pytest.skip(str(skip))
    seen = prepared.check()
    assert seen.passed, f"{seen.oracle}: {seen.detail}"

    def block() -> None:
        prepared.run()
        prepared.synchronize()

    benchmark.group = case.name
    benchmark.extra_info.update(
        point=dict(point), work_per_round=dict(prepared.work), mode=prepared.mode, case_version=case.version
    )
    benchmark.pedantic(block, rounds=20, warmup_rounds=5)
