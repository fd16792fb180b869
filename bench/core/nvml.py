"""Telemetry of the GPU while it works, through NVML (`nvidia-ml-py`)."""

from __future__ import annotations

import contextlib
import threading
import time
import tomllib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .exclusive import SIBLINGS

if TYPE_CHECKING:
    import torch

ENERGY_WINDOW_S: Final = 5.0
"""Minimum window for energy, s: the counter updates only every 100 ms."""
GPM_WINDOW_S: Final = 0.1
"""Minimum time between two GPM samples, s."""
ANSWER_S: Final = 5.0
"""Timeout of a call, s; a driver without its GPU may hang."""

_NAMES: Final = tomllib.loads(Path(__file__).with_name("nvml.toml").read_text())
THROTTLE: Final[Mapping[str, str]] = _NAMES["throttle"]
"""NVML's reasons for lower clocks, by the suffix of the constant's name."""
NOT_THROTTLED: Final = ("idle", "application clocks", "display clocks")
"""Harmless reasons: the GPU is idle, or a user chose its clocks."""
GPM: Final[Mapping[str, str]] = _NAMES["gpm"]
"""Metrics of Hopper and later, with the suffix of NVML's name."""

Series = dict[str, float]
"""Mean, min and max of samples."""


Telemetry = dict[str, Any]
"""Telemetry of the GPU, as `docs/records.md` lists its fields; ``unread`` has the reason for each None."""


class Sampler:
    """Reads NVML in a thread during a ``with`` block; never raises into the block.

    Afterwards `telemetry` has the result, or it is None and `reason` explains why.

    Args:
        device: As torch names it; NVML's index is found by UUID, as it ignores CUDA_VISIBLE_DEVICES.
        period_s: Time between samples, s.
    """

    def __init__(self, device: torch.device, period_s: float = 0.1) -> None:
        self.telemetry: Telemetry | None = None
        self.reason = ""
        self._device = device
        self._period_s = period_s
        self._seen: dict[str, list[Any]] = {}
        """Values read for each field, in the order of the samples."""
        self._reading_s: list[float] = []
        self._gpm_start: Any = None
        self._unread: dict[str, str] = {}
        self._stop = threading.Event()

    def __enter__(self) -> Sampler:
        self._open = contextlib.ExitStack()
        try:
            self._nvml, self._handle = self._open.enter_context(open_device(self._device))
        except Exception as error:  # noqa: BLE001  (the measurement continues without what NVML lacks here)
            self.reason = f"no telemetry: {error or type(error).__name__}"
            return self
        self._start = time.perf_counter()
        self._energy = self._read("energy_j", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        self._gpm_start = self._read("gpm", lambda: self._open.enter_context(gpm_sample(self._nvml, self._handle)))
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reason:
            return
        self._stop.set()
        self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            self.reason = f"no telemetry: NVML has not answered for {ANSWER_S:g} s; see what `nvidia-smi` says"
            return
        with self._open:
            if self._seen:
                self.telemetry = self._summary(time.perf_counter() - self._start)
            else:
                why = next(iter(self._unread.values()), "the window is too short")
                self.reason = f"no telemetry: NVML gave no sample ({why})"

    # -------------------------------------------------------------- sampling

    def _loop(self) -> None:
        while True:
            began = time.perf_counter()
            for name, reader in READERS.items():
                if (value := self._read(name, partial(reader, self._nvml, self._handle))) is not None:
                    self._seen.setdefault(name, []).append(value)
            self._reading_s.append(time.perf_counter() - began)
            if self._stop.wait(self._period_s):
                return

    def _read(self, name: str, reader: Callable[[], Any]) -> Any:
        """Call ``reader``; return None after its first failure and store the reason."""
        if name in self._unread:
            return None
        try:
            return reader()
        except Exception as error:  # noqa: BLE001  (NVML's errors, and functions that an old library lacks)
            self._unread[name] = str(error) or type(error).__name__
            return None

    # -------------------------------------------------------------- summary

    def _summary(self, duration_s: float) -> Telemetry:
        others = self._seen.get("contended")
        return {
            "samples": max(map(len, self._seen.values())),
            "duration_s": duration_s,
            **{name: _series(self._seen.get(name)) for name in SERIES},
            "energy_j": self._read("energy_j", lambda: self._joules(duration_s)),
            "throttle_reasons": self._throttle(),
            "contended": any(others) if others else None,
            "other_processes": max(others) if others else None,
            "gpm": self._read("gpm", lambda: self._gpm_metrics(duration_s)),
            "reading_s": _series(self._reading_s) or {},
            "unread": dict(self._unread),
        }

    def _joules(self, duration_s: float) -> float:
        _require_window(duration_s, ENERGY_WINDOW_S)
        spent = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) - self._energy
        if spent < 0:
            raise RuntimeError("the energy counter decreased: the driver was reloaded")
        return float(spent) / 1000

    def _throttle(self) -> dict[str, float] | None:
        if not (samples := self._seen.get("throttle_reasons")):
            return None
        named = Counter(name for reasons in samples for name in names_of(self._nvml, reasons))
        return {name: named[name] / len(samples) for name in THROTTLE.values() if named[name]}

    def _gpm_metrics(self, duration_s: float) -> dict[str, float]:
        _require_window(duration_s, GPM_WINDOW_S)
        nvml = self._nvml
        with gpm_sample(nvml, self._handle) as end:
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.sample1, request.sample2 = self._gpm_start, end
            request.numMetrics = len(GPM)
            for index, name in enumerate(GPM.values()):
                request.metrics[index].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
            nvml.nvmlGpmMetricsGet(request)
        read = {}
        for index, name in enumerate(GPM):
            metric = request.metrics[index]
            if metric.nvmlReturn == nvml.NVML_SUCCESS:
                read[name] = float(metric.value)
            else:  # the call succeeds anyway, with the value 0
                self._unread[f"gpm.{name}"] = f"NVML answers {metric.nvmlReturn}"
        return read


def _require_window(duration_s: float, least_s: float) -> None:
    if duration_s < least_s:
        raise RuntimeError(f"the window of {duration_s:.2g} s is shorter than {least_s:g} s")


SERIES: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    "utilisation_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_used_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_w": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
}
"""Fields of `Telemetry` that are a `Series`, with their readers."""


def _series(values: Sequence[float] | None) -> Series | None:
    return {"mean": sum(values) / len(values), "min": float(min(values)), "max": float(max(values))} if values else None


def _count_others(processes: Sequence[Any]) -> int:
    """Count the GPU's processes other than this one and its siblings.

    Raises:
        RuntimeError: NVML shows not even this one.
    """
    if not processes:
        raise RuntimeError("NVML lists no process, not even this one, as in most containers")
    # In a container NVML may list this process under its PID outside; then one of the others is this one.
    return max(0, len(processes) - 1 - SIBLINGS.n)


# ------------------------------------------------------------------ functions for other callers of NVML


def other_users(device: torch.device) -> int | None:
    """Count other processes on our GPU; None on a CPU or if unknown."""
    try:
        with open_device(device) as (nvml, handle):
            return _count_others(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except Exception:  # noqa: BLE001  (the measurement continues without what NVML lacks here)
        return None


STATE: Final = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "power_limit_w", "temperature_c")
"""Fields of `SERIES` that `gpu_state` reads."""


def gpu_state(device: torch.device) -> dict[str, float] | None:
    """Read our GPU's clocks, power and temperature; None on a CPU or if unknown."""
    state = {}
    with contextlib.suppress(Exception), open_device(device) as (nvml, handle):
        for name in STATE:
            with contextlib.suppress(Exception):  # the library or the driver lacks the function
                state[name] = float(SERIES[name](nvml, handle))
    return state or None


class ThrottleWatch:
    """Reads whether a GPU is throttled; never, on a CPU or without NVML."""

    def __init__(self, device: torch.device) -> None:
        opened = contextlib.ExitStack()
        weakref.finalize(self, opened.close)
        self._read: Callable[[], list[str]] | None = None
        with contextlib.suppress(Exception):  # the measurement continues without what NVML lacks here
            nvml, handle = opened.enter_context(open_device(device))
            self._read = lambda: names_of(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))

    def is_throttled(self) -> bool:
        """True if power, heat or hardware lowers the clocks now."""
        try:
            return self._read is not None and any(name not in NOT_THROTTLED for name in self._read())
        except Exception:  # noqa: BLE001  (a lost GPU fails the work itself)
            self._read = None
            return False


@contextlib.contextmanager
def open_device(device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Initialise NVML and yield it with its handle of a torch device.

    Raises:
        ImportError: There is no `nvidia-ml-py`.
        RuntimeError: The device is no GPU, or NVML knows none of its UUID.
    """
    if device.type != "cuda":
        raise RuntimeError("the point runs on the CPU")
    import torch  # noqa: PLC0415  (takes seconds)

    try:
        import pynvml  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ImportError(f"{error}; pip install nvidia-ml-py") from error

    pynvml.nvmlInit()
    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        yield pynvml, _handle(pynvml, uuid.removeprefix("GPU-"))
    finally:
        with contextlib.suppress(Exception):  # the GPU may be gone
            pynvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str) -> Any:
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if nvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-") == uuid:
            return handle
    raise RuntimeError("NVML has no device with torch's UUID; a MIG slice of a GPU has no telemetry")


def names_of(nvml: Any, reasons: int) -> list[str]:
    """Name the bits of NVML's reasons for lower clocks, as `THROTTLE` does."""
    return [text for name, text in THROTTLE.items() if reasons & getattr(nvml, f"nvmlClocksEventReason{name}", 0)]


@contextlib.contextmanager
def gpm_sample(nvml: Any, handle: Any) -> Iterator[Any]:
    """Allocate a GPM sample and free it on exit.

    Raises:
        RuntimeError: The GPU has none.
    """
    if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise RuntimeError("this GPU has no GPM metrics; they came with Hopper")
    sample = nvml.nvmlGpmSampleAlloc()
    try:
        nvml.nvmlGpmSampleGet(handle, sample)
        yield sample
    finally:
        with contextlib.suppress(Exception):  # a lost GPU cannot free anything
            nvml.nvmlGpmSampleFree(sample)


def energy_period_s(
    read_mj: Callable[[], int],
    clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> float | None:
    """Return the energy counter's median update period, s; None above 1 s."""
    began, last, moved = clock(), read_mj(), []
    while clock() - began < 1:
        pause(0.001)
        if (now := read_mj()) != last:
            last = now
            moved.append(clock())
    return median(after - before for before, after in pairwise(moved)) if len(moved) > 1 else None


READERS: Final[Mapping[str, Callable[[Any, Any], float]]] = {
    **SERIES,
    "throttle_reasons": lambda nvml, handle: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
    "contended": lambda nvml, handle: _count_others(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
}
"""Fields of `Telemetry` that are sampled repeatedly."""


# ------------------------------------------------------------------ interpretation of telemetry


def throttling(telemetry: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the reasons for a throttled GPU, with their shares of time."""
    reasons = (telemetry or {}).get("throttle_reasons") or {}
    return {reason: share for reason, share in reasons.items() if reason not in NOT_THROTTLED}


def pcie_bytes_per_s(gpm: Mapping[str, float] | None) -> float | None:
    """Return PCIe traffic in both directions, bytes/s; None if unread."""
    received, sent = ((gpm or {}).get(f"pcie_{way}_mib_per_s") for way in ("received", "sent"))
    return None if received is None or sent is None else (received + sent) * 2**20


def pcie_bytes_per(telemetry: Telemetry, amount: float) -> float | None:
    """Return PCIe traffic per unit of work, bytes.

    ``amount`` is the work done during the telemetry.

    A value near zero means that the loop stays on the GPU. Launches and NVML's own reads also cause traffic.
    """
    per_s = pcie_bytes_per_s(telemetry["gpm"])
    return None if per_s is None or amount <= 0 else per_s * float(telemetry["duration_s"]) / amount
