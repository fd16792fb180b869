"""A gate's report for readers: Markdown for people, JUnit XML for test dashboards, annotations for GitHub."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from bench.stats import median
from bench.verdicts.gate_report import TITLES, Outcome, Report, Row


def render_markdown(report: Report) -> str:
    """Return the report as Markdown."""
    counts = {name: sum(row.outcome == name for row in report.rows) for name in ("ok", "inconclusive", "regression")}
    lines = [
        f"## Gate: {TITLES[report.code]}",
        "",
        f"{len(report.rows)} points against `{report.baseline}` at a threshold of {report.threshold:.2%}: "
        + ", ".join(f"{count} {name}" for name, count in counts.items())
        + ".",
        "",
        *(f"* {kind}: {text}" for kind, text in report.problems),
        *(f"* {note}" for note in report.notes),
    ]
    if report.rows:
        head = ("point", "ns before", "ns now", "slower by (95 % interval)", "regression from", "p (Holm)", "outcome")
        lines += ["", _cells(*head), "|---" * len(head) + "|"]
        lines += [_cells(*_columns(row)) for row in worst_first(report.rows)]
    return "\n".join(lines).rstrip() + "\n"


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows by how bad their outcome is, then by how much slower they became."""
    order: dict[Outcome, int] = {"regression": 0, "inconclusive": 1, "ok": 2}
    return sorted(rows, key=lambda row: (order[row.outcome], -row.ratio.value))


def _columns(row: Row) -> tuple[str, ...]:
    ratio = row.ratio
    return (
        row.pair.name,
        f"{median(row.pair.times_a):.4g}",
        f"{median(row.pair.times_b):.4g}",
        f"{ratio.value - 1:+.2%} ({ratio.low - 1:+.2%} to {ratio.high - 1:+.2%})",
        f"{row.limit:.2%}",
        f"{row.p:.2g}",
        row.outcome,
    )


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def render_junit(report: Report) -> str:
    """Return the report as JUnit XML: a regression is a failure, what does not tell is skipped, the rest an error."""
    suite = ElementTree.Element("testsuite", name="bench gate")
    for row in report.rows:
        each = ElementTree.SubElement(suite, "testcase", classname=f"bench.{row.pair.b.case}", name=row.pair.name)
        if row.outcome != "ok":
            kind = "failure" if row.outcome == "regression" else "skipped"
            ElementTree.SubElement(each, kind, message=row.text)
    for kind, text in report.problems:
        each = ElementTree.SubElement(suite, "testcase", classname="bench.gate", name=f"{kind}: {text.splitlines()[0]}")
        tag = "skipped" if kind == "left out" else "error"
        ElementTree.SubElement(each, tag, message=text)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def render_annotations(report: Report) -> list[str]:
    """Return lines that GitHub shows beside a change: errors for what fails the gate, warnings for the rest."""
    lines = [
        _annotation("error" if row.outcome == "regression" else "warning", row.outcome, f"{row.pair.name}: {row.text}")
        for row in worst_first(report.rows)
        if row.outcome != "ok"
    ]
    return lines + [
        _annotation("warning" if kind == "left out" else "error", kind, text) for kind, text in report.problems
    ]


def _annotation(level: str, title: str, text: str) -> str:
    """Write a workflow command; Source: GitHub's `@actions/core`, whose `command.ts` escapes these characters."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title=bench gate%3A {title}::{escaped}"
