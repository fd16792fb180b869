"""Fixtures of all tests of the benchmark."""

from __future__ import annotations

import functools

import pytest

from bench.core import machine
from bench.workloads import memory

A_LITTLE = 1 << 30
"""Bytes of a GPU's memory that a test may fill: others share the card."""

dependencies_hash = functools.cache(machine.dependencies_hash)


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    """Let what is timed mean something: under Numba's simulator, which other tests use, measuring is refused."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


@pytest.fixture(autouse=True)
def _packages_stay(monkeypatch):
    """Read what is installed once: it takes a third of a second, and each record asks."""
    monkeypatch.setattr(machine, "dependencies_hash", dependencies_hash)


@pytest.fixture(autouse=True)
def _memory_is_short(monkeypatch):
    """Let no test fill a card."""
    of_card = memory.free_bytes
    monkeypatch.setattr(memory, "free_bytes", lambda point, backend: min(of_card(point, backend), A_LITTLE))
