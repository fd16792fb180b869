"""Tag GridWorld on every backend against the reference, in one block and in several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envs.tag_gridworld import TagGridWorld
from tests.envs.builders import grid_of
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from warpdrive_min.consistency import Agreement, step_by_step
from warpdrive_min.policies import random_policy

here = pytest.mark.parametrize("backend", BACKENDS_HERE)
others = pytest.mark.parametrize("backend", OTHER_BACKENDS)


def compare(
    backend: str, config: dict[str, Any], *, n_envs: int, n_steps: int, exact: bool = True
) -> tuple[Agreement, int]:
    """Step a backend and the oracle from the backend's state; exact builds restart in the step.

    Returns: What was seen, and how many episodes ended with a tag.
    """
    tested, oracle = (grid_of(each, n_envs, exact=exact, auto_reset=exact, **config) for each in (backend, "cpu"))
    draw, result, n_tags = random_policy(tested, config.get("seed", 0)), Agreement(), 0
    for _ in range(n_steps):
        result.add(step_by_step(tested, oracle, draw, 1))
        n_tags += int(oracle.cuda_data_manager.tensor("terminated").sum())
    return result, n_tags


def free_run(backend: str, config: dict[str, Any], *, n_envs: int, n_steps: int) -> dict[str, np.ndarray]:
    """Run an ordinary build with auto-reset, a pool and random actions.

    Returns:
        Every array at the end but the kernels' workspace, and ``"tags"``, ``(n_envs,)``: episodes that ended with one.
    """
    wrapper = grid_of(backend, n_envs, seed=4, auto_reset=True, reset_pool_size=4, **config)
    draw, data = random_policy(wrapper, 4), wrapper.cuda_data_manager
    tags = np.zeros(n_envs, np.int32)
    for _ in range(n_steps):
        draw()
        wrapper.step()
        tags += data.pull_data_from_device("terminated")
    names = [name for name in data.array_names() if not data.attribute(name, "scratch", False)]
    return {"tags": tags, **{name: data.pull_data_from_device(name) for name in names}}


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    """Fail unless two runs have the same arrays, to the bit."""
    assert set(got) == set(want)
    for name in want:
        np.testing.assert_array_equal(got[name].view(np.int32), want[name].view(np.int32), err_msg=name)


def random_config(seed: int) -> dict[str, Any]:
    """Draw a config of few agents on a grid so small that somebody is soon tagged.

    Five in a row differ in starts and seed alone, so that they share one compilation.
    """
    generator = np.random.default_rng(seed // 5)
    num_taggers, grid_length = (int(n) for n in generator.integers((1, 2), (12, 5)))
    config = {
        "num_taggers": num_taggers,
        "grid_length": grid_length,
        "episode_length": int(generator.integers(3, 40)),
        "wall_hit_penalty": float(generator.uniform(0, 1)),
        "tag_reward_for_tagger": float(generator.uniform(0, 10)),
        "tag_penalty_for_runner": float(generator.uniform(0, 10)),
        "step_cost_for_tagger": float(generator.uniform(0, 1)),
        "use_full_observation": bool(generator.integers(2)),
        "seed": seed,
    }
    if generator.integers(2):
        return {**config, "reset_pool_size": int(generator.integers(2, 9))}
    starts = np.random.default_rng(seed).integers(0, grid_length + 1, (2, num_taggers + 1))
    return {**config, "starting_location_x": starts[0].tolist(), "starting_location_y": starts[1].tolist()}


@others
@pytest.mark.parametrize("first_seed", range(0, 200, 25))
def test_gridworld_agrees_in_random_configs(first_seed, backend):
    """200 random configs (one of each lot of 25 in the simulator), built exact or not, give the oracle's values."""
    n_envs, n_steps = (2, 3) if is_simulated(backend) else (32, 20)
    for seed in range(first_seed, first_seed + (1 if is_simulated(backend) else 25)):
        config = random_config(seed)
        result, n_tags = compare(backend, config, n_envs=n_envs, n_steps=n_steps, exact=seed // 5 % 2 == 0)
        assert result.max_error == 0, f"seed {seed}, {config}: {result}"
        assert result.n_in_doubt == 0
        assert n_tags > 0 or is_simulated(backend), f"seed {seed}, {config}: the run must exercise a tag"


@others
def test_tags_agree_in_few_steps(backend):
    """On four cells the runner is soon tagged, in the few steps of the simulator too, with the oracle's values."""
    config = {"num_taggers": 5, "grid_length": 1, "use_full_observation": False}
    result, n_tags = compare(backend, config, n_envs=3, n_steps=4)
    assert result.max_error == 0, str(result)
    assert n_tags > 0


@others
@pytest.mark.parametrize(
    ("num_taggers", "full", "blocks"),
    [(9_999, False, 1), (9_999, False, 40), (299, True, 1), (299, True, 4), (63, False, 1), (40, True, 1)],
)
def test_many_agents_agree_with_the_reference(num_taggers, full, blocks, backend):
    """Agents beyond the threads of a block, and every size of the search for the nearest, give the oracle's values."""
    if is_simulated(backend):
        pytest.skip("hundreds of agents take minutes in the simulator")
    config = {
        "num_taggers": num_taggers,
        "grid_length": 2 * round(num_taggers**0.5),
        "episode_length": 6,
        "use_full_observation": full,
        "reset_pool_size": 3,
        "blocks_per_env": blocks,
    }
    result, n_tags = compare(backend, config, n_envs=3, n_steps=12)
    assert result.max_error == 0, str(result)
    assert result.n_done > n_tags, "the run must end episodes by time"


# ------------------------------------------------------------------ blocks that share an environment


@others
@pytest.mark.parametrize("first_seed", [200, 225])
def test_blocks_that_share_an_environment_agree_in_random_configs(first_seed, backend):
    """50 random configs (two in the simulator) in 2 to 6 blocks, built exact or not, give the oracle's values."""
    n_envs, n_steps = (2, 3) if is_simulated(backend) else (32, 20)
    for seed in range(first_seed, first_seed + (1 if is_simulated(backend) else 25)):
        config = {**random_config(seed), "blocks_per_env": 2 + seed // 5 % 5}
        result, n_tags = compare(backend, config, n_envs=n_envs, n_steps=n_steps, exact=seed // 5 % 2 == 0)
        assert result.max_error == 0, f"seed {seed}, {config}: {result}"
        assert n_tags > 0 or is_simulated(backend), f"seed {seed}, {config}: the run must exercise a tag"


@others
@pytest.mark.parametrize(
    ("full", "n_agents", "blocks", "n_last"),
    [
        (False, 5, 2, 2),
        (True, 5, 4, 0),
        (True, 100, 3, 32),
        (False, 100, 9, 4),
        (False, 60, 70, 0),
        (True, 1_000, 3, 332),
        (False, 1_000, 3, 332),
    ],
)
def test_results_do_not_depend_on_the_number_of_blocks(full, n_agents, blocks, n_last, backend):
    """Over several episodes: where agents do not divide over blocks, and where there are more than a block's threads.

    ``n_last`` agents are left for the last block.
    """
    if is_simulated(backend) and n_agents > 5:
        pytest.skip("more agents take minutes in the simulator")
    assert max(0, n_agents - (blocks - 1) * -(-n_agents // blocks)) == n_last
    n_envs, n_steps = (1, 3) if is_simulated(backend) else (3, 30)
    config = {
        "num_taggers": n_agents - 1,
        "grid_length": round(n_agents**0.5),
        "episode_length": 2,
        "use_full_observation": full,
    }
    want, alone = (free_run(each, config, n_envs=n_envs, n_steps=n_steps) for each in ("cpu", backend))
    shared = free_run(backend, {**config, "blocks_per_env": blocks}, n_envs=n_envs, n_steps=n_steps)
    assert want["_episode_"].min() > 1, "the run must restart episodes"
    assert want["tags"].sum() > 0, "the run must exercise a tag"
    assert_same(alone, want)
    assert_same(shared, want)


def test_blocks_share_an_environment_only_where_asked():
    """One block for any number of agents, and always in NumPy; an environment that had several forgets them."""
    env = TagGridWorld(num_taggers=9_999, use_full_observation=False)
    for asked, language, want in [
        (None, "cuda_c", 1),
        (40, "cuda_c", 40),
        (1, "cuda_c", 1),
        (2, "numba", 2),
        (2, "numpy", 1),
    ]:
        assert env.settle_blocks(asked, language) == want
        assert env.is_spread == bool(env.kernel_sequences(auto_reset=True)) == (want > 1)
        name = "spread.cu" if want > 1 else "kernel.cu"
        assert env.kernel_sources["cuda_c"].name == name
    assert set(env.get_data_dictionary()) == {"loc_x", "loc_y", "loc_x_reset_pool", "loc_y_reset_pool"}
