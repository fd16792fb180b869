"""Tables of records: at the end of a sweep, and in documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.record import Record
from bench.views.tables.iterations import learning, peers, scaling, training
from bench.views.tables.simulation import (
    env_steps,
    env_steps_in_documents,
    memories,
    neighbor_searches,
    repeated,
    samplers,
    starts,
)

TABLES: Final[Mapping[str, Callable[[Sequence[Record]], Table]]] = {
    "env_step": env_steps,
    "published": repeated("published: env_step at sizes that others were measured at", "NumPy", "backend", "cpu"),
    "neighbor_search": neighbor_searches,
    "sampler": samplers,
    "graph": repeated("graph: env_step, launch by launch or as a graph", "eager", "mode", "eager"),
    "step": repeated("step: the kernel alone", "NumPy", "backend", "cpu"),
    "reset": repeated("reset: every environment", "NumPy", "backend", "cpu"),
    "return_scan": repeated("return_scan: discounted returns", "torch loop", "implementation", "torch loop"),
    "shuffle": repeated("shuffle: a permutation", "torch.randperm", "implementation", "torch.randperm"),
    "record": repeated("record: a step of a rollout", "NumPy", "backend", "cpu"),
    "launch": repeated("launch: next to nothing", "torch", "implementation", "torch"),
    "rollout": repeated("rollout: policies play", "NumPy", "backend", "cpu"),
    "startup": starts,
    "memory": memories,
    "train": training,
    "scaling": scaling,
    "learn": learning,
    "peer": peers,
}
"""The table of each case."""


def show(records: Sequence[Record], console: Console) -> None:
    """Print a table for each case, with the speed-up over its baseline, which its header names."""
    for case, make in TABLES.items():
        measured = [record for record in records if record.case == case and record.is_evidence]
        if measured:
            console.print(make(measured))
    failed = [record for record in records if record.status == "failed"]
    skipped = [record for record in records if record.status == "skipped"]
    console.print(f"{len(records) - len(failed) - len(skipped)} measured, {len(failed)} failed, {len(skipped)} skipped")


def markdown(records: Sequence[Record]) -> str:
    """Return the records of each case as a Markdown table, for documents; in whatever order they were measured."""
    parts = []
    ordered = sorted(records, key=lambda record: (str(sorted(record.point.items())), record.started_at))
    for case, make in {**TABLES, "env_step": env_steps_in_documents}.items():
        shown = [record for record in ordered if record.case == case and record.is_evidence and record.metrics]
        if shown:
            parts.append(_as_markdown(make(shown)))
    return "\n\n".join(parts)


def _as_markdown(table: Table) -> str:
    columns = [[str(column.header).replace("\n", " "), *map(str, column.cells)] for column in table.columns]
    head, *rows = zip(*columns, strict=True)
    cells = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([cells[0], "|---" * len(head) + "|", *cells[1:]])
