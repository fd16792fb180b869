"""Figures, LaTeX tables, methods and a manifest for a paper, from records."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import matplotlib as mpl
import typer

from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.terminal import echo

from .core.archive import read_bytes
from .core.errors import ShowError
from .core.machine import slug
from .core.record import Record, files_in, read_reporting
from .core.stats import median
from .show.columns import Column, Table
from .show.documents import TABLES
from .show.labels import commit_label, machine_label, medians
from .show.plots import STYLE, WIDTH_IN, pages, paint, save, width_in
from .show.records import by_machine, evidence_of, latest, measured_alone
from .show.render import escape, floating_figure, floating_table, latex
from .show.sets import published_records
from .show.tables import RUN, every_point, hardware, headline
from .show.views.cases import charts

OUT: Final = Path("results/paper")
MANIFEST: Final = "MANIFEST.sha256"


def paper(
    records: Annotated[list[Path] | None, typer.Argument(help="Files or folders of records.")] = None,
    out: Annotated[Path, typer.Option(help="Output folder; created if missing.")] = OUT,
) -> None:
    """Write figures, LaTeX tables, the method and a manifest for a paper.

    Measures nothing.
    """
    require_writable(out, "--out")
    written = write(records or published_records(), out)
    echo(f"paper: {len(written)} files in {out}; paper.tex includes them all, `sha256sum -c {MANIFEST}` checks them")


def write(sources: Sequence[Path], out: Path) -> list[Path]:
    """Write everything below ``out`` and return the files' paths, the manifest last.

    The same records give the same bytes, except figures of another matplotlib version.

    Args:
        sources: Files or folders of records; copies of the files stand in the manifest.
        out: Folder; files of the same names are replaced.

    Raises:
        ShowError: No record is evidence, two files of records have one name in folders of one name, or ``out`` holds
            the records.
    """
    files = [file for path in sources for file in files_in(path)]
    copies, names = out / "records", Counter(file.name for file in files)
    # Records of sets share one name; their folders are named after machines and commits.
    folders = [Path(str(file)).resolve().parent for file in files]
    places = [
        Path(folder.name if names[file.name] > 1 else "", file.name)
        for file, folder in zip(files, folders, strict=True)
    ]
    if len({*places}) < len(files):
        raise ShowError("paper: files of records must differ in name, or in that of their folder; rename one")
    if any(copies.resolve() in (folder, *folder.parents) for folder in folders):
        raise ShowError(f"paper: records are copied to {copies} (got them from there); choose another --out")
    evidence = measured_alone(evidence_of(read_reporting(sources), "paper"))
    written = [write_atomically(copies / place, read_bytes(file)) for file, place in zip(files, places, strict=True)]
    machines = []
    for name, records in by_machine(evidence).items():
        folder = out / name
        shown, files_of_it = figures(records, folder / "figures", name)
        listed, more_of_it = floating_tables(records, folder / "tables", name)
        written += [
            *files_of_it,
            *more_of_it,
            write_atomically(folder / "methods.tex", methods(records, f"{name}/methods")),
        ]
        machines.append(
            {"title": escape(machine_label(records[0])), "folder": name, "figures": shown, "tables": listed}
        )
    written.append(write_atomically(out / "paper.tex", latex("paper.tex", machines=machines)))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}" for path in written]
    return [*written, write_atomically(out / MANIFEST, "\n".join(lines) + "\n")]


# ------------------------------------------------------------------ figures, tables, and all of them


Float = dict[str, str]
"""Figure or table as `paper.tex` includes it: ``folder``, ``file``, ``label`` and ``title``, in LaTeX."""


def figures(records: Sequence[Record], folder: Path, machine: str) -> tuple[list[Float], list[Path]]:
    """Draw one machine's figures, each with a LaTeX file that floats it."""
    shown, written = [], []
    for chart in (page for whole in charts(records) for page in pages(whole)):
        pdf = folder / f"{chart.name}.pdf"
        with mpl.rc_context(fname=STYLE):
            save(paint(chart), pdf)
        text = floating_figure(
            f"{machine}/figures/{chart.name}",
            pdf.name,
            f"{chart.title}. {chart.caption} {machine_label(records[0])}.",
            f"{machine}:{chart.name}",
            is_narrow=width_in(chart) == WIDTH_IN[1],
        )
        written += [pdf, write_atomically(folder / f"{chart.name}.tex", text)]
        place = {"folder": f"{machine}/figures", "file": chart.name, "label": f"fig:{machine}:{chart.name}"}
        shown.append({**place, "title": escape(chart.title)})
    return shown, written


def floating_tables(records: Sequence[Record], folder: Path, machine: str) -> tuple[list[Float], list[Path]]:
    """Write one machine's tables as LaTeX floats."""
    shown, written = [], []
    for name, table in tables(records).items():
        label, caption = f"{machine}:{name}", f"{table.caption} {machine_label(records[0])}."
        text = floating_table(f"{machine}/tables/{name}", replace(table, label=label, caption=caption))
        written.append(write_atomically(folder / f"{name}.tex", text))
        place = {"folder": f"{machine}/tables", "file": name, "label": f"tab:{label}"}
        shown.append({**place, "title": escape(name.replace("-", " "))})
    return shown, written


def tables(records: Sequence[Record]) -> dict[str, Table[Any]]:
    """Return the tables of one machine by name: hardware, headline, every case."""
    best = headline(records)
    best = replace(best, columns=[column for column in best.columns if column is not RUN])
    made: dict[str, Table[Any]] = {"hardware": hardware_table(records), **({"headline": best} if best.rows else {})}
    for case in sorted({record.case for record in records}):
        name = slug(case)
        while name in made:  # of another case
            name += "-again"
        made[name] = TABLES.get(case, every_point)(latest(r for r in records if r.case == case))
    return made


def hardware_table(records: Sequence[Record]) -> Table[tuple[str, str]]:
    """Return the machine and its versions, where known."""
    fields = [(name, value) for name, value in hardware(records).items() if "hash" not in name and value != "not known"]
    return Table(
        columns=[
            Column("", lambda field: " ".join(ACRONYMS.get(word, word) for word in field[0].split())),
            Column("value", lambda field: field[1]),
        ],
        rows=fields,
        caption="Hardware and software.",
        is_narrow=True,
    )


ACRONYMS: Final = {"gpu": "GPU", "cpu": "CPU", "cuda": "CUDA", "os": "OS", "cpp": "C++"}


# ------------------------------------------------------------------ the method


def methods(records: Sequence[Record], name: str = "methods") -> str:
    """Return the paragraph on methods, from the fields of the records.

    Args:
        records: Records of one machine.
        name: Path of the LaTeX file that is made.
    """
    timed = [record for record in records if record.samples_ns]
    telemetry = [record.telemetry for record in records if record.telemetry]
    return latex(
        "methods.tex",
        name=name,
        packages=(),
        machine=machine_label(records[0]),
        timed=timed,
        counts=[len(record.samples_ns or ()) for record in timed],
        lengths_ms=[median(record.samples_ns or ()) * (record.runs_per_sample or 1) / 1e6 for record in timed],
        n_settled=sum(bool((record.warm_up or {}).get("settled")) for record in timed),
        caps=_listed(f"{each.warm_up['cap_s']:g} s" for each in timed if each.warm_up and "cap_s" in each.warm_up),
        medians=medians(timed),
        n_replayed=sum(record.mode == "graph" for record in timed),
        seeds=[record.point.get("seed") for record in records if record.case == "learn"],
        rooflines=[record.roofline for record in records if record.roofline is not None],
        windows_s=[each["duration_s"] for each in telemetry if each.get("energy_j") is not None],
        presets=_listed(record.preset for record in records),
        commits=_listed(map(commit_label, records)),
        runs=_listed(record.run_id for record in records),
    )


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))
