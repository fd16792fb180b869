"""The command line: `python -m bench`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import documents, plots, ray_sweep, sweep
from bench.calibrate import calibrate
from bench.case import PresetName, point_name
from bench.cases import CASES
from bench.claims import claims
from bench.compare import compare
from bench.doctor import doctor
from bench.export import export
from bench.gate import GateCommand, gate
from bench.paper import paper
from bench.peers.command import peers
from bench.publish import publish
from bench.record import Context, Record, read_all
from bench.report import report
from bench.reproduce import reproduce
from bench.show.records import by_machine
from bench.worker import run_points
from warpdrive_min.backends import Availability, availability

app = typer.Typer(help="Sweep, record and plot the benchmarks.", no_args_is_help=True, add_completion=False)
app.command("claims")(claims)
app.command("paper")(paper)
app.command("table")(documents.table)
app.command("refresh")(documents.refresh)
app.command("compare")(compare)
app.command("calibrate")(calibrate)
app.command("gate", cls=GateCommand)(gate)
app.command("export")(export)
app.command("reproduce", cls=GateCommand)(reproduce)
app.command("doctor")(doctor)
app.command("peers")(peers)
app.command("publish")(publish)
console = Console()
if console.width < (wide := 200):
    console = Console(width=wide)  # the tables need it; a narrower terminal wraps


Names = Annotated[list[str] | None, typer.Option(help="Keep only these; may be given several times.")]
Counts = Annotated[list[int] | None, typer.Option(help="Keep only these; may be given several times.")]


@app.command()
def run(
    preset: Annotated[PresetName, typer.Option(help="How much to run.")] = PresetName.default,
    case: Names = None,
    env: Names = None,
    backend: Names = None,
    n_envs: Counts = None,
    n_agents: Counts = None,
    where: Annotated[list[str] | None, typer.Option(help="Keep only points with AXIS=VALUE.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = sweep.SWEEPS,
    figures: Annotated[Path, typer.Option(help="Folder of the plots.")] = sweep.RESULTS / "figures",
    resume: Annotated[str | None, typer.Option(help="Run id to go on with; finished points are not run again.")] = None,
    plot: Annotated[bool, typer.Option(help="Draw the figures at the end.")] = True,
    note: Annotated[str | None, typer.Option(help="Kept in every record, say what else ran meanwhile.")] = None,
    ray: Annotated[str | None, typer.Option(help="Run the points on a Ray cluster: local, auto or HOST:PORT.")] = None,
) -> None:
    """Check, measure and record every point, and show a table; exits with 1 if one failed, with 3 if there is none."""
    filters: dict[str, list[Any]] = {
        "case": case or [],
        "env": env or [],
        "backend": backend or [],
        "n_envs": n_envs or [],
        "n_agents": n_agents or [],
        **_where(where or []),
    }
    todo = sweep.jobs(preset.value, filters)
    if not todo:
        _say(f"no point passes the filters; `python -m bench list` shows the axes of preset {preset.value}")
        raise typer.Exit(3)
    context = Context.here(preset.value, resume, note)
    file = out / f"{context.run_id}.jsonl"
    with _place(ray) as (states, runner):
        todo = sweep.missing(_say_what_is_skipped(todo, states), file)
        records = _with_progress(todo, context, file, runner)
    if resume:
        records = read_all([file], cut=[])
    _show(records)
    _say(f"records: {file}")
    machines = by_machine(record for record in records if record.is_evidence) if plot else {}
    for name, group in machines.items():
        stem = context.run_id if len(machines) == 1 else f"{context.run_id}-{name}"
        for path in plots.draw(group, figures, stem=stem):
            _say(f"figure: {path}")
    if any(record.status == "failed" for record in records):
        raise typer.Exit(1)


def _where(conditions: list[str]) -> dict[str, list[Any]]:
    """Parse AXIS=VALUE; the values of an axis are compared as the axis has them."""
    known: dict[str, dict[str, Any]] = {}
    for preset in PresetName:
        for case in CASES.values():
            for axis, values in case.axes(preset.value).items():
                known.setdefault(axis, {}).update({str(value): value for value in values})
    filters: dict[str, list[Any]] = {}
    for condition in conditions:
        axis, _, text = condition.partition("=")
        if axis not in known or text not in known[axis]:
            choices = ", ".join(known.get(axis, {})) or f"no such axis; axes are {', '.join(known)}"
            raise typer.BadParameter(f"--where {condition}: unknown (known: {choices})")
        filters.setdefault(axis, []).append(known[axis][text])
    return filters


def _show(records: list[Record]) -> None:
    """Print tables; those of several machines apart, for figures are over others of the same machine."""
    machines = by_machine(records)
    if len(machines) < 2:
        documents.show(records, console)
        return
    for name, group in machines.items():
        _say(name if group[0].machine else "on no machine")
        documents.show(group, console)


@contextlib.contextmanager
def _place(ray: str | None) -> Iterator[tuple[Mapping[str, Availability], sweep.Runner]]:
    """Lend what runs points, here or on a cluster, with the backends there."""
    if ray is None:
        yield availability(), run_points
        return
    try:
        with ray_sweep.connected(ray) as cluster:
            yield cluster.availability(), cluster.measure
    except ray_sweep.ClusterError as error:
        raise typer.BadParameter(str(error)) from error


def _say_what_is_skipped(todo: list[sweep.Job], states: Mapping[str, Availability]) -> list[sweep.Job]:
    """Print why each absent backend is left out, once; its points are not tried."""
    wanted = {str(job.point.get("backend")) for job in todo}
    for name, state in states.items():
        if name in wanted and not state.available:
            _say(f"skipped: backend {name} is {state}")
    return [job for job in todo if states[str(job.point["backend"])].available]


def _with_progress(todo: list[sweep.Job], context: Context, file: Path, runner: sweep.Runner) -> list[Record]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    records: list[Record] = []
    start = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as progress:
        task = progress.add_task("starting", total=len(todo))
        for record in sweep.run(todo, context, file, runner):
            records.append(record)
            name = point_name(record.case, record.point)
            progress.update(task, advance=1, description=escape(name))
            if not console.is_terminal:
                left = (time.monotonic() - start) / len(records) * (len(todo) - len(records))
                _say(f"{len(records)}/{len(todo)} {name}: {record.status}, {left:.0f} s left")
            if record.status == "failed":
                _say(f"failed: {name}: {record.reason}")
    return records


app.command("plot")(plots.plot)
app.command("report")(report)


@app.command("list")
def list_() -> None:
    """Show the cases with their axes, and which backends can run here."""
    for case in CASES.values():
        _say(f"{case.name} ({case.scope}): {case.title}")
        for preset in PresetName:
            _say(f"  {preset.value}: {len(case.points(preset.value))} points")
            for axis, values in case.axes(preset.value).items():
                _say(f"    {axis}: {', '.join(map(str, values))}")
    _say("backends")
    for name, state in availability().items():
        _say(f"  {name}: {state}")


def _say(text: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)
