"""Tests of backend `host` where environments are lanes of SIMD: built as shipped, with full vectors and a rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.backends import host
from warpdrive_min.backends.base import Launch
from warpdrive_min.envs import ENVS
from warpdrive_min.policies import random_policy

CLASSIC = ["cartpole", "mountain_car", "continuous_mountain_car", "acrobot", "pendulum"]
ARRAYS = ["sampled_actions", "state", "observations", "final_observations", "rewards", "terminated", "truncated"]
COUNTERS = ["_done_", "_timestep_", "_episode_"]


@pytest.mark.as_shipped
@pytest.mark.skipif(not BACKENDS["host"].availability().available, reason="found no C++ compiler")
@pytest.mark.parametrize("name", CLASSIC)
def test_lanes_are_to_the_bit_the_reference(name: str) -> None:
    """Draws, steps and restarts of 2 blocks and a part of one are those of NumPy, signs of zeros included."""
    sides = both_sides(name)
    for step in range(20):
        take_step(sides, step)
    assert sides[0][0].cuda_data_manager.tensor("_episode_").min() >= 3, "every lane must have restarted"


@pytest.mark.skipif(not BACKENDS["host"].availability().available, reason="found no C++ compiler")
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx2"])
def test_narrower_vectors_give_the_same(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without wide vectors draws, steps and restarts alike."""
    monkeypatch.setattr(host, "BRANCHLESS", (*host.BRANCHLESS, without))
    sides = both_sides("cartpole")
    for step in range(10):
        take_step(sides, step)


@pytest.mark.skipif(not BACKENDS["host"].availability().available, reason="found no C++ compiler")
@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_environments_that_have_drawn_differently_often_draw_as_the_reference(name: str) -> None:
    """Lanes whose counters differ are drawn one by one."""
    sides = both_sides(name)
    for wrapper, _ in sides:
        draws = wrapper.cuda_data_manager.tensor("sampled_actions_draws")
        draws[:] = torch.arange(len(draws)) % 7
    for step in range(5):
        take_step(sides, step)


def both_sides(name: str) -> list[tuple[EnvWrapper, Launch]]:
    """Return wrappers on `host` and `cpu` of 2 blocks and a part of one, started, and what draws their actions."""
    sides = []
    for backend in ("host", "cpu"):
        env = ENVS[name](episode_length=9)
        wrapper = EnvWrapper(env, num_envs=299, env_backend=backend, seed=3, auto_reset=True, exact=True)
        wrapper.reset()
        sides.append((wrapper, random_policy(wrapper, 5)))
    return sides


def take_step(sides: list[tuple[EnvWrapper, Launch]], step: int) -> None:
    """Draw and step on both sides, and compare all arrays to the bit."""
    for wrapper, draw in sides:
        draw()
        wrapper.step()
    for array in ARRAYS + COUNTERS:
        got, want = (wrapper.cuda_data_manager.tensor(array).numpy().view(np.int32) for wrapper, _ in sides)
        assert (got == want).all(), f"{array} after step {step}"
