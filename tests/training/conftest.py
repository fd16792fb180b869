"""Fixtures of the tests of training."""

from __future__ import annotations

import pytest

from tests.training import support


@pytest.fixture(autouse=True)
def _closed_trainers():
    """Close the trainers that a test has made."""
    yield
    while support.MADE:
        support.MADE.pop().graceful_close()
