"""`python -m bench run`: a sweep that turns each point into a record."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from warpdrive_min.backends import Availability
from warpdrive_min.errors import ConfigError
from warpdrive_min.files import require_writable

from . import options
from .core.case import Job
from .core.errors import Code, CompareError
from .core.point import PresetName, command_line, matches
from .core.record import SWEEPS, Context, Record
from .judge.evidence import name_of, remarks
from .options import AtOnce, CaseNames, Counts, Names, Processes, Resume, Where, console, say
from .process import ray_cluster
from .process.local import run_points, write_traces
from .process.pace import Pace, duration
from .process.stopping import register_outputs
from .process.sweep import Runner, in_processes, missing, read_existing, run
from .show import documents, plots
from .show.labels import plural
from .show.records import by_machine
from .workloads.cases import jobs
from .workloads.outside import outside_jobs, outside_of
from .workloads.shared import availability


def command(
    typer_context: typer.Context,
    preset: Annotated[PresetName, typer.Option(help="Points, and time to measure each.")] = PresetName.default,
    case: CaseNames = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="Only these environments; or one outside `envs/`, as module:Class or by its path."),
    ] = None,
    backend: Names = None,
    n_envs: Counts = None,
    n_agents: Counts = None,
    where: Where = None,
    config: Annotated[
        list[str] | None, typer.Option(help="Argument of an environment outside `envs/`, as KEY=VALUE.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder of the records.")] = SWEEPS,
    resume: Resume = None,
    plot: Annotated[bool, typer.Option(help="Draw the figures at the end, into the folder figures of --out.")] = True,
    note: Annotated[
        str | None, typer.Option(help="Text stored in every record, such as other programs that were running.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Measure on a Ray cluster: local, auto or HOST:PORT.")] = None,
    at_once: AtOnce = 1,
    processes: Processes = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of 3 runs of each point to this folder, for ui.perfetto.dev; measures nothing."
        ),
    ] = None,
) -> None:
    """Check, measure and record every point, and show a table.

    Exits with 1 if a point failed, with 3 if there are no points.
    """
    if trace is not None:
        options.refuse_unused(typer_context, "with --trace, which measures nothing", *OF_RECORDS)
        require_writable(trace, "--trace")
    elif ray is not None:
        options.refuse_unused(typer_context, "with --ray, which places points on the GPUs", "at_once", "processes")
    options.require_known(where or [])
    options.require_known([f"backend={name}" for name in backend or ()], "--backend")
    kept = {"case": case, "env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents}
    named = [f"{axis}={value}" for axis, values in kept.items() for value in values or ()]
    conditions = [*named, *(where or [])]
    todo, candidates = jobs(preset.value, conditions), list[Job]()
    try:
        for name in outside_of(env or (), config or (), n_agents or ()):
            made = outside_jobs(name, config or (), preset.value, case or (), backend or (), n_envs or ())
            candidates += made
            todo += [job for job in made if matches({"case": job.case.name, **job.point}, where or [])]
    except (CompareError, ConfigError) as error:
        raise typer.BadParameter(str(error)) from error
    if without_numpy := options.no_plain_numpy(conditions):
        say(without_numpy)
    if not todo:
        if not without_numpy:
            given, known = (where or [], candidates) if candidates else (conditions, jobs(preset.value))
            why = options.existing_values(given, [{"case": job.case.name, **job.point} for job in known])
            advice = "" if candidates else options.other_presets(lambda other: bool(jobs(other, conditions)))
            do = (
                advice or f"`python -m bench list` shows the points of preset {preset.value}, which options only filter"
            )
            say(f"no point passes the filters: {why or 'more than one option excludes all points'}; {do}")
        raise typer.Exit(Code.NOTHING)
    options.require_met([each for each in conditions if not each.startswith("env=")], todo)
    if trace is not None:
        _trace(todo, trace)
        return
    require_writable(out, "--out")
    context = Context.here(preset.value, options.resumed_or_new_run_id(resume, out, preset.value), note)
    file = out / f"{context.run_id}.jsonl"
    figures = out / "figures"
    register_outputs(file, words=("--resume", context.run_id), folders=[figures])
    with _available_and_runner(ray, at_once, processes) as (states, runner):
        here = options.runnable(todo, states)
        if not here:
            say("nothing was measured: no backend of these points is available here; see `python -m bench doctor`")
            raise typer.Exit(Code.NOTHING)
        n_wanted, todo = len(in_processes(todo, processes)), in_processes(here, processes)
        n_left_out, n = n_wanted - len(todo), len(missing(todo, file))
        say(f"{plural(n, 'point')}, {duration(PACE[preset].seconds(n))}")
        records = _with_progress(todo, n, context, file, runner, PACE[preset])
    if resume:
        records = read_existing(file)[0]
    if preset is PresetName.smoke:
        say("preset smoke only tests that every case runs: its times are too short to compare")
    shown = records if case else in_tables(preset, records)
    _show(shown)
    say(documents.counts(records, n_left_out))
    say(f"records: {file}")
    machines = by_machine(record for record in records if record.is_evidence) if plot else {}
    for name, group in machines.items():
        stem = context.run_id if len(machines) == 1 else f"{context.run_id}-{name}"
        for line in plots.listed(plots.draw(group, figures, stem=stem, names=FIGURES.get(preset, ()))):
            say(line)
    if len(shown) < len(records):
        say(f"tables of the other cases: {_command('table', file)}")
    if preset is not PresetName.smoke and (warning := doubtful(records)):
        say(warning)
    say(f"next, all of it on one page: {_command('report', file)}")
    if any(record.status == "failed" for record in records):
        raise typer.Exit(Code.FAILED)


OF_RECORDS: Final = ("out", "resume", "plot", "note", "ray", "at_once", "processes")
"""Options that have no effect without records."""
PACE: Final = {
    PresetName.smoke: Pace(0.9),
    PresetName.default: Pace(4.0),
    PresetName.full: Pace(30.0),
    PresetName.paper: Pace(8.0),
}
"""Mean duration of a point: on two CPU cores for smoke, on a GPU for the others."""
FIGURES: Final = {PresetName.smoke: ("throughput",)}
"""Charts that a preset draws, where not all: its points are too few for the others."""
TABLES: Final = {PresetName.smoke: ("env_step",)}
"""Cases whose tables a preset prints, where not all: its times say little. Without points of them it prints all."""


def _trace(todo: Sequence[Job], folder: Path) -> None:
    """Trace points; exits with 1 if one failed, with 3 without a trace."""
    statuses = set()
    for status, line in write_traces(options.runnable(todo, availability()), folder):
        statuses.add(status)
        say(line)
    if "failed" in statuses:
        raise typer.Exit(Code.FAILED)
    if "ok" not in statuses:
        raise typer.Exit(Code.NOTHING)
    say("open one at https://ui.perfetto.dev")


def _command(name: str, file: Path) -> str:
    """Return a command of `bench` for the shell that started it, nox or Python."""
    by_nox = "NOX_CURRENT_SESSION" in os.environ
    start = f"python3 -m nox -s {name} --" if by_nox else command_line(name)
    return f"{start} {shlex.quote(str(file))}"


def doubtful(records: Sequence[Record]) -> str:
    """Return a warning that names points with doubtful times; empty: none."""
    reasons = {
        name_of(record): "; ".join(said) for record in records if record.is_evidence and (said := remarks(record))
    }
    if not reasons:
        return ""
    (name, why), n_points = next(iter(reasons.items())), len({*map(name_of, records)})
    advice = "measure again on an idle machine (`python -m bench doctor`)"
    return f"unreliable times: {len(reasons)} of {n_points} points, such as {name}: {why}; {advice}"


def in_tables(preset: PresetName, records: list[Record]) -> list[Record]:
    """Return the records whose tables a preset prints."""
    chosen = [record for record in records if record.case in TABLES.get(preset, ())]
    return chosen if any(record.is_evidence for record in chosen) else records


def _show(records: list[Record]) -> None:
    """Print the tables of each machine."""
    machines = by_machine(records)
    if len(machines) < 2:
        documents.show(records, console)
        return
    for name, group in machines.items():
        say(name if group[0].machine else "not run on any machine")
        documents.show(group, console)


@contextlib.contextmanager
def _available_and_runner(
    ray: str | None, at_once: int, processes: int
) -> Iterator[tuple[Mapping[str, Availability], Runner]]:
    """Yield the backends and the runner, here or on a cluster."""
    if ray is None:
        yield availability(), partial(run_points, at_once=at_once, in_new_processes=processes > 1)
        return
    try:
        with ray_cluster.connected(ray) as cluster:
            yield cluster.availability(), cluster.measure
    except ray_cluster.ClusterError as error:
        raise typer.BadParameter(str(error)) from error


def _with_progress(todo: list[Job], n: int, context: Context, file: Path, runner: Runner, pace: Pace) -> list[Record]:
    name_column = TextColumn("{task.description}", markup=False)
    columns = (name_column, *Progress.get_default_columns()[1:], MofNCompleteColumn())
    records: list[Record] = []
    start = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=600) as progress:
        task = progress.add_task("starting", total=n)
        for record in run(todo, context, file, runner):
            records.append(record)
            name = name_of(record)
            progress.update(task, advance=1, description=name)
            if not console.is_terminal:
                left = pace.left(time.monotonic() - start, len(records), n)
                say(f"{len(records)}/{n} {name}: {record.status}, {left}")
            if record.status == "failed":
                say(f"failed: {name}: {record.reason}")
    return records
