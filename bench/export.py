"""`python -m bench export`: records in other tools' formats."""

from __future__ import annotations

import io
import itertools
import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
import typer

from warpdrive_min.checkout import GitError, git
from warpdrive_min.files import explain_full_disk, require_writable, write_atomically
from warpdrive_min.packages import install_command
from warpdrive_min.terminal import echo

from .core import machine
from .core.errors import ShowError
from .core.groups import groups_of
from .core.point import Figure
from .core.record import Record, merged, read_reporting, require_no_source
from .core.stats import median
from .judge.evidence import name_of
from .show.frames import frame_of
from .show.labels import SPREADS
from .show.records import by_machine
from .show.scores import Scores, scores_of
from .workloads.cases import CASES, is_present

GROUPED_BY: Final = ("env", "implementation")
"""Axes in the name of an ASV benchmark; the others are parameters."""
PARAMETERS: Final = ("backend", "n_envs")
"""Axes with one parameter each; ASV crosses parameters, so the rest is one."""


class Format(StrEnum):
    """Target format."""

    asv = "asv"
    github_action_benchmark = "github-action-benchmark"
    bencher = "bencher"
    csv = "csv"
    parquet = "parquet"
    rliable = "rliable"
    marl_eval = "marl-eval"


def export(
    to: Annotated[Format, typer.Argument(help="Format.")],
    records: Annotated[list[Path], typer.Argument(help="Files or folders of records.")],
    out: Annotated[Path, typer.Option(help="Output file; for asv, the folder of its results.")],
) -> None:
    """Write records as a table, or costs and learning for other tools.

    Tables are CSV and Parquet. Costs are for ASV, github-action-benchmark and Bencher. Learning, of runs to the end, is
    for rliable (.npz) and marl-eval (JSON).
    """
    require_writable(out, "--out", is_file=to is not Format.asv)
    require_no_source(out, "--out", records)
    given = read_reporting(records)
    if to in LEARNING:
        scores = scores_of(given)
        write_atomically(out, LEARNING[to](scores))
        echo(f"written: {out}: {len(scores.returns)} algorithms, tasks {', '.join(scores.tasks)}")
        return
    if to in TABLES:
        if not given:
            raise ShowError(f"export: {' '.join(map(str, records))} has no record; name one of `python -m bench run`")
        write_atomically(out, TABLES[to](frame_of(given)))
        echo(f"written: {out}")
        return
    shown, left_out = costs(given)
    for line in left_out:
        echo(f"left out: {line}", err=True)
    if not shown:
        raise ShowError("export: no record is measured, correct and of a present case; run `python -m bench run`")
    if to is Format.asv:
        files = write_asv(shown, out)
        if n_changed := len(shown) - len(_committed(shown)):
            echo(f"left out: {n_changed} records without a commit, or with uncommitted changes", err=True)
    else:
        make = {Format.github_action_benchmark: github_action_benchmark, Format.bencher: bencher}[to]
        write_atomically(out, json.dumps(make(shown), indent=2, allow_nan=False) + "\n")
        files = [out]
    for file in files:
        echo(f"written: {file}")


# ------------------------------------------------------------------ tables


def csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV; a missing value is empty."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as a Parquet file; raises ShowError without pyarrow."""
    content = io.BytesIO()
    mixed = {name: "str" for name, dtype in frame.dtypes.items() if pd.api.types.is_object_dtype(dtype)}
    try:
        frame.astype(mixed).to_parquet(content, engine="pyarrow", index=False)
    except ImportError as error:
        raise ShowError(f"export: pyarrow is not installed; {install_command('parquet')}") from error
    return content.getvalue()


TABLES: Final[Mapping[Format, Callable[[pd.DataFrame], str | bytes]]] = {Format.csv: csv, Format.parquet: parquet}


# ------------------------------------------------------------------ learning

N_STEPS: Final = 20
"""Positions of a curve in marl-eval's format, which needs equally many in all runs."""


def rliable(scores: Scores) -> bytes:
    """Return normalised scores as ``.npz``: (seeds, tasks) by algorithm.

    ``dict(numpy.load(file))`` is the score dictionary of rliable.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # `numpy.savez` accepts no array of the name "file"
        for name in scores.returns:
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, scores.matrix(name), allow_pickle=False)
    return content.getvalue()


def marl_eval(scores: Scores) -> str:
    """Return curves and returns as marl-eval's JSON.

    Source: https://github.com/instadeepai/marl-eval, "Data structure for raw experiment data".
    """
    n = min(len(runs) for tasks in scores.seeds.values() for runs in tasks)
    tasks: dict[str, dict[str, Any]] = {task: {} for task in scores.tasks}
    for name, of_tasks in scores.seeds.items():
        for task, runs in zip(scores.tasks, of_tasks, strict=True):
            tasks[task][name] = {f"seed_{run.point['seed']}": _curve_of(run) for run in runs[:n]}
    return json.dumps({"warpdrive_min": tasks}, allow_nan=False) + "\n"


def _curve_of(record: Record) -> dict[str, Any]:
    """Return a run's curve at `N_STEPS` positions, and its return after training.

    Raises:
        ShowError: The record has no returns of its learner.
    """
    steps_, by_learner = (record.curve.env_steps, record.curve.mean_return) if record.curve else ([], {})
    returns = by_learner.get(str(record.point["learner"]), [None] * len(steps_))
    known = [(x, y) for x, y in zip(steps_, returns, strict=True) if y is not None]
    if not known:
        raise ShowError(
            f"export: marl-eval needs a learning curve of each run (got none of {name_of(record)}); leave it out"
        )
    steps = np.linspace(known[0][0], known[-1][0], N_STEPS)
    values = np.interp(steps, [x for x, _ in known], [y for _, y in known])
    curve = {
        f"step_{index}": {"step_count": round(float(x)), "return": [float(y)]}
        for index, (x, y) in enumerate(zip(steps, values, strict=True), start=1)
    }
    return {**curve, "absolute_metrics": {"return": [(record.metrics or {})["return_after"].value]}}


LEARNING: Final[Mapping[Format, Callable[[Scores], str | bytes]]] = {
    Format.rliable: rliable,
    Format.marl_eval: marl_eval,
}


# ------------------------------------------------------------------ times and costs


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Record with its lower-is-better metric."""

    record: Record
    metric: Figure

    @property
    def name(self) -> str:
        """Case and point."""
        return name_of(self.record)

    @property
    def samples(self) -> list[float] | None:
        """Metric per sample; None if it is no time, or run once."""
        if self.record.samples_ns is None:
            return None
        per_ns = self.metric.value / median(self.record.samples_ns)
        return [ns * per_ns for ns in self.record.samples_ns]


def costs(records: Iterable[Record]) -> tuple[list[Cost], list[str]]:
    """Return the records to export, and counts of reasons for the others."""
    shown: list[Cost] = []
    reasons = Counter[str]()
    for record in merged(records):
        figures = filter(None, map(record.figure, record.metrics or {}))
        metric = next((each for each in figures if each.direction == "lower"), None)
        if reason := _why_not(record):
            reasons[reason] += 1
        elif metric is None:
            reasons[f"{record.case} has no metric of which less is better"] += 1
        else:
            shown.append(Cost(record=record, metric=metric))
    return shown, [f"{count} x {reason}" for reason, count in reasons.items()]


def _why_not(record: Record) -> str | None:
    if not record.is_evidence:
        return f"status {record.status}, or not right"
    if not is_present(record):
        return f"{record.case}, version {record.case_version}: is no case of today"
    if record.is_contended:
        return "another process used the GPU"
    return None


def newest(shown: Iterable[Cost]) -> list[Cost]:
    """Return the newest cost of each name."""
    return list({each.name: each for each in sorted(shown, key=lambda each: each.record.start)}.values())


def of_one_machine(shown: Sequence[Cost]) -> list[Cost]:
    """Return the newest cost of each name.

    Raises:
        ShowError: The costs are of several machines, which the format cannot distinguish.
    """
    machines = by_machine(each.record for each in shown)
    if len(machines) > 1:
        raise ShowError(
            f"export: the records must be of one machine (got {', '.join(machines)}); select one machine's files"
        )
    return newest(shown)


# ------------------------------------------------------------------ github-action-benchmark and Bencher


def github_action_benchmark(shown: Sequence[Cost]) -> list[dict[str, Any]]:
    """Return the entries of its tool ``customSmallerIsBetter``.

    Source: https://github.com/benchmark-action/github-action-benchmark, "Charts for custom benchmarks".
    """
    return [
        {
            "name": each.name,
            "unit": each.metric.unit,
            "value": each.metric.value,
            "range": f"{SPREADS[each.metric.kind][0]}{each.metric.low:.6g} to {each.metric.high:.6g}",
            "extra": f"{each.record.command}\ncommit {each.record.git.get('sha')}, run {each.record.run_id}",
        }
        for each in of_one_machine(shown)
    ]


def bencher(shown: Sequence[Cost]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the Bencher Metric Format; times are ``latency``, in ns.

    Source: https://bencher.dev/docs/reference/bencher-metric-format/.
    """
    found = {}
    for each in of_one_machine(shown):
        scale = NANOSECONDS.get(each.metric.unit)
        values = {"value": each.metric.value, "lower_value": each.metric.low, "upper_value": each.metric.high}
        measure = "latency" if scale else each.metric.unit
        found[each.name] = {measure: {name: value * (scale or 1) for name, value in values.items()}}
    return found


NANOSECONDS: Final[Mapping[str, float]] = {"ns": 1.0, "s": 1e9}
"""Nanoseconds per unit of time."""


# ------------------------------------------------------------------ ASV


def write_asv(shown: Sequence[Cost], folder: Path) -> list[Path]:
    """Write ASV's results of each machine and commit, and their description.

    ASV identifies benchmarks by name and parameters. A name is a case with its environment or implementation; the
    parameters are the rest of the point. Records without a commit, or of modified code, are omitted.

    Raises:
        ShowError: ASV is not installed, or no record names its commit.
    """
    try:
        from asv import util  # noqa: PLC0415  (optional)
        from asv.benchmarks import Benchmarks  # noqa: PLC0415
    except ImportError as error:
        raise ShowError(f"export: asv is not installed; {install_command('bench')}") from error
    committed = _committed(shown)
    if not committed:
        raise ShowError("export: ASV needs records of a commit without changes (got none); commit, then measure")
    benchmarks = asv_benchmarks(committed)
    index = folder / "benchmarks.json"
    try:
        known = util.load_json(str(index), Benchmarks.api_version) if index.exists() else {}
        known.pop("version", None)
    except (util.UserError, ValueError, AttributeError, RecursionError) as error:
        raise ShowError(f"export: {index} must be asv's (got {error}); remove it") from error
    with explain_full_disk(folder), tempfile.TemporaryDirectory(prefix="asv-") as scratch:
        _write_asv(committed, known | benchmarks, benchmarks, Path(scratch))
        written = []
        for file in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
            written.append(folder / file.relative_to(scratch))
            write_atomically(written[-1], file.read_bytes())
    return written


def _write_asv(committed: Sequence[Cost], described: Any, benchmarks: Any, folder: Path) -> None:
    """Let asv write into a temporary folder, because it replaces files in place."""
    from asv import results, runner, util  # noqa: PLC0415  (optional)
    from asv.benchmarks import Benchmarks  # noqa: PLC0415
    from asv.machine import Machine  # noqa: PLC0415

    util.write_json(str(folder / "benchmarks.json"), described, Benchmarks.api_version)
    for name, of_machine in groups_of(committed, lambda each: machine.kind(each.record.machine)).items():
        fields = asv_machine(name, of_machine[0].record)
        util.write_json(str(folder / name / "machine.json"), fields, Machine.api_version)
        for sha, of_commit in groups_of(of_machine, lambda each: str(_commit(each))).items():
            last = newest(of_commit)[-1].record
            file = results.Results(
                fields, {}, sha, commit_date(sha, last), str(last.machine.get("python")), "records", {}
            )
            for key, rows in groups_of(newest(of_commit), asv_name).items():
                cells = {asv_parameters(each): each for each in rows}
                order = [cells.get(values) for values in itertools.product(*benchmarks[key]["params"])]
                file.add_result(
                    benchmarks[key],
                    runner.BenchmarkResult(
                        result=[each and scale(each) * each.metric.value for each in order],
                        samples=[
                            each and each.samples and [scale(each) * sample for sample in each.samples]
                            for each in order
                        ],
                        number=[1 if each and each.samples else None for each in order],
                        errcode=0,
                        stderr="",
                        profile=None,
                    ),
                    started_at=max(each.record.start for each in rows),
                    record_samples=True,
                )
            file.save(str(folder))


def _commit(each: Cost) -> str | None:
    return machine.commit_of(each.record.git)


def _committed(shown: Sequence[Cost]) -> list[Cost]:
    return [each for each in shown if _commit(each) and not each.record.git.get("dirty")]


def scale(each: Cost) -> float:
    """Return the factor to seconds, ASV's unit; 1 for other units."""
    return NANOSECONDS.get(each.metric.unit, 1e9) / 1e9


def asv_benchmarks(shown: Sequence[Cost]) -> dict[str, dict[str, Any]]:
    """Return ASV's description of each benchmark."""
    described = {}
    for key, rows in groups_of(shown, asv_name).items():
        first = rows[0]
        case = CASES[first.record.case]
        described[key] = {
            "name": key,
            "pretty_name": key,
            "type": "track",
            "unit": "seconds" if first.metric.unit in NANOSECONDS else first.metric.unit,
            "version": str(case.version),
            "params": [list(dict.fromkeys(values)) for values in zip(*map(asv_parameters, rows), strict=True)],
            "param_names": [*PARAMETERS, "point"],
            "code": f"# {case.title}\n# measured by `python -m bench run --case {case.name}`",
            "timeout": 600,
            "setup_cache_key": None,
        }
    return described


def asv_name(each: Cost) -> str:
    """Name a benchmark by its case, environment or implementation, and quantity."""
    group = [str(each.record.point[axis]) for axis in GROUPED_BY if axis in each.record.point]
    what = "track_time" if each.metric.unit in NANOSECONDS else "track_cost"
    return ".".join([each.record.case, *group, what])


def asv_parameters(each: Cost) -> tuple[str, ...]:
    """Return a point's `PARAMETERS` and the rest, as ASV stores them (`repr`)."""
    point = each.record.point
    rest = {axis: value for axis, value in point.items() if axis not in (*PARAMETERS, *GROUPED_BY)}
    return (*(repr(point.get(axis)) for axis in PARAMETERS), repr(", ".join(f"{k}={v}" for k, v in rest.items())))


def asv_machine(name: str, record: Record) -> dict[str, str]:
    """Describe a machine by its class; ASV's site offers each field as a filter."""
    fields = {
        "gpu": record.machine.get("gpu"),
        "cpu": record.machine.get("cpu"),
        "num_cpu": record.machine.get("cores"),
    }
    return {"machine": name} | {key: str(value or "") for key, value in fields.items()}


def commit_date(sha: str, record: Record) -> int:
    """Return a commit's time, or its measurement's if git lacks it; ms."""
    try:
        return int(git("show", "-s", "--format=%ct", sha, root=machine.ROOT).split()[-1]) * 1000
    except (GitError, ValueError, IndexError):
        return round(record.start.timestamp() * 1000)
