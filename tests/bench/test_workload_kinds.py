"""Records of workloads other than timed ones."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from bench.core.case import Job
from bench.core.measure import PLANS, ColdStart, MeasureError, Once, Plan, Ranks
from bench.core.point import Check, Curve, Facts, Measurement, Metric
from bench.core.record import Context, Record, read_all
from bench.process.sweep import run
from bench.workloads.cases import CASES, jobs
from tests.bench.builders import case, in_this_process

RIGHT = Check(True, 0.0, "by hand")
CURVE = Curve(env_steps=[10, 20], seconds=[0.1, 0.2], mean_return={"p": [None, 1.5]})
FINAL = {"final_return": Metric.exact(1.5, "return", "higher")}
COURSE = Measurement(curve=CURVE, metrics=FINAL, notes={"how": "by hand"}, unread={"seconds": "no"})
REPORT = Measurement(
    samples_ns=(1e6, 2e6, 3e6),
    runs_per_sample=4,
    stop_reason="3 samples",
    warm_up={"settled": True},
    before=RIGHT,
    after=RIGHT,
    notes={"rollout_s": 1.0, "clocks": "agree"},
)


def facts(**work: int) -> Facts:
    return Facts(mode="eager", device=torch.device("cpu"), threads=2, work=work)


def once(got: Measurement = COURSE) -> Once:
    return Once(run=lambda: got, check=lambda: RIGHT, facts=facts())


def cold_start() -> ColdStart:
    """Return a workload of two processes, of 3 and 5 s."""
    starts = iter([{"import_s": 1.0, "build_s": 2.0}, {"import_s": 2.0, "build_s": 3.0}])
    return ColdStart(run=lambda index: next(starts), check=lambda: RIGHT, facts=facts(starts=1))


def ranks(got: Measurement = REPORT) -> Ranks:
    return Ranks(run=lambda plan: got, facts=facts(env_steps=1_000, agent_steps=5_000))


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a function that makes a workload's record.

    It checks that the record survives its file.
    """
    monkeypatch.setitem(PLANS, "smoke", Plan(n_starts=2))

    def record(workload) -> Record:
        scope = "learn" if isinstance(workload, Once) else "env"
        fake = case(lambda _: workload, 1, workload=type(workload), scope=scope)
        points, context = jobs("smoke", cases={"fake": fake}), Context.here("smoke", run_id="test")
        (made,) = run(points, context, tmp_path / "r.jsonl", in_this_process)
        assert read_all([tmp_path / "r.jsonl"]) == [made]
        return made

    return record


def test_record_of_what_is_run_once_has_its_curve(recorded):
    """A single run's record has its curve, figures and notes."""
    record = recorded(once())
    assert record.is_evidence
    assert (record.curve, record.metrics) == (CURVE, FINAL)
    assert record.samples_ns is record.work_per_run is record.telemetry is record.roofline is None
    assert record.notes["how"] == "by hand"
    assert set(record.unread) == {"seconds", "roofline", "telemetry"}


def test_record_of_cold_starts_has_every_part(recorded):
    """Cold starts are recorded with the time of each part."""
    record = recorded(cold_start())
    assert record.is_evidence, record.reason
    total = record.metrics["total_s"]
    assert (total.value, total.low, total.high, total.unit, total.direction) == (4.0, 3.0, 5.0, "s", "lower")
    assert record.metrics["build_s"].value == 2.5
    assert record.samples_ns == [3e9, 5e9]
    assert record.notes["samples_s"] == {"import_s": [1.0, 2.0], "build_s": [2.0, 3.0]}
    assert (record.n, record.work_per_run, record.warm_up) == (2, {"starts": 1}, None)
    assert set(record.unread) == {"roofline", "telemetry", "warm_up"}


def test_record_has_what_ranks_measured(recorded):
    """Ranks' record has their rate, samples and notes."""
    record = recorded(ranks())
    assert record.is_evidence, record.reason
    assert record.metrics["env_steps_per_s"].value == 5e5
    assert record.metrics["ns_per_env_step"].value == 2_000
    assert (record.samples_ns, record.n, record.runs_per_sample) == ([1e6, 2e6, 3e6], 3, 4)
    assert (record.work_per_run["env_steps"], record.threads, record.warm_up) == (1_000, 2, {"settled": True})
    assert record.notes.items() >= {"rollout_s": 1.0, "clocks": "agree"}.items()
    assert set(record.unread) == {"roofline", "telemetry"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_that_differ_are_no_evidence(when, recorded):
    """Ranks that fail a check are no evidence."""
    record = recorded(ranks(replace(REPORT, **{when: Check(False, 0.25, "the weights of 2 ranks", "moved")})))
    assert record.status == "failed"
    assert when in record.reason


@pytest.mark.parametrize("make", [once, cold_start, ranks])
def test_simulator_is_not_timed(make, monkeypatch):
    """Under Numba's simulator nothing is run or timed."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(MeasureError):
        make().measure(Plan(n_starts=2))


def test_points_are_sent_by_name():
    """A point sent to a Ray node names its functions, and takes no module along."""
    for each in CASES.values():
        sent = pickle.dumps(Job(each, each.points("smoke")[0]))
        assert len(sent) < 2_000
        assert pickle.loads(sent).case.points("smoke") == each.points("smoke")
