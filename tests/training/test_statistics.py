"""Means over episodes: which rows of metrics count."""

from __future__ import annotations

from warpdrive_min.training.statistics import mean_return


def test_mean_return_takes_rows_until_every_environment_had_an_episode():
    """By hand: rows of 50 steps; for 100 it takes the latest two, for 101 three, weighed by their episodes."""
    rows = [
        {"env_steps": 50, "p/episodes": 1.0, "p/mean_episodic_return": 90.0},
        {"env_steps": 100, "p/episodes": 0.0, "p/mean_episodic_return": float("nan")},
        {"env_steps": 150, "p/episodes": 3.0, "p/mean_episodic_return": 10.0},
    ]
    assert mean_return(rows, "p", 50) == mean_return(rows, "p", 100) == 10
    assert mean_return(rows, "p", 101) == mean_return(rows, "p", 150) == (90 + 3 * 10) / 4
    assert mean_return(rows, "p", 151) is None
    assert mean_return(rows[:2], "p", 50) is None
    assert mean_return(rows[1:], "p", 100, first_step=50) == 10
    assert mean_return(rows[1:], "p", 101, first_step=50) is None
