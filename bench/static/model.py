"""`python -m bench static-model`: how well machine code tells the time of a kernel, on kernels that were left out.

A launch takes a constant, the waves of its blocks, and the bytes of its arguments:

    t = t0 + waves * W * max(c_latency, warps / 4 * c_issue) / clock + bytes / bandwidth,   W = sum of n_d * trips^d

where n_d instructions are in d loops, and ``warps`` are on a multiprocessor at once, on four schedulers. Its five
parameters are fitted to records of one set; the error is that on a program that the fit has not seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.terminal import echo

from ..core.errors import CompareError, exiting
from ..core.record import RESULTS, Context, Record, leaving_out, read_all
from ..core.stats import median
from ..process.pairs import checkouts
from ..show import render
from ..show.columns import Column, Table
from ..workloads.shared import env_config
from .capability import CAPABILITIES, SUBPARTITIONS, WARP, blocks_at_once
from .programs import BACKENDS, Program, environment
from .records import records_of

GPU: Final = "NVIDIA H200"
ARCHITECTURE: Final = "sm_90"
CLOCKS_PER_NS: Final = 1.98
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "step": ("step",),
    "env_step": ("draw", "step"),
    "reset": ("reset",),
    "record": ("record",),
    "sampler": ("probabilities",),
    "return_scan": ("returns",),
    "shuffle": ("permute",),
}
"""Parts of a program that a call of a case launches."""
PROGRAMS: Final = {"sampler": "sampling", "return_scan": "scanning", "shuffle": "shuffling"}
"""Kinds of programs of cases that have no environment."""
START: Final = (1_500.0, 1.5, 6.0, 1.0, 3_000.0)
"""Parameters from which the fit starts: t0 in ns, trips, c_latency and c_issue in clocks, bandwidth in bytes/ns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """Launches of one kernel."""

    launches: int
    by_depth: tuple[int, ...]
    waves: int
    warps: int
    """On a multiprocessor at once."""
    n_bytes: float

    @classmethod
    def of(cls, record: Record) -> Launched:
        """Read a record of machine code."""
        assert record.metrics is not None, "evidence has metrics"
        notes, figures = record.notes, record.metrics
        warps = -(-notes["threads"] // WARP)
        capability = CAPABILITIES[ARCHITECTURE]
        held_warps = round(figures["occupancy"].value * capability.warps)
        at_once = blocks_at_once(capability, threads=notes["threads"], warps=held_warps)
        return cls(
            launches=notes["launches"],
            by_depth=tuple(notes["by_depth"]),
            waves=-(-notes["blocks"] // at_once),
            warps=warps * -(-min(at_once, notes["blocks"]) // capability.multiprocessors),
            n_bytes=figures["argument_bytes"].value * notes["units"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A call that was measured, and the kernels that it launches."""

    program: str
    backend: str
    ns: float
    kernels: tuple[Launched, ...]


def predicted_ns(parameters: Sequence[float], kernels: Sequence[Launched]) -> float:
    """Return the time of a call, ns; see the model above."""
    t0, trips, latency, issue, bandwidth = parameters
    total = 0.0
    for each in kernels:
        work = sum(n * trips**depth for depth, n in enumerate(each.by_depth))
        clocks = each.waves * work * max(latency, each.warps / SUBPARTITIONS * issue)
        total += each.launches * (t0 + clocks / CLOCKS_PER_NS) + each.n_bytes / bandwidth
    return total


def fitted(points: Sequence[Measured]) -> list[float]:
    """Return the parameters under which the logarithms of times are off least; outliers count less."""
    from scipy.optimize import least_squares  # noqa: PLC0415  (slow to import)

    def errors(logarithms: Any) -> list[float]:
        return [error_of(np.exp(logarithms), each) for each in points]

    return [float(each) for each in np.exp(least_squares(errors, np.log(START), loss="soft_l1", f_scale=0.3).x)]


def error_of(parameters: Sequence[float], point: Measured) -> float:
    """Return the logarithm of the predicted time over the measured one."""
    return math.log(predicted_ns(parameters, point.kernels) / point.ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """Predictions of a program by a fit to all others."""

    program: str
    n: int
    factor: float
    """Factor by which predictions are off, up or down, in the median."""
    bias: float
    """Predicted over measured time, in the median."""

    @classmethod
    def of(cls, program: str, errors: Sequence[float]) -> Error:
        """Sum up errors."""
        off = math.exp(median([abs(each) for each in errors]))
        return cls(program=program, n=len(errors), factor=off, bias=math.exp(median(errors)))


ALL: Final = "all"


def left_out(points: Sequence[Measured]) -> list[Error]:
    """Return the errors of each program by a fit to the others, and of all together, in the last row."""
    found: dict[str, list[float]] = {}
    for program in dict.fromkeys(point.program for point in points):
        parameters = fitted([point for point in points if point.program != program])
        found[program] = [error_of(parameters, point) for point in points if point.program == program]
    rows = [Error.of(program, errors) for program, errors in found.items()]
    return [*rows, Error.of(ALL, [each for errors in found.values() for each in errors])]


COLUMNS: Final[tuple[Column[Error], ...]] = (
    Column("program left out", lambda row: row.program),
    Column("points", lambda row: str(row.n), is_right=True),
    Column("off by a factor of (median)", lambda row: f"{row.factor:.2f}", is_right=True),
    Column("predicted over measured (median)", lambda row: f"{row.bias:.2f}", is_right=True),
)


# ------------------------------------------------------------------ the points


def measured_points(records: Sequence[Record], context: Context) -> list[Measured]:
    """Compile what records ran, at their commit, and return both.

    Raises:
        CompareError: None is of the GPU, or they are of several commits, or what they ran cannot be compiled.
    """
    chosen = [record for record in records if _fits(record)]
    commits = {str(record.git["sha"]) for record in chosen}
    if len(commits) != 1:
        raise CompareError(f"static-model: needs records of {GPU} of one commit (got {len(commits)}); name one set")
    programs: dict[str, tuple[Program, list[Record]]] = {}
    for record in chosen:
        launches = _program(record)
        programs.setdefault(json.dumps(launches, sort_keys=True), (launches, []))[1].append(record)
    points = []
    with checkouts(commits.pop()) as (tree,):
        todo = [program for program, _ in programs.values()]
        compiled = records_of(todo, [ARCHITECTURE], context, tree)
        for (program, ran), found in zip(programs.values(), compiled, strict=True):
            if reasons := [each.reason for each in found if not each.is_evidence]:
                raise CompareError(f"static-model: {program['name']} must compile (got {reasons[0]})")
            echo(f"{program['name']} on {program['backend']}: {len(found)} kernels", err=True)
            for record in ran:
                parts = [Launched.of(each) for each in found if each.point["part"] in PARTS[record.case]]
                ns = median(record.unit_ns) * _units(record)
                points.append(
                    Measured(program=program["name"], backend=program["backend"], ns=ns, kernels=tuple(parts))
                )
    return points


def _fits(record: Record) -> bool:
    point = record.point
    is_ours = point.get("implementation", "ours") == "ours" and point.get("backend") in BACKENDS
    is_timed = record.is_evidence and record.mode == "graph" and record.case in PARTS and bool(record.samples_ns)
    return is_timed and is_ours and not point.get("exact") and record.machine.get("gpu") == GPU


def _program(record: Record) -> dict[str, Any]:
    """Return the program that launches what a record ran."""
    point: dict[str, Any] = record.point
    backend, n_agents = {"backend": point["backend"]}, point.get("n_agents", 1)
    if record.case in PROGRAMS:
        sizes = {"n_envs": point.get("n_envs", point.get("n_indices")), "n_agents": n_agents}
        own = {"categories": [point.get("n_actions")], "n_steps": point.get("n_steps")}
        return {"name": PROGRAMS[record.case], "kind": PROGRAMS[record.case], **backend, **sizes, **own}
    name = point["env"]
    config = env_config(name, n_agents, point.get("neighbor_search", "auto"), point.get("n_taggers"))
    return environment(name, config, point["n_envs"], n_agents) | backend


def _units(record: Record) -> int:
    """Return the units of work of a call: those by which `Record.unit_ns` is."""
    point: dict[str, Any] = record.point
    per_env = {"samples": point.get("n_agents", 1), "returns": point.get("n_agents", 1) * point.get("n_steps", 1)}
    assert record.work_per_run is not None, "evidence of work that is repeated says how much it is"
    unit = next(iter(record.work_per_run))
    return int(point.get("n_envs", point.get("n_indices")) * per_env.get(unit, 1))


def static_model(
    records: Annotated[list[Path], typer.Argument(help="Files or folders of records of one commit on an H200.")],
    out: Annotated[Path, typer.Option(help="Gets parameters and errors, as JSON.")] = RESULTS / "static" / "model.json",
) -> None:
    """Fit a model of a kernel's time to its machine code, and say how far it is off on programs left out."""
    require_writable(out, "--out", is_file=True)
    with exiting(5, CompareError, to_stderr=True):
        with leaving_out() as cut:
            of_gpu = read_all(records, cut)
        points = measured_points(of_gpu, Context.here("default"))
    errors = left_out(points)
    names = ("t0_ns", "trips", "latency_clocks", "issue_clocks", "bytes_per_ns")
    found = {
        "records": [str(path) for path in records],
        "gpu": GPU,
        "points": len(points),
        "parameters": dict(zip(names, fitted(points), strict=True)),
        "left_out": [asdict(each) for each in errors],
    }
    write_atomically(out, json.dumps(found, indent=1) + "\n")
    echo(render.markdown(Table(columns=COLUMNS, rows=errors)))
