"""Tests of the TorchRL bridge: checker, rollouts and partial restarts."""

from __future__ import annotations

import pytest
import torch

from envs import ENVS, CartPole, Covid19Economy, TagContinuous
from envs.classic_control.pendulum import Pendulum
from tests.bridges.negotiation import Oracle, negotiating
from tests.environments.counter import Counter
from tests.environments.lookout import Lookout, seen
from tests.support import BACKENDS_HERE, TAG_CONFIGS, on_backends, on_every_backend
from warpdrive_min import Environment, EnvWrapper, spaces
from warpdrive_min.errors import ConfigError

pytest.importorskip("torchrl")

from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, MultiCategorical
from torchrl.envs import EnvBase, MarlGroupMapType, TransformedEnv
from torchrl.envs.transforms import ActionMask, RewardSum
from torchrl.envs.utils import RandomPolicy, check_env_specs, check_marl_grouping

from warpdrive_min.bridges.torchrl import TorchRLEnv, make_action_spec

TAG = next(iter(TAG_CONFIGS.values()))


def environments() -> dict[str, Environment]:
    """Return short-episode environments: discrete, continuous, and several agents."""
    return {
        "cartpole": CartPole(episode_length=10),
        "pendulum": Pendulum(episode_length=10),
        "tag_continuous": TagContinuous(**{**TAG, "episode_length": 10}),
    }


# ------------------------------------------------------------------ specs


@pytest.mark.parametrize("name", environments())
def test_specs_pass_torchrls_checker(name):
    """`check_env_specs` passes, with and without a break at ends."""
    check_env_specs(TorchRLEnv(environments()[name], num_envs=5), break_when_any_done="both", seed=3)


@pytest.mark.parametrize("name", ENVS)
def test_every_environment_passes_torchrls_checker(name):
    """`check_env_specs` passes for each shipped environment."""
    check_env_specs(TorchRLEnv(ENVS[name](), num_envs=2), seed=3)


def test_specs_say_shapes_and_kinds():
    """Specs have the expected shapes: flat for one agent, else grouped."""
    flat, group = (TorchRLEnv(environments()[name], num_envs=3) for name in ("pendulum", "tag_continuous"))
    assert flat.batch_size == group.batch_size == (3,)
    assert isinstance(flat.action_spec, Bounded)
    assert (flat.action_spec.shape, flat.action_spec.low.min(), flat.action_spec.high.max()) == ((3, 1), -2, 2)
    assert flat.full_observation_spec["observation"].shape == (3, 3)
    assert flat.reward_spec.shape == flat.full_done_spec["truncated"].shape == (3, 1)
    action = group.full_action_spec["agents", "action"]
    assert isinstance(action, MultiCategorical)
    assert (action.shape, action.dtype) == ((3, 5, 2), torch.int64)
    assert group.full_observation_spec["agents", "observation"].shape[:2] == (3, 5)
    assert group.full_reward_spec["agents", "reward"].shape == (3, 5, 1)
    assert group.full_done_spec["done"].shape == (3, 1)
    assert group.group_map.keys() == {"agents"}
    check_marl_grouping(group.group_map, group.group_map["agents"])
    assert MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(group.group_map["agents"]) == group.group_map
    discrete = make_action_spec(spaces.Discrete(4), torch.Size((2,)), torch.device("cpu"))
    assert isinstance(discrete, Categorical)
    assert (discrete.n, discrete.shape, discrete.dtype) == (4, (2,), torch.int64)
    with pytest.raises(ConfigError, match=r"actions must be Discrete, MultiDiscrete or Box .got Dict"):
        make_action_spec(spaces.Dict(), torch.Size((2,)), torch.device("cpu"))


# ------------------------------------------------------------------ rollouts and restarts


@on_backends("name", environments(), BACKENDS_HERE, numba=["cartpole"])
def test_random_rollout_is_that_of_single_steps(backend, name):
    """A random rollout is bit-identical to TorchRL's own loop."""
    got, want = [], []
    for kind, rollouts in ((TorchRLEnv, got), (EnvBase, want)):
        env = TorchRLEnv(environments()[name], num_envs=2, env_backend=backend, exact=True)
        assert (env.rollout_obstacle(12, break_when_any_done=False) == "") == (backend != "cpu")
        torch.manual_seed(2)
        env.set_seed(5)
        rollouts += [kind.rollout(env, 12, break_when_any_done=False)]
        rollouts += [kind.rollout(env, n, RandomPolicy(env.action_spec), break_when_any_done=False) for n in (12, 2)]
    assert want[0]["next", "done"].any(1).all(), "episodes must end"
    for here, there in zip(got, want, strict=True):
        assert (here.batch_size, here.names, here.device) == (there.batch_size, there.names, there.device)
        entries, others = (dict(data.items(include_nested=True)) for data in (here, there))
        assert entries.keys() == others.keys()
        for key, entry in entries.items():
            other = others[key]
            if isinstance(entry, torch.Tensor):
                assert entry.dtype == other.dtype, key
                torch.testing.assert_close(entry, other, rtol=0, atol=0, msg=str(key))
            else:
                assert (entry.batch_size, entry.names) == (other.batch_size, other.names), key


def test_rollout_says_why_it_goes_step_by_step():
    """Each obstacle to a fast rollout is reported.

    Cases: calls between steps, policies, partial observations, no launches.
    """
    env = TorchRLEnv(CartPole(), num_envs=2, env_backend="cpu")
    over_ends = {"break_when_any_done": False}
    for match, options in (
        ("TorchRL checks after each step whether to stop; pass break_when_any_done=False", {}),
        ("the policy needs the observations of each step", {"policy": lambda data: data, **over_ends}),
        (
            "more happens than steps, by callback, tensordict",
            {"callback": print, "tensordict": env.reset(), **over_ends},
        ),
        ("more happens than steps, by break_when_all_done", {"break_when_all_done": True}),
        ("backend 'cpu' runs NumPy, which has no launches", over_ends),
    ):
        assert env.rollout_obstacle(5, **options) == match
    assert (
        TorchRLEnv(Lookout(), num_envs=2).rollout_obstacle(5, **over_ends).startswith("agents have more observations")
    )
    roles = TorchRLEnv(Covid19Economy(episode_length=5, num_subsidy_levels=4), num_envs=2)
    assert roles.rollout_obstacle(5, **over_ends) == "roles have separate arrays"


def test_partial_restart_touches_the_named_copies_alone():
    """``_reset`` restarts the selected copy; the others keep their step."""
    env = TorchRLEnv(CartPole(), num_envs=3)
    data = env.rollout(4)[:, -1]["next"].exclude("reward")
    assert not data["done"].any()
    before = data["observation"].clone()
    data["_reset"] = torch.tensor([[False], [True], [False]])
    after = env.reset(data)
    torch.testing.assert_close(after["observation"][[0, 2]], before[[0, 2]], rtol=0, atol=0)
    assert after["observation"][1].abs().max() <= 0.05
    assert env.wrapper.cuda_data_manager.tensor("_timestep_").tolist() == [4, 0, 4]


def test_agents_keep_their_rewards_and_actions():
    """Actions and rewards stay in their agent's column."""
    env = TorchRLEnv(Counter(limit=2), num_envs=2)
    data = env.reset()
    actions = torch.tensor([[1, 0, 1], [0, 0, 0]])
    for count in (1, 2):
        data["agents", "action"] = actions
        step = env.step(data)["next"]
        assert step["agents", "observation"][..., 0].tolist() == [[count, 0, count], [0, 0, 0]]
        assert step["agents", "reward"][..., 0].tolist() == [[0.5 * count, 0, 1.5 * count], [0, 0, 0]]
        assert step["terminated"][:, 0].tolist() == [count == 2, False]
        data = TensorDict({}, batch_size=[2])


def test_transforms_see_episodes():
    """TorchRL's RewardSum starts again at each restart."""
    env = TransformedEnv(TorchRLEnv(CartPole(episode_length=3), num_envs=2), RewardSum())
    sums = env.rollout(7, break_when_any_done=False)["next", "episode_reward"][..., 0]
    assert sums.tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 2


@on_every_backend
@pytest.mark.parametrize("n_agents", [1, 2])
def test_dict_observations_are_nested_entries(backend, n_agents):
    """Dict observations become nested entries that TorchRL's checker accepts."""
    env = TorchRLEnv(Lookout(n_agents), num_envs=2, env_backend=backend)
    check_env_specs(env)
    group = ("agents",) if n_agents > 1 else ()
    masked = TransformedEnv(env, ActionMask((*group, "action"), (*group, "action_mask")))
    data = masked.rollout(5, break_when_any_done=False).cpu()
    assert data["next", "truncated"][0, :, 0].tolist() == [False, False, True, False, False]
    assert data["next", *group, "reward"].min() >= 0, "actions that the mask forbids"
    totals = data[*group, "action"][:, :2].sum(1).flatten().tolist()  # of each agent of each copy
    entries = data[:, 2].get(group) if group else data[:, 2]
    entries = entries.reshape(len(totals))
    for entry, row in zip(entries, range(len(totals)), strict=True):
        want = seen(row % n_agents, 2, totals[row])
        mask = entry["action_mask"]
        assert (mask.dtype, mask.int().tolist()) == (torch.bool, want.pop("action_mask").tolist())
        assert entry["observation"].keys() == want.keys()
        for key, part in entry["observation"].items():
            assert (part.tolist(), str(part.dtype)) == (want[key].tolist(), f"torch.{want[key].dtype}")


def test_masks_lie_beside_the_actions():
    """TorchRL's ActionMask uses the masks, which equal the reference's."""
    env, oracle = TorchRLEnv(negotiating(), num_envs=2), Oracle(2)
    check_env_specs(env)
    torch.manual_seed(1)
    data = TransformedEnv(env, ActionMask(("agents", "action"), ("agents", "action_mask"))).rollout(10)
    assert data["next", "truncated"][:, :, 0].tolist() == [[False] * 5 + [True]] * 2
    assert data["agents", "observation"].shape == (2, 6, 3, env.wrapper.env.config.n_features)
    for step in range(6):
        now = data[:, step]
        assert torch.equal(now["agents", "action_mask"], torch.from_numpy(oracle.masks) != 0)
        oracle.step(now["agents", "action"])
        assert torch.equal(now["next", "agents", "action_mask"], torch.from_numpy(oracle.masks) != 0)
    assert oracle.n_bound > 0, "pledges must limit rates"


def test_seed_gives_the_starts():
    """`set_seed` repeats the next reset's starts; unseeded draws continue."""
    env = TorchRLEnv(CartPole(), num_envs=3)
    starts = []
    for seed in (4, None, 4, 5):
        if seed is not None:
            env.set_seed(seed)
        starts.append(env.reset()["observation"])
    torch.testing.assert_close(starts[0], starts[2], rtol=0, atol=0)
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[3])


def test_torchrl_restarts_itself():
    """A wrapper that restarts in its step is an error."""
    with pytest.raises(ConfigError, match=r"TorchRLEnv.auto_reset: must be False .got True"):
        TorchRLEnv(EnvWrapper(CartPole(), num_envs=2, auto_reset=True))
    wrapper = EnvWrapper(CartPole(), num_envs=2)
    assert TorchRLEnv(wrapper).wrapper is wrapper


def test_agents_of_a_group_see_the_same_keys():
    """The error names the agent that differs."""
    match = r"TorchRLEnv: agent 1: all agents must have the observation space .* of agent 0 .got .*; use PettingZoo"
    with pytest.raises(ConfigError, match=match):
        TorchRLEnv(Lookout(without_map=[1]))


def test_roles_are_groups_of_their_own():
    """Each role is a group with its entries, specs and masks."""
    env = TorchRLEnv(Covid19Economy(episode_length=5, num_subsidy_levels=4), num_envs=2, env_backend="cpu")
    check_env_specs(env)
    assert {group: len(names) for group, names in env.group_map.items()} == {"governor": 51, "government": 1}
    data = env.reset(seed=1)
    assert data["governor", "observation", "seen"].shape == (2, 51, 22)
    assert data["government", "observation", "seen"].shape == (2, 1, 215)
    assert data["government", "action_mask"].shape == (2, 1, 6)
    data["governor", "action"] = 1 + torch.arange(2 * 51).reshape(2, 51) % 10
    data["government", "action"] = torch.tensor([[2], [5]])
    after = env.step(data)["next"]
    levels = after["governor", "observation", "seen"][..., 0]
    assert torch.allclose(10 * levels, data["governor", "action"].float())
    assert after["government", "observation", "seen"][:, 0, 212].tolist() == [0.25, 1.0]
    assert not after["governor", "action_mask"][..., 1:].any()
    for role, n_agents in (("governor", 51), ("government", 1)):
        rewards = env.batched.data.tensor(f"rewards_{role}")
        assert rewards.shape == (2, n_agents)
        assert torch.equal(after[role, "reward"][..., 0], rewards)
