"""What the environments of one agent share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs import ENVS
from envs.classic_control._common.single import SingleAgent
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError

SINGLE = {name: env for name, env in ENVS.items() if issubclass(env, SingleAgent)}
every_environment = pytest.mark.parametrize("name", SINGLE)


def test_there_are_five_of_them():
    """The folders of classic control are the environments of one agent."""
    import envs.classic_control

    folders = {path.parent.name for path in Path(envs.classic_control.__file__).parent.glob("[!_]*/env.py")}
    assert set(SINGLE) == folders
    assert len(folders) == 5


@every_environment
def test_whole_numbers_are_compiled_in_as_floats(name):
    """A config with 1 for 1.0, as YAML gives it, has float constants: an int would make Numba compute in float64."""
    default = SINGLE[name]().config
    fields = [field for field in default.__dataclass_fields__ if isinstance(getattr(default, field), float)]
    whole = {field: round(getattr(default, field)) for field in fields if round(getattr(default, field)) > 0}
    assert whole, "the config must have a whole number"
    env = SINGLE[name](**whole)
    assert {type(getattr(env.config, field)) for field in whole} == {int}
    constants = env.get_constants()
    assert {key for key, value in constants.items() if not isinstance(value, float)} == {"RESET_POOL_SIZE"}


@every_environment
def test_config_names_the_broken_rule_of_a_shared_key(name):
    """Every environment checks the keys that all of them have, under its own name."""
    with pytest.raises(ConfigError, match=rf"^{name}\.episode_length: must be positive \(got 0\)"):
        SINGLE[name](episode_length=0)
    with pytest.raises(ConfigError, match=rf"^{name}\.reset_pool_size: must not be negative \(got -2\); 0 draws"):
        SINGLE[name](reset_pool_size=-2)


@every_environment
def test_bytes_per_step_are_those_of_the_arrays(name):
    """A step reads and writes state and step counter, reads actions, and writes observation, reward and three flags."""
    wrapper = EnvWrapper(SINGLE[name](), num_envs=1)
    wrapper.reset()
    sizes = {key: wrapper.cuda_data_manager.pull_data_from_device(key).nbytes for key in (*READ, *WRITTEN)}
    assert wrapper.env.bytes_per_step == sum(sizes[key] for key in READ) + sum(sizes[key] for key in WRITTEN)


READ = ("state", "sampled_actions", "_timestep_")
WRITTEN = ("state", "_timestep_", "observations", "rewards", "terminated", "truncated", "_done_")


@every_environment
@pytest.mark.parametrize("size", [0, 1, 4])
def test_pool_has_a_row_at_least_and_is_drawn_by_its_seed(name, size):
    """A pool has as many rows as asked, one where none is drawn from; its first row does not depend on how many."""
    pools = []
    for n_rows, seed in ((size, 3), (size, 3), (7, 3), (size, 4)):
        env = SINGLE[name](reset_pool_size=n_rows, seed=seed)
        feed = env.get_data_dictionary() if n_rows < 2 else env.get_reset_pool_dictionary()
        pools.append(feed["state_reset_pool"]["data"])
    pool, again, longer, other = pools
    assert pool.shape == (max(1, size), 1, SINGLE[name].n_state)
    assert pool.dtype == np.float32
    np.testing.assert_array_equal(pool, again)
    np.testing.assert_array_equal(pool[0], longer[0])
    assert (pool != other).any()
