"""Tables of records: after a sweep, by `bench table`, and in documents."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warpdrive_min.errors import known
from warpdrive_min.files import write_atomically
from warpdrive_min.terminal import Console, echo

from ..core.archive import read_text
from ..core.errors import ShowError
from ..core.machine import kind
from ..core.record import Record, merged, oldest_first, read_reporting, selected
from ..static.records import TABLES as STATIC
from . import render
from .columns import FOOTNOTES, Column, MakeTable, Table
from .frames import existing_files
from .labels import commit_label, number
from .records import latest, measured_alone
from .sets import newest_sets
from .views import peers
from .views.cases import TABLES as OF_CASES
from .views.determinism import determinism_table
from .views.overview import overview as make_overview

COMMAND: Final = re.compile(r"`python -m bench table ([^`]+)`")
FIGURE: Final = re.compile(r"(<!-- figure ([^>]+?) -->)[^<]*(?=<!-- -->)")
NEWEST: Final = "newest"
"""Name of the newest finished sets."""
ROWS: Final = re.compile(rf"(?:^\|.*(?:\n|\Z))+(?:\n[{''.join(FOOTNOTES)}].*(?:\n|\Z))?", re.MULTILINE)
"""Rows of a table, with its footnote."""


TABLES: Final[Mapping[str, MakeTable]] = {
    **OF_CASES,
    **STATIC,
    "peer": peers.peers_table,
    "peer_learn": peers.peer_learning_table,
    "peer_solution": peers.peer_solutions_table,
    "peer_determinism": determinism_table,
}
"""Tables of each case and of peers: terminal, documents and paper."""


def table(
    records: Annotated[list[str], typer.Argument(help="Files, folders or patterns (with *) of records, or newest.")],
    case: Annotated[list[str] | None, typer.Option(help="Only these cases; may be repeated.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Only records with AXIS=VALUE; may be repeated.")] = None,
    on: Annotated[
        str | None, typer.Option(help="Only machines whose name starts with this, such as nvidia-h200.")
    ] = None,
    only_latest: Annotated[bool, typer.Option("--latest", help="Only the latest record of each point.")] = False,
    overview: Annotated[bool, typer.Option(help="README's table: ours beside the best other software.")] = False,
    metric: Annotated[str | None, typer.Option(help="Only this metric of the one selected point.")] = None,
) -> None:
    """Print a table for each case: Markdown in files and pipes.

    On a terminal its lines fit. The name "newest" stands for the newest finished set of each kind of machine.
    """
    asked = (records, case or (), where or (), on or "", only_latest, overview)
    console = render.console()
    if metric is None and console.file.isatty():
        for name, made in selected_tables(*asked).items():
            console.print(render.terminal(replace(made, title=name)))
    else:
        echo(markdown_tables(*asked, metric))


def refresh(documents: Annotated[list[Path], typer.Argument(help="Markdown files to update.")]) -> None:
    """Update tables and figures in Markdown files.

    The files name the commands.
    The line above each table is its `python -m bench table` command. A figure in the text stands between
    ``<!-- figure ARGUMENTS --metric NAME -->`` and ``<!-- -->``, with the arguments of that command.
    """
    for document in documents:
        echo(f"{document}:")
        text = read_text(document)
        new = with_renewed_figures(with_renewed_tables(text, lambda command: echo(f"  {command}")))
        if new != text:
            write_atomically(document, new)
        echo(f"  {'updated' if new != text else 'unchanged'}")


def show(records: Sequence[Record], console: Console) -> None:
    """Print a table for each case."""
    for case, make in TABLES.items():
        measured = merged(record for record in records if record.case == case and record.is_evidence)
        if measured:
            console.print(render.terminal(replace(_complete(make(measured)), title=case)))


def counts(records: Sequence[Record], n_left_out: int = 0) -> str:
    """Return the numbers of measured, failed and skipped records.

    ``n_left_out`` points were skipped without a record.
    """
    n = Counter(record.status for record in records)
    return f"{n['ok']} measured, {n['failed']} failed, {n['skipped'] + n_left_out} skipped"


def markdown(records: Sequence[Record], *, only_latest: bool = False) -> str:
    """Return a Markdown table per case, below its name if there are several.

    The order of measuring does not matter.
    """
    return _joined(_tables(records, only_latest))


def _joined(tables: Mapping[str, Table[Any]]) -> str:
    texts = {name: render.markdown(made) for name, made in tables.items()}
    return "\n\n".join(f"{name}:\n\n{text}" if len(texts) > 1 else text for name, text in texts.items())


def _tables(records: Sequence[Record], only_latest: bool) -> dict[str, Table[Any]]:
    """Return the table of each case that has evidence."""
    tables: dict[str, Table[Any]] = {}
    for case, make in TABLES.items():
        found = [record for record in records if record.case == case and record.is_evidence and record.metrics]
        found = measured_alone(found) or found
        found = latest(found) if only_latest else found
        if found:
            ordered = sorted(oldest_first(found), key=lambda record: str(sorted(record.point.items())))
            tables[case] = _complete(make(ordered))
    return tables


def _complete(table: Table[Any]) -> Table[Any]:
    """Add a column of commits if records are of several."""
    rows = table.rows
    if not all(isinstance(row, Record) for row in rows):
        return table
    commits = [Column("commit", commit_label)] if len({commit_label(row) for row in rows}) > 1 else []
    return replace(table, columns=[*table.columns, *commits])


def markdown_tables(
    records: Sequence[str],
    case: Sequence[str] = (),
    where: Sequence[str] = (),
    on: str = "",
    only_latest: bool = False,
    overview: bool = False,
    metric: str | None = None,
) -> str:
    """Return the selected tables as Markdown, or a metric of the one selected point."""
    if metric is None:
        return _joined(selected_tables(records, case, where, on, only_latest, overview))
    if overview:
        raise ShowError(f"table: --metric {metric} has no effect with --overview; leave it out")
    points = latest(measured_alone(each for each in _chosen(records, case, where, on) if each.is_evidence))
    figures = [figure for record in points if (figure := record.figure(metric))]
    if len(figures) != 1:
        raise ShowError(f"table: --metric {metric} needs one point that has it (got {len(figures)}); add --where")
    return number(figures[0].value)


def selected_tables(
    records: Sequence[str], case: Sequence[str], where: Sequence[str], on: str, only_latest: bool, overview: bool
) -> dict[str, Table[Any]]:
    """Return the tables of the selected records by case.

    Args:
        records: Files, folders and patterns; `NEWEST` for the newest sets.
        case: Names of cases; none: all.
        where: Conditions on points.
        on: Beginning of the names of machines, see `machine.kind`.
        only_latest: Keep only the latest record of each point.
        overview: Return README's table instead.

    Raises:
        ShowError: A file does not exist, or no correct measurement is left to show.
        RecordError: A file of records breaks the schema.
    """
    chosen, names = _chosen(records, case, where, on), " ".join(records)
    if overview:
        if not (made := make_overview(chosen)).rows:
            raise ShowError(f"table: none of {len(chosen)} records of {names} is of the overview; leave out --overview")
        return {"overview": made}
    if not (tables := _tables(chosen, only_latest)):
        reasons = known({f"{each.status} ({each.reason})" if each.reason else each.status for each in chosen})
        raise ShowError(f"table: none of {len(chosen)} records of {names} is measured and correct: {reasons}")
    return tables


def _chosen(records: Sequence[str], cases: Sequence[str], where: Sequence[str], on: str) -> list[Record]:
    names = " ".join(records)
    paths = [path for name in records for path in (newest_sets() if name == NEWEST else existing_files([name]))]
    there = read_reporting(paths)
    if not there:
        raise ShowError(f"table: {names} has no record; name a file or folder that `python -m bench run` wrote")
    chosen = [record for record in selected(there, cases, where) if kind(record.machine).startswith(on)]
    if not chosen:
        options = [*(f"--case {case}" for case in cases), *(f"--where {each}" for each in where)]
        options += [f"--on {on}"] if on else []
        has = f"cases {known({each.case for each in there})} on {known({kind(each.machine) for each in there})}"
        raise ShowError(f"table: none of {len(there)} records of {names} passes {' '.join(options)}; they are of {has}")
    return chosen


def with_renewed_tables(text: str, tell: Callable[[str], None]) -> str:
    """Return a document with the table below each `bench table` command renewed.

    Args:
        text: Markdown.
        tell: Gets each command before it runs.

    Raises:
        ShowError: A command prints nothing, or several tables, or has none below it before the next one.
        RecordError: A file of records breaks the schema.
    """
    before, *parts = COMMAND.split(text)
    made = [before]
    for words, after in zip(parts[::2], parts[1::2], strict=True):
        tell(command := f"`python -m bench table {words}`")
        if not (rows := ROWS.search(after)):
            raise ShowError(f"refresh: {command} must be followed by a table (got none); add its header row")
        shown = markdown_tables(**_arguments(words))
        if (tables := len(ROWS.findall(shown))) > 1:
            raise ShowError(f"refresh: {command} must print one table (got {tables}); keep one case with --case")
        made += [command, after[: rows.start()], shown, "\n", after[rows.end() :]]
    return "".join(made)


def with_renewed_figures(text: str) -> str:
    """Return a document with each figure in its text renewed.

    Raises as `with_renewed_tables`.
    """
    return FIGURE.sub(lambda found: found[1] + markdown_tables(**_arguments(found[2])), text)


def _arguments(words: str) -> dict[str, Any]:
    """Parse the arguments of `python -m bench table`; typer reports errors."""
    app = typer.Typer()
    app.command()(table)
    given = typer.main.get_command(app).make_context("table", shlex.split(words)).params
    return {name: value for name, value in given.items() if value is not None}
