"""The report: one HTML file of claims, tables and figures from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import pandas as pd
import typer

from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.terminal import echo

from .core.point import command_line
from .core.record import (
    Record,
    merged,
    oldest_first,
    read_all,
    read_comparisons,
    reporting_skipped_lines,
    require_no_source,
)
from .judge.published.anchors import SOURCES
from .judge.published.claims import for_report
from .show.charts import Chart
from .show.columns import Column, Table, signed_points
from .show.labels import commit_label, digits, machine_label, notes
from .show.page import drawn, page
from .show.records import by_machine, derived, evidence_of
from .show.sets import past_records, published_records
from .show.tables import RUN, all_known, hardware, headline
from .show.views.cases import charts, without_curve
from .show.views.overview import overview

OUT: Final = Path("results/report.html")


def report(
    records: Annotated[list[Path] | None, typer.Argument(help="Files or folders of records.")] = None,
    out: Annotated[Path, typer.Option(help="Output HTML file.")] = OUT,
) -> None:
    """Write one self-contained HTML page from records; measures nothing.

    It has claims, tables and interactive figures.
    """
    require_writable(out, "--out", is_file=True)
    with reporting_skipped_lines() as skipped_lines:
        paths = records or published_records()
        require_no_source(out, "--out", paths)
        before = [] if records else past_records()
        found, past = read_all(paths, skipped_lines), read_all(before, skipped_lines)
        claims = for_report([*found, *past], read_comparisons([*paths, *before], skipped_lines))
        text = html(found, claims, past)
    write_atomically(out, text)
    echo(f"report: {out} ({len(text.encode()) / 1e6:.1f} MB)")


def html(records: Sequence[Record], claims: dict[str, Any] | None = None, past: Sequence[Record] = ()) -> str:
    """Return the page; equal records and claims give an equal page.

    Args:
        records: Records of one or several machines.
        claims: Verdicts on the same records; None: the page is without them.
        past: Other records, for the learning curves of trainings.

    Raises:
        ShowError: No record is evidence.
    """
    evidence_of(records, "report")
    machines = [section(name, group, past) for name, group in by_machine(records).items()]
    charts_by_id = {figure["id"]: figure.pop("drawn") for machine in machines for figure in machine["figures"]}
    return page("report.html", charts_by_id, claims=claims, machines=machines, sources=SOURCES, digits=digits)


def section(name: str, records: Sequence[Record], past: Sequence[Record] = ()) -> dict[str, Any]:
    """Return the template's data for a machine."""
    evidence = merged(record for record in records if record.is_evidence)
    cases = sorted({record.case for record in evidence})
    return {
        "id": name,
        "title": machine_label(records[0]),
        "hardware": hardware(records),
        "overview": overview(evidence),
        "headline": headline(evidence),
        "figures": [figure(name, chart) for chart in charts(evidence)],
        "cases": {case: all_known([record for record in evidence if record.case == case]) for case in cases},
        "without_curve": without_curve([each for each in (*records, *past) if each.is_evidence]),
        "others": Table(columns=OTHERS, rows=[record for record in records if not record.is_evidence]),
        "runs": runs(evidence),
    }


OTHERS: Final[Sequence[Column[Record]]] = (
    Column("case", lambda record: record.case, is_choice=True),
    Column("point", lambda record: ", ".join(f"{axis}={value}" for axis, value in record.point.items())),
    Column("status", lambda record: record.status, is_choice=True),
    Column("reason", lambda record: record.reason or "its check failed"),
    RUN,
)
"""Columns of failed and skipped records."""


def runs(records: Sequence[Record]) -> Table[pd.Series]:
    """Return the sweeps, oldest first."""
    return Table(
        rows=[run for _, run in derived(oldest_first(records), run=RUN.text).groupby("run", sort=False)["record"]],
        columns=[
            Column("run", lambda run: run.iloc[0].run_id),
            Column("commit", lambda run: ", ".join(sorted(set(map(commit_label, run))))),
            Column("preset", lambda run: ", ".join(sorted({record.preset for record in run}))),
            Column("started", lambda run: run.iloc[0].started_at),
            Column("cases", lambda run: ", ".join(sorted({record.case for record in run}))),
            Column("points", lambda run: str(len(run)), is_right=True),
        ],
    )


# ------------------------------------------------------------------ figures


def figure(machine: str, chart: Chart) -> dict[str, Any]:
    """Return the template's data for a figure; the page's script uses ``drawn``."""
    return {
        "id": f"{machine}-{chart.name}",
        "chart": chart,
        "runs": sorted({record.run_id for record in chart.records}),
        "commits": sorted({commit_label(record) for record in chart.records}),
        "notes": [*notes(chart.records), *signed_points(chart.records)],
        "commands": commands(chart.records),
        "drawn": drawn(chart),
    }


def commands(records: Sequence[Record]) -> list[str]:
    """Return the commands that measure a figure's points again."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in records:
        envs = found.setdefault((record.preset, record.case), {})
        if "env" in record.point:
            envs[str(record.point["env"])] = None
    return [
        command_line("peers", preset=preset, where=[f"env={env}" for env in sorted(envs)])
        if case == "peer"  # other software is no case of a sweep
        else command_line("run", preset=preset, case=case, env=sorted(envs))
        for (preset, case), envs in sorted(found.items())
    ]
