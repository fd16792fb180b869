"""The NVML sampler, with a fake NVML."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from bench import nvml

DEVICE = torch.device("cuda", 0)


class FakeNvml:
    """A GPU at 1,500 MHz and 300 W whose energy counter has the given readings, mJ."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRICS_GET_VERSION = 1
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksEventReasonHwThermalSlowdown = 64

    def __init__(self) -> None:
        self.energy = iter([1_000_000, 2_500_000])
        self.reasons = [0, 4, 4, 68]
        self.pids = [os.getpid()]
        self.has_gpm = True
        self.samples = 0
        self.fails_after: int | None = None
        for index, name in enumerate(nvml.GPM.values()):
            setattr(self, f"NVML_GPM_METRIC_{name}", index)

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return ["GPU-other", "GPU-mine"][handle]

    def nvmlDeviceGetUtilizationRates(self, handle):
        assert handle == 1, "the device is found by UUID, not by index"
        self.samples += 1
        if self.fails_after is not None and self.samples > self.fails_after:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(gpu=90 + self.samples % 2)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=2**30)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1500, 2: 3000}[kind]

    def nvmlDeviceGetPowerUsage(self, handle):
        return 300_000

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 50

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return next(self.energy)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons[min(self.samples, len(self.reasons)) - 1]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=self.has_gpm)

    def nvmlGpmSampleAlloc(self):
        return object()

    def nvmlGpmSampleGet(self, handle, sample):
        pass

    def nvmlGpmSampleFree(self, sample):
        pass

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=None, value=0.0) for _ in nvml.GPM])

    def nvmlGpmMetricsGet(self, request):
        for metric in request.metrics:
            metric.value = 10.0 * metric.metricId


@pytest.fixture
def fake(monkeypatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="mine"))
    return fake


def watch(fake: FakeNvml, samples: int = 4) -> nvml.Sampler:
    """Sample every millisecond until the fake was read often enough."""
    with nvml.Sampler(DEVICE, period_s=0.001) as sampler:
        while fake.samples < samples:
            time.sleep(0.001)
    return sampler


def test_device_is_found_and_summarised(fake, monkeypatch):
    """Series have mean, min and max; throttling its share of the samples; long windows joules and GPM metrics."""
    monkeypatch.setattr(nvml, "ENERGY_WINDOW_S", 0.0)
    monkeypatch.setattr(nvml, "GPM_WINDOW_S", 0.0)
    got = watch(fake).telemetry
    assert got.sm_clock_mhz == {"mean": 1500, "min": 1500, "max": 1500}
    assert got.power_w["mean"] == 300
    assert got.utilisation_percent["min"] == 90
    assert got.utilisation_percent["max"] == 91
    assert got.energy_j == 1500
    assert got.contended is False
    assert 0 < got.throttle_reasons["hardware thermal"] < got.throttle_reasons["software power cap"] < 1
    assert got.gpm["sm_utilisation_percent"] == 10
    assert got.unread == {}
    assert got.to_dict()["samples"] == got.samples >= 4


def test_short_window_gives_no_joules(fake):
    """Energy over less than five seconds is null, with the reason."""
    got = watch(fake).telemetry
    assert got.energy_j is None
    assert "shorter than 5 s" in got.unread["energy_j"]
    assert got.gpm is None
    assert "shorter than 0.1 s" in got.unread["gpm"]


def test_older_gpu_has_no_gpm(fake):
    """Without GPM metrics the rest is read."""
    fake.has_gpm = False
    got = watch(fake).telemetry
    assert got.gpm is None
    assert "came with Hopper" in got.unread["gpm"]
    assert got.power_w is not None


def test_nvml_that_fails_in_the_middle_keeps_what_was_read(fake):
    """A reading that fails is not read again; the ones before it count, and the reason is kept."""
    fake.fails_after = 2
    got = watch(fake, samples=3).telemetry
    assert got.utilisation_percent == {"mean": 90.5, "min": 90, "max": 91}
    assert got.unread["utilisation_percent"] == "GPU is lost"
    assert got.power_w is not None


def test_foreign_process_marks_the_run_contended(fake):
    """Another process on the GPU is seen."""
    fake.pids.append(1)
    assert watch(fake).telemetry.contended is True


def test_without_nvml_there_is_a_reason(monkeypatch):
    """No library, no GPU: no telemetry, the reason, and no error."""
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
    """A device that NVML does not know is not mistaken for another."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="else"))
    with nvml.Sampler(DEVICE) as sampler:
        pass
    assert sampler.reason == "no telemetry: NVML knows no device of torch's UUID"
