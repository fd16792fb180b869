"""ASV benchmarks: a class per repeated case, time per unit.

Its parameters are the smoke points. ASV calls ``setup`` before every sample, so the set-up is kept until the point
changes. ASV takes smaller for better, so the tracked value is time, not throughput.
"""

from __future__ import annotations

from collections.abc import Mapping as _Mapping
from typing import Any

from bench.core.case import Case as _Case
from bench.core.errors import Skip as _Skip
from bench.core.measure import PLANS as _PLANS
from bench.core.measure import Timed as _Timed
from bench.core.measure import Timer as _Timer
from bench.workloads import cases as _cases


def _view(case: _Case) -> type:
    points = {(_without_backend(point), str(point["backend"])): point for point in case.points("smoke")}
    kept: dict[tuple[str, str], Any] = {}

    def setup(self: Any, point: str, backend: str) -> None:
        key = point, backend
        if key in kept:
            return
        kept.clear()
        try:
            if key not in points:  # ASV crosses its parameters
                raise _Skip(f"{case.name} has no such point on {backend}")
            timed: Any = case.setup(points[key])
        except _Skip as skip:
            raise NotImplementedError(str(skip)) from None  # ASV's way to leave a parameter out
        timed.check().require("before")
        kept[key] = timed

    def track_time(self: Any, point: str, backend: str) -> dict[str, Any]:
        timed = kept[point, backend]
        amount = next(iter(timed.facts.work.values()))
        timer = _Timer(timed)
        timer.prepare(_PLANS["default"])
        samples = [ns / 1e9 / amount for ns in timer.measurement(_PLANS["default"]).samples_ns]
        timed.check().require("after")
        # With its samples ASV gives a tracked value an interval, and tests changes by rank.
        return {"samples": samples, "number": 1}

    track_time.unit = "seconds"  # type: ignore[attr-defined]  # of all units of time the one that ASV scales: to ns, us
    return type(
        case.name.title().replace("_", ""),
        (),
        {
            "__doc__": case.title,
            "__module__": __name__,
            "params": [list(dict.fromkeys(values)) for values in zip(*points, strict=True)],
            "param_names": ["point", "backend"],
            "version": str(case.version),
            "timeout": 600,
            "setup": setup,
            "track_time": track_time,
        },
    )


def _without_backend(point: _Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in point.items() if axis != "backend")


globals().update(
    {view.__name__: view for view in map(_view, filter(lambda case: case.workload is _Timed, _cases.CASES.values()))}
)
