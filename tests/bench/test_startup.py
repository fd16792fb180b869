"""The case `startup`: fresh processes, what they come to, and how they are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import sweep
from bench.case import Check, Facts
from bench.cases import startup_case as startup
from bench.cases.startup_case import COLD, _first_step, _first_update
from bench.measure import PLANS, ColdStart, MeasureError, Plan
from bench.plots import paint
from bench.record import Context, Metric
from bench.views.startup import starting, starts
from tests.bench.builders import record
from tests.bench.fakes import case, in_this_process

TWO = Plan(n_starts=2)
FIRST_STEP = _first_step("cartpole", 4, 1, "host", COLD)


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


@pytest.fixture
def processes(monkeypatch):
    """Let each process be a call that writes what the point's oracle has; returns their environments."""
    seen: list[dict[str, str]] = []

    def run(words, *, env, **_):
        assert words[1:3] == ["-P", str(startup.FRESH)]
        point, out = json.loads(words[3]), Path(words[4])
        arrays, _ = startup.first_step(point)
        np.savez(out / "arrays.npz", **arrays)
        (out / "parts.json").write_text(json.dumps({"import_s": 1.0, "build_s": 0.5 * len(seen)}))
        seen.append(env)
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_clock_starts_before_anything_is_imported(tmp_path):
    """As a module of its package the process would import all before: it refuses; by its path it does not."""
    words = [json.dumps(FIRST_STEP), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(startup.ROOT)}
    late = subprocess.run([sys.executable, "-m", "bench.cases.fresh", *words], env=env, capture_output=True, text=True)
    assert late.returncode != 0
    assert "must start with nothing imported (got bench, numpy, torch, warpdrive_min)" in late.stderr
    subprocess.run([sys.executable, "-P", str(startup.FRESH), *words], env=env, check=True)
    assert next(iter(json.loads((tmp_path / "parts.json").read_text()))) == "import_s"


def test_process_comes_to_what_the_oracle_has():
    """A real one: every part takes time, and observations and rewards after a step are NumPy's to the bit."""
    starts = startup.startup(FIRST_STEP)
    parts = starts.run()
    assert next(iter(parts)) == "import_s"
    assert {"build_s", "first_reset_s", "first_step_s"} <= parts.keys()
    assert min(parts.values()) > 0
    seen = starts.check()
    assert seen.passed, seen
    assert "NumPy" in seen.oracle or "cpu" in seen.oracle
    assert seen.max_error == 0


@pytest.mark.parametrize(("cache", "n_folders"), [(COLD, 3), (startup.CACHED, 1)])
def test_cold_processes_find_no_compiled_code(processes, cache, n_folders):
    """Each has an empty folder of its own, of the project and of the driver; cached ones share the first one's."""
    starts = startup.startup({**FIRST_STEP, "cache": cache})
    got = starts.measure(TWO)
    assert got.before.passed  # the first process
    assert got.after.passed
    assert len(processes) == 3
    for name in ("WARPDRIVE_MIN_CACHE", "CUDA_CACHE_PATH"):
        assert len({env[name] for env in processes}) == n_folders
    assert got.notes["samples_s"] == {"import_s": [1.0, 1.0], "build_s": [0.5, 1.0]}
    assert got.samples_ns == (1.5e9, 2e9)
    assert got.warm_up is None


def test_process_that_comes_to_something_else_is_refused(processes):
    """Every process since the last check counts, not only the last one."""
    starts = startup.startup(FIRST_STEP)
    assert starts.check().passed
    starter = starts.run.__self__
    starts.run()
    starter._seen[0]["rewards"] = starter._seen[0]["rewards"] + 1e-6
    starts.run()
    assert not starts.check().passed
    assert starts.check().passed


@pytest.mark.parametrize("got", [{}, {"a": np.zeros(3)}, {"a": np.float32([0, np.nan])}])
def test_arrays_that_are_missing_or_not_numbers_are_apart(got):
    """No name, another shape, and NaN are infinitely far off."""
    assert startup.apart({"a": np.zeros(2, np.float32)}, got) == float("inf")


def test_process_that_fails_says_why(monkeypatch):
    """Its last words are in the error."""
    failed = subprocess.CompletedProcess([], 3, "", "ImportError: no such thing")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(startup.StartError, match=r"exit status 3\): ImportError: no such thing"):
        startup.startup(FIRST_STEP).run()


def test_trainers_oracle_has_weights():
    """The first update is held against weights that two iterations have taught."""
    arrays, oracle = startup.first_update(_first_update("cartpole", 4, 1, "host", n_steps=4))
    assert arrays["weights"].size > 1_000
    assert oracle == "two iterations on cpu, eager"


def fake(times: list[dict[str, float]]) -> ColdStart:
    """Return a point whose processes take the given times."""
    left = iter(times)
    return ColdStart(
        run=lambda: next(left),
        check=lambda: Check(True, 0.0, "by hand"),
        facts=Facts(mode="eager", device=torch.device("cpu"), threads=1, work={"starts": 1}),
    )


def test_record_has_median_interval_and_raw_samples_of_each_part(tmp_path, monkeypatch):
    """Two processes of 3 and 5 s: a median of 4 s within them, and no warm-up, roofline or telemetry."""
    monkeypatch.setitem(PLANS, "smoke", TWO)
    context = Context.here("smoke", run_id="test")
    times = [{"import_s": 1.0, "build_s": 2.0}, {"import_s": 2.0, "build_s": 3.0}]
    cold = case(lambda _: fake(times), 1, scope="startup", workload=ColdStart)
    (record,) = sweep.run(sweep.jobs("smoke", {}, {"fake": cold}), context, tmp_path / "r.jsonl", in_this_process)
    assert record.is_evidence, record.reason
    total = record.metrics["total_s"]
    assert (total.value, total.low, total.high, total.unit, total.direction) == (4.0, 3.0, 5.0, "s", "lower")
    assert record.metrics["build_s"].value == 2.5
    assert record.samples_ns == [3e9, 5e9]
    assert record.notes["samples_s"] == {"import_s": [1.0, 2.0], "build_s": [2.0, 3.0]}
    assert (record.n, record.work_per_run, record.warm_up) == (2, {"starts": 1}, None)
    assert "process of its own" in record.unread["warm_up"]


def test_simulator_is_not_timed(monkeypatch):
    """Numba's simulator is refused before a process is started."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(MeasureError, match="simulator"):
        fake([]).measure(TWO)


def test_points_are_cold_and_cached_where_code_is_kept():
    """CUDA C is cached, NumPy and Numba compile nothing that lasts."""
    points = [point for point in startup.startup_points("paper") if point["until"] == startup.FIRST_STEP]
    caches = {backend: {p["cache"] for p in points if p["backend"] == backend} for backend in ("cpu", "host", "numba")}
    assert caches == {"cpu": {COLD}, "host": {COLD, startup.CACHED}, "numba": {COLD}}


def test_bars_and_rows_show_every_part():
    """Of two parts of 1 and 3 s the second bar begins where the first ends, and the table has a row each."""

    def seconds(value: float) -> Metric:
        return Metric(value=value, unit="s", direction="lower", low=value, high=value)

    metrics = {"total_s": seconds(4.0), "import_s": seconds(1.0), "build_s": seconds(3.0)}
    notes = {"samples_s": {"import_s": [1.0], "build_s": [3.0]}}
    started = record(case="startup", scope="startup", point=FIRST_STEP, metrics=metrics, notes=notes)
    (axes,) = paint(starting([started])).axes
    assert [(bar.get_x(), bar.get_width()) for bars in axes.containers for bar in bars] == [(0, 1), (1, 3)]
    assert not starting([]).panels
    assert [cells[-3:-1] for cells in starts([started]).cells] == [["total", "4"], ["import", "1"], ["build", "3"]]
