"""ASV's view: a class for every case that repeats, whose parameters are its smoke points, timed in seconds per run.

ASV calls ``setup`` before every sample, so what it made is kept until the point changes. It takes smaller for better,
so what is tracked is time, not throughput.
"""

from __future__ import annotations

from typing import Any

from bench import cases as _cases
from bench.case import Case as _Case
from bench.case import Skip as _Skip
from bench.case import label as _label
from bench.measure import PLANS as _PLANS
from bench.measure import measure as _measure


def _view(case: _Case) -> type:
    points = {_label(case, point): point for point in case.points("smoke")}
    kept: dict[str, Any] = {}

    def setup(self: Any, name: str) -> None:
        if name in kept:
            return
        kept.clear()
        try:
            prepared = case.setup(points[name])
        except _Skip as skip:
            raise NotImplementedError(str(skip)) from None  # ASV's way to leave a parameter out
        seen = prepared.check()
        if not seen.passed:
            raise ArithmeticError(f"{seen.oracle}: {seen.detail}")
        kept[name] = prepared

    def track_ns_per_unit(self: Any, name: str) -> dict[str, Any]:
        prepared = kept[name]
        amount = next(iter(prepared.work.values()))
        # With its samples ASV gives a tracked value an interval, and tests changes by rank.
        return {"samples": [ns / amount for ns in _measure(prepared, _PLANS["default"]).samples_ns], "number": 1}

    track_ns_per_unit.unit = "ns"  # type: ignore[attr-defined]
    return type(
        case.name.title().replace("_", ""),
        (),
        {
            "__doc__": case.summary,
            "__module__": __name__,
            "params": [list(points)],
            "param_names": ["point"],
            "version": str(case.version),
            "timeout": 600,
            "setup": setup,
            "track_ns_per_unit": track_ns_per_unit,
        },
    )


globals().update({view.__name__: view for view in map(_view, filter(lambda case: case.repeats, _cases.CASES.values()))})
