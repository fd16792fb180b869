"""Assertions of WarpDrive's tests that only this file has.

`docs/reference-tests.md` lists all of them.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from envs import TagGridWorld
from tests.environments.counter import Counter
from tests.support import BACKENDS_HERE, FAST_BACKENDS, by_night, managers, on_every_backend, on_every_fast_backend
from warpdrive_min import CUDAEnvironmentReset, CUDALogController, CUDASampler, DataFeed, EnvWrapper

on_compiled_backends = pytest.mark.parametrize(
    "backend", [each if each.values != ("cpu",) else by_night("cpu") for each in FAST_BACKENDS]
)
"""The NumPy reference takes seconds for thousands of draws, and has the bits of `host`: it is nightly."""
LEVEL = 1e-5
"""Probability that a correct sampler fails one chi-square; seeds are fixed."""


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the probability of a chi-square at least as large.

    Fail if an impossible event was counted.
    """
    possible = probabilities > 0
    assert not counts[~possible].any()
    want = counts.sum() * probabilities[possible]
    chi_square = ((counts[possible] - want) ** 2 / want).sum()
    degrees = possible.sum() - 1
    if degrees == 0:
        return 1.0
    half = torch.tensor([degrees / 2, chi_square / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


# ------------------------------------------------------------------ sampler


class Actions:
    """Action arrays ``(n_envs, n, 1)`` of one sampler, and their draws."""

    def __init__(self, backend: str, n_agents: int, n_envs: int, blocks: int = 1, **arrays: tuple[int, int]) -> None:
        self.data, functions = managers(backend, n_agents, n_envs, blocks)
        self.sampler = CUDASampler(functions)
        for name, (n, n_choices) in arrays.items():
            feed = DataFeed()
            feed.add_data(name, np.full((n_envs, n, 1), -1, np.int32))
            self.data.push_data_to_device(feed, torch_accessible=True)
            self.sampler.register_actions(self.data, name, n_choices)
        self.sampler.init_random(7)

    def draw(self, n_draws: int, **probabilities: np.ndarray) -> list[np.ndarray]:
        """Return interleaved draws of each array, ``(n_draws, n_envs, n)``."""
        rows = {
            name: torch.tensor(row, dtype=torch.float32, device=self.data.device)
            .expand(*self.data.get_shape(name)[:2], -1)
            .contiguous()
            for name, row in probabilities.items()
        }
        draws: dict[str, list[torch.Tensor]] = {name: [] for name in rows}
        for _ in range(n_draws):
            for name, row in rows.items():
                self.sampler.sample(self.data, row, name)
                draws[name].append(self.data.tensor(name)[..., 0].clone())
        return [torch.stack(each).cpu().numpy() for each in draws.values()]


@on_compiled_backends
def test_every_agent_of_every_environment_draws_from_its_own_probabilities(backend):
    """Each agent draws from its own probabilities.

    10,000 draws, 2 environments of 5 agents, ten distributions, by chi-square. Impossible choices never occur.
    """
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), (2, 5))
    probabilities[0, 3], probabilities[1, 1], probabilities[1, 2] = [0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]
    (actions,) = Actions(backend, 5, 2, agents=(5, 3)).draw(10_000, agents=probabilities)
    for env, agent in np.ndindex(2, 5):
        counts = np.bincount(actions[:, env, agent], minlength=3)
        assert p_value(counts, probabilities[env, agent]) > LEVEL, (env, agent)


@on_every_fast_backend
def test_planner_draws_from_its_probabilities_whatever_the_agents_do(backend):
    """A planner's draws are independent of the agents' draws.

    One planner (4 choices) is interleaved with 5 agents (3 choices).
    """
    planner, agents = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.25, 0.25])
    drawn = Actions(backend, 5, 100, planner=(1, 4), agents=(5, 3)).draw(200, planner=planner, agents=agents)
    assert p_value(np.bincount(drawn[0].ravel(), minlength=4), planner) > LEVEL
    for agent in range(5):
        joint = np.bincount((3 * drawn[0][..., 0] + drawn[1][..., agent]).ravel(), minlength=12)
        assert p_value(joint, np.outer(planner, agents).ravel()) > LEVEL, agent


@on_compiled_backends
@pytest.mark.parametrize(("n_agents", "n_draws"), [(5, 10_000), (300, 400)], ids=["five agents", "several blocks"])
def test_draws_scatter_as_independent_ones_do(n_agents, n_draws, backend):
    """Draws have the variance of independent ones along each axis."""
    (actions,) = Actions(backend, n_agents, 2, agents=(n_agents, 4)).draw(n_draws, agents=np.full(4, 0.25))
    variance, fourth_moment = 1.25, 2.5625  # of 0, 1, 2, 3 around 1.5
    for axis, n in enumerate(actions.shape):
        found = actions.var(axis, ddof=1)
        # The variance of the unbiased estimate, from n independent values.
        error = np.sqrt((fourth_moment - variance**2 * (n - 3) / (n - 1)) / n / found.size)
        assert abs(found.mean() - variance) < 4.5 * error, f"axis {axis}"

    deviations = [actions.std(axis).mean() for axis in range(3)]  # over time, environments, agents
    np.testing.assert_array_less([1.11, 0.6, 0.9], deviations)  # WarpDrive's bounds


@on_every_backend
def test_blocks_do_not_change_the_draws(backend):
    """The number of blocks does not change the draws."""
    uniform = {"agents": np.full(4, 0.25), "planner": np.full(7, 1 / 7)}
    alone, shared = (Actions(backend, 5, 2, n, agents=(5, 4), planner=(1, 7)).draw(4, **uniform) for n in (1, 2))
    for got, want in zip(shared, alone, strict=True):
        np.testing.assert_array_equal(got, want)
        assert len(np.unique(want)) > 3


# ------------------------------------------------------------------ reset


@on_compiled_backends
def test_pools_of_every_rank_are_drawn_evenly(backend):
    """Rows of pools are drawn evenly, for every rank.

    2,000 soft resets refill environment 0 (chi-square), not 1; forced ones both.
    """
    n_rows, n_resets = 10, 2000
    data, functions = managers(backend, 3, 2)
    feed, targets = DataFeed(), {"one": ((), np.int32), "two": ((3,), np.float32), "three": ((3, 4), np.float32)}
    for name, (row, dtype) in targets.items():
        feed.add_data(name, np.full((2, *row), -1, dtype))
        rows = np.arange(n_rows, dtype=dtype).reshape(-1, *[1] * len(row))
        feed.add_pool_for_reset(f"{name}_reset_pool", np.broadcast_to(rows, (n_rows, *row)).copy(), name)
    data.push_data_to_device(feed)
    resetter = CUDAEnvironmentReset(functions)
    resetter.init_reset_pool(data, seed=3)

    def draw(mode: str) -> np.ndarray:
        drawn = []
        for _ in range(n_resets):
            data.tensor("_done_")[0] = 1
            resetter.reset_when_done(data, mode)
            drawn.append(torch.cat([data.tensor(name).view(2, -1).int() for name in targets], 1))
        rows = torch.stack(drawn).cpu().numpy()
        assert (rows == rows[..., :1]).all(), "every element of every target is of one row"
        return rows[..., 0]

    soft, forced = draw("if_done"), draw("force_reset")
    assert (soft[:, 1] == -1).all()
    for rows in (soft[:, 0], forced[:, 0], forced[:, 1]):
        assert p_value(np.bincount(rows, minlength=n_rows), np.full(n_rows, 1 / n_rows)) > LEVEL
    assert (forced[:, 0] != forced[:, 1]).any()


# ------------------------------------------------------------------ kernel, log and reset


WITH_BLOCKS = [
    pytest.param(*backend.values, blocks, marks=backend.marks, id=f"{backend.values[0]}-{blocks}")
    for backend in BACKENDS_HERE
    for blocks in (1, 2)
    if (*backend.values, blocks) != ("numba", 2)  # a Numba kernel with a thread for each agent has one block
]


@pytest.mark.parametrize(("backend", "blocks"), WITH_BLOCKS)
def test_log_and_mask_follow_the_environment_that_is_logged(backend, blocks):
    """Log and mask follow the logged environment, step by step."""
    wrapper, logger = counting(backend, blocks, episode_length=2, limit=99)
    data = wrapper.cuda_data_manager

    def mask() -> list[int]:
        return data.pull_data_from_device("_log_mask_").tolist()

    assert mask() == [0, 0, 0]
    for env_id in (0, 1):
        logger.reset_log(data, env_id)
        assert mask() == [1, 0, 0]
        for step in (1, 2):
            wrapper.step_all_envs()
            logger.update_log(data, step)
        assert mask() == [1, 1, 1]
        log = logger.fetch_log(data, names=["count"])["count_for_log"]
        np.testing.assert_array_equal(log, np.repeat((1 + env_id) * np.arange(3), 5).reshape(3, 5))
        assert data.pull_data_from_device("_done_").tolist() == [1, 1]
        wrapper.reset_only_done_envs()
        assert not data.pull_data_from_device("count").any()
        for flag in ("_done_", "_timestep_"):
            assert data.pull_data_from_device(flag).tolist() == [0, 0]


@pytest.mark.parametrize(("backend", "blocks"), WITH_BLOCKS)
def test_environments_restart_as_often_as_they_finish(backend, blocks):
    """Each environment restarts at each end of its episodes.

    Environment 1 counts twice as fast: 4 restarts in 8 steps, not 2.
    """
    wrapper, _ = counting(backend, blocks, episode_length=9, limit=4)
    data = wrapper.cuda_data_manager
    done, counts = [], []
    for _ in range(8):
        wrapper.step_all_envs()
        done.append(data.pull_data_from_device("_done_").tolist())
        wrapper.reset_only_done_envs()
        counts.append(data.pull_data_from_device("count")[:, 4].tolist())
    assert done == [[0, 0], [0, 1], [0, 0], [1, 1]] * 2
    assert counts == [[1, 2], [2, 0], [3, 2], [0, 0]] * 2
    assert data.pull_data_from_device("_episode_").tolist() == [2, 4]


def counting(backend: str, blocks: int, **config: int) -> tuple[EnvWrapper, CUDALogController]:
    """Return a logger, and environments with unequal counts."""
    wrapper = EnvWrapper(
        Counter(num_agents=5, env_backend=backend, **config), num_envs=2, env_backend=backend, blocks_per_env=blocks
    )
    wrapper.reset_all_envs()
    data = wrapper.cuda_data_manager
    data.tensor("sampled_actions").copy_(torch.tensor([1, 2])[:, None, None].expand(2, 5, 1))
    return wrapper, CUDALogController(wrapper.cuda_function_manager)


# ------------------------------------------------------------------ environments


@on_every_backend
def test_certain_actions_go_through_the_sampler_to_the_rewards(backend):
    """Certain actions pass from sampler to rewards.

    One-hot probabilities become actions: a tag in environment 0, then timeouts.
    """
    wrapper = EnvWrapper(
        TagGridWorld(
            num_taggers=4,
            grid_length=4,
            episode_length=1,
            starting_location_x=[0, 0, 0, 0, 1],
            starting_location_y=[0, 0, 0, 0, 1],
        ),
        num_envs=2,
        env_backend=backend,
    )
    wrapper.reset_all_envs()
    data, sampler = wrapper.cuda_data_manager, CUDASampler(wrapper.cuda_function_manager)
    sampler.register_actions(data, "sampled_actions", 5)
    sampler.init_random(seed=4)
    actions = np.array([[2, 0, 3, 4, 2], [0, 0, 0, 0, 0]])
    sampler.sample(data, torch.from_numpy(np.eye(5, dtype=np.float32)[actions]).to(data.device))
    np.testing.assert_array_equal(data.pull_data_from_device("sampled_actions")[..., 0], actions)
    wrapper.step_all_envs()
    want = [[9.9, 10, 10, 9.9, -2], [-0.01, -0.01, -0.01, -0.01, 0.01]]
    np.testing.assert_allclose(data.pull_data_from_device("rewards"), want, rtol=1e-6)
    assert data.pull_data_from_device("terminated").tolist() == [1, 0]
    assert data.pull_data_from_device("_done_").tolist() == [1, 1]
