"""Shared options of commands, and the points that they select."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from warpdrive_min.errors import ConfigError

from .core import machine
from .core.archive import read_toml
from .core.case import Job
from .core.errors import CompareError
from .core.measure import Once, Timed
from .core.point import ABSENT, PLAIN, Point, Preset, PresetName, matches, unmet_condition, why_no_plain
from .core.record import RESULTS, Record, RecordError, new_run_id, read_all, reporting_skipped_lines, selected
from .process.sweep import read_existing
from .show import render
from .show.labels import plural
from .workloads.cases import CASES, jobs
from .workloads.shared import ON_GPU, availability, has_gpu

if TYPE_CHECKING:
    from warpdrive_min.backends import Availability

console = render.console()
COMPARISONS: Final = RESULTS / "comparisons"
"""Default folder of paired runs."""


def say(text: str) -> None:
    """Print a line unchanged, without markup, colours or line breaks."""
    console.say(text)


# ------------------------------------------------------------------ types of options


def require_cases(names: Sequence[str]) -> None:
    """Raise BadParameter unless every name is a case."""
    for name in names:
        if name not in CASES:
            raise typer.BadParameter(f"{name}: unknown (cases are {', '.join(CASES)})")


def bounded(low: float, high: float) -> Callable[[float | None], float | None]:
    """Return an option callback that checks bounds and refuses NaN."""

    def checked(value: float | None) -> float | None:
        if value is None or low <= value <= high:
            return value
        raise typer.BadParameter(f"must be from {low:g} to {high:g} (got {value:g})")

    return checked


def _known_cases(names: list[str] | None) -> list[str] | None:
    require_cases(names or ())
    return names


MOST_COUNT: Final = 2**31 - 1
"""Largest number of environments, agents or repetitions."""
CaseNames = Annotated[list[str] | None, typer.Option(callback=_known_cases, help="Only these cases; may be repeated.")]
Names = Annotated[list[str] | None, typer.Option(help="Only the preset's points with this value; may be repeated.")]
Gated = Annotated[
    list[str] | None, typer.Option(help="Only these cases; by default the points of bench/judge/gated.toml.")
]
Counts = Annotated[
    list[int] | None,
    typer.Option(min=1, max=MOST_COUNT, help="Only the preset's points with this number; may be repeated."),
]
Where = Annotated[list[str] | None, typer.Option(help="Only points with AXIS=VALUE; may be repeated.")]
AtOnce = Annotated[
    int, typer.Option(min=1, max=1024, help="Points or rounds to set up concurrently; each is timed alone.")
]
Processes = Annotated[
    int, typer.Option(min=1, max=1024, help="New processes that measure each point; five give a rate an interval.")
]
Archs = Annotated[list[str] | None, typer.Option(help="GPU architecture, such as 90 or sm_90; may be repeated.")]
RUN_ID: Final = re.compile(r"\w[\w.-]*", re.ASCII)
Resume = Annotated[str | None, typer.Option(help="Id of the run to continue; finished points are skipped.")]


def resumed_or_new_run_id(resume: str | None, out: Path, preset: Preset, option: str = "--out") -> str:
    """Return the run id to resume, or a new one for None.

    Raises:
        BadParameter: It is not a run id, or the folder has no records of that run, or has some of another preset.
    """
    machine.warn_without_commit()
    if resume is None:
        return new_run_id()
    if not RUN_ID.fullmatch(resume):
        raise typer.BadParameter(f"--resume {resume!r:.80}: must be a run id, of letters, digits, '-', '_' and '.'")
    files = list(out.glob(f"{resume}*.jsonl"))
    if not files:
        do = f"give {option} its folder, or leave --resume out"
        raise typer.BadParameter(f"--resume {resume}: must be a run that {out} has records of (got none); {do}")
    others = {record.preset for record in read_existing(*files)[0]} - {preset}
    if others:
        got = " and ".join(sorted(others))
        rule = f"must have records of --preset {preset} alone (got {got})"
        raise typer.BadParameter(f"--resume {resume}: {rule}; give --preset {got}, or leave --resume out")
    return resume


def refuse_unused(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse options of the command line that have no effect.

    Args:
        context: The command's.
        reason: Why they have none, for the message.
        names: Parameters of the command.

    Raises:
        BadParameter: Such an option was given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{max(parameter.opts, key=len)}: has no effect {reason}; leave it out")


# ------------------------------------------------------------------ conditions on points


def require_known(conditions: Sequence[str], option: str = "--where") -> None:
    """Require AXIS=VALUE conditions to name axes and values of a case.

    `ABSENT` is a value of every axis.

    Raises:
        BadParameter: A condition does not; the message names the option.
    """
    known: dict[str, dict[str, None]] = {}
    for preset, case in itertools.product(PresetName, CASES.values()):
        for axis, values in case.axes(preset.value).items():
            known.setdefault(axis, {}).update(dict.fromkeys(map(str, values)))
    for each in known.values():
        each[ABSENT] = None
    for condition in conditions:
        axis, equals, text = condition.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} {condition}: must be AXIS=VALUE; axes are {', '.join(known)}")
        if axis not in known or text not in known[axis]:
            choices = f"unknown (known: {', '.join(known[axis])})" if axis in known else f"axes are {', '.join(known)}"
            shown = text if option == f"--{axis}" else condition
            do = f"; repeat {option} for several" if "," in text else ""
            raise typer.BadParameter(f"{option} {shown}: {choices}{do}")


def require_met(conditions: Sequence[str], todo: Sequence[Job]) -> None:
    """Require each AXIS=VALUE condition to match, unless there are no points.

    Raises:
        BadParameter: A condition matches none, or selects plain NumPy of environments that lack it.
    """
    without_numpy = no_plain_numpy(conditions)
    if without_numpy and not todo:
        raise typer.BadParameter(without_numpy)
    if condition := unmet_condition(conditions, ({"case": job.case.name, **job.point} for job in todo)):
        do = without_numpy or "no point that passes the other options has it"
        raise typer.BadParameter(f"{condition}: {do}; leave it out")


def values_of(axis: str, points: Sequence[Point]) -> str:
    """Return an axis's values as text, numbers in order."""
    values = dict.fromkeys(str(point.get(axis, ABSENT)) for point in points)
    return ", ".join(sorted(values, key=lambda value: int(value) if value.isdecimal() else -1))


def existing_values(conditions: Sequence[str], points: Sequence[Point]) -> str:
    """Return the values that would match, for conditions that match no point.

    These are an axis's values in points that meet all conditions on other axes. Empty: no axis has any.
    """
    found = []
    for axis in dict.fromkeys(each.partition("=")[0] for each in conditions):
        others = [each for each in conditions if not each.startswith(f"{axis}=")]
        values = values_of(axis, [point for point in points if matches(point, others)])
        if values:
            given = ", ".join(each.partition("=")[2] for each in conditions if each not in others)
            beside = " with the other options" if others else ""
            found.append(f"{axis}={given} matches no point; values of {axis}{beside}: {values}")
    return "; or ".join(found)


def no_plain_numpy(conditions: Sequence[str]) -> str:
    """Return why conditions select vectorised NumPy where it is missing; else ""."""
    if f"backend={PLAIN}" not in conditions:
        return ""
    from warpdrive_min.envs import ENVS  # noqa: PLC0415  (imports NumPy)

    return why_no_plain(env for env in ENVS if f"env={env}" in conditions)


def missing_backend(point: Point, states: Mapping[str, Availability]) -> str:
    """Return why a point's backend is not available; empty: it is."""
    state = states.get(name := str(point.get("backend")))
    return f"backend {name} is {state}" if state and not state.available else ""


def runnable(todo: Sequence[Job], states: Mapping[str, Availability], what: str = "skipped") -> list[Job]:
    """Return the points whose backend is available.

    Prints the number of others, ``what`` happens to them, and why.
    """
    reasons = [missing_backend(job.point, states) for job in todo]
    for reason, n in Counter(filter(None, reasons)).items():
        say(f"{plural(n, 'point')} {what}: {reason}")
    return [job for job, reason in zip(todo, reasons, strict=True) if not reason]


# ------------------------------------------------------------------ points and records of a comparison

_OF_GATES: Final = read_toml(Path(__file__).parent / "judge" / "gated.toml")
GATED: Final[Sequence[Sequence[str]]] = _OF_GATES["points"]
"""Rows of conditions; a gate's default points meet all of one row."""
LEAST_THRESHOLDS: Final[Mapping[str, float]] = _OF_GATES["least_thresholds"]
"""Smallest threshold of a gate, by case."""


def has_energy(job: Job) -> bool:
    """True if a gate also compares a point's energy."""
    return any(matches({"case": job.case.name, **job.point}, each) for each in _OF_GATES["energy"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Options that select the points to compare."""

    preset: Preset = "default"
    cases: Sequence[str] = ()
    """Names of cases; empty: all."""
    where: Sequence[str] = ()
    """Conditions on points, as AXIS=VALUE."""
    envs: Sequence[str] = ()
    """Programs of machine code, or environments outside `envs/` that records may name."""
    archs: Sequence[str] = ()
    config: Sequence[str] = ()
    """Arguments of a user's environment, as KEY=VALUE."""
    allowed: Sequence[str] = ()
    """Fields that may differ between two records."""
    at_once: int = 1
    """Maximum number of rounds that are set up at once."""

    def of(self, path: Path) -> list[Record]:
        """Return the selected records of a file or folder.

        Raises:
            RecordError: None can be read.
        """
        with reporting_skipped_lines() as skipped_lines:
            found = read_all([path], skipped_lines)
        if skipped_lines and not found:
            raise RecordError(skipped_lines[0])
        return selected(found, self.cases, self.where)


def chosen(choice: Choice, with_untimed: bool = False) -> list[Job]:
    """Return the timed points that can run here; print each missing backend.

    With ``with_untimed`` also those of memory and learning.

    Raises:
        CompareError: A case, axis or value is unknown.
    """
    cases = [f"case={name}" for name in choice.cases]
    with as_compare_error("--case "):
        require_cases(choice.cases)
    with as_compare_error():
        require_known(choice.where)
        wanted = [job for job in jobs(choice.preset, cases) if job.case.is_paired or (with_untimed and is_once(job))]
        wanted = [job for job in wanted if matches(job.point, choice.where)]
        require_met([*cases, *choice.where], wanted)
    return runnable(wanted, availability(), "left out")


def why_none(choice: Choice) -> str:
    """Return `existing_values` if no point passes the options, else empty."""
    conditions = [*(f"case={name}" for name in choice.cases), *choice.where]
    timed = [{"case": job.case.name, **job.point} for job in jobs(choice.preset) if job.case.workload is Timed]
    if not conditions or any(matches(point, conditions) for point in timed):
        return ""
    advice = other_presets(lambda preset: any(job.case.workload is Timed for job in jobs(preset, conditions)))
    return "; ".join(filter(None, (existing_values(conditions, timed), advice)))


def other_presets(has_points: Callable[[Preset], bool]) -> str:
    """Name the presets that have the points wanted, as advice; empty if none has."""
    found = [name for name in PresetName if has_points(name.value)]
    return f"choose --preset {' or '.join(found)}, which has such points" if found else ""


PRESET: Final = "BENCH_PRESET"
"""Environment variable that chooses the points of ASV and pytest-benchmark."""
OF_GATE: Final = "gated"
"""Value of $BENCH_PRESET for the points of `bench/judge/gated.toml`."""


def points_of_tools() -> tuple[str, list[Job]]:
    """Return $BENCH_PRESET and the timed points of ASV and pytest-benchmark.

    Without the variable these are the points of a gate on a GPU, and of preset smoke on a CPU. A CPU has no points of
    GPU backends.

    Raises:
        ConfigError: The variable names no preset.
    """
    names = (OF_GATE, *PresetName)
    name = os.environ.get(PRESET) or (OF_GATE if has_gpu() else PresetName.smoke)
    if name not in names:
        raise ConfigError(f"${PRESET}: must be one of {', '.join(names)} (got {name}); unset it, or name one")
    preset: Preset = "default" if name == OF_GATE else PresetName(name).value
    timed = [job for job in jobs(preset) if job.case.workload is Timed]
    if not has_gpu():
        timed = [job for job in timed if job.point["backend"] not in ON_GPU]
    return str(name), [job for job in timed if name != OF_GATE or is_gated(job)]


def is_gated(job: Job) -> bool:
    """True if a gate measures a point by default."""
    return any(matches({"case": job.case.name, **job.point}, each) for each in GATED)


@contextmanager
def as_compare_error(before: str = "") -> Iterator[None]:
    """Turn a BadParameter into a CompareError."""
    try:
        yield
    except typer.BadParameter as error:
        raise CompareError(f"{before}{error}") from error


def is_once(job: Job) -> bool:
    """True if a point is of memory or learning, which are run once."""
    return job.case.workload is Once


def gated(choice: Choice, with_untimed: bool = False) -> list[Job]:
    """Return the points of a gate that can run here; see `chosen`."""
    found = chosen(choice, with_untimed)
    if choice.cases:
        return found
    if choice.preset == "smoke":  # new processes take seconds in each preset
        return [job for job in found if job.case.workload is Timed]
    return list(filter(is_gated, found))
