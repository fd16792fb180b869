"""`python -m bench claims`: claims of WarpDrive and of us, judged by records."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from warpdrive_min.collector import collection_paused
from warpdrive_min.files import require_writable
from warpdrive_min.terminal import echo

from ...core.groups import groups_of
from ...core.record import SWEEPS, Context, Record, read_results, reporting_skipped_lines
from ...options import refuse_unused
from ...process.sweep import measure_missing
from ...show import render
from ...show.columns import Table
from ...show.sets import past_records, published_records
from ...workloads.shared import availability
from . import claims as judging
from .ledger import CLAIMS, Claim


def claims(
    context: typer.Context,
    records: Annotated[list[Path] | None, typer.Option(help="Files or folders of records.")] = None,
    source: Annotated[str | None, typer.Option(help="Only claims whose source contains this text.")] = None,
    run: Annotated[bool, typer.Option("--run", help="First measure the claims that this machine can measure.")] = False,
    out: Annotated[Path, typer.Option(help="With --run, the folder of the new records.")] = SWEEPS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare all claims about speed and learning with records.

    They are WarpDrive's claims and our own.
    """
    if run:
        require_writable(out, "--out")
    else:
        refuse_unused(context, "without --run", "out")
    if as_json:
        refuse_unused(context, "with --json", "markdown")
    with reporting_skipped_lines() as skipped_lines:
        own = judging.published_files()
        paths = [*published_records(), *past_records()] if records is None else records
        with collection_paused():
            found = {path: read_results([path], skipped_lines) for path in dict.fromkeys((*own, *paths))}
            gc.freeze()  # the records live as long as the process
        ours = judging.own_claims(record for path in own for record in found[path][0])
    shown = [record for path in paths for record in found[path][0]]
    comparisons = [comparison for path in paths for comparison in found[path][1]]
    ledger = [claim for claim in (*CLAIMS, *ours) if source is None or source in claim.source]
    if not ledger:
        sources = ", ".join(dict.fromkeys([claim.source for claim in CLAIMS] + [judging.OURS]))
        raise typer.BadParameter(f"--source {source}: no claim has such a source; choose one of {sources}")
    if run:
        shown = [*shown, *measure_now(ledger, out)]
    judged = judging.judge_all(ledger, shown, comparisons)
    if as_json:
        echo(json.dumps([judging.to_dict(each) for each in judged], indent=2, allow_nan=False))
    elif markdown:
        echo("\n".join(f"* {line}" for line in judging.summary(judged)) + "\n")
        echo(render.markdown(Table(columns=judging.IN_A_DOCUMENT, rows=judged)))
    else:
        console = render.console()
        for name, rows in groups_of(judged, lambda each: each.subject.source).items():
            console.print(render.terminal(Table(title=name, columns=judging.ON_A_TERMINAL, rows=rows)))
        console.print(", ".join(f"{verdict}: {n}" for verdict, n in judging.counts(judged).items()))


def measure_now(claims: Sequence[Claim], out: Path) -> list[Record]:
    """Measure the claims whose backends are available here, into a file.

    Prints the backends that are not available.
    """
    from ...process.local import run_points  # noqa: PLC0415  (imports torch)

    states = availability()
    queries = [claim.query for claim in claims if claim.query is not None]
    needed = [{str(job.point["backend"]) for job in judging.points(*each.filters)} for each in queries]
    lacking = {name for each in needed for name in each if not states[name].available}
    for name in sorted(lacking):
        echo(f"not measured: claims that need backend {name}, which is {states[name]}", err=True)
    here = [each for each, backends in zip(queries, needed, strict=True) if not backends & lacking]
    todo = judging.points(*(each for query in here for each in query.filters))
    context = Context.here("default")
    file = out / f"{context.run_id}.jsonl"
    records = measure_missing(todo, context, file, run_points, partial(echo, err=True))
    echo(
        f"records: {file}" if records else "nothing was measured: this machine has no backend that these claims need",
        err=True,
    )
    return records
