"""`python -m bench doctor`: what this machine can measure, what it cannot, and why. Changes nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import torch
import typer

from bench import machine, nvml, sweep
from bench.cases import CASES
from bench.measure import MeasureError, refuse_simulator
from warpdrive_min.backends import availability, cache, cuda_c
from warpdrive_min.backends.host import openmp_flags

LOAD_HIGH: Final = 0.5
"""Load per core from which times say more about the others than about the code."""
LOAD_NOTED: Final = 0.1
"""Load per core from which it is worth a word."""
CACHE_BYTES: Final = 2**30
"""Free space below which compiled kernels may not fit."""
HOT_C: Final = 80
"""Temperature from which NVIDIA's data centre GPUs are near to slowing down, degrees Celsius."""

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    level: Level
    """`note`: figures hold, with a limit; `problem`: figures would mislead, or cannot be made."""
    says: str
    do: str = ""
    """What to do about it; empty where nothing is to be done."""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this machine can measure and what not, and what to do about it; exits with 1 if there is a problem."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            do = f"; {finding.do}" if finding.do else ""
            typer.echo(f"{finding.level:<8}{finding.topic}: {finding.says}{do}")
        counts = {level: sum(finding.level == level for finding in findings) for level in ("ok", "note", "problem")}
        typer.echo(", ".join(f"{count} {level}" for level, count in counts.items()))
    raise typer.Exit(int(any(finding.level == "problem" for finding in findings)))


def examine(root: Path = Path("/")) -> list[Finding]:
    """Look at everything.

    Args:
        root: Folder that stands for ``/`` where Linux tells of the CPU.
    """
    return [
        *_simulator(),
        *_backends(),
        *_compilers(),
        *_settings(),
        *_cpu(root),
        *_gpus(),
        *_git(),
        *_disk(),
        *_cases(),
    ]


# ------------------------------------------------------------------ software


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
        if state.available:
            yield Finding(f"backend {name}", "ok", str(state))
        else:
            yield Finding(f"backend {name}", "note", f"not available: {state.reason}", state.install)


def _compilers() -> Iterator[Finding]:
    compiler = cuda_c.cpu_compiler()
    if compiler is None:
        yield Finding("C++ compiler", "note", "found none, so no compiled baseline", "install g++ or clang++")
    elif openmp_flags(compiler):
        yield Finding("C++ compiler", "ok", cuda_c.compiler_version(compiler))
    else:
        version = cuda_c.compiler_version(compiler)
        yield Finding("C++ compiler", "note", f"{version} builds without OpenMP: `host` has one thread", "install g++")
    gpu_compiler = cuda_c.gpu_compiler()
    if gpu_compiler is None:
        yield Finding("CUDA compiler", "note", "found neither NVRTC nor nvcc", 'pip install "warpdrive-min[pycuda]"')
    else:
        yield Finding("CUDA compiler", "ok", gpu_compiler)


MISLEADING: Final = {
    "CUDA_LAUNCH_BLOCKING": "each launch waits for the last one",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "torch asks the driver for each array",
    "NVIDIA_TF32_OVERRIDE": "fp32 may be TF32, or TF32 fp32",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "fp32 is TF32",
}
"""Variables under which a figure is not of what its record says."""


def _settings() -> Iterator[Finding]:
    found = (machine.settings() or "").split()
    for setting in found:
        name, _, value = setting.partition("=")
        if name in MISLEADING and value != "0":
            yield Finding("settings", "problem", f"{setting}: {MISLEADING[name]}", f"unset {name}")
        else:
            yield Finding("settings", "note", f"{setting}, which records keep: figures with and without it differ")
    if not found:
        yield Finding("settings", "ok", "none of the environment's that decide a figure")


def _git() -> Iterator[Finding]:
    state = machine.git_state(machine.ROOT)
    if state["sha"] is None:
        yield Finding("git", "note", f"records will have no commit ({state['unread']})", "name it in $BENCH_GIT_SHA")
    elif state["dirty"] is None:
        yield Finding("git", "ok", f"$BENCH_GIT_SHA says {state['sha']}; whether there are changes is unknown")
    elif state["dirty"]:
        says = f"{state['sha'][:7]} with changes of the code: nobody else can repeat its figures"
        yield Finding("git", "note", says, "commit before you measure what is published")
    else:
        yield Finding("git", "ok", f"{state['sha'][:7]}, no changes of the code")


def _disk() -> Iterator[Finding]:
    for topic, folder in (("cache of kernels", cache.folder()), ("folder of records", sweep.SWEEPS)):
        there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
        free = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            do = "set $WARPDRIVE_MIN_CACHE" if topic == "cache of kernels" else "name another one with --out"
            yield Finding(topic, "problem", "cannot be written to", do)
        elif free < CACHE_BYTES:
            yield Finding(topic, "note", f"{free / 2**30:.2f} GiB free", "make room")
        else:
            yield Finding(topic, "ok", f"{free / 2**30:.0f} GiB free")


def _cases() -> Iterator[Finding]:
    states = availability()
    for case in CASES.values():
        wanted = [str(point.get("backend")) for point in case.points("default")]
        here = sum(name not in states or states[name].available for name in wanted)
        missing = sorted({name for name in wanted if name in states and not states[name].available})
        says = f"{here} of the {len(wanted)} points of preset default can be measured"
        if missing:
            yield Finding(f"case {case.name}", "note", f"{says}; the others need {', '.join(missing)}")
        else:
            yield Finding(f"case {case.name}", "ok", says)


# ------------------------------------------------------------------ CPU


def _cpu(root: Path) -> Iterator[Finding]:
    seen = machine.fingerprint(torch.device("cpu"))
    cores, limit = seen["cores"], seen["cpu_limit"]
    threads = torch.get_num_threads()
    yield Finding("CPU", "ok", f"{seen['cpu']}, {cores} cores, {threads} threads")
    if limit is None or limit >= cores:
        yield Finding("container limit", "ok", "none below the cores")
    elif threads <= limit:
        yield Finding("container limit", "ok", f"{limit:g} of {cores} cores")
    else:
        says = f"{threads} threads in a container of {limit:g} cores are halted for parts of each period"
        yield Finding("container limit", "problem", says, f"set OMP_NUM_THREADS={max(1, int(limit))}")
    yield from _load(min(cores, limit or cores))
    yield from _governor(root)
    yield from _turbo(root)


def _load(cores: float) -> Iterator[Finding]:
    load = os.getloadavg()[0]
    says = f"{load:.2f} processes ran or waited in the last minute, for {cores:g} cores"
    if load > LOAD_HIGH * cores:
        yield Finding("load", "problem", f"{says}: times of `cpu` and `host` would mislead", "wait, or end what runs")
    elif load > LOAD_NOTED * cores:
        yield Finding("load", "note", says, "wait, for figures that are published")
    else:
        yield Finding("load", "ok", says)


def _governor(root: Path) -> Iterator[Finding]:
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({text for file in files if (text := _text(file))})
    if not governors:
        yield Finding("CPU governor", "note", "cannot be read, as in most virtual machines: clocks are the host's")
    elif governors == ["performance"]:
        yield Finding("CPU governor", "ok", "performance")
    else:
        says = f"{', '.join(governors)}: clocks follow the load, so short points on the CPU come out slower"
        yield Finding("CPU governor", "note", says, "sudo cpupower frequency-set -g performance")


def _turbo(root: Path) -> Iterator[Finding]:
    cpu = root / "sys/devices/system/cpu"
    no_turbo, boost = _text(cpu / "intel_pstate/no_turbo"), _text(cpu / "cpufreq/boost")
    if no_turbo is None and boost is None:
        yield Finding("CPU turbo", "note", "cannot be read")
    elif no_turbo == "0" or (no_turbo is None and boost == "1"):
        says = "on: clocks depend on temperature and on how many cores work"
        yield Finding("CPU turbo", "note", says, "compare A B B A, not figures of two days")
    else:
        yield Finding("CPU turbo", "ok", "off")


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


# ------------------------------------------------------------------ GPU


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        build = "torch is a build without CUDA" if torch.version.cuda is None else "torch finds none that it can use"
        do = "for figures of a GPU, measure on a machine with one and a torch that has CUDA"
        yield Finding("GPU", "note", f"none ({build}); `cpu` and `host` can be measured", do)
        return
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        topic = f"GPU {index}"
        try:
            with nvml.opened(device) as (library, handle):
                yield Finding(topic, "ok", torch.cuda.get_device_properties(device).name)
                yield from _with_nvml(topic, library, handle)
        except Exception as error:  # noqa: BLE001  (no library, no driver, a device that it does not know)
            says = f"NVML: {error or type(error).__name__}: no clocks, energy, throttling or other processes"
            yield Finding(topic, "note", says)


def _with_nvml(topic: str, library: Any, handle: Any) -> Iterator[Finding]:
    parts: dict[str, Callable[[Any, Any], Finding]] = {
        "processes": _processes,
        "throttling": _throttling,
        "clocks": _clocks,
        "temperature": _temperature,
        "MIG": _mig,
        "persistence": _persistence,
        "GPM": _gpm,
        "energy counter": _energy,
    }
    for name, look in parts.items():
        try:
            seen = look(library, handle)
        except Exception as error:  # noqa: BLE001  (what one GPU lacks or loses, the others may have)
            yield Finding(f"{topic} {name}", "note", f"cannot be read: {error or type(error).__name__}")
        else:
            yield Finding(f"{topic} {name}", seen.level, seen.says, seen.do)


def _processes(library: Any, handle: Any) -> Finding:
    others = [each for each in library.nvmlDeviceGetComputeRunningProcesses(handle) if each.pid != os.getpid()]
    if others:
        says = f"{len(others)} beside this one: records will be marked as contended and kept out of gates"
        return Finding("", "problem", says, "wait for them, or choose another GPU with CUDA_VISIBLE_DEVICES")
    return Finding("", "ok", "no other one that can be seen")


def _throttling(library: Any, handle: Any) -> Finding:
    names = nvml.names_of(library, nvml.clock_reasons(library, handle))
    slowed = [name for name in names if name not in nvml.NOT_THROTTLED]
    if slowed:
        return Finding("", "problem", f"slowed down now by {', '.join(slowed)}", "let it cool, and look at its power")
    return Finding("", "ok", "not now" + (f" ({', '.join(names)})" if names else ""))


def _clocks(library: Any, handle: Any) -> Finding:
    clock = library.NVML_CLOCK_SM
    now, most = library.nvmlDeviceGetClockInfo(handle, clock), library.nvmlDeviceGetMaxClockInfo(handle, clock)
    says = f"SM {now} of at most {most} MHz"
    if "application clocks" in nvml.names_of(library, nvml.clock_reasons(library, handle)):
        return Finding("", "ok", f"{says}, held by application clocks")
    return Finding("", "note", f"{says}, not held as far as NVML tells", "compare A B B A; clocks are never set here")


def _temperature(library: Any, handle: Any) -> Finding:
    degrees = library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
    if degrees >= HOT_C:
        return Finding("", "note", f"{degrees} degrees Celsius: it may slow down", "let it cool")
    return Finding("", "ok", f"{degrees} degrees Celsius")


def _mig(library: Any, handle: Any) -> Finding:
    current, _ = library.nvmlDeviceGetMigMode(handle)
    if current:
        return Finding("", "note", "on: figures are of a slice, and utilisation and GPM cannot be read of it")
    return Finding("", "ok", "off")


def _persistence(library: Any, handle: Any) -> Finding:
    if library.nvmlDeviceGetPersistenceMode(handle):
        return Finding("", "ok", "on")
    says = "off: the driver starts anew for each process, which counts as set-up time"
    return Finding("", "note", says, "sudo nvidia-smi -pm 1")


def _gpm(library: Any, handle: Any) -> Finding:
    library.nvmlGpmSampleFree(nvml.gpm_sample(library, handle))
    return Finding("", "ok", "occupancy, DRAM bandwidth and PCIe bytes can be read")


def _energy(library: Any, handle: Any) -> Finding:
    period = nvml.energy_period_s(lambda: int(library.nvmlDeviceGetTotalEnergyConsumption(handle)))
    if period is None:
        return Finding("", "note", "moves less than twice a second: joules are not to be trusted")
    error = 2 * period / nvml.ENERGY_WINDOW_S
    says = f"moves every {1e3 * period:.0f} ms: joules over {nvml.ENERGY_WINDOW_S:g} s are right within {error:.1%}"
    return Finding("", "ok" if error <= 0.05 else "note", says)
