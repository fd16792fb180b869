"""Records of machine code: each launched kernel on each architecture."""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from warpdrive_min.packages import with_own_install_commands
from warpdrive_min.processes import is_stopping

from ..core.errors import CompareError
from ..core.machine import ROOT
from ..core.point import Check, Measurement, Metric, command_line
from ..core.record import CaseVersion, Context, Record, StartTime
from ..process.worker import Worker, WorkerError, env_with_code_first
from ..show.columns import Column, MakeTable, Table, metric_column
from . import cubin, sass
from .capability import CAPABILITIES, blocks_at_once, warps_at_once, wave_quantization

LOOP: Final = 8
"""Weight of a loop, whose number of iterations is unknown."""
Program = Mapping[str, Any]
"""Program of `probe.py`.

``name``, ``kind``, ``backend``, ``n_envs``, ``n_agents``, and arguments of its kind."""
N_CORES: Final = len(os.sched_getaffinity(0))
"""Number of processes that compile at once."""
PROBE: Final = Path(__file__).with_name("probe.py")


def table_of(records: Sequence[Record]) -> Table[Any]:
    """Return the table of machine code."""
    return Table(
        title="machine code",
        columns=[
            *map(point_column, ("program", "part", "kernel", "backend", "arch")),
            metric_column("registers"),
            metric_column("local_bytes", "local memory, B"),
            metric_column("shared_bytes", "shared memory, B"),
            metric_column("occupancy"),
            metric_column("instructions"),
            metric_column("weighted_instructions", "instructions, weighted by loops"),
            metric_column("argument_bytes", "argument bytes per unit"),
            Column("code", lambda record: str(record.notes["code"])[:8], is_code=True),
        ],
        rows=records,
    )


def point_column(name: str) -> Column[Record]:
    """Return the column of an axis; cells without it are empty."""
    return Column(name, lambda record: str(record.point.get(name, "")), is_choice=True)


def table_of_instructions(records: Sequence[Record]) -> Table[Any]:
    """Return the table of a CPU's instructions."""
    axes = map(point_column, ("program", "part", "kernel", "n_envs", "n_agents"))
    return Table(title="instructions of a run", columns=[*axes, metric_column("instructions")], rows=records)


MACHINE_CODE: Final = CaseVersion(name="machine_code", scope="static", version=2)
INSTRUCTIONS: Final = CaseVersion(name="instructions", scope="static")
TABLES: Final[Mapping[str, MakeTable]] = {MACHINE_CODE.name: table_of, INSTRUCTIONS.name: table_of_instructions}
"""Tables by the case of their records."""


# ------------------------------------------------------------------ the processes


def records_of(
    programs: Sequence[Program],
    architectures: Sequence[str],
    context: Context,
    root: Path = ROOT,
    n_processes: int | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> Iterator[list[Record]]:
    """Yield the records of each program, with the code under a folder.

    A program that was stopped, or not started, has none.

    Args:
        programs: Programs to compile.
        architectures: Names in `CAPABILITIES`, such as ``sm_90``.
        context: Fields that the records share.
        root: Folder of a checkout.
        n_processes: Number of compiling processes; None: one per core.
        goes_on: False if no further program may start.
    """
    asked: list[Question] = [(program, Future()) for program in programs]
    todo = queue.SimpleQueue[Question]()
    for each in asked:
        todo.put(each)
    for _ in range(min(len(programs), n_processes or N_CORES)):
        threading.Thread(target=_ask, args=(todo, architectures, root, goes_on), daemon=True).start()
    for program, answered in asked:
        reply = answered.result()
        found = iter(()) if reply == STOPPED else _records(program, reply, architectures, context)
        whole = list(itertools.takewhile(lambda _: not is_stopping(), found))  # nvdisasm is killed, too
        yield [] if is_stopping() else whole


Question = tuple[Program, Future[dict[str, Any]]]
"""A program and the future of its answer."""
STOPPED: Final[dict[str, Any]] = {}
"""Answer to a program that was stopped or not started."""


def _ask(
    todo: queue.SimpleQueue[Question], architectures: Sequence[str], root: Path, goes_on: Callable[[], bool]
) -> None:
    """Answer programs in a process, and replace it if it dies."""
    env = env_with_code_first(
        root, {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    )
    words = [sys.executable, "-P", str(PROBE), *architectures]
    with suppress(queue.Empty):
        while True:
            program, answered = todo.get_nowait()
            try:
                if goes_on():
                    with Worker.start("the process that compiles", words, env=env) as process:
                        while goes_on():
                            answered.set_result(process.ask("answer", program=program))
                            program, answered = todo.get_nowait()
                answered.set_result(STOPPED)
            except WorkerError as error:
                answered.set_result(STOPPED if is_stopping() else {"failed": str(error)})


# ------------------------------------------------------------------ a record


def _records(
    program: Program, reply: Mapping[str, Any], architectures: Sequence[str], context: Context
) -> Iterator[Record]:
    """Yield the records of a program, or why it has none."""
    if "parts" not in reply:
        status = "skipped" if "skipped" in reply else "failed"
        for architecture in architectures:
            point = _point(program, architecture, "", "")
            reason = with_own_install_commands(reply[status])
            yield _record(point, program, context, status=status, reason=reason)
        return
    for part in reply["parts"]:
        for name, launch in _named(part["launches"]):
            for architecture in architectures:
                point = _point(program, architecture, part["part"], name)
                try:
                    seen = _seen(launch, part["units"], architecture, reply["compiler"])
                except (cubin.CubinError, CompareError) as error:
                    yield _record(point, program, context, status="failed", reason=str(error))
                else:
                    yield _record(point, program, context, seen=seen)


def point_of_program(program: Program) -> dict[str, Any]:
    """Return the axes that the kernels of a program share."""
    return {name: value for name, value in _point(program, "", "", "").items() if name != "arch"}


def _point(program: Program, architecture: str, part: str, kernel: str) -> dict[str, Any]:
    sizes = {name: program[name] for name in ("n_envs", "n_agents", "blocks_per_env") if name in program}
    own = {"part": part, "kernel": kernel} if part else {}
    return {"program": program["name"], **own, "backend": program["backend"], "arch": architecture, **sizes}


def _record(point: dict[str, Any], program: Program, context: Context, **found: Any) -> Record:
    """Return a record without duration, so that equal runs match."""
    source = program.get("source", "")
    is_users = bool(source) and not source.startswith("warpdrive_min.")
    command = command_line(
        "static",
        env=source if is_users else program["name"],
        backend=point["backend"],
        arch=point["arch"],
        n_envs=str(program["n_envs"]),
        config=[json.dumps(program["config"])] if is_users else (),
    )
    return Record.of(MACHINE_CODE, point, context, started=StartTime(), command=command, **found)


def _named(launches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Merge equal launches; yield the rest by numbered name."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for launch in launches:
        key = (launch["kernel"], *sorted(launch["compiled"].items()), launch["blocks"], launch["threads"])
        bytes_ = sum(launch["arrays"].values()) * launch["launches"]
        if key in merged:
            merged[key]["launches"] += launch["launches"]
            merged[key]["bytes"] += bytes_
        else:
            merged[key] = {**launch, "bytes": bytes_}
    met: Counter[str] = Counter()
    for launch in merged.values():
        name = launch["kernel"]
        met[name] += 1
        yield name if met[name] == 1 else f"{name}#{met[name]}", launch


@cache
def _read(path: str) -> tuple[dict[str, cubin.KernelCode], dict[str, sass.Function]]:
    return cubin.kernels(Path(path)), sass.disassemble(Path(path))


def _seen(launch: Mapping[str, Any], units: int, architecture: str, compiler: str) -> Measurement:
    """Return the measurement of a launch from its compiled file."""
    kernels, functions = _read(launch["compiled"][architecture])
    found = kernels.get(launch["kernel"]) or (next(iter(kernels.values())) if len(kernels) == 1 else None)
    if found is None:
        raise cubin.CubinError(f"the compiled file has no kernel {launch['kernel']!r} (got {', '.join(kernels)})")
    code = [each for name in found.functions for each in functions[name].code]
    read = sum(functions[name].n_bytes for name in found.functions)
    oracle = "the sizes of the sections of the compiled file"
    detail = f"{read} bytes of instructions were read, of {found.n_bytes}"
    check = Check.within(float(abs(read - found.n_bytes)), 0, oracle, detail)
    capability = CAPABILITIES[architecture]
    warps, limit = warps_at_once(
        capability, threads=launch["threads"], registers=found.registers, shared_bytes=found.shared_bytes
    )
    waves = wave_quantization(launch["blocks"], blocks_at_once(capability, threads=launch["threads"], warps=warps))
    of_launch = {
        "occupancy": Metric.exact(warps / capability.warps, "of the warps of a multiprocessor", "higher"),
        "wave_quantization": Metric.exact(waves, "times the blocks", "lower"),
    }
    return Measurement(
        before=check,
        after=check,
        metrics=of_launch | _metrics(found, code, launch["bytes"] / units),
        notes={
            "code": found.hash,
            "shape": sass.shape_hash(code),
            "access": sass.access_hash(code),
            "compiler": compiler,
            "blocks": launch["blocks"],
            "threads": launch["threads"],
            "launches": launch["launches"],
            "units": units,
            "occupancy_limited_by": limit,
            "by_depth": _by_depth(code),
            "memory": dict(sorted(Counter(each.opcode for each in code if sass.pipe_of(each) in sass.MEMORY).items())),
            "arrays": dict(launch["arrays"]),
            "unknown": sorted({each.base for each in code if sass.pipe_of(each) == sass.UNKNOWN}),
        },
    )


def _by_depth(code: Sequence[sass.Instruction]) -> list[int]:
    """Count instructions by depth of loops."""
    counts = Counter(each.depth for each in code)
    return [counts[depth] for depth in range(max(counts, default=-1) + 1)]


def _metrics(found: cubin.KernelCode, code: Sequence[sass.Instruction], argument_bytes: float) -> dict[str, Metric]:
    """Return a kernel's metrics; weighted ones count a loop `LOOP` times.

    Expected counts are weighted by the share of passes through each instruction. So a store that became unconditional
    counts more.
    """
    plain: Counter[str] = Counter()
    weighted: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    expected_bytes = 0.0
    for each in code:
        pipe, weight = sass.pipe_of(each), LOOP**each.depth
        plain[pipe] += 1
        weighted[pipe] += weight
        if pipe in sass.MEMORY:
            moved[pipe] += weight * sass.width_of(each)
        if pipe == "global":
            expected_bytes += weight * each.share * sass.width_of(each)
    lower = {
        "registers": (found.registers, "registers/thread"),
        "local_bytes": (found.local_bytes, "bytes/thread"),
        "shared_bytes": (found.shared_bytes, "bytes/block"),
        "instructions": (sum(plain.values()), "instructions"),
        "weighted_instructions": (sum(weighted.values()), "instructions"),
        **{f"{pipe}_instructions": (plain[pipe], "instructions") for pipe in PIPES},
        **{f"weighted_{pipe}": (weighted[pipe], "instructions") for pipe in PIPES},
        **{f"weighted_{pipe}_bytes": (moved[pipe], "bytes/thread") for pipe in sass.MEMORY},
        "expected_global_bytes": (expected_bytes, "bytes/thread"),
        "argument_bytes": (argument_bytes, "bytes/unit"),
    }
    return {name: Metric.exact(value, unit, "lower") for name, (value, unit) in lower.items()}


PIPES: Final = (*(pipe for pipe in sass.PIPES if pipe != "none"), sass.UNKNOWN)
"""Counted pipes."""


def name_of(record: Record) -> str:
    """Name the kernel of a record briefly."""
    point = record.point
    where = f"{point['program']} {point['part']}" if "part" in point else str(point["program"])
    kernel = f": {point['kernel']}" if point.get("kernel", "") not in ("", point.get("part")) else ""
    sizes = " x ".join(str(point[name]) for name in ("n_envs", "n_agents") if point.get(name))
    more = "".join(f", {axis} {point[axis]}" for axis in ("kept", "policy") if axis in point)
    return f"{where}{kernel} ({point['backend']}, {point['arch']}, {sizes}{more})"
