"""Records: written atomically, read strictly."""

from __future__ import annotations

import json
import math
import shutil
import zipfile
from types import SimpleNamespace

import pytest

from bench.core import machine
from bench.core.archive import glob_paths, with_archived
from bench.core.case import Job
from bench.core.errors import FileError
from bench.core.record import (
    Comparison,
    Context,
    Record,
    RecordError,
    append,
    json_schema,
    merged,
    read_all,
    read_comparisons,
)
from bench.judge.evidence import busy
from bench.process.worker import PROCESSES
from tests.bench.builders import case, timed
from tests.bench.builders import record as plain_record


@pytest.fixture
def record() -> Record:
    fake = case(lambda point: timed(lambda: sum(range(2000))))
    return Job(fake, fake.points("smoke")[0]).run(Context.here("smoke", run_id="test"))


def test_reason_of_any_length_is_short(monkeypatch, tmp_path):
    """A long reason is shortened and names a file with all of it."""
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path))

    def setup(_point):
        raise ValueError("head" + "x" * 100_000 + "tail")

    fake = case(setup)
    reason = Job(fake, fake.points("smoke")[0]).run(Context.here("smoke", run_id="test")).reason
    assert len(reason) < 4000
    assert reason.startswith("ValueError: headx")
    (path,) = tmp_path.iterdir()
    assert str(path) in reason
    assert path.read_text().endswith("xtail")


def test_record_survives_its_file(record, tmp_path):
    """A record is unchanged after writing and reading."""
    file = tmp_path / "sweeps" / "test.jsonl"
    append(file, record)
    assert read_all([file]) == [record]
    line = json.loads(file.read_text())
    assert {"schema", "run_id", "case", "scope", "mode", "point", "samples_ns", "metrics", "correctness"} <= line.keys()
    assert {"telemetry", "machine", "git", "command", "status"} <= line.keys()
    assert set(line["metrics"]) == {"env_steps_per_s", "agent_steps_per_s", "ns_per_env_step"}
    assert set(line["metrics"]["env_steps_per_s"]) == {"value", "unit", "direction", "low", "high"}
    assert line["correctness"]["passed"] is True
    assert line["schema"] == 2
    assert record.host.load_before >= 0
    assert (record.taken, set(record.process)) == ("alone", {0})


@pytest.mark.parametrize(("share", "warns"), [(0.4, True), (0.05, False)])
def test_load_during_the_timing_counts(share, warns, monkeypatch):
    """Load before and after it, such as of concurrent set-ups, does not."""
    monkeypatch.setattr(machine, "OtherProcesses", lambda: SimpleNamespace(busy=lambda min_s: share))
    monkeypatch.setattr("warpdrive_min.cores.load", lambda: 9.0)
    fake = case(lambda point: timed(lambda: sum(range(2000))))
    found = Job(fake, fake.points("smoke")[0]).run(Context.here("smoke", run_id="test"))
    assert found.host.others_busy == share
    assert ("other processes used 40% of our cores" in busy(found)) == warns


def test_line_is_valid_by_the_json_schema(record):
    """A line without a field, or with an unknown one, is not."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    line = json.loads(record.to_line())
    assert validator.is_valid(line)
    assert not validator.is_valid({**line, "colour": "red"})
    assert not validator.is_valid({name: value for name, value in line.items() if name != "command"})


def test_metrics_are_the_arithmetic_of_the_samples(record):
    """Rates are work over the median time, and its inverse."""
    rate, each = record.metrics["env_steps_per_s"], record.metrics["ns_per_env_step"]
    assert rate.value == pytest.approx(1e9 / each.value)
    assert record.metrics["agent_steps_per_s"].value == pytest.approx(10 * rate.value)
    assert rate.low <= rate.value <= rate.high
    assert (rate.direction, each.direction) == ("higher", "lower")


def test_cut_line_is_reported_and_loses_no_other(record, tmp_path):
    """A truncated line is reported; the others are read."""
    file = tmp_path / "cut.jsonl"
    append(file, record)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    with pytest.raises(RecordError, match="line 2: is cut short"):
        read_all([file])
    skipped_lines: list[str] = []
    assert read_all([tmp_path], skipped_lines) == [record]
    assert len(skipped_lines) == 1
    append(file, record)
    assert file.read_bytes() == 2 * whole


def test_cut_line_stays_where_files_cannot_be_locked(record, tmp_path, monkeypatch):
    """Without file locks a truncated line is not removed.

    Another process may be writing it; appended lines are separate.
    """
    file = tmp_path / "cut.jsonl"
    append(file, record)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    monkeypatch.setattr("warpdrive_min.files.lock_of", lambda path, wait: None)
    append(file, record)
    assert read_all([file], skipped_lines := []) == [record, record]
    assert len(skipped_lines) == 1


IN_SCHEMA_2 = ("id", "host", "process", "taken")


def as_schema_1(record, **changes) -> str:
    """Return a record's line in schema 1."""
    fields = {name: value for name, value in json.loads(record.to_line()).items() if name not in IN_SCHEMA_2}
    for when in ("before", "after"):
        del fields["correctness"][when]["oracle"]
    return json.dumps({**fields, "schema": 1, **changes}) + "\n"


def test_record_of_schema_1_is_read_under_one_name(record, tmp_path):
    """A record of schema 1 gets an id from its content."""
    file = tmp_path / "old.jsonl"
    file.write_text(as_schema_1(record) + as_schema_1(record, notes={"taken": "in turns with a peer"}))
    alone, paired = read_all([file])
    assert (alone.id, alone.samples_ns, alone.metrics) == (record.id, record.samples_ns, record.metrics)
    assert (alone.host, alone.process, alone.taken) == (None, None, "alone")
    assert paired.taken == "in turns with a peer"


def side(letter: str, samples_ns: list[float], **changes) -> Record:
    """Return a side of a pair whose runs do one step."""
    work = {"samples_ns": samples_ns, "work_per_run": {"env_steps": 1}}
    return plain_record(run_id=f"run-{letter}", taken="in turns with another side", **work, **changes)


def test_pairs_of_schema_1_are_comparisons_of_one_round(tmp_path):
    """A pair of schema 1 is a comparison of one round.

    Interleaved 2, 4 over 1, 2 ns give 2, without compared processes.
    """
    for letter, samples_ns in (("a", [1.0, 1.0, 2.0, 2.0]), ("b", [1.0, 3.0, 4.0, 4.0])):
        record = side(letter, samples_ns)
        line = as_schema_1(record, notes={"taken": record.taken})
        (tmp_path / f"run-{letter}.jsonl").write_text(line)
    (got,) = read_comparisons([tmp_path])
    assert got.log_ratios == [pytest.approx([math.log(2)] * 2)]
    assert [got.a, got.b] == [record.id for record in read_all([tmp_path])]
    assert got.ratio().value == pytest.approx(2)
    assert not got.ratio().between_processes
    assert "not measured" in got.unread["process_noise"]


def test_comparison_survives_its_file_beside_records(tmp_path):
    """Comparisons and records can share a file."""
    a, b = side("a", [1.0, 1.0]), side("b", [1.0, 1.0])
    comparison = Comparison.of(a, b, [[0.0, 0.2], [0.1, 0.3], [0.2, 0.4]])
    for each in (a, comparison, b):
        append(tmp_path / "run.jsonl", each)
    assert read_all([tmp_path / "run.jsonl"]) == [a, b]
    (tmp_path / "sets" / "one").mkdir(parents=True)
    (tmp_path / "run.jsonl").rename(tmp_path / "sets" / "one" / "records.jsonl")
    assert read_all([tmp_path / "sets"]) == [a, b], "a set lies in a folder of its own"
    assert read_comparisons([tmp_path])[0] == comparison
    ratio = comparison.ratio()
    assert math.log(ratio.value) == pytest.approx(0.2)
    assert (ratio.dof, ratio.between_processes) == (2, True)
    assert comparison.unread == {}


def _append_many(file, line, count):
    for _ in range(count):
        append(file, Record(**json.loads(line)))


def test_two_sweeps_may_write_at_once(record, tmp_path):
    """Two processes can append to one file concurrently."""
    file = tmp_path / "both.jsonl"
    fields = json.loads(record.to_line())
    del fields["schema"]
    writers = [PROCESSES.Process(target=_append_many, args=(file, json.dumps(fields), 40)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert read_all([file]) == [record] * 80


def test_a_zip_archive_is_read_like_a_folder(tmp_path):
    """A zip archive is read like a folder."""
    a, b = plain_record(run_id="a"), plain_record(run_id="b")
    for each in (a, b):
        append(tmp_path / "results" / "sweeps" / f"{each.run_id}.jsonl", each)
    shutil.make_archive(str(tmp_path / "results" / "archive"), "zip", tmp_path / "results")
    archive = tmp_path / "results" / "archive.zip"
    assert read_all([archive]) == read_all([archive / "sweeps"]) == [a, b]
    assert read_all([archive / "sweeps" / "b.jsonl"]) == read_all(glob_paths(f"{archive}/s*/b*.jsonl")) == [b]
    assert with_archived(tmp_path / "results" / "sweeps") == [tmp_path / "results" / "sweeps", archive / "sweeps"]


@pytest.mark.parametrize("inside", ["", "sweeps", "sweeps/a.jsonl"])
def test_an_archive_that_is_damaged_or_lacks_a_file_is_named(tmp_path, inside):
    """A damaged or incomplete archive gives a one-line error.

    It names the requested path.
    """
    (tmp_path / "bad.zip").write_bytes(b"PK no zip")
    with pytest.raises(FileError, match=r"bad\.zip: must be a zip archive"):
        read_all([tmp_path / "bad.zip" / inside])
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as archive:
        archive.writestr("other.jsonl", "")
    if inside:
        with pytest.raises(RecordError, match=r"good\.zip.*no such file or folder"):
            read_all([tmp_path / "good.zip" / inside])


def test_processes_of_one_run_are_one_plain_record():
    """Five records of a run have an interval; others stay apart."""
    five = [plain_record(1e9 / ns, samples_ns=[ns] * 3, process=[0] * 3) for ns in (9.0, 10.0, 10.0, 10.0, 11.0)]
    others = [plain_record(run_id="other"), plain_record(taken="in turns with a peer")]
    first, *rest = merged([*five, *others])
    assert rest == others
    assert (first.n, len({*first.process}), first.spread.kind) == (15, 5, "processes")
    rate = first.figure("env_steps_per_s")
    assert rate.value == pytest.approx(1e8, rel=0.01)
    assert rate.low < 1e8 < rate.high
    assert five[0].figure("env_steps_per_s").kind == "samples"


def test_a_point_counts_on_the_card_with_most_of_its_processes():
    """If several cards have equally many processes, the newest one counts."""

    def on(card, n):
        measured = {
            "samples_ns": [10.0],
            "process": [0],
            "threads": None,
            "machine": {**plain_record().machine, "gpu_uuid_hash": card},
        }
        return [plain_record(**measured) for _ in range(n)]

    for counts, card in (([3, 2], "a"), ([1, 4], "b"), ([2, 2], "b")):
        (point,) = merged([each for name, n in zip("ab", counts, strict=True) for each in on(name, n)])
        assert (point.card, point.n) == (card, max(counts))
