"""What a paper needs, made from records: figures, LaTeX tables, a paragraph on the method, and a manifest of it all."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import matplotlib as mpl
import numpy as np
import typer
from matplotlib.figure import Figure

from bench.record import Record, RecordError, read_all
from bench.stats import interquartile_band, interquartile_mean, median, median_interval
from bench.views.figures import backend_label, by_machine, charts, latest
from bench.views.plots import STYLES, paint
from bench.views.report import Column, columns, hardware, headline, title
from bench.views.table import number

RECORDS: Final = Path("results/sweeps")
OUT: Final = Path("results/paper")
MANIFEST: Final = "MANIFEST.sha256"
PGF_ENGINES: Final = ("xelatex", "lualatex", "pdflatex")
"""One of them measures the texts of a PGF figure."""


class PaperError(ValueError):
    """There is nothing that may be published."""


def paper(
    records: Annotated[list[Path] | None, typer.Argument(help="Files or folders of records.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of what is written; made if missing.")] = OUT,
) -> None:
    """Write figures, LaTeX tables, the method and a manifest for a paper; measures nothing."""
    try:
        written = write(records or [RECORDS], out)
    except (RecordError, PaperError) as error:
        typer.echo(str(error))
        raise typer.Exit(1) from error
    if pgf_engine() is None:
        typer.echo(f"no PGF figures: none of {', '.join(PGF_ENGINES)} is on the PATH; install a TeX and run this again")
    typer.echo(f"paper: {len(written)} files in {out}; check them with `sha256sum -c {MANIFEST}` there")


def pgf_engine() -> str | None:
    """Return the TeX that measures the texts of PGF figures, if there is one."""
    return next((engine for engine in PGF_ENGINES if shutil.which(engine)), None)


def write(sources: Sequence[Path], out: Path) -> list[Path]:
    """Write everything below ``out`` and return the files' paths, the manifest last.

    The same records give the same bytes, but for figures of another matplotlib.

    Args:
        sources: Files or folders of records; copies of the files stand in the manifest.
        out: Folder; files of the same names are replaced.

    Raises:
        PaperError: No record is evidence, two files of records have one name, or ``out`` holds the records.
    """
    files = [file for path in sources for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    copies = out / "records"
    if len({file.name for file in files}) < len(files):
        raise PaperError("paper: files of records must differ in name; rename one")
    if any(file.parent.resolve() == copies.resolve() for file in files):
        raise PaperError(f"paper: records are copied to {copies} (got them from there); choose another --out")
    evidence = [record for record in read_all(files, cut=[]) if record.is_evidence]
    if not evidence:
        raise PaperError("paper: no record is measured and right; run `python -m bench run` first")
    copies.mkdir(parents=True, exist_ok=True)
    written = [Path(shutil.copyfile(file, copies / file.name)) for file in files]
    for name, records in by_machine(evidence).items():
        folder = out / name
        written += figures(records, folder / "figures")
        for path, text in texts(records).items():
            written.append(_write(folder / path, text))
        written.append(_write(folder / "main.tex", document(folder, written)))
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}" for path in written]
    return [*written, _write(out / MANIFEST, "\n".join(lines) + "\n")]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------ figures


def figures(records: Sequence[Record], out: Path) -> list[Path]:
    """Draw the figures of one machine in the paper's style, as PDF and, where there is a TeX, as PGF."""
    out.mkdir(parents=True, exist_ok=True)
    engine = pgf_engine()
    written = []
    with mpl.rc_context(fname=STYLES / "paper.mplstyle"):
        for chart in charts(records):
            written += _save(paint(chart), out / chart.name, engine)
    return written


def _save(figure: Figure, stem: Path, engine: str | None) -> list[Path]:
    pdf, pgf = stem.with_suffix(".pdf"), stem.with_suffix(".pgf")
    figure.savefig(pdf, metadata={"CreationDate": None})
    if engine is None:
        return [pdf]
    with mpl.rc_context({"pgf.texsystem": engine, "pgf.rcfonts": False}):
        figure.savefig(pgf)
    return [pdf, pgf]


# ------------------------------------------------------------------ texts


def texts(records: Sequence[Record]) -> dict[str, str]:
    """Return the LaTeX files of one machine, by their paths."""
    made = {"methods.tex": methods(records), "tables/hardware.tex": hardware_table(records)}
    best, told = headline(records)
    if best:
        caption = "Where each environment does the most agent steps; ratios are over the same size in the same run."
        made["tables/headline.tex"] = _table(best, told, caption, "headline")
    for case in sorted({record.case for record in records}):
        found = [record for record in latest(records) if record.case == case]
        label = case.replace("_", "-")
        if case == "learn":
            made[f"tables/{label}.tex"] = learning_table(found)
        else:
            made[f"tables/{label}.tex"] = _table(*_of_case(found), label, is_long=True)
    return made


def _of_case(records: Sequence[Record]) -> tuple[Sequence[Record], list[Column], str]:
    """Return the records of a case, the columns that differ between them, and a caption that says what does not."""
    axes = {axis for record in records for axis in record.point}
    kept, same = [], []
    for column in columns(records):
        if column.name in LEFT_OUT:
            continue
        values = {column.text(record) for record in records}
        if column.name in axes and len(values) == 1:
            same.append(f"{column.name} {values.pop()}")
        else:
            kept.append(column)
    named = [column.name for column in kept]
    # The gate's metric repeats the rate, and every later interval is that of the same samples.
    first = named.index("95 % interval")
    kept = [
        c for i, c in enumerate(kept) if (c.name != "95 % interval" or i == first) and not c.name.startswith("ns per")
    ]
    constant = f" All points have {', '.join(same)}." if same else ""
    caption = f"Case {records[0].case}: medians with their 95 % intervals, the latest record of each point.{constant}"
    return records, kept, caption


LEFT_OUT: Final = {"command", "run", "commit", "samples"}
"""The records in the folder have them."""


def _table(records: Sequence[Record], told: Sequence[Column], caption: str, label: str, is_long: bool = False) -> str:
    return booktabs(
        [column.name for column in told],
        [[column.text(record) for column in told] for record in records],
        caption,
        label,
        right=[column.value is not None for column in told],
        is_long=is_long,
    )


def booktabs(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    label: str,
    *,
    right: Sequence[bool],
    is_long: bool = False,
) -> str:
    """Return a LaTeX table with the rules of booktabs; a long one breaks over pages with longtable.

    Args:
        head: Names of the columns, plain text like all others here.
        rows: The cells.
        caption: What it shows.
        label: Its label after ``tab:``.
        right: Which columns are aligned to the right.
        is_long: It may be longer than a page.
    """
    form = "".join("r" if each else "l" for each in right)
    top = f"\\toprule\n{_cells(head)}\\midrule\n"
    body = "".join(_cells(row) for row in rows)
    title_ = f"\\caption{{{escape(caption)}}}\\label{{tab:{label}}}"
    if is_long:
        repeated = f"{title_}\\\\\n{top}\\endfirsthead\n{top}\\endhead\n\\bottomrule\n\\endfoot\n"
        body = f"\\begin{{longtable}}{{{form}}}\n{repeated}{body}\\end{{longtable}}"
        return f"{{\\scriptsize\\setlength{{\\tabcolsep}}{{3pt}}\n{body}}}\n"
    inner = f"\\begin{{tabular}}{{{form}}}\n{top}{body}\\bottomrule\n\\end{{tabular}}"
    return f"\\begin{{table}}[t]\\centering\n{title_}\n\\resizebox{{\\linewidth}}{{!}}{{%\n{inner}}}\n\\end{{table}}\n"


def _cells(cells: Sequence[str]) -> str:
    return " & ".join(escape(cell) for cell in cells) + r" \\" + "\n"


SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def escape(text: str) -> str:
    """Return plain text as LaTeX prints it."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def hardware_table(records: Sequence[Record]) -> str:
    """Return the machine and its versions."""
    rows = [(name, value) for name, value in hardware(records).items() if "hash" not in name]
    return booktabs(["", "value"], rows, f"Hardware and software: {title(records)}.", "hardware", right=[False, False])


def learning_table(records: Sequence[Record]) -> str:
    """Return the time and steps to the threshold, and the return afterwards, over seeds.

    A seed that misses the threshold counts as one that takes longer than all others.
    """
    axes = ("env", "algorithm", "learner", "n_envs", "backend", "threshold", "precision")
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.point.get(axis, "") for axis in axes), []).append(record)
    rows = []
    for (env, algorithm, learner, n_envs, _, threshold, precision), seeds in groups.items():
        where = ", ".join(part for part in (backend_label(seeds[0]), str(precision)) if part)
        reached = [record for record in seeds if "seconds_to_threshold" in (record.metrics or {})]
        rows.append(
            [
                *(str(env), str(algorithm), str(learner), f"{n_envs:,}", where, f"{threshold:g}"),
                f"{len(reached)} of {len(seeds)}",
                *(_over_seeds(seeds, name) for name in ("env_steps_to_threshold", "seconds_to_threshold")),
                _returns(seeds),
            ]
        )
    head = ["env", "algorithm", "learner", "n envs", "backend", "threshold", "reached", "env steps to it", "s to it"]
    caption = (
        "Learning to a threshold: medians over seeds with their 95 % order-statistic intervals (the range of fewer "
        "than six seeds), and the interquartile mean of the return after training with its 95 % bootstrap interval."
    )
    right = [column not in ("env", "algorithm", "learner", "backend") for column in head]
    return booktabs([*head, "return after"], rows, caption, "learn", right=[*right, True])


def _over_seeds(seeds: Sequence[Record], name: str) -> str:
    found = [record.metrics[name].value if record.metrics and name in record.metrics else math.inf for record in seeds]
    middle, (low, high) = median(found), median_interval(found)
    if math.isinf(middle):
        return "not reached"
    return f"{number(middle)} ({number(low)} to {'not reached' if math.isinf(high) else number(high)})"


def _returns(seeds: Sequence[Record]) -> str:
    values = np.array([record.metrics["return_after"].value for record in seeds if record.metrics])
    low, high = interquartile_band(values)
    return f"{float(interquartile_mean(values)):.4g} ({low:.4g} to {high:.4g})"


def methods(records: Sequence[Record]) -> str:
    """Return the paragraph on how the figures were made, of what the records say."""
    timed = [record for record in records if record.samples_ns]
    sentences = [f"All figures are of {title(records)}."]
    if timed:
        counts = [len(record.samples_ns or ()) for record in timed]
        lengths_ms = [median(r.samples_ns or ()) * (r.runs_per_sample or 1) / 1e6 for r in timed]
        settled = sum(bool((record.warm_up or {}).get("settled")) for record in timed)
        graphs = sum(record.mode == "graph" for record in timed)
        modes = f"{graphs} of {len(timed)} points were replayed from a CUDA graph and the others ran eagerly"
        caps = sorted({f"{r.warm_up['cap_s']:g} s" for r in timed if r.warm_up and "cap_s" in r.warm_up})
        sentences += [
            f"{len(timed)} records are timed, each by {_range(counts)} samples of {_range(lengths_ms)} ms at their "
            "median; a sample is a block of runs that ends with one synchronisation.",
            f"Before the first sample a point was warmed up until five blocks agreed; {settled} of {len(timed)} did, "
            f"and the others were stopped by the cap ({', '.join(caps) or 'none'}).",
            "A figure is the median over samples with its 95 % order-statistic interval.",
            f"{modes}.",
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
    runs = ", ".join(sorted({record.run_id for record in records}))
    sentences += [
        "Every point was held against its oracle before and after its timing, and all of these passed.",
        f"Presets: {presets}. Runs: {runs}.",
    ]
    return "".join(escape(sentence) + "\n" for sentence in sentences)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def document(folder: Path, written: Iterable[Path]) -> str:
    """Return a document that shows all figures, tables and the method, to be compiled in its folder."""
    own = [path.relative_to(folder) for path in written if folder in path.parents]
    drawn = [
        f"\\begin{{figure}}[t]\\includegraphics[width=\\linewidth]{{{path.as_posix()}}}"
        f"\\caption{{{escape(path.stem)}}}\\end{{figure}}"
        for path in own
        if path.suffix == ".pdf"
    ]
    told = [f"\\input{{{path.as_posix()}}}" for path in own if path.suffix == ".tex"]
    head = [
        "\\documentclass{article}",
        "\\usepackage[margin=2cm]{geometry}",
        "\\usepackage{booktabs,graphicx,longtable}",
    ]
    return "\n".join([*head, "\\begin{document}", *told, *drawn, "\\clearpage", "\\end{document}", ""])
