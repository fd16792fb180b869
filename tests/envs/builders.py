"""Started environment wrappers, array access, and test data per environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from envs import ENVS
from envs.classic_control._common.single import SingleAgent
from tests.agreement import start
from warpdrive_min import EnvWrapper

SINGLE = {name: env for name, env in ENVS.items() if issubclass(env, SingleAgent)}
"""The environments of one agent."""
BOTTOM = -math.pi / 6
"""Position in the valley with zero slope, m: cos(3 x) is 0."""


def started(name, n_envs=1, *, backend="cpu", states=None, auto_reset=True, exact=False, blocks=None, **config):
    """Return a started wrapper, with copies in the given ``states``."""
    n_envs = n_envs if states is None else len(states)
    options = {"auto_reset": auto_reset, "exact": exact, "blocks_per_env": blocks, "seed": 3}
    wrapper = start(name, config, backend, n_envs, **options)
    if states is not None:
        write(wrapper, "state", np.asarray(states)[:, None])
    return wrapper


def crowd(n_agents: int, **changes: Any) -> dict[str, Any]:
    """Return a crowded Tag Continuous config with a tenth taggers."""
    n_taggers = max(1, n_agents // 10)
    return {
        "num_taggers": n_taggers,
        "num_runners": n_agents - n_taggers,
        "grid_length": 10.0,
        "episode_length": 6,
        "max_acceleration": 0.3,
        "min_acceleration": -0.3,
        "use_full_observation": False,
        "num_other_agents_observed": min(10, n_agents - 1),
        "tagging_distance": 0.03,
        "edge_hit_penalty": -0.5,
        "tag_reward_for_tagger": 10.0,
        "neighbor_search": "grid",
        **changes,
    }


def write(wrapper: EnvWrapper, name: str, values: Any) -> None:
    """Write an array of all copies, broadcast over missing axes."""
    tensor = wrapper.cuda_data_manager.tensor(name)
    tensor.copy_(torch.as_tensor(np.asarray(values), dtype=tensor.dtype).expand(tensor.shape))


def put(wrapper: EnvWrapper, **arrays: Any) -> None:
    """Write some arrays."""
    for name, values in arrays.items():
        write(wrapper, name, values)


def got(wrapper: EnvWrapper, name: str, env: int = 0) -> np.ndarray:
    """Return the row of a copy."""
    return read(wrapper, name)[env]


def read(wrapper: EnvWrapper, name: str) -> np.ndarray:
    """Return an array of all copies."""
    return wrapper.cuda_data_manager.pull_data_from_device(name)


def reads(wrapper: EnvWrapper, *names: str) -> list[Any]:
    """Return some arrays as lists."""
    return [read(wrapper, name).tolist() for name in names]


def step(wrapper: EnvWrapper, actions: Any) -> None:
    """Step with one action per copy, or one for all."""
    shape = wrapper.cuda_data_manager.get_shape("sampled_actions")
    write(wrapper, "sampled_actions", np.resize(actions, shape))
    wrapper.step()


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits of a 32-bit array: NaN equals itself."""
    return array.view(np.int32)


def turning(*angles: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return an observation function: cosines and sines, then the rest."""

    def observe(state: np.ndarray) -> np.ndarray:
        pairs = [each(state[:, angle]) for angle in angles for each in (np.cos, np.sin)]
        return np.stack([*pairs, *np.delete(state, angles, 1).T], 1)

    return observe


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Properties of a one-agent environment that its tests need."""

    gymnasium: str
    """Module and class of the same environment in Gymnasium."""
    tolerance: float
    """Largest float32 error of one step; times ten for rewards."""
    spread: np.ndarray
    """Smallest and largest state for early ends, ``(2, n_state)``."""
    starts: np.ndarray
    """Least and largest start, ``(2, n_state)``."""
    last: tuple[float, ...] | None
    """State before a terminating step, or None."""
    quiet: float = 0.0
    """Action that continues an episode from a start."""
    draw: Callable[[np.random.Generator, int], np.ndarray]
    """Function that draws actions, of a box also beyond its bounds."""
    observe: Callable[[np.ndarray], np.ndarray] = field(default=lambda state: state)
    """Function from states to observations."""


def choices(n: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a function that draws from a number of choices."""
    return lambda generator, size: generator.integers(0, n, size)


def numbers(bound: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a function that draws numbers within plus or minus ``bound``."""
    return lambda generator, size: generator.uniform(-bound, bound, size)


def within(*bounds: float) -> np.ndarray:
    """Return a range around 0 as its two ends."""
    return np.array([bounds, bounds]) * [[-1], [1]]


VALLEY: dict[str, Any] = {
    "tolerance": 1e-5,
    "spread": np.array([[-1.2, -0.07], [0.6, 0.07]]),
    "starts": np.array([[-0.6, 0], [-0.4, 0]]),
    "last": (0.49, 0.06),
    "quiet": 1.0,
}
SUBJECTS = {
    "cartpole": Subject(
        gymnasium="cartpole:CartPoleEnv",
        tolerance=1e-5,
        spread=within(2.4, 2, 0.2, 2),
        starts=within(0.05, 0.05, 0.05, 0.05),
        last=(3, 0, 0, 0),
        draw=choices(2),
    ),
    "mountain_car": Subject(gymnasium="mountain_car:MountainCarEnv", **VALLEY, draw=choices(3)),
    "continuous_mountain_car": Subject(
        gymnasium="continuous_mountain_car:Continuous_MountainCarEnv", **VALLEY, draw=numbers(2)
    ),
    "acrobot": Subject(
        gymnasium="acrobot:AcrobotEnv",
        tolerance=1e-5,
        spread=within(math.pi, math.pi, 4, 6),
        starts=within(0.1, 0.1, 0.1, 0.1),
        last=(math.pi, 0, 0, 0),
        quiet=1.0,
        draw=choices(3),
        observe=turning(0, 1),
    ),
    "pendulum": Subject(
        gymnasium="pendulum:PendulumEnv",
        tolerance=5e-6,
        spread=within(math.pi, 8),
        starts=within(math.pi, 1),
        last=None,
        draw=numbers(3),
        observe=turning(0),
    ),
}
