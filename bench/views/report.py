"""The report: one HTML file made from records, which needs no network, no server and, for its tables, no JavaScript."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.anchors import SOURCES
from bench.record import Record
from bench.views.charts import figure
from bench.views.figures import (
    ENV_NAME,
    alone,
    backend_label,
    by_machine,
    charts,
    commit_label,
    joules,
    latest,
    metric,
    size,
    times,
)
from bench.views.tables.cells import number

OUT: Final = Path("results/report.html")
TEMPLATES: Final = Path(__file__).parent / "templates"
Row = TypeVar("Row")


class ReportError(ValueError):
    """There is nothing that may be reported."""


def html(records: Sequence[Record], claims: Claims | None = None) -> str:
    """Return the page; the same records and claims give the same page.

    Args:
        records: Of any number of machines.
        claims: What was judged from the same records. If nothing was measured of any of them, the page is without
            them, as it is without a figure that no record fills. Else all are shown, also those that are open.

    Raises:
        ReportError: No record is evidence.
    """
    if not any(record.is_evidence for record in records):
        raise ReportError("report: no record is measured and right; run `python -m bench run` first")
    machines = [section(name, group) for name, group in by_machine(records).items()]
    environment_ = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment_.filters["digits"] = digits
    drawn = {chart["id"]: chart.pop("drawn") for machine in machines for chart in machine["charts"]}
    text = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment_.get_template("report.html").render(
        claims=claimed(claims) if claims and any(each.measured.text for each in claims.rows) else None,
        machines=machines,
        drawn=text,
        sources=SOURCES,
    )


def section(name: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return what the template shows of a machine."""
    evidence = [record for record in records if record.is_evidence]
    cases = sorted({record.case for record in evidence})
    return {
        "id": name,
        "title": title(records),
        "hardware": hardware(records),
        "headline": shown(*headline(evidence)),
        "charts": [figure(name, chart) for chart in charts(evidence)],
        "cases": {case: shown(_of(evidence, case), columns(_of(evidence, case))) for case in cases},
        "others": shown([record for record in records if not record.is_evidence], OTHERS),
        "runs": runs(evidence),
    }


def digits(value: float, n: int) -> str:
    """Write a value with so many digits that count, and large ones without an exponent."""
    rounded = float(f"{value:.{n}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10**n else f"{rounded:,.{n}g}"


def title(records: Sequence[Record]) -> str:
    """Name the machine of records."""
    machine = records[0].machine
    return f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} CPU cores"


def hardware(records: Sequence[Record]) -> dict[str, str]:
    """Return each field of the machine, with all values that the records have."""
    fields = dict.fromkeys(name for record in records for name in record.machine if name != "unread")
    found = {}
    for name in fields:
        values = dict.fromkeys(record.machine.get(name) for record in records)
        words = [f"{value / 2**30:.0f} GiB" if name == "memory_bytes" else str(value) for value in values if value]
        found[name.replace("_bytes", "").replace("_", " ")] = ", ".join(words) or "not known"
    return found


def runs(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return the sweeps, the oldest first."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        found.setdefault(record.run_id, []).append(record)
    return [
        {
            "id": run_id,
            "commit": ", ".join(sorted({commit_label(record) for record in of_run})),
            "preset": ", ".join(sorted({record.preset for record in of_run})),
            "started": of_run[0].started_at,
            "cases": ", ".join(sorted({record.case for record in of_run})),
            "points": str(len(of_run)),
        }
        for run_id, of_run in found.items()
    ]


# ------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows in one place."""

    text: str
    value: float | None = None
    """What it is sorted by."""
    link: str = ""
    """Where a click leads to."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table, whose rows are records unless it says otherwise."""

    name: str
    text: Callable[[Row], str]
    value: Callable[[Row], float | None] | None = None
    """What it is sorted by; None: it is words."""
    is_choice: bool = False
    """It has few values, by which the table can be filtered."""
    is_code: bool = False
    is_long: bool = False
    """It has sentences, which may break."""
    link: Callable[[Row], str] | None = None

    def cell(self, row: Row) -> Cell:
        """Return what it shows of a row."""
        value = self.value(row) if self.value else None
        return Cell(self.text(row), value, self.link(row) if self.link else "")


def shown(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> dict[str, Any]:
    """Return a table's columns and the cells of its rows."""
    return {"columns": columns, "rows": [[column.cell(row) for column in columns] for row in rows]}


def columns(records: Sequence[Record]) -> list[Column[Record]]:
    """Return the columns of a case: its axes, every metric with its interval, what was read beside it, its origin."""
    axes = dict.fromkeys(axis for record in records for axis in record.point)
    metrics = dict.fromkeys(name for record in records for name in record.metrics or {})
    optional = [column for column in OPTIONAL if any(column.text(record) for record in records)]
    return [
        *(_axis(axis, records) for axis in axes),
        Column("threads", lambda record: "GPU" if record.threads is None else str(record.threads)),
        *(column for name in metrics for column in _metric_columns(name)),
        *optional,
        *ORIGIN,
    ]


def _axis(axis: str, records: Sequence[Record]) -> Column[Record]:
    def text(record: Record) -> str:
        value = record.point.get(axis, "")
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    if any(isinstance(record.point.get(axis, ""), str | bool) for record in records):
        return Column(axis, text, is_choice=True)
    return Column(axis, text, lambda record: float(record.point[axis]))


def _metric_columns(name: str) -> list[Column[Record]]:
    def interval(record: Record) -> str:
        found = metric(record, name)
        return f"{number(found.low)} to {number(found.high)}" if found else ""

    def value(record: Record) -> float | None:
        found = metric(record, name)
        return found.value if found else None

    def text(record: Record) -> str:
        found = value(record)
        return "" if found is None else number(found)

    return [Column(name.replace("_per_s", "/s").replace("_", " "), text, value), Column("95 % interval", interval)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _joules(record: Record) -> str:
    found = joules(record)
    return f"{found.value:.3g}" if found else ""


def _note(name: str, unit: str, scale: float = 1) -> Column[Record]:
    def value(record: Record) -> float | None:
        return None if record.notes.get(name) is None else float(record.notes[name]) * scale

    return Column(f"{name.rsplit('_', 1)[0]}, {unit}", lambda r: "" if value(r) is None else f"{value(r):.3g}", value)


OPTIONAL: Final[tuple[Column[Record], ...]] = (
    Column("share of the limit", lambda record: _share(record.roofline), lambda record: record.roofline),
    Column("J per million env-steps", _joules, lambda record: found.value if (found := joules(record)) else None),
    _note("setup_s", "s"),
    _note("rollout_s", "ms", 1e3),
    _note("update_s", "ms", 1e3),
    _note("peak_bytes", "GiB", 2**-30),
    Column("samples", lambda record: "" if record.n is None else str(record.n), lambda record: record.n),
)
"""Shown where a record of the case has them."""

ORIGIN: Final[tuple[Column[Record], ...]] = (
    Column(
        "largest error",
        lambda record: f"{record.correctness.max_error:.1e}" if record.correctness else "",
        lambda record: record.correctness.max_error if record.correctness else None,
    ),
    Column("commit", commit_label, is_choice=True),
    Column("run", lambda record: record.run_id, is_choice=True),
    Column("command", lambda record: record.command, is_code=True),
)

OTHERS: Final[tuple[Column[Record], ...]] = (
    Column("case", lambda record: record.case, is_choice=True),
    Column("point", lambda record: ", ".join(f"{axis}={value}" for axis, value in record.point.items())),
    Column("status", lambda record: record.status, is_choice=True),
    Column("reason", lambda record: record.reason or "its check did not pass"),
    Column("run", lambda record: record.run_id),
)
"""Of what is no evidence."""


def headline(records: Sequence[Record]) -> tuple[list[Record], list[Column[Record]]]:
    """Return, for each environment, where the most agent steps are done, and the columns that tell of it.

    A ratio is of the newest run that has both of its points.
    """
    measured = alone(_of(records, "env_step"))
    steps = [record for record in latest(measured) if not record.point.get("exact")]
    best: dict[Any, Record] = {}
    for record in sorted(steps, key=_agent_steps):
        best[record.point["env"]] = record
    newest_first = sorted(measured, key=lambda record: record.started_at, reverse=True)
    bases = {(size(record), record.point["backend"]): record for record in newest_first}

    def over(backend: str) -> Column[Record]:
        names = {backend_label(record) for record in steps if record.point["backend"] == backend}

        def value(record: Record) -> float | None:
            pairs = [
                (other, bases[size(other), backend])
                for other in newest_first
                if other.point == record.point and (size(other), backend) in bases
            ]
            return _agent_steps(pairs[0][0]) / _agent_steps(pairs[0][1]) if pairs else None

        def text(record: Record) -> str:
            found = value(record)
            return "not measured" if found is None else times(found)

        return Column(f"times {' and '.join(sorted(names))}", text, value)

    baselines = [name for name in ("cpu", "host") if any(record.point["backend"] == name for record in steps)]
    told = [
        Column("environment", lambda record: ENV_NAME.get(str(record.point["env"]), str(record.point["env"]))),
        _axis("n_agents", steps),
        _axis("n_envs", steps),
        Column("backend", backend_label),
        *_metric_columns("env_steps_per_s"),
        _metric_columns("agent_steps_per_s")[0],
        *(over(name) for name in baselines),
        OPTIONAL[0],
        ORIGIN[0],
        Column("run", lambda record: record.run_id),
    ]
    order = list(ENV_NAME)
    found = sorted(best.values(), key=lambda r: order.index(r.point["env"]) if r.point["env"] in order else len(order))
    return found, told


def _agent_steps(record: Record) -> float:
    found = metric(record, "agent_steps_per_s")
    return found.value if found else 0.0


def _of(records: Iterable[Record], case: str) -> list[Record]:
    return [record for record in records if record.case == case]


# ------------------------------------------------------------------ claims


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRow:
    """A claim beside what was measured of it, in words."""

    name: str
    source: str
    link: str
    """Address of the source; empty: it has none."""
    setup: str
    """What exactly was claimed."""
    hardware: str
    """That of the source."""
    claimed: Cell
    measured: Cell
    """With its interval; empty: nothing was measured."""
    ratio: Cell
    """Measured over claimed."""
    verdict: str
    why: str
    """What decided, or why nothing could."""
    run: str
    """The sweep that measured it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    """What was judged: how often each verdict was given, and every claim."""

    counts: Mapping[str, int]
    rows: Sequence[ClaimRow]


CLAIM: Final[tuple[Column[ClaimRow], ...]] = (
    Column("claim", lambda row: row.name, is_long=True),
    Column("verdict", lambda row: row.verdict, is_choice=True),
    Column("claimed", lambda row: row.claimed.text, lambda row: row.claimed.value),
    Column("measured", lambda row: row.measured.text, lambda row: row.measured.value),
    Column("measured / claimed", lambda row: row.ratio.text, lambda row: row.ratio.value),
    Column("why", lambda row: row.why, is_long=True),
    Column("set-up", lambda row: row.setup, is_long=True),
    Column("claimed on", lambda row: row.hardware, is_choice=True),
    Column("source", lambda row: row.source, is_choice=True, link=lambda row: row.link),
    Column("run", lambda row: row.run, is_choice=True),
)


def claimed(claims: Claims) -> dict[str, Any]:
    """Return what the template shows of claims."""
    return {"counts": claims.counts, "table": shown(claims.rows, CLAIM)}
