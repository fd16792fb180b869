"""Cold starts: new processes, their results, and their count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.core.measure import Plan
from bench.workloads import startup
from bench.workloads.points import point_of
from bench.workloads.setups import starts
from bench.workloads.startup import CACHED

COLD = "cold"
FIRST_STEP = point_of(until="first step", env="cartpole", backend="host", n_envs=4, cache=COLD)


@pytest.fixture
def processes(monkeypatch):
    """Fake each process by a call with the reference's result.

    The list has the environments of their starts.
    """
    started: list[dict[str, str]] = []

    def run(words, **options):
        point, out = json.loads(words[-2]), Path(words[-1])
        arrays, _ = startup.reference(point)
        np.savez(out / "arrays.npz", **arrays)
        (out / "parts.json").write_text(json.dumps({"import_s": 1.0, "build_s": 0.5 * len(started)}))
        started.append(options["env"])
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr("warpdrive_min.processes.run", run)
    return started


def test_clock_starts_before_anything_is_imported(tmp_path):
    """A start with imported packages is refused.

    As a module of its package the process would import first.
    """
    words = [sys.executable, "-m", "bench.workloads.fresh", json.dumps(FIRST_STEP), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(starts.ROOT)}
    late = subprocess.run(words, env=env, capture_output=True, text=True)
    assert late.returncode != 0
    assert "must start with nothing imported (got bench, " in late.stderr


@pytest.mark.parametrize(("cache", "n_folders"), [(COLD, 3), (CACHED, 1)])
def test_cold_processes_find_no_compiled_code(processes, cache, n_folders):
    """Cold processes have empty caches; cached ones share one."""
    got = startup.startup({**FIRST_STEP, "cache": cache}).measure(Plan(n_starts=2))
    assert got.before.passed  # the first process
    assert got.after.passed
    assert len(processes) == 3
    for name in ("WARPDRIVE_MIN_CACHE", "CUDA_CACHE_PATH"):
        assert len({env[name] for env in processes}) == n_folders
    assert got.notes["samples_s"] == {"import_s": [1.0, 1.0], "build_s": [0.5, 1.0]}


def test_process_that_comes_to_something_else_is_refused(processes):
    """Every process since the last check must have its result."""
    workload = startup.startup(FIRST_STEP)
    assert workload.check().passed
    starter = workload.run.__self__
    workload.run()
    starter._unchecked[0]["rewards"] = starter._unchecked[0]["rewards"] + 1e-6
    workload.run()
    assert not workload.check().passed
    assert workload.check().passed


def test_process_that_fails_says_why(monkeypatch):
    """A failed process is reported with its last output."""
    workload = startup.startup(FIRST_STEP)
    failed = subprocess.CompletedProcess([], 3, "", "ImportError: no such thing")
    monkeypatch.setattr("warpdrive_min.processes.run", lambda *_, **__: failed)
    with pytest.raises(starts.StartError, match=r"exit status 3\): ImportError: no such thing"):
        workload.run()


def test_trainers_oracle_has_weights():
    """The first update is compared on weights.

    Both trainers do two iterations.
    """
    point = point_of(until="first update", env="cartpole", backend="host", n_envs=4, n_steps=4, cache=CACHED)
    arrays, oracle = startup.reference(point)
    assert arrays["weights"].size > 1_000
    assert oracle == "two iterations on cpu, eager"
