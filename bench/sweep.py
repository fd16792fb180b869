"""`python -m bench run`: a sweep, in which every point of the chosen cases becomes a record."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from warpdrive_min.backends import Availability
from warpdrive_min.envs import ENVS
from warpdrive_min.errors import ConfigError
from warpdrive_min.files import require_writable

from .core import machine
from .core.case import Case, Job
from .core.errors import CompareError
from .core.point import ABSENT, PLAIN, Preset, PresetName, passes, unmet, why_no_plain
from .core.record import RESULTS, SWEEPS, Context, Record, append, leaving_out, new_run_id, read_all, there
from .judge.evidence import key, name_of, point_key
from .process import ray_cluster
from .process.local import run_points
from .process.stopping import keeps
from .show import documents, plots, render
from .show.records import by_machine
from .workloads.cases import CASES
from .workloads.outside import outside_jobs, outside_of
from .workloads.shared import availability


def jobs(preset: Preset, where: Sequence[str] = (), cases: Mapping[str, Case] = CASES) -> list[Job]:
    """Return the points of a preset that pass ``AXIS=VALUE`` conditions, of which ``case`` is an axis, too."""
    return [
        Job(case, point)
        for case in cases.values()
        for point in case.points(preset)
        if passes({"case": case.name, **point}, where)
    ]


Runner = Callable[[Sequence[Job], Context], Iterator[Record]]
"""Takes points to records, in any order; how and where is its own affair."""


def run(todo: Sequence[Job], context: Context, file: Path, runner: Runner) -> Iterator[Record]:
    """Yield the record of each point, once it is in ``file``; points that stand there already are left out.

    A point that fails or cannot run here is recorded with its reason and does not end the sweep.

    Args:
        todo: The points.
        context: What their records share.
        file: Gets a line for each record.
        runner: How points are run.
    """
    for record in runner(missing(todo, file), context):
        append(file, record)
        yield record


def records_in(file: Path) -> list[Record]:
    """Return the records of a file, if there is one; those that cannot be read are measured again."""
    with leaving_out() as cut:
        return read_all(there(file), cut)


def missing(todo: Sequence[Job], file: Path) -> list[Job]:
    """Return the points that do not stand in a file as ``ok``."""
    finished = {key(record) for record in records_in(file) if record.status == "ok"}
    return [job for job in todo if point_key(job.case.name, job.point) not in finished]


def measured(todo: Sequence[Job], context: Context, file: Path, tell: Callable[[str], None]) -> list[Record]:
    """Run points on this machine that do not stand in a file yet, and return all that do; ``tell`` gets a line each."""
    todo = missing(todo, file)
    for index, record in enumerate(run(todo, context, file, run_points), start=1):
        reason = f": {record.reason}" if record.reason else ""
        tell(f"{index}/{len(todo)} {name_of(record)}: {record.status}{reason}")
    return records_in(file)


# ------------------------------------------------------------------ the command

console = render.console()


def require_cases(names: Sequence[str]) -> None:
    """Make sure that each name is of a case; raises BadParameter."""
    for name in names:
        if name not in CASES:
            raise typer.BadParameter(f"{name}: unknown (cases are {', '.join(CASES)})")


MOST_COUNT: Final = 2**31 - 1
"""Most environments, agents, or repetitions."""


def between(low: float, high: float) -> Callable[[float | None], float | None]:
    """Return the callback of an option whose number lies within bounds, which NaN does not."""

    def checked(value: float | None) -> float | None:
        if value is None or low <= value <= high:
            return value
        raise typer.BadParameter(f"must be from {low:g} to {high:g} (got {value:g})")

    return checked


def _known_cases(names: list[str] | None) -> list[str] | None:
    require_cases(names or ())
    return names


CaseNames = Annotated[list[str] | None, typer.Option(callback=_known_cases, help="Only these; may be repeated.")]
Names = Annotated[list[str] | None, typer.Option(help="Only these; may be repeated.")]
Gated = Annotated[list[str] | None, typer.Option(help="Only these; without it the points of bench/judge/gated.toml.")]
Counts = Annotated[list[int] | None, typer.Option(min=1, max=MOST_COUNT, help="Only these; may be repeated.")]
Where = Annotated[list[str] | None, typer.Option(help="Only points with AXIS=VALUE.")]
AtOnce = Annotated[
    int, typer.Option(min=1, max=1024, help="Set up this many points or rounds at once; each is timed alone.")
]
RUN_ID: Final = re.compile(r"\w[\w.-]*", re.ASCII)
Resume = Annotated[str | None, typer.Option(help="Run id to continue; finished points are not run again.")]


def run_of(resume: str | None, out: Path, option: str = "--out") -> str:
    """Return the id of the run to resume, which has records in a folder; None: the id of a new run.

    Raises:
        BadParameter: It is no run id, or the folder has no records of it.
    """
    machine.warn_without_commit()
    if resume is None:
        return new_run_id()
    if not RUN_ID.fullmatch(resume):
        raise typer.BadParameter(f"--resume {resume!r:.80}: must be a run id, of letters, digits, '-', '_' and '.'")
    if not any(out.glob(f"{resume}*.jsonl")):
        do = f"give {option} its folder, or leave --resume out"
        raise typer.BadParameter(f"--resume {resume}: must be a run that {out} has records of (got none); {do}")
    return resume


def command(
    preset: Annotated[
        PresetName, typer.Option(help="Which points, and how long each is measured.")
    ] = PresetName.default,
    case: CaseNames = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Only these, or one outside `envs/`: module:Class, or its path.")
    ] = None,
    backend: Names = None,
    n_envs: Counts = None,
    n_agents: Counts = None,
    where: Where = None,
    config: Annotated[
        list[str] | None, typer.Option(help="Argument of an environment outside `envs/`, as KEY=VALUE.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = SWEEPS,
    figures: Annotated[
        Path | None, typer.Option(help="Folder of the plots; without it results/figures, or FOLDER/figures of --out.")
    ] = None,
    resume: Resume = None,
    plot: Annotated[bool, typer.Option(help="Draw the figures at the end.")] = True,
    note: Annotated[str | None, typer.Option(help="Text for every record, such as what else was running.")] = None,
    ray: Annotated[str | None, typer.Option(help="Run the points on a Ray cluster: local, auto or HOST:PORT.")] = None,
    at_once: AtOnce = 1,
) -> None:
    """Check, measure and record every point, and show a table; exits with 1 if one failed, with 3 if there is none."""
    require_known(where or [])
    kept = {"case": case, "env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents}
    named = [f"{axis}={value}" for axis, values in kept.items() for value in values or ()]
    conditions = [*named, *(where or [])]
    todo = jobs(preset.value, conditions)
    try:
        for name in outside_of(env or (), config or (), n_agents or ()):
            made = outside_jobs(name, config or (), preset.value, case or (), backend or (), n_envs or ())
            todo += [job for job in made if passes({"case": job.case.name, **job.point}, where or [])]
    except (CompareError, ConfigError) as error:
        raise typer.BadParameter(str(error)) from error
    if without_numpy := no_plain_numpy(conditions):
        say(without_numpy)
    if not todo:
        if not without_numpy:
            say(f"no point passes the filters; `python -m bench list` shows the axes of preset {preset.value}")
        raise typer.Exit(3)
    require_met([each for each in conditions if not each.startswith("env=")], todo)
    require_writable(out, "--out")
    if plot and figures is not None:
        require_writable(figures, "--figures")
    context = Context.here(preset.value, run_of(resume, out), note)
    file = out / f"{context.run_id}.jsonl"
    figures = figures or (RESULTS if out == SWEEPS else out) / "figures"
    keeps(file, words=("--resume", context.run_id), folders=[figures])
    with _place(ray, at_once) as (states, runner):
        here = runnable(todo, states)
        if not here:
            say("nothing was measured: no point has a backend that is available here")
            raise typer.Exit(3)
        todo = missing(here, file)
        records = _with_progress(todo, context, file, runner)
    if resume:
        records = records_in(file)
    _show(records)
    say(f"records: {file}")
    machines = by_machine(record for record in records if record.is_evidence) if plot else {}
    for name, group in machines.items():
        stem = context.run_id if len(machines) == 1 else f"{context.run_id}-{name}"
        for line in plots.listed(plots.draw(group, figures, stem=stem)):
            say(line)
    if preset is PresetName.smoke:
        say("preset smoke only shows that every case runs: its sizes are too small and its times too short to compare")
    if any(record.status == "failed" for record in records):
        raise typer.Exit(1)


def require_known(conditions: Sequence[str], option: str = "--where") -> None:
    """Make sure that AXIS=VALUE conditions name axes, and `ABSENT` or values, that a case has.

    Raises:
        BadParameter: One does not; it names the option.
    """
    known: dict[str, dict[str, None]] = {}
    for preset, case in itertools.product(PresetName, CASES.values()):
        for axis, values in case.axes(preset.value).items():
            known.setdefault(axis, {}).update(dict.fromkeys(map(str, values)))
    for each in known.values():
        each[ABSENT] = None
    for condition in conditions:
        axis, _, text = condition.partition("=")
        if axis not in known or text not in known[axis]:
            choices = f"unknown (known: {', '.join(known[axis])})" if axis in known else f"axes are {', '.join(known)}"
            raise typer.BadParameter(f"{option} {condition}: {choices}")


def require_met(conditions: Sequence[str], todo: Sequence[Job]) -> None:
    """Make sure that each AXIS=VALUE condition has a point, where others have one: none is without a meaning.

    Raises:
        BadParameter: One has none, or they choose plain NumPy of environments that have none.
    """
    without_numpy = no_plain_numpy(conditions)
    if without_numpy and not todo:
        raise typer.BadParameter(without_numpy)
    if condition := unmet(conditions, ({"case": job.case.name, **job.point} for job in todo)):
        do = without_numpy or "no point that passes the other options has it"
        raise typer.BadParameter(f"{condition}: {do}; leave it out")


def no_plain_numpy(conditions: Sequence[str]) -> str:
    """Return why conditions choose plain NumPy of environments without it; empty: they do not."""
    if f"backend={PLAIN}" not in conditions:
        return ""
    return why_no_plain(env for env in ENVS if f"env={env}" in conditions)


def _show(records: list[Record]) -> None:
    """Print tables; those of several machines apart, for figures are over others of the same machine."""
    machines = by_machine(records)
    if len(machines) < 2:
        documents.show(records, console)
        return
    for name, group in machines.items():
        say(name if group[0].machine else "on no machine")
        documents.show(group, console)


@contextlib.contextmanager
def _place(ray: str | None, at_once: int) -> Iterator[tuple[Mapping[str, Availability], Runner]]:
    """Lend what runs points, here or on a cluster, with the backends there."""
    if ray is None:
        yield availability(), partial(run_points, at_once=at_once)
        return
    if at_once > 1:
        raise typer.BadParameter(f"--at-once {at_once}: is for points of this machine; --ray spreads them over GPUs")
    try:
        with ray_cluster.connected(ray) as cluster:
            yield cluster.availability(), cluster.measure
    except ray_cluster.ClusterError as error:
        raise typer.BadParameter(str(error)) from error


def runnable(todo: Sequence[Job], states: Mapping[str, Availability], what: str = "skipped") -> list[Job]:
    """Return the points whose backend is there; prints, once and behind ``what``, why each of the others is not."""
    wanted = {str(job.point.get("backend")) for job in todo}
    for name, state in states.items():
        if name in wanted and not state.available:
            say(f"{what}: backend {name} is {state}")
    return [job for job in todo if states[str(job.point["backend"])].available]


def _with_progress(todo: list[Job], context: Context, file: Path, runner: Runner) -> list[Record]:
    columns = (
        TextColumn("{task.description}", markup=False),
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
        for record in run(todo, context, file, runner):
            records.append(record)
            name = name_of(record)
            progress.update(task, advance=1, description=name)
            if not console.is_terminal:
                left = (time.monotonic() - start) / len(records) * (len(todo) - len(records))
                say(f"{len(records)}/{len(todo)} {name}: {record.status}, {left:.0f} s left")
            if record.status == "failed":
                say(f"failed: {name}: {record.reason}")
    return records


def say(text: str) -> None:
    """Print a line as it is: no markup, no colours, no breaks."""
    console.say(text)
