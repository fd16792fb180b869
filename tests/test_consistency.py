"""The consistency checker: that it agrees when it should, and finds what is planted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.environments.counter import Counter, PlainCounter, PythonCounter
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, managers, push
from warpdrive_min import EnvironmentCPUvsGPU
from warpdrive_min.consistency import copy_state, difference, generate_random_actions
from warpdrive_min.errors import ConfigError
from warpdrive_min.spaces import Box, Discrete, MultiDiscrete

CONFIGS = {"short": {"episode_length": 3, "limit": 100}, "limit": {"num_agents": 2, "episode_length": 9, "limit": 2}}


def checker(backend: str = "cpu", **arguments: object) -> EnvironmentCPUvsGPU:
    """Return a checker of Counter in two scenarios, three copies each."""
    arguments = {"dual_mode_env_class": Counter, "env_configs": CONFIGS, "num_envs": 3, **arguments}
    return EnvironmentCPUvsGPU(gpu_env_backend=backend, **arguments)


# ------------------------------------------------------------------ difference


def test_difference_is_the_largest_and_says_where():
    """Index and both values belong to the largest error."""
    got = difference(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.5, 2.0], [3.0, 2.0]]))
    assert (got.error, got.index, got.want, got.got) == (2.0, (1, 1), 4.0, 2.0)
    assert str(got) == "at [1, 1]: want 4, got 2, error 2"


def test_difference_can_be_relative_above_one():
    """Below a magnitude of 1 it stays absolute, so that a reference of 0 is no trap."""
    want, got = np.array([0.0, 200.0]), np.array([0.01, 201.0])
    assert difference(want, got).index == (1,)
    found = difference(want, got, relative=True)
    assert (found.index, found.error) == ((0,), pytest.approx(0.01))


def test_difference_of_angles_is_taken_around_the_circle():
    """Just below a full turn is close to just above 0; a period of 0 is none."""
    want, got = np.array([[0.01, 0.01]]), np.array([[6.27, 6.27]])
    found = difference(want, got, period=(2 * np.pi, 0))
    assert (found.index, found.error) == ((0, 1), pytest.approx(6.26))
    assert difference(want, got, period=2 * np.pi).error == pytest.approx(2 * np.pi - 6.26)


def test_difference_counts_nan_as_infinite():
    """A NaN on either side never agrees."""
    for want, got in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
        assert difference(np.array([want, 0]), np.array([got, 5.0])).error == np.inf
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))).error == 0


def test_copy_state_takes_the_first_environments():
    """A smaller copy gets the rows of its environments, and whatever is shared whole."""
    many, few = managers("cpu", n_envs=5)[0], managers("cpu", n_envs=2)[0]
    for data in (many, few):
        push(data, "row", np.zeros(3, np.float32), n_copies=data.n_envs)
        push(data, "shared", np.zeros(4, np.float32))
    many.tensor("row").copy_(torch.arange(5)[:, None])
    many.tensor("shared").fill_(7)
    push(many, "only there", np.zeros(1))
    copy_state(many, few)
    assert few.tensor("row").tolist() == [[0, 0, 0], [1, 1, 1]]
    assert few.tensor("shared").tolist() == [7] * 4


# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_kernels_agree_with_numpy(backend):
    """Copy by copy, over ends of episodes by limit and by time, to the bit."""
    assert checker(backend).test_env_reset_and_step(seed=0) == 0
    assert checker(backend).test_env_reset_and_step(seed=0, resynchronise=True) == 0


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_kernels_agree_with_python_objects(backend):
    """An environment without NumPy kernels is held against its Python class, one object for each copy."""
    assert checker(backend, dual_mode_env_class=PlainCounter).test_env_reset_and_step(seed=0) == 0


def test_actions_are_fresh_at_every_step():
    """With a seed the run repeats, but not one action forever, as WarpDrive's checker does."""
    runs: list[list[bytes]] = []

    class Recording(Counter):
        def launch(self, arguments):
            runs[-1].append(arguments[3].numpy().tobytes())
            super().launch(arguments)

    for seed in (0, 0, 1):
        runs.append([])
        checker(dual_mode_env_class=Recording).test_env_reset_and_step(seed=seed)
    # Both sides of 2 episodes: of 3 steps and 3 agents, of 9 steps and 2.
    assert len(runs[0]) == 2 * 2 * (3 + 9)
    assert len(set(runs[0])) > 10
    assert runs[0] == runs[1] != runs[2]


# ------------------------------------------------------------------ planted faults


class Heavier(Counter):
    """Rewards that are too large, by a factor."""

    factor = 1.1

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        self.weights = (self.weights * self.factor).astype(np.float32)


class Later(Counter):
    """Kernels whose limit is one higher."""

    def get_constants(self):
        return {"LIMIT": self.limit + 1}


class Elsewhere(Counter):
    """Another start."""

    def reset(self):
        super().reset()
        self.place = self.place + np.float32(0.25)
        return dict(enumerate(self.observe()))


@pytest.mark.parametrize("reference", [Counter, PlainCounter])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Heavier, r"scenario 'short', step \d: rewards at \[\d, \d\]: want .*, got .*, error"),
        (Later, r"scenario 'limit', step \d: _done_ at \[\d\]: want 1, got 0"),
        (Elsewhere, r"scenario 'short', step 0: observations at \[0, 0, 1\]: want 0.5, got 0.75, error 0.25"),
    ],
)
def test_planted_fault_is_found_and_named(reference, wrong, message):
    """Scenario, step, array, element and both values are told, whichever the reference is."""
    check = checker(dual_mode_env_class=None, cpu_env_class=reference, cuda_env_class=wrong)
    with pytest.raises(AssertionError, match=message):
        check.test_env_reset_and_step(seed=0)


def test_difference_within_the_tolerance_is_returned():
    """Half a per cent passes at one per cent, and fails at a tenth."""

    class Slightly(Heavier):
        factor = 1.005

    check = checker(dual_mode_env_class=None, cpu_env_class=Counter, cuda_env_class=Slightly)
    assert 0.004 < check.test_env_reset_and_step(1, seed=0) < 0.006
    with pytest.raises(AssertionError, match="rewards"):
        check.test_env_reset_and_step(0.1, seed=0)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dual_mode_env_class": None}, "needs dual_mode_env_class, or cpu_env_class and cuda_env_class"),
        ({"dual_mode_env_class": None, "cpu_env_class": Counter}, "needs dual_mode_env_class"),
        ({"env_configs": {}}, "env_configs must have at least one scenario"),
        ({"create_separate_placeholders_for_each_policy": True}, "leave separate placeholders off"),
        ({"obs_dim_corresponding_to_num_agents": "last"}, "agents' axis first"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """What is missing or not supported raises before anything runs."""
    with pytest.raises(ConfigError, match=message):
        checker(**arguments)


def test_policy_map_must_hold_every_agent_once():
    """A map that leaves one out, or names one twice, raises."""
    one = {"env_configs": {"one": CONFIGS["short"]}}
    checker(policy_tag_to_agent_id_map={"a": [0], "b": [2, 1]}, **one).test_env_reset_and_step(seed=0)
    for policies in ({"a": [0, 1]}, {"a": [0, 1, 2], "b": [2]}):
        with pytest.raises(ConfigError, match="must hold every agent once"):
            checker(policy_tag_to_agent_id_map=policies, **one).test_env_reset_and_step(seed=0)


def test_blocks_must_share_agents_evenly_if_asked():
    """Three agents do not divide over two blocks."""
    check = checker(blocks_per_env=2, assert_equal_num_agents_per_block=True)
    with pytest.raises(ConfigError, match=r"3 agents must divide over blocks_per_env .got 2"):
        check.test_env_reset_and_step()


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_resynchronising_needs_numpy_kernels(backend):
    """Python objects cannot be put into the kernels' state."""
    with pytest.raises(ConfigError, match="'Counter' has no NumPy kernels to resynchronise"):
        checker(backend, dual_mode_env_class=PlainCounter).test_env_reset_and_step(resynchronise=True)


def test_environment_without_kernels_cannot_be_checked():
    """There is nothing to hold against its Python class."""
    with pytest.raises(ConfigError, match=r"'PythonCounter'.* has no kernels"):
        checker(dual_mode_env_class=PythonCounter, env_configs={"one": {}}).test_env_reset_and_step()


def test_random_actions_lie_in_their_spaces():
    """Every kind of space is drawn from, within its bounds and over all of them; a seed repeats."""
    spaces = {"a": Discrete(3), "b": MultiDiscrete([2, 5]), "c": Box(-1.0, 2.0, (4,))}
    env, generator = SimpleNamespace(action_space=spaces), np.random.default_rng(0)
    draws = [generate_random_actions(env, generator) for _ in range(200)]
    assert {int(each["a"]) for each in draws} == {0, 1, 2}
    b = np.stack([each["b"] for each in draws])
    assert (b.min(0).tolist(), b.max(0).tolist(), b.dtype) == ([0, 0], [1, 4], np.int32)
    c = np.stack([each["c"] for each in draws])
    assert -1 <= c.min() < -0.9 < 1.9 < c.max() <= 2
    assert c.dtype == np.float32
    np.testing.assert_array_equal(generate_random_actions(env, 5)["c"], generate_random_actions(env, 5)["c"])
