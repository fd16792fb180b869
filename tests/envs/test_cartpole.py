"""CartPole's reference against worked examples and published values."""

from __future__ import annotations

import numpy as np
import pytest

from envs import CartPole
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError


def started(num_envs: int = 1, **config: object) -> EnvWrapper:
    wrapper = EnvWrapper(CartPole(**config), num_envs=num_envs, auto_reset=True)
    wrapper.reset()
    return wrapper


def test_step_follows_the_equations_worked_by_hand():
    """From rest, a push to the right moves the cart right and tips the pole left by the worked amounts."""
    wrapper = started()
    data = wrapper.cuda_data_manager
    data.tensor("state").zero_()
    data.tensor("sampled_actions").fill_(1)
    wrapper.step()
    push = 10 / 1.1  # N / kg: force over total mass; sine and angular velocity are 0
    theta_acc = -push / (0.5 * (4 / 3 - 0.1 / 1.1))
    x_acc = push - 0.05 * theta_acc / 1.1
    want = [0.0, 0.02 * x_acc, 0.0, 0.02 * theta_acc]
    np.testing.assert_allclose(data.tensor("state")[0, 0].numpy(), want, rtol=1e-6)
    assert data.tensor("rewards").item() == 1
    assert data.tensor("_timestep_").item() == 1
    assert data.tensor("_done_").item() == 0


def test_episode_of_gymnasium_is_reproduced():
    """With Gymnasium's start for seed 54231 the episode ends after 23 steps at the published observation."""
    env = CartPole(episode_length=200, reset_pool_size=1, seed=54231)
    observation = env.reset()[0]
    np.testing.assert_allclose(observation, [-0.036269, -0.017838, 0.036442, -0.012738], atol=1e-6)
    total, steps, done = 0.0, 0, False
    while not done and steps < 50:
        steps += 1
        observations, rewards, dones, info = env.step({0: (steps // 3) % 2})
        total, done = total + rewards[0], dones["__all__"]
    assert (steps, total, info) == (23, 23, {})
    np.testing.assert_allclose(observations[0], [-0.100235, 0.144871, 0.219039, 0.419101], atol=1e-5)


def test_finished_episode_keeps_its_last_observation_and_starts_again():
    """With auto-reset a failed copy shows its last observation, and the first one of the next start."""
    wrapper = started(episode_length=5)
    data = wrapper.cuda_data_manager
    data.tensor("state")[0, 0, 0] = 3.0  # past 2.4 m after any step
    wrapper.step()
    assert data.tensor("terminated").item() == 1
    assert data.tensor("truncated").item() == 0
    assert data.tensor("_done_").item() == 1
    assert data.tensor("_timestep_").item() == 0
    assert data.tensor("_episode_").item() == 2
    assert data.tensor("final_observations")[0, 0, 0].item() > 2.9
    np.testing.assert_array_equal(data.tensor("observations"), data.tensor("state"))
    assert np.abs(data.tensor("observations").numpy()).max() <= 0.05
    for _ in range(5):
        assert data.tensor("_done_").item() in (0, 1)
        wrapper.step()
    assert data.tensor("truncated").item() == 1
    assert data.tensor("terminated").item() == 0


def test_starts_differ_by_environment_and_episode():
    """Random starts fill +-0.05 evenly, and no two of them are alike."""
    wrapper = started(num_envs=2000)
    first = wrapper.cuda_data_manager.pull_data_from_device("state")
    wrapper.reset()
    second = wrapper.cuda_data_manager.pull_data_from_device("state")
    starts = np.concatenate([first, second]).reshape(-1, 4)
    assert len(np.unique(starts, axis=0)) == 4000
    assert np.abs(starts).max() <= 0.05
    np.testing.assert_allclose(starts.mean(0), 0, atol=4 * 0.05 / np.sqrt(3 * 4000))  # four standard errors
    np.testing.assert_allclose(starts.std(0), 0.05 / np.sqrt(3), rtol=0.05)


def test_pool_gives_every_row_and_its_observation():
    """Starts are rows of the pool, all of them in the long run, and the observation shows the row."""
    wrapper = started(num_envs=600, reset_pool_size=3, seed=1)
    data = wrapper.cuda_data_manager
    wrapper.init_reset_pool(seed=5)
    wrapper.reset()
    pool = data.pull_data_from_device("state_reset_pool").reshape(3, 4)
    state = data.pull_data_from_device("state").reshape(-1, 4)
    rows = (state[:, None] == pool[None]).all(-1)
    assert rows.any(1).all()
    np.testing.assert_allclose(rows.mean(0), 1 / 3, atol=4 * np.sqrt(2 / 9 / 600))
    np.testing.assert_array_equal(data.pull_data_from_device("observations").reshape(-1, 4), state)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"episode_length": 0}, r"cartpole\.episode_length: must be positive \(got 0\)"),
        ({"reset_pool_size": -1}, r"cartpole\.reset_pool_size: must not be negative"),
        ({"pole_mass": 0.0}, r"cartpole\.pole_mass: must be positive"),
    ],
)
def test_config_names_the_broken_rule(config, message):
    """A wrong value is an error that names the key, the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        CartPole(**config)
