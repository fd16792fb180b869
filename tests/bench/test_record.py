"""Records: written whole, read strictly."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from bench.record import Context, Record, RecordError, append, read, read_all
from bench.sweep import Job, run_point
from tests.bench.fakes import case, timed


@pytest.fixture
def record(monkeypatch) -> Record:
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    fake = case(lambda point: timed(lambda: sum(range(2000))))
    return run_point(Job(fake, fake.points("smoke")[0]), Context.here("smoke", run_id="test"))


def test_record_survives_its_file(record, tmp_path):
    """What is read is what was written, and the line has the published names."""
    file = tmp_path / "sweeps" / "test.jsonl"
    append(file, record)
    assert read(file) == [record]
    line = json.loads(file.read_text())
    assert {"schema", "run_id", "case", "scope", "mode", "point", "samples_ns", "metrics", "correctness"} <= line.keys()
    assert {"telemetry", "machine", "git", "command", "status"} <= line.keys()
    assert set(line["metrics"]) == {"env_steps_per_s", "agent_steps_per_s", "ns_per_env_step"}
    assert set(line["metrics"]["env_steps_per_s"]) == {"value", "unit", "direction", "low", "high"}
    assert line["correctness"]["passed"] is True
    assert line["schema"] == 1


def test_metrics_are_the_arithmetic_of_the_samples(record):
    """Rates are work over the median, and the time of a step its inverse."""
    rate, each = record.metrics["env_steps_per_s"], record.metrics["ns_per_env_step"]
    assert rate.value == pytest.approx(1e9 / each.value)
    assert record.metrics["agent_steps_per_s"].value == pytest.approx(10 * rate.value)
    assert rate.low <= rate.value <= rate.high
    assert (rate.direction, each.direction) == ("higher", "lower")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "line 1: colour: Extra inputs are not permitted"),
        ({"scope": "everything"}, "line 1: scope: Input should be"),
        ({"samples_ns": "many"}, "line 1: samples_ns: Input should be a valid list"),
        ({"schema": 99}, r"line 1: schema must be 1 \(got 99\)"),
    ],
)
def test_line_that_breaks_the_schema_is_named(record, tmp_path, change, message):
    """The error names file, line and field."""
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({**json.loads(record.to_line()), **change}) + "\n")
    with pytest.raises(RecordError, match=message) as error:
        read(file)
    assert str(file) in str(error.value)


def test_cut_line_is_reported_and_loses_no_other(record, tmp_path):
    """A sweep killed within a line costs that line alone; what is appended later stands on its own."""
    file = tmp_path / "cut.jsonl"
    append(file, record)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    append(file, record)
    with pytest.raises(RecordError, match="line 2: is cut short"):
        read(file)
    cut: list[str] = []
    assert read_all([tmp_path], cut) == [record, record]
    assert len(cut) == 1


def _append_many(file, line, count):
    for _ in range(count):
        append(file, Record(**{**json.loads(line), "schema_version": 1}))


def test_two_sweeps_may_write_at_once(record, tmp_path):
    """Two processes that append to one file at the same time mix no lines."""
    file = tmp_path / "both.jsonl"
    fields = json.loads(record.to_line())
    del fields["schema"]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(file, json.dumps(fields), 40)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert read(file) == [record] * 80
