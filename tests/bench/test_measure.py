"""The timer, under a fake clock."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bench.core.measure import MeasureError, Plan, Timer, WallStopwatch
from bench.core.stats import median_interval
from tests.bench.builders import FakeWatch, cycle, timed


def measure(watch, plan):
    """Return a point's samples, with run times of a fake clock."""
    timer = Timer(timed(watch.run, stopwatch=watch))
    timer.prepare(plan)
    return timer.measurement(plan)


def test_steady_point_gives_its_time_and_stops_at_the_narrow_interval():
    """A steady point stops once its interval is within 1 %.

    Runs of 3 ms give 20 samples of 20 ms or more, median 3 ms.
    """
    watch = FakeWatch(lambda run: 3e6)
    got = measure(watch, Plan())
    assert got.median_ns == 3e6
    assert got.interval_ns == (3e6, 3e6)
    assert got.runs_per_sample * 3e6 >= 20e6
    assert len(got.samples_ns) == 20
    assert got.stop_reason == "interval of the median within 1%"
    assert got.warm_up["settled"]
    assert got.warm_up["blocks"] == 5


def test_a_sample_takes_whole_periods():
    """A sample has at least the time asked for, and a multiple of the period's runs."""
    watch = FakeWatch(lambda run: 3e6)
    timer = Timer(dataclasses.replace(timed(watch.run, stopwatch=watch), period=5))
    assert timer.runs_per_sample(0.02) == 10
    assert timer.runs_per_sample(0.001) == 5
    hours = Timer(dataclasses.replace(timed(watch.run, stopwatch=watch), period=10_000))
    assert hours.runs_per_sample(0.02) == 7, "a period of 30 s is cut"


def test_warm_up_goes_on_until_the_medians_agree():
    """A point is timed only after its run times settle."""
    watch = FakeWatch(lambda run: 20e6 * (1 + max(0.0, 1 - run / 60)))
    got = measure(watch, Plan())
    assert got.warm_up["settled"]
    assert got.warm_up["blocks"] > 5
    assert got.median_ns == 20e6


def test_warm_up_that_never_settles_ends_at_its_cap_and_says_so():
    """A warm-up stops at its cap, recorded as unsettled."""
    watch = FakeWatch(lambda run: 1e9 * 0.98**run)
    got = measure(watch, Plan(warm_up_cap_s=1.0, max_samples=20))
    assert not got.warm_up["settled"]
    assert got.warm_up["duration_s"] >= 1.0


def test_noisy_point_takes_more_samples_up_to_the_cap():
    """A noisy point takes samples up to the cap."""
    watch = FakeWatch(cycle([40e6, 60e6, 50e6, 42e6, 58e6]))
    got = measure(watch, Plan(warm_up_cap_s=1.0, max_samples=40, measure_cap_s=1e9))
    assert len(got.samples_ns) == 40
    assert got.stop_reason == "40 samples"
    assert got.interval_ns[0] < got.median_ns < got.interval_ns[1]


@pytest.mark.parametrize(("cap_s", "n"), [(0.1, 9), (0.6, 12), (5.0, 60)])
def test_time_cap_stops_slow_work_with_fewer_samples(cap_s, n):
    """The time cap limits the samples, but not below a minimum."""
    watch = FakeWatch(cycle([40e6, 60e6]))
    got = measure(watch, Plan(warm_up_cap_s=0.1, measure_cap_s=cap_s))
    assert len(got.samples_ns) == n
    assert got.stop_reason == (f"{cap_s:g} s" if n < 60 else "60 samples")


def test_one_outlier_does_not_move_the_median():
    """One outlier does not change the median."""
    watch = FakeWatch(lambda run: 2e9 if run == 40 else 20e6)
    got = measure(watch, Plan())
    assert max(got.samples_ns) > 1e8
    assert got.median_ns == 20e6


def test_disagreeing_clocks_are_noted():
    """Device time 10 % below wall time is noted."""
    watch = FakeWatch(lambda run: 20e6, device_share=0.9)
    assert "differ by 10.0%" in measure(watch, Plan()).notes["clocks"]
    watch = FakeWatch(lambda run: 20e6, device_share=0.99)
    assert measure(watch, Plan()).notes == {}


def test_clock_that_stands_still_is_an_error():
    """A clock that does not advance raises an error."""
    watch = FakeWatch(lambda run: 0.0)
    with pytest.raises(MeasureError, match="a sample must take time"):
        measure(watch, Plan())


def test_simulator_is_refused(monkeypatch):
    """Timing under Numba's simulator raises an error."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(MeasureError, match="simulator"):
        Timer(timed())


def test_wall_stopwatch_waits_before_and_after():
    """The stopwatch synchronises before both readings of the clock."""
    events = []
    ticks = iter([10, 35])

    def clock():
        events.append("clock")
        return next(ticks)

    watch = WallStopwatch(lambda: events.append("wait"), clock)
    assert watch.time(lambda: events.append("run")) == (25, None)
    assert events == ["wait", "clock", "run", "wait", "clock"]


def test_interval_of_the_median_has_the_published_ranks():
    """The median's 95 % interval has the published ranks.

    They are the 6th and 15th of 20 samples, and the range of 6.
    """
    assert median_interval(list(range(1, 21))) == (6, 15)
    assert median_interval([6, 5, 4, 3, 2, 1]) == (1, 6)


@pytest.mark.gpu
def test_events_and_wall_time_agree_on_a_gpu():
    """CUDA events and wall time agree for long kernels.

    Other processes may use the GPU and the cores, so one of several measurements suffices.
    """
    big = torch.ones(8192, 8192, device="cuda")
    timer = Timer(timed(lambda: torch.mm(big, big), synchronize=torch.cuda.synchronize, device=torch.device("cuda")))
    timer.prepare(Plan())
    found = (timer.measurement(Plan()) for _ in range(5))
    assert any(each.device_ns is not None and each.notes == {} for each in found)
