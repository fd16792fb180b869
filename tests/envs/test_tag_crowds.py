"""The reference's search by cells equals the one over all pairs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from envs.tag_continuous import env, reference
from tests.agreement import assert_same_bits, free_run
from tests.envs.builders import crowd

N_ENVS = 2


@pytest.mark.parametrize(
    ("n_agents", "in_corners", "in_game"), [(600, 0.0, 0.8), (500, 0.4, 1.0), (40, 0.0, 0.1), (9, 0.0, 0.0)]
)
def test_cells_find_whom_all_pairs_find(n_agents, in_corners, in_game, monkeypatch):
    """Cells give the neighbours, tags and distances of all pairs.

    Cases include ties, and too few other agents.
    """
    rng = np.random.default_rng(n_agents)
    x, y = rng.uniform(0, 20, (2, N_ENVS, n_agents)).astype(np.float32)
    at_corner = rng.random(x.shape) < in_corners
    x[at_corner], y[at_corner] = 0, 20
    plays = rng.random(x.shape) < in_game
    taggers = np.sort(rng.choice(n_agents, n_agents // 8, replace=False)).astype(np.int32)
    constants = SimpleNamespace(N_AGENTS=n_agents, N_OBSERVED=7, REACH_SQUARED=np.float32(2))
    runners = plays & ~np.isin(np.arange(n_agents), taggers)

    def found():
        return (
            reference.nearest(constants, x, y, plays),
            reference.tag(constants, SimpleNamespace(loc_x=x, loc_y=y), runners, taggers),
            env.nearest_first(x.astype(np.float64), y.astype(np.float64), plays, 8),
        )

    want = found()
    for module in (reference, env):
        monkeypatch.setattr(module, "CROWD", 0)
    for got, wanted in zip(found(), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.nightly
def test_more_agents_than_16_bits_count(monkeypatch):
    """66,000 agents, more than 16 bits count, equal NumPy.

    Two steps are bit-identical.
    """
    n_agents = 66_000
    settings = crowd(n_agents, grid_length=80.0, tagging_distance=0.005, num_other_agents_observed=3)
    want, got = (
        free_run("tag_continuous", settings, backend, n_envs=1, n_steps=2, exact=True)[0] for backend in ("cpu", "host")
    )
    assert_same_bits(got, want)
    assert (want["still_in_the_game"][0, 2**16 :] == 0).any()
