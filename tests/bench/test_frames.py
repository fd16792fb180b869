"""Records as a frame: one row each, with typed columns."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas
import pytest

from bench.core.errors import ShowError
from bench.core.record import append
from bench.show.frames import frame_of, records
from tests import tutorial
from tests.bench.builders import metric, point, record, seed_record
from tests.support import run_python

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "results" / "archive.zip"


def test_row_has_what_the_record_has():
    """A row has the record's axes, metrics, checks and machine."""
    sha = "0123456789abcdef0123456789abcdef01234567"
    made = record(
        point=point("host", 100),
        metrics={"ns_per_env_step": metric(5.0, 4.0, 6.0, "ns")},
        git={"sha": sha, "dirty": True},
        notes={"note": "cold"},
        warm_up={"settled": True},
        roofline=0.5,
        started_at="2026-01-01T01:00:00+01:00",
    )
    (row,) = frame_of([made]).to_dict("records")
    assert (row["env"], row["backend"], row["n_envs"], row["exact"]) == ("cartpole", "host", 100, False)
    assert [row[f"ns_per_env_step{end}"] for end in ("", "_low", "_high")] == pytest.approx([5.0, 5.0 / 1.1, 5.5])
    assert row["interval_kind"] == "processes"
    assert (row["mode"], row["threads"], row["n_samples"], row["settled"]) == ("eager", 1, 5, True)
    assert (row["roofline"], row["is_evidence"], row["passed"], row["max_error"]) == (0.5, True, True, 0.0)
    assert (row["machine"], row["gpu"], row["cores"]) == ("nvidia-h200-16-cores", "NVIDIA H200", 16)
    assert (row["commit"], row["dirty"], row["note"], row["taken"]) == (sha, True, "cold", "alone")
    assert row["started_at"] == pandas.Timestamp("2026-01-01", tz="UTC")


def test_what_a_record_lacks_is_missing():
    """Another case's axis is NA in a typed column."""
    failed = record(status="failed", reason="too hot", metrics=None, samples_ns=None, correctness=None)
    frame = frame_of([record(), failed, seed_record(3, 1.5)])
    assert frame["seed"].dtype == "Int64"
    assert frame["seed"].isna().tolist() == [True, True, False]
    assert frame["threshold"].dtype == "float64"
    assert frame["is_evidence"].tolist() == [True, False, True]
    assert frame.query("passed")["case"].tolist() == ["env_step", "learn"]
    assert frame["reason"].dropna().tolist() == ["too hot"]


@pytest.mark.parametrize("changes", [{"point": point("host", 10**20)}, {"started_at": "0001-01-01T00:00:00"}])
def test_value_that_no_type_holds_is_kept(changes):
    """Values that fit no column type do not break the frame."""
    assert len(frame_of([record(**changes)])) == 1


def test_no_record_is_an_empty_frame():
    """A frame without records has the usual columns."""
    frame = frame_of([])
    assert frame.empty
    assert {"run_id", "case", "started_at", "machine", "commit"} <= {*frame.columns}


def test_paths_are_files_folders_patterns_and_the_archive(tmp_path):
    """Paths may be files, folders, patterns or archives."""
    for name in ("a", "b"):
        append(tmp_path / f"{name}.jsonl", record(run_id=name))
    assert records(tmp_path / "a.jsonl")["run_id"].tolist() == ["a"]
    assert records(str(tmp_path))["run_id"].tolist() == ["a", "b"]
    assert records([f"{tmp_path}/*.jsonl", tmp_path / "a.jsonl"])["run_id"].tolist() == ["a", "b", "a"]
    assert len(records(ARCHIVE / "sweeps" / "20261121T091255-a54a37c-*.jsonl")) == 16
    with pytest.raises(ShowError, match=r"c\.jsonl must be an existing file, folder or pattern \(got none\)"):
        records(tmp_path / "c.jsonl")


def test_damaged_line_is_left_out_and_named(tmp_path, capsys):
    """A damaged line is skipped and named."""
    append(tmp_path / "r.jsonl", record())
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write('{"schema": 2, "run')
    assert len(records(tmp_path / "r.jsonl")) == 1
    assert "r.jsonl, line 2" in capsys.readouterr().err


def test_example_of_the_page_runs(monkeypatch, capsys):
    """The notebook block of docs/reporting.md runs."""
    monkeypatch.chdir(ROOT)
    (block,) = (
        each for each in tutorial.blocks(ROOT / "docs" / "reporting.md") if "from bench import records" in each.text
    )
    names = {}
    with mpl.rc_context({"backend": "agg"}):
        exec(block.compiled(), names)
    speedup = names["speedup"]
    assert (speedup["host"] == 1).all()
    assert speedup.loc[("cartpole", 100_000), "pycuda"] > 10
    assert "cartpole" in capsys.readouterr().out


def test_measuring_imports_no_pandas():
    """`bench` and timing processes import no pandas."""
    code = "import sys, bench, bench.core.record, bench.process.worker; print('pandas' in sys.modules)"
    assert run_python("-c", code, cwd=ROOT) == "False\n"
