"""`python -m bench doctor`: report what this machine can measure; changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
import typer

from warpdrive_min.backends import availability, cache, cuda_c
from warpdrive_min.errors import ConfigError
from warpdrive_min.packages import install_command
from warpdrive_min.terminal import echo

from .core import machine, nvml
from .core.measure import MeasureError, refuse_simulator
from .core.record import SWEEPS
from .workloads.cases import CASES

LOAD_HIGH: Final = 0.5
"""Other programs' share of the cores above which timings are unreliable."""
LOAD_NOTED: Final = 0.1
"""Other programs' share of the cores above which a note is added."""
LOAD_WINDOW_S: Final = 1.0
"""Duration of the load's measurement, s; the load average includes programs that have ended."""
CACHE_BYTES: Final = 2**30
"""Free space below which compiled kernels may not fit."""
HOT_C: Final = 80
"""Temperature near which data centre GPUs throttle, degrees Celsius."""

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    topic: str
    level: Level
    """`note`: figures are valid with a limit; `problem`: misleading or impossible."""
    says: str
    do: str = ""
    """Advice; empty if nothing needs doing."""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Report what this machine can measure, and how to fix problems.

    Exits with 1 if there is a problem.
    """
    findings = examine()
    if as_json:
        echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            do = f"; {finding.do}" if finding.do else ""
            echo(f"{finding.level:<8}{finding.topic}: {finding.says}{do}")
        counts = {level: sum(finding.level == level for finding in findings) for level in ("ok", "note", "problem")}
        echo(", ".join(f"{count} {level}" for level, count in counts.items()))
    raise typer.Exit(int(any(finding.level == "problem" for finding in findings)))


def examine() -> list[Finding]:
    """Examine software, hardware, checkout and disk."""
    software = [*_simulator(), *_backends(), *_compilers(), *_settings()]
    return [*software, *_cpu(Path("/")), *_gpus(), *_git(), *_disk(), *_cases()]


# ------------------------------------------------------------------ software

Choice = tuple[Any, Level, str] | tuple[Any, Level, str, str]
"""Condition, level, text, and optional advice."""


def first(topic: str, *choices: Choice) -> Finding:
    """Return the finding of the first choice whose condition holds."""
    return next(Finding(topic, level, says, *do) for holds, level, says, *do in choices if holds)


def _simulator() -> Iterator[Finding]:
    try:
        refuse_simulator(torch.device("cpu"))
    except MeasureError as error:
        rule, _, do = str(error).partition("; ")
        yield Finding("simulator", "problem", rule, do)
    else:
        yield Finding("simulator", "ok", "Numba's simulator is off")


def _backends() -> Iterator[Finding]:
    for name, state in availability().items():
        lacks = f"not available: {state.reason}"
        yield first(f"backend {name}", (state.available, "ok", str(state)), (True, "note", lacks, state.install))


def _compilers() -> Iterator[Finding]:
    compiler, gpu_compiler = cuda_c.cpu_compiler(), cuda_c.gpu_compiler()
    version = cuda_c.compiler_version(compiler) if compiler else ""
    yield first(
        "C++ compiler",
        (compiler is None, "note", f"{cuda_c.no_cpu_compiler()}, so no compiled baseline", "install g++ or clang++"),
        (True, "ok", version),
    )
    yield first(
        "CUDA compiler",
        (gpu_compiler, "ok", str(gpu_compiler)),
        (True, "note", "found neither NVRTC nor nvcc", install_command("pycuda")),
    )


def _settings() -> Iterator[Finding]:
    settings = (machine.settings() or "").split()
    for setting in settings:
        name, _, value = setting.partition("=")
        why = machine.MISLEADING.get(name)
        yield first(
            "settings",
            (value != "0" and bool(why), "problem", f"{setting}: {why}", f"unset {name}"),
            (True, "note", f"{setting}: results with and without it differ; records store it"),
        )
    if not settings:
        yield Finding("settings", "ok", "no environment variable that changes results")


def _git() -> Iterator[Finding]:
    state = machine.git_state(machine.ROOT)
    sha, dirty, unread = state["sha"], state["dirty"], state.get("unread")
    changed = f"{str(sha)[:7]} with uncommitted changes: nobody else can reproduce the results"
    yield first(
        "git",
        (sha is None, "note", f"records will have no commit ({unread})", "set $BENCH_GIT_SHA to the commit"),
        (dirty is None, "ok", f"$BENCH_GIT_SHA says {sha}; whether there are changes is unknown"),
        (dirty, "note", changed, "commit before you measure for publication"),
        (True, "ok", f"{str(sha)[:7]}, no uncommitted changes"),
    )


def _disk() -> Iterator[Finding]:
    places = {}
    try:
        places["cache of kernels"] = (cache.folder(), f"set ${cache.VARIABLE}")
    except ConfigError as error:
        yield Finding("cache of kernels", "problem", f"{error.rule} (got {error.got})", error.do)
    places["folder of records"] = (SWEEPS, "choose another folder with --out")
    for topic, (folder, elsewhere) in places.items():
        there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        free = shutil.disk_usage(there).free
        yield first(
            topic,
            (cache.why_not_writable(there), "problem", f"{folder} cannot be written to", elsewhere),
            (free < CACHE_BYTES, "note", f"{free / 2**30:.2f} GiB free", "free some disk space"),
            (True, "ok", f"{free / 2**30:.0f} GiB free"),
        )


def _cases() -> Iterator[Finding]:
    states = availability()
    for case in CASES.values():
        wanted = [str(point.get("backend")) for point in case.points("default")]
        missing = sorted({name for name in wanted if name in states and not states[name].available})
        here = sum(name not in missing for name in wanted)
        says = f"{here} of the {len(wanted)} points of preset default can be measured"
        needs = f"{says}; the others need {', '.join(missing)}"
        yield first(f"case {case.name}", (missing, "note", needs), (True, "ok", says))


# ------------------------------------------------------------------ CPU


def _cpu(root: Path) -> Iterator[Finding]:
    here = machine.fingerprint(torch.device("cpu"))
    cores, threads = here["cores"], torch.get_num_threads()
    limit = min(cores, here["cpu_limit"] or cores)
    yield Finding("CPU", "ok", f"{here['cpu']}, {cores} cores, {threads} threads")
    halted = f"{threads} threads in a container limited to {limit:g} cores are throttled"
    yield first(
        "container limit",
        (limit == cores, "ok", "no limit below the number of cores"),
        (threads <= limit, "ok", f"{limit:g} of {cores} cores"),
        (True, "problem", halted, f"set OMP_NUM_THREADS={max(1, int(limit))}"),
    )
    yield from _load(limit)
    yield from _governor(root)
    yield from _turbo(root)


def _load(cores: float) -> Iterator[Finding]:
    others = machine.OtherProcesses()
    time.sleep(LOAD_WINDOW_S)
    share = others.busy()
    if share is None:
        yield Finding("load", "note", "cannot be read", install_command("bench"))
        return
    says = f"other programs use {share:.0%} of {cores:g} cores now"
    misleads = f"{says}: times of `cpu` and `host` are unreliable"
    yield first(
        "load",
        (share > LOAD_HIGH, "problem", misleads, "wait, or end other programs"),
        (share > LOAD_NOTED, "note", says, "wait, if you measure for publication"),
        (True, "ok", says),
    )


def _governor(root: Path) -> Iterator[Finding]:
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    names = ", ".join(sorted({text for file in files if (text := _text(file))}))
    slower = f"{names}: clocks follow the load, so short measurements on the CPU are slower"
    yield first(
        "CPU governor",
        (not names, "note", "cannot be read, as in most virtual machines; the host sets the clocks"),
        (names == "performance", "ok", names),
        (True, "note", slower, "sudo cpupower frequency-set -g performance"),
    )


def _turbo(root: Path) -> Iterator[Finding]:
    cpu = root / "sys/devices/system/cpu"
    no_turbo, boost = _text(cpu / "intel_pstate/no_turbo"), _text(cpu / "cpufreq/boost")
    says = "on: clocks depend on temperature and on the number of busy cores"
    is_on = no_turbo == "0" or (no_turbo is None and boost == "1")
    yield first(
        "CPU turbo",
        (no_turbo is None and boost is None, "note", "cannot be read"),
        (is_on, "note", says, "compare interleaved runs only (`python -m bench compare`)"),
        (True, "ok", "off"),
    )


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


# ------------------------------------------------------------------ GPU


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        build = "torch is a build without CUDA" if torch.version.cuda is None else "torch finds no usable one"
        do = "to measure a GPU, use a machine with one and a torch build with CUDA"
        yield Finding("GPU", "note", f"none ({build}); `cpu` and `host` can be measured", do)
        return
    for index in range(torch.cuda.device_count()):
        device, topic = torch.device("cuda", index), f"GPU {index}"
        try:
            with nvml.open_device(device) as (library, handle):
                yield Finding(topic, "ok", torch.cuda.get_device_properties(device).name)
                yield from _with_nvml(topic, library, handle)
        except Exception as error:  # noqa: BLE001  (no library, no driver, or an unknown device)
            says = f"NVML: {error or type(error).__name__}: no clocks, energy, throttling or other processes"
            yield Finding(topic, "note", says)


def _with_nvml(topic: str, library: Any, handle: Any) -> Iterator[Finding]:
    for name, choices in PARTS.items():
        try:
            yield first(f"{topic} {name}", *choices(library, handle))
        except Exception as error:  # noqa: BLE001  (a failure of one GPU must not hide the others)
            yield Finding(f"{topic} {name}", "note", f"cannot be read: {error or type(error).__name__}")


def _processes(library: Any, handle: Any) -> Iterator[Choice]:
    n_others = sum(each.pid != os.getpid() for each in library.nvmlDeviceGetComputeRunningProcesses(handle))
    says = f"other processes on this GPU: {n_others}; records will be marked as contended, and gates ignore them"
    yield n_others, "problem", says, "wait for them, or choose another GPU with CUDA_VISIBLE_DEVICES"
    yield True, "ok", "no other process is visible"


def _throttling(library: Any, handle: Any) -> Iterator[Choice]:
    names = nvml.names_of(library, library.nvmlDeviceGetCurrentClocksEventReasons(handle))
    slowed = [name for name in names if name not in nvml.NOT_THROTTLED]
    yield slowed, "problem", f"throttled now by {', '.join(slowed)}", "let it cool, and check its power limit"
    yield True, "ok", "not now" + (f" ({', '.join(names)})" if names else "")


def _clocks(library: Any, handle: Any) -> Iterator[Choice]:
    clock = library.NVML_CLOCK_SM
    now, most = library.nvmlDeviceGetClockInfo(handle, clock), library.nvmlDeviceGetMaxClockInfo(handle, clock)
    is_held = "application clocks" in nvml.names_of(library, library.nvmlDeviceGetCurrentClocksEventReasons(handle))
    says = f"SM {now} of at most {most} MHz"
    yield is_held, "ok", f"{says}, locked by application clocks"
    yield (
        True,
        "note",
        f"{says}, not locked, according to NVML",
        "compare interleaved runs only; bench never sets clocks",
    )


def _temperature(library: Any, handle: Any) -> Iterator[Choice]:
    degrees = library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
    yield degrees >= HOT_C, "note", f"{degrees} degrees Celsius: it may slow down", "let it cool"
    yield True, "ok", f"{degrees} degrees Celsius"


def _mig(library: Any, handle: Any) -> Iterator[Choice]:
    current, _ = library.nvmlDeviceGetMigMode(handle)
    yield current, "note", "on: results are of a slice of the GPU, whose utilisation and GPM metrics cannot be read"
    yield True, "ok", "off"


def _persistence(library: Any, handle: Any) -> Iterator[Choice]:
    yield library.nvmlDeviceGetPersistenceMode(handle), "ok", "on"
    says = "off: the driver starts again for each process, which adds to the set-up time"
    yield True, "note", says, "sudo nvidia-smi -pm 1"


def _gpm(library: Any, handle: Any) -> Iterator[Choice]:
    with nvml.gpm_sample(library, handle):
        yield True, "ok", "occupancy, DRAM bandwidth and PCIe bytes can be read"


def _energy(library: Any, handle: Any) -> Iterator[Choice]:
    period = nvml.energy_period_s(lambda: int(library.nvmlDeviceGetTotalEnergyConsumption(handle)))
    yield period is None, "note", "updates less than twice a second: energies are unreliable"
    error = 2 * (period or 0.0) / nvml.ENERGY_WINDOW_S
    says = f"updates every {1e3 * (period or 0.0):.0f} ms: energies over {nvml.ENERGY_WINDOW_S:g} s have an error below"
    yield True, "ok" if error <= 0.05 else "note", f"{says} {error:.1%}"


PARTS: Final[dict[str, Callable[[Any, Any], Iterator[Choice]]]] = {
    "processes": _processes,
    "throttling": _throttling,
    "clocks": _clocks,
    "temperature": _temperature,
    "MIG": _mig,
    "persistence": _persistence,
    "GPM": _gpm,
    "energy counter": _energy,
}
"""Checks of the values that NVML reports for a GPU."""
