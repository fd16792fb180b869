"""How backends are held against the NumPy oracle: step by step from the same state, and free-running.

Where rounding may decide otherwise (a value within a hair of a threshold, two neighbours equally far), the floats
of two backends may rightly lead to different outcomes. `AMBIGUOUS` finds those places; they are left out and counted.
With ``exact`` nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from envs import ENVS
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.consistency import Difference, copy_state, difference
from warpdrive_min.constants import DONE
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.spaces import category_counts

HAIR = 1e-5
"""Distance to a threshold, in the quantity's unit, below which rounding may decide."""


@dataclass
class Agreement:
    """What a comparison saw."""

    largest: dict[str, Difference] = field(default_factory=dict)
    n_rows: int = 0
    """Rows compared: an environment's, and each agent's observation."""
    n_ambiguous: int = 0
    """Rows left out."""
    n_done: int = 0
    n_tagged: int = 0

    @property
    def max_error(self) -> float:
        """Largest error of any array."""
        return max((each.error for each in self.largest.values()), default=0.0)

    def add(self, name: str, found: Difference) -> None:
        """Keep the largest difference of each array."""
        if name not in self.largest or found.error > self.largest[name].error:
            self.largest[name] = found


def start(name: str, config: Mapping[str, Any], backend: str, n_envs: int, **options: Any) -> EnvWrapper:
    """Build and start a wrapper of a shipped environment."""
    wrapper = EnvWrapper(ENVS[name](**config), num_envs=n_envs, env_backend=backend, **options)
    wrapper.reset_all_envs()
    return wrapper


def uniform_sampler(wrapper: EnvWrapper, seed: int) -> Callable[[], None]:
    """Return what draws uniform random actions into ``sampled_actions``."""
    data = wrapper.cuda_data_manager
    categories = category_counts(next(iter(wrapper.env.action_space.values())))
    sampler = CUDASampler(wrapper.cuda_function_manager)
    sampler.register_actions(data, "sampled_actions", categories)
    sampler.init_random(seed)
    probabilities = torch.cat([torch.full((n,), 1 / n) for n in categories])
    rows = probabilities.expand(wrapper.n_envs, wrapper.n_agents, -1).contiguous().to(data.device)
    return lambda: sampler.sample(data, rows)


def step_from_same_state(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, exact: bool = False
) -> Agreement:
    """Step backend and oracle ``n_steps`` times with random actions, each time from the backend's state."""
    tested = start(name, config, backend, n_envs, seed=seed, exact=exact)
    oracle = start(name, config, "cpu", n_envs, seed=seed, exact=exact)
    draw = uniform_sampler(tested, seed)
    got, want = tested.cuda_data_manager, oracle.cuda_data_manager
    result = Agreement()
    for _ in range(n_steps):
        draw()
        copy_state(got, want)
        before = {key: want.pull_data_from_device(key) for key in want.array_names()}
        oracle.step()
        tested.step()
        envs, agents = (np.zeros(n_envs, bool), np.zeros((n_envs, oracle.n_agents), bool))
        if not exact:
            envs, agents = AMBIGUOUS[name](oracle, before)
        result.n_ambiguous += int(envs.sum() + agents[~envs].sum())
        result.n_rows += n_envs * (1 + oracle.n_agents)
        for key in want.array_names():
            result.add(key, _difference(want, got, key, envs, agents))
        result.n_done += int((want.tensor(DONE) > 0).sum())
        if name == "tag_continuous":
            result.n_tagged += _Chase(oracle, before).n_tagged
        copy_state(want, got)  # an ambiguous outcome must not be carried on
        tested.reset_only_done_envs()
    return result


def _difference(want: CUDADataManager, got: CUDADataManager, name: str, envs: Any, agents: Any) -> Difference:
    a, b = want.pull_data_from_device(name), got.pull_data_from_device(name)
    if a.shape[:1] == envs.shape:
        b[envs] = a[envs]
    if name == "observations":
        b[agents] = a[agents]
    return difference(a, b, want.attribute(name, "period", 0.0))


def free_run(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, exact: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run with auto-reset and random actions.

    Returns:
        Every array at the end, and after each step the sums of the bits of observations and rewards, ``(n_steps, 2)``.
    """
    wrapper = start(name, config, backend, n_envs, seed=seed, exact=exact, auto_reset=True)
    draw = uniform_sampler(wrapper, seed)
    data = wrapper.cuda_data_manager
    sums = torch.zeros((n_steps, 2), dtype=torch.int64, device=data.device)
    for step in range(n_steps):
        draw()
        wrapper.step()
        for column, key in enumerate(("observations", "rewards")):
            sums[step, column] = data.tensor(key).view(torch.int32).sum(dtype=torch.int64)
    return {key: data.pull_data_from_device(key) for key in data.array_names()}, sums.cpu().numpy()


# ------------------------------------------------------------------ where rounding may decide


def _cartpole(oracle: EnvWrapper, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    config, state = oracle.env.config, oracle.cuda_data_manager.pull_data_from_device("state")[:, 0]
    envs = np.abs(np.abs(state[:, 0]) - config.max_position) < HAIR
    envs |= np.abs(np.abs(state[:, 2]) - config.max_angle) < HAIR
    return envs, np.zeros((len(envs), 1), bool)


class _Chase:
    """Who was near whom when a step of Tag Continuous decided on tags."""

    def __init__(self, oracle: EnvWrapper, before: Mapping[str, np.ndarray]) -> None:
        config, self.data = oracle.env.config, oracle.cuda_data_manager
        self.x, self.y = (self.data.pull_data_from_device(name).astype(np.float64) for name in ("loc_x", "loc_y"))
        self.playing = before["still_in_the_game"] > 0
        self.is_runner = self.data.pull_data_from_device("agent_types") == 0
        self.distance = np.hypot(self.x[:, :, None] - self.x[:, None], self.y[:, :, None] - self.y[:, None])
        self.distance[:, np.arange(oracle.n_agents), np.arange(oracle.n_agents)] = np.inf
        self.to_tagger = np.sort(np.where(~self.is_runner & self.playing[:, None], self.distance, np.inf), axis=-1)
        self.margin = config.tagging_distance * config.grid_length

    @property
    def n_tagged(self) -> int:
        return int(((self.to_tagger[..., 0] < self.margin) & self.is_runner & self.playing).sum())


def _tag_continuous(oracle: EnvWrapper, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    config, chase = oracle.env.config, _Chase(oracle, before)
    x, y, playing = chase.x, chase.y, chase.playing

    # A catch hangs on the distance to the nearest tagger, and on which tagger is nearest.
    nearest = chase.to_tagger
    close = np.abs(nearest[..., 0] - chase.margin) < HAIR
    if nearest.shape[-1] > 1:
        with np.errstate(invalid="ignore"):
            close |= (nearest[..., 0] < chase.margin + HAIR) & _hair(nearest[..., 1] - nearest[..., 0])
    # An agent on the border pays for crossing it by a hair or not.
    edge = np.minimum.reduce([np.abs(x), np.abs(y), np.abs(x - config.grid_length), np.abs(y - config.grid_length)])
    crossed = chase.data.pull_data_from_device("edge_hit_reward_penalty") != 0
    envs = ((close & chase.is_runner & playing) | ((edge < HAIR) & (edge > 0) & playing & ~crossed)).any(-1)

    # The order of neighbours hangs on the gaps between the nearest ones.
    agents = np.zeros(playing.shape, bool)
    if not config.use_full_observation:
        others = np.sort(np.where(playing[:, None], chase.distance, np.inf), axis=-1)
        with np.errstate(invalid="ignore"):
            agents = _hair(np.diff(others[..., : config.num_other_agents_observed + 1], axis=-1)).any(-1)
    return envs, agents


def _hair(gap: np.ndarray) -> np.ndarray:
    """Tell where two distances differ by a hair; equal ones (two agents in one corner) are decided by id."""
    return (gap > 0) & (gap < HAIR)


AMBIGUOUS: dict[str, Callable[[EnvWrapper, Mapping[str, np.ndarray]], tuple[np.ndarray, np.ndarray]]] = {
    "cartpole": _cartpole,
    "tag_continuous": _tag_continuous,
}
