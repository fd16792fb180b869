"""Fixtures of all tests of the benchmark."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_simulator(monkeypatch):
    """Let what is timed mean something: under Numba's simulator, which other tests use, measuring is refused."""
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
