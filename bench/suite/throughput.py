"""ASV benchmarks: a class per repeated case, time per unit of work.

`options.points_of_tools` chooses the points: those of a gate on a GPU, smoke on a CPU. ASV samples; its `--quick` takes
one sample. On a GPU a second class per case tracks idle time and energy. ASV takes smaller for better, so there is no
throughput and no utilisation.

ASV calls ``setup`` before every sample, so the set-up is kept until the point changes.
"""

from __future__ import annotations

import math as _math
from collections.abc import Callable as _Callable
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from functools import partial as _partial
from typing import Any

from bench.core.case import Case as _Case
from bench.core.case import Job as _Job
from bench.core.errors import Skip as _Skip
from bench.core.groups import groups_of as _groups_of
from bench.core.measure import FEWEST as _FEWEST
from bench.core.measure import PLANS as _PLANS
from bench.core.measure import WATCH_S as _WATCH_S
from bench.core.measure import Stamp as _Stamp
from bench.core.measure import Timer as _Timer
from bench.options import points_of_tools as _points_of_tools
from bench.workloads.shared import ON_GPU as _ON_GPU
from warpdrive_min.forks import serve_forks as _serve_forks

_PLAN = _PLANS["default"]
_Key = tuple[str, str]
"""Point without its backend, and the backend: ASV's parameters."""


class _Points:
    """Points of a case; one at a time is set up.

    Args:
        jobs: The points.
    """

    def __init__(self, jobs: _Sequence[_Job]) -> None:
        self.jobs = {(_without_backend(job.point), str(job.point["backend"])): job for job in jobs}
        self._key: _Key | None = None
        self.timed: Any = None
        self.timer: Any = None
        self.is_checked_after = False

    def set_up(self, point: str, backend: str) -> None:
        """Set up and check a point, once."""
        key = point, backend
        if key == self._key:
            return
        self._key = self.timer = self.timed = None
        if key not in self.jobs:  # ASV crosses its parameters
            raise NotImplementedError(f"there is no such point on {backend}")  # ASV's way to leave a parameter out
        job = self.jobs[key]
        try:
            self.timed = job.case.setup(job.point)
        except _Skip as skip:
            raise NotImplementedError(str(skip)) from None
        self.timed.check().require("before")
        self.timer = _Timer(self.timed)
        self.timer.runs = self.timer.runs_per_sample(_PLAN.sample_s)
        self._key, self.is_checked_after = key, False

    @property
    def units(self) -> float:
        """Units of work in a sample."""
        return float(self.timer.runs * next(iter(self.timed.facts.work.values())))

    def check(self) -> None:
        """Check a point after its first sample."""
        if self.timed is not None and not self.is_checked_after:
            self.is_checked_after = True
            self.timed.check_after().require("after")


def _time_view(case: _Case, jobs: _Sequence[_Job]) -> type:
    points = _Points(jobs)

    def setup(self: Any, point: str, backend: str) -> None:
        points.set_up(point, backend)
        self.timer = _partial(_Stamp, points.timed.facts.device, points.units)

    def time_unit(self: Any, point: str, backend: str) -> None:
        with points.timed.pinned():
            for _ in range(points.timer.runs):
                points.timed.run()

    def teardown(self: Any, point: str, backend: str) -> None:
        points.check()

    sampling = {
        "warmup_time": 0.5,
        "repeat": (_FEWEST, _PLAN.max_samples, _PLAN.measure_cap_s),
        "rounds": 1,
        "number": 1,
    }
    return _view(case, points, "", {"setup": setup, "time_unit": time_unit, "teardown": teardown, **sampling})


def _gpu_view(case: _Case, jobs: _Sequence[_Job]) -> type:
    points = _Points(jobs)

    def setup(self: Any, point: str, backend: str) -> None:
        points.set_up(point, backend)

    def watched() -> dict[str, Any]:
        telemetry, why_none = points.timer.measure_telemetry(_WATCH_S, _math.inf)
        points.check()
        if telemetry is None:
            raise RuntimeError(why_none)
        return dict(telemetry)

    def track_idle(self: Any, point: str, backend: str) -> float:
        return 100.0 - float(watched()["utilisation_percent"]["mean"])

    def track_energy(self: Any, point: str, backend: str) -> float:
        unit = next(iter(points.timed.facts.work)).removesuffix("s")
        return 1e6 * float(watched()[f"joules_per_{unit}"])

    _set(track_idle, unit="% of time without a kernel")
    _set(track_energy, unit="microjoules")
    return _view(case, points, "Gpu", {"setup": setup, "track_idle": track_idle, "track_energy": track_energy})


def _set(function: _Callable[..., Any], **attributes: str) -> None:
    vars(function).update(attributes)


def _view(case: _Case, points: _Points, suffix: str, members: dict[str, Any]) -> type:
    return type(
        case.name.title().replace("_", "") + suffix,
        (),
        {
            "__doc__": case.title,
            "__module__": __name__,
            "params": [list(dict.fromkeys(values)) for values in zip(*points.jobs, strict=True)],
            "param_names": ["point", "backend"],
            "version": str(case.version),
            "timeout": 600,
            **members,
        },
    )


def _without_backend(point: _Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in point.items() if axis != "backend")


def _views() -> list[type]:
    views = []
    for jobs in _groups_of(_points_of_tools()[1], lambda job: job.case.name).values():
        views.append(_time_view(jobs[0].case, jobs))
        if on_gpu := [job for job in jobs if job.point["backend"] in _ON_GPU]:
            views.append(_gpu_view(jobs[0].case, on_gpu))
    return views


globals().update({view.__name__: view for view in _views()})

# ASV's fork server imports this file once, and forks a process for each parameter: import what each needs. After the
# points, because with torch they would ask the driver for GPUs, and no fork of that process could use one.
from bench.workloads.setups import every as _every  # noqa: E402, F401

if __package__ != "bench.suite":  # ASV's name for it is that of the folder
    _serve_forks()
