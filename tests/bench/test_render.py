"""A table reads the same wherever it is printed."""

from __future__ import annotations

import io
import operator
import sys

import pytest
from rich.console import Console

from bench.show import render
from bench.show.columns import Column, Table
from bench.show.records import grouped
from tests.bench.builders import record

TABLE = Table(
    title="[bold]Lengths[/bold]",
    columns=[Column("name\n(in words)", str), Column("length", lambda name: str(len(name)), len)],
    rows=["one [red]", "a_b"],
    caption="Two.",
    label="lengths",
)


def test_markdown_has_a_line_for_each_row() -> None:
    """A Markdown table has one line per row."""
    assert render.markdown(TABLE).splitlines() == [
        "| name (in words) | length |",
        "|---|---|",
        "| one [red] | 9 |",
        "| a_b | 3 |",
    ]


def test_terminal_aligns_numbers_and_prints_brackets_as_they_are() -> None:
    """In a terminal numbers are right-aligned and brackets printed."""
    text = io.StringIO()
    Console(file=text, width=80).print(render.terminal(TABLE))
    title, *_, first, second, _, caption = (line.rstrip() for line in text.getvalue().splitlines())
    assert title == "[bold]Lengths[/bold]"
    assert first.split() == ["one", "[red]", "9"]
    assert first.index("9") == second.index("3")
    assert caption.strip() == "Two."


@pytest.mark.parametrize("width", [40, 60, *range(72, 84), 100, 200])
def test_terminal_leaves_out_columns_that_do_not_fit(width: int) -> None:
    """Lines fit, rates stay whole, and the caption names each missing column."""
    names = ("environment", "backend", "env steps/s", "spread", "agent steps/s", "times the best CPU code", "warning")
    row = ("CartPole", "reference (NumPy, 1 thread)", "21.5 G", "samples 21.2 to 21.9 G", "21.5 G", "12.5", "busy " * 9)
    columns = [
        Column(name, operator.itemgetter(at), is_right=at in range(2, 6), is_long=name == "warning")
        for at, name in enumerate(names)
    ]
    text = io.StringIO()
    Console(file=text, width=width).print(render.terminal(Table(columns=columns, rows=[row], caption="middle " * 30)))
    said = " ".join(text.getvalue().split())
    assert max(map(len, text.getvalue().splitlines())) <= width
    assert ("agent steps/s" in said.partition("Not shown")[0]) == (width == 200)
    assert "21.5 G" in said
    assert said.count("busy") == 9 or "warning" in said.partition("Not shown")[2]
    assert said.count("middle") == 30, "the caption is not cut"
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    heads, _, missing = said.partition(f"Not shown in {width} columns: ")
    assert all(name in missing or name.split()[0] in heads for name in names)


def test_latex_escapes_cells_and_aligns_numbers() -> None:
    """Number columns are right-aligned, letters of LaTeX commands are escaped."""
    text = render.floating_table("folder/lengths", TABLE)
    assert "\\begin{tabular}{@{}lr@{}}" in text
    assert "a\\_b & 3" in text
    assert "\\label{tab:lengths}" in text


class Terminal(io.StringIO):
    """Output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [10, 500])
def test_console_is_as_wide_as_asked(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wider output keeps its width, and a terminal always."""
    monkeypatch.setenv("COLUMNS", "100")
    assert render.console(width).width == max(100, width)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert render.console(width).width == 100


def test_points_that_lack_an_axis_are_grouped_before_its_numbers() -> None:
    """Points without an axis come before its numbers."""
    sizes = [1024, None, 256]
    records = [record(point={"env": "cartpole"} | ({"population": n} if n else {})) for n in sizes]
    assert [key[1] for key in grouped(records, "env", "population")] == ["", 256, 1024]
