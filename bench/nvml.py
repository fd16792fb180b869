"""Telemetry of the GPU while it works, through NVML (`nvidia-ml-py`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType, TracebackType
from typing import Any, Final

import torch

ENERGY_WINDOW_S: Final = 5.0
"""The energy counter moves every 100 ms: over shorter windows joules mean little."""
GPM_WINDOW_S: Final = 0.1
"""Two GPM samples must be this far apart."""

THROTTLE: Final = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks",
    "SwPowerCap": "software power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "software thermal",
    "HwThermalSlowdown": "hardware thermal",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}
"""NVML's reasons for lower clocks, by the end of the constant's name."""
GPM: Final = {
    "sm_occupancy_percent": "SM_OCCUPANCY",
    "sm_utilisation_percent": "SM_UTIL",
    "dram_bandwidth_percent": "DRAM_BW_UTIL",
    "pcie_received_mib_per_s": "PCIE_RX_PER_SEC",
    "pcie_sent_mib_per_s": "PCIE_TX_PER_SEC",
}
"""Metrics of Hopper and later, and the end of NVML's name of each."""

Series = dict[str, float]
"""Mean, min and max of what was sampled."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What was seen of the GPU; a field that could not be read is None, and `unread` says why."""

    samples: int
    duration_s: float
    utilisation_percent: Series | None
    """Share of time in which any kernel ran: one idle block reads 100 %. Read it beside `gpm`."""
    memory_used_bytes: Series | None
    sm_clock_mhz: Series | None
    memory_clock_mhz: Series | None
    power_w: Series | None
    temperature_c: Series | None
    energy_j: float | None
    throttle_reasons: dict[str, float] | None
    """Share of the samples in which each reason held."""
    contended: bool | None
    """Another process used the GPU."""
    gpm: dict[str, float] | None
    unread: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


class Sampler:
    """Reads NVML in a thread while the body of the ``with`` runs; never raises into it.

    Afterwards `telemetry` holds what was seen, or None, and `reason` says why.

    Args:
        device: As torch names it; NVML's index is found by UUID, as it ignores CUDA_VISIBLE_DEVICES.
        period_s: Time between samples, s.
    """

    def __init__(self, device: torch.device, period_s: float = 0.1) -> None:
        self.telemetry: Telemetry | None = None
        self.reason = ""
        self._device = device
        self._period_s = period_s
        self._series: dict[str, list[float]] = {}
        self._reasons: list[int] = []
        self._foreign: list[bool] = []
        self._unread: dict[str, str] = {}
        self._stop = threading.Event()

    def __enter__(self) -> Sampler:
        try:
            self._nvml, self._handle = _open(self._device)
        except Exception as error:  # noqa: BLE001  (whatever NVML lacks here, the measurement goes on without)
            self.reason = f"no telemetry: {error or type(error).__name__}"
            return self
        self._start = time.perf_counter()
        self._energy = self._read("energy_j", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        self._gpm_start = self._read("gpm", self._gpm_sample)
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reason:
            return
        self._stop.set()
        self._thread.join()
        if not self._series and not self._reasons:
            self.reason = (
                f"no telemetry: NVML gave no sample ({next(iter(self._unread.values()), 'the window is too short')})"
            )
            return
        self.telemetry = self._summary(time.perf_counter() - self._start)

    # -------------------------------------------------------------- sampling

    def _loop(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(self._period_s):
                return

    def _sample(self) -> None:
        nvml, handle = self._nvml, self._handle
        readers: dict[str, Callable[[], float]] = {
            "utilisation_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        for name, reader in readers.items():
            value = self._read(name, reader)
            if value is not None:
                self._series.setdefault(name, []).append(float(value))
        reasons = self._read("throttle_reasons", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is not None:
            self._reasons.append(reasons)
        processes = self._read("contended", lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        if processes is not None:
            self._foreign.append(any(process.pid != os.getpid() for process in processes))

    def _read(self, name: str, reader: Callable[[], Any]) -> Any:
        """Return what ``reader`` reads; None, with the first reason kept, if it fails or failed before."""
        if name in self._unread:
            return None
        try:
            return reader()
        except Exception as error:  # noqa: BLE001  (NVML's errors, and functions that an old library lacks)
            self._unread[name] = str(error) or type(error).__name__
            return None

    def _gpm_sample(self) -> Any:
        if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise RuntimeError("this GPU has no GPM metrics; they came with Hopper")
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample

    # -------------------------------------------------------------- summary

    def _summary(self, duration_s: float) -> Telemetry:
        return Telemetry(
            samples=max((len(values) for values in self._series.values()), default=0),
            duration_s=duration_s,
            **{name: _series(self._series.get(name)) for name in SERIES},
            energy_j=self._joules(duration_s),
            throttle_reasons=self._throttle(),
            contended=any(self._foreign) if self._foreign else None,
            gpm=self._gpm(duration_s),
            unread=dict(self._unread),
        )

    def _joules(self, duration_s: float) -> float | None:
        if duration_s < ENERGY_WINDOW_S:
            self._unread.setdefault(
                "energy_j", f"the window of {duration_s:.1f} s is shorter than {ENERGY_WINDOW_S:g} s"
            )
            return None
        end = self._read("energy_j", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None if end is None or self._energy is None else (end - self._energy) / 1000

    def _throttle(self) -> dict[str, float] | None:
        if not self._reasons:
            return None
        bits = {text: getattr(self._nvml, f"nvmlClocksEventReason{name}", None) for name, text in THROTTLE.items()}
        bits |= {
            text: getattr(self._nvml, f"nvmlClocksThrottleReason{name}", None)
            for name, text in THROTTLE.items()
            if bits[text] is None
        }
        shares = {
            text: sum(bool(reasons & bit) for reasons in self._reasons) / len(self._reasons)
            for text, bit in bits.items()
            if bit is not None
        }
        return {text: share for text, share in shares.items() if share > 0}

    def _gpm(self, duration_s: float) -> dict[str, float] | None:
        if self._gpm_start is None:
            return None
        if duration_s < GPM_WINDOW_S:
            self._unread.setdefault("gpm", f"the window of {duration_s:.2f} s is shorter than {GPM_WINDOW_S:g} s")
            return None
        return self._read("gpm", self._gpm_metrics)

    def _gpm_metrics(self) -> dict[str, float]:
        nvml = self._nvml
        end = self._gpm_sample()
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = self._gpm_start, end
        request.numMetrics = len(GPM)
        for index, name in enumerate(GPM.values()):
            request.metrics[index].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        nvml.nvmlGpmMetricsGet(request)
        metrics = {name: float(request.metrics[index].value) for index, name in enumerate(GPM)}
        nvml.nvmlGpmSampleFree(self._gpm_start)
        nvml.nvmlGpmSampleFree(end)
        return metrics


SERIES: Final = (
    "utilisation_percent",
    "memory_used_bytes",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "temperature_c",
)


def _series(values: Sequence[float] | None) -> Series | None:
    return {"mean": sum(values) / len(values), "min": min(values), "max": max(values)} if values else None


def _open(device: torch.device) -> tuple[ModuleType, Any]:
    """Return NVML, initialised, and its handle of a torch device.

    Raises:
        RuntimeError: The device is no GPU, or NVML knows none of its UUID.
    """
    if device.type != "cuda":
        raise RuntimeError("the point runs on the CPU")
    import pynvml  # noqa: PLC0415  (optional)

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found = pynvml.nvmlDeviceGetUUID(handle)
        if (found if isinstance(found, str) else found.decode()).removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return pynvml, handle
    raise RuntimeError("NVML knows no device of torch's UUID")
