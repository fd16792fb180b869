"""`python -m bench board`: a static site with the history of nightly records."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from markupsafe import Markup

from warpdrive_min.errors import one_line
from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.terminal import echo

from .core.errors import ShowError
from .core.groups import groups_of
from .core.machine import commit_of, kind, slug
from .core.record import Record, oldest_first, read_reporting
from .show.columns import NOTHING, Column, Table
from .show.labels import commit_label, env_name, interval_text, machine_label, number
from .show.page import drawn, page
from .show.records import by_machine
from .show.render import template
from .show.views.history import (
    History,
    Value,
    charts,
    days,
    histories,
    name_of_point,
    point_and_code,
    point_key,
    total_size,
)

OUT: Final = Path("results/board")
INDEX: Final = "index.html"
FEED: Final = "feed.xml"
RUNS: Final = "runs"
HISTORIES: Final = "histories"
PAGE: Final = re.compile(r"[A-Za-z0-9-]+-[0-9a-f]{8}\.html")
"""Name that `page_name` gives."""
RANGES: Final = {"30 days": 30, "90 days": 90, "all": 0}
"""Ranges of a history back from its newest run, days; 0: no limit."""
RECENT: Final = 30.0
"""Age up to which the overview counts a change, days before the machine's newest record."""
MOST_CHANGES: Final = 50
"""Maximum changes of the overview and the feed."""
MOST_ROWS: Final = 200
"""Maximum rows of a table of values; a chart has all."""
SPARK: Final = (120, 24)
"""Width and height of a small chart, px."""
LEAST_HALF: Final = 0.02
"""Minimum half of a small chart's range, as a fraction, so that noise looks small."""


def board(
    records: Annotated[list[Path], typer.Argument(help="Files or folders of records: all nights.")],
    out: Annotated[Path, typer.Option(help="Output folder of the site.")] = OUT,
    repository: Annotated[
        str | None,
        typer.Option(help="Web address of the repository, for links to commits: https://github.com/OWNER/NAME."),
    ] = None,
    most_mb: Annotated[
        int,
        typer.Option(min=1, max=100_000, help="Maximum size of the site, MB; records of the oldest runs go first."),
    ] = 100,
) -> None:
    """Write a static site with the history of each case and environment.

    It marks the runs at which a level changed, and has a feed of them.
    """
    require_writable(out, "--out")
    if repository and not repository.startswith(("https://", "http://")):
        raise ShowError(f"board: --repository must begin with https:// (got {repository}); give its web address")
    files, n_left_out = site(read_reporting(records), (repository or "").rstrip("/"), most_mb * 10**6)
    for name in sorted(files, key=lambda name: name in (INDEX, FEED)):  # these link to the others
        write_atomically(out / name, files[name])
    for old in {*own_pages(out)} - {out / name for name in files}:  # they would count towards the size
        old.unlink()
    size = sum(len(text.encode()) for text in files.values()) / 1e6
    echo(f"board: {out / INDEX} ({len(files)} files, {size:.1f} MB; {n_left_out} runs without their records)")


def site(records: Sequence[Record], repository: str = "", most_bytes: int = 10**8) -> tuple[dict[str, str], int]:
    """Return the files by name, and the number of runs whose page exceeds the limit.

    Equal records give equal files. The newest runs have a page with their records, as many as the limit allows.

    Raises:
        ShowError: No record has a history, or the histories alone exceed the limit.
    """
    machines = {name: (oldest_first(group), histories(group)) for name, group in by_machine(records).items()}
    machines = {name: machine for name, machine in machines.items() if machine[1]}
    if not machines:
        raise ShowError("board: no record is timed, correct and measured alone; run `python -m bench run` first")
    runs = groups_of(oldest_first(records)[::-1], lambda record: record.run_id)
    pages = {run_page_name(run_id): run_page(run[::-1], repository) for run_id, run in runs.items()}
    files = history_pages(machines, repository, pages)
    left = most_bytes - sum(len(text.encode()) for text in files.values())
    if left < 0:
        least = math.ceil((most_bytes - left) / 1e6)
        raise ShowError(f"board: --most-mb must be at least {least} for the histories (got {most_bytes / 1e6:g})")
    fitting = dict[str, str]()
    for name, text in pages.items():
        if (left := left - len(text.encode())) < 0:
            break
        fitting[name] = text
    if len(fitting) < len(pages):
        files = history_pages(machines, repository, fitting)  # links only pages that fit
    return files | fitting, len(pages) - len(fitting)


# ------------------------------------------------------------------ names and addresses


def page_name(folder: str, *words: str) -> str:
    """Return a page's file name, which no text of a record can lead elsewhere."""
    text = " ".join(words)
    return f"{folder}/{slug(text)[:80]}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}.html"


def own_pages(out: Path) -> list[Path]:
    """Return a board's pages in a folder, by their names.

    Other files are the user's.
    """
    pages = (page for folder in (RUNS, HISTORIES) for page in (out / folder).glob("*.html"))
    return [page for page in pages if PAGE.fullmatch(page.name)]


def run_page_name(run_id: str) -> str:
    """Return the file name of a run's page."""
    return page_name(RUNS, run_id)


def history_page_name(record: Record) -> str:
    """Return the file name of the page with a record's history."""
    return page_name(HISTORIES, kind(record.machine), str(record.point.get("env", "")))


def history_link(record: Record) -> str:
    """Return the address of a record's history, seen from the overview."""
    return f"{history_page_name(record)}#{slug(record.case)}"


def commit_link(repository: str, record: Record, before: Value | None = None) -> str:
    """Return the address of a commit, or of all since a value; empty if unknown."""
    last, first = commit_of(record.git), commit_of(before.record.git) if before else None
    if not repository or not last or (before and not first):
        return ""
    return f"{repository}/compare/{first}...{last}" if first else f"{repository}/commit/{last}"


def date_text(record: Record) -> str:
    """Write the start of a record in UTC, to the minute."""
    return f"{record.start.astimezone(UTC):%Y-%m-%d %H:%M}"


def env_of(record: Record) -> str:
    """Name a record's environment."""
    return env_name(str(record.point["env"])) if "env" in record.point else "no environment"


# ------------------------------------------------------------------ pages


def history_pages(
    machines: Mapping[str, tuple[Sequence[Record], Sequence[History]]], repository: str, runs: Collection[str]
) -> dict[str, str]:
    """Return the overview, the feed and a page for each environment of a machine.

    Args:
        machines: Records, oldest first, and histories of each kind of machine.
        repository: Its web address; empty: commits have no links.
        runs: File names of the runs that have a page.
    """

    def link(record: Record) -> str:
        name = run_page_name(record.run_id)
        return f"../{name}#{slug(record.id)}" if name in runs else ""

    every = [history for _, found in machines.values() for history in found]
    files = {
        name: env_page(found, link, repository)
        for name, found in groups_of(every, lambda history: history_page_name(history[-1].record)).items()
    }
    changes = [value for history in every for value in history if value.before]
    changes = sorted(changes, key=lambda value: value.record.start, reverse=True)
    index = page(
        "board.html",
        machines=[{"id": name, **summary(*machine)} for name, machine in machines.items()],
        changes=changes_table(changes[:MOST_CHANGES], repository),
        n_changes=len(changes),
        feed=FEED,
    )
    newest = [records[-1] for records, _ in machines.values()]
    return files | {INDEX: index, FEED: feed(newest, changes[:MOST_CHANGES], repository)}


def env_page(found: Sequence[History], link: Callable[[Record], str], repository: str) -> str:
    """Return the page of an environment: charts and values of each case."""
    last = max((history[-1].record for history in found), key=days)
    by_case = groups_of(found, lambda history: one_line(history[-1].record.case))  # as charts name them
    shown = {slug(chart.name): chart for chart in charts(found, link)}
    return page(
        "board_histories.html",
        {name: drawn(chart) for name, chart in shown.items()},
        env=env_of(last),
        machine=machine_label(last),
        ranges={name: f"{days(last) - length:.3f}" if length else "-Infinity" for name, length in RANGES.items()},
        charts=shown,
        tables={name: values_table(by_case[chart.name], link, repository) for name, chart in shown.items()},
    )


def run_page(records: Sequence[Record], repository: str) -> str:
    """Return the page of a run: its commit and all records, as JSON."""
    rows = [
        {
            "id": slug(record.id),
            "title": f"{record.case}: {env_of(record)}, {name_of_point(record)}",
            "status": "wrong" if record.has_failed and record.status == "ok" else record.status,
            "command": record.command,
            "json": record.to_line(),
        }
        for record in records
    ]
    first = records[0]
    return page(
        "board_run.html",
        run=first.run_id,
        commit=commit_label(first),
        link=commit_link(repository, first),
        machine=machine_label(first),
        start=date_text(first),
        records=rows,
    )


# ------------------------------------------------------------------ tables


def summary(records: Sequence[Record], found: Sequence[History]) -> dict[str, Any]:
    """Return the overview's data for a machine."""
    newest = records[-1]
    recent = {
        id(history): counts
        for history in found
        if (counts := Counter(v.verdict for v in history if v.before and days(newest) - days(v.record) <= RECENT))
    }
    failed = [record for record in records if record.run_id == newest.run_id and record.has_failed]
    verdicts = sum(recent.values(), Counter())
    return {
        "title": machine_label(newest),
        "commit": commit_label(newest),
        "date": date_text(newest),
        "counts": {"worse": 0, "better": 0, **verdicts, "unchanged": len(found) - len(recent)},
        "failed": [f"{each.case}: {env_of(each)}, {name_of_point(each)}: {each.rejection_reason}" for each in failed],
        "table": cases_table(found, recent),
    }


def cases_table(found: Sequence[History], recent: Mapping[int, Counter[str]]) -> Table[Sequence[History]]:
    """Return a row for each environment and case: its largest point, fastest code.

    A row has the histories of a point, the quantity of its case first.
    """

    def extent(same: Sequence[History]) -> tuple[float, float]:
        last = same[0][-1]
        return total_size(last.record), last.figure.value if last.quantity == "speed" else -last.figure.value

    def beside(name: str) -> Callable[[Sequence[History]], str]:
        return lambda row: next((number(h[-1].figure.value) for h in row[1:] if h[-1].quantity == name), NOTHING)

    def changes(row: Sequence[History]) -> str:
        where = row[0][-1].record
        own = [h for h in found if (h[-1].record.case, env_of(h[-1].record)) == (where.case, env_of(where))]
        counts = sum((recent.get(id(history), Counter()) for history in own), Counter())
        return ", ".join(f"{counts[each]} {each}" for each in ("worse", "better") if counts[each]) or NOTHING

    cases = groups_of(found, lambda h: (h[-1].record.point.get("env"), h[-1].record.case)).values()
    points = [groups_of(of_case, lambda h: point_key(h[-1].record)).values() for of_case in cases]
    return Table(
        rows=[max(of_case, key=extent) for of_case in points],
        columns=[
            Column(
                "environment",
                lambda row: env_of(row[0][-1].record),
                link=lambda row: history_link(row[0][-1].record),
                is_choice=True,
            ),
            Column("case", lambda row: row[0][-1].record.case, is_choice=True),
            Column("changes in 30 days", changes, is_choice=True),
            Column("newest", lambda row: number(row[0][-1].figure.value), lambda row: row[0][-1].figure.value),
            Column("unit", lambda row: row[0][-1].unit, is_choice=True),
            Column("90 days", lambda row: spark(row[0])),
            Column("peak memory, bytes", beside("memory"), is_right=True),
            Column("J per million steps", beside("energy"), is_right=True),
            Column("point", lambda row: point_and_code(row[0][-1].record), is_long=True),
        ],
    )


def spark(history: History) -> Markup:
    """Return a small chart of the last 90 days, which needs no script."""
    width, height = SPARK
    last = days(history[-1].record)
    shown = [each for each in history if last - days(each.record) <= RANGES["90 days"]]
    values = [each.figure.value for each in shown]
    first, middle = days(shown[0].record), (max(values) + min(values)) / 2
    half = max(max(values) - middle, LEAST_HALF * middle)
    x = [3 + (width - 6) * (days(each.record) - first) / ((last - first) or 1) for each in shown]
    y = [height / 2 - (height / 2 - 3) * (value - middle) / half for value in values]
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    return Markup(
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path class="line" d="M{path}"/><circle cx="{x[-1]:.1f}" cy="{y[-1]:.1f}" r="2.5"/></svg>'
    )


def changes_table(changes: Sequence[Value], repository: str) -> Table[Value]:
    """Return a row for each change."""
    also: Column[Value] = Column("also changed", lambda value: "; ".join(value.causes), is_long=True)
    return Table(
        rows=changes,
        columns=[
            Column("change", lambda value: value.change, link=lambda value: history_link(value.record)),
            Column("verdict", lambda value: value.verdict, is_choice=True),
            Column("since, UTC", lambda value: date_text(value.record)),
            Column("environment", lambda value: env_of(value.record), is_choice=True),
            Column("case", lambda value: value.record.case, is_choice=True),
            Column(
                "commits",
                commits,
                link=lambda value: commit_link(repository, value.record, value.before),
            ),
            *([also] if any(map(also.text, changes)) else []),
            Column("point", lambda value: point_and_code(value.record), is_long=True),
            Column("machine", lambda value: machine_label(value.record), is_choice=True),
        ],
    )


def commits(value: Value) -> str:
    """Name the last commit on the old level and the first one on the new level."""
    before = f"{commit_label(value.before.record)}.." if value.before else ""
    return before + commit_label(value.record)


def values_table(found: Sequence[History], link: Callable[[Record], str], repository: str) -> Table[Value]:
    """Return the newest values of several histories, newest first."""
    values = sorted((value for history in found for value in history), key=lambda v: v.record.start, reverse=True)
    return Table(
        rows=values[:MOST_ROWS],
        columns=[
            Column("date, UTC", lambda value: date_text(value.record)),
            Column("quantity", lambda value: value.unit, is_choice=True),
            Column("value", lambda value: number(value.figure.value), lambda value: value.figure.value),
            Column("spread", lambda value: interval_text(value.figure), is_right=True),
            Column("change", lambda value: value.change),
            Column("point", lambda value: point_and_code(value.record), is_choice=True),
            Column(
                "commit",
                lambda value: commit_label(value.record),
                link=lambda value: commit_link(repository, value.record),
            ),
            Column("record", lambda value: value.record.run_id, link=lambda value: link(value.record)),
        ],
    )


# ------------------------------------------------------------------ feed


def feed(newest: Sequence[Record], changes: Sequence[Value], repository: str) -> str:
    """Return the changes as an Atom feed (RFC 4287), whose links are relative to it.

    Args:
        newest: Newest record of each machine.
        changes: Entries of the feed.
        repository: Its web address, for the feed's id.
    """

    def element(about: Iterable[str], title: str, updated: datetime, link: str, **more: str) -> dict[str, str]:
        urn = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(map(one_line, ("warpdrive-min board", *about)))).urn
        time = updated.astimezone(UTC).isoformat(timespec="seconds")
        return {"id": urn, "title": one_line(title), "updated": time, "link": link, **more}

    def entry(value: Value) -> dict[str, str]:
        record = value.record
        title = f"{value.verdict}: {value.change}, {env_of(record)}, {record.case}"
        about = (kind(record.machine), value.quantity, str(point_key(record)), record.run_id)
        texts = (machine_label(record), point_and_code(record), f"commits {commits(value)}", *value.causes)
        return element(about, title, record.start, history_link(record), summary=one_line("; ".join(texts)))

    machines = sorted(kind(record.machine) for record in newest)
    title = "warpdrive-min: changes of the nightly benchmarks"
    whole = element([repository, *machines], title, max(record.start for record in newest), INDEX)
    return template("feed.xml", autoescape=True).render(whole=whole, entries=map(entry, changes)) + "\n"
