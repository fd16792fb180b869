"""Every backend that runs here against the NumPy oracle, over the shipped environments."""

from __future__ import annotations

import numpy as np
import pytest

from envs import ENVS
from tests.agreement import free_run, start, step_from_same_state
from tests.support import (
    SCENARIOS,
    TAG_CONFIGS,
    is_simulated,
    on_every_backend,
    on_every_other_backend,
    random_tag_config,
)
from warpdrive_min.consistency import Agreement
from warpdrive_min.policies import random_policy

every_scenario = pytest.mark.parametrize(("name", "config"), SCENARIOS.values(), ids=SCENARIOS)


def size(backend: str, n_envs: int, n_steps: int) -> dict[str, int]:
    """Return how much to run: little in the simulator, which does some thousand threads a second."""
    return (
        {"n_envs": min(n_envs, 3), "n_steps": min(n_steps, 8)}
        if is_simulated(backend)
        else {"n_envs": n_envs, "n_steps": n_steps}
    )


def check(result: Agreement, tolerance: float) -> None:
    """Every array agrees, and little was left out as a matter of rounding."""
    assert result.max_error <= tolerance, str(result)
    assert result.n_in_doubt <= 0.1 * result.n_rows  # agents that slide along an edge are all in doubt


@on_every_other_backend
@every_scenario
def test_step_agrees_from_the_same_state(name, config, backend):
    """Each step gives the oracle's arrays, from the state that the backend itself reached."""
    result, _ = step_from_same_state(name, config, backend, **size(backend, 200, 100))
    check(result, ENVS[name].tolerance)
    if not is_simulated(backend):
        assert result.n_done > 0, "the run must end episodes"


@on_every_other_backend
@pytest.mark.parametrize("mode", TAG_CONFIGS)
def test_tag_agrees_in_the_reference_configs(mode, backend):
    """The four configs of WarpDrive's own test agree step by step, and somebody is tagged."""
    result, n_tagged = step_from_same_state("tag_continuous", TAG_CONFIGS[mode], backend, **size(backend, 40, 60))
    check(result, ENVS["tag_continuous"].tolerance)
    if not is_simulated(backend):
        assert n_tagged > 0, "the run must exercise a tag"


@on_every_other_backend
@pytest.mark.parametrize("first_seed", range(0, 200, 25))
def test_tag_agrees_in_random_configs(first_seed, backend):
    """200 random configs (one in each lot of 25 in the simulator) agree step by step, each having tagged someone."""
    for seed in range(first_seed, first_seed + (1 if is_simulated(backend) else 25)):
        config = random_tag_config(seed)
        result, n_tagged = step_from_same_state("tag_continuous", config, backend, seed=seed, **size(backend, 16, 20))
        check(result, ENVS["tag_continuous"].tolerance)
        assert n_tagged > 0 or is_simulated(backend), f"seed {seed}, {config}: the run must exercise a tag"


@pytest.mark.as_shipped
@on_every_other_backend
@every_scenario
def test_exact_runs_are_bit_identical(name, config, backend):
    """Free-running with auto-reset, 1,000 environments go through the oracle's bits for 1,000 steps."""
    run = size(backend, 1000, 1000)
    want, want_sums = free_run(name, config, "cpu", exact=True, **run)
    got, got_sums = free_run(name, config, backend, exact=True, **run)
    assert is_simulated(backend) or want["_episode_"].max() > 10, "the run must restart episodes"
    np.testing.assert_array_equal(got_sums, want_sums, err_msg="checksums of (observations, rewards) by step")
    for key, array in want.items():
        np.testing.assert_array_equal(got[key].view(np.int32), array.view(np.int32), err_msg=key)


@on_every_backend
@every_scenario
def test_environment_does_not_depend_on_how_many_there_are(name, config, backend):
    """The first environments of a larger run go through the same states to the bit."""
    run = size(backend, 5, 40)
    few, _ = free_run(name, config, backend, exact=False, **run)
    more, _ = free_run(name, config, backend, exact=False, n_envs=run["n_envs"] * 3 + 1, n_steps=run["n_steps"])
    for key in ("observations", "rewards", "sampled_actions", "_timestep_", "_episode_"):
        np.testing.assert_array_equal(more[key][: run["n_envs"]], few[key], err_msg=key)


@on_every_other_backend
@every_scenario
def test_same_seed_draws_the_same_actions_and_starts(name, config, backend):
    """Actions and starts of one seed are the oracle's to the bit, exact build or not; another seed's are not."""
    drawn = {}
    for key, (each, seed) in {"got": (backend, 7), "want": ("cpu", 7), "other": ("cpu", 8)}.items():
        wrapper = start(name, config, each, 4, seed=seed)
        data = wrapper.cuda_data_manager
        starts = {array: data.pull_data_from_device(array) for array in data.array_names()}
        draw = random_policy(wrapper, seed)
        actions = []
        for _ in range(6):
            draw()
            actions.append(data.pull_data_from_device("sampled_actions"))
        drawn[key] = (np.stack(actions), starts)
    (actions, starts), (want_actions, want_starts) = drawn["got"], drawn["want"]
    np.testing.assert_array_equal(actions, want_actions)
    for array, want in want_starts.items():
        # An observation may be a sine, which is not the same in every library.
        tolerance = ENVS[name].tolerance if array == "observations" else 0
        np.testing.assert_allclose(starts[array], want, rtol=0, atol=tolerance, err_msg=array)
    assert (drawn["other"][0] != want_actions).any()
    has_one_start = name == "tag_gridworld" and not config.get("reset_pool_size")
    other_starts = drawn["other"][1]["observations"]
    assert has_one_start or (other_starts != want_starts["observations"]).any()
