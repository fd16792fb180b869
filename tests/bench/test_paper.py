"""What a paper needs: figures, LaTeX tables, the method and a manifest that holds."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.record import Curve, Metric, Record
from bench.views import paper
from tests.bench.test_plots import point, record
from tests.bench.test_report import two_backends


@pytest.fixture(autouse=True)
def without_tex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no PGF, as on a machine without TeX."""
    monkeypatch.setattr(paper, "pgf_engine", lambda: None)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.jsonl"
    file.write_text("".join(each.to_line() for each in two_backends()))
    return file


def learn_record(seed: int, seconds: float | None, after: float) -> Record:
    """Return a seed of CartPole that reaches its threshold after some seconds, if at all."""

    def metric(value: float) -> Metric:
        return Metric(value=value, unit="", direction="lower", low=value, high=value)

    task = {
        "env": "cartpole",
        "backend": "host",
        "n_envs": 4,
        "algorithm": "PPO",
        "learner": "shared",
        "threshold": 9.0,
    }
    reached = {} if seconds is None else {"seconds_to_threshold": seconds, "env_steps_to_threshold": 100 * seconds}
    return record(
        case="learn",
        samples_ns=None,
        point={**task, "seed": seed},
        metrics={name: metric(value) for name, value in {**reached, "return_after": after}.items()},
        curve=Curve(env_steps=[1, 2], seconds=[1.0, 2.0], mean_return={"shared": [1.0, after]}),
    )


def test_manifest_holds_every_file_with_its_hash(records: Path, tmp_path: Path) -> None:
    """Each file below the folder but the manifest is a line of it, the records' copies too, with its SHA-256."""
    out = tmp_path / "paper"
    written = paper.write([records], out)
    lines = dict(reversed(line.split("  ")) for line in (out / paper.MANIFEST).read_text().splitlines())
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert lines.keys() == files.keys() - {paper.MANIFEST}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == digest for name, digest in lines.items())
    assert set(written) == set(files.values())
    assert lines["records/sweep.jsonl"] == hashlib.sha256(records.read_bytes()).hexdigest()
    assert any(name.endswith("figures/throughput.pdf") for name in lines)


def test_paper_is_the_same_for_the_same_records(records: Path, tmp_path: Path) -> None:
    """Two folders of the same records have the same manifest, so the same bytes."""
    one, two = tmp_path / "one", tmp_path / "two"
    paper.write([records], one)
    paper.write([records], two)
    assert (one / paper.MANIFEST).read_text() == (two / paper.MANIFEST).read_text()


def test_texts_are_balanced_latex_with_intervals(records: Path, tmp_path: Path) -> None:
    """Braces and environments close, rows have as many cells as the table has columns, and intervals are there."""
    out = tmp_path / "paper"
    texts = {path.name: path.read_text() for path in paper.write([records], out) if path.suffix == ".tex"}
    assert {"main.tex", "methods.tex", "hardware.tex", "headline.tex", "env-step.tex"} == texts.keys()
    for text in texts.values():
        plain = re.sub(r"\\[{}]", "", text)
        assert plain.count("{") == plain.count("}")
        assert sorted(re.findall(r"\\begin\{(\w+)\}", text)) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    table = texts["env-step.tex"]
    (form,) = re.findall(r"\\begin\{longtable\}\{(\w+)\}", table)
    rows = [row for row in table.splitlines() if row.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(form)}
    assert "180 k to 220 k" in table
    assert "env cartpole" in table
    assert {f"tables/{name}" for name in ("hardware.tex", "headline.tex", "env-step.tex")} <= set(
        re.findall(r"\\input\{(.*?)\}", texts["main.tex"])
    )


def test_escape_leaves_no_special_letter() -> None:
    """Every letter that LaTeX takes for a command is written so that it is printed."""
    assert paper.escape(r"a_b & 5 % \ {x} ~^#$") == (
        r"a\_b \& 5 \% \textbackslash{} \{x\} \textasciitilde{}\textasciicircum{}\#\$"
    )


def test_methods_say_what_the_records_say() -> None:
    """Samples, their length, the warm-up, its cap and the preset are those of the records."""
    warm_ups = [{"settled": True, "cap_s": 2.0}, {"settled": False, "cap_s": 2.0}]
    timed = [
        record(samples_ns=[1e6] * n, runs_per_sample=20, warm_up=warm_up, mode=mode)
        for n, warm_up, mode in zip((20, 60), warm_ups, ("graph", "eager"), strict=True)
    ]
    said = paper.methods(timed)
    assert "2 records are timed, each by 20 to 60 samples of 20 ms at their median" in said
    assert r"1 of 2 did, and the others were stopped by the cap (2 s)" in said
    assert "1 of 2 points were replayed from a CUDA graph" in said
    assert "Presets: default." in said


def test_learning_table_counts_seeds_that_missed_as_slowest() -> None:
    """Of 2, 4 and never the median is 4 and the interval is open; of 2, never and never there is none."""
    often = paper.learning_table([learn_record(0, 2.0, 10), learn_record(1, 4.0, 20), learn_record(2, None, 0)])
    assert "2 of 3 & 400 (200 to not reached) & 4 (2 to not reached)" in often
    seldom = paper.learning_table([learn_record(0, 2.0, 10), learn_record(1, None, 20), learn_record(2, None, 0)])
    assert "1 of 3 & not reached & not reached & 10 (0 to 20)" in seldom


def test_paper_refuses_what_it_cannot_publish(records: Path, tmp_path: Path) -> None:
    """Without evidence, with two files of one name, or with its own copies as sources it writes nothing over."""
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other" / records.name
    empty.write_text(record(status="failed", point=point("cpu", 1)).to_line())
    other.parent.mkdir()
    other.write_text(records.read_text())
    out = tmp_path / "paper"
    with pytest.raises(paper.PaperError, match="no record is measured and right"):
        paper.write([empty], out)
    with pytest.raises(paper.PaperError, match="must differ in name"):
        paper.write([records, other], out)
    own = tmp_path / "again" / "records" / records.name
    own.parent.mkdir(parents=True)
    own.write_text(records.read_text())
    with pytest.raises(paper.PaperError, match="choose another --out"):
        paper.write([own], tmp_path / "again")
    assert not out.exists()


def test_paper_command_says_that_there_is_no_tex(records: Path, tmp_path: Path) -> None:
    """PGF figures are left out with the reason, everything else is written."""
    done = CliRunner().invoke(app, ["paper", str(records), "--out", str(tmp_path / "paper")])
    assert done.exit_code == 0, done.output
    assert "no PGF figures: none of xelatex" in done.output
    assert not list(tmp_path.rglob("*.pgf"))
    assert list(tmp_path.rglob("*.pdf"))
