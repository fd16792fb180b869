"""The timer: how one prepared point becomes samples. Only what starts cold times itself, in its own process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from bench.case import Prepared, Preset, Starts
from bench.stats import median, median_interval, spread

WARM_BLOCKS: Final = 5
"""Blocks whose medians must agree before anything is kept."""
SAMPLES_PER_BLOCK: Final = 3
WARM_SPREAD: Final = 0.01
"""Share by which those medians may differ."""
CLOCKS_AGREE: Final = 0.02
"""Share by which device time and wall time may differ before the record says why."""


class MeasureError(RuntimeError):
    """A point cannot be timed honestly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How much is measured."""

    sample_s: float = 0.02
    """Least length of a sample, s."""
    n_samples: int = 20
    """Least number of samples."""
    max_samples: int = 60
    """Most samples."""
    interval: float = 0.01
    """Half-width of the median's interval, as a share of it, at which sampling stops."""
    warm_up_cap_s: float = 10.0
    """Longest warm-up, s."""
    measure_cap_s: float = 10.0
    """Time after which no sample beyond ``n_samples`` is taken, s."""
    n_starts: int = 20
    """Samples of a point each of whose samples is a process of its own."""


PLANS: Final[dict[Preset, Plan]] = {
    "smoke": Plan(sample_s=0.002, n_samples=5, max_samples=5, warm_up_cap_s=0.1, n_starts=1),
    "default": Plan(warm_up_cap_s=2.0, measure_cap_s=2.0, n_starts=5),
    "full": Plan(),
    "paper": Plan(),
}


class Stopwatch(Protocol):
    """Times a block of runs that ends with a synchronisation."""

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Run the block and wait for it; returns wall time and, on a GPU, device time, in ns."""
        ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """The samples of one point and how they were taken."""

    samples_ns: tuple[float, ...]
    """Wall time of one run in each sample, ns: a sample's time over its runs."""
    device_ns: tuple[float, ...] | None
    """Device time of the same, from events; None on a CPU."""
    runs_per_sample: int
    stop_reason: str
    warm_up: dict[str, Any] | None
    """None: there was none."""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def median_ns(self) -> float:
        """Median time of one run, ns."""
        return median(self.samples_ns)

    @property
    def interval_ns(self) -> tuple[float, float]:
        """95 % interval of the median, ns."""
        return median_interval(self.samples_ns)


def measure(prepared: Prepared, plan: Plan, stopwatch: Stopwatch | None = None) -> Measurement:
    """Warm up, choose the length of a sample, and take samples until the median is known well enough.

    Raises:
        MeasureError: Under Numba's simulator, whose times mean nothing, or if a clock runs backwards.
    """
    refuse_simulator(prepared.device)
    watch = stopwatch or stopwatch_for(prepared)

    def sample(runs: int) -> tuple[int, int | None]:
        def block() -> None:
            for _ in range(runs):
                prepared.run()

        wall, device = watch.time(block)
        if wall <= 0:
            raise MeasureError(f"measure: the clock did not advance over a sample (got {wall} ns); measure again")
        return wall, device

    runs = _runs_per_sample(sample, plan.sample_s)
    warm_up = _warm_up(sample, runs, plan)
    walls: list[float] = []
    devices: list[float] = []
    reason, spent = "", 0
    while not reason:
        wall, device = sample(runs)
        spent += wall
        walls.append(wall / runs)
        if device is not None:
            devices.append(device / runs)
        reason = _stop_reason(walls, spent, plan)
    notes = _clock_note(walls, devices)
    return Measurement(tuple(walls), tuple(devices) or None, runs, reason, warm_up, notes)


@dataclass(frozen=True, slots=True)
class Started:
    """The samples of a point that is timed from cold."""

    total: Measurement
    """Of all parts together."""
    parts_s: dict[str, tuple[float, ...]]
    """How long each part took in each sample, s."""


def measure_starts(starts: Starts, plan: Plan) -> Started:
    """Start as many processes as are planned, one after the other.

    Raises:
        MeasureError: Under Numba's simulator, whose times mean nothing.
    """
    refuse_simulator(starts.device)
    seen = [starts.run() for _ in range(plan.n_starts)]
    parts = {name: tuple(each[name] for each in seen) for name in seen[0]}
    total = tuple(sum(each.values()) * 1e9 for each in seen)
    return Started(Measurement(total, None, 1, f"{plan.n_starts} processes", None), parts)


def refuse_simulator(device: torch.device) -> None:
    """Make sure that times on a device mean something.

    Raises:
        MeasureError: Numba's simulator is on, and there is no GPU.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0") and device.type == "cpu":
        raise MeasureError("measure: Numba's CUDA simulator is on, its times mean nothing; unset NUMBA_ENABLE_CUDASIM")


def _runs_per_sample(sample: Callable[[int], tuple[int, int | None]], sample_s: float) -> int:
    """Double the runs of a sample until it is long enough, then scale to a little above the length."""
    runs = 1
    while True:
        wall, _ = sample(runs)
        if wall >= sample_s * 1e9 / 2:
            return max(runs if wall >= sample_s * 1e9 else 1, math.ceil(1.05 * runs * sample_s * 1e9 / wall))
        runs *= 2


def _warm_up(sample: Callable[[int], tuple[int, int | None]], runs: int, plan: Plan) -> dict[str, Any]:
    medians: list[float] = []
    spent = 0
    while True:
        walls = [sample(runs)[0] for _ in range(SAMPLES_PER_BLOCK)]
        spent += sum(walls)
        medians.append(median(walls))
        last = medians[-WARM_BLOCKS:]
        settled = len(last) == WARM_BLOCKS and spread(last) <= WARM_SPREAD
        if settled or spent >= plan.warm_up_cap_s * 1e9:
            return {
                "settled": settled,
                "blocks": len(medians),
                "duration_s": spent / 1e9,
                "last_spread": spread(last),
                "cap_s": plan.warm_up_cap_s,
            }


def _stop_reason(samples: list[float], spent_ns: int, plan: Plan) -> str:
    if len(samples) < plan.n_samples:
        return ""
    low, high = median_interval(samples)
    if (high - low) / 2 <= plan.interval * median(samples):
        return f"interval of the median within {plan.interval:.0%}"
    if len(samples) >= plan.max_samples:
        return f"{plan.max_samples} samples"
    return f"{plan.measure_cap_s:g} s" if spent_ns >= plan.measure_cap_s * 1e9 else ""


def _clock_note(walls: list[float], devices: list[float]) -> dict[str, str]:
    if not devices:
        return {}
    wall, device = median(walls), median(devices)
    if abs(wall - device) <= CLOCKS_AGREE * wall:
        return {}
    return {
        "clocks": f"wall time {wall:.0f} ns and device time {device:.0f} ns differ by {(wall - device) / wall:.1%}: "
        "the host waits or launches while the device idles"
    }


# ------------------------------------------------------------------ stopwatches


def stopwatch_for(prepared: Prepared) -> Stopwatch:
    """Return the stopwatch of a point's device."""
    if prepared.device.type == "cuda":
        return EventStopwatch(prepared.synchronize)
    return WallStopwatch(prepared.synchronize)


class WallStopwatch:
    """Wall time around a block and one synchronisation."""

    def __init__(self, synchronize: Callable[[], None], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._synchronize = synchronize
        self._clock = clock

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        self._synchronize()
        start = self._clock()
        block()
        self._synchronize()
        return self._clock() - start, None


class EventStopwatch:
    """Wall time, and device time by events on the current stream, around a block and one synchronisation."""

    def __init__(self, synchronize: Callable[[], None], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._wall = WallStopwatch(synchronize, clock)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""

        def between_events() -> None:
            self._start.record()
            block()
            self._end.record()

        wall, _ = self._wall.time(between_events)
        return wall, round(self._start.elapsed_time(self._end) * 1e6)
