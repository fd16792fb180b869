"""Fixtures of all tests of the benchmark."""

from __future__ import annotations

import functools

import pytest

from bench import machine

dependencies_hash = functools.cache(machine.dependencies_hash)


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    """Let what is timed mean something: under Numba's simulator, which other tests use, measuring is refused."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)


@pytest.fixture(autouse=True)
def _packages_stay(monkeypatch):
    """Read what is installed once: it takes a third of a second, and each record asks."""
    monkeypatch.setattr(machine, "dependencies_hash", dependencies_hash)
