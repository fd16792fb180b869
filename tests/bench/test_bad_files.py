"""Damaged and unwritable files give one-line errors.

Nothing else is lost.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import sweep
from bench.core import machine, record
from bench.core.archive import load, read_toml
from bench.core.errors import FileError
from bench.core.point import Metric
from bench.core.record import RESULTS, RecordError, StartTime, append, read_all, read_comparisons
from bench.judge.calibration import CALIBRATIONS, Calibration
from bench.show import sets
from bench.show.sets import Manifest
from bench.workloads.cases import CASES
from tests.bench.builders import OUTPUTS, bench, metric, point
from tests.bench.builders import record as plain_record
from tests.training.builders import limited
from warpdrive_min import files
from warpdrive_min.errors import DiskFullError, WriteError

EACH = {"value": 1.0, "unit": "ns", "direction": "lower", "low": 0.9, "high": 1.1}
NUMBERS = [
    ({"colour": "red"}, "colour: Extra inputs are not permitted"),
    ({"scope": "everything"}, "scope: Input should be"),
    ({"samples_ns": [0]}, "samples_ns.0: "),
    ({"samples_ns": [-5.0]}, "samples_ns.0: "),
    ({"samples_ns": [float("nan")]}, "samples_ns.0: "),
    ({"samples_ns": [float("inf")]}, "samples_ns.0: "),
    ({"samples_ns": [1e308]}, "samples_ns.0: "),
    ({"samples_ns": ["1"]}, "samples_ns.0: "),
    ({"samples_ns": []}, "samples_ns: "),
    ({"samples_ns": None}, "n must be the number of samples_ns"),
    ({"samples_ns": None, "n": None}, "samples_ns must be present"),
    ({"n": 2}, "n must be the number of samples_ns"),
    ({"device_ns": [1.0, 1.0]}, "device_ns must have an entry"),
    ({"device_ns": [-1.0]}, "device_ns.0: "),
    ({"process": [0, 1]}, "process must have an entry"),
    ({"runs_per_sample": 0}, "runs_per_sample: "),
    ({"work_per_run": {"env_steps": 0}}, "work_per_run.env_steps: "),
    ({"work_per_run": {}}, "work_per_run: "),
    ({"work_per_run": {"env_steps": 10**400}}, "work_per_run.env_steps: "),
    ({"started_at": "yesterday"}, "started_at: "),
    ({"started_at": "0001-01-01T00:00:00+05:00"}, "started_at: "),
    ({"duration_s": -604800.0}, "duration_s: "),
    ({"threads": 0}, "threads: "),
    ({"roofline": float("nan")}, "roofline: "),
    ({"metrics": {"a": EACH | {"value": float("nan")}}}, "metrics.a.value: "),
    ({"metrics": {"a": EACH | {"low": 2.0}}}, "a: value must be from low to high"),
    ({"metrics": {"a": EACH | {"value": 0, "low": 0}}}, "a: a rate or time must be above 0"),
    ({"metrics": {}}, "metrics must be present"),
    ({"metrics": {"a": EACH}}, "metrics must have env_steps_per_s"),
    ({"point": point("cpu", 100) | {"n_envs": "many"}}, "point.n_envs: must be of type int"),
    ({"point": point("gpu", 100)}, "point.backend: must be one of"),
    ({"point": {"env": "cartpole"}}, "must be present"),
    ({"point": point("cpu", 100, env="a:B{[[")}, "point: env must be a name"),
    ({"host": {"load_before": -1.0, "pinned_cores": None}}, "host.load_before: "),
    ({"host": {"load_before": 1.0, "pinned_cores": None, "loop_ns": [0, 1]}}, "host.loop_ns.0: "),
    ({"curve": {"env_steps": [1, 2], "seconds": [1.0], "mean_return": {}}}, "curve: env_steps, seconds"),
    ({"telemetry": {"energy_j": float("inf")}}, "telemetry: energy_j must be a finite number"),
    ({"telemetry": {"energy_j": 1.0}}, "telemetry: energy_j needs duration_s"),
    ({"telemetry": {"duration_s": 1e-300}}, "telemetry: duration_s: "),
    ({"telemetry": {"duration_s": 1.0, "energy_j": -5.0}}, "telemetry: energy_j: "),
    ({"telemetry": {"duration_s": 1.0, "throttle_reasons": {"x": None}}}, "telemetry: throttle_reasons.x: "),
    ({"warm_up": {"cap_s": "long"}}, "warm_up: cap_s: "),
    ({"machine": {"gpu": ["a"]}}, "machine: gpu must be"),
    ({"machine": {"cores": True}}, "machine: cores: "),
    ({"machine": {"cores": 10**20}}, "machine: cores: "),
    ({"notes": {"setup_s": "x"}}, "notes: setup_s: "),
    ({"notes": {"bytes_per_run": -5}}, "notes: bytes_per_run: "),
    ({"notes": {"remarks": [1]}}, "notes: remarks.0: "),
    ({"notes": {"ours": {}}}, "notes: ours.point: Field required"),
    ({"notes": {"joules_per_unit": [0.0]}}, "notes: joules_per_unit.0: Input should be greater than 0"),
    ({"notes": {"members": {}}}, "notes: members.env_steps_to_threshold: Field required"),
    ({"notes": {"samples_s": {"a": [1.0]}}}, "notes.samples_s.a must have an entry for each"),
    ({"notes": {"counts": []}}, "notes: counts: "),
    ({"case": "startup", "scope": "startup", "point": {}}, "point."),
    ({"point": point("cpu", 0)}, "point.n_envs: must be from 1 to"),
    ({"point": point("cpu", 10**23)}, "point.n_envs: must be from 1 to"),
    ({"git": {"sha": "--output=/tmp/x"}}, "git: sha must begin with a letter or digit"),
]
"""Changes of a record, and the words of the error."""
COMPARED = [
    ([], "log_ratios: "),
    ([[]], "log_ratios.0: "),
    ([[0.1]], "log_ratios: "),
    ([[float("nan")], [0.1]], "log_ratios.0.0: "),
    ([[1e3], [0.1]], "log_ratios.0.0: "),
]
UNREADABLE = [
    (b"[" * 200_000, "is nested too deeply"),
    (b'{"schema": 2, "notes": ' + b'{"a": ' * 800 + b"1" + b"}" * 801, "Field required"),
    (b'{"schema": ' + b"1" * 5_000 + b"}", "cannot be read (Exceeds the limit"),
    (b'{"schema": 2, "run_id": "\xff"}', "must be UTF-8 (got byte 0xff at 25)"),
    (b'{"schema": 2', "is cut short"),
    (b"[1]", "must be a JSON object (got list)"),
    (b'{"schema": [2]}', "schema must be 1 or 2 (got [2])"),
    (b"{}", "schema must be 1 or 2 (got None)"),
]
"""Lines, and the words of the error."""


def damaged(folder: Path, line: bytes) -> Path:
    """Return a file with a line between two valid records."""
    figures = {"env_steps_per_s": Metric.exact(1e9, "env_steps/s", "higher"), "ns": metric(1.0, unit="ns")}
    fields = {"samples_ns": [1.0, 2.0], "metrics": figures, "case_version": CASES["env_step"].version}
    first, last = (plain_record(point=point(name, 100), **fields).to_line().encode() for name in ("cpu", "host"))
    file = folder / "records.jsonl"
    file.write_bytes(first + line + b"\n" + last)
    return file


def line_of(**changes) -> bytes:
    return json.dumps(json.loads(plain_record().to_line()) | changes).encode()


def test_a_byte_order_mark_is_skipped(tmp_path):
    """A byte order mark at the start of a file is skipped.

    Editors on Windows write one.
    """
    file = tmp_path / "records.jsonl"
    line = plain_record().to_line()
    file.write_bytes(b"\xef\xbb\xbf" + line.encode())
    assert [record.to_line() for record in read_all([file])] == [line]


@pytest.mark.parametrize(("changes", "says"), NUMBERS)
def test_record_with_a_wrong_number_is_left_out(changes, says, tmp_path):
    """A record with an impossible value is skipped and named.

    Strict reading raises the same message.
    """
    file = damaged(tmp_path, line_of(**changes))
    skipped_lines: list[str] = []
    assert len(read_all([file], skipped_lines)) == 2
    (message,) = skipped_lines
    assert message.startswith(f"{file}, line 2: ")
    assert says in message
    assert "(got " in message
    with pytest.raises(RecordError, match="line 2"):
        read_all([file])


@pytest.mark.parametrize("case", ["peer", "peer_learn", "startup", "machine_code"])
def test_record_needs_the_notes_of_its_case(case, tmp_path):
    """A record needs its case's notes.

    Tables and charts of the case read them.
    """
    at = {"peer": "gymnax", "env": "cartpole", "n_envs": 1, "n_agents": 1, "work": "step"} if "peer" in case else {}
    kept = {"notes": {}, "point": at, "metrics": None, "samples_ns": None, "n": None, "scope": "static"}
    kept |= {"case": case, "process": None, "work_per_run": None, "curve": None}
    kept |= {"point": dict(CASES[case].points("smoke")[0])} if case in CASES else {}
    with pytest.raises(RecordError, match=r"line 2: notes\.\w+ must be present"):
        read_all([damaged(tmp_path, line_of(**kept))])


@pytest.mark.parametrize(("log_ratios", "says"), COMPARED)
def test_comparison_with_a_wrong_number_is_left_out(log_ratios, says, tmp_path):
    """A comparison with an impossible number is skipped.

    Its ratio would have no interval, or be infinite.
    """
    fields = {"schema": 2, "id": "b/a", "run_id": "run", "case": "env_step", "a": "a", "b": "b"}
    file = damaged(tmp_path, json.dumps(fields | {"log_ratios": log_ratios}).encode())
    skipped_lines: list[str] = []
    assert read_comparisons([file], skipped_lines) == []
    assert [message.startswith(f"{file}, line 2: {says}") for message in skipped_lines] == [True]


COMMANDS = [
    "table {file}",
    *OUTPUTS,
    "compare {file} {file} --out {out}",
    "gate --baseline {file} --records {file}",
    "claims --records {file} --source README",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition(" {")[0])
def test_command_goes_on_without_what_it_cannot_read(command, tmp_path):
    """Commands skip unreadable lines and report each once."""
    file = damaged(tmp_path, b"\n".join([*(line for line, _ in UNREADABLE), line_of(samples_ns=[-5.0])]))
    (tmp_path / "x.jsonl").mkdir()
    words = command.format(file=tmp_path if "{out}" in command else file, out=tmp_path / "out").split()
    said = bench(*words, exits=(0, 2))
    for number, (_, says) in enumerate([*UNREADABLE, (b"", "samples_ns.0: ")], start=2):
        (told,) = (line for line in said.splitlines() if f"left out: {file}, line {number}: " in line)
        assert says in told


def test_damaged_json_and_toml_files_are_named(tmp_path):
    """Damaged calibrations, manifests and tables are named."""
    file = tmp_path / "file"
    for content in [line for line, _ in UNREADABLE]:
        file.write_bytes(content)
        for kind in (Calibration, Manifest):
            with pytest.raises(FileError, match=f"^{file}: "):
                load(file, kind)
        if not content.startswith(b"[1]") and content != b"{}":
            with pytest.raises(FileError, match=f"^{file}: "):
                read_toml(file)
    with pytest.raises(FileError, match=f"^{tmp_path}: cannot be read"):
        load(tmp_path, Manifest)


def test_all_published_files_are_read():
    """No record, calibration or manifest breaks today's schema."""
    skipped_lines: list[str] = []
    read_all([machine.ROOT / RESULTS], skipped_lines)
    read_comparisons([machine.ROOT / RESULTS], skipped_lines)
    assert skipped_lines == []
    for file in (machine.ROOT / CALIBRATIONS).glob("*.json"):
        load(file, Calibration)
    for file in (machine.ROOT / sets.SETS).glob(f"*/{sets.MANIFEST}"):
        load(file, Manifest)


# ------------------------------------------------------------------ clocks


def test_later_line_of_a_run_is_newer_though_the_clock_was_set_back(tmp_path):
    """Later lines of a run are newer, whatever the system clock."""
    file = tmp_path / "run.jsonl"
    for started_at, ns in (("2026-01-08T00:00:00+00:00", 1.0), ("2026-01-01T00:00:00+00:00", 2.0)):
        append(file, plain_record(samples_ns=[ns], started_at=started_at))
    first, second = read_all([file])
    assert record.oldest_first([second, first]) == [second, first], "both start at one time"
    assert record.oldest_first([first, second])[-1].samples_ns == [2.0]
    future = StartTime(at=datetime(2999, 1, 1, tzinfo=UTC))
    assert 0 <= future.elapsed_s < 60


# ------------------------------------------------------------------ full disks


def test_append_writes_all_though_the_system_takes_little(tmp_path, monkeypatch):
    """`append` continues short writes and undoes failed ones."""
    file, write, taken = tmp_path / "file", os.write, [3, 4, None, 2, OSError(errno.EDQUOT, "quota")]

    def few(descriptor, content):
        match taken.pop(0):
            case OSError() as error:
                raise error
            case n:
                return write(descriptor, content[:n])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", few)
        files.append(file, "one line\n")
        with pytest.raises(DiskFullError, match="needs 9 more bytes; disk quota exceeded: make room"):
            files.append(file, "two line\n")
    assert file.read_text() == "one line\n"


@pytest.mark.parametrize(("free", "says"), [(5, "10 bytes, and 5 are free; no space"), (99, "10 bytes; no space")])
def test_free_bytes_are_told_where_they_explain_the_error(free, says, tmp_path, monkeypatch):
    """Errors report the free bytes only if they are too few."""
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(DiskFullError, match=says), files.explain_full_disk(tmp_path / "file", 10):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_library_that_drops_the_number_of_a_full_disk_is_understood(tmp_path):
    """Pillow's "encoder error -2" is reported as a full disk."""

    def save() -> None:
        with files.replacing(tmp_path / "x") as file:
            file.write_bytes(b"0" * 10)
            raise OSError("encoder error -2 when writing image file")

    with limited(10), pytest.raises(DiskFullError, match="a file may have 10"):
        save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [each for each in COMMANDS if "{out}" in each])
def test_full_disk_is_one_line_and_changes_nothing(command, tmp_path):
    """A full disk gives a one-line error and changes no file."""
    file = damaged(tmp_path, b"")
    out = tmp_path / "out"
    for old in ("report.html", "bencher.json", "asv/benchmarks.json", "figures/x.png", "paper/paper.tex"):
        (out / old).parent.mkdir(parents=True, exist_ok=True)
        (out / old).write_text('{"version": 2}')
    before = {each: each.read_bytes() for each in out.rglob("*") if each.is_file()}
    with limited(100):
        said = bench(*command.format(file=file, out=out).split(), exits=(1, 5))
    assert "a file may have 100 (ulimit -f); file too large: raise the limit" in said
    assert str(out) in said
    after = {each: each.read_bytes() for each in out.rglob("*") if each.is_file() and each.stat().st_size}
    assert after == before


def test_run_that_finds_no_room_ends_with_the_records_before(tmp_path, monkeypatch):
    """A run on a full disk keeps complete lines and exits with 1."""
    found = [plain_record(point=point("cpu", n)) for n in (1, 2, 3)]
    length = len(found[0].to_line())
    monkeypatch.setattr(sweep, "run_points", lambda *_, **__: iter(found))
    with limited(2 * length + length // 2):
        said = bench("run", "--preset", "smoke", "--where", "backend=cpu", "--no-plot", "--out", tmp_path, exits=1)
    assert "more bytes, and a file may have" in said
    (file,) = tmp_path.iterdir()
    assert read_all([file]) == found[:2]


def test_full_standard_output_is_one_line(tmp_path):
    """A full standard output gives a one-line error.

    It may be written only when the command ends.
    """
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "bench", "table", str(damaged(tmp_path, b""))]
        done = subprocess.run(command, cwd=machine.ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "standard output: must be writable (got No space left on device); redirect it to another place"
    ]


# ------------------------------------------------------------------ unwritable folders


@pytest.mark.parametrize(
    "command",
    [
        *(command for command in COMMANDS if "{out}" in command),
        "run --preset smoke --where env=cartpole --where backend=cpu --out {out}",
        "calibrate --preset smoke --out {out}",
        "calibrate --preset smoke --out {free} --records {out}",
        "compare --preset smoke --axis backend=cpu,host --out {out}",
        "gate --baseline HEAD --preset smoke --case env_step --where backend=cpu --out {out}",
        "gate --baseline {file} --records {file} --summary {out}/x.md",
        "gate --baseline {file} --records {file} --junit {out}/x.xml",
        "peers --preset smoke --out {out}",
        "publish --preset smoke --out {out}",
        "claims --run --out {out}",
        "reproduce run --records {file} --out {out}/x.jsonl",
        "static --out {out}",
    ],
)
def test_folder_that_cannot_be_written_is_named_before_anything_is_measured(command, tmp_path, monkeypatch):
    """An unwritable output folder is refused before measuring."""
    monkeypatch.setattr(sweep, "run_points", None)
    file = damaged(tmp_path, b"")
    (tmp_path / "taken").touch()
    before = sorted(tmp_path.rglob("*"))
    words = command.format(file=file, out=tmp_path / "taken" / "in", free=tmp_path / "free").split()
    said = bench(*words, exits=(1, 5))
    option = next(word for word, value in itertools.pairwise(words) if "taken" in value)
    assert f"{option}: must be a f" in said
    assert str(tmp_path / "taken" / "in") in said
    assert "Not a directory" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_writes_name_the_path_not_a_temporary_one(tmp_path):
    """Write errors name the path, not a temporary file."""
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / ("x" * 300)):
        for write in (files.write_atomically, files.append):
            with pytest.raises(WriteError) as caught:
                write(path, "text\n")
            assert files.UNFINISHED not in str(caught.value)
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("sha", "is_fine"), [("v1.0", True), ("my-branch/x", True), ("--output=x", False), ("a b", False)]
)
def test_commit_in_the_environment_is_checked_before_anything_is_measured(sha, is_fine, tmp_path, monkeypatch):
    """An invalid $BENCH_GIT_SHA is refused before measuring.

    Records must be able to hold it, and git must not read it as an option.
    """
    monkeypatch.setenv("BENCH_GIT_SHA", sha)
    conditions = ("--where", "env=cartpole", "--where", "backend=cpu")
    words = ("run", "--preset", "smoke", "--case", "env_step", *conditions, "--no-plot", "--out", tmp_path)
    said = bench(*words, exits=0 if is_fine else 1)
    if is_fine:
        assert {record.git["sha"] for record in read_all([tmp_path])} == {sha}
    else:
        assert "$BENCH_GIT_SHA: must begin with a letter or digit" in said
        assert not list(tmp_path.iterdir())
