"""Instruction counts: parsing callgrind, parts, and exactness."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from bench.core import machine
from bench.core.record import Context, append, read_all
from bench.judge.gate import report_on
from bench.options import Choice
from bench.process import callgrind as counts
from bench.process import server
from bench.process.callgrind import PATH, Profile
from bench.process.checkouts import checkouts
from bench.process.server import Server
from bench.process.worker import Worker, WorkerError
from bench.static import sides, verdict
from bench.workloads.cases import CASES
from tests.bench.builders import bench
from warpdrive_min.backends import Availability, host
from warpdrive_min.envs import ENVS

PROFILE = """# callgrind format
version: 1
desc: Timerange: Basic block 1 - 2
desc: Trigger: Client Request: 3 0
positions: line
events: Ir
totals: 650

fl=(1) ceval.c
fn=(1) _PyEval_EvalFrameDefault
10 100
+2 20
cfn=(2) _int_malloc.constprop.0
calls=1 7
* 30
cob=(5) kernels.so
cfi=(2) unit.cpp
cfn=(3) wd_launch_step
calls=2 0
-3 500

fn=(2)
7 30

fn=(3)
0 60
cfn=(4) GOMP_parallel
calls=2 0
0 440

fn=(4)
0 40
cfn=(5) wd_launch_step._omp_fn.0
calls=2 0
0 400

fn=(5)
5 300
cfn=(6) sinf
calls=9 0
0 100

fn=(6)
0 100
"""


def test_profile_splits_kernels_from_the_path(tmp_path):
    """A profile separates kernels from the launch path.

    A kernel has its launches' blocks with their callees. Allocators belong to neither.
    """
    file = tmp_path / "counts.1"
    file.write_text(PROFILE)
    profile = Profile.read(file)
    assert profile.label == "3 0"
    assert profile.total == sum(profile.own.values()) == 120 + 30 + 60 + 40 + 300 + 100
    assert profile.parts() == {"step": 400, PATH: 120 + 60 + 40}
    file.write_text(PROFILE.replace("wd_launch_step", "wd_run").replace("wd_run._omp_fn.0", "wd_launch_step"))
    assert Profile.read(file).parts() == {"step": 400, PATH: 120 + 60 + 40}, "without OpenMP"


def test_every_environment_is_stepped_and_reset():
    """Every environment has counts for both kernels, each point once."""
    jobs = counts.points(CASES)
    for case in ("env_step", "reset"):
        assert {job.point.get("env") for job in jobs if job.case.name == case} >= set(ENVS)
    assert {job.point["backend"] for job in jobs} == {"host"}
    names = [f"{job.case.name} {job.point}" for job in jobs]
    assert len(names) == len(set(names))


PROGRAM = """
import ctypes, sys
marks, kernel = map(ctypes.CDLL, sys.argv[1:])
marks.wd_count_start()
for run, n in enumerate((1000, 2000, 3000)):
    marks.wd_count_begin()
    kernel.wd_launch_sum(n)
    marks.wd_count_end(f"0 {run}".encode())
marks.wd_count_stop()
"""
KERNEL = """
__attribute__((noinline)) unsigned blocks(unsigned n) asm("wd_launch_sum._omp_fn.0");
unsigned blocks(unsigned n) { unsigned a = n; while (n) a ^= a * n--; return a; }
extern "C" unsigned wd_launch_sum(unsigned n) { return blocks(n) + 1; }
"""


@pytest.mark.skipif(not counts.availability().available, reason=str(counts.availability()))
def test_callgrind_counts_a_kernel_exactly(tmp_path):
    """Each added loop pass adds exactly its instructions."""
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    compiler = counts.cuda_c.cpu_compiler()
    library = tmp_path / "kernel.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "kernel.cpp"], check=True)
    words = [
        *counts.callgrind(tmp_path),
        sys.executable,
        "-I",
        "-S",
        "-c",
        PROGRAM,
        counts.client_requests()._name,
        library,
    ]
    subprocess.run(words, check=True, capture_output=True)
    profiles = {each.label: each.parts() for each in map(Profile.read, tmp_path.glob("counts.*"))}
    first, second, third = (profiles[f"0 {run}"]["sum"] for run in range(3))
    assert third - second == second - first
    assert second - first >= 3000


@pytest.mark.skipif(not counts.availability().available, reason=str(counts.availability()))
def test_broken_points_do_not_stop_the_others(monkeypatch):
    """A failed set-up is reported, and other points are counted."""
    for name in ("freeze", "disable"):
        monkeypatch.setattr(server.gc, name, lambda: None)
    monkeypatch.setattr(host, "TARGET", host.TARGET)
    monkeypatch.setattr(server.torch, "set_num_threads", lambda n: None)
    point = {"implementation": "ours", "backend": "host", "mode": "eager"}
    answers = Server(CASES).count([("launch", {**point, "backend": "absent"}), ("abacus", {}), ("launch", point)])[
        "points"
    ]
    assert answers[0]["error"] == "KeyError"
    assert answers[1] == {"error": "Skip", "message": "this code has no case abacus"}
    assert answers[2]["runs"] == counts.COUNTED_RUNS


@pytest.mark.nightly
@pytest.mark.skipif(not counts.availability().available, reason=str(counts.availability()))
def test_older_commit_counts_our_points():
    """An older commit counts today's points."""
    commit = "7b60f33"
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=machine.ROOT, check=False).returncode:
        pytest.skip(f"{commit} is not in this clone")
    job = next(job for job in counts.points(CASES) if job.case.name == "reset")
    with checkouts(commit) as (tree,):
        (count,) = counts.count([job], tree)
    assert not count.error, count.reason
    assert count.parts.keys() == {"reset", PATH}


def test_code_of_another_folder_is_refused(monkeypatch):
    """Counts refuse code of another folder."""

    class Elsewhere(Worker):
        def __init__(self):
            pass

        def __exit__(self, *_):
            pass

        def send(self, **_):
            pass

        def receive(self, method):
            return {"root": "/elsewhere"}

    monkeypatch.setattr(Worker, "start", lambda *_, **__: Elsewhere())
    with pytest.raises(WorkerError, match="the code of /elsewhere"):
        counts.count([], machine.ROOT)


SLOW = """
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[-1]))
points = json.loads(connection.recv_bytes())["arguments"]["points"]
for _ in points:
    print("noise\\n" + sys.argv[1], file=sys.stderr, flush=True)
answers = [{"error": "Skip", "message": "x"}] * len(points)
connection.send_bytes(json.dumps({"root": sys.argv[2], "points": answers}).encode())
"""


def test_count_prints_each_point(monkeypatch, capfd):
    """The command prints each part that it sets up, as counting takes minutes."""
    words = [sys.executable, "-c", SLOW, counts.SET_UP, str(machine.ROOT)]
    monkeypatch.setattr(counts, "_process", lambda *_: Worker.start("x", words, env=os.environ, is_quiet=True))
    found = counts.count(sides.counted_jobs(["pendulum"]), machine.ROOT)
    first, *lines = capfd.readouterr().err.splitlines()
    assert first == f"counts CPU instructions of {len(found)} parts under Valgrind, about 48 s"
    assert all(re.fullmatch(r".*: set up under Valgrind, about \d+ s left", line) for line in lines)
    assert [line.partition(":")[0] for line in lines] == ["1/2 pendulum env_step", "2/2 pendulum reset"]


# ------------------------------------------------------------------ records

CONTEXT = Context("a run", "default", {}, {}, "")
COUNTED = counts.Count(parts={"step": 9500.0, PATH: 70_000.0}, work={"env_steps": 256})


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Fake the counts of all points; return the counted jobs."""
    times = []
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path))
    monkeypatch.setattr(counts, "availability", lambda: Availability(True, "faked"))
    monkeypatch.setattr(counts, "tools", lambda: ("a compiler",))
    monkeypatch.setattr(counts, "count", lambda jobs, root: times.append(jobs) or [COUNTED] * len(jobs))
    return times


def test_records_have_a_part_each(counted):
    """Each kernel and the path have a record with an exact count."""
    jobs = sides.counted_jobs(["pendulum"])
    records = sides.count_instructions(jobs, CONTEXT)
    assert [record.point["kernel"] for record in records] == ["step", PATH] * len(jobs)
    assert all(record.is_evidence and record.scope == "static" for record in records)
    metric = records[0].metrics["instructions"]
    assert (metric.value, metric.low, metric.high, metric.direction) == (9500, 9500, 9500, "lower")
    assert "--env pendulum" in records[0].command
    again = sides.count_instructions(jobs, CONTEXT)
    assert [record.metrics for record in again] == [record.metrics for record in records]
    assert len(counted) == 1, "the same code by the same tools is not counted again"


def test_other_code_is_counted_anew(counted, tmp_path):
    """Changed or added files are counted again."""
    for text in ("one", "two", "one"):
        (tmp_path / "tree" / "envs").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / "envs" / "kernel.cu").write_text(text)
        counts.cached_counts([], tmp_path / "tree")
    assert len(counted) == 2


def test_what_cannot_be_counted_says_why(counted, monkeypatch):
    """A point that cannot be counted has a reason."""
    jobs = sides.counted_jobs(["pendulum"])[:1]
    broken = counts.Count(error="KeyError", reason="'torque'")
    monkeypatch.setattr(counts, "count", lambda *_: [broken])
    for _ in range(2):  # it is not cached
        (record,) = sides.count_instructions(jobs, CONTEXT)
        assert (record.status, record.reason) == ("failed", "KeyError: 'torque'")

    def too_old(*_):
        raise WorkerError("Skip", "this code builds its kernels for this processor alone")

    monkeypatch.setattr(counts, "count", too_old)
    (record,) = sides.count_instructions(jobs, CONTEXT)
    assert (record.status, record.point["program"]) == ("skipped", "pendulum")
    monkeypatch.setattr(counts, "availability", lambda: Availability(False, "found no Valgrind", counts.INSTALL))
    (record,) = sides.count_instructions(jobs, CONTEXT)
    assert "install Valgrind" in record.reason


def test_command_prints_and_keeps_counts(counted, tmp_path):
    """`bench static --backend host` prints and writes counts.

    It compiles nothing for a GPU.
    """
    said = bench("static", "--backend", "host", "--env", "pendulum", "--out", tmp_path)
    assert "instructions of a run" in said
    assert "70 k" in said
    assert "machine code" not in said
    (file,) = tmp_path.glob("*.jsonl")
    assert {record.case for record in read_all([file])} == {"instructions"}


def test_gate_of_counts(counted, monkeypatch, tmp_path):
    """Counts beyond the threshold are worse or better."""
    grown = {"step": 1.0005, "sample": 1.01, "reset": 1.05, PATH: 0.9}

    def times(share):
        return lambda jobs, root: (
            [counts.Count(parts={name: 1e4 * share(by) for name, by in grown.items()})] * len(jobs)
        )

    jobs = sides.counted_jobs(["pendulum"])[:1]
    both = []
    for share in (lambda by: 1, lambda by: by):
        monkeypatch.setattr(counts, "cached_counts", times(share))
        both.append(sides.count_instructions(jobs, CONTEXT))
    report = report_on("before", 0.015, static=True)
    verdict.judge_into(report, *both)
    assert {row.estimate.records[1].point["kernel"]: row.verdict for row in report.rows} == {
        "step": "unchanged",
        "sample": "same",
        "reset": "worse",
        PATH: "better",
    }
    files = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for file, records in zip(files, both, strict=True):
        for record in records:
            append(file, record)
    said = bench("gate", "--static", "--baseline", files[0], "--records", files[1], exits=1)
    on = re.escape(f"(host, {counts.architecture()}, 64 x 1)")
    assert re.search(rf"pendulum env_step: reset {on} +\| +\| +\| +10000 to 10500 ", said)
    assert "+5.0%" in said


def test_gate_leaves_out_what_one_side_cannot_count(counted, monkeypatch):
    """A baseline too old for counts is a note."""
    jobs = sides.counted_jobs(["pendulum"])
    now = sides.count_instructions(jobs, CONTEXT)
    monkeypatch.setattr(counts, "cached_counts", lambda *_: [counts.Count(error="Skip", reason="too old")] * len(jobs))
    report = report_on("before", 0.015, static=True)
    verdict.judge_into(report, sides.count_instructions(jobs, CONTEXT), now)
    assert (report.rows, report.problems, report.notes) == ([], [], ["left out: too old"])


def test_takers_know_what_is_wanted(counted):
    """`--where` selects points before counting."""
    wanted = Choice(cases=["instructions"], where=["program=pendulum", "part=env_step", "kernel=step"])
    (record,) = sides.selected_records(wanted, CONTEXT)
    assert record.point["kernel"] == "step"
    assert [job.case.name for job in counted[0]] == ["env_step"]
    assert sides.selected_records(Choice(cases=["instructions"], where=["arch=sm_90"]), CONTEXT) == []
