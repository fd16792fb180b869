"""One-agent environments against Gymnasium, and bit by bit against NumPy."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

import envs.classic_control
from tests.envs.builders import SINGLE, SUBJECTS, bits, read, reads, started, step, write
from tests.support import BACKENDS_HERE, is_simulated, on_backends, on_every_backend, on_every_other_backend
from warpdrive_min.agreement import difference

every_environment = pytest.mark.parametrize("name", SINGLE)
ENDS = ("terminated", "truncated", "_done_")


def test_there_are_five_of_them():
    """Each one-agent environment of classic control has a subject."""
    folders = {path.parent.name for path in Path(envs.classic_control.__file__).parent.glob("[!_]*/env.py")}
    assert set(SINGLE) == folders == set(SUBJECTS)
    assert len(folders) == 5


# ------------------------------------------------------------------ equations


@on_backends("name", SINGLE, BACKENDS_HERE, cpu=["cartpole"])
def test_step_is_gymnasiums_from_the_same_state(name, backend):
    """A step from the same state equals Gymnasium's.

    10,000 random steps from anywhere, each from the backend's own state. NumPy's steps, which exact kernels repeat by
    day, are mostly nightly.
    """
    pytest.importorskip("gymnasium")
    subject = SUBJECTS[name]
    module, cls = subject.gymnasium.split(":")
    oracle = getattr(importlib.import_module(f"gymnasium.envs.classic_control.{module}"), cls)()
    n_envs, n_steps = (2, 5) if is_simulated(backend) else (100, 100)
    wrapper, generator = started(name, n_envs, backend=backend, auto_reset=False), np.random.default_rng(5)
    period = np.array(wrapper.env.state_period or [0.0])
    n_ends = n_wrong = 0
    visited = []
    for number in range(n_steps):
        if number % 5 == 0:
            write(wrapper, "state", generator.uniform(*subject.spread, (n_envs, 1, len(subject.spread[0]))))
        before = read(wrapper, "state")[:, 0]
        step(wrapper, subject.draw(generator, n_envs))
        want = {"state": [], "observations": [], "rewards": [], "terminated": []}
        for state, action in zip(before, read(wrapper, "sampled_actions")[:, 0], strict=True):
            oracle.state, oracle.steps_beyond_terminated = state.astype(np.float64), None
            is_choice = np.issubdtype(action.dtype, np.integer)
            observation, reward, terminated, _, _ = oracle.step(int(action[0]) if is_choice else action)
            for key, value in zip(want, (oracle.state, observation, reward, terminated), strict=True):
                want[key].append(value)
        got = {key: read(wrapper, key).reshape(n_envs, -1) for key in want}
        assert difference(np.array(want["state"]), got["state"], period).error < subject.tolerance
        np.testing.assert_allclose(got["observations"], want["observations"], atol=subject.tolerance)
        is_wrong = got["terminated"][:, 0] != want["terminated"]
        np.testing.assert_allclose(
            got["rewards"][~is_wrong, 0], np.array(want["rewards"])[~is_wrong], atol=10 * subject.tolerance
        )
        n_wrong, n_ends = n_wrong + is_wrong.sum(), n_ends + sum(want["terminated"])
        visited.append(got["state"])
    assert n_wrong <= 2, "at most one so near a threshold that rounding decides"
    if not is_simulated(backend):
        assert n_ends > 100 or subject.last is None, "the run must end episodes"
        assert_goes_far(name, np.array(visited))


def assert_goes_far(name: str, states: np.ndarray) -> None:
    """Check that ``states`` have wrapped angles or wall hits.

    Their shape is (n_steps, n_envs, n_state).
    """
    if SINGLE[name].state_period:
        assert (np.abs(np.diff(states[..., 0], axis=0)) > math.pi).sum() > 100
    elif "car" in name.split("_"):
        assert (states[..., 0] == np.float32(-1.2)).sum() > 50


THIRDS = [(step // 3) % 3 for step in range(1, 51)]
EPISODES = {
    "cartpole": (
        {"episode_length": 200},
        [-0.036269, -0.017838, 0.036442, -0.012738],
        [(step // 3) % 2 for step in range(1, 24)],
        ([-0.100235, 0.144871, 0.219039, 0.419101], 23, True),
    ),
    "mountain_car": ({}, [-0.572537, 0], THIRDS, ([-0.497489, -0.004671], -50, False)),
    "continuous_mountain_car": (
        {},
        [-0.572537, 0],
        [[math.sin(0.3 * step)] for step in range(1, 51)],
        ([-0.573851, -0.001124], -2.600995, False),
    ),
    "acrobot": (
        {"episode_length": 200},
        [np.cos(-0.072537), np.sin(-0.072537), np.cos(-0.035676), np.sin(-0.035676), 0.072883, -0.025475],
        THIRDS,
        ([0.992646, 0.121057, 0.888310, -0.459243, -0.208580, 0.106496], -50, False),
    ),
    **{
        f"pendulum, {gravity}": (
            {"gravity": gravity},
            [np.cos(-2.278826), np.sin(-2.278826), -0.356762],
            [[2 * math.sin(0.3 * step)] for step in range(1, 51)],
            last,
        )
        for gravity, last in {
            10.0: ([-0.638685, 0.769469, -1.050763], -361.55203, False),
            9.81: ([-0.679579, 0.733602, -1.252926], -361.15589, False),  # WarpDrive's gravity
        }.items()
    },
}
"""Config, first observation, actions; last observation, return, final-end flag."""


@pytest.mark.parametrize("episode", EPISODES)
def test_episode_of_gymnasium_is_reproduced(episode):
    """A published episode of Gymnasium is reproduced from its seed.

    Seed 54231 gives the published observation and return.
    """
    config, first, actions, (last, want_return, want_end) = EPISODES[episode]
    env = SINGLE[episode.split(",")[0]](reset_pool_size=1, seed=54231, **config)
    np.testing.assert_allclose(env.reset()[0], first, atol=1e-6)
    total, ends = 0.0, []
    for action in actions:
        observations, rewards, dones, info = env.step({0: action})
        total, ends = total + rewards[0], [*ends, dones["__all__"]]
    np.testing.assert_allclose(observations[0], last, atol=1e-5)
    np.testing.assert_allclose(total, want_return, atol=1e-4)
    assert (ends, info) == ([False] * (len(actions) - 1) + [want_end], {})


# ------------------------------------------------------------------ ends and starts


@on_every_backend
@every_environment
def test_finished_episode_keeps_its_last_observation_and_starts_again(name, backend):
    """A finished episode keeps its last observation, and restarts.

    Both end at the time limit, one earlier; its next start appears.
    """
    subject = SUBJECTS[name]
    wrapper = started(name, 2, backend=backend, episode_length=2)
    step(wrapper, subject.quiet)
    assert reads(wrapper, *ENDS, "_timestep_") == [[0, 0], [0, 0], [0, 0], [1, 1]]
    quiet = read(wrapper, "state")[1, 0]
    last = quiet if subject.last is None else subject.last
    write(wrapper, "state", np.array([last, quiet])[:, None])
    step(wrapper, subject.quiet)
    terminated = [int(subject.last is not None), 0]
    assert reads(wrapper, *ENDS) == [terminated, [1 - terminated[0], 1], [1, 1]]
    assert reads(wrapper, "_timestep_", "_episode_") == [[0, 0], [2, 2]]
    state = read(wrapper, "state")[:, 0]
    assert (state[0] != state[1]).any()
    assert ((subject.starts[0] - 1e-6 <= state) & (state <= subject.starts[1] + 1e-6)).all()
    np.testing.assert_allclose(read(wrapper, "observations")[:, 0], subject.observe(state), atol=1e-6)
    twin = started(name, backend=backend, states=[last, quiet], auto_reset=False)
    step(twin, subject.quiet)
    np.testing.assert_array_equal(read(wrapper, "final_observations"), read(twin, "observations"))


@every_environment
def test_without_auto_reset_only_finished_environments_restart(name):
    """The resetter restarts finished ones and leaves the others."""
    wrapper = started(name, 2, episode_length=2, auto_reset=False)
    write(wrapper, "_timestep_", np.array([1, 0]))
    step(wrapper, SUBJECTS[name].quiet)
    assert reads(wrapper, *ENDS) == [[0, 0], [1, 0], [1, 0]]
    before = read(wrapper, "state")
    wrapper.reset_only_done_envs()
    assert (read(wrapper, "state") == before).all((1, 2)).tolist() == [False, True]
    assert reads(wrapper, "_timestep_", "_done_") == [[0, 1], [0, 0]]


@every_environment
def test_starts_differ_by_environment_and_episode(name):
    """Starts differ by environment and episode, evenly over their range."""
    low, high = SUBJECTS[name].starts
    wrapper = started(name, 2000)
    first = read(wrapper, "state")
    wrapper.reset()
    starts = np.concatenate([first, read(wrapper, "state")])[:, 0].astype(np.float64)
    assert len(np.unique(starts, axis=0)) > 3980  # of the millions that a float32 tells apart
    assert (np.abs(starts - (low + high) / 2) <= (high - low) / 2 + 1e-7).all()
    error = 4 * (high - low) / np.sqrt(12 * 4000)  # four standard errors
    assert (np.abs(starts.mean(0) - (low + high) / 2) <= error + 1e-12).all()
    np.testing.assert_allclose(starts.std(0), (high - low) / np.sqrt(12), rtol=0.05)


@on_every_backend
@every_environment
def test_pool_gives_the_oracles_rows_and_their_observations(name, backend):
    """A pool's starts and observations equal the reference's rows."""
    n_envs = 3 if is_simulated(backend) else 600
    pair = [started(name, n_envs, backend=each, reset_pool_size=3, seed=1) for each in (backend, "cpu")]
    for wrapper in pair:
        wrapper.init_reset_pool(seed=5)
        wrapper.reset()
    state, pool = read(pair[0], "state")[:, 0], read(pair[0], "state_reset_pool")[:, 0]
    np.testing.assert_array_equal(state, read(pair[1], "state")[:, 0])
    rows = (state[:, None] == pool[None]).all(-1)
    assert rows.any(1).all()
    np.testing.assert_allclose(read(pair[0], "observations")[:, 0], SUBJECTS[name].observe(state), atol=1e-6)
    if not is_simulated(backend):
        np.testing.assert_allclose(rows.mean(0), 1 / 3, atol=4 * np.sqrt(2 / 9 / 600))


@every_environment
@pytest.mark.parametrize("size", [0, 1, 4])
def test_pool_has_a_row_at_least_and_is_drawn_by_its_seed(name, size):
    """A pool has the configured rows, at least one."""
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


# ------------------------------------------------------------------ backends


@on_every_other_backend
@every_environment
def test_exact_runs_from_all_over_the_place_are_bit_identical(name, backend):
    """Exact runs from random states are bit-identical to the reference."""
    subject = SUBJECTS[name]
    n_envs, n_steps = (2, 6) if is_simulated(backend) else (50, 100)
    pair = [started(name, n_envs, backend=each, exact=True, episode_length=n_steps // 2) for each in (backend, "cpu")]
    scattered = np.random.default_rng(2).uniform(*subject.spread, (n_envs, 1, len(subject.spread[0])))
    for wrapper in pair:
        write(wrapper, "state", scattered)
    generator = np.random.default_rng(4)
    n_ends = 0
    for number in range(n_steps):
        actions = subject.draw(generator, n_envs)
        for wrapper in pair:
            step(wrapper, actions)
        n_ends += read(pair[1], "terminated").sum()
        for key in pair[1].cuda_data_manager.array_names():
            got, want = (bits(read(wrapper, key)) for wrapper in pair)
            np.testing.assert_array_equal(got, want, err_msg=f"{key}, step {number}")
    assert (read(pair[1], "_episode_") >= 3).all(), "every environment must restart twice"
    assert is_simulated(backend) or subject.last is None or n_ends > 5, "the run must end episodes"


# ------------------------------------------------------------------ configs


@every_environment
def test_whole_numbers_are_compiled_in_as_floats(name):
    """Whole numbers of a config become float constants.

    YAML's 1 for 1.0 would make Numba use float64.
    """
    default = SINGLE[name]().config
    fields = [field for field, value in default if isinstance(value, float)]
    whole = {field: round(getattr(default, field)) for field in fields if round(getattr(default, field)) > 0}
    assert whole, "the config must have a whole number"
    env = SINGLE[name](**whole)
    assert {type(getattr(env.config, field)) for field in whole} == {float}
    constants = env.get_constants()
    sizes = {"RESET_POOL_SIZE", "N_STATE", "N_FEATURES"}
    assert {key for key, value in constants.items() if not isinstance(value, float)} == sizes


@every_environment
def test_bytes_per_step_are_those_of_the_arrays(name):
    """Bytes per step count the arrays that a step touches.

    Reads: state, counter, actions; writes: both, observation, reward, three flags.
    """
    wrapper = started(name)
    read_ = ("state", "sampled_actions", "_timestep_")
    written = ("state", "_timestep_", "observations", "rewards", *ENDS)
    assert wrapper.env.bytes_per_step == sum(read(wrapper, key).nbytes for key in (*read_, *written))
