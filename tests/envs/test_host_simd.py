"""Backend `host` with environments in SIMD lanes, and a remainder."""

from __future__ import annotations

import pytest
import torch

from tests.support import by_night, needs_host
from warpdrive_min import EnvWrapper
from warpdrive_min.backends import host
from warpdrive_min.backends.base import Launch
from warpdrive_min.envs import ENVS
from warpdrive_min.policies import random_policy
from warpdrive_min.rollouts import Keep

CLASSIC = ["cartpole", "mountain_car", "continuous_mountain_car", "acrobot", "pendulum"]
ARRAYS = ["sampled_actions", "state", "observations", "final_observations", "rewards", "terminated", "truncated"]
COUNTERS = ["_done_", "_timestep_", "_episode_"]
BY_DAY = [("cartpole", "all"), ("pendulum", "last")]
"""Rollouts of choices and of boxes; the others are nightly, as each compiles for seconds."""


@pytest.mark.as_shipped
@needs_host
@pytest.mark.parametrize("name", CLASSIC)
def test_lanes_are_to_the_bit_the_reference(name: str) -> None:
    """SIMD lanes are bit-identical to the reference.

    Draws, steps and restarts of two blocks and a part.
    """
    sides = both_sides(name)
    for step in range(20):
        take_step(sides, step)
    assert sides[0][0].cuda_data_manager.tensor("_episode_").min() >= 3, "every lane must have restarted"


@pytest.mark.as_shipped
@needs_host
@pytest.mark.parametrize(
    ("name", "keep"),
    [(name, keep) if (name, keep) in BY_DAY else by_night(name, keep) for name in CLASSIC for keep in ("last", "all")],
)
def test_lanes_of_a_rollout_are_to_the_bit_the_reference(
    name: str, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts in SIMD lanes are bit-identical to the reference.

    A wide and a partial block.
    """
    monkeypatch.setattr("warpdrive_min.function_manager.BLOCKS_PER_WORKER", 0)
    host_side, reference = started(name)
    assert host_side.cuda_function_manager.shape.envs_per_block == 256
    for n_steps in (3, 18):
        got, want = (wrapper.rollout(n_steps, keep=keep) for wrapper in (host_side, reference))
        assert host_side.rollout_mode.name == "fused"
        is_done = want.done != 0
        for array, kept in want._asdict().items():
            if kept is None:  # without a model
                assert getattr(got, array) is None
                continue
            rows = is_done if array == "final_observations" and keep == "all" else ...  # of others they are stale
            assert torch.equal(bits(kept[rows]), bits(getattr(got, array)[rows])), array
        assert_same(host_side, reference, ["state", *COUNTERS])
    assert reference.cuda_data_manager.tensor("_episode_").min() >= 3, "every lane must have restarted"


@needs_host
@pytest.mark.parametrize("without", [by_night("-mno-avx512f"), "-mno-avx2"])
def test_narrower_vectors_give_the_same(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without wide vectors gives the same results."""
    monkeypatch.setattr(host, "BRANCHLESS", (*host.BRANCHLESS, without))
    sides = both_sides("cartpole")
    for step in range(10):
        take_step(sides, step)


@needs_host
@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_environments_that_have_drawn_differently_often_draw_as_the_reference(name: str) -> None:
    """Lanes with different draw counters draw like the reference.

    They are drawn one by one.
    """
    sides = both_sides(name)
    for wrapper, _ in sides:
        draws = wrapper.cuda_data_manager.tensor("sampled_actions_draws")
        draws[:] = torch.arange(len(draws)) % 7
    for step in range(5):
        take_step(sides, step)


@needs_host
@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_rollouts_of_environments_that_have_drawn_differently_often_are_the_reference(name: str) -> None:
    """Rollouts with different draw counters equal the reference.

    Such lanes use their own words at each step.
    """
    host_side, reference = started(name)
    for wrapper in (host_side, reference):
        wrapper.rollout(1)
        draws = wrapper.cuda_data_manager.tensor("sampled_actions_draws")
        draws[:] = torch.arange(len(draws)) % 7
    got, want = (wrapper.rollout(6).sampled_actions for wrapper in (host_side, reference))
    assert torch.equal(bits(got), bits(want))
    assert_same(host_side, reference, ["state", "sampled_actions_draws", *COUNTERS])


def started(name: str) -> list[EnvWrapper]:
    """Return started wrappers on `host` and `cpu`.

    They have full blocks and a part of one.
    """
    sides = []
    for backend in ("host", "cpu"):
        env = ENVS[name](episode_length=9)
        wrapper = EnvWrapper(env, num_envs=299, env_backend=backend, seed=3, auto_reset=True, exact=True)
        wrapper.reset()
        sides.append(wrapper)
    return sides


def both_sides(name: str) -> list[tuple[EnvWrapper, Launch]]:
    """Return such wrappers, and a function that draws actions."""
    return [(wrapper, random_policy(wrapper, 5)) for wrapper in started(name)]


def take_step(sides: list[tuple[EnvWrapper, Launch]], step: int) -> None:
    """Draw and step on both sides; compare arrays bit by bit."""
    for wrapper, draw in sides:
        draw()
        wrapper.step()
    assert_same(*(wrapper for wrapper, _ in sides), ARRAYS + COUNTERS, f"after step {step}")


def assert_same(one: EnvWrapper, other: EnvWrapper, arrays: list[str], when: str = "") -> None:
    """Compare arrays of two wrappers to the bit."""
    for array in arrays:
        got, want = (wrapper.cuda_data_manager.tensor(array) for wrapper in (one, other))
        assert torch.equal(bits(got), bits(want)), f"{array} {when}"


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """Return floats as integers of their bits, so zeros have signs."""
    return numbers.view(torch.int32) if numbers.dtype == torch.float32 else numbers
