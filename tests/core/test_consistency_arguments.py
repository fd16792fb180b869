"""Arguments that the consistency checker refuses, with the reason."""

from __future__ import annotations

import pytest

from tests.core.consistency_support import CONFIGS, checker, draw_config
from tests.environments.counter import Counter, PlainCounter, PythonCounter
from tests.support import on_every_other_backend
from warpdrive_min.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dual_mode_env_class": None}, "needs dual_mode_env_class, or cpu_env_class and cuda_env_class"),
        ({"dual_mode_env_class": None, "cpu_env_class": Counter}, "needs dual_mode_env_class"),
        ({"env_configs": {}}, "env_configs must have at least one scenario"),
        ({"env_configs": draw_config, "num_configs": 0}, r"num_configs: must be at least 1 \(got 0\)"),
        (
            {"create_separate_placeholders_for_each_policy": True},
            r"of more than one policy \(got None\); leave them off",
        ),
        ({"obs_dim_corresponding_to_num_agents": "middle"}, r"must be 'first' or 'last' \(got 'middle'\)"),
    ],
)
def test_arguments_are_checked(arguments, message):
    """Missing or unsupported arguments raise before anything runs."""
    with pytest.raises(ConfigError, match=message):
        checker(**arguments)


def test_policy_map_must_hold_every_agent_once():
    """A policy map must name every agent exactly once."""
    one = {"env_configs": {"one": CONFIGS["short"]}}
    checker(policy_tag_to_agent_id_map={"a": [0], "b": [2, 1]}, **one).test_env_reset_and_step(seed=0)
    for policies in ({"a": [0, 1]}, {"a": [0, 1, 2], "b": [2]}):
        with pytest.raises(ConfigError, match="must hold every agent once"):
            checker(policy_tag_to_agent_id_map=policies, **one).test_env_reset_and_step(seed=0)


def test_blocks_must_share_agents_evenly_if_asked():
    """Blocks must share the agents evenly on request."""
    check = checker(blocks_per_env=2, assert_equal_num_agents_per_block=True)
    with pytest.raises(ConfigError, match=r"3 agents must divide over blocks_per_env .got 2"):
        check.test_env_reset_and_step()


@on_every_other_backend
def test_resynchronising_needs_numpy_kernels(backend):
    """Resynchronised runs need NumPy kernels.

    Python objects cannot be put into the kernels' state.
    """
    with pytest.raises(ConfigError, match="'Counter' has no NumPy kernels to resynchronise"):
        checker(backend, dual_mode_env_class=PlainCounter).test_env_reset_and_step(resynchronise=True)


def test_environment_without_kernels_cannot_be_checked():
    """An environment without kernels cannot be checked."""
    with pytest.raises(ConfigError, match=r"'PythonCounter'.* has no kernels"):
        checker(dual_mode_env_class=PythonCounter, env_configs={"one": {}}).test_env_reset_and_step()
