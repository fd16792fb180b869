"""Points that are set up concurrently are timed exclusively."""

from __future__ import annotations

import json
import os

import pytest
import torch

from bench.core.case import Job
from bench.core.exclusive import SIBLINGS, CrowdedError, exclusive
from bench.core.nvml import other_users
from bench.process import local
from bench.process.local import run_points
from bench.process.worker import Copy
from bench.workloads import train
from tests.bench.builders import FakeNvml, bench
from tests.bench.siblings import CASES, serve_fakes
from tests.bench.test_train import point as training
from tests.bench.test_worker import is_alive

N = 3
"""Number of concurrent points."""


@pytest.fixture
def todo(monkeypatch, tmp_path):
    """Return a function that makes fake points with a process each."""
    monkeypatch.setattr(local, "start", Copy(serve_fakes, preload=local.start.preload))
    monkeypatch.setattr(local, "is_on_gpu", lambda job: True)

    def make(*how, together=0, kind="Timed"):
        same = {"env": kind.lower(), "backend": "pycuda", "folder": str(tmp_path), "together": together}
        return [Job(CASES[kind], {**same, "index": index, "how": each}) for index, each in enumerate(how)]

    return make


def measured(jobs, context):
    return list(run_points(jobs, context, at_once=N))


def logged(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def timings(tmp_path):
    """Return the time span of all runs of each process."""
    spans = {}
    for each in logged(tmp_path):
        if each["what"] == "run":
            spans.setdefault(each["pid"], []).extend(each["span"])
    return {pid: (min(span), max(span)) for pid, span in spans.items()}


def assert_quiet(tmp_path):
    """Assert that timed processes were alone."""
    of = timings(tmp_path)
    for each in logged(tmp_path):
        for pid, (began, ended) in of.items():
            was_meanwhile = each["span"][0] < ended and began < each["span"][1]
            assert pid == each["pid"] or not was_meanwhile, f"{each} while {pid} was timed, {began} to {ended}"


def test_points_are_set_up_at_once_and_timed_in_quiet(todo, context, tmp_path):
    """Points are set up together, but timed one at a time.

    After the last timing they are checked together; then the next points start.
    """
    jobs = [*todo(*["fine"] * N, together=N), *todo(*["fine"] * 2 * N, together=2 * N)[N:]]
    records = measured(jobs, context)
    assert all(record.is_evidence for record in records), [record.reason for record in records]
    assert sorted(record.point["index"] for record in records) == list(range(2 * N))
    assert [record.notes["at_once"] for record in records] == [N] * 2 * N
    assert len(timings(tmp_path)) == 2 * N
    assert_quiet(tmp_path)
    *_, (_, all_timed) = sorted(timings(tmp_path).values())[:N]
    checks = [each["span"][0] for each in logged(tmp_path) if each["what"] == "check" and each["index"] < N]
    assert sum(began > all_timed for began in checks) == N, "those who were timed are checked together, too"


def test_points_that_need_a_machine_to_themselves_come_last(todo, context, tmp_path):
    """Points without timed blocks run alone, at the end."""
    records = measured([*todo("fine", kind="Once"), *todo("fine", "skips", "fine")], context)
    assert [record.case for record in records] == ["Timed"] * 3 + ["Once"]
    assert sorted(record.status for record in records) == ["ok", "ok", "ok", "skipped"]
    assert "at_once" not in records[-1].notes
    *before, start, _, _, ran, _ = logged(tmp_path)
    assert start["span"][0] > max(each["span"][1] for each in before)
    assert (ran["what"], ran["index"]) == ("run", 0)
    assert any(each["what"] == "end" for each in before)
    assert_quiet(tmp_path)


@pytest.mark.parametrize(
    ("how", "reason"), [("fails once", "MemoryError: too many at once"), ("dies once", "died at measure by signal 9")]
)
def test_point_that_fails_beside_others_is_measured_again_by_itself(how, reason, todo, context, tmp_path):
    """A point that is killed while timed is retried alone.

    Its death releases the exclusive section.
    """
    records = measured(todo("fine", how, "fine", "fine"), context)
    assert [record.status for record in records] == ["ok"] * 4
    assert records[-1].point["index"] == 1
    assert reason in records[-1].notes["failed_beside_others"]
    assert "at_once" not in records[-1].notes
    assert_quiet(tmp_path)


def test_point_that_always_fails_is_recorded_once(todo, context):
    """A point that always fails has one record with both reasons."""
    *fine, failed = measured(todo("dies always", "fine"), context)
    assert [record.status for record in (*fine, failed)] == ["ok", "failed"]
    assert failed.point["index"] == 0
    assert failed.reason == failed.notes["failed_beside_others"]


def test_all_processes_end_with_the_sweep_that_is_stopped(todo, context, tmp_path):
    """A stopped sweep waits for no other point."""
    records = run_points(todo("skips", "fine", "fine", "fine"), context, at_once=N)
    assert next(records).status == "skipped"
    records.close()
    pids = {each["pid"] for each in logged(tmp_path)}
    assert pids
    assert not any(map(is_alive, pids))


def test_siblings_are_no_strangers_on_the_gpu(monkeypatch):
    """Processes of the same sweep are not foreign on the GPU."""
    fake, device = FakeNvml.installed(monkeypatch), torch.device("cuda", 0)
    monkeypatch.setattr(SIBLINGS, "n", 2)
    fake.pids = [os.getpid(), 1, 2]
    assert other_users(device) == 0
    fake.pids.append(3)
    assert other_users(device) == 1


def test_shares_of_an_iteration_are_taken_in_quiet(monkeypatch):
    """`train` times rollout and update exclusively at set-up.

    Compilation runs in parallel.
    """
    asked = []
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants_exclusive: asked.append(wants_exclusive) or 0)
    train.train(training())
    assert asked == [True, False]


def test_point_that_ran_out_of_memory_beside_others_is_no_evidence(monkeypatch):
    """A point that ran out of GPU memory is not timed.

    After freeing memory torch's allocator is slower.
    """
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_alloc_retries": 1})
    with exclusive():
        pass
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants_exclusive: 2)
    with pytest.raises(CrowdedError, match="a point and 2 others"), exclusive():
        pass


def test_paused_process_leaves_no_work_on_the_gpu(monkeypatch):
    """A process waits for its own work before it asks for its turn."""
    events = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("synchronised"))
    monkeypatch.setattr(SIBLINGS, "ask_for_exclusive", lambda wants_exclusive: events.append(wants_exclusive) or 0)
    with exclusive():
        pass
    assert events == ["synchronised", True, False]


def test_command_line_takes_points_at_once(monkeypatch, tmp_path):
    """`run --at-once` records the same points as without it."""
    monkeypatch.setattr(local, "is_on_gpu", lambda job: True)
    where = ("--case", "env_step", "--env", "cartpole", "--backend", "cpu", "--backend", "host", "--no-plot")
    said = bench("run", "--preset", "smoke", *where, "--at-once", 2, "--out", tmp_path)
    assert "2/2 env_step[" in said
