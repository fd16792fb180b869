"""Batched NumPy baselines against the NumPy reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bench.core.errors import Skip
from bench.core.point import PLAIN, PLAIN_ENVS, PresetName, why_no_plain
from bench.workloads.cases import CASES
from bench.workloads.plain import BATCHES, tag_continuous
from bench.workloads.plain.check import agreement
from bench.workloads.plain.classic_control import Single
from bench.workloads.shared import EPISODE_LENGTHS, SEED, env_config
from warpdrive_min import EnvWrapper
from warpdrive_min.envs import ENVS
from warpdrive_min.errors import ConfigError

SHORT = {"episode_length": 12}
CROWDED = {**SHORT, "grid_length": 4.0, "tagging_distance": 0.05, "edge_hit_penalty": -0.5, "max_speed": 0.7}


def roles(num_taggers: int, num_runners: int) -> dict[str, int]:
    """Return the numbers of taggers and runners."""
    return {"num_taggers": num_taggers, "num_runners": num_runners}


SUBJECTS = [
    *(pytest.param(env, 1, 64, SHORT, id=env) for env in EPISODE_LENGTHS),
    pytest.param("tag_gridworld", 5, 16, {**SHORT, "grid_length": 4}, id="tag_gridworld-all"),
    pytest.param(
        "tag_gridworld", 6, 16, {**SHORT, "grid_length": 4, "use_full_observation": False}, id="tag_gridworld"
    ),
    pytest.param("tag_continuous", 12, 16, {**CROWDED, **roles(9, 3), "num_other_agents_observed": 10}, id="partition"),
    pytest.param("tag_continuous", 60, 3, {**CROWDED, **roles(56, 4), "num_other_agents_observed": 2}, id="minima"),
    pytest.param("tag_continuous", 5, 16, {**CROWDED, "runner_exits_game_after_tagged": False}, id="all-stay"),
]
SPREAD = {
    "cartpole": [2.4, 2.0, 0.2, 2.0],
    "mountain_car": [0.6, 0.07],
    "continuous_mountain_car": [0.6, 0.07],
    "acrobot": [np.pi, np.pi, 12.0, 20.0],
    "pendulum": [np.pi, 8.0],
}
"""Bounds of start states; every event soon happens within them."""


def both(env: str, n_agents: int, n_envs: int, changes: dict):
    """Return a batch and a reference with one environment less."""
    made = ENVS[env](**{**env_config(env, n_agents), **changes})
    oracle = EnvWrapper(made, num_envs=n_envs, env_backend="cpu", seed=SEED)
    oracle.reset()
    return BATCHES[env](made.config, n_envs + 1, SEED), oracle


def test_environments_without_one_say_why():
    """Environments without a NumPy baseline report the reason.

    They have no such points; the best CPU code there is C++.
    """
    assert tuple(BATCHES) == PLAIN_ENVS
    assert set(BATCHES) < set(ENVS)
    for env in ("covid19_economy", "rice"):
        assert why_no_plain(["cartpole", env]).startswith(f"{env}: no NumPy baseline")
    assert why_no_plain(BATCHES) == ""
    for case, preset in itertools.product(CASES.values(), PresetName):
        assert not any(p["backend"] == PLAIN and p["env"] not in BATCHES for p in case.points(preset.value))


@pytest.mark.parametrize("env", ["covid19_economy", "rice"])
def test_an_economy_in_plain_numpy_is_skipped(env):
    """A point without a NumPy baseline is skipped with a reason.

    Old records of such points can be queried.
    """
    with pytest.raises(Skip, match=f"{env}: no NumPy baseline"):
        CASES["env_step"].setup({"env": env, "backend": PLAIN, "n_envs": 2, "n_agents": 52})


@pytest.mark.parametrize(("env", "n_agents", "n_envs", "changes"), SUBJECTS)
def test_steps_are_those_of_the_oracle(env, n_agents, n_envs, changes):
    """Steps match the reference, also at terminations and truncations."""
    batch, oracle = both(env, n_agents, n_envs, changes)
    generator = np.random.default_rng(1)
    n_terminated = n_truncated = n_ended = 0
    for _ in range(30):
        if isinstance(batch, Single):
            limits = np.array(SPREAD[env], np.float32)[:, None]
            batch.state[:] = generator.uniform(-limits, limits, batch.state.shape)
            for name in ("cos", "sin") if env == "pendulum" else ():
                batch.observations[("cos", "sin").index(name)] = getattr(np, name)(batch.state[0])
        got = agreement(batch, oracle, 1)
        assert got.max_error <= oracle.env.tolerance, got
        assert got.n_in_doubt <= 0.05 * got.n_rows
        n_ended += got.n_done
        n_terminated += batch.terminated.sum()
        n_truncated += batch.truncated.sum()
    assert n_ended > 0
    assert n_truncated > 0
    assert (n_terminated > 0) == (env != "pendulum" and changes.get("runner_exits_game_after_tagged", True))


@pytest.mark.parametrize(("env", "n_agents", "n_envs", "changes"), SUBJECTS)
def test_episodes_start_as_the_oracle_starts_them(env, n_agents, n_envs, changes):
    """Episodes start within the reference's range."""
    batch, oracle = both(env, n_agents, 300 if n_agents < 60 else 30, changes)
    batch.restart(np.arange(batch.n_envs))
    data, got = oracle.cuda_data_manager, batch.arrays()
    names = [name for name in got if name not in ("final_observations", "rewards")]
    for name in names:
        want = data.pull_data_from_device(name)
        values = np.asarray(got[name], np.float64).reshape(len(got[name]), *want.shape[1:])
        extent = float(np.ptp(want)) + 1e-6
        assert abs(values.min() - want.min()) < 0.05 * extent, name
        assert abs(values.max() - want.max()) < 0.05 * extent, name
        assert abs(values.mean() - want.mean()) < 0.1 * extent, name
        if np.ptp(want, axis=0).any():
            assert np.ptp(values, axis=0).any(), f"{name} is the same in all environments"


@pytest.mark.parametrize(("env", "n_agents", "n_envs", "changes"), SUBJECTS)
def test_actions_are_uniform(env, n_agents, n_envs, changes):
    """Actions are uniform over every choice or the full range."""
    batch, oracle = both(env, n_agents, 400, changes)
    drawn = np.stack([batch.as_sampled(batch.draw()) for _ in range(20)]).astype(np.float64)
    space = oracle.env.action_space[0]
    if hasattr(space, "low"):
        low, high = (float(np.min(bound)) for bound in (space.low, space.high))
        assert low <= drawn.min() < low + 0.01 * (high - low)
        assert high >= drawn.max() > high - 0.01 * (high - low)
        assert drawn.mean() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
        return
    for column, n in enumerate(getattr(space, "nvec", [getattr(space, "n", 0)])):
        counts = np.bincount(drawn[..., column].astype(int).ravel(), minlength=n)
        assert len(counts) == n
        assert np.abs(counts / counts.mean() - 1).max() < 0.25


@pytest.mark.parametrize(("env", "n_agents", "n_envs", "changes"), SUBJECTS)
def test_what_goes_back_does_the_same_again(env, n_agents, n_envs, changes):
    """Steps from a restored snapshot repeat, past episode ends."""
    batch, _ = both(env, n_agents, n_envs, changes)

    def played() -> dict[str, np.ndarray]:
        for _ in range(15):
            batch.step(batch.draw())
        return {name: np.array(array) for name, array in batch.arrays().items()}

    played()
    restore = batch.snapshot()
    first = played()
    restore()
    again = played()
    assert batch.timestep.min() < 15
    for name, array in first.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def test_neighbours_are_those_of_a_sort():
    """Both neighbour searches sort by distance, then by id."""
    distance = np.random.default_rng(0).integers(0, 6, (3, 4, 9)).astype(np.float32)
    distance[:, 1, 3:] = np.inf
    want = np.argsort(distance, axis=-1, kind="stable")[..., :5]
    want[np.isinf(np.take_along_axis(distance, want, axis=-1))] = tag_continuous.NOBODY
    for search in (tag_continuous.by_partition, tag_continuous.by_minima):
        np.testing.assert_array_equal(search(distance.copy(), 5), want)


@pytest.mark.parametrize("env", EPISODE_LENGTHS)
def test_another_environment_is_seen(env):
    """A batch with different physics fails the check."""
    batch, oracle = both(env, 1, 32, {})
    other = "force" if env == "mountain_car" else "power" if env == "continuous_mountain_car" else "gravity"
    batch.config = batch.config.replace(**{other: 1.5 * getattr(batch.config, other)})
    assert agreement(batch, oracle, 8).max_error > oracle.env.tolerance


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ("tag_gridworld", {"reset_pool_size": 4}),
        ("tag_gridworld", {"grid_length": 3_000}),
        ("tag_continuous", {"use_full_observation": True}),
        ("tag_continuous", {"start": "fixed"}),
    ],
)
def test_configs_that_a_baseline_does_not_have_are_refused(env, changes):
    """A config that the baseline lacks is refused."""
    with pytest.raises(ConfigError, match="plain Tag"):
        both(env, 5, 4, changes)


def test_an_oracle_that_restarts_is_refused():
    """A reference with auto-reset is refused.

    It would have lost the final states.
    """
    made = ENVS["cartpole"]()
    oracle = EnvWrapper(made, num_envs=2, env_backend="cpu", auto_reset=True)
    with pytest.raises(ConfigError, match="must not restart"):
        agreement(BATCHES["cartpole"](made.config, 2, 0), oracle, 1)


@pytest.mark.parametrize("draws", [True, False])
def test_a_point_of_the_bench_that_does_another_work_is_refused(draws, monkeypatch):
    """A NumPy baseline with wrong steps fails its check."""
    point = {"env": "cartpole", "backend": PLAIN, "n_envs": 32, "n_agents": 1}
    workload = CASES["env_step" if draws else "step"].setup(point)
    assert workload.facts.threads == 1
    assert workload.check().passed
    monkeypatch.setattr(BATCHES["cartpole"], "advance", lambda batch, actions: None)
    assert not workload.check().passed
