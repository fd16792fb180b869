"""The NVML sampler, with a fake NVML."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from bench.core import nvml
from bench.core.measure import MOST_DISCARDED, Plan, Timer
from bench.core.record import Host
from bench.judge.evidence import disturbances
from tests.bench.builders import FakeNvml, FakeWatch, record, timed

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def fake(monkeypatch) -> FakeNvml:
    return FakeNvml.installed(monkeypatch)


@pytest.fixture
def long_enough(monkeypatch):
    """Make every window long enough for joules and GPM metrics."""
    monkeypatch.setattr(nvml, "ENERGY_WINDOW_S", 0.0)
    monkeypatch.setattr(nvml, "GPM_WINDOW_S", 0.0)


def watch(fake: FakeNvml, samples: int = 4) -> nvml.Sampler:
    """Sample every millisecond until the fake has enough reads."""
    with nvml.Sampler(DEVICE, period_s=0.001) as sampler:
        while fake.samples < samples:
            time.sleep(0.001)
    return sampler


def test_device_is_found_and_summarised(fake, long_enough):
    """Telemetry summarises all series of the device.

    Series have mean, minimum and maximum; throttling is a share of the samples. Long windows have joules and GPM
    metrics.
    """
    got = SimpleNamespace(**watch(fake).telemetry)
    assert got.sm_clock_mhz == {"mean": 1500, "min": 1500, "max": 1500}
    assert got.power_w["mean"] == 300
    assert got.utilisation_percent["min"] == 90
    assert got.utilisation_percent["max"] == 91
    assert got.energy_j == 1500
    assert got.contended is False
    assert 0 < got.throttle_reasons["hardware thermal"] < got.throttle_reasons["software power cap"] < 1
    assert got.gpm["sm_utilisation_percent"] == 10
    assert got.unread == {}
    assert got.samples >= 4
    assert 0 < got.reading_s["mean"] <= got.reading_s["max"] < got.duration_s
    assert (fake.opened, fake.gpm_samples) == (0, 0), "what was opened is closed, what was allocated is freed"


@pytest.mark.parametrize(
    ("changes", "is_long", "field", "reason"),
    [
        ({}, False, "energy_j", "shorter than 5 s"),
        ({}, False, "gpm", "shorter than 0.1 s"),
        ({"has_gpm": False}, True, "gpm", "came with Hopper"),
        ({"energy": iter([1000, 0])}, True, "energy_j", "decreased"),
        ({"pids": []}, True, "contended", "as in most containers"),
    ],
    ids=["joules need 5 s", "GPM needs 0.1 s", "older GPU", "counter that is set back", "container"],
)
def test_what_is_not_read_has_a_reason(fake, request, changes, is_long, field, reason):
    """Each figure that cannot be read has a reason.

    Causes: short windows, older GPUs, counters going back, containers.
    """
    vars(fake).update(changes)
    if is_long:
        request.getfixturevalue("long_enough")
    got = SimpleNamespace(**watch(fake).telemetry)
    assert getattr(got, field) is None
    assert reason in got.unread[field]
    assert got.power_w is not None
    assert (fake.opened, fake.gpm_samples) == (0, 0)


def test_nvml_that_fails_in_the_middle_keeps_what_was_read(fake):
    """After a failed reading the earlier samples count.

    The reading is not repeated, and its reason is recorded.
    """
    fake.fails_after = 2
    got = SimpleNamespace(**watch(fake, samples=3).telemetry)
    assert got.utilisation_percent == {"mean": 90.5, "min": 90, "max": 91}
    assert got.unread["utilisation_percent"] == "GPU is lost"
    assert got.power_w is not None


def test_metric_that_fails_is_not_taken_for_zero(fake, long_enough):
    """A GPM metric that fails is omitted with its reason."""
    fake.gpm_status = {list(nvml.GPM).index("dram_bandwidth_percent"): 3}
    got = SimpleNamespace(**watch(fake).telemetry)
    assert set(got.gpm) == set(nvml.GPM) - {"dram_bandwidth_percent"}
    assert got.unread["gpm.dram_bandwidth_percent"] == "NVML answers 3"


def test_lost_gpu_frees_what_it_can_and_raises_nothing(fake, long_enough):
    """A lost GPU keeps earlier samples and raises nothing."""

    def lost(*arguments):
        fake.samples += 1
        raise RuntimeError("GPU is lost")

    with nvml.Sampler(DEVICE, period_s=0.001) as sampler:
        while fake.samples < 2:
            time.sleep(0.001)
        for name in dir(fake):
            if name.startswith(("nvmlDeviceGet", "nvmlGpm", "nvmlShutdown")):
                setattr(fake, name, lost)
        while "contended" not in sampler._unread:  # the last one that a sample reads
            time.sleep(0.001)
    got = SimpleNamespace(**sampler.telemetry)
    assert got.samples >= 1
    assert got.power_w["mean"] == 300
    assert (got.energy_j, got.gpm) == (None, None)
    assert got.unread["power_w"] == got.unread["energy_j"] == got.unread["gpm"] == "GPU is lost"


def test_driver_that_hangs_does_not_hold_up_the_measurement(fake, monkeypatch):
    """A hanging NVML call gives a reason instead of telemetry."""
    monkeypatch.setattr(nvml, "ANSWER_S", 0.01)
    release, waits = threading.Event(), threading.Event()

    def hang(handle):
        waits.set()
        release.wait()
        raise RuntimeError("too late")

    fake.nvmlDeviceGetUtilizationRates = hang
    with nvml.Sampler(DEVICE) as sampler:
        assert waits.wait(5)
    assert sampler.telemetry is None
    assert sampler.reason.startswith("no telemetry: NVML has not answered for 0.01 s")
    release.set()


def test_foreign_process_marks_the_run_contended(fake):
    """Other processes on the GPU make a run contended."""
    assert watch(fake).telemetry["other_processes"] == 0
    fake.samples = 0
    fake.pids += [1, 2]
    fake.energy = iter([0, 0])
    got = SimpleNamespace(**watch(fake).telemetry)
    assert got.contended is True
    assert got.other_processes == 2


def test_own_process_under_another_number_is_not_foreign(fake):
    """This process is not foreign, whatever its PID in NVML.

    In a container NVML may list it by its PID on the host.
    """
    fake.pids = [os.getpid() + 1]
    assert watch(fake).telemetry["contended"] is False


def test_throttling_leaves_out_what_is_no_trouble():
    """Idling and chosen clocks are not throttling."""
    reasons = {"idle": 0.5, "application clocks": 1.0, "software power cap": 0.25}
    assert nvml.throttling({"throttle_reasons": reasons}) == {"software power cap": 0.25}
    assert nvml.throttling({"throttle_reasons": None}) == nvml.throttling(None) == {}


def test_bytes_over_the_bus_are_per_unit_of_work(fake, long_enough):
    """PCIe bytes are per unit of work, and unknown without GPM."""
    got = SimpleNamespace(**watch(fake).telemetry)
    rate = got.gpm["pcie_received_mib_per_s"] + got.gpm["pcie_sent_mib_per_s"]
    assert rate == 70
    assert nvml.pcie_bytes_per(vars(got), 1000) == pytest.approx(70 * 2**20 * got.duration_s / 1000)
    fake.has_gpm, fake.samples, fake.energy = False, 0, iter([0, 0])
    assert nvml.pcie_bytes_per(watch(fake).telemetry, 1000) is None


def test_watching_a_point_counts_its_work_and_its_cost(fake, long_enough):
    """Sampled runs record their work and the sampler's cost."""
    clock = FakeWatch(lambda run: 55e6)
    timer = Timer(timed(clock.run, stopwatch=clock, device=DEVICE))
    timer.runs = 2
    got, reason = timer.measure_telemetry(0.5, 50e6)
    assert reason == ""
    assert clock.runs == 10
    assert got["watched_slower_by"] == pytest.approx(0.1)
    assert got["pcie_bytes_per_env_step"] == pytest.approx(70 * 2**20 * got["duration_s"] / 10_000)


def test_energy_period_is_the_time_between_movements():
    """A counter that moves every 100 ms has that period."""
    now = [0.0]

    def pause(seconds):
        now[0] += seconds

    got = nvml.energy_period_s(lambda: int(now[0] / 0.1 + 1e-9), clock=lambda: now[0], pause=pause)
    assert got == pytest.approx(0.1, abs=0.002)
    assert nvml.energy_period_s(lambda: 7, clock=lambda: now[0], pause=pause) is None


def test_without_nvml_there_is_a_reason(monkeypatch):
    """Without NVML or a GPU there is a reason instead of telemetry."""
    with nvml.Sampler(torch.device("cpu")) as on_cpu:
        pass
    assert on_cpu.telemetry is None
    assert on_cpu.reason == "no telemetry: the point runs on the CPU"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with nvml.Sampler(DEVICE) as without:
        pass
    assert without.telemetry is None
    assert "pynvml" in without.reason


def test_unknown_uuid_is_a_reason(fake, monkeypatch):
    """A device unknown to NVML gives a reason."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="else"))
    with nvml.Sampler(DEVICE) as sampler:
        pass
    assert sampler.reason.startswith("no telemetry: NVML has no device with torch's UUID")
    assert fake.opened == 0


def test_old_name_warns():
    """Importing the old `bench.nvml` warns.

    The tutorial imported it.
    """
    with pytest.warns(DeprecationWarning, match=r"moved to bench\.core\.nvml"):
        assert importlib.import_module("bench.nvml").Sampler is nvml.Sampler


# ------------------------------------------------------------------ throttled samples


@pytest.mark.parametrize(
    ("reasons", "throttled", "walls"),
    [
        ([0, 1, 0], {}, [1, 2, 3]),  # idle is no throttling
        ([0, 4, 64, 0, 0], {"discarded": 2}, [1, 4, 5]),
        ([0] * 2 + [4] * 30, {"discarded": MOST_DISCARDED, "kept": 1}, [1, 2, 3 + MOST_DISCARDED]),
    ],
    ids=["none", "two", "always"],
)
def test_throttled_samples_are_discarded(fake, reasons, throttled, walls):
    """A sample that ends throttled is repeated, up to a limit."""
    fake.nvmlClocksEventReasonGpuIdle = 1
    left = iter(reasons)
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: next(left)
    watch = FakeWatch(lambda run: 1.0 + run)
    timer = Timer(timed(watch.run, device=DEVICE, stopwatch=watch))
    seen = timer.measurement(Plan(sample_s=0.0, n_samples=3, max_samples=3, warm_up_cap_s=0.0))
    assert [round(each) for each in seen.samples_ns] == walls
    assert seen.notes.get("throttled_samples", {}) == throttled
    of_run = record(notes=dict(seen.notes))
    assert disturbances(of_run) == (["the GPU was throttled in 1 samples"] if "kept" in throttled else [])


def test_host_has_the_state_of_the_gpu(fake):
    """Each record has clocks, power, its limit and temperature."""
    host = Host.before().after(DEVICE)
    assert host.gpu == {
        "sm_clock_mhz": 1500, "memory_clock_mhz": 3000, "power_w": 300, "power_limit_w": 700, "temperature_c": 50,
    }  # fmt: skip
    assert fake.opened == 0
    assert Host.before().after(torch.device("cpu")).gpu is None
