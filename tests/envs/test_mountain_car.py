"""MountainCar against worked examples, published values and Gymnasium; and what both mountain cars share."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.classic_control._common import valley
from envs.classic_control.continuous_mountain_car import ContinuousMountainCar
from envs.classic_control.mountain_car import MountainCar
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError

BOTTOM = -math.pi / 6  # m: there cos(3 x) is 0, so nothing but the motor pushes
both_cars = pytest.mark.parametrize("car", [MountainCar, ContinuousMountainCar])


def started(car, states=None, *, backend="cpu", n_envs=1, exact=False, auto_reset=True, **config):
    """Return a started wrapper, its copies at ``states``, one (position, velocity) each."""
    wrapper = EnvWrapper(
        car(**config), num_envs=len(states or ()) or n_envs, env_backend=backend, exact=exact, auto_reset=auto_reset
    )
    wrapper.reset()
    if states is not None:
        place(wrapper, states)
    return wrapper


def place(wrapper, states):
    """Put the copies at these states."""
    wrapper.cuda_data_manager.tensor("state")[:, 0].copy_(torch.as_tensor(np.asarray(states, np.float32)))


def pull(wrapper, name):
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def step(wrapper, actions):
    """Step with one action for each copy."""
    target = wrapper.cuda_data_manager.tensor("sampled_actions")
    target.copy_(torch.as_tensor(np.reshape(actions, target.shape)))
    wrapper.step()


def push_along(wrapper, generator):
    """Return actions that mostly push the way the car moves, which swings it up to the goal and against the wall."""
    velocity = pull(wrapper, "observations")[:, 0, 1]
    way = np.where(generator.random(len(velocity)) < 0.9, np.where(velocity < 0, -1, 1), 0)
    return way + 1 if wrapper.env.action_dtype is np.int32 else way * generator.uniform(0.5, 2, len(way))


# ------------------------------------------------------------------ MountainCar


def test_step_follows_the_equations_worked_by_hand():
    """The motor alone moves the car at the bottom, gravity alone where the slope is steepest; each at its size."""
    wrapper = started(MountainCar, [(BOTTOM, 0)] * 3 + [(0, 0), (-math.pi / 3, 0), (-math.pi / 3, 0.07)])
    step(wrapper, [0, 1, 2, 1, 1, 2])
    velocity = np.array([-0.001, 0, 0.001, -0.0025, 0.0025, 0.07])  # the last one is at its limit
    position = np.array([BOTTOM] * 3 + [0, -math.pi / 3, -math.pi / 3]) + velocity
    np.testing.assert_allclose(pull(wrapper, "state")[:, 0], np.stack([position, velocity], 1), atol=1e-7)
    np.testing.assert_array_equal(pull(wrapper, "observations"), pull(wrapper, "state"))
    np.testing.assert_array_equal(pull(wrapper, "rewards"), np.full((6, 1), -1))
    np.testing.assert_array_equal(pull(wrapper, "_timestep_"), 1)
    np.testing.assert_array_equal(pull(wrapper, "_done_"), 0)


def test_episode_of_gymnasium_is_reproduced():
    """From Gymnasium's start for seed 54231, 50 published steps end at the published observation."""
    env = MountainCar(reset_pool_size=1, seed=54231)
    np.testing.assert_allclose(env.reset()[0], [-0.572537, 0], atol=1e-6)
    total = 0.0
    for number in range(1, 51):
        observations, rewards, dones, info = env.step({0: (number // 3) % 3})
        total += rewards[0]
    assert (total, dones, info) == (-50, {"__all__": False}, {})
    np.testing.assert_allclose(observations[0], [-0.497489, -0.004671], atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_step_agrees_with_gymnasium_from_the_same_state(backend):
    """10,000 steps from all over the valley give Gymnasium's observation, reward and end."""
    gymnasium = pytest.importorskip("gymnasium")
    oracle = gymnasium.make("MountainCar-v0").unwrapped
    generator = np.random.default_rng(0)
    n_walls = n_arrived = n_doubtful = 0
    wrapper = started(MountainCar, [(0, 0)] * 100, backend=backend, auto_reset=False)
    for number in range(100):
        if number % 5 == 0:
            place(wrapper, generator.uniform([-1.2, -0.07], [0.6, 0.07], (100, 2)))
        before, actions = pull(wrapper, "state")[:, 0], generator.integers(0, 3, 100)
        step(wrapper, actions)
        got, ended = pull(wrapper, "observations")[:, 0], pull(wrapper, "terminated")
        for env in range(100):
            oracle.state = tuple(before[env].tolist())
            want, reward, terminated, _, _ = oracle.step(actions[env])
            np.testing.assert_allclose(got[env], want, atol=1e-5)
            assert reward == pull(wrapper, "rewards")[env, 0] == -1
            is_doubtful = abs(want[0] - 0.5) < valley.HAIR
            assert terminated == ended[env] or is_doubtful
            n_walls += got[env, 0] == np.float32(-1.2)
            n_arrived += terminated
            n_doubtful += is_doubtful
    assert n_walls > 50
    assert n_arrived > 500
    assert n_doubtful < 10


# ------------------------------------------------------------------ walls, ends and starts of both cars


@both_cars
def test_wall_stops_the_car_and_the_right_end_does_not(car):
    """On the left the car stands still at -1.2 m; on the right it is held at 0.6 m and keeps its velocity."""
    wrapper = started(car, [(-1.19, -0.07), (0.59, 0.05)], auto_reset=False)
    step(wrapper, np.ones(2))
    (wall, stopped), (end, moving) = pull(wrapper, "state")[:, 0]
    assert (wall, stopped, end) == (np.float32(-1.2), 0, np.float32(0.6))
    assert moving > 0.04
    step(wrapper, np.ones(2))
    assert pull(wrapper, "state")[0, 0, 1] > 0  # the slope pushes it off again


@both_cars
@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_episode_ends_at_the_goal_or_at_its_length(car, backend):
    """Who is at the goal on the last step has terminated, who is not is truncated; before it, nobody else ends."""
    wrapper = started(car, [(0.49, 0.03), (BOTTOM, 0)], backend=backend, auto_reset=False, episode_length=2)
    step(wrapper, np.ones(2))
    ends = [pull(wrapper, name).tolist() for name in ("terminated", "truncated", "_done_")]
    assert ends == [[1, 0], [0, 0], [1, 0]]
    step(wrapper, np.ones(2))
    ends = [pull(wrapper, name).tolist() for name in ("terminated", "truncated", "_done_")]
    assert ends == [[1, 0], [0, 1], [1, 1]]


@both_cars
def test_goal_needs_its_velocity(car):
    """With a goal velocity, a slow car at the goal goes on and a fast one has arrived; going back it never has."""
    states = [(0.49, 0.02), (0.49, 0.06), (0.59, -0.01)]
    wrapper = started(car, states, auto_reset=False, goal_velocity=0.04)
    step(wrapper, np.ones(3))
    assert pull(wrapper, "terminated").tolist() == [0, 1, 0]
    wrapper = started(car, states, auto_reset=False)
    step(wrapper, np.ones(3))
    assert pull(wrapper, "terminated").tolist() == [1, 1, 0]


@both_cars
def test_finished_episode_keeps_its_last_observation_and_starts_again(car):
    """With auto-reset a copy at the goal shows its last observation, and the first one of the next start."""
    wrapper = started(car, [(0.49, 0.06), (BOTTOM, 0)])
    step(wrapper, np.ones(2))
    assert pull(wrapper, "_done_").tolist() == [1, 0]
    assert pull(wrapper, "_timestep_").tolist() == [0, 1]
    assert pull(wrapper, "_episode_").tolist() == [2, 1]
    assert pull(wrapper, "final_observations")[0, 0, 0] > 0.5
    position, velocity = pull(wrapper, "observations")[0, 0]
    assert -0.6 <= position <= -0.4
    assert velocity == 0
    np.testing.assert_array_equal(pull(wrapper, "observations"), pull(wrapper, "state"))
    step(wrapper, np.ones(2))
    assert pull(wrapper, "_done_").tolist() == [0, 0]


@both_cars
def test_only_finished_episodes_are_reset(car):
    """Without auto-reset, the reset restarts who is done and leaves the others alone."""
    wrapper = started(car, [(0.49, 0.06), (BOTTOM, 0.01)], auto_reset=False)
    step(wrapper, np.ones(2))
    other = pull(wrapper, "state")[1]
    wrapper.reset_only_done_envs()
    assert -0.6 <= pull(wrapper, "observations")[0, 0, 0] <= -0.4
    np.testing.assert_array_equal(pull(wrapper, "state")[1], other)
    assert pull(wrapper, "_timestep_").tolist() == [0, 1]
    assert pull(wrapper, "_done_").tolist() == [0, 0]


@both_cars
def test_starts_fill_their_range_at_rest(car):
    """Random starts fill -0.6 to -0.4 m evenly, are at rest, and differ by environment and episode."""
    wrapper = started(car, n_envs=2000)
    first = pull(wrapper, "state")
    wrapper.reset()
    starts = np.concatenate([first, pull(wrapper, "state")])[:, 0]
    position = starts[:, 0].astype(np.float64)
    assert np.float32(-0.6) <= starts[:, 0].min()
    assert starts[:, 0].max() <= np.float32(-0.4)
    assert (starts[:, 1] == 0).all()
    assert len(np.unique(position)) > 3980  # of the 4 million that a float32 tells apart
    np.testing.assert_allclose(position.mean(), -0.5, atol=4 * 0.2 / np.sqrt(12 * 4000))  # four standard errors
    np.testing.assert_allclose(position.std(), 0.2 / np.sqrt(12), rtol=0.05)


@both_cars
@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_starts_are_the_same_on_every_backend(car, backend):
    """Starts are the oracle's to the bit, even where the compiler may contract to FMA."""
    n_envs = 3 if is_simulated(backend) else 1000
    want, got = (started(car, backend=each, n_envs=n_envs) for each in ("cpu", backend))
    np.testing.assert_array_equal(pull(got, "state").view(np.int32), pull(want, "state").view(np.int32))


@both_cars
@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_pool_gives_every_row_and_its_observation(car, backend):
    """Starts are rows of the pool, all of them in the long run, and the observation shows the row."""
    n_envs = 3 if is_simulated(backend) else 600
    wrapper = started(car, backend=backend, n_envs=n_envs, reset_pool_size=3, seed=1)
    wrapper.init_reset_pool(seed=5)
    wrapper.reset()
    pool, state = pull(wrapper, "state_reset_pool")[:, 0], pull(wrapper, "state")[:, 0]
    rows = (state[:, None] == pool[None]).all(-1)
    assert rows.any(1).all()
    np.testing.assert_array_equal(pull(wrapper, "observations")[:, 0], state)
    if not is_simulated(backend):
        np.testing.assert_allclose(rows.mean(0), 1 / 3, atol=4 * np.sqrt(2 / 9 / 600))


@both_cars
def test_pool_of_one_starts_every_episode_alike(car):
    """One row starts all environments and episodes; it is the first draw of NumPy's generator, as in Gymnasium."""
    wrapper = started(car, n_envs=4, reset_pool_size=1, seed=3)
    want = [np.float32(np.random.default_rng(3).uniform(-0.6, -0.4)), 0]
    for _ in range(2):
        np.testing.assert_array_equal(pull(wrapper, "state")[:, 0], [want] * 4)
        wrapper.reset()


# ------------------------------------------------------------------ backends


@both_cars
@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_exact_runs_are_bit_identical(car, backend):
    """Free-running with auto-reset, every array goes through the oracle's bits; walls and goals are met."""
    n_envs, n_steps = (2, 6) if is_simulated(backend) else (50, 200)
    states = [(-1.19, -0.07), (0.44, 0.06), (BOTTOM, 0.01), (-0.3, 0)] * (n_envs // 4 + 1)
    runs = [started(car, states[:n_envs], backend=each, exact=True) for each in ("cpu", backend)]
    names = runs[0].cuda_data_manager.array_names()
    generators = [np.random.default_rng(2) for _ in runs]
    n_arrived = 0
    hit_wall = False
    for _ in range(n_steps):
        for wrapper, generator in zip(runs, generators, strict=True):
            step(wrapper, push_along(wrapper, generator))
        want, got = ({name: pull(wrapper, name) for name in names} for wrapper in runs)
        for name in names:
            np.testing.assert_array_equal(got[name].view(np.int32), want[name].view(np.int32), err_msg=name)
        n_arrived += want["terminated"].sum()
        hit_wall |= (want["state"][:, 0, 0] == np.float32(-1.2)).any()
    assert n_arrived >= (1 if is_simulated(backend) else 50)
    assert hit_wall


@both_cars
def test_rounding_decides_at_the_goal_and_at_the_wall_alone(car):
    """In doubt are rows within a hair of the goal, of its velocity behind it, and of the wall."""
    env = car(goal_position=0.5)
    rows = {
        (0.5000004, 0.02): True,
        (0.4999996, 0.02): True,
        (0.52, 4e-7): True,
        (-1.1999995, -0.05): True,
        (0.502, 0.02): False,
        (0.3, 0): False,
        (-1.19, 0): False,
    }
    state = np.array(list(rows), np.float32)[:, None]
    envs, agents = env.rounding_decides({}, {"state": state})
    assert envs.tolist() == list(rows.values())
    assert agents.shape == (7, 1)
    assert not agents.any()


# ------------------------------------------------------------------ configs


@both_cars
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"episode_length": 0}, r"\.episode_length: must be positive \(got 0\)"),
        ({"max_speed": -0.07}, r"\.max_speed: must be positive \(got -0.07\)"),
        ({"reset_pool_size": -1}, r"\.reset_pool_size: must not be negative \(got -1\)"),
        ({"max_position": -2}, r"\.max_position: must be above min_position = -1.2 \(got -2\)"),
        ({"min_start": -0.4}, r"\.max_start: must be above min_start = -0.4 \(got -0.4\)"),
        ({"min_start": -1.5}, r": starts must lie from min_position = -1.2 to max_position = 0.6 \(got -1.5 to -0.4\)"),
    ],
)
def test_config_names_the_broken_rule(car, config, message):
    """A wrong value is an error that names the environment, the key, the rule and the value."""
    name = {MountainCar: "mountain_car", ContinuousMountainCar: "continuous_mountain_car"}[car]
    with pytest.raises(ConfigError, match="^" + name + message):
        car(**config)


@both_cars
def test_run_config_makes_an_environment(car):
    """The shipped run config has fields of the environment, and a batch of at least a step of every copy."""
    yaml = pytest.importorskip("yaml")
    folder = Path(car.kernel_sources["cuda_c"]).parent
    config = yaml.safe_load((folder / "run_config.yaml").read_text())
    env = car(**config["env"])
    assert env.config.reset_pool_size == 10000
    assert config["trainer"]["train_batch_size"] >= config["trainer"]["num_envs"]
    assert list(config["policy"]) == ["shared"]
