"""Tests of the PettingZoo bridge: its own checkers, and hand-made games."""

from __future__ import annotations

import numpy as np
import pytest

from envs import ENVS, CartPole, Covid19Economy, TagContinuous
from tests.bridges.negotiation import Oracle, negotiating
from tests.environments.counter import Counter
from tests.environments.lookout import Lookout, seen
from tests.support import TAG_CONFIGS, on_every_backend
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ActionError, ConfigError

pytest.importorskip("pettingzoo")

from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils import parallel_to_aec

from warpdrive_min.bridges.pettingzoo import PettingZooParallelEnv

ONE_EACH = {
    "num_taggers": 1,
    "num_runners": 2,
    "grid_length": 10.0,
    "starting_directions": [0.0, 0.0, 0.0],
    "starting_location_x": [1.0, 5.0, 9.0],
    "starting_location_y": [5.0, 5.0, 5.0],
    "tagging_distance": 0.1,
    "tag_reward_for_tagger": 3.0,
    "tag_penalty_for_runner": -2.0,
    "episode_length": 6,
}
"""Three agents in a row; the seed chooses the tagger."""


# ------------------------------------------------------------------ PettingZoo's own tests


@pytest.mark.parametrize("mode", TAG_CONFIGS)
def test_env_passes_pettingzoos_tests(mode):
    """PettingZoo's interface and seed tests pass, with tags."""
    config = {**TAG_CONFIGS[mode], "tagging_distance": 0.3}
    env = PettingZooParallelEnv(TagContinuous(**config))
    parallel_api_test(env, num_cycles=100)
    parallel_seed_test(lambda: PettingZooParallelEnv(TagContinuous(**config)), num_cycles=50)
    tags = env.wrapper.cuda_data_manager.tensor("still_in_the_game") == 0
    assert bool(tags.any()) == config["runner_exits_game_after_tagged"]


@pytest.mark.parametrize("name", ENVS)
def test_every_environment_passes_pettingzoos_tests(name):
    """PettingZoo's interface and seed tests pass for each shipped environment."""
    parallel_api_test(PettingZooParallelEnv(ENVS[name]()), num_cycles=10)
    parallel_seed_test(lambda: PettingZooParallelEnv(ENVS[name]()), num_cycles=5)


# ------------------------------------------------------------------ by hand


def test_agents_are_named_after_role_and_id():
    """Names follow role and id, else "agent" and id."""
    env = TagContinuous(**ONE_EACH)
    names = PettingZooParallelEnv(env).possible_agents
    assert [name.split("_")[0] for name in names] == ["tagger" if t else "runner" for t in env.agent_types]
    assert [name.split("_")[1] for name in names] == ["0", "1", "2"]
    assert PettingZooParallelEnv(Counter()).possible_agents == ["agent_0", "agent_1", "agent_2"]


@pytest.mark.parametrize("leaves", [True, False])
def test_tagged_runner_terminates_alone(leaves):
    """A tagged runner terminates alone; the others play on."""
    env = PettingZooParallelEnv(TagContinuous(**ONE_EACH, runner_exits_game_after_tagged=leaves))
    env.reset()
    tagger, prey, other = sorted(env.agents, key=lambda name: (name.startswith("runner"), name))
    x = env.wrapper.cuda_data_manager.tensor("loc_x")[0]
    rows = {name: row for row, name in enumerate(env.possible_agents)}
    x[rows[tagger]], x[rows[prey]], x[rows[other]] = 4.9, 5.0, 8.0
    still = {agent: np.array([0, 0]) for agent in env.agents}
    observations, rewards, terminations, truncations, infos = env.step(still)
    assert rewards == {tagger: 3.0, prey: -2.0, other: 0.0}
    assert terminations == {tagger: False, prey: leaves, other: False}
    assert not any(truncations.values())
    assert observations.keys() == infos.keys() == rewards.keys()
    assert env.agents == [agent for agent in env.possible_agents if agent != prey or not leaves]
    if leaves:
        with pytest.raises(ActionError, match=f"needs one action for each of .* .got .*{prey}"):
            env.step(still)
    for step in range(2, 7):
        _, _, terminations, truncations, _ = env.step({agent: still[agent] for agent in env.agents})
        assert set(truncations.values()) == {step == 6}
        assert not any(terminations.values())
    assert env.agents == []
    assert terminations.keys() == {tagger, other} | (set() if leaves else {prey})


def test_actions_reach_their_agents():
    """Each action reaches its agent, in any order of the dict."""
    env = PettingZooParallelEnv(Counter(limit=2))
    observations, infos = env.reset()
    assert infos == {"agent_0": {}, "agent_1": {}, "agent_2": {}}
    assert [row.tolist() for row in observations.values()] == [[0, 0.5]] * 3
    for count in (1, 2):
        actions = {"agent_2": 1, "agent_0": 1, "agent_1": 0}
        observations, rewards, terminations, truncations, _ = env.step(actions)
        assert [row[0] for row in observations.values()] == [count, 0, count]
        assert rewards == {"agent_0": 0.5 * count, "agent_1": 0, "agent_2": 1.5 * count}
        assert set(terminations.values()) == {count == 2}
        assert not any(truncations.values())
    assert env.agents == []


@on_every_backend
def test_agents_see_dicts_of_their_own(backend):
    """Each agent gets its own dict of observations."""
    env = PettingZooParallelEnv(Lookout(without_map=[1]), env_backend=backend)
    parallel_api_test(env, num_cycles=4)
    observations, _ = env.reset()
    for want in ([seen(0, 0, 0), seen(1, 0, 0)], [seen(0, 1, 2), seen(1, 1, 1)]):
        del want[1]["map"]
        for agent, own in zip(env.possible_agents, want, strict=True):
            space, parts = env.observation_space(agent), observations[agent]
            assert space.contains(parts)
            assert parts.keys() == own.keys()
            for key, part in parts.items():
                np.testing.assert_array_equal(part, own[key])
                assert part.dtype == space[key].dtype
        observations, rewards, *_ = env.step({"agent_0": 2, "agent_1": 1})
    assert rewards == {"agent_0": 2, "agent_1": 1}


def test_roles_see_and_choose_what_is_theirs():
    """Each role has its own names, spaces, masks, rewards and actions."""
    env = PettingZooParallelEnv(Covid19Economy(episode_length=20, num_subsidy_levels=4), env_backend="cpu")
    assert [env.possible_agents[index] for index in (0, 50, 51)] == ["governor_0", "governor_50", "government_51"]
    assert [env.action_space(agent).n for agent in ("governor_0", "government_51")] == [11, 6]
    parallel_api_test(env, num_cycles=25)
    env.reset(seed=1)
    actions = {agent: 2 + index % 9 for index, agent in enumerate(env.agents)} | {"government_51": 5}
    observations, rewards, *_ = env.step(actions)
    levels = [observations[agent]["seen"][0] for agent in env.agents[:-1]]
    np.testing.assert_allclose(levels, np.array([2 + index % 9 for index in range(51)]) / 10, rtol=1e-6)
    assert observations["government_51"]["seen"].shape == (215,)
    assert observations["government_51"]["seen"][212] == 1.0
    assert observations["government_51"]["action_mask"].tolist() == [1, 0, 0, 0, 0, 0]
    data, roles = env.wrapper.cuda_data_manager, env.wrapper.env.roles
    of_roles = [data.pull_data_from_device(f"rewards_{role}")[0] for role in roles]
    assert [rewards[agent] for agent in env.agents] == np.concatenate(of_roles).tolist()


def test_masks_are_infos_that_spaces_sample_by():
    """Masks in infos equal the reference's, and spaces sample by them."""
    with pytest.warns(UserWarning, match="Action space for each agent probably should be"):
        api_test(parallel_to_aec(PettingZooParallelEnv(negotiating())), num_cycles=18)
    seed_test(lambda: parallel_to_aec(PettingZooParallelEnv(negotiating())), num_cycles=18)
    env, oracle = PettingZooParallelEnv(negotiating()), Oracle(1)
    _, infos = env.reset()
    for seed, agent in enumerate(env.agents):
        env.action_space(agent).seed(seed)
    while env.agents:
        masks = {agent: info["action_mask"] for agent, info in infos.items()}
        np.testing.assert_array_equal([np.concatenate(mask) for mask in masks.values()], oracle.masks[0])
        actions = {agent: env.action_space(agent).sample(mask) for agent, mask in masks.items()}
        *_, infos = env.step(actions)
        oracle.step([list(actions.values())])
    assert oracle.n_bound > 0, "pledges must limit rates"
    assert infos.keys() == actions.keys()


# ------------------------------------------------------------------ errors


def test_one_copy_restarted_by_reset():
    """Several copies or a restarting step are errors."""
    with pytest.raises(ConfigError, match=r"PettingZooParallelEnv.num_envs: must be 1 .got 2"):
        PettingZooParallelEnv(EnvWrapper(TagContinuous(**ONE_EACH), num_envs=2))
    with pytest.raises(ConfigError, match=r"PettingZooParallelEnv.auto_reset: must be False .got True"):
        PettingZooParallelEnv(TagContinuous(**ONE_EACH), auto_reset=True)
    assert PettingZooParallelEnv(CartPole()).possible_agents == ["agent_0"]


def test_step_needs_an_action_for_each_agent():
    """The error names the wrong actions."""
    env = PettingZooParallelEnv(TagContinuous(**ONE_EACH))
    env.reset()
    first, *others = env.agents
    with pytest.raises(ActionError, match=f"needs one action for each of {', '.join(env.agents)} .got none"):
        env.step({})
    for wrong, got in ((1, "int64 of shape ..,"), (np.zeros(2), "float64 of shape .2,.")):
        actions = {agent: np.array([0, 0]) for agent in others} | {first: wrong}
        with pytest.raises(ActionError, match=rf"the action of {first} must be of MultiDiscrete.* .got {got[:-1]}"):
            env.step(actions)
