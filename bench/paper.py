"""Figures, LaTeX tables, methods and a manifest for a paper, from records."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import matplotlib as mpl
import typer

from warpdrive_min.files import require_writable, write_atomically
from warpdrive_min.terminal import echo

from .core.archive import read_bytes
from .core.errors import FileError, ShowError, exiting
from .core.machine import slug
from .core.record import Record, files_in, read_reporting
from .core.stats import median
from .show.columns import Column, Table
from .show.documents import TABLES
from .show.labels import commit_label, machine_label, medians, plural
from .show.plots import STYLES, WIDTH_IN, pages, paint, save, width_in
from .show.records import by_machine, evidence_of, latest, measured_alone
from .show.render import escape, floating_figure, floating_table, latex_header, template
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
    with exiting(1, FileError, ShowError):
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
        text = latex_header((), f"{name}/methods") + methods(records)
        written += [*files_of_it, *more_of_it, write_atomically(folder / "methods.tex", text)]
        machines.append(
            {"title": escape(machine_label(records[0])), "folder": name, "figures": shown, "tables": listed}
        )
    delimiters = {
        f"{kind}_{end}_string": bracket
        for kind, brackets in (("variable", ("<<", ">>")), ("block", ("<%", "%>")), ("comment", ("<#", "#>")))
        for end, bracket in zip(("start", "end"), brackets, strict=True)
    }
    document = template("paper.tex", keep_trailing_newline=True, **delimiters).render(machines=machines)
    written.append(write_atomically(out / "paper.tex", document))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}" for path in written]
    return [*written, write_atomically(out / MANIFEST, "\n".join(lines) + "\n")]


# ------------------------------------------------------------------ figures, tables, and all of them


@dataclass(frozen=True, slots=True)
class Float:
    """Figure or table as a document includes and names it."""

    folder: str
    file: str
    label: str
    title: str
    """Title in LaTeX."""


def figures(records: Sequence[Record], folder: Path, machine: str) -> tuple[list[Float], list[Path]]:
    """Draw one machine's figures, each with a LaTeX file that floats it."""
    shown, written = [], []
    for chart in (page for whole in charts(records) for page in pages(whole)):
        pdf = folder / f"{chart.name}.pdf"
        with mpl.rc_context(fname=STYLES / "paper.mplstyle"):
            save(paint(chart), pdf)
        text = floating_figure(
            f"{machine}/figures/{chart.name}",
            pdf.name,
            f"{chart.title}. {chart.caption} {machine_label(records[0])}.",
            f"{machine}:{chart.name}",
            is_narrow=width_in(chart) == WIDTH_IN[1],
        )
        written += [pdf, write_atomically(folder / f"{chart.name}.tex", text)]
        shown.append(Float(f"{machine}/figures", chart.name, f"fig:{machine}:{chart.name}", escape(chart.title)))
    return shown, written


def floating_tables(records: Sequence[Record], folder: Path, machine: str) -> tuple[list[Float], list[Path]]:
    """Write one machine's tables as LaTeX floats."""
    shown, written = [], []
    for name, table in tables(records).items():
        label, caption = f"{machine}:{name}", f"{table.caption} {machine_label(records[0])}."
        text = floating_table(f"{machine}/tables/{name}", replace(table, label=label, caption=caption))
        written.append(write_atomically(folder / f"{name}.tex", text))
        shown.append(Float(f"{machine}/tables", name, f"tab:{label}", escape(name.replace("-", " "))))
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


def methods(records: Sequence[Record]) -> str:
    """Return the paragraph on methods, from the fields of the records."""
    timed = [record for record in records if record.samples_ns]
    sentences = [f"All figures are of {machine_label(records[0])}."]
    if timed:
        counts = [len(record.samples_ns or ()) for record in timed]
        lengths_ms = [median(r.samples_ns or ()) * (r.runs_per_sample or 1) / 1e6 for r in timed]
        settled = sum(bool((record.warm_up or {}).get("settled")) for record in timed)
        caps = ", ".join(sorted({f"{r.warm_up['cap_s']:g} s" for r in timed if r.warm_up and "cap_s" in r.warm_up}))
        replayed = sum(record.mode == "graph" for record in timed)
        sentences += [
            f"{plural(len(timed), 'record is', 'records are')} timed, each by {_range(counts)} samples of "
            f"{_range(lengths_ms)} ms at their median; a sample is a block of runs that ends with one synchronisation.",
            "Before the first sample a point was warmed up until five blocks agreed: "
            f"{_counts((settled, 'did'), (len(timed) - settled, f'were stopped by the cap ({caps})'))}.",
            medians(timed),
            f"{_counts((replayed, 'were replayed from a CUDA graph'), (len(timed) - replayed, 'ran eagerly'))}.",
        ]
    learnt = [record for record in records if record.case == "learn"]
    if learnt:
        n_seeds = len({record.point.get("seed") for record in learnt})
        sentences.append(
            f"Learning was measured in {len(learnt)} whole training runs with {n_seeds} seeds; curves are "
            "interquartile means with 95 % bootstrap intervals over seeds."
        )
    limited = [record for record in records if record.roofline is not None]
    if limited:
        sentences.append(
            f"The share of the machine's limit is known for {len(limited)} records, at most "
            f"{max(record.roofline or 0 for record in limited):.1%}."
        )
    watched = [r for r in records if (r.telemetry or {}).get("energy_j") is not None]
    if watched:
        windows = [record.telemetry["duration_s"] for record in watched if record.telemetry]
        sentences.append(
            f"The energy of the whole card was read for {len(watched)} records over {_range(windows)} s each."
        )
    presets = ", ".join(sorted({record.preset for record in records}))
    commits = ", ".join(sorted({commit_label(record) for record in records}))
    runs = ", ".join(sorted({record.run_id for record in records}))
    sentences += [
        "Tables and figures show the latest record of each point.",
        "Every point was held against its oracle before and after its timing, and all of these passed.",
        f"Presets: {presets}. Commits: {commits}. Runs: {runs}.",
    ]
    return "{\\sloppy\n" + "".join(escape(sentence) + "\n" for sentence in sentences) + "\\par}\n"


def _counts(*counts: tuple[int, str]) -> str:
    return " and ".join(f"{count} {words}" for count, words in counts if count)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
