"""Points in processes of their own: what comes back, what a death leaves behind, and who ends with whom."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import isolated
from bench.cases import CASES
from bench.isolated import ProcessDied, apart, run_point, run_points
from bench.record import Context
from bench.sweep import Job

ROOT = Path(__file__).resolve().parents[2]


def add(a, b):
    """Return the sum, and who made it."""
    return a + b, os.getpid()


def crash(how):
    """End this process by a signal, an exit code or an exception."""
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(7)
    raise ZeroDivisionError("planted")


def cuda_of_child():
    """Say whether the process that this one is a copy of has touched a GPU."""
    return torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()


def smoke_job(backend="cpu"):
    """Return the smallest point of `env_step`."""
    case = CASES["env_step"]
    return Job(case, next(point for point in case.points("smoke") if point["backend"] == backend))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Let the CPU pass for a GPU, so that its points get processes of their own, which start with this environment."""
    monkeypatch.setattr(isolated, "is_on_gpu", lambda _: True)
    monkeypatch.setattr(isolated, "PROCESSES", multiprocessing.get_context("spawn"))
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


def test_what_a_process_returns_comes_back():
    """Each call has another process, which is not this one."""
    (first, one), (second, other) = apart(add, 1, 2), apart(add, 3, 4)
    assert (first, second) == (3, 7)
    assert len({one, other, os.getpid()}) == 3


@pytest.mark.parametrize(("how", "told"), [("signal", "by signal 11"), ("exit", "exit code 7"), ("raise", "code 1")])
def test_death_of_a_process_is_told(how, told):
    """Its signal or exit code is in the error, and the next process is not touched."""
    with pytest.raises(ProcessDied, match=f"ended.* {told}"):
        apart(crash, how)
    assert apart(add, 1, 1)[0] == 2


def test_copies_have_touched_no_gpu():
    """Else none of them could use one."""
    assert apart(cuda_of_child) == (False, False)


def test_point_of_a_gpu_is_recorded_from_a_process_of_its_own(as_on_a_gpu):
    """The record says what a point in this process says."""
    context = Context.here("smoke", run_id="test")
    record = next(run_points([smoke_job()], context))
    assert record.status == "ok", record.reason
    assert record.is_evidence
    assert (record.run_id, record.case, record.point) == ("test", "env_step", dict(smoke_job().point))
    assert record.machine == context.machine


def test_point_of_a_cpu_stays_in_this_process(monkeypatch):
    """No process is started for it."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
    monkeypatch.setattr(isolated, "apart", lambda *_: pytest.fail("started a process"))
    assert run_point(smoke_job(), Context.here("smoke", run_id="test")).is_evidence


def test_point_whose_process_dies_is_recorded_as_failed(as_on_a_gpu, monkeypatch):
    """The others of the sweep are measured."""
    job = smoke_job()
    lost = Job(replace(job.case, name="no_such_case"), job.point)
    died, fine = run_points([lost, job], Context.here("smoke", run_id="test"))
    assert (died.status, died.reason) == ("failed", "its process ended with exit code 1; see the error output")
    assert (died.case, died.metrics, died.is_evidence) == ("no_such_case", None, False)
    assert fine.is_evidence


SLEEPER = """
import os, sys, time
from pathlib import Path
from bench.isolated import apart
from tests.bench.test_isolated import sleep

apart(sleep, sys.argv[1])
"""


def sleep(file):
    """Write this process's number and stay."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(120)


def test_process_ends_with_the_sweep_that_started_it(tmp_path):
    """Who kills a sweep has the GPU free for the next one."""
    file = tmp_path / "pid"
    sweep = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(file)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: file.exists() and file.read_text())
    sweep.kill()
    sweep.wait()
    wait_until(lambda: not is_alive(int(file.read_text())))


def is_alive(pid):
    """Return whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, limit_s=60):
    """Wait for a condition."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.mark.gpu
def test_sweep_itself_has_no_context_on_the_gpu():
    """What starts the processes would be another process on the GPU, and make each point contended."""
    code = (
        "import ctypes, json\n"
        "from bench.record import Context\n"
        "from warpdrive_min import availability\n"
        "Context.here('smoke'); availability()\n"
        "driver = ctypes.CDLL('libcuda.so.1'); flags, active = ctypes.c_uint(), ctypes.c_int()\n"
        "assert driver.cuInit(0) == 0\n"
        "assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0\n"
        "print(json.dumps(active.value))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == 0
