"""Classic control in NumPy: one float32 row per component of the state.

Formulas are the references'; steps use preallocated buffers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from .batch import Array, Batch, Floats, Indices


class Single(Batch):
    """Environments of one agent; arrays are ``(components, n_envs)``."""

    n_state: ClassVar[int]
    n_features: ClassVar[int]
    """Number of observation rows; the state's if it is observed."""
    n_buffers: ClassVar[int]
    """Number of buffer rows for a step."""
    n_actions: ClassVar[int] = 0
    """Number of actions; 0: actions are numbers within `action_bounds`."""
    reward: ClassVar[float] = 0.0
    """Reward of a step, unless `advance` writes another one."""

    def __init__(self, config: Any, n_envs: int, seed: int) -> None:
        super().__init__(config, n_envs, seed)
        self.state = np.zeros((self.n_state, n_envs), np.float32)
        self.show(self.state if self.n_features == self.n_state else np.zeros((self.n_features, n_envs), np.float32))
        self.rewards = np.full(n_envs, self.reward, np.float32)
        self.buffers = np.zeros((self.n_buffers, n_envs), np.float32)
        self.flags = np.zeros(n_envs, bool)
        self.restart(np.arange(n_envs))

    def start(self, n: int) -> Floats:
        """Draw start states, ``(n_state, n)``: here uniform within +-`start_limits`."""
        drawn: Floats = 2 * self.generator.random((self.n_state, n), np.float32) - 1
        drawn *= self.start_limits[:, None]
        return drawn

    @property
    def start_limits(self) -> Floats:
        """Largest start value, of all components or of each."""
        return np.array([self.config.start_range], np.float32)

    @property
    def action_bounds(self) -> tuple[float, float]:
        """Lowest and highest action, if actions are numbers."""
        raise NotImplementedError

    def restart(self, envs: Indices) -> None:
        """Draw start states."""
        self.state[:, envs] = self.start(envs.size)

    def draw(self) -> Array:
        """Draw one of `n_actions`, or a number within `action_bounds`."""
        if self.n_actions:
            return self.generator.integers(self.n_actions, size=self.n_envs, dtype=np.int8)
        low, high = self.action_bounds
        actions = self.generator.random(self.n_envs, np.float32)
        actions *= high - low
        actions += low
        return actions

    def as_sampled(self, actions: Array) -> Array:
        """Add axes of agents and types."""
        return actions[:, None, None]

    def arrays(self) -> Mapping[str, Array]:
        """Return views."""
        return {
            "state": self.state.T[:, None],
            "_timestep_": self.timestep,
            "observations": self.observations.T[:, None],
            "final_observations": self.final_observations.T[:, None],
            "rewards": self.rewards[:, None],
        }


class CartPole(Single):
    """CartPole: rows are position, velocity, angle, angular velocity."""

    n_state = n_features = n_buffers = 4
    n_actions = 2
    reward = 1.0

    def advance(self, actions: Array) -> None:
        """Advance by one explicit Euler step."""
        c, (x, x_dot, theta, theta_dot), (sin, cos, push, acc) = self.config, self.state, self.buffers
        np.sin(theta, out=sin)
        np.cos(theta, out=cos)
        np.square(theta_dot, out=push)  # push = (force + pole_mass_length theta_dot^2 sin) / total_mass
        push *= sin
        push *= c.pole_mass_length / c.total_mass
        np.multiply(actions, 2 * c.force / c.total_mass, out=acc, dtype=np.float32)
        acc -= c.force / c.total_mass
        push += acc
        sin *= c.gravity  # acc = (gravity sin - cos push) / inertia, of the angle
        np.multiply(cos, push, out=acc)
        np.subtract(sin, acc, out=acc)
        inertia = np.square(cos, out=sin)
        inertia *= -c.half_length * c.pole_mass / c.total_mass
        inertia += c.half_length * 4 / 3
        acc /= inertia
        cos *= acc  # push becomes the acceleration of the cart
        cos *= c.pole_mass_length / c.total_mass
        push -= cos
        for value, rate in ((x, x_dot), (x_dot, push), (theta, theta_dot), (theta_dot, acc)):
            np.multiply(rate, c.time_step, out=sin)
            value += sin
        np.greater(np.abs(x, out=sin), c.max_position, out=self.terminated)
        np.greater(np.abs(theta, out=sin), c.max_angle, out=self.flags)
        np.logical_or(self.terminated, self.flags, out=self.terminated)


class Valley(Single):
    """Both mountain cars: rows are position and velocity."""

    n_state = n_features = n_buffers = 2

    def start(self, n: int) -> Floats:
        """Draw positions; the cars are at rest."""
        position = self.generator.random(n, np.float32) * (self.config.max_start - self.config.min_start)
        return np.stack([position + self.config.min_start, np.zeros_like(position)])

    def roll(self, push: Floats) -> None:
        """Advance by one step with a push; writes `terminated`."""
        c, (x, v), slope = self.config, self.state, self.buffers[1]
        np.multiply(x, 3, out=slope)
        np.cos(slope, out=slope)
        slope *= c.gravity
        push -= slope
        v += push
        np.clip(v, -c.max_speed, c.max_speed, out=v)
        x += v
        np.clip(x, c.min_position, c.max_position, out=x)
        np.less_equal(x, c.min_position, out=self.flags)  # a car that hits the wall stops
        np.maximum(v, 0, out=v, where=self.flags)
        np.greater_equal(x, c.goal_position, out=self.terminated)
        np.greater_equal(v, c.goal_velocity, out=self.flags)
        np.logical_and(self.terminated, self.flags, out=self.terminated)


class MountainCar(Valley):
    """MountainCar."""

    n_actions = 3
    reward = -1.0

    def advance(self, actions: Array) -> None:
        """Push left, not at all, or right."""
        push = np.multiply(actions, self.config.force, out=self.buffers[0], dtype=np.float32)
        push -= self.config.force
        self.roll(push)


class ContinuousMountainCar(Valley):
    """ContinuousMountainCar."""

    @property
    def action_bounds(self) -> tuple[float, float]:
        """Bounds of the push."""
        return self.config.min_action, self.config.max_action

    def advance(self, actions: Array) -> None:
        """Push by the action's value."""
        c = self.config
        push = np.clip(actions, c.min_action, c.max_action, out=self.buffers[0])
        push *= c.power
        self.roll(push)
        np.square(actions, out=self.rewards)
        self.rewards *= -c.action_cost
        np.add(self.rewards, c.goal_reward, out=self.rewards, where=self.terminated)


class Pendulum(Single):
    """Pendulum: rows are the angle within +-pi and the velocity.

    Cosine, sine and velocity are observed.
    """

    n_state, n_features, n_buffers = 2, 3, 2

    @property
    def start_limits(self) -> Floats:
        """Largest angle and velocity of a start."""
        return np.array([self.config.start_angle, self.config.start_velocity], np.float32)

    def restart(self, envs: Indices) -> None:
        """Draw start states, and write their observations."""
        super().restart(envs)
        angle, velocity = self.state[:, envs]
        self.observations[:, envs] = np.cos(angle), np.sin(angle), velocity

    @property
    def action_bounds(self) -> tuple[float, float]:
        """Bounds of the torque."""
        return -self.config.max_torque, self.config.max_torque

    def advance(self, actions: Array) -> None:
        """Advance by one semi-implicit Euler step; reuses the last observation's sine."""
        c, (angle, velocity), (cos, sin, seen_velocity) = self.config, self.state, self.observations
        torque, part = self.buffers
        np.clip(actions, -c.max_torque, c.max_torque, out=torque)
        costs = np.square(angle, out=self.rewards)
        for value, cost in ((velocity, 0.1), (torque, 0.001)):
            np.square(value, out=part)
            part *= cost
            costs += part
        np.negative(costs, out=costs)
        torque *= c.torque_gain * c.time_step
        velocity += torque
        np.multiply(sin, c.gravity_gain * c.time_step, out=part)
        velocity += part
        np.clip(velocity, -c.max_velocity, c.max_velocity, out=velocity)
        np.multiply(velocity, c.time_step, out=part)
        angle += part
        wrap(angle, part)
        np.cos(angle, out=cos)
        np.sin(angle, out=sin)
        seen_velocity[:] = velocity


class Acrobot(Single):
    """Acrobot: rows are both angles, kept within +-pi, and their velocities.

    Cosine and sine of each angle and both velocities are observed.
    """

    n_state, n_features, n_buffers = 4, 6, 24
    n_actions = 3

    def restart(self, envs: Indices) -> None:
        """Draw start states, and write their observations."""
        super().restart(envs)
        angle_1, angle_2, *velocities = self.state[:, envs]
        of_angles = np.cos(angle_1), np.sin(angle_1), np.cos(angle_2), np.sin(angle_2)
        self.observations[:, envs] = *of_angles, *velocities

    def advance(self, actions: Array) -> None:
        """Advance by one Runge-Kutta step."""
        c, state = self.config, self.state
        first, slope, total, at = self.buffers[:16].reshape(4, 4, -1)
        torque, part = self.buffers[16:18]
        np.multiply(actions, c.torque, out=torque, dtype=np.float32)
        torque -= c.torque
        self.differentiate(state, torque, first)
        np.copyto(total, first)
        for before, step, weight in ((first, c.time_step / 2, 2), (slope, c.time_step / 2, 2), (slope, c.time_step, 1)):
            np.multiply(before, step, out=at)
            at += state
            self.differentiate(at, torque, slope)
            np.multiply(slope, weight, out=at)
            total += at
        total *= c.time_step / 6
        state += total
        for angle in state[:2]:
            wrap(angle, part)
        for velocity, limit in zip(state[2:], (c.max_velocity_1, c.max_velocity_2), strict=True):
            np.clip(velocity, -limit, limit, out=velocity)
        self.observe()

    def differentiate(self, state: Floats, torque: Floats, slope: Floats) -> None:
        """Write the time derivative of a state to ``slope``."""
        c, (angle_1, angle_2, velocity_1, velocity_2) = self.config, state
        part, sin_2, d_1, d_2, ratio, phi_1, phi_2 = self.buffers[17:]
        coupling, (_, _, acc_1, acc_2) = c.coupling, slope
        np.copyto(slope[:2], state[2:])
        np.sin(angle_2, out=sin_2)
        sin_2 *= coupling
        np.cos(angle_2, out=d_2)
        d_2 *= coupling
        np.multiply(d_2, 2, out=d_1)
        d_1 += c.inertia_1
        d_2 += c.inertia_2
        np.divide(d_2, d_1, out=ratio)
        np.add(angle_1, angle_2, out=phi_2)
        np.sin(phi_2, out=phi_2)
        phi_2 *= c.weight_2
        np.sin(angle_1, out=phi_1)
        phi_1 *= c.weight_1
        phi_1 += phi_2
        np.multiply(velocity_1, 2, out=part)  # phi_1 -= coupling velocity_2 (velocity_2 + 2 velocity_1) sin_2
        part += velocity_2
        part *= velocity_2
        part *= sin_2
        phi_1 -= part
        np.multiply(ratio, phi_1, out=acc_2)  # acc_2 = (torque + ratio phi_1 - pull - phi_2) / (inertia_2 - d_2 ratio)
        acc_2 += torque
        np.square(velocity_1, out=part)
        part *= sin_2
        acc_2 -= part
        acc_2 -= phi_2
        np.multiply(d_2, ratio, out=part)
        np.subtract(c.inertia_2, part, out=part)
        acc_2 /= part
        np.multiply(d_2, acc_2, out=acc_1)
        acc_1 += phi_1
        acc_1 /= d_1
        np.negative(acc_1, out=acc_1)

    def observe(self) -> None:
        """Write observations, termination at the goal height, and rewards."""
        c, (cos_1, sin_1, cos_2, sin_2, *_), (height, part) = self.config, self.observations, self.buffers[:2]
        for angle, cos, sin in zip(self.state[:2], (cos_1, cos_2), (sin_1, sin_2), strict=True):
            np.cos(angle, out=cos)
            np.sin(angle, out=sin)
        np.copyto(self.observations[4:], self.state[2:])
        np.multiply(cos_1, cos_2, out=height)
        np.multiply(sin_1, sin_2, out=part)
        height -= part
        height *= -c.link_length_2
        np.multiply(cos_1, c.link_length_1, out=part)
        height -= part
        np.greater(height, c.goal_height, out=self.terminated)
        np.subtract(self.terminated, 1, out=self.rewards, dtype=np.float32)


def wrap(angle: Floats, part: Floats) -> None:
    """Wrap angles to +-pi, in place; ``part`` is a buffer."""
    np.multiply(angle, 1 / math.tau, out=part)
    np.rint(part, out=part)
    part *= math.tau
    angle -= part
