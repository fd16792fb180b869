"""Reports of planted faults by the consistency checker, and their repetition."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.core.consistency_support import against_counter, checker, draw_config, report_of
from tests.environments.counter import Counter, PlainCounter
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError

# ------------------------------------------------------------------ planted faults


class Heavier(Counter):
    """Counter with rewards too large by a factor."""

    factor = 1.1

    def __init__(self, **config: object) -> None:
        super().__init__(**config)
        self.weights = (self.weights * self.factor).astype(np.float32)


class Later(Counter):
    """Counter whose kernels have a limit of one more."""

    def get_constants(self):
        return {"LIMIT": self.limit + 1}


class Elsewhere(Counter):
    """Counter with another start."""

    def reset(self):
        super().reset()
        self.place = self.place + np.float32(0.25)
        return dict(enumerate(self.observe()))


@pytest.mark.parametrize("reference", [Counter, PlainCounter])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Heavier, r"scenario 'short', step \d: rewards of environment \d, agent 2: want .*, got .*, error .* \(10 %"),
        (Later, r"scenario 'limit', step \d: _done_ of environment \d: want 1, got 0"),
        (Elsewhere, r"step 0: observations of environment 0, agent 0, component 1: want 0.5, got 0.75, error 0.25"),
    ],
)
def test_planted_fault_is_found_and_named(reference, wrong, message):
    """A planted fault is reported with scenario, step, array and values."""
    check = checker(dual_mode_env_class=None, cpu_env_class=reference, cuda_env_class=wrong)
    with pytest.raises(AssertionError, match=message):
        check.test_env_reset_and_step(seed=0)


def test_report_says_everything():
    """A report has scenario, step, array, values, config and seed."""
    values = "want 0.5, got 0.75, error 0.25 (50 %, 4.19e+06 ulps)"
    assert report_of(against_counter(Elsewhere), seed=7).splitlines() == [
        f"scenario 'short', step 0: observations of environment 0, agent 0, component 1: {values}",
        "  9 of 18 elements of observations differ; the next:",
        f"    environment 0, agent 1, component 1: {values}",
        f"    environment 0, agent 2, component 1: {values}",
        f"    environment 1, agent 0, component 1: {values}",
        f"    environment 1, agent 1, component 1: {values}",
        "  environment 'Counter' on backend 'cpu', config {'episode_length': 3, 'limit': 100}",
        "  run it again with seed=7",
    ]


def test_report_names_a_seed_that_repeats_it():
    """A run without a seed reports one that repeats it."""
    check = against_counter(Heavier)
    report = report_of(check)
    seed = int(re.search(r"run it again with seed=(\d+)", report)[1])
    assert report_of(check, seed=seed) == report
    assert f"seed={seed}" not in report_of(check)


def test_flag_that_outlives_the_reset_is_found():
    """A flag that survives a reset is reported."""

    class Forgetful(EnvWrapper):
        def reset_only_done_envs(self, undo_done_after_reset=False):
            return super().reset_only_done_envs(undo_done_after_reset=False)

    report = report_of(checker(env_wrapper=Forgetful), seed=0)
    assert report.startswith("scenario 'short', step 3, after the reset: _done_ of environment 0: want 0, got 1")


def test_shape_that_differs_is_told():
    """A truncated observation is reported as an error of shape."""

    class Narrow(PlainCounter):
        def observe(self):
            return super().observe()[:, :1]

    check = checker(dual_mode_env_class=None, cpu_env_class=Narrow, cuda_env_class=Counter)
    with pytest.raises(
        ConfigError, match=r"'observations' must have the reference's shape \(3, 3, 1\) \(got \(3, 3, 2\)\)"
    ):
        check.test_env_reset_and_step(seed=0)


def test_difference_within_the_tolerance_is_returned():
    """A difference within the tolerance passes, and is returned."""

    class Slightly(Heavier):
        factor = 1.005

    check = checker(dual_mode_env_class=None, cpu_env_class=Counter, cuda_env_class=Slightly)
    assert 0.004 < check.test_env_reset_and_step(1, seed=0) < 0.006
    with pytest.raises(AssertionError, match="rewards"):
        check.test_env_reset_and_step(0.1, seed=0)


def test_units_in_the_last_place_are_a_bound_of_their_own():
    """Units in the last place are an alternative bound."""

    class Rounding(Heavier):
        factor = 1 + 2**-22

    check = against_counter(Rounding)
    assert 0 < check.test_env_reset_and_step(0, seed=0, max_ulps=4) < 1e-6
    assert "rewards" in report_of(check, 0, seed=0)
    assert "2 ulps" in report_of(check, 0, seed=0, max_ulps=1)


# ------------------------------------------------------------------ drawn configs


def test_drawn_config_that_fails_can_be_repeated():
    """A drawn config that fails is repeated by the reported seed."""

    class LateInLongEpisodes(Later):
        def get_constants(self):
            return {"LIMIT": self.limit + (self.limit < self.episode_length and self.num_agents == 3)}

    report = report_of(against_counter(LateInLongEpisodes, env_configs=draw_config, num_configs=40), seed=0)
    assert "'num_agents': 3" in report
    seed = int(re.search(r"scenario drawn with seed (\d+)", report)[1])
    assert seed > 0, "the first config must pass, or nothing is shown"
    assert f"run it again with num_configs=1 and seed={seed}" in report
    assert report_of(against_counter(LateInLongEpisodes, env_configs=draw_config, num_configs=1), seed=seed) == report


def test_environment_that_raises_is_told_with_its_config():
    """An exception passes, with its scenario and how to repeat it."""

    class Picky(Counter):
        def step(self, actions=None):
            if self.limit == 5:
                raise ZeroDivisionError("limit 5")
            super().step(actions)

    with pytest.raises(ZeroDivisionError) as caught:
        checker(dual_mode_env_class=Picky, env_configs=draw_config, num_configs=40).test_env_reset_and_step(seed=0)
    (note,) = caught.value.__notes__
    assert re.fullmatch(
        r"scenario drawn with seed \d+, config {.*'limit': 5}; run again with num_configs=1 and .*", note
    )


def test_array_of_a_config_is_told_by_its_type_and_shape():
    """A config's array is reported by type and shape.

    The numbers of a large array would hide the fault.
    """

    class Fails(Counter):
        def __init__(self, table=None):
            super().__init__(episode_length=3)
            raise ZeroDivisionError

    tables = {"large": {"table": np.zeros((200, 7), np.float32)}}
    with pytest.raises(ZeroDivisionError) as caught:
        checker(dual_mode_env_class=Fails, env_configs=tables).test_env_reset_and_step(seed=0)
    assert "config {'table': 'float32 array (200, 7)'}" in caught.value.__notes__[0]
