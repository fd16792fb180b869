"""Pendulum on every backend against worked examples, Gymnasium and published values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from envs.classic_control.pendulum import Pendulum
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from warpdrive_min import EnvWrapper
from warpdrive_min.consistency import Agreement, EnvironmentCPUvsGPU, difference, step_by_step
from warpdrive_min.constants import DONE, EPISODE, TIMESTEP
from warpdrive_min.errors import ConfigError

PERIOD = np.array([2 * math.pi, 0.0])
"""The angle's period; the velocity has none."""


def started(backend: str = "cpu", num_envs: int = 1, *, exact: bool = False, auto_reset: bool = True, **config):
    wrapper = EnvWrapper(
        Pendulum(**config), num_envs=num_envs, env_backend=backend, exact=exact, auto_reset=auto_reset, seed=3
    )
    wrapper.reset()
    return wrapper


def write(wrapper: EnvWrapper, name: str, values) -> None:
    tensor = wrapper.cuda_data_manager.tensor(name)
    tensor.copy_(torch.as_tensor(np.asarray(values), dtype=tensor.dtype).expand(tensor.shape))


def read(wrapper: EnvWrapper, name: str) -> np.ndarray:
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def random_torques(wrapper: EnvWrapper, generator: np.random.Generator) -> None:
    """Write torques of which a third are beyond the bounds."""
    write(wrapper, "sampled_actions", generator.uniform(-3, 3, (wrapper.n_envs, 1, 1)))


# ------------------------------------------------------------------ equations


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_step_follows_the_equations_worked_by_hand(backend):
    """Five states and torques give the worked angles, velocities and rewards."""
    half, turn = math.pi / 2, 2 * math.pi
    angle, velocity, torque, new_velocity, reward = np.array(
        [
            [0, 0, 0, 0, 0],  # upright, at rest: the best there is
            [half, 0, 3, 1.05, -(half**2 + 0.004)],  # (15 + 3 * 2) * 0.05: the torque is clipped to 2
            [half, 7.5, 0, 8, -(half**2 + 5.625)],  # 8.25, bounded
            [turn + half, 0, -2, 0.45, -(half**2 + 0.004)],  # a turn further the angle costs the same
            [-half, -7.5, -5, -8, -(half**2 + 5.625 + 0.004)],
        ]
    ).T
    wrapper = started(backend, 5)
    write(wrapper, "state", np.stack([angle, velocity], 1)[:, None])
    write(wrapper, "sampled_actions", torque[:, None, None])
    wrapper.step()
    new_angle = angle + 0.05 * new_velocity
    np.testing.assert_allclose(read(wrapper, "rewards")[:, 0], reward, rtol=1e-6)
    want = np.stack([np.cos(new_angle), np.sin(new_angle), new_velocity], 1)
    np.testing.assert_allclose(read(wrapper, "observations")[:, 0], want, atol=1e-6)
    assert difference(np.stack([new_angle, new_velocity], 1), read(wrapper, "state")[:, 0], PERIOD).error < 1e-6
    assert not read(wrapper, DONE).any()
    np.testing.assert_array_equal(read(wrapper, "sampled_actions")[:, 0, 0], torque)


def test_free_swing_keeps_its_energy():
    """Without torque kinetic and potential energy of a rod released 1 rad off upright add up to the same."""
    wrapper = started(time_step=1e-3, auto_reset=False)
    write(wrapper, "state", np.array([1.0, 0.0]))
    write(wrapper, "sampled_actions", 0.0)
    energies, angles = [], []
    for _ in range(2000):
        wrapper.step()
        angle, velocity = read(wrapper, "state")[0, 0].astype(np.float64)
        energies.append((velocity**2 / 3 + 10 * math.cos(angle)) / 2)  # J: inertia 1/3 kg m^2, 10 N at 0.5 m
        angles.append(angle % (2 * math.pi))
    assert max(angles) > math.pi + 1, "the rod must swing through"
    np.testing.assert_allclose(energies, 5 * math.cos(1), atol=0.02)  # Euler's error, of the order of the time step


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_step_is_gymnasiums_from_the_same_state(backend):
    """10,000 random steps, each from the state that the backend reached, are those of Gymnasium's own environment."""
    pendulum = pytest.importorskip("gymnasium.envs.classic_control.pendulum")
    n_envs, n_steps = (2, 5) if is_simulated(backend) else (100, 100)
    wrapper, gymnasium = started(backend, n_envs), pendulum.PendulumEnv()
    generator = np.random.default_rng(5)
    write(wrapper, "state", generator.uniform([-math.pi, -8], [math.pi, 8], (n_envs, 1, 2)))
    n_turns = n_bounded = 0
    for _ in range(n_steps):
        before = read(wrapper, "state")[:, 0]
        random_torques(wrapper, generator)
        wrapper.step()
        want = {"state": [], "observations": [], "rewards": []}
        for state, action in zip(before, read(wrapper, "sampled_actions")[:, 0], strict=True):
            gymnasium.state = state.astype(np.float64)
            observation, reward, terminated, _, _ = gymnasium.step(action.astype(np.float64))
            assert not terminated
            for name, value in zip(want, (gymnasium.state, observation, reward), strict=True):
                want[name].append(value)
        # Measured 1.7e-6 (rewards, of up to 16, 1e-5): one step of float32, angles wrapped.
        after = read(wrapper, "state")[:, 0]
        assert difference(np.array(want["state"]), after, PERIOD).error < 5e-6
        np.testing.assert_allclose(read(wrapper, "observations")[:, 0], want["observations"], atol=5e-6)
        np.testing.assert_allclose(read(wrapper, "rewards")[:, 0], want["rewards"], atol=5e-5)
        n_turns += int((np.abs(after - before)[:, 0] > math.pi).sum())
        n_bounded += int((np.abs(after[:, 1]) == 8).sum())
    assert is_simulated(backend) or (n_turns > 100 and n_bounded > 100), "the run must wrap angles and bound velocities"


@pytest.mark.parametrize(
    ("gravity", "observation", "total"),
    [
        (10.0, [-0.638685, 0.769469, -1.050763], -361.55203),
        (9.81, [-0.679579, 0.733602, -1.252926], -361.15589),  # WarpDrive's gravity
    ],
)
def test_episode_of_gymnasium_is_reproduced(gravity, observation, total):
    """With Gymnasium's start for seed 54231 its observation and return are reached after 50 steps."""
    env = Pendulum(reset_pool_size=1, seed=54231, gravity=gravity)
    np.testing.assert_allclose(env.reset()[0], [np.cos(-2.278826), np.sin(-2.278826), -0.356762], atol=1e-6)
    got = 0.0
    for step in range(1, 51):
        observations, rewards, dones, info = env.step({0: [2 * math.sin(0.3 * step)]})
        got += rewards[0]
        assert not dones["__all__"]
    np.testing.assert_allclose(observations[0], observation, atol=1e-5)
    np.testing.assert_allclose(got, total, atol=1e-4)
    assert info == {}


# ------------------------------------------------------------------ angles, ends, starts


def test_many_turns_lose_no_accuracy():
    """Pushed around for 5,000 steps, some 300 turns, the rod is where it is when the angle is kept in float64."""
    wrapper = started(episode_length=10_000, gravity=0.0, exact=True)
    write(wrapper, "state", np.array([0.5, 8.0]))
    for _ in range(5000):
        wrapper.step()  # without gravity and torque 0.4 rad a step
    angle = 0.5 + 5000 * 0.4
    state = read(wrapper, "state")[0, 0]
    assert abs(state[0]) <= math.pi + 0.4
    # Measured 1e-5; a float32 that grew to 2,000 rad would be off by 0.085.
    np.testing.assert_allclose([math.cos(state[0]), math.sin(state[0])], [math.cos(angle), math.sin(angle)], atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_time_limit_truncates_and_starts_again(backend):
    """Only the time ends an episode: its last observation is kept, and the first one of the next start is shown."""
    wrapper = started(backend, 2, episode_length=3)
    write(wrapper, "sampled_actions", 1.0)
    for timestep in (1, 2):
        wrapper.step()
        np.testing.assert_array_equal(read(wrapper, DONE), [0, 0])
        np.testing.assert_array_equal(read(wrapper, TIMESTEP), [timestep, timestep])
    write(wrapper, "state", np.array([0.0, 0.0]))
    wrapper.step()
    np.testing.assert_array_equal(read(wrapper, "terminated"), [0, 0])
    np.testing.assert_array_equal(read(wrapper, "truncated"), [1, 1])
    np.testing.assert_array_equal(read(wrapper, DONE), [1, 1])
    np.testing.assert_array_equal(read(wrapper, TIMESTEP), [0, 0])
    np.testing.assert_array_equal(read(wrapper, EPISODE), [2, 2])
    last = [math.cos(0.0075), math.sin(0.0075), 0.15]  # 3 * 1 N m for 0.05 s
    np.testing.assert_allclose(read(wrapper, "final_observations")[:, 0], [last, last], atol=1e-6)
    angle, velocity = read(wrapper, "state")[:, 0].T
    want = np.stack([np.cos(angle), np.sin(angle), velocity], 1)
    np.testing.assert_allclose(read(wrapper, "observations")[:, 0], want, atol=1e-6)
    assert angle[0] != angle[1]


def test_without_auto_reset_only_finished_environments_restart():
    """The resetter restarts whose time is up, and leaves the others where they are."""
    wrapper = started(num_envs=2, episode_length=2, auto_reset=False)
    write(wrapper, TIMESTEP, np.array([1, 0]))
    wrapper.step()
    np.testing.assert_array_equal(read(wrapper, DONE), [1, 0])
    before = read(wrapper, "state")
    wrapper.reset_only_done_envs()
    np.testing.assert_array_equal(read(wrapper, "state")[:, 0, 0] == before[:, 0, 0], [False, True])
    np.testing.assert_array_equal(read(wrapper, TIMESTEP), [0, 1])
    np.testing.assert_array_equal(read(wrapper, DONE), [0, 0])


def test_starts_differ_by_environment_and_episode():
    """Random starts fill +-pi and +-1 evenly, and no two of them are alike."""
    wrapper = started(num_envs=2000)
    first = read(wrapper, "state")
    wrapper.reset()
    starts = np.concatenate([first, read(wrapper, "state")]).reshape(-1, 2) / [math.pi, 1]
    assert len(np.unique(starts, axis=0)) == 4000
    assert np.abs(starts).max() <= 1
    np.testing.assert_allclose(starts.mean(0), 0, atol=4 / np.sqrt(3 * 4000))  # four standard errors
    np.testing.assert_allclose(starts.std(0), 1 / np.sqrt(3), rtol=0.05)


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
    np.testing.assert_allclose(read(wrapper, "observations")[..., 0], np.cos(state[..., 0]), atol=1e-6)


# ------------------------------------------------------------------ backends


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_exact_runs_are_bit_identical(backend):
    """Free-running with torques of its own, every array has the oracle's bits after every step."""
    n_envs, n_steps = (2, 6) if is_simulated(backend) else (50, 200)
    pair = [started(each, n_envs, exact=True, episode_length=n_steps // 2) for each in (backend, "cpu")]
    generators = [np.random.default_rng(4) for _ in pair]
    n_turns = 0
    for step in range(n_steps):
        before = read(pair[1], "state")[:, 0, 0]
        for wrapper, generator in zip(pair, generators, strict=True):
            random_torques(wrapper, generator)
            wrapper.step()
        n_turns += int((np.abs(read(pair[1], "state")[:, 0, 0] - before) > math.pi).sum())
        for name in pair[1].cuda_data_manager.array_names():
            got, want = (read(wrapper, name).view(np.int32) for wrapper in pair)
            np.testing.assert_array_equal(got, want, err_msg=f"{name}, step {step}")
    assert (read(pair[1], EPISODE) == 3).all(), "every environment must restart twice"
    assert is_simulated(backend) or n_turns > 10, "the run must wrap angles"


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_fast_builds_agree_up_to_rounding(backend):
    """Contraction and the library's sines change a step from the same state by less than 1e-5, nothing left out."""
    n_envs, n_steps = (2, 5) if is_simulated(backend) else (100, 60)
    pair = [started(each, n_envs, auto_reset=False) for each in (backend, "cpu")]
    generator = np.random.default_rng(6)
    seen = Agreement()
    seen.add(step_by_step(*pair, lambda: random_torques(pair[0], generator), n_steps))
    assert seen.max_error < 1e-5, str(seen)
    assert seen.n_in_doubt == 0


def test_consistency_checker_draws_torques():
    """WarpDrive's checker runs an environment with continuous actions, here to the bit."""
    checker = EnvironmentCPUvsGPU(
        dual_mode_env_class=Pendulum, env_configs={"short": {"episode_length": 20}}, gpu_env_backend="host", exact=True
    )
    assert checker.test_env_reset_and_step(seed=1) == 0


def test_whole_numbers_are_compiled_in_as_floats():
    """A config with 10 for 10.0, as YAML gives it, has the constants of one with 10.0: an int would widen floats."""
    constants = Pendulum(gravity=10, max_torque=2, max_velocity=8).get_constants()
    assert constants["MAX_TORQUE"] == 2
    assert {name for name, value in constants.items() if not isinstance(value, float)} == {"RESET_POOL_SIZE"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"episode_length": 0}, r"pendulum\.episode_length: must be positive \(got 0\)"),
        ({"reset_pool_size": -1}, r"pendulum\.reset_pool_size: must not be negative"),
        ({"length": 0.0}, r"pendulum\.length: must be positive"),
    ],
)
def test_config_names_the_broken_rule(config, message):
    """A wrong value is an error that names the key, the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        Pendulum(**config)
