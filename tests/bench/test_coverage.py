"""Coverage of a rate's intervals: simulated, and the tables of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.show.render import markdown
from tests.bench import coverage

PAGE = Path(__file__).parents[2] / "docs" / "intervals.md"


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_interval_over_processes_covers_what_samples_do_not(correlation):
    """With equal noise between and within, one process covers below 40 %."""
    old, new = coverage.covered(correlation, 1.0, 2_000, np.random.default_rng(1))
    assert old < 0.4
    assert 0.93 < new < 0.97


@pytest.mark.nightly
def test_page_has_the_tables_of_the_command():
    """All tables of docs/intervals.md are the command's output."""
    text = PAGE.read_text()
    assert markdown(coverage.simulated(4_000)) in text
    assert markdown(coverage.measured(coverage.published(), 1_000)) in text
    assert markdown(coverage.of_seeds(2_000)) in text
