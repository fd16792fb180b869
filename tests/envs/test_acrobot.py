"""Acrobot on every backend against worked examples, Gymnasium and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from envs.classic_control.acrobot import Acrobot
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from warpdrive_min import EnvWrapper
from warpdrive_min.consistency import Agreement, difference, step_by_step
from warpdrive_min.constants import DONE, EPISODE, TIMESTEP
from warpdrive_min.errors import ConfigError

NO_TORQUE, TORQUE = 1, 2
SPREAD = np.array([math.pi, math.pi, 4.0, 6.0])
"""Half the range (rad, rad/s) of states that soon wrap, swing over the top and reach the goal."""


def started(backend: str = "cpu", num_envs: int = 1, *, exact: bool = False, auto_reset: bool = True, **config):
    wrapper = EnvWrapper(
        Acrobot(**config), num_envs=num_envs, env_backend=backend, exact=exact, auto_reset=auto_reset, seed=3
    )
    wrapper.reset()
    return wrapper


def write(wrapper: EnvWrapper, name: str, values) -> None:
    tensor = wrapper.cuda_data_manager.tensor(name)
    tensor.copy_(torch.as_tensor(np.asarray(values), dtype=tensor.dtype).expand(tensor.shape))


def read(wrapper: EnvWrapper, name: str) -> np.ndarray:
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def scatter(wrapper: EnvWrapper, generator: np.random.Generator) -> None:
    """Put the environments into states all over the place."""
    write(wrapper, "state", generator.uniform(-SPREAD, SPREAD, (wrapper.n_envs, 1, 4)))


def random_torques(wrapper: EnvWrapper, generator: np.random.Generator) -> None:
    write(wrapper, "sampled_actions", generator.integers(0, 3, (wrapper.n_envs, 1, 1)))


# ------------------------------------------------------------------ equations


def test_torque_accelerates_the_hanging_links_as_worked_by_hand():
    """Hanging at rest only the inertia matters: 4.5, 1.75 and 1.25 kg m^2 give the accelerations of 1 N m."""
    wrapper = started(time_step=1e-3)
    write(wrapper, "state", 0.0)
    write(wrapper, "sampled_actions", TORQUE)
    wrapper.step()
    acc_2 = 1 / (1.25 - 1.75**2 / 4.5)
    acc_1 = -1.75 * acc_2 / 4.5
    want = [acc_1 * 1e-6 / 2, acc_2 * 1e-6 / 2, acc_1 * 1e-3, acc_2 * 1e-3]
    np.testing.assert_allclose(read(wrapper, "state")[0, 0], want, rtol=1e-5)
    np.testing.assert_allclose(read(wrapper, "observations")[0, 0], [1, 0, 1, 0, *want[2:]], atol=1e-6)
    assert read(wrapper, "rewards").item() == -1
    assert read(wrapper, DONE).item() == 0


def test_free_swing_keeps_its_energy():
    """Without torque kinetic and potential energy, written down from Lagrange's function, add up to the same."""
    wrapper = started(num_envs=50, auto_reset=False, time_step=0.01)
    generator = np.random.default_rng(1)
    scatter(wrapper, generator)
    write(wrapper, "sampled_actions", NO_TORQUE)
    first = energy(read(wrapper, "state"))
    turned = np.zeros(50)
    for _ in range(200):
        wrapper.step()
        turned += np.abs(read(wrapper, "state")[:, 0, 2]) * 0.01
    assert turned.min() > 1, "every environment must swing by more than 1 rad"
    np.testing.assert_allclose(energy(read(wrapper, "state")), first, atol=2e-3)  # of some 30 J; Runge-Kutta's error


def energy(state: np.ndarray) -> np.ndarray:
    """Energy in J: rods of 1 kg and 1 m with inertia 1 kg m^2 about their middles."""
    angle_1, angle_2, velocity_1, velocity_2 = state[:, 0].astype(np.float64).T
    both = velocity_1 + velocity_2
    # Squared speeds of the two centres of mass; the second one is at the end of link 1 and half of link 2.
    first = (0.5 * velocity_1) ** 2
    second = velocity_1**2 + (0.5 * both) ** 2 + velocity_1 * both * np.cos(angle_2)
    height = -0.5 * np.cos(angle_1) - np.cos(angle_1) - 0.5 * np.cos(angle_1 + angle_2)
    return 0.5 * (first + second + velocity_1**2 + both**2) + 9.8 * height


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_step_is_gymnasiums_from_the_same_state(backend):
    """10,000 random steps, each from the state that the backend reached, are those of Gymnasium's own environment."""
    acrobot = pytest.importorskip("gymnasium.envs.classic_control.acrobot")
    n_envs, n_steps = (2, 5) if is_simulated(backend) else (100, 100)
    wrapper, gymnasium = started(backend, n_envs, auto_reset=False), acrobot.AcrobotEnv()
    generator = np.random.default_rng(5)
    scatter(wrapper, generator)
    n_wraps = n_goals = n_wrong = 0
    for _ in range(n_steps):
        before = read(wrapper, "state")[:, 0]
        random_torques(wrapper, generator)
        wrapper.step()
        want = {"state": [], "observations": [], "rewards": [], "terminated": []}
        for state, action in zip(before, read(wrapper, "sampled_actions").ravel(), strict=True):
            gymnasium.state = state.astype(np.float64)
            observation, reward, terminated, _, _ = gymnasium.step(int(action))
            for name, value in zip(want, (gymnasium.state, observation, reward, terminated), strict=True):
                want[name].append(value)
        after = read(wrapper, "state")[:, 0]
        # Measured 2e-6: one step of float32 at up to 15 rad/s.
        assert difference(np.array(want["state"]), after, SPREAD * [2, 2, 0, 0]).error < 1e-5
        np.testing.assert_allclose(read(wrapper, "observations")[:, 0], want["observations"], atol=1e-5)
        n_wraps += int((np.abs(after - before)[:, :2] > math.pi).sum())
        n_goals += sum(want["terminated"])
        n_wrong += int((read(wrapper, "terminated") != want["terminated"]).sum())
        n_wrong += int((read(wrapper, "rewards")[:, 0] != want["rewards"]).sum())
    assert n_wrong <= 2, "at most one tip so near the goal's height that rounding decides"
    assert is_simulated(backend) or (n_wraps > 100 and n_goals > 100), "the run must wrap angles and reach the goal"


def test_episode_of_gymnasium_is_reproduced():
    """With Gymnasium's start for seed 54231 the published observation is reached after 50 steps."""
    env = Acrobot(episode_length=200, reset_pool_size=1, seed=54231)
    angles = np.array([-0.072537, -0.035676])
    want = [np.cos(angles[0]), np.sin(angles[0]), np.cos(angles[1]), np.sin(angles[1]), 0.072883, -0.025475]
    np.testing.assert_allclose(env.reset()[0], want, atol=1e-6)
    total = 0.0
    for step in range(1, 51):
        observations, rewards, dones, info = env.step({0: (step // 3) % 3})
        total += rewards[0]
        assert not dones["__all__"]
    assert (total, info) == (-50, {})
    np.testing.assert_allclose(
        observations[0], [0.992646, 0.121057, 0.888310, -0.459243, -0.208580, 0.106496], atol=1e-5
    )


# ------------------------------------------------------------------ bounds, ends, starts


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_angles_wrap_and_velocities_are_bounded(backend):
    """Turning over the top an angle comes back on the other side, by as many turns as it takes; speeds stop growing."""
    wrapper = started(backend, 4, auto_reset=False, gravity=0.0, torque=0.0)
    # Without gravity and with the links in line nothing accelerates the joints.
    states = [[3.0, 0, 2, 0], [-3.0, 0, -2, 0], [40.0, 0, 0, 0], [0, 0, 20, 0]]
    write(wrapper, "state", np.array(states)[:, None])
    write(wrapper, "sampled_actions", TORQUE)
    wrapper.step()
    want = [3.4 - 2 * math.pi, 2 * math.pi - 3.4, 40 - 12 * math.pi, 4 - 2 * math.pi]
    state = read(wrapper, "state")[:, 0]
    np.testing.assert_allclose(state[:, 0], want, atol=5e-6)
    np.testing.assert_allclose(state[:, 2], [2, -2, 0, 4 * math.pi], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_reaching_the_goal_pays_nothing_and_starts_again(backend):
    """Upright the tip is 2 m high: no penalty, its last observation is kept, and the next episode's is shown."""
    wrapper = started(backend, 2)
    write(wrapper, "state", np.array([[[math.pi, 0, 0, 0]], [[0, 0, 0, 0]]]))
    write(wrapper, "sampled_actions", NO_TORQUE)
    wrapper.step()
    np.testing.assert_array_equal(read(wrapper, "rewards")[:, 0], [0, -1])
    np.testing.assert_array_equal(read(wrapper, "terminated"), [1, 0])
    np.testing.assert_array_equal(read(wrapper, "truncated"), [0, 0])
    np.testing.assert_array_equal(read(wrapper, DONE), [1, 0])
    np.testing.assert_array_equal(read(wrapper, TIMESTEP), [0, 1])
    np.testing.assert_array_equal(read(wrapper, EPISODE), [2, 1])
    np.testing.assert_allclose(read(wrapper, "final_observations")[0, 0], [-1, 0, 1, 0, 0, 0], atol=1e-5)
    start = read(wrapper, "state")[0, 0]
    assert 0 < np.abs(start).max() <= 0.1
    np.testing.assert_allclose(read(wrapper, "observations")[0, 0, 1::2][:2], np.sin(start[:2]), atol=1e-6)
    np.testing.assert_allclose(read(wrapper, "observations")[0, 0, 0:4:2], np.cos(start[:2]), atol=1e-6)


def test_time_limit_truncates_unless_the_goal_is_reached():
    """The last step truncates with its penalty; reaching the goal in it terminates instead."""
    wrapper = started(num_envs=2, episode_length=3, auto_reset=False)
    write(wrapper, "sampled_actions", NO_TORQUE)
    for _ in range(2):
        wrapper.step()
        np.testing.assert_array_equal(read(wrapper, DONE), [0, 0])
    write(wrapper, "state", np.array([[[0, 0, 0, 0]], [[math.pi, 0, 0, 0]]]))
    wrapper.step()
    np.testing.assert_array_equal(read(wrapper, "truncated"), [1, 0])
    np.testing.assert_array_equal(read(wrapper, "terminated"), [0, 1])
    np.testing.assert_array_equal(read(wrapper, DONE), [1, 1])
    np.testing.assert_array_equal(read(wrapper, "rewards")[:, 0], [-1, 0])


def test_links_have_the_lengths_that_the_goal_is_measured_with():
    """Half as long links reach 1 m upright and no more, so only a lower goal ends the episode."""
    for goal_height, is_over in ((1.01, 0), (0.99, 1)):
        wrapper = started(link_length_1=0.5, link_length_2=0.5, goal_height=goal_height, time_step=1e-4)
        write(wrapper, "state", np.array([math.pi, 0, 0, 0]))
        wrapper.step()
        assert read(wrapper, "terminated").item() == is_over


def test_starts_differ_by_environment_and_episode():
    """Random starts fill +-0.1 evenly, and no two of them are alike."""
    wrapper = started(num_envs=2000)
    first = read(wrapper, "state")
    wrapper.reset()
    starts = np.concatenate([first, read(wrapper, "state")]).reshape(-1, 4)
    assert len(np.unique(starts, axis=0)) == 4000
    assert np.abs(starts).max() <= 0.1
    np.testing.assert_allclose(starts.mean(0), 0, atol=4 * 0.1 / np.sqrt(3 * 4000))  # four standard errors
    np.testing.assert_allclose(starts.std(0), 0.1 / np.sqrt(3), rtol=0.05)


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_pool_gives_the_oracles_rows(backend):
    """Starts are rows of the pool, all of them in the long run, and the rows that the oracle draws."""
    n_envs = 3 if is_simulated(backend) else 600
    wrapper, oracle = (started(each, n_envs, reset_pool_size=3, seed=1) for each in (backend, "cpu"))
    for each in (wrapper, oracle):
        each.init_reset_pool(seed=5)
        each.reset()
    state, pool = read(wrapper, "state"), read(wrapper, "state_reset_pool")
    np.testing.assert_array_equal(state, read(oracle, "state"))
    rows = (state == pool[:, 0]).all(-1)
    assert rows.any(1).all()
    assert is_simulated(backend) or rows.any(0).all()
    np.testing.assert_allclose(read(wrapper, "observations")[..., :4:2], np.cos(state[..., :2]), atol=1e-6)


# ------------------------------------------------------------------ backends


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_exact_runs_are_bit_identical(backend):
    """Free-running from states all over the place, every array has the oracle's bits after every step."""
    n_envs, n_steps = (2, 6) if is_simulated(backend) else (50, 200)
    pair = [started(each, n_envs, exact=True, episode_length=n_steps // 2) for each in (backend, "cpu")]
    for wrapper in pair:
        scatter(wrapper, np.random.default_rng(2))
    generators = [np.random.default_rng(4) for _ in pair]
    n_goals = 0
    for step in range(n_steps):
        for wrapper, generator in zip(pair, generators, strict=True):
            random_torques(wrapper, generator)
            wrapper.step()
        n_goals += int(read(pair[1], "terminated").sum())
        for name in pair[1].cuda_data_manager.array_names():
            got, want = (read(wrapper, name).view(np.int32) for wrapper in pair)
            np.testing.assert_array_equal(got, want, err_msg=f"{name}, step {step}")
    assert (read(pair[1], EPISODE) >= 3).all(), "every environment must restart twice"
    assert is_simulated(backend) or n_goals > 10, "the run must reach the goal"


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_fast_builds_agree_up_to_rounding(backend):
    """Contraction and the library's sines change a step from the same state by less than 1e-5."""
    n_envs, n_steps = (2, 5) if is_simulated(backend) else (100, 60)
    pair = [started(each, n_envs, auto_reset=False) for each in (backend, "cpu")]
    generator = np.random.default_rng(6)
    scatter(pair[0], generator)
    seen = Agreement()
    seen.add(step_by_step(*pair, lambda: random_torques(pair[0], generator), n_steps))
    assert seen.max_error < 1e-5, str(seen)
    assert seen.n_in_doubt <= 0.001 * seen.n_rows
    assert is_simulated(backend) or seen.n_done > 0, "the run must reach the goal"


def test_rounding_decides_at_the_goals_height_alone():
    """A tip within a hair of the goal puts its environment in doubt; others, and angles about to wrap, do not."""
    env = Acrobot()
    states = np.zeros((3, 1, 4), np.float32)
    states[0, 0, :2] = 2 * math.pi / 3, 2 * math.pi / 3  # both links lean 60 degrees from upright: 0.5 m each
    states[1, 0, :2] = math.pi, 0
    states[2, 0, :2] = math.pi, -math.pi
    envs, agents = env.rounding_decides({}, {"state": states})
    np.testing.assert_array_equal(envs, [True, False, False])
    assert agents.shape == (3, 1)
    assert not agents.any()


def test_whole_numbers_are_compiled_in_as_floats():
    """A config with 10 for 10.0, as YAML gives it, has the constants of one with 10.0: an int would widen floats."""
    constants = Acrobot(gravity=10, torque=1, goal_height=1).get_constants()
    assert constants["GOAL_HEIGHT"] == 1
    assert {name for name, value in constants.items() if not isinstance(value, float)} == {"RESET_POOL_SIZE"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"episode_length": 0}, r"acrobot\.episode_length: must be positive \(got 0\)"),
        ({"reset_pool_size": -1}, r"acrobot\.reset_pool_size: must not be negative"),
        ({"link_moi": 0.0}, r"acrobot\.link_moi: must be positive"),
    ],
)
def test_config_names_the_broken_rule(config, message):
    """A wrong value is an error that names the key, the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        Acrobot(**config)
