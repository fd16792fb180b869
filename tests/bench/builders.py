"""Builders of benchmark tests: records, pairs, points, clock and GPU."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bench import cli
from bench.core import nvml
from bench.core.case import Case, Job
from bench.core.measure import Stopwatch, Timed
from bench.core.point import Check, Curve, Facts, Metric, Point
from bench.core.record import Checks, Comparison, Context, Record
from bench.core.stats import log_ratios
from bench.process.interleaved import Pair


def bench(*words: object, exits: int | tuple[int, ...] = 0, **environment: str) -> str:
    """Run `python -m bench` in this process; return all its output."""
    done = CliRunner().invoke(cli.app, [str(word) for word in words], env=environment)
    assert done.exit_code in (exits if isinstance(exits, tuple) else (exits,)), done.output
    return done.output


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, as nobody."""
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    command = ["git", "-C", str(folder), *who, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


OUTPUTS = [
    "report {file} --out {out}/report.html",
    "plot {file} --out {out}/figures",
    "paper {file} --out {out}/paper",
    "board {file} --out {out}/board --repository https://example.org/a",
    "export asv {file} --out {out}/asv",
    "export bencher {file} --out {out}/bencher.json",
    "export csv {file} --out {out}/records.csv",
]
"""Commands that read a file of records and write files."""


def metric(value: float, low: float | None = None, high: float | None = None, unit: str = "") -> Metric:
    """Return a lower-is-better figure, by default without a spread."""
    ends = {"low": value if low is None else low, "high": value if high is None else high}
    return Metric(value=value, unit=unit, direction="lower", **ends)


OFF = math.log(1.1 - 1e-9) * 10**0.5 / 2.7764451
"""Logarithm by which two of five processes differ, so that Student's interval ends at a factor of 1.1."""


def record(value: float = 1e6, *, case: str = "env_step", status: str = "ok", passed: bool = True, **changes) -> Record:
    """Return a record of CartPole on NumPy at 100 environments, with changes.

    Five processes took a sample each; the interval of its rates is from 1 / 1.1 to 1.1 times the value.
    """
    metrics = {
        name: Metric(value=value, unit="1/s", direction="higher", low=0.9 * value, high=1.1 * value)
        for name in ("env_steps_per_s", "agent_steps_per_s", "samples_per_s")
    }
    check = Check(passed=passed, max_error=0.0, detail="")
    fields = {
        "run_id": "run",
        "preset": "default",
        "case": case,
        "case_version": 1,
        "scope": "env",
        "mode": "eager",
        "point": {"env": "cartpole", "backend": "cpu", "n_envs": 100, "n_agents": 1, "exact": False},
        "threads": 1,
        "status": status,
        "reason": None,
        "samples_ns": [math.exp(OFF), 1.0, 1.0, 1.0, math.exp(-OFF)],
        "process": None if "samples_ns" in changes else list(range(5)),
        "device_ns": None,
        "runs_per_sample": 1,
        "work_per_run": {"env_steps": 1},
        "n": 1,
        "stop_reason": "",
        "warm_up": {},
        "metrics": metrics,
        "roofline": None,
        "correctness": Checks(passed=passed, max_error=0.0, oracle="by hand", before=check, after=check),
        "telemetry": None,
        "machine": {"gpu": "NVIDIA H200", "cores": 16},
        "git": {"sha": "0123456789", "dirty": False},
        "dependencies_hash": "",
        "command": "",
        "started_at": "2026-01-01T00:00:00",
        "duration_s": 1.0,
        "notes": {},
        "unread": {},
    }
    fields |= changes
    fields["n"] = len(fields["samples_ns"] or ()) or None
    return Record(**{**fields, **changes})


def point(backend: str, n_envs: int, n_agents: int = 1, env: str = "cartpole", **more) -> dict:
    """Return a point of a case that steps environments."""
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "exact": False, **more}


UNTIMED = {"samples_ns": None, "work_per_run": None, "n": None, "device_ns": None, "process": None}
"""Changes of a record for a case without samples."""


def seed_record(
    seed: int, seconds: float | None, after: float = 500.0, *, point: Point | None = None, **changes: Any
) -> Record:
    """Return a CartPole seed with its time to the threshold.

    It does 100 env steps a second.
    """
    task = {"env": "cartpole", "backend": "host", "n_envs": 64, "algorithm": "PPO", "learner": "shared"}
    reached = {} if seconds is None else {"seconds_to_threshold": seconds, "env_steps_to_threshold": 100 * seconds}
    values = {**reached, "return_before": 20.0, "return_after": after, "final_return": after}
    fields = {
        "case": "learn",
        "scope": "learn",
        "samples_ns": None,
        "point": {**task, "threshold": 475.0, **(point or {}), "seed": seed},
        "metrics": {name: metric(value) for name, value in values.items()},
        "curve": Curve(env_steps=[1, 2], seconds=[1.0, 2.0], mean_return={"shared": [1.0, after]}),
    }
    return record(**{**fields, **changes})


def two_backends() -> list[Record]:
    """Return CartPole records of two backends at three sizes.

    The GPU is slower at the first size only.
    """
    rates = {"cpu": (100.0, 1_000.0, 2_000.0), "pycuda": (10.0, 10_000.0, 200_000.0)}
    return [
        record(rate, point=point(backend, n_envs), threads=1 if backend == "cpu" else None)
        for backend, of_backend in rates.items()
        for n_envs, rate in zip((1, 100, 10_000), of_backend, strict=True)
    ]


def pair_of(times_a, times_b, is_interleaved=False, in_rounds=False, **fields) -> Pair:
    """Return a pair of samples, in ns a step; interleaved in one round or in rounds."""
    a, b = (record(samples_ns=list(each), **fields) for each in (times_a, times_b))
    logs = log_ratios(times_a, times_b)
    comparison = Comparison.of(a, b, [[each] for each in logs] if in_rounds else [logs]) if is_interleaved else None
    return Pair(name="point", a=a, b=b, comparison=comparison)


def in_this_process(todo: Sequence[Job], context: Context) -> Iterator[Record]:
    """Run fake points in this process.

    Another process could not import them.
    """
    for job in todo:
        yield job.run(context)


class FakeWatch:
    """Stopwatch with the length of each run from a function, ns."""

    def __init__(self, run_ns: Callable[[int], float], device_share: float | None = None) -> None:
        self.runs = 0
        self.now = 0.0
        self._run_ns = run_ns
        self._device_share = device_share

    def run(self) -> None:
        """Let one run's time pass."""
        self.now += self._run_ns(self.runs)
        self.runs += 1

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block by the fake clock."""
        start = self.now
        block()
        wall = round(self.now - start)
        return wall, None if self._device_share is None else round(wall * self._device_share)


def timed(
    run: Callable[[], None] = lambda: None,
    *,
    check: Callable[[], Check] = lambda: Check(True, 1e-7, "by hand"),
    synchronize: Callable[[], None] = lambda: None,
    stopwatch: Stopwatch | None = None,
    **facts: Any,
) -> Timed:
    """Return a valid point with 1,000 env steps of 10 agents per run."""
    plain = {"mode": "eager", "device": torch.device("cpu"), "threads": 1}
    work = {"work": {"env_steps": 1000, "agent_steps": 10_000}}
    return Timed(
        run=run, synchronize=synchronize, check=check, stopwatch=stopwatch, facts=Facts(**{**plain, **work, **facts})
    )


def case(setup: Callable[[Point], Any], n_points: int = 3, **changes: Any) -> Case:
    """Return a case with points 0 to ``n_points - 1``."""
    points = [{"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": i} for i in range(n_points)]
    fields: dict[str, Any] = {"name": "fake", "title": "a fake", "scope": "env", "version": 1, "workload": Timed}
    return Case(**{**fields, "points": lambda preset: points, "setup": setup, **changes})


def cycle(values: list[float]) -> Callable[[int], float]:
    """Return the length of each run from a repeating list."""

    def endless() -> Iterator[float]:
        while True:
            yield from values

    lengths = endless()
    return lambda run: next(lengths)


class FakeNvml:
    """Fake `pynvml` with constant values and given energies.

    1,500 MHz, 300 W; energy readings are in mJ.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_SUCCESS = 0
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksEventReasonHwThermalSlowdown = 64

    def __init__(self) -> None:
        self.energy = iter([1_000_000, 2_500_000])
        self.reasons = [0, 4, 4, 68]
        self.pids = [os.getpid()]
        self.degrees = 50
        self.has_gpm = True
        self.gpm_status: dict[int, int] = {}
        self.gpm_samples = self.opened = self.samples = 0
        self.fails_after: int | None = None
        for index, name in enumerate(nvml.GPM.values()):
            setattr(self, f"NVML_GPM_METRIC_{name}", index)
        readings = {
            "Count": lambda: 2,
            "HandleByIndex": lambda index: index,
            "UUID": lambda handle: ["GPU-other", "GPU-mine"][handle],
            "MemoryInfo": lambda handle: SimpleNamespace(used=2**30),
            "ClockInfo": lambda handle, kind: {1: 1500, 2: 3000}[kind],
            "PowerUsage": lambda handle: 300_000,
            "EnforcedPowerLimit": lambda handle: 700_000,
            "Temperature": lambda handle, kind: self.degrees,
            "TotalEnergyConsumption": lambda handle: next(self.energy),
            "CurrentClocksEventReasons": lambda handle: self.reasons[min(self.samples, len(self.reasons)) - 1],
            "ComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=pid) for pid in self.pids],
        }
        for name, reading in readings.items():
            setattr(self, f"nvmlDeviceGet{name}", reading)

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        """Install a fake `pynvml` and return it.

        Its second device is torch's.
        """
        fake = cls()
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        properties = SimpleNamespace(uuid="mine", name="NVIDIA H200")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return fake

    def nvmlInit(self):
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetUtilizationRates(self, handle):
        assert handle == 1, "the device is found by UUID, not by index"
        self.samples += 1
        if self.fails_after is not None and self.samples > self.fails_after:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(gpu=90 + self.samples % 2)

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=self.has_gpm)

    def nvmlGpmSampleAlloc(self):
        self.gpm_samples += 1
        return object()

    def nvmlGpmSampleGet(self, handle, sample): ...

    def nvmlGpmSampleFree(self, sample):
        self.gpm_samples -= 1

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=None, value=0.0) for _ in nvml.GPM])

    def nvmlGpmMetricsGet(self, request):
        for metric in request.metrics:
            metric.nvmlReturn = self.gpm_status.get(metric.metricId, 0)
            metric.value = 0.0 if metric.nvmlReturn else 10.0 * metric.metricId
