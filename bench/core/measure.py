"""Measure a point: plans, kinds of `Workload` and the timer."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from . import machine
from .archive import read_toml
from .exclusive import exclusive
from .nvml import Sampler, ThrottleWatch, pcie_bytes_per
from .point import NOT_WATCHED, Check, Facts, Measurement, Metric
from .stats import median, median_interval, spread

if TYPE_CHECKING:
    import torch

WARM_BLOCKS: Final = 5
"""Blocks whose medians must agree before samples are kept."""
SAMPLES_PER_BLOCK: Final = 3
WARM_SPREAD: Final = 0.01
"""Largest relative difference of those medians."""
FEWEST: Final = 9
"""Minimum number of samples of slow work.

It is the smallest number whose shortest and longest sample lie outside the median's interval."""
MOST_DISCARDED: Final = 20
"""Throttled samples that a point repeats; then the GPU is always throttled, and they are kept."""
LONGEST_PERIOD_S: Final = 5.0
"""Longest period that a sample takes whole, s; a few longer ones would take an hour."""
MIN_OTHERS_S: Final = 0.3
"""Minimum duration of a timing whose other processes are measured, s; the system counts 10 ms."""
CLOCKS_AGREE: Final = 0.02
"""Relative difference of device and wall time above which records note it."""


WATCH_S: Final = 5.5
"""Duration of telemetry that includes energy, s."""


class MeasureError(RuntimeError):
    """A point cannot be timed reliably."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Amount of sampling."""

    sample_s: float = 0.02
    """Minimum length of a sample, s."""
    n_samples: int = 20
    """Minimum number of samples, until ``measure_cap_s`` has passed."""
    max_samples: int = 60
    """Maximum number of samples."""
    interval: float = 0.01
    """Relative half-width of the median's interval at which sampling stops."""
    warm_up_cap_s: float = 10.0
    """Maximum warm-up, s."""
    measure_cap_s: float = 10.0
    """Time after which no samples beyond `FEWEST` are taken, s."""
    n_starts: int = 20
    """Samples of a point with one process per sample."""
    n_long_starts: int = 5
    """The same if a process takes many seconds."""
    watch_s: float = WATCH_S
    """Duration of telemetry while the device repeats a point, s.

    The energy counter is included from 5 s."""
    has_reference_run: bool = True
    """True if the last check includes the reference run."""

    @property
    def brief(self) -> Plan:
        """Plan of a process that leaves reference run and telemetry to another one."""
        return replace(self, watch_s=0.0, has_reference_run=False)


PLANS: Final[Mapping[str, Plan]] = {
    name: Plan(**values) for name, values in read_toml(Path(__file__).with_name("plans.toml")).items()
}


class Stopwatch(Protocol):
    """Clock for a block of runs that ends with a synchronisation."""

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Run and synchronise a block; return wall and device time, ns."""
        ...


# ------------------------------------------------------------------ kinds of workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Work of this process, checked against a reference before and after timing."""

    check: Callable[[], Check]
    """Compares the work since the last check with its reference."""
    facts: Facts
    reference_run: Callable[[], Check] | None = None
    """Compares a small run with its reference run; None without one.

    Called only after the timing: another trainer in the process slows every launch of a CUDA graph permanently (ADR
    0014)."""

    def check_after(self, *, with_reference_run: bool = True) -> Check:
        """Check the timed work and its reference run.

        Skip the reference run with ``with_reference_run=False`` if another process has checked it with the same code.
        """
        own = self.check()
        if self.reference_run is None or not with_reference_run or not own.passed:
            return own
        return replace(self.reference_run(), detail=own.detail)

    def measure(self, plan: Plan) -> Measurement:
        """Check, measure, and check again; measure nothing if the first check fails.

        Raises:
            MeasureError: Under Numba's simulator, whose times mean nothing, or if a clock runs backwards.
        """
        refuse_simulator(self.facts.device)
        before = self.check()
        if not before.passed:
            return Measurement(before=before)
        with exclusive():
            others = machine.OtherProcesses() if self.facts.device.type == "cpu" else None
            seen = self.run_and_measure(plan)
            if others:
                seen = replace(seen, others_busy=others.busy(MIN_OTHERS_S))
        return replace(seen, before=before, after=self.check_after(with_reference_run=plan.has_reference_run))

    def run_and_measure(self, plan: Plan) -> Measurement:
        """Run the work and return its measurement."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed(Checked):
    """Repeated work, set up and warmed up beforehand."""

    run: Callable[[], None]
    """Enqueues one block of work; does not synchronise."""
    synchronize: Callable[[], None]
    """Waits until everything enqueued is done."""
    stopwatch: Stopwatch | None = None
    """Clock; None uses the device's."""
    pinned: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of sampling; pins each thread to a core."""
    snapshot: Callable[[], Callable[[], None]] | None = None
    """Copies the state before the next run; returns its restoring function.

    Both enqueue. None if there is no state, or it cannot be accessed."""
    period: int = 1
    """Number of runs that belong together, such as those of an episode.

    A sample has whole periods, unless one takes longer than `LONGEST_PERIOD_S`.
    """

    def run_and_measure(self, plan: Plan) -> Measurement:
        """Take samples until the median is precise enough, then record telemetry."""
        timer = Timer(self)
        timer.prepare(plan)
        seen = timer.measurement(plan)
        telemetry, why_none = timer.measure_telemetry(plan.watch_s, seen.median_ns)
        facts, unread = self.facts, {} if telemetry else {"telemetry": why_none}
        roofline, source = machine.roofline(facts, seen.median_ns / 1e9)
        if roofline is None:
            unread["roofline"] = source
        declared = {"bytes_per_run": facts.bytes_per_run, "ops_per_run": facts.ops_per_run}
        return replace(
            seen,
            metrics=rates(seen, facts.work),
            telemetry=telemetry,
            roofline=roofline,
            notes=declared | seen.notes,
            unread=unread,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Once(Checked):
    """One run, recorded for its result rather than its speed."""

    run: Callable[[], Measurement]
    """Does the whole run, waits for it, and returns its figures."""

    def run_and_measure(self, plan: Plan) -> Measurement:
        """Run it once."""
        seen = self.run()
        return replace(seen, unread=seen.unread | dict.fromkeys(("roofline", "telemetry"), "the point is run once"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStart(Checked):
    """Work timed in fresh processes: one process per sample, no warm-up."""

    run: Callable[[int], Mapping[str, float]]
    """Runs the process of a sample, by index, and returns the duration of each part, s, in order."""
    is_long: bool = False
    """True if a process takes many seconds."""
    finish: Callable[[Measurement], Measurement] = lambda seen: seen
    """Adds figures of the processes to their measurement."""

    def run_and_measure(self, plan: Plan) -> Measurement:
        """Start the planned number of processes, one by one."""
        n_starts = plan.n_long_starts if self.is_long else plan.n_starts
        return self.finish(measurement_of_starts([self.run(index) for index in range(n_starts)]))


def measurement_of_starts(starts: Sequence[Mapping[str, float]]) -> Measurement:
    """Return the measurement of processes, from the seconds of their parts."""
    totals_s = [sum(parts.values()) for parts in starts]
    samples_s = {name: [parts[name] for parts in starts] for name in starts[0]}
    return Measurement(
        samples_ns=tuple(total_s * 1e9 for total_s in totals_s),
        runs_per_sample=1,
        stop_reason=f"{len(starts)} processes",
        process=tuple(range(len(starts))),
        metrics={name: median_metric(values, "s") for name, values in {"total_s": totals_s, **samples_s}.items()},
        notes={"samples_s": samples_s},
        unread=dict.fromkeys(
            ("roofline", "telemetry", "warm_up"), "each sample is a process of its own, timed from cold"
        ),
    )


def median_metric(values: Sequence[float], unit: str) -> Metric:
    """Return the median of lower-is-better values, with its 95 % interval."""
    low, high = median_interval(values)
    return Metric(value=median(values), unit=unit, direction="lower", low=low, high=high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Work of several processes, which also check and time it."""

    run: Callable[[Plan], Measurement]
    """Runs the processes, waits, and returns both checks and the slowest samples."""
    facts: Facts

    def measure(self, plan: Plan) -> Measurement:
        """Start the processes and wait for them.

        Raises:
            MeasureError: Under Numba's simulator.
        """
        refuse_simulator(self.facts.device)
        seen = self.run(plan)
        unread = dict.fromkeys(("roofline", "telemetry"), "the work is done in processes of its own")
        return replace(seen, metrics=rates(seen, self.facts.work), unread=unread)


Workload = Checked | Ranks
"""A point that is set up: `Timed`, `Once`, `ColdStart` or `Ranks`."""


def rates(seen: Measurement, work: Mapping[str, int]) -> dict[str, Metric]:
    """Return each work rate, and the time per unit of the first."""
    low_ns, high_ns = seen.interval_ns
    metrics = {
        f"{kind}_per_s": Metric(
            value=amount / seen.median_ns * 1e9,
            unit=f"{kind}/s",
            direction="higher",
            low=amount / high_ns * 1e9,
            high=amount / low_ns * 1e9,
        )
        for kind, amount in work.items()
    }
    kind, amount = next(iter(work.items()))
    metrics[f"ns_per_{kind.removesuffix('s')}"] = Metric(
        value=seen.median_ns / amount, unit="ns", direction="lower", low=low_ns / amount, high=high_ns / amount
    )
    return metrics


# ------------------------------------------------------------------ the timer


class Timer:
    """Sampler of repeated work.

    Raises:
        MeasureError: Under Numba's simulator.
    """

    def __init__(self, timed: Timed) -> None:
        refuse_simulator(timed.facts.device)
        self._timed = timed
        self._stopwatch = timed.stopwatch or stopwatch_for(timed)
        self.runs = 1
        """Runs per sample."""
        self.warm_up: dict[str, Any] | None = None
        self.throttled: dict[str, int] = {}
        """Throttled samples, ``discarded`` and ``kept``; empty: none."""
        self._throttle = ThrottleWatch(timed.facts.device)

    def prepare(self, plan: Plan) -> None:
        """Choose the sample length, and warm up until the medians of blocks agree."""
        self.runs = self.runs_per_sample(plan.sample_s)
        self.warm_up = self._warm_up(plan)

    def sample(self) -> tuple[float, float | None]:
        """Return wall and (on a GPU) device time of one run, ns."""
        wall, device = self._sample()
        return wall / self.runs, None if device is None else device / self.runs

    def _sample(self) -> tuple[int, int | None]:
        """Time a sample; repeat it while the GPU is throttled (`MOST_DISCARDED`)."""
        while True:
            taken = self._time(self.runs)
            if not self._throttle.is_throttled():
                return taken
            fate = "discarded" if self.throttled.get("discarded", 0) < MOST_DISCARDED else "kept"
            self.throttled[fate] = self.throttled.get(fate, 0) + 1
            if fate == "kept":
                return taken

    def measurement(self, plan: Plan) -> Measurement:
        """Take samples until the median is precise enough."""
        walls: list[float] = []
        devices: list[float] = []
        reason, spent = "", 0
        while not reason:
            wall, device = self._sample()
            spent += wall
            walls.append(wall / self.runs)
            if device is not None:
                devices.append(device / self.runs)
            reason = _stop_reason(walls, spent, plan)
        return Measurement(
            samples_ns=tuple(walls),
            device_ns=tuple(devices) or None,
            runs_per_sample=self.runs,
            stop_reason=reason,
            warm_up=self.warm_up,
            notes=_clock_note(walls, devices)
            | ({"throttled_samples": self.throttled} if self.throttled else {})
            | ({"runs_per_period": self._timed.period} if self._timed.period > 1 else {}),
        )

    def measure_telemetry(self, window_s: float, median_ns: float) -> tuple[dict[str, Any] | None, str]:
        """Repeat the work under telemetry; return telemetry and cost, or a reason."""
        if window_s == 0:
            return None, NOT_WATCHED
        facts = self._timed.facts
        with Sampler(facts.device) as sampler:
            if sampler.reason:
                return None, sampler.reason
            samples: list[float] = []
            spent = 0
            while spent < window_s * 1e9:
                wall, _ = self._time(self.runs)
                samples.append(wall / self.runs)
                spent += wall
        if sampler.telemetry is None:
            return None, sampler.reason
        kind, amount = next(iter(facts.work.items()))
        units, unit = amount * self.runs * len(samples), kind.removesuffix("s")
        joules = sampler.telemetry["energy_j"]
        per_unit = {
            f"pcie_bytes_per_{unit}": pcie_bytes_per(sampler.telemetry, units),
            f"joules_per_{unit}": None if joules is None else joules / units,
        }
        slower = median(samples) / median_ns - 1
        return {**sampler.telemetry, **per_unit, "watched_slower_by": slower}, ""

    def joules_per_unit(self, window_s: float) -> float | None:
        """Repeat the work for a time; return its energy per unit, J; None if unread."""
        telemetry, _ = self.measure_telemetry(window_s, math.inf)
        unit = next(iter(self._timed.facts.work)).removesuffix("s")
        return (telemetry or {}).get(f"joules_per_{unit}")

    def _time(self, runs: int) -> tuple[int, int | None]:
        def block() -> None:
            for _ in range(runs):
                self._timed.run()

        with self._timed.pinned():
            wall, device = self._stopwatch.time(block)
        if wall <= 0:
            raise MeasureError(f"measure: a sample must take time (got {wall} ns by the clock); measure again")
        return wall, device

    def runs_per_sample(self, sample_s: float) -> int:
        """Return the number of runs that makes a sample long enough.

        They are whole periods, if these are short.
        """
        runs = 1
        while True:
            wall, _ = self._time(runs)
            if wall >= sample_s * 1e9 / 2:
                least = max(runs if wall >= sample_s * 1e9 else 1, math.ceil(1.05 * runs * sample_s * 1e9 / wall))
                is_short = self._timed.period * wall / runs <= LONGEST_PERIOD_S * 1e9
                period = self._timed.period if is_short else 1
                return period * math.ceil(least / period)
            runs *= 2

    def _warm_up(self, plan: Plan) -> dict[str, Any]:
        medians: list[float] = []
        spent = 0
        while True:
            walls = [self._time(self.runs)[0] for _ in range(SAMPLES_PER_BLOCK)]
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


def refuse_simulator(device: torch.device) -> None:
    """Raise if times on a device are meaningless.

    Raises:
        MeasureError: Numba's simulator is on, and there is no GPU.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0") and device.type == "cpu":
        raise MeasureError(
            "measure: Numba's CUDA simulator is on, so times are meaningless; unset NUMBA_ENABLE_CUDASIM"
        )


def _stop_reason(samples: list[float], spent_ns: int, plan: Plan) -> str:
    is_late = spent_ns >= plan.measure_cap_s * 1e9
    if len(samples) < (min(FEWEST, plan.n_samples) if is_late else plan.n_samples):
        return ""
    low, high = median_interval(samples)
    if (high - low) / 2 <= plan.interval * median(samples):
        return f"interval of the median within {plan.interval:.0%}"
    if len(samples) >= plan.max_samples:
        return f"{plan.max_samples} samples"
    return f"{plan.measure_cap_s:g} s" if is_late else ""


def _clock_note(walls: list[float], devices: list[float]) -> dict[str, Any]:
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


def stopwatch_for(timed: Timed) -> Stopwatch:
    """Return the stopwatch of a point's device."""
    return (EventStopwatch if timed.facts.device.type == "cuda" else WallStopwatch)(timed.synchronize)


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


class Stamp:
    """Point in time on a device; differences are seconds per unit of work.

    On a GPU it is an event on the current stream, and a difference waits for the later one.

    Args:
        device: Device of the work.
        units: Units of work between two stamps.
    """

    def __init__(self, device: torch.device, units: float = 1.0) -> None:
        import torch  # noqa: PLC0415  (takes seconds)

        self._units = units
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event:
            self._event.record()
        self._s = time.perf_counter()

    def __sub__(self, earlier: Stamp) -> float:
        if self._event is None or earlier._event is None:
            return (self._s - earlier._s) / self._units
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3 / self._units


class EventStopwatch:
    """Wall time and device time (by events) of a block, with synchronisation."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        import torch  # noqa: PLC0415  (takes seconds)

        self._wall = WallStopwatch(synchronize)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""

        def between_events() -> None:
            self._start.record()
            block()
            self._end.record()

        wall, _ = self._wall.time(between_events)
        return wall, round(self._start.elapsed_time(self._end) * 1e6)
