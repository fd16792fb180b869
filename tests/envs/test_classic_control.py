"""Classic control: equations by hand, and each environment's own properties.

Common properties are in `test_single_agent.py`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.envs.builders import BOTTOM, SINGLE, read, reads, started, step, write
from tests.support import on_every_backend
from warpdrive_min.agreement import EnvironmentCPUvsGPU
from warpdrive_min.spaces import Box

cars = pytest.mark.parametrize("car", ["mountain_car", "continuous_mountain_car"])


# ------------------------------------------------------------------ the mountain cars


def test_continuous_car_takes_a_number():
    """The continuous car takes one float32 number."""
    wrapper = started("continuous_mountain_car", 2)
    assert wrapper.env.action_space == {0: Box(-1, 1, (1,))}
    actions = wrapper.cuda_data_manager.tensor("sampled_actions")
    assert (actions.shape, actions.dtype) == ((2, 1, 1), torch.float32)


@on_every_backend
def test_push_is_clipped_and_its_cost_is_not(backend):
    """The push is clipped at 1, its cost is not."""
    wrapper = started("continuous_mountain_car", backend=backend, states=[(BOTTOM, 0)] * 5)
    step(wrapper, [-3, -1, 0.5, 1, 2])
    want = 0.0015 * np.array([-1, -1, 0.5, 1, 1])
    np.testing.assert_allclose(read(wrapper, "state")[:, 0, 1], want, atol=1e-8)
    np.testing.assert_allclose(read(wrapper, "rewards")[:, 0], [-0.9, -0.1, -0.025, -0.1, -0.4], rtol=1e-6)


@cars
@pytest.mark.parametrize(("goal_velocity", "want"), [(0.04, [0, 1, 0]), (0, [1, 1, 0])])
def test_goal_needs_its_velocity(car, goal_velocity, want):
    """A car arrives only with the goal's velocity.

    A slow or reversing car continues.
    """
    states = [(0.49, 0.02), (0.49, 0.06), (0.59, -0.01)]
    wrapper = started(car, states=states, auto_reset=False, goal_velocity=goal_velocity)
    step(wrapper, 1)
    assert reads(wrapper, "terminated") == [want]


@cars
def test_rounding_decides_for_cars_at_the_goal_and_at_the_wall_alone(car):
    """Rounding decides only next to the goal or wall.

    In doubt are rows next to the goal, its velocity behind it, and the wall.
    """
    rows = {
        (0.5000004, 0.02): True,
        (0.4999996, 0.02): True,
        (0.52, 4e-7): True,
        (-1.1999995, -0.05): True,
        (0.502, 0.02): False,
        (0.3, 0): False,
        (-1.19, 0): False,
    }
    assert in_doubt(SINGLE[car](goal_position=0.5), list(rows)) == list(rows.values())


def in_doubt(env, states) -> list[bool]:
    """Return a mask of environments that rounding decides."""
    envs, agents = env.rounding_decides({}, {"state": np.array(states, np.float32)[:, None]})
    assert agents.shape == (len(states), 1)
    assert not agents.any()
    return envs.tolist()


# ------------------------------------------------------------------ Acrobot


def test_free_links_keep_their_energy():
    """Without torque, the links' total energy is constant.

    It is computed by Lagrange's equations.
    """
    spread = np.array([math.pi, math.pi, 4.0, 6.0])
    states = np.random.default_rng(1).uniform(-spread, spread, (50, 4))
    wrapper = started("acrobot", states=states, auto_reset=False, time_step=0.01)
    first = energy(read(wrapper, "state"))
    turned = np.zeros(50)
    for _ in range(200):
        step(wrapper, 1)
        turned += np.abs(read(wrapper, "state")[:, 0, 2]) * 0.01
    assert turned.min() > 1, "every environment must swing by more than 1 rad"
    np.testing.assert_allclose(energy(read(wrapper, "state")), first, atol=2e-3)  # of some 30 J; Runge-Kutta's error


def energy(state: np.ndarray) -> np.ndarray:
    """Energy in J of two rods of 1 kg and 1 m.

    Their inertia about their middles is 1 kg m^2.
    """
    angle_1, angle_2, velocity_1, velocity_2 = state[:, 0].astype(np.float64).T
    both = velocity_1 + velocity_2
    # Squared speeds of both centres of mass; the second one is at link 1 plus half of link 2.
    first = (0.5 * velocity_1) ** 2
    second = velocity_1**2 + (0.5 * both) ** 2 + velocity_1 * both * np.cos(angle_2)
    height = -0.5 * np.cos(angle_1) - np.cos(angle_1) - 0.5 * np.cos(angle_1 + angle_2)
    return 0.5 * (first + second + velocity_1**2 + both**2) + 9.8 * height


@on_every_backend
def test_angles_wrap_and_velocities_are_bounded(backend):
    """Angles wrap around, and velocities are bounded."""
    # Without gravity and with the links in line nothing accelerates the joints.
    states = [[3.0, 0, 2, 0], [-3.0, 0, -2, 0], [40.0, 0, 0, 0], [0, 0, 20, 0]]
    wrapper = started("acrobot", backend=backend, states=states, auto_reset=False, gravity=0.0, torque=0.0)
    step(wrapper, 2)
    want = [3.4 - 2 * math.pi, 2 * math.pi - 3.4, 40 - 12 * math.pi, 4 - 2 * math.pi]
    state = read(wrapper, "state")[:, 0]
    np.testing.assert_allclose(state[:, 0], want, atol=5e-6)
    np.testing.assert_allclose(state[:, 2], [2, -2, 0, 4 * math.pi], rtol=1e-6)


def test_links_have_the_lengths_that_the_goal_is_measured_with():
    """Links' lengths set the height that the tip reaches.

    Half as long links reach 1 m at most: only a lower goal ends the episode.
    """
    short = {"link_length_1": 0.5, "link_length_2": 0.5, "time_step": 1e-4}
    for goal_height, is_over in ((1.01, 0), (0.99, 1)):
        wrapper = started("acrobot", states=[[math.pi, 0, 0, 0]], goal_height=goal_height, **short)
        step(wrapper, 0)
        assert reads(wrapper, "terminated") == [[is_over]]


def test_rounding_decides_for_links_at_the_goals_height_alone():
    """Rounding decides only for a tip at the goal's height.

    Angles about to wrap are not in doubt.
    """
    leaning = 2 * math.pi / 3  # 60 degrees from upright: 0.5 m each
    states = [[leaning, leaning, 0, 0], [math.pi, 0, 0, 0], [math.pi, -math.pi, 0, 0]]
    assert in_doubt(SINGLE["acrobot"](), states) == [True, False, False]


# ------------------------------------------------------------------ Pendulum


def test_free_rod_keeps_its_energy():
    """Without torque, the rod's energy is constant.

    The rod is released 1 rad off upright.
    """
    wrapper = started("pendulum", states=[[1.0, 0.0]], time_step=1e-3, auto_reset=False)
    energies, angles = [], []
    for _ in range(2000):
        step(wrapper, 0)
        angle, velocity = read(wrapper, "state")[0, 0].astype(np.float64)
        energies.append((velocity**2 / 3 + 10 * math.cos(angle)) / 2)  # J: inertia 1/3 kg m^2, 10 N at 0.5 m
        angles.append(angle % (2 * math.pi))
    assert max(angles) > math.pi + 1, "the rod must swing through"
    np.testing.assert_allclose(energies, 5 * math.cos(1), atol=0.02)  # Euler's error, of the order of the time step


def test_many_turns_lose_no_accuracy():
    """After 5,000 steps of 0.4 rad, the angle is still accurate."""
    wrapper = started("pendulum", states=[[0.5, 8.0]], episode_length=10_000, gravity=0.0, exact=True)
    write(wrapper, "sampled_actions", 0)
    for _ in range(5000):
        wrapper.step()  # without gravity and torque 0.4 rad a step
    angle, state = 0.5 + 5000 * 0.4, read(wrapper, "state")[0, 0]
    assert abs(state[0]) <= math.pi + 0.4
    # Measured 1e-5; a float32 that grew to 2,000 rad would be off by 0.085.
    np.testing.assert_allclose([math.cos(state[0]), math.sin(state[0])], [math.cos(angle), math.sin(angle)], atol=1e-4)


def test_consistency_checker_draws_torques():
    """WarpDrive's checker accepts continuous actions, here bit-identical."""
    configs = {"short": {"episode_length": 20}}
    checker = EnvironmentCPUvsGPU(
        dual_mode_env_class=SINGLE["pendulum"], env_configs=configs, gpu_env_backend="host", exact=True
    )
    assert checker.test_env_reset_and_step(seed=1) == 0
