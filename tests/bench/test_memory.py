"""Memory of environments: bytes, and how many fit."""

from __future__ import annotations

import pytest
import torch

from bench.workloads import memory

CARTPOLE = {"env": "cartpole", "backend": "host", "n_envs": 100, "n_agents": 1}


def test_cartpoles_bytes_are_those_worked_by_hand():
    """CartPole's bytes match hand calculation.

    State 16, observations and last ones 16 each, seven 4-byte numbers: 76.
    """
    got = memory.memory(CARTPOLE).run()
    assert got.metrics["bytes_per_env"].value == 3 * 16 + 7 * 4
    assert "stepped_envs" in got.unread


def test_as_many_fit_as_memory_is_free_for(monkeypatch):
    """The number of environments follows from free memory.

    Fixed memory is subtracted first; the maximum is a 32-bit count.
    """
    monkeypatch.setattr(memory, "used_bytes", lambda point, backend, n: 1_000 + 76 * n)
    for free, want in ((1_000 + 76 * 5, 5), (1_000 + 76 * 6 - 1, 5), (10**15, memory.MOST_ENVS)):
        monkeypatch.setattr(memory, "free_bytes", lambda point, backend, free=free: free)
        got = memory.memory(CARTPOLE).run()
        assert got.metrics["largest_n_envs"].value == want
        assert got.notes["fixed_bytes"] == 1_000


def test_memory_that_is_not_declared_is_refused(monkeypatch):
    """One undeclared byte fails the point on a CPU."""
    whole = memory.used_bytes
    workload = memory.memory(CARTPOLE)
    assert workload.check().passed
    monkeypatch.setattr(memory, "used_bytes", lambda *point: whole(*point) + 1)
    assert not workload.check().passed


def test_more_agents_take_more():
    """Bytes grow with the number of agents."""
    runs = [memory.memory({**CARTPOLE, "env": "tag_continuous", "n_agents": n}).run() for n in (20, 40)]
    few, many = (got.metrics["bytes_per_agent"].value for got in runs)
    assert many == pytest.approx(few, rel=0.1)


@pytest.mark.gpu
def test_nine_tenths_of_what_fits_start_and_step():
    """On a GPU 90 % of the computed number start and step."""
    torch.cuda.empty_cache()
    workload = memory.memory({"env": "tag_continuous", "backend": "pycuda", "n_envs": 100, "n_agents": 110})
    assert workload.check().passed
    got = workload.run()
    assert got.notes["stepped_envs"] == int(0.9 * got.metrics["largest_n_envs"].value)
