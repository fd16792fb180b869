"""Points in processes of their own: results, deaths, clean-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.core.case import Job
from bench.core.record import Context
from bench.process import local, worker
from bench.process.local import run_point, run_points
from bench.process.worker import Copy, WorkerError
from bench.workloads.cases import CASES
from tests.bench.ray_points import wait_for
from tests.support import run_python

ROOT = Path(__file__).resolve().parents[2]


class Crashing:
    """Server that ends its process in the requested way."""

    def ask(self, method, **arguments):
        if method == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        if method == "exit":
            os._exit(7)
        if method == "cuda":
            return {"seen": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()]}
        if method == "raise":
            raise WorkerError("ZeroDivisionError", "planted" + arguments.get("more", ""))
        return {"pid": os.getpid(), **arguments}


def serve_crashing(connection):
    worker.serve(connection, Crashing())


start_crashing = Copy(serve_crashing, preload=local.start.preload)
"""Starts a server that crashes; the fork server, of all tests here, imports set-ups once."""


def smoke_job(backend="cpu"):
    """Return the smallest point of `env_step`."""
    case = CASES["env_step"]
    return Job(case, next(point for point in case.points("smoke") if point["backend"] == backend))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Make the CPU pass for a GPU: each point starts a process."""
    monkeypatch.setattr(local, "is_on_gpu", lambda _: True)


def test_answers_come_from_another_process():
    """Each worker has its own process, which runs until released."""
    pids = set()
    for number in range(2):
        with start_crashing() as one:
            first, second = one.ask("add", a=number), one.ask("add", a=number + 1)
            assert (first["a"], second["a"], first["pid"]) == (number, number + 1, second["pid"])
            pids.add(first["pid"])
        wait_for(lambda pid=first["pid"]: not is_alive(pid), "the process runs on")
    assert len(pids | {os.getpid()}) == 3


@pytest.mark.parametrize(("how", "told"), [("signal", "by signal 11"), ("exit", "with exit code 7")])
def test_death_of_a_process_is_told(how, told):
    """A process's death is reported with signal or exit code."""
    with start_crashing() as one, pytest.raises(WorkerError, match=f"died at {how} {told}") as caught:
        one.ask(how)
    assert caught.value.kind == "Died"
    with start_crashing() as other:
        assert other.ask("add", a=1)["a"] == 1


def test_error_of_an_answer_keeps_its_kind():
    """An exception's name and message reach the caller."""
    with start_crashing() as one:
        with pytest.raises(WorkerError, match=r"^ZeroDivisionError: planted$") as caught:
            one.ask("raise")
        assert caught.value.kind == "ZeroDivisionError"
        with pytest.raises(
            WorkerError, match=r"^ZeroDivisionError: plantedx+\n.* characters; all are in .*\.txt"
        ) as caught:
            one.ask("raise", more="x" * 100_000)
        assert len(str(caught.value)) < 3000
        assert one.ask("add", a=1)["a"] == 1


def test_copies_have_touched_no_gpu():
    """Forked processes start without a CUDA context.

    Otherwise none of them could use a GPU.
    """
    with start_crashing() as one:
        assert one.ask("cuda")["seen"] == [False, False]


def test_points_of_a_gpu_are_recorded_from_processes_of_their_own(as_on_a_gpu):
    """A failed GPU point does not affect the next one."""
    job, context = smoke_job(), Context.here("smoke", run_id="test")
    lost = Job(replace(job.case, name="no_such_case"), job.point)
    died, fine = run_points([lost, job], context)
    assert (died.status, died.reason) == ("failed", "KeyError: 'no_such_case'")
    assert (died.case, died.metrics, died.is_evidence) == ("no_such_case", None, False)
    assert fine.is_evidence, fine.reason
    assert (fine.run_id, fine.case, fine.point) == ("test", "env_step", dict(job.point))
    assert fine.machine == context.machine


def test_point_of_a_cpu_stays_in_this_process(monkeypatch):
    """A CPU point starts no process."""
    monkeypatch.setattr(Copy, "__call__", lambda self: pytest.fail("started a process"))
    assert run_point(smoke_job(), Context.here("smoke", run_id="test")).is_evidence


SLEEPER = """
import os
import sys
from pathlib import Path

from bench.process import worker


class Sleeping:
    def ask(self, method):
        Path(sys.argv[1]).write_text(str(os.getpid()))
        time.sleep(120)


def serve_sleeping(connection):
    worker.serve(connection, Sleeping())
"""
"""Module of a sweep whose process sleeps; without torch it starts soon."""


def test_process_ends_with_the_sweep_that_started_it(tmp_path):
    """Killing a sweep frees the GPU for the next one."""
    file = tmp_path / "pid"
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    start = "import sleeper; sleeper.worker.Copy(sleeper.serve_sleeping)().ask('sleep')"
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    sweep = subprocess.Popen(
        [sys.executable, "-c", start, str(file)], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
    )
    wait_for(lambda: file.exists() and bool(file.read_text()), "no process has started")
    sweep.kill()
    sweep.wait()
    wait_for(lambda: not is_alive(int(file.read_text())), "the process runs on")


def is_alive(pid):
    """Return true if a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.gpu
def test_sweep_itself_has_no_context_on_the_gpu():
    """The sweep's process has no CUDA context.

    A context would make each point contended.
    """
    code = (
        "import ctypes, json\n"
        "from bench.core.record import Context\n"
        "from warpdrive_min import availability\n"
        "Context.here('smoke'); availability()\n"
        "driver = ctypes.CDLL('libcuda.so.1'); flags, active = ctypes.c_uint(), ctypes.c_int()\n"
        "assert driver.cuInit(0) == 0\n"
        "assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0\n"
        "print(json.dumps(active.value))\n"
    )
    assert json.loads(run_python("-c", code, cwd=ROOT).splitlines()[-1]) == 0


def test_what_the_fork_server_imports_leaves_cuda_alone():
    """The fork server's imports do not query GPUs.

    Otherwise no copy of it could use CUDA.
    """
    refuse = "import torch; torch.cuda.is_available = torch.cuda.device_count = lambda: 1 / 0"
    run_python("-c", f"{refuse}; import bench.process.local", cwd=ROOT)
