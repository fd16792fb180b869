"""Tag GridWorld: WarpDrive's values, worked examples, starts and the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.tag_gridworld import TagGridWorld, TagGridWorldConfig
from tests.envs.builders import got, put, started
from tests.support import is_simulated, on_every_backend
from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import Result, Subject, run_checks

alone_and_shared = pytest.mark.parametrize("blocks", [1, 3])

FIVE = {"num_taggers": 4, "grid_length": 4, "episode_length": 10}
CASE_1 = {"starting_location_x": [0, 0, 0, 0, 1], "starting_location_y": [0, 0, 0, 0, 1]}
CASE_2 = {"starting_location_x": [1, 3, 3, 1, 0], "starting_location_y": [1, 1, 3, 3, 1]}
TYPES = [0, 0, 0, 0, 1]


def grid_of(backend: str, n_envs: int = 1, auto_reset: bool = False, **config: Any) -> EnvWrapper:
    """Return a started wrapper."""
    return started("tag_gridworld", n_envs, backend=backend, auto_reset=auto_reset, **config)


def act(wrapper: EnvWrapper, actions: Any) -> None:
    """Step every environment with actions ``(n_agents,)`` or ``(n_envs, n_agents)``."""
    put(wrapper, sampled_actions=np.array(actions)[..., None])
    wrapper.step()


def cells(wrapper: EnvWrapper, env: int = 0) -> tuple[list[int], list[int]]:
    """Return where the agents of an environment are."""
    return got(wrapper, "loc_x", env).tolist(), got(wrapper, "loc_y", env).tolist()


def why(wrapper: EnvWrapper, env: int = 0) -> tuple[int, int, int]:
    """Return the flags of an environment."""
    return tuple(int(got(wrapper, name, env)) for name in ("terminated", "truncated", "_done_"))


def rewarded(wrapper: EnvWrapper, want: list[float], env: int = 0) -> None:
    """Fail unless an environment has these rewards."""
    np.testing.assert_allclose(got(wrapper, "rewards", env), want, rtol=1e-6)


# ------------------------------------------------------------------ WarpDrive's values


@on_every_backend
def test_first_case_of_warpdrive_is_reproduced(backend):
    """WarpDrive's first case gives its cells, rewards and observations.

    A tag pays each tagger and costs the runner; walls cost.
    """
    wrapper = grid_of(backend, **FIVE, **CASE_1)
    act(wrapper, [2, 0, 3, 4, 2])
    x, y = cells(wrapper)
    assert (x, y) == ([0, 0, 0, 0, 0], [0, 0, 1, 0, 1])
    rewarded(wrapper, [9.9, 10, 10, 9.9, -2])
    assert why(wrapper) == (1, 0, 1)
    want = [[*np.array(x) / 4, *np.array(y) / 4, *TYPES, *np.eye(5)[agent], 0.1] for agent in range(5)]
    np.testing.assert_array_equal(got(wrapper, "observations"), np.float32(want))


@on_every_backend
def test_second_case_of_warpdrive_is_reproduced(backend):
    """WarpDrive's second case is reproduced.

    The first step tags nobody, the second meets the runner's cell.
    """
    wrapper = grid_of(backend, **FIVE, **CASE_2)
    act(wrapper, [1, 3, 2, 4, 1])
    assert cells(wrapper) == ([2, 3, 2, 1, 1], [1, 2, 3, 2, 1])
    rewarded(wrapper, [-0.01, -0.01, -0.01, -0.01, 0.01])
    assert why(wrapper) == (0, 0, 0)
    act(wrapper, [2, 1, 0, 4, 0])
    assert cells(wrapper) == ([1, 4, 2, 1, 1], [1, 2, 3, 1, 1])
    rewarded(wrapper, [10, 10, 10, 10, -2])
    assert why(wrapper) == (1, 0, 1)


@on_every_backend
def test_kernel_case_of_warpdrive_is_reproduced(backend):
    """WarpDrive's kernel case with two restarting environments is reproduced.

    Episodes have one step.
    """
    wrapper = grid_of(backend, 2, auto_reset=True, **{**FIVE, "episode_length": 1}, **CASE_1)
    second = {"loc_x": CASE_2["starting_location_x"], "loc_y": CASE_2["starting_location_y"]}

    def move_second() -> None:
        put(wrapper, **{name: np.stack([got(wrapper, name), values]) for name, values in second.items()})

    move_second()
    act(wrapper, [[2, 0, 3, 4, 2], [1, 3, 2, 4, 1]])
    rewarded(wrapper, [9.9, 10, 10, 9.9, -2], env=0)
    rewarded(wrapper, [-0.01, -0.01, -0.01, -0.01, 0.01], env=1)
    assert (why(wrapper, 0), why(wrapper, 1)) == ((1, 0, 1), (0, 1, 1))
    x, y = np.array([2, 3, 2, 1, 1]) / 4, np.array([1, 2, 3, 2, 1]) / 4
    want = [[*x, *y, *TYPES, *np.eye(5)[agent], 1] for agent in range(5)]
    np.testing.assert_array_equal(got(wrapper, "final_observations", 1), np.float32(want))
    for env in (0, 1):
        assert cells(wrapper, env) == ([0, 0, 0, 0, 1], [0, 0, 0, 0, 1])

    move_second()
    act(wrapper, [[1, 2, 3, 4, 3], [2, 1, 0, 4, 0]])
    rewarded(wrapper, [-0.01, -0.11, -0.01, -0.11, 0.01], env=0)
    rewarded(wrapper, [10, 10, 10, 10, -2], env=1)


@on_every_backend
@pytest.mark.parametrize(("full", "first_sum", "last_sum"), [(True, 30.0, 33.33333), (False, 6.0, 10.83333)])
def test_episode_of_warpdrive_is_reproduced(full, first_sum, last_sum, backend):
    """WarpDrive's episode gives its returns, last cells and observation sums."""
    config = {"num_taggers": 4, "grid_length": 6, "episode_length": 20, "use_full_observation": full}
    wrapper = grid_of(backend, **config)
    np.testing.assert_allclose(got(wrapper, "observations").sum(), first_sum, rtol=1e-6)
    returns, agent = np.zeros(5), np.arange(5)
    for step in range(1, 21):
        assert why(wrapper) == (0, 0, 0)
        act(wrapper, (agent * agent + 2 * step + agent * step) % 5)
        returns += got(wrapper, "rewards")
    assert why(wrapper) == (0, 1, 1)
    np.testing.assert_allclose(returns, [-0.2, -0.2, -0.2, -1.9, 0.1], atol=1e-5)
    assert cells(wrapper) == ([3, 3, 3, 3, 1], [3, 3, 3, 0, 0])
    np.testing.assert_allclose(got(wrapper, "observations").sum(), last_sum, atol=1e-5)


# ------------------------------------------------------------------ worked by hand


@on_every_backend
def test_agents_that_swap_cells_do_not_meet(backend):
    """A tagger and the runner can swap cells without a tag.

    Only cells after the move count.
    """
    wrapper = grid_of(backend, num_taggers=1, grid_length=4, starting_location_x=[1, 2], starting_location_y=[3, 3])
    act(wrapper, [1, 2])
    assert cells(wrapper) == ([2, 1], [3, 3])
    rewarded(wrapper, [-0.01, 0.01])
    assert why(wrapper) == (0, 0, 0)


@on_every_backend
def test_every_wall_stops_and_costs(backend):
    """Each wall stops an agent and costs the penalty.

    Moves along a wall or away from it, and staying, are free.
    """
    x, y = [0, 4, 2, 2, 0, 4, 4, 2], [2, 2, 0, 4, 0, 4, 3, 2]
    wrapper = grid_of(backend, num_taggers=7, grid_length=4, starting_location_x=x, starting_location_y=y)
    act(wrapper, [2, 1, 4, 3, 3, 2, 0, 0])
    assert cells(wrapper) == ([0, 4, 2, 2, 0, 3, 4, 2], [2, 2, 0, 4, 1, 4, 3, 2])
    rewarded(wrapper, [-0.11] * 4 + [-0.01] * 3 + [0.01])


@on_every_backend
def test_tag_in_the_last_step_is_no_truncation(backend):
    """A tag in the last step is no truncation.

    At the time limit an episode is truncated, unless it ends with a tag.
    """
    start = {"starting_location_x": [0, 2], "starting_location_y": [0, 0]}
    wrapper = grid_of(backend, 2, num_taggers=1, grid_length=4, episode_length=2, **start)
    act(wrapper, [[1, 0], [0, 0]])
    assert (why(wrapper, 0), why(wrapper, 1)) == ((0, 0, 0), (0, 0, 0))
    act(wrapper, [[1, 0], [0, 0]])
    assert (why(wrapper, 0), why(wrapper, 1)) == ((1, 0, 1), (0, 1, 1))


@on_every_backend
@alone_and_shared
def test_runner_sees_the_nearest_tagger_and_the_lowest_id_among_equals(blocks, backend):
    """The runner observes the nearest tagger, or the lowest id.

    Three of five taggers are equally near. Taggers see the runner. Each of three blocks has one of the three.
    """
    x, y = [8, 3, 5, 4, 4, 4], [8, 4, 4, 7, 3, 4]
    start = {"starting_location_x": x, "starting_location_y": y}
    wrapper = grid_of(backend, num_taggers=5, grid_length=8, use_full_observation=False, blocks=blocks, **start)
    want = [[x[agent] / 8, y[agent] / 8, 0.5, 0.5, 0, 0] for agent in range(5)]
    np.testing.assert_array_equal(got(wrapper, "observations"), [*want, [0.5, 0.5, 3 / 8, 0.5, 1, 0]])
    act(wrapper, [0, 2, 0, 0, 0, 0])  # the first of the three steps away: now the second one is seen
    np.testing.assert_array_equal(
        got(wrapper, "observations")[5], np.float32([0.5, 0.5, 5 / 8, 0.5, 1, np.float32(1) / np.float32(100)])
    )


def test_python_contract_is_warpdrives():
    """The Python class works in dicts, like WarpDrive's.

    The last agent is the runner, and a tag ends the episode.
    """
    env = TagGridWorld(**FIVE, **CASE_1)
    assert (env.name, env.num_agents, env.taggers, env.runners) == (
        "TagGridWorld",
        5,
        dict.fromkeys(range(4), True),
        {4: True},
    )
    assert {space.n for space in env.action_space.values()} == {5}
    observations = env.reset()
    assert [observations[agent].shape for agent in range(5)] == [(21,)] * 5
    _, rewards, done, info = env.step(dict(enumerate([2, 0, 3, 4, 2])))
    np.testing.assert_allclose([rewards[agent] for agent in range(5)], [9.9, 10, 10, 9.9, -2], rtol=1e-6)
    assert (done, info) == ({"__all__": True}, {})


# ------------------------------------------------------------------ starts


@on_every_backend
def test_start_is_warpdrives(backend):
    """Starts are WarpDrive's: taggers in the middle, runner at the corner."""
    wrapper = grid_of(backend, 3, num_taggers=2, grid_length=7)
    for _ in range(2):
        for env in range(3):
            assert cells(wrapper, env) == ([3, 3, 0], [3, 3, 0])
        wrapper.reset_all_envs()
    assert cells(grid_of(backend, num_taggers=2, grid_length=7, starting_location_y=[1, 2, 5])) == (
        [3, 3, 0],
        [1, 2, 5],
    )


def test_pool_holds_taggers_off_the_rim_and_the_runner_at_the_corner():
    """A pool has taggers in inner cells, and the runner at the corner."""
    x, y = TagGridWorldConfig(num_taggers=40, grid_length=5, reset_pool_size=200, seed=3).initial_states
    assert x.shape == y.shape == (200, 41)
    assert (x[:, -1] == 0).all()
    assert (y[:, -1] == 0).all()
    cells, counts = np.unique(np.stack([x[:, :-1], y[:, :-1]], -1).reshape(-1, 2), axis=0, return_counts=True)
    np.testing.assert_array_equal(
        cells, np.stack(np.meshgrid(range(1, 5), range(1, 5), indexing="ij"), -1).reshape(-1, 2)
    )
    assert ((counts - 500) ** 2 / 500).sum() < 37.7  # chi-square, 15 degrees of freedom, 0.1 %
    again = TagGridWorldConfig(num_taggers=40, grid_length=5, reset_pool_size=200, seed=3).initial_states
    np.testing.assert_array_equal(again, (x, y))
    assert (TagGridWorldConfig(num_taggers=40, grid_length=5, reset_pool_size=200, seed=4).initial_states[0] != x).any()


@on_every_backend
def test_pool_rows_are_joint_and_uniform(backend):
    """Pool rows are drawn evenly, and both coordinates together."""
    n_envs, n_resets = (5, 2) if is_simulated(backend) else (1000, 4)
    wrapper = grid_of(backend, n_envs, num_taggers=3, grid_length=50, reset_pool_size=5, seed=2)
    data = wrapper.cuda_data_manager
    pool = np.concatenate([data.pull_data_from_device(f"loc_{axis}_reset_pool") for axis in "xy"], axis=1)
    assert len(np.unique(pool[:, :3], axis=0)) == len(np.unique(pool[:, 4:7], axis=0)) == 5
    drawn = []
    for _ in range(n_resets):
        start = np.concatenate([data.pull_data_from_device(f"loc_{axis}") for axis in "xy"], axis=1)
        is_row = (start[:, None] == pool).all(-1)
        assert (is_row.sum(1) == 1).all()
        drawn.append(is_row.argmax(1))
        seen = data.pull_data_from_device("observations")[:, 0, :8]
        np.testing.assert_array_equal(seen, start.astype(np.float32) / np.float32(50))
        wrapper.reset_all_envs()
    assert (drawn[0] != drawn[1]).any()
    if not is_simulated(backend):
        counts = np.bincount(np.concatenate(drawn), minlength=5)
        assert ((counts - 800) ** 2 / 800).sum() < 18.5  # chi-square, 4 degrees of freedom, 0.1 %


# ------------------------------------------------------------------ one row for all agents


def one_row(cls, backend, **config) -> Result:
    """Return the result of the check named one-row.

    Its kernels have one row of observations for all agents.
    """
    n_envs, n_steps = (2, 4) if is_simulated(backend) else (7, 12)
    subject = Subject(target="", cls=cls, config={**FIVE, **config}, backend=backend, n_envs=n_envs, n_steps=n_steps)
    return run_checks(subject, ["one-row"])[0]


@on_every_backend
def test_one_row_is_what_all_agents_see(backend):
    """The single row is each agent's row without its mark.

    A partial observation has no single row.
    """
    full, partial = (one_row(TagGridWorld, backend, use_full_observation=is_full) for is_full in (True, False))
    assert full.status == ("skipped" if backend == "cpu" else "passed"), full
    assert partial.status == "skipped"


def test_one_row_that_marks_somebody_is_caught(tmp_path):
    """A single row that marks an agent fails the check.

    The kernel uses the first agent's row for all.
    """
    folder = Path(TagGridWorld.kernel_sources["cuda_c"]).parent
    for name in ("kernel.cu", "agent.cuh"):
        (tmp_path / name).write_text((folder / name).read_text().replace("N_ROWS == 1 ? N_AGENTS : row", "row"))
    sources = {**TagGridWorld.kernel_sources, "cuda_c": tmp_path / "kernel.cu"}
    faulty = type("Faulty", (TagGridWorld,), {"kernel_sources": sources})
    result = one_row(faulty, "host")
    assert result.status == "failed"
    assert "observations of environment 0, agent 0, component 15" in result.detail


# ------------------------------------------------------------------ config


def test_sizes_follow_from_the_config():
    """Features, bytes and operations follow from the config, by hand."""
    full, partial = (TagGridWorld(num_taggers=1, use_full_observation=full) for full in (True, False))
    assert (full.config.n_features, partial.config.n_features) == (9, 6)
    assert full.bytes_per_step == 4 * (2 * (6 + 9) + 5)
    assert full.ops_per_step == 30
