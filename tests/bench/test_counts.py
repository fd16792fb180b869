"""Counts of instructions: what is read from callgrind, what is counted, and that it is exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import counts
from bench.counts import PATH, Profile, Server
from bench.worker import Worker, WorkerError
from warpdrive_min.backends import host
from warpdrive_min.envs import ENVS

PROFILE = """# callgrind format
version: 1
desc: Timerange: Basic block 1 - 2
desc: Trigger: Client Request: 3 0
positions: line
events: Ir

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
    """A kernel is the blocks of its launches with what they call; allocators are on neither side."""
    file = tmp_path / "counts.1"
    file.write_text(PROFILE)
    profile = Profile.read(file)
    assert profile.label == "3 0"
    assert sum(profile.own.values()) == 120 + 30 + 60 + 40 + 300 + 100
    assert profile.parts() == {"step": 400, PATH: 120 + 60 + 40}


def test_every_environment_is_stepped_and_reset():
    """Whatever environment there is, both its kernels are counted, each point once."""
    jobs = counts.points()
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
    """As many turns of a loop more are as many instructions more, to the last one."""
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    compiler = counts.cuda_c.cpu_compiler()
    library = tmp_path / "kernel.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "kernel.cpp"], check=True)
    words = [*counts.callgrind(tmp_path), sys.executable, "-I", "-S", "-c", PROGRAM, counts.marks()._name, library]
    subprocess.run(words, check=True, capture_output=True)
    profiles = {each.label: each.parts() for each in map(Profile.read, tmp_path.glob("counts.*"))}
    first, second, third = (profiles[f"0 {run}"]["sum"] for run in range(3))
    assert third - second == second - first
    assert second - first >= 3000


def test_broken_points_do_not_stop_the_others(monkeypatch):
    """A point that cannot be set up is said with its reason; the next one is counted."""
    for name in ("freeze", "disable"):
        monkeypatch.setattr(counts.gc, name, lambda: None)
    monkeypatch.setattr(host, "TARGET", host.TARGET)
    monkeypatch.setattr(counts.torch, "set_num_threads", lambda n: None)
    point = {"implementation": "ours", "backend": "host", "mode": "eager"}
    answers = Server().count([("launch", {**point, "backend": "absent"}), ("abacus", {}), ("launch", point)])["points"]
    assert answers[0]["error"] == "KeyError"
    assert answers[1] == {"error": "Skip", "message": "this code has no case abacus"}
    assert answers[2]["runs"] == counts.COUNTED_RUNS


def test_old_code_is_not_counted(monkeypatch):
    """Code that builds for the processor at hand alone would meet instructions that Valgrind does not know."""
    monkeypatch.delattr(host, "TARGET")
    with pytest.raises(WorkerError, match="this processor alone"):
        Server().count([])


def test_code_of_another_folder_is_refused(monkeypatch):
    """A count says which code it is of."""

    class Elsewhere:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, method, **_):
            return {"root": "/elsewhere"}

    monkeypatch.setattr(Worker, "start", lambda *_, **__: Elsewhere())
    with pytest.raises(WorkerError, match="taken from /elsewhere"):
        counts.count([], Path("/"))
