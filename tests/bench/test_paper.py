"""Parts of a paper: figures, LaTeX tables, method, manifest."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import paper
from bench.core.errors import ShowError
from bench.core.record import files_in
from bench.show import plots, render
from bench.show.columns import Column, Table
from bench.show.labels import interval_text
from bench.show.records import derived_metric
from bench.show.sets import published_records
from bench.show.views.cases import charts, learning_table
from tests.bench.builders import bench, point, record, seed_record, two_backends

HARD_WORDS = r"50% of a_b & c#1 {x} $y$ ~z^2 \w <|>"
"""All characters that LaTeX would read as commands."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("records") / "sweep.jsonl"
    file.write_text("".join(each.to_line() for each in two_backends()))
    return file


@pytest.fixture(scope="module")
def written(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a two-backend paper, unchanged by tests."""
    out = tmp_path_factory.mktemp("written") / "paper"
    files = paper.write([records], out)
    assert sorted(files) == sorted(path for path in out.rglob("*") if path.is_file())
    return out


def names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


# ------------------------------------------------------------------ the folder


def test_manifest_holds_every_file_with_its_hash(records: Path, written: Path) -> None:
    """The manifest lists each other file with its SHA-256."""
    lines = dict(reversed(line.split("  ")) for line in (written / paper.MANIFEST).read_text().splitlines())
    files = {path.relative_to(written).as_posix(): path for path in written.rglob("*") if path.is_file()}
    assert lines.keys() == files.keys() - {paper.MANIFEST}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == digest for name, digest in lines.items())
    assert lines["records/sweep.jsonl"] == hashlib.sha256(records.read_bytes()).hexdigest()
    assert any(name.endswith("figures/throughput.pdf") for name in lines)
    if shutil.which("sha256sum") is not None:
        subprocess.run(["sha256sum", "--check", "--strict", paper.MANIFEST], cwd=written, check=True)


def test_paper_is_the_same_for_the_same_records(records: Path, written: Path, tmp_path: Path) -> None:
    """The same records give a bit-identical paper."""
    paper.write([records], tmp_path)
    assert (tmp_path / paper.MANIFEST).read_text() == (written / paper.MANIFEST).read_text()


def test_texts_are_balanced_latex_with_intervals(written: Path) -> None:
    """LaTeX is balanced, rows match columns, intervals are present."""
    texts = {path.relative_to(written).as_posix(): path.read_text() for path in written.rglob("*.tex")}
    machine = "nvidia-h200-16-cores"
    parts = {f"{machine}/methods"}
    parts |= {f"{machine}/tables/{name}" for name in ("hardware", "headline", "env-step")}
    parts |= {f"{machine}/figures/{name}" for name in ("throughput",)}
    assert {"paper.tex", *(f"{part}.tex" for part in parts)} == texts.keys()
    for text in texts.values():
        plain = re.sub(r"\\[{}]", "", text)
        assert plain.count("{") == plain.count("}")
        assert sorted(re.findall(r"\\begin\{([\w*]+)\}", text)) == sorted(re.findall(r"\\end\{([\w*]+)\}", text))
    table = texts[f"{machine}/tables/env-step.tex"]
    (form,) = re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}", table)
    rows = [row for row in table.splitlines() if row.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(form)}
    assert r"interval 181.8 to 220.0\,k" in table
    assert "environment CartPole, agents 1, exact no" in table
    included = re.findall(r"\\import\{(.*?)/\}\{(.*?)\}", texts["paper.tex"])
    assert {f"{folder}/{file}" for folder, file in included} == parts


def test_labels_are_unique_over_machines(records: Path, tmp_path: Path) -> None:
    """Labels are unique across machines, and references resolve."""
    other = tmp_path / "other.jsonl"
    elsewhere = [each.model_copy(update={"machine": {"cpu": "Some CPU", "cores": 2}}) for each in two_backends()]
    other.write_text("".join(each.to_line() for each in elsewhere))
    written = paper.write([records, other], tmp_path / "paper")
    text = "".join(path.read_text() for path in written if path.suffix == ".tex")
    labels, referred = (re.findall(rf"\\{word}\{{(.*?)\}}", text) for word in ("label", "ref"))
    assert len(labels) == len(set(labels)) == 8
    assert sorted(labels) == sorted(referred)


def test_paper_refuses_what_it_cannot_publish(records: Path, tmp_path: Path) -> None:
    """Unpublishable records raise an error without output."""
    empty, other = tmp_path / "empty.jsonl", tmp_path / records.parent.name / records.name
    empty.write_text(record(status="failed", point=point("cpu", 1)).to_line())
    other.parent.mkdir()
    other.write_text(records.read_text())
    out = tmp_path / "paper"
    with pytest.raises(ShowError, match="no record is measured and correct"):
        paper.write([empty], out)
    with pytest.raises(ShowError, match="must differ in name"):
        paper.write([records, other], out)
    own = tmp_path / "again" / "records" / records.name
    own.parent.mkdir(parents=True)
    own.write_text(records.read_text())
    with pytest.raises(ShowError, match="choose another --out"):
        paper.write([own], tmp_path / "again")
    assert not out.exists()


def test_paper_is_made_of_all_that_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the paper uses all published sets.

    Copies keep the names of the files.
    """
    monkeypatch.setattr(paper, "figures", lambda *_: ([], []))  # drawn elsewhere
    bench("paper", "--out", tmp_path)
    copies = {path.relative_to(tmp_path / "records").as_posix() for path in tmp_path.rglob("*.jsonl")}
    files = [file for path in published_records() for file in files_in(path)]
    assert len(copies) == len(files) > 1
    assert {Path(copy).name for copy in copies} == {file.name for file in files}


# ------------------------------------------------------------------ text


def test_escape_leaves_no_special_letter() -> None:
    """Special characters of LaTeX are escaped."""
    assert render.escape(r"a_b & 5 % \ {x} ~^#$ <|>") == (
        r"a\_b \& 5\,\% \textbackslash{} \{x\} \textasciitilde{}\textasciicircum{}\#\$ "
        r"\textless{}\textbar{}\textgreater{}"
    )


@pytest.mark.parametrize(
    ("plain", "want"),
    [
        ("2.4e-07", r"$2.4\cdot10^{-7}$"),
        ("-1.5e+12", r"$-1.5\cdot10^{12}$"),
        ("0.0e+00.", "0."),
        ("2.0e+00", "2.0"),
        ("-115 (-116.5 to -110.7)", "$-$115 ($-$116.5 to $-$110.7)"),
        ("180 k to 2 M, 3 kg", r"180\,k to 2\,M, 3 kg"),
        ("3 x, 100 x 1 agent x 50 steps, x86", r"3\,$\times$, 100\,$\times$ 1 agent\,$\times$ 50 steps, x86"),
        ("20261121T161552-83bad9b-8a02", "20261121T161552-83bad9b-8a02"),
        ("run 4e-75c9, 32-32, pages 2-3", "run 4e-75c9, 32-32, pages 2-3"),
    ],
)
def test_numbers_are_set_as_such(plain: str, want: str) -> None:
    """Powers of ten, signs and units are typeset."""
    assert render.escape(plain) == want


def test_long_table_is_cut_into_parts_that_stand_alone() -> None:
    """A long table is split into parts with group names."""
    columns = [Column("letter", lambda i: "a" if i < 60 else "b"), Column("value", str, float)]
    table = Table(columns=columns, rows=range(120), caption="Rows.", label="r", n_grouping=1)
    text = render.floating_table("m/tables/r", table)
    assert re.findall(r"\\label\{(.*?)\}", text) == ["tab:r", "tab:r-2", "tab:r-3"]
    assert re.findall(r"Part \d of \d", text) == ["Part 1 of 3", "Part 2 of 3", "Part 3 of 3"]
    assert re.findall(r"^([ab ]*) & \d+ ", text, re.MULTILINE).count("") == 120 - 4
    assert re.findall(r"^([ab]) & (\d+) ", text, re.MULTILINE) == [("a", "0"), ("a", "40"), ("b", "60"), ("b", "80")]
    assert text.count(r"\addlinespace") == 1
    assert text.count(render.AS_ABOVE) == 3


def test_methods_say_what_the_records_say() -> None:
    """The method describes the records' samples, warm-up and preset.

    What no record has is left out.
    """
    warm_ups = [{"settled": True, "cap_s": 2.0}, {"settled": False, "cap_s": 2.0}]
    timed = [
        record(samples_ns=[1e6] * n, runs_per_sample=20, warm_up=warm_up, mode=mode)
        for n, warm_up, mode in zip((20, 60), warm_ups, ("graph", "eager"), strict=True)
    ]
    said = paper.methods(timed)
    assert "2 records are timed, each by 20 to 60 samples of 20 ms at their median" in said
    assert "five blocks agreed: 1 did and 1 were stopped by the cap (2 s)." in said
    assert "1 were replayed from a CUDA graph and 1 ran eagerly." in said
    assert "Presets: default. Commits: 0123456. Runs: run." in said
    assert "five blocks agreed: 1 did." in paper.methods(timed[:1])


# ------------------------------------------------------------------ tables


def test_interval_has_the_digits_that_tell_its_ends_apart() -> None:
    """Interval ends use the median's unit and enough digits."""
    spreads = {
        (25.01e6, 24.98e6, 25.04e6): "24.98 to 25.04 M",
        (990e3, 981.25e3, 1001e3): "981.2 to 1001 k",
        (0.5, 0.4, 0.6): "0.4000 to 0.6000",
        (12.8e6, 5.8e3, 15.64e6): "5.8 k to 15.6 M",
        (2.0, 0.1, 3e5): "0.1 to 300 k",
    }
    for figures, text in spreads.items():
        assert interval_text(derived_metric(*figures, None)) == text
        assert interval_text(derived_metric(*figures, "samples")) == f"samples {text}"


def test_learning_table_counts_seeds_that_missed_as_slowest() -> None:
    """Seeds that miss the threshold count as slowest.

    Times 2, 4, never have median 4 and an open interval; 2, never, never have no median.
    """
    (often,) = learning_table([seed_record(0, 2.0, 10), seed_record(1, 4.0, 20), seed_record(2, None, 0)]).cells
    assert list(often[-6:-3]) == ["2 of 3", "400 (200 to not reached)", "4 (2 to not reached)"]
    (seldom,) = learning_table([seed_record(0, 2.0, 10), seed_record(1, None, 20), seed_record(2, None, 0)]).cells
    assert list(seldom[-6:]) == ["1 of 3", "not reached", "not reached", "10 (range 0 to 20)", "0", "0 10 20"]


# ------------------------------------------------------------------ figures


def test_high_figure_is_spread_over_pages() -> None:
    """Twenty panels are spread over several named pages."""
    sizes = [record(point=point("cpu", n, env=f"env-{i}")) for i in range(20) for n in (1, 10)]
    (chart,) = (each for each in charts(sizes) if each.name == "throughput")
    parts = list(plots.pages(chart))
    assert [panel for part in parts for panel in part.panels] == list(chart.panels)
    assert len(chart.panels) == 20
    assert all(part.columns == 3 for part in parts)
    assert all(plots.height_in(part) <= plots.MAX_HEIGHT_IN for part in parts)
    assert all(plots.height_in(part) <= plots.TALLEST * plots.width_in(part) for part in parts)
    assert [part.name for part in parts] == ["throughput-1", "throughput-2", "throughput-3"]
    assert parts[0].title.endswith(", part 1 of 3")


def test_low_figure_stays_as_it_is() -> None:
    """A figure with one panel is not split."""
    (chart,) = charts([record()])
    assert list(plots.pages(chart)) == [chart]


# ------------------------------------------------------------------ TeX


@pytest.mark.parametrize("engine", ["pdflatex", "xelatex"])
def test_document_compiles_and_nothing_sticks_out(tmp_path: Path, engine: str) -> None:
    """The document compiles without errors or overfull lines."""
    if shutil.which(engine) is None:
        pytest.skip(f"{engine} is not installed")
    hard = {"machine": {"gpu": HARD_WORDS, "cores": 2}, "notes": {"note": HARD_WORDS}}
    found = [each.model_copy(update=hard) for each in [*two_backends(), seed_record(0, 2.0, -10)]]
    file, folder = tmp_path / "sweep.jsonl", tmp_path / "paper"
    file.write_text("".join(each.to_line() for each in found))
    paper.write([file], folder)
    done = subprocess.run(
        [engine, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=folder, capture_output=True
    )
    log = (folder / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Output written on paper.pdf" in log
    assert "Overfull" not in log
    assert "throughput.pdf" in log.replace("\n", "")
