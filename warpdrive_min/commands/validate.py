"""Command `validate`: check an environment's kernels and measure their speed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track
from rich.table import Table
from rich.text import Text

from warpdrive_min import backends
from warpdrive_min.agreement import CHECKS, Result, Subject, load_class, run_checks
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.commands.environments import environments, read_settings, report_errors
from warpdrive_min.config import MAX_SEED
from warpdrive_min.errors import WarpDriveError, known, near_or_known, require
from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.packages import bench_package
from warpdrive_min.policies import random_policy
from warpdrive_min.terminal import Console, echo

SIMULATED = {"n_envs": 3, "n_steps": 5}
"""Default sizes in Numba's simulator, about a thousand threads per second."""
WIDE = 140
CARD_FACTORS = (1, 10, 100)
LEAST_S = 0.2
"""Minimum duration of a measurement, s."""
QUIET_S = 10.0
"""Time after which a finished config prints a line of progress, outside a terminal, s."""
STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}

Finding = tuple[Subject, Result]
Row = tuple[str, Result, int]
"""Backend, result, and number of runs."""


def _size_help(what: str, name: str) -> str:
    return f"Number of {what}; default: {getattr(Subject, name)}, in Numba's simulator {SIMULATED[name]}."


def validate(
    path: Annotated[
        str, typer.Argument(help="Name of a shipped environment, package folder, module, or package.module:ClassName.")
    ],
    backend: Annotated[list[str] | None, typer.Option(help="Check only this backend; may be repeated.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="Argument of the class, KEY=VALUE; VALUE is JSON.")] = None,
    class_name: Annotated[str | None, typer.Option("--class", help="Name of the class, if there are several.")] = None,
    envs: Annotated[int | None, typer.Option(min=2, max=2**31 - 1, help=_size_help("environments", "n_envs"))] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help=_size_help("steps", "n_steps"))] = None,
    configs: Annotated[
        int, typer.Option(min=1, max=100_000, help="Repetitions, each with its own seed and random config.")
    ] = 1,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed of initial states, actions and random configs.")
    ] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1e6, help="Largest difference from the reference if not exact.")
    ] = 1e-4,
    check: Annotated[list[str] | None, typer.Option(help="Run only this check; may be repeated.")] = None,
    card: Annotated[bool, typer.Option(help="Also measure the speed in env steps/s; --no-card leaves it out.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
) -> None:
    """Check every kernel of an environment; exits with 1 if a check failed.

    Exits with 2 if no check could run. Each check runs on every backend that the environment has kernels for. A class
    may have a static method random_config(generator) that returns keyword arguments; --configs then draws that many.
    """
    console = Console()
    if console.width < WIDE:
        console = Console(width=WIDE)  # the table needs this width; a narrower terminal wraps
    if json_file is not None:
        with report_errors(2):
            require_writable(json_file, "--json", is_file=True)
    try:
        names, chosen = _checks(check), _backends(backend)
        given = read_settings(config or [], "validate --config")
        shipped = environments().get(path)
        is_found = shipped is not None or not path.isidentifier() or Path(path).exists() or find_spec(path) is not None
        do = f"{near_or_known(path, environments())}; others by path or module:Class"
        require(is_found, "validate", "unknown environment", path, do)
        target = path if shipped is None else f"{shipped.__module__}:{shipped.__name__}"
        cls = load_class(target, class_name)
        asked: dict[str, Any] = {
            name: size for name, size in (("n_envs", envs), ("n_steps", steps)) if size is not None
        }
        first = Subject(target=target, cls=cls, backend="cpu", config=given, tolerance=tolerance, **asked)
        subjects = list(_subjects(first, configs, seed))
    except WarpDriveError as error:
        console.say(str(error))
        raise typer.Exit(2) from error
    findings: list[Finding] = []
    speeds: list[Speed] = []
    for name in chosen:
        sizes = {**SIMULATED, **asked} if _is_simulated(name) else asked
        on_backend = [replace(subject, backend=name, **sizes) for subject in subjects]
        found = _check_all(on_backend, names)
        findings += found
        if card and not any(result.status == "failed" for _, result in found):
            speeds += _speeds(on_backend[0])
    notes = list[str]()
    if len(asked) < len(SIMULATED) and any(map(_is_simulated, chosen)):
        notes.append("Numba's simulator is slow and runs fewer environments and steps; set --envs and --steps for more")
    states = {} if backend else backends.availability()
    notes += [f"backend {name} is {state}" for name, state in states.items() if not state.available]
    _show(console, path, cls.__name__, findings, speeds, notes)
    if json_file is not None:
        report = _report(path, cls.__name__, findings, speeds)
        with report_errors(exit_code=2):
            write_atomically(json_file, json.dumps(report, indent=1, default=str))
    statuses = {result.status for _, result in findings}
    if "passed" not in statuses or "failed" in statuses:
        raise typer.Exit(1 if "failed" in statuses else 2)


# ------------------------------------------------------------------ subjects


def _checks(names: Sequence[str] | None) -> list[str]:
    for name in names or []:
        require(name in CHECKS, "validate", "unknown check", name, f"known are {', '.join(CHECKS)}")
    return [name for name in CHECKS if not names or name in names]


def _backends(names: Sequence[str] | None) -> list[str]:
    """Return the named backends, or those available on this machine."""
    if names:
        return [backends.get(name).name for name in names]
    return [name for name, state in backends.availability().items() if state.available]


def _subjects(first: Subject, n: int, seed: int) -> Iterator[Subject]:
    """Yield copies of the subject with other seeds and random configs.

    Random configs need the class's ``random_config``; values in the given config override them.
    """
    draw = getattr(first.cls, "random_config", None)
    for index in range(n):
        drawn: Mapping[str, Any] = draw(np.random.default_rng(seed + index)) if draw and n > 1 else {}
        yield replace(first, config={**drawn, **first.config}, seed=seed + index)


def _is_simulated(backend: str) -> bool:
    return backend == "numba" and simulated()


def _check_all(subjects: Sequence[Subject], names: Sequence[str]) -> list[Finding]:
    subject = subjects[0]
    if subject.language not in subject.cls.kernel_sources:
        reason = f"the environment has no {subject.language} kernels (it has {known(subject.cls.kernel_sources)})"
        return [(subject, Result(name, "skipped", reason)) for name in names]
    console = Console(stderr=True)
    if console.is_terminal and len(subjects) > 1:
        runs: Iterable[Subject] = track(subjects, subject.backend, console=console, transient=True)
    else:
        runs = _reported(subjects)
    return [(each, result) for each in runs for result in run_checks(each, names)]


def _reported(subjects: Sequence[Subject]) -> Iterator[Subject]:
    """Yield the subjects; every `QUIET_S` print how many are done, and the time left."""
    start = said = time.monotonic()
    for n, each in enumerate(subjects):
        if n and (now := time.monotonic()) - said >= QUIET_S:
            said, left_s = now, (now - start) / n * (len(subjects) - n)
            echo(f"{each.backend}: {n} of {len(subjects)} configs checked, about {left_s:.0f} s left", err=True)
        yield each


# ------------------------------------------------------------------ speed


@dataclass(frozen=True, slots=True)
class Speed:
    """Rate of a backend with a number of environments."""

    backend: str
    n_envs: int
    env_steps_per_s: float
    bytes_per_s: float | None
    """Declared memory traffic of a step, bytes per second; None if undeclared."""


def _measure(subject: Subject, n_envs: int) -> Speed:
    """Time steps with auto-reset and fixed random actions; synchronises."""
    wrapper = subject.start(num_envs=n_envs, auto_reset=True)
    random_policy(wrapper, subject.seed)()
    backend, n_steps = wrapper.backend, 1
    wrapper.step()
    backend.synchronize()
    while True:
        start = time.perf_counter()
        for _ in range(n_steps):
            wrapper.step()
        backend.synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= LEAST_S:
            break
        n_steps *= 2
    rate = n_envs * n_steps / elapsed
    env: Any = wrapper.env
    size = getattr(env, "bytes_per_step", 0)
    return Speed(subject.backend, n_envs, rate, rate * size if size else None)


def _speeds(subject: Subject) -> list[Speed]:
    if subject.language not in subject.cls.kernel_sources or _is_simulated(subject.backend):
        return []
    return [_measure(subject, factor * subject.n_envs) for factor in CARD_FACTORS]


# ------------------------------------------------------------------ report


def _show(
    console: Console,
    path: str,
    title: str,
    findings: Sequence[Finding],
    speeds: Sequence[Speed],
    notes: Sequence[str],
) -> None:
    table = Table("backend", "check", "result", "detail", title=title, title_justify="left")
    for backend, result, n_runs in _join_skips(_summary(findings)):
        style = STYLES[result.status]
        count = f" ({n_runs} runs)" if n_runs > 1 else ""
        status = Text.assemble((result.status, style), count)
        table.add_row(backend, result.name, status, result.detail)
    console.print(table)
    for note in notes:
        console.say(note)
    if speeds:
        speed_table = Table(
            *("backend", "environments", "env steps/s", "memory traffic, GB/s"),
            title="speed (higher is better)",
            title_justify="left",
        )
        for speed in speeds:
            rate = "" if speed.bytes_per_s is None else f"{speed.bytes_per_s / 1e9:.3g}"
            speed_table.add_row(speed.backend, f"{speed.n_envs:,}", f"{speed.env_steps_per_s:,.0f}", rate)
        console.print(speed_table)
        command = f"`python -m {bench_package()} run --env {path}`"
        console.say(f"rough speed from one run; for publishable numbers use {command}")


def _join_skips(rows: Iterable[Row]) -> Iterator[Row]:
    """Join consecutive checks with the same skip reason."""
    for (_, status, _), same in groupby(rows, key=lambda row: (row[0], row[1].status, row[1].detail)):
        (backend, result, n_runs), *others = same
        if status == "skipped" and others:
            yield backend, replace(result, name=f"{1 + len(others)} checks"), n_runs
        else:
            yield from [(backend, result, n_runs), *others]


def _summary(findings: Sequence[Finding]) -> Iterator[Row]:
    """Summarise each check per backend: the first failure, else the first run.

    A failure has its config and seed.
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for subject, result in findings:
        groups.setdefault((subject.backend, result.name), []).append((subject, result))
    for (backend, _), group in groups.items():
        failed, passed = ([each for each in group if each[1].status == status] for status in ("failed", "passed"))
        subject, result = (failed or passed or group)[0]
        if failed and len(group) > 1:
            runs = f"{len(failed)} of {len(group)} runs"
            more = f"{runs}, first with seed {subject.seed} and config {dict(subject.config)}"
            result = replace(result, detail=f"{result.detail} ({more})")
        yield backend, result, len(group)


def _report(path: str, title: str, findings: Sequence[Finding], speeds: Sequence[Speed]) -> dict[str, Any]:
    return {
        "path": path,
        "class": title,
        "backends": {name: str(state) for name, state in backends.availability().items()},
        "results": [_finding(*each) for each in findings],
        "speeds": [asdict(speed) for speed in speeds],
    }


def _finding(subject: Subject, result: Result) -> dict[str, Any]:
    about = {"backend": subject.backend, "check": result.name, "status": result.status, "detail": result.detail}
    counts = {"seed": subject.seed, "n_envs": subject.n_envs, "n_steps": subject.n_steps}
    return {**about, "config": dict(subject.config), **counts}
