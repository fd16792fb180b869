"""Instruction counts of points under Valgrind's callgrind: exact, without a clock.

A run is split into its CUDA C kernels, which `host` builds for a plain x86-64-v3, and the path to them: Python, torch
and the launches. One process counts with one thread, a fixed hash seed and no garbage collection. Allocators and
look-ups by address are excluded, because they depend on memory addresses. `server.Server.count` runs the points.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Final, Self

from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.base import Availability
from warpdrive_min.backends.cache import cached
from warpdrive_min.processes import run
from warpdrive_min.terminal import echo

from ..core.archive import load, read_toml
from ..core.case import Case, Job
from ..core.machine import ROOT, hash_below
from ..core.measure import Timed
from .pace import Pace, duration
from .worker import Worker, env_with_code_first, program

BACKEND: Final = "host"
TWICE: Final = ("graph", "published")
"""Cases that only repeat the points of `env_step` in other sizes."""
FEW: Final = 4
"""Number of copies of an environment that preset smoke omits."""
PATH: Final = "path"
"""Name of the part outside the kernels."""
TARGET: Final = "x86-64-v3"
"""Target processor of the kernels.

Valgrind has no AVX-512, and this target gives the same counts on every x86."""
SET_UP: Final = "set up a point to count"
"""Line that the process prints for each point."""
PACE: Final = Pace(each_s=4, start_s=40)
"""Mean duration of a part, on a core of its own."""
INSTALL: Final = "install Valgrind (apt-get install valgrind) for its callgrind"

_REPEATABLE: Final = read_toml(Path(__file__).with_suffix(".toml"))


# ------------------------------------------------------------------ profiles

KERNEL: Final = re.compile(r"wd_launch_(?P<name>\w+)(?P<inner>\..*)?")
"""Function of backend `host` that runs a kernel's blocks.

In older commits its inner OpenMP function runs them. There, callgrind misses the call of the outer one, because libffi
changes the stack."""
BY_ADDRESS: Final = re.compile("|".join(_REPEATABLE["by_address"]))
"""Functions of glibc and CPython whose counts depend on memory addresses."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Instructions between two marks, from a file of callgrind."""

    label: str
    total: int
    """Total instructions, as summed by callgrind."""
    own: Mapping[str, int]
    """Exclusive instructions of each function."""
    called: Mapping[str, int]
    """Inclusive instructions of all calls of a function."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; one that ends no mark has an empty label.

        Source: "Callgrind Format Specification", Valgrind's manual: names are written once and numbered.
        """
        label, total, names = "", 0, dict[str, str]()
        own, called = Counter[str](), Counter[str]()
        function = callee = ""
        with path.open(errors="replace") as lines:
            for line in lines:
                if line[0] in "+-*0123456789":
                    instructions = int(line.split()[1])
                    if callee:
                        called[callee] += instructions
                        callee = ""
                    else:
                        own[function] += instructions
                elif line.startswith("fn="):
                    function = _name(line[3:], names)
                elif line.startswith("cfn="):
                    callee = _name(line[4:], names)
                elif line.startswith(TRIGGER):
                    label = line.removeprefix(TRIGGER).strip()
                elif line.startswith("totals: "):
                    total = int(line.split()[1])
        return cls(label, total, own, called)

    def parts(self) -> dict[str, int]:
        """Return the instructions of each kernel, and of the path to them."""
        kernels, inner = Counter[str](), Counter[str]()
        for function, instructions in self.called.items():
            if match := KERNEL.fullmatch(function):
                (inner if match["inner"] else kernels)[match["name"]] += instructions
        kernels.update({name: inner[name] - kernels[name] for name in inner})
        moved = sum(instructions for function, instructions in self.own.items() if BY_ADDRESS.fullmatch(function))
        return {**kernels, PATH: sum(self.own.values()) - kernels.total() - moved}


WARM_RUNS: Final = 8
"""Warm-up runs, after which CPython has specialised its instructions."""
COUNTED_RUNS: Final = 5
WARM_RUNS_OF_LONG, COUNTED_RUNS_OF_LONG = 2, 1
LONG: Final = ("rollout", "train")
"""Cases whose runs have one rollout's number of steps."""


@cache
def client_requests() -> ctypes.CDLL:
    """Return callgrind's client requests; outside of Valgrind they do nothing.

    Raises:
        CompileError: Valgrind's header is missing.
    """
    compiler = cuda_c.cpu_compiler()
    assert compiler is not None, "`availability` has found one"
    marks = Path(__file__).with_name("marks.cpp").read_text()
    key = {"text": marks, "compiler": cuda_c.compiler_version(compiler)}
    library = cached(key, ".so", lambda to: cuda_c.compile_shared_library(marks, to, compiler, ["-O1"], "marks"))
    return ctypes.CDLL(str(library))


TRIGGER: Final = "desc: Trigger: Client Request: "
_NAMED: Final = re.compile(r"\((\d+)\)(?: (.*))?")
_COPY: Final = re.compile(r"(?:\.(?:constprop|isra|part|cold)(?:\.\d+)?)+$|'\d+$")
"""Suffixes of function copies by g++, and of recursion levels by callgrind."""


def _name(text: str, names: dict[str, str]) -> str:
    match = _NAMED.fullmatch(text.rstrip("\n"))
    if match is None:
        return text.strip()
    number, name = match.groups()
    if name is not None:
        names[number] = _COPY.sub("", _COPY.sub("", name))
    return names[number]


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """Instructions of one run of a point, or the error."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Instructions of each kernel and of `PATH`."""
    work: Mapping[str, int] = field(default_factory=dict)
    """Amount of work per run."""
    off: int = 0
    """Instructions missing from the profiles."""
    error: str = ""
    """Exception's name in the set-up; "Skip": it cannot run here."""
    reason: str = ""


def availability() -> Availability:
    """Return the availability of instruction counts on this machine."""
    program = shutil.which("valgrind")
    if program is None:
        return Availability(False, "found no Valgrind", INSTALL)
    compiler = cuda_c.cpu_compiler()
    if compiler is None:
        return Availability(False, cuda_c.no_cpu_compiler(), "install g++ or clang++, or name one in $CXX")
    return Availability(True, program)


def architecture() -> str:
    """Return the CPU architecture that kernels are built for."""
    return TARGET if platform.machine() == "x86_64" else platform.machine()


def points(cases: Mapping[str, Case]) -> list[Job]:
    """Return preset smoke on `host`, plus every environment's step and reset."""
    repeated = [case for case in cases.values() if case.workload is Timed and case.name not in TWICE]
    jobs = [Job(case, point) for case in repeated for point in case.points("smoke") if point["backend"] == BACKEND]
    stepped = {job.point["env"]: job.point for job in jobs if job.case.name == "env_step"}
    for point in cases["env_step"].points("full"):
        if point["backend"] == BACKEND and point["env"] not in stepped:
            stepped[point["env"]] = {**point, "n_envs": FEW}
            jobs.append(Job(cases["env_step"], stepped[point["env"]]))
    reset = {job.point.get("env") for job in jobs if job.case.name == "reset"}
    sizes = [{name: point[name] for name in ("env", "n_envs", "n_agents")} for point in stepped.values()]
    named = {"implementation": "ours", "backend": BACKEND}
    return jobs + [Job(cases["reset"], {**named, **size}) for size in sizes if size["env"] not in reset]


def count(jobs: Sequence[Job], root: Path = ROOT) -> list[Count]:
    """Count points with the code in a folder, and print each; waits.

    Raises:
        WorkerError: The code is too old, or its process dies.
    """
    with tempfile.TemporaryDirectory(prefix="counts-") as folder, _process(root.resolve(), Path(folder)) as process:
        process.send(method="count", arguments={"points": [(job.case.name, dict(job.point)) for job in jobs]})
        _print_progress(process, jobs)
        reply = process.receive("count")
        process.require_code(root.resolve(), reply)
        process.kill()  # exiting takes seconds on an emulated CPU
        profiles = {each.label: each for each in map(Profile.read, sorted(Path(folder).glob("counts.*")))}
    counted = []
    for place, answer in enumerate(reply["points"]):
        if "error" in answer:
            counted.append(Count(error=answer["error"], reason=answer["message"]))
            continue
        found = [profiles[f"{place} {run}"] for run in range(answer["runs"])]
        runs = [profile.parts() for profile in found]
        parts = {name: fmean(run[name] for run in runs) for name in runs[0]}
        off = sum(abs(profile.total - sum(profile.own.values())) for profile in found)
        counted.append(Count(parts={**parts, PATH: median([run[PATH] for run in runs])}, work=answer["work"], off=off))
    return counted


def _print_progress(process: Worker, jobs: Sequence[Job]) -> None:
    """Print each point after its set-up, the longest part, until the answer."""
    n, start, is_over = 0, time.monotonic(), False
    about = duration(PACE.seconds(len(jobs)))
    echo(f"counts CPU instructions of {len(jobs)} parts under Valgrind, {about}", err=True)
    while process.log and not is_over:
        is_over = process.connection.poll(1)
        # The process shares the file's position, so nothing may seek. Older commits print no such lines.
        n_before, n = n, os.pread(process.log.fileno(), 1 << 24, 0).count(SET_UP.encode())
        for number, job in enumerate(jobs[n_before:n], start=n_before + 1):
            name = " ".join([str(job.point.get("env", "")), job.case.name]).strip()
            left = PACE.left(time.monotonic() - start, number, len(jobs))
            echo(f"{number}/{len(jobs)} {name}: set up under Valgrind, {left}", err=True)


def cached_counts(jobs: Sequence[Job], root: Path = ROOT) -> list[Count]:
    """Return the counts of points, cached by files and tools.

    Raises:
        WorkerError: As `count`.
    """
    names = [(job.case.name, dict(job.point)) for job in jobs]
    counted: list[Count] = []

    def make(path: Path) -> None:
        counted.extend(count(jobs, root))
        path.write_text(json.dumps([asdict(each) for each in counted]))

    names_of_own = ("callgrind.py", "callgrind.toml", "marks.cpp", "server.py")
    own = "".join(Path(__file__).with_name(name).read_text() for name in names_of_own)
    code = {"counts": own, "code": hash_below(root), "points": names, "tools": tools()}
    path = cached(code, ".json", make)
    if any(each.error for each in counted):
        path.unlink()  # the next count may succeed
    return counted or load(path, list[Count])


@cache
def tools() -> tuple[str, ...]:
    """Return versions of the compiler, interpreter, libraries and Valgrind."""
    compiler = cuda_c.cpu_compiler()
    valgrind = run(["valgrind", "--version"], check=True).stdout.strip()
    import numpy as np  # noqa: PLC0415  (slow to import)
    import torch  # noqa: PLC0415

    return (
        valgrind,
        cuda_c.compiler_version(compiler) if compiler else "no C++ compiler",
        f"{platform.python_implementation()} {platform.python_version()} for {platform.machine()}",
        " ".join(platform.libc_ver()),
        f"torch {torch.__version__}",
        f"numpy {np.__version__}",
    )


def callgrind(folder: Path) -> list[str]:
    """Return the command prefix of callgrind, which counts between marks only.

    Args:
        folder: Gets a profile ``counts.N`` for each mark.
    """
    return ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'counts'}"]


def _process(root: Path, folder: Path) -> Worker:
    """Start the server of the code in a folder under callgrind."""
    # Older commits had a separate program for counts.
    words = [*callgrind(folder), *program(root, "process/counts.py", "counts.py", "process/local.py")]
    kept = {name: os.environ[name] for name in _REPEATABLE["kept"] if name in os.environ}
    return Worker.start(
        f"the count of {root}",
        words,
        cwd=root,
        env=env_with_code_first(root, {**kept, **_REPEATABLE["pinned"]}),
        is_quiet=True,
    )
