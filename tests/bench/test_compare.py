"""Comparisons of two sides: verdicts, from records or interleaved runs."""

from __future__ import annotations

import json

import pytest

from bench.core.record import append, read_all, read_comparisons
from bench.core.stats import median
from bench.judge.compare import judge, pairs_along_axis, processes_as_rounds
from bench.judge.evidence import Evidence
from bench.judge.pairing import pair_records
from bench.options import GATED, Choice, gated
from bench.workloads.cases import jobs
from tests.bench.builders import bench, pair_of, record

POINT = {"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": 0}


@pytest.mark.parametrize(
    ("times_b", "verdict"),
    [
        ([1.05, 1.051, 1.049, 1.05, 1.0505, 1.0495], "slower"),
        ([0.95, 0.951, 0.949, 0.95, 0.9505, 0.9495], "faster"),
        ([1.001, 1.0, 0.999, 1.0, 1.0005, 0.9995], "same"),
        ([1.2, 0.9, 1.1, 0.8, 1.3, 0.95], "inconclusive"),
    ],
)
def test_verdict_of_each_kind(times_b, verdict):
    """Noise decides whether a difference of 5 % is found.

    It is found at 0.1 % noise, and undecided at 20 %.
    """
    (row,) = judge([pair_of([1.0, 1.0005, 0.9995, 1.0, 1.001, 0.999], times_b, is_interleaved=True, in_rounds=True)])
    assert row.verdict == verdict


def test_verdicts_are_adjusted_for_the_number_of_rows():
    """Holm's correction weakens a row among many."""
    one = pair_of([1.0, 1.0, 1.0, 1.0], [1.01, 1.05, 1.03, 1.06], is_interleaved=True, in_rounds=True)
    none = pair_of([1.0, 1.1, 1.0, 1.1], [1.1, 1.0, 1.1, 1.0], is_interleaved=True, in_rounds=True)
    assert judge([one])[0].verdict == "slower"
    assert judge([one, *[none] * 99])[0].verdict == "inconclusive"


# ------------------------------------------------------------------ records


def test_newest_evidence_of_a_point_counts():
    """The newest valid record of a point counts."""
    old = record(started_at="2026-01-01T00:00:00", run_id="old")
    new = record(started_at="2026-01-02T00:00:00", run_id="new")
    spoilt = record(started_at="2026-01-03T00:00:00", run_id="spoilt", telemetry={"contended": True})
    got = Evidence.of([new, spoilt, old])
    assert [each.run_id for each in got.comparable.values()] == ["new"]
    assert got.left_out == []


@pytest.mark.parametrize("field", ["case_version", "preset", "machine.gpu", "machine.torch"])
def test_records_that_differ_in_what_matters_do_not_pair(field):
    """Records of different conditions pair only if allowed."""
    name, _, part = field.partition(".")
    other = record(
        **{name: {"gpu": "NVIDIA H200", "cores": 16, part: "other"} if part else 7 if "_" in name else "full"}
    )
    sides = [Evidence.of([each]).comparable for each in (record(), other)]
    pairs, refused = pair_records(*sides, [])
    assert pairs == []
    assert f"{field}: " in refused[0]
    pairs, refused = pair_records(*sides, [field])
    assert refused == []
    assert pairs[0].mismatched[0].startswith(f"{field}: ")


def test_pair_of_two_cards_says_so():
    """A pair of two GPUs of one model is marked.

    Two such GPUs may differ more than the sides do.
    """
    cards = [{"gpu": "NVIDIA H200", "cores": 16, "gpu_uuid_hash": card} for card in ("one", "two")]
    first, second = (record(machine=each, threads=None) for each in cards)
    sides = [Evidence.of([each]).comparable for each in (first, second)]
    assert pair_records(*sides, [])[0][0].mismatched == ("card: 'one' against 'two'",)
    assert pair_records(sides[0], sides[0], [])[0][0].mismatched == ()


def test_command_compares_two_files(tmp_path):
    """`bench compare` writes the table and both sides' records."""
    samples, process = [100.0 + each for each in range(20)], [each // 4 for each in range(20)]
    append(tmp_path / "a.jsonl", record(samples_ns=samples, process=process))
    append(tmp_path / "b.jsonl", record(samples_ns=[2 * each for each in samples], process=process, preset="full"))
    arguments = ["compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--out", tmp_path / "out"]
    assert "preset: 'default' against 'full'" in bench(*arguments, exits=4)
    said = bench(*arguments, "--allow-mismatch", "preset")
    assert "slower" in said
    assert "allowed mismatch: preset" in said
    (file,) = (tmp_path / "out").glob("*.json")
    result = json.loads(file.read_text())
    assert result["rows"][0]["ratio"]["value"] == pytest.approx(2)
    assert result["allow_mismatch"] == ["preset"]
    assert len(list((tmp_path / "out").glob("*.jsonl"))) == 3


def test_folders_of_as_many_runs_are_compared_by_run():
    """Equal numbers of runs are compared as rounds."""
    sides = [
        [
            record(run_id=f"{letter}{number}", started_at=f"2026-01-0{number}T00:00:00", samples_ns=[ns * number] * 6)
            for number in (1, 2, 3)
        ]
        for letter, ns in (("a", 100.0), ("b", 200.0))
    ]
    pairs, _ = pair_records(*(Evidence.of(each).comparable for each in sides), [])
    got = processes_as_rounds(pairs[0], *sides)
    assert [len(turns) for turns in got.comparison.log_ratios] == [1, 1, 1]
    assert got.ratio.value == pytest.approx(2)
    assert got.ratio.between_processes
    assert processes_as_rounds(pairs[0], sides[0], sides[1][1:]).comparison is None


def test_one_process_a_side_decides_nothing():
    """Samples that lie far apart are inconclusive, for each is of one process."""
    sides = [[record(samples_ns=[scale * each for each in (99.0, 100.0, 101.0)] * 7)] for scale in (1, 2)]
    (pair,), _ = pair_records(*(Evidence.of(each).comparable for each in sides), [])
    (row,) = judge([processes_as_rounds(pair, *sides)])
    assert (row.verdict, row.estimate.value, row.estimate.kind) == ("inconclusive", pytest.approx(2), "samples")


def test_command_measures_two_values_of_an_axis(tmp_path):
    """`--axis` pairs points that differ in one axis."""
    where = ("--case", "env_step", "--where", "env=cartpole")
    bench("compare", "--axis", "backend=cpu,host", "--preset", "smoke", *where, "--out", tmp_path)
    (file_a,), (file_b,) = tmp_path.glob("*-a.jsonl"), tmp_path.glob("*-b.jsonl")
    a, b = read_all([file_a, file_b])
    assert (a.point["backend"], b.point["backend"]) == ("cpu", "host")
    (comparison,) = read_comparisons([tmp_path])
    assert (comparison.a, comparison.b) == (a.id, b.id)


def test_points_with_an_axis_are_paired_with_those_without():
    """``exact=absent,True`` pairs points without and with the axis."""
    pairs = pairs_along_axis("exact=absent,True", jobs("default", ["case=train", "backend=host"]))
    assert len(pairs) == 2
    assert all({**plain.point, "exact": True} == exact.point and "exact" not in plain.point for plain, exact in pairs)


@pytest.mark.parametrize("row", GATED, ids=" ".join)
def test_points_that_are_gated_are_there(row):
    """Each row of gated.toml has points on the backends it names."""
    found = {job.point["backend"] for job in jobs("default", row)}
    assert found == {condition.removeprefix("backend=") for condition in row if condition.startswith("backend=")}


def test_case_opens_the_gate_for_all_of_its_points(capsys):
    """`--case` gates all points of the case.

    Without it the gate takes only the rows of gated.toml.
    """
    few, all_of_it = (gated(Choice(cases=cases, where=["backend=host"])) for cases in ([], ["env_step"]))
    assert {job.case.name for job in few} == {"env_step", "train", "time_to_solution", "startup"}
    assert len(few) < len(all_of_it)
    assert len(gated(Choice(preset="smoke", cases=[], where=["backend=host"]))) > len(few)


def test_median_of_a_record_is_that_of_its_samples():
    """A record's unit times are sample times over the work."""
    assert median(record(samples_ns=[10.0, 20.0, 60.0], work_per_run={"env_steps": 10}).unit_ns) == 2
    assert pair_of([1.0, 1.0], [3.0, 3.0]).ratio.value == pytest.approx(3)
