"""Exports for other tools match the records.

Less is better in all of them.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pandas
import pytest

from bench.core.point import Metric
from bench.core.record import append, read_all
from bench.export import bencher, costs, github_action_benchmark, write_asv
from bench.show.frames import records
from bench.workloads.cases import CASES
from tests.bench.builders import bench, git, metric, point, record
from tests.support import run_python

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "results" / "archive.zip" / "sweeps" / "20261121T091255-a54a37c-75c9.jsonl"
SHA = "0123456789abcdef0123456789abcdef01234567"


def timing(ns: float, backend: str = "host", **changes):
    """Return a CartPole record of ``ns`` per env step, +-10 %."""
    fields = {
        "case_version": CASES["env_step"].version,
        "point": point(backend, 100),
        "metrics": {
            "env_steps_per_s": Metric.exact(1e9 / ns, "env_steps/s", "higher"),
            "ns_per_env_step": metric(ns, 0.9 * ns, 1.1 * ns, "ns"),
        },
        "samples_ns": [90.0 * ns, 100.0 * ns, 110.0 * ns],  # a run is 100 steps
        "git": {"sha": SHA, "dirty": False},
        "started_at": "2026-01-01T00:00:00+00:00",
        "machine": {"gpu": "NVIDIA H200", "cpu": "some CPU", "cores": 16, "python": "3.12.3"},
    }
    return record(**{**fields, **changes})


def shown(*records):
    found, left_out = costs(records)
    assert left_out == []
    return found


NAME = "env_step[env=cartpole,backend=host,n_envs=100,n_agents=1,exact=False]"


def test_github_action_benchmark_gets_times():
    """github-action-benchmark gets name, unit and time of each point."""
    (entry,) = github_action_benchmark(shown(timing(5.0)))
    assert (entry["name"], entry["unit"], entry["value"]) == (NAME, "ns", 5.0)
    assert entry["range"] == "samples 4.5 to 5.5"
    assert SHA in entry["extra"]
    assert all(isinstance(entry[key], str) for key in ("name", "unit", "range", "extra"))


def test_bencher_gets_latency_in_nanoseconds():
    """Seconds become nanoseconds; non-times have their own measures."""
    assert bencher(shown(timing(5.0))) == {NAME: {"latency": {"value": 5.0, "lower_value": 4.5, "upper_value": 5.5}}}
    for unit, measure, value, off in (("s", "latency", 2e9, 0.2e9), ("bytes", "bytes", 2.0, 0.0)):
        metrics = {"cost": metric(2, unit=unit)}
        ((of_point),) = bencher(shown(timing(5.0, metrics=metrics))).values()
        assert of_point == {measure: {"value": value, "lower_value": value - off, "upper_value": value + off}}


def test_newest_of_a_point_is_exported():
    """The newest record of a point is exported."""
    old, new = timing(5.0, started_at="2026-01-01T00:00:00"), timing(6.0, started_at="2026-01-02T00:00:00")
    for order in ((old, new), (new, old)):
        assert [entry["value"] for entry in github_action_benchmark(shown(*order))] == [6.0]


def test_several_machines_do_not_mix():
    """Records of several machines are refused by Bencher's format."""
    other = timing(5.0, machine={"gpu": None, "cpu": "other CPU", "cores": 2, "python": "3.12.3"})
    with pytest.raises(match=r"nvidia-h200-16-cores, other-cpu-2-cores"):
        bencher(shown(timing(5.0), other))


def test_what_is_left_out_is_counted():
    """Wrong, contended, old and rate-only records are skipped and counted."""
    found, left_out = costs(
        [
            timing(5.0),
            timing(5.0, passed=False),
            timing(5.0, telemetry={"contended": True}),
            timing(5.0, case_version=99),
            timing(5.0, metrics={"rate": timing(5.0).metrics["env_steps_per_s"]}),
        ]
    )
    assert len(found) == 1
    assert len(left_out) == 4
    assert all(line.startswith("1 x ") for line in left_out)


def test_asv_reads_what_was_measured(tmp_path):
    """ASV's own classes read the exported results.

    They have values, samples and intervals by machine and commit; missing points stay missing.
    """
    asv_results = pytest.importorskip("asv.results")
    records = [timing(5.0), timing(50.0, "cpu"), timing(4.0, point=point("host", 1000))]
    write_asv(shown(*records), tmp_path)
    (loaded,) = asv_results.iter_results(str(tmp_path))
    assert loaded.commit_hash == SHA
    assert loaded.params["machine"] == "nvidia-h200-16-cores"
    described = json.loads((tmp_path / "benchmarks.json").read_text())["env_step.cartpole.track_time"]
    assert described["params"][:2] == [["'host'", "'cpu'"], ["100", "1000"]]
    name, params = described["name"], described["params"]
    assert loaded.get_result_value(name, params) == [5e-9, 4e-9, pytest.approx(50e-9), None]
    assert described["unit"] == "seconds"
    assert loaded.get_result_samples(name, params)[0] == pytest.approx([4.5e-9, 5e-9, 5.5e-9])
    assert loaded.get_result_stats(name, params)[0]["repeat"] == 3
    assert loaded.benchmark_version[name] == described["version"] == str(CASES["env_step"].version)


def test_asv_takes_what_was_run_once(tmp_path):
    """A figure without samples has a value and no interval."""
    asv_results = pytest.importorskip("asv.results")
    write_asv(shown(timing(5.0, samples_ns=None, scope="memory")), tmp_path)
    (loaded,) = asv_results.iter_results(str(tmp_path))
    (name,) = loaded.get_all_result_keys()
    params = loaded.get_result_params(name)
    assert loaded.get_result_value(name, params) == [5e-9]
    assert loaded.get_result_stats(name, params) == [None]


def test_asv_keeps_what_lies_in_its_folder(tmp_path):
    """An export adds to the benchmarks in ASV's folder.

    They may come from an earlier export or `asv run`.
    """
    pytest.importorskip("asv")
    write_asv(shown(timing(5.0)), tmp_path)
    sampler = {"implementation": "ours", "backend": "cpu", "n_envs": 1, "n_agents": 1, "n_actions": 2}
    write_asv(shown(timing(5.0, case="sampler", case_version=CASES["sampler"].version, point=sampler)), tmp_path)
    described = json.loads((tmp_path / "benchmarks.json").read_text())
    assert set(described) == {"env_step.cartpole.track_time", "sampler.ours.track_time", "version"}


def test_asv_needs_a_commit(tmp_path):
    """Records of uncommitted code are refused."""
    pytest.importorskip("asv")
    with pytest.raises(match="commit, then measure"):
        write_asv(shown(timing(5.0, git={"sha": SHA, "dirty": True})), tmp_path)


def test_asv_publishes_and_finds_a_step(tmp_path):
    """`asv publish` finds the commit that is 12 % slower."""
    pytest.importorskip("asv")

    git(tmp_path, "init", "--quiet")
    records, shas = [], []
    for index in range(8):
        when = f"2026-01-0{index + 1}T00:00:00Z"
        git(tmp_path, "commit", "--allow-empty", "--quiet", "-m", str(index), "--date", when)
        shas.append(git(tmp_path, "rev-parse", "HEAD").strip())
        records.append(timing(5.0 if index < 4 else 5.6, git={"sha": shas[-1], "dirty": False}))
    conf = json.loads((ROOT / "asv.conf.json").read_text())
    (tmp_path / "asv.conf.json").write_text(json.dumps(conf | {"environment_type": "existing"}))
    shutil.copytree(ROOT / conf["benchmark_dir"], tmp_path / conf["benchmark_dir"])
    write_asv(shown(*records), tmp_path / conf["results_dir"])
    run_python("-m", "asv", "publish", cwd=tmp_path)
    site = tmp_path / conf["html_dir"]
    index = json.loads((site / "index.json").read_text())
    assert set(index["revision_to_hash"].values()) == set(shas)
    assert index["params"]["machine"] == ["nvidia-h200-16-cores"]
    regressions = json.loads((site / "regressions.json").read_text())["regressions"]
    assert len(regressions) == 1
    assert "env_step.cartpole.track_time" in regressions[0][0]
    slower = next(number for number, sha in index["revision_to_hash"].items() if sha == shas[4])
    assert str(regressions[0][6][0][1]) == slower


@pytest.mark.parametrize("form", ["asv", "github-action-benchmark", "bencher"])
def test_command_exports_a_shipped_sweep(form, tmp_path):
    """All sixteen points of an H200's sweep are exported."""
    out = tmp_path / "out"
    bench("export", form, SWEEP, "--out", out)
    if form == "asv":
        assert (out / "nvidia-h200-16-cores" / "a54a37c9-records.json").exists()
    else:
        assert len(json.loads(out.read_text())) == len(read_all([SWEEP])) == 16


def test_csv_and_parquet_hold_the_frame(tmp_path):
    """CSV and Parquet have equal values of every record."""
    append(tmp_path / "r.jsonl", timing(5.0))
    append(tmp_path / "r.jsonl", record(status="failed", reason='too hot;\n"100" degrees'))
    frame = records(tmp_path / "r.jsonl")
    readers = {"csv": pandas.read_csv}
    with suppress(ImportError):
        import pyarrow  # noqa: F401  (optional)

        readers["parquet"] = pandas.read_parquet
    for form, read in readers.items():
        bench("export", form, tmp_path / "r.jsonl", "--out", tmp_path / form)
        copy = read(tmp_path / form)
        assert copy.columns.tolist() == frame.columns.tolist()
        for name in ("reason", "n_envs", "ns_per_env_step", "ns_per_env_step_low", "threads", "started_at"):
            pandas.testing.assert_series_equal(copy[name].astype(frame[name].dtype), frame[name])
    if "parquet" not in readers:
        said = bench("export", "parquet", tmp_path / "r.jsonl", "--out", tmp_path / "parquet", exits=1)
        assert "pyarrow is not installed" in said
        assert not (tmp_path / "parquet").exists()


def test_command_says_why_nothing_was_written(tmp_path):
    """Records without evidence are an error and leave no file."""
    append(tmp_path / "r.jsonl", timing(5.0, passed=False))
    said = bench("export", "bencher", tmp_path / "r.jsonl", "--out", tmp_path / "o", exits=1)
    assert "1 x status ok, or not right" in said
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl has no record" in bench(
        "export", "csv", tmp_path / "empty.jsonl", "--out", tmp_path / "o", exits=1
    )
    assert not (tmp_path / "o").exists()
