"""Recorder: rows, sums over episodes and cuts, in every language."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.agreement import start
from tests.environments.clock import Clock
from tests.environments.counter import Counter
from tests.support import BACKENDS_HERE, is_simulated, on_backends
from tests.training.builders import differences, make_recorder
from warpdrive_min import EnvWrapper
from warpdrive_min.policies import random_policy
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.rollout import RolloutRecorder

SMALL = {"num_taggers": 3, "grid_length": 3, "episode_length": 7}
LARGE = {"num_taggers": 70, "grid_length": 8, "episode_length": 7}
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, int], set[str]]] = {
    "cartpole": ("cartpole", {"episode_length": 7}, (40, 3), {"truncated"}),
    "pendulum": ("pendulum", {"episode_length": 4}, (20, 3), {"truncated"}),
    "tag_gridworld": ("tag_gridworld", SMALL, (60, 3), {"terminated", "truncated"}),
    "tag_gridworld, a block each": ("tag_gridworld", LARGE, (5, 2), {"terminated", "truncated"}),
}
"""Environment, config, number of copies (in the simulator), kind of ends."""

READ = ("rewards", "_done_", "terminated", "truncated", "final_observations")
ROWS = ("rewards", "terminated", "truncated", "successes")


@on_backends("case", CASES, numba=("cartpole", "tag_gridworld"))
def test_recorders_agree_to_the_bit(backend: str, case: str) -> None:
    """Rows, cuts and sums of two rollouts equal the `cpu` backend's.

    `test_rollout` compares those with the environment's.
    """
    name, config, sizes, ways = CASES[case]
    n_envs, n_steps = (sizes[1], 9) if is_simulated(backend) else (sizes[0], 20)
    tested, oracle = (
        start(name, config, each, n_envs, exact=True, auto_reset=True, seed=1) for each in (backend, "cpu")
    )
    draws = [random_policy(wrapper, 2) for wrapper in (tested, oracle)]
    recorders = one, other = [make_recorder(wrapper, n_steps) for wrapper in (tested, oracle)]
    seen = dict.fromkeys(("terminated", "truncated"), 0)
    for _ in range(2):
        for recorder in recorders:
            recorder.begin()
        for step in range(n_steps):
            draws[1]()
            oracle.step()
            if is_simulated(backend):  # too slow for the step
                for array in READ:
                    tested.cuda_data_manager.tensor(array).copy_(oracle.cuda_data_manager.tensor(array))
            else:
                draws[0]()
                tested.step()
            for recorder in recorders:
                recorder.record(step)
        for array in (*ROWS, "n_truncated"):
            assert torch.equal(getattr(one, array).cpu(), getattr(other, array)), array
        assert not differences(one.state(), other.state())
        cuts, wanted = one.truncated_observations.cpu(), other.truncated_observations
        assert len(cuts) == (n_steps - 1) // config["episode_length"] + 1 >= other.n_truncated.max()
        for env, n_cuts in enumerate(other.n_truncated.tolist()):
            assert torch.equal(cuts[:n_cuts, env], wanted[:n_cuts, env])
        for way in seen:
            seen[way] += int(getattr(other, way).sum())
    if not is_simulated(backend):
        assert {way for way, n in seen.items() if n} == ways
    assert seen["truncated"] + seen["terminated"] > n_envs


@pytest.mark.parametrize("keys", [("seen",), ("seen", "action_mask")])
def test_cuts_of_a_dict_lie_side_by_side(keys: tuple[str, ...]) -> None:
    """Truncated entries of a Dict are stored in key order."""
    wrapper = EnvWrapper(Clock(num_agents=2, episode_length=3, is_masked=True), num_envs=2)
    wrapper.reset_all_envs()
    data = wrapper.cuda_data_manager
    data.tensor("sampled_actions").zero_()
    arrays = SharedLayout().arrays(wrapper, {"all": [0, 1]})["all"]
    last = tuple(data.tensor(f"observations_{key}") for key in keys)
    recorder = RolloutRecorder(wrapper, 4, replace(arrays, last_observations=last))
    recorder.begin()
    for step in range(4):
        wrapper.step()
        recorder.record(step)
        if step == 2:
            last = [wrapper.cuda_data_manager.pull_data_from_device(f"observations_{key}") for key in keys]
        wrapper.reset_only_done_envs()
    assert recorder.truncated[2].tolist() == [1, 1]
    assert recorder.truncated_observations[0].tolist() == np.concatenate(last, -1).tolist()
    assert recorder.truncated_observations[0, 0, :, :2].tolist() == [[3, 0], [3, 1]]


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_a_done_flag_of_two_is_a_success(backend: str) -> None:
    """A done flag of 2 is recorded as a success.

    WarpDrive's environments set it.
    """
    wrapper = EnvWrapper(Counter(env_backend=backend), num_envs=3, env_backend=backend)
    wrapper.reset_all_envs()
    done = wrapper.cuda_data_manager.tensor("_done_")
    done.copy_(torch.tensor([0, 1, 2]))
    recorder = make_recorder(wrapper, 1)
    recorder.record(0)
    assert recorder.successes.tolist() == [[0, 0, 1]]
    assert recorder.terminated.tolist() == [[0, 1, 1]]
    assert recorder.state()["finished_episodes"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_more_cuts_than_slots_are_counted_but_not_kept(backend: str) -> None:
    """Cuts beyond the slots are counted, but not stored.

    A flag that stays set, since nobody resets, overwrites no slot.
    """
    wrapper = start("pendulum", {"episode_length": 2}, backend, 2)
    draw, recorder = random_policy(wrapper, 0), make_recorder(wrapper, 2)
    wrapper.cuda_data_manager.tensor("truncated").fill_(1)
    recorder.begin()
    recorder.record(0)
    first = recorder.truncated_observations.clone()
    draw()
    wrapper.step()
    wrapper.cuda_data_manager.tensor("truncated").fill_(1)
    recorder.record(1)
    assert len(recorder.truncated_observations) == 1
    assert torch.equal(recorder.truncated_observations, first)
    assert not torch.equal(first[0], wrapper.cuda_data_manager.tensor("observations"))
    assert recorder.n_truncated.tolist() == [2, 2]
