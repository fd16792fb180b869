"""Published charts, tables and verdicts, as text.

As a script it writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import paper
from bench.core.archive import ARCHIVE, glob_paths
from bench.core.record import RESULTS, Record, json_schema, read_all
from bench.judge.published.claims import judge
from bench.judge.published.ledger import CLAIMS
from bench.show import render
from bench.show.charts import Chart, DataPoint
from bench.show.records import measured_alone
from bench.show.views import cases

GOLDEN = Path(__file__).with_name("golden")
RUNS = (
    "sweeps/20261121T164735-b0a8b4a-8b01",  # all cases but the following, on GPUs
    "sweeps/20261121T053012-62a47d3-94e6",  # steps and samplers, on CPUs too
    "sweeps/20261121T161552-83bad9b-8a01",  # scaling
    "sweeps/20261121T223641-480cb76-a002",  # learn
    "sweeps/20261121T223641-480cb76-a003",  # train
    "peers/20261127T004159-wd-training",
)
LAST_JUDGED = "20261121T161552-83bad9b-8a02"
"""Last run that claims are judged by; later ones may decide more."""


def records_of(runs: Sequence[str]) -> list[Record]:
    """Read the valid records of published runs."""
    return [record for record in read_all([RESULTS / ARCHIVE / f"{run}.jsonl" for run in runs]) if record.is_evidence]


def charts() -> Iterator[str]:
    """Yield each chart's content, a line per series."""
    for chart in cases.charts(records_of(RUNS)):
        yield from lines_of(chart)


def tables() -> Iterator[str]:
    """Yield each table's content, with its caption."""
    for name, table in paper.tables(measured_alone(records_of(RUNS))).items():
        yield f"\n# {name}\n\n{table.caption}\n\n{render.markdown(table)}"


def lines_of(chart: Chart) -> Iterator[str]:
    """Yield a chart as text, with a line per series."""
    yield f"\n# {chart.name}: {chart.title}, {chart.statistic} ({len(chart.records)} records)"
    yield chart.caption
    yield from (f"* {finding}" for finding in chart.findings)
    for panel in chart.panels:
        axes = f"{panel.ylabel or chart.y.label} over {panel.xlabel or chart.x.label}"
        yield f"\n{panel.title}: {axes}; level {panel.level}; right {panel.right}"
        yield from (f"{place}: {tick}" for place, tick in enumerate(panel.ticks))
        for series in panel.series:
            look = " ".join(str(value) for _, value in sorted(series.style.items()))
            yield f"- {series.name} [{look}] {', '.join(map(text_of, series.points))}"


def text_of(point: DataPoint) -> str:
    """Write a point to three digits, with its interval and label."""
    ends = "" if point.low == point.high else f" ({point.low:.3g} to {point.high:.3g})"
    return f"{point.x:.3g}:{point.y:.3g}{ends}{point.label and f' {point.label!r}'}"


def claims() -> Iterator[str]:
    """Yield each claim's verdict, up to the last reviewed run."""
    files = [file for file in glob_paths(str(RESULTS / ARCHIVE / "sweeps" / "*.jsonl")) if file.stem <= LAST_JUDGED]
    records = read_all(files)
    for claim in CLAIMS:
        judged = judge(claim, records)
        assert judged.why
        value = f" {judged.estimate.value:.3g}" if judged.estimate else ""
        yield f"{judged.verdict}{value}: {claim.name} ({claim.source})"


def schema() -> Iterator[str]:
    """Yield the JSON Schema of records and comparisons."""
    yield json.dumps(json_schema(), indent=1)


SCHEMA = Path(__file__).parents[2] / "docs" / "record.schema.json"
TEXTS: dict[str | Path, Callable[[], Iterator[str]]] = {
    "charts.txt": charts,
    "tables.md": tables,
    "claims.txt": claims,
    SCHEMA: schema,
}
"""Reviewed texts, by their files."""

if __name__ == "__main__":
    for file, text in TEXTS.items():
        (GOLDEN / file).write_text("\n".join(text()) + "\n")
