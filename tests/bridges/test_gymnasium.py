"""Tests of the Gymnasium bridge with vector environments, checkers and wrappers."""

from __future__ import annotations

import importlib
import itertools
import sys
import warnings

import numpy as np
import pytest
import torch

from envs import CartPole, Covid19Economy, TagContinuous
from envs.classic_control.pendulum import Pendulum
from tests.bridges.negotiation import Oracle, negotiating
from tests.environments.counter import Counter, PythonCounter
from tests.environments.lookout import Lookout, seen
from tests.support import TAG_CONFIGS, by_day, on_every_backend
from warpdrive_min import EnvWrapper, spaces
from warpdrive_min.errors import ConfigError, DataError

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from warpdrive_min.bridges.gymnasium import GymnasiumEnv, GymnasiumVectorEnv  # noqa: E402
from warpdrive_min.bridges.packages import MissingPackage  # noqa: E402
from warpdrive_min.bridges.spaces import mask_for_sample, to_gymnasium  # noqa: E402

TAG = next(iter(TAG_CONFIGS.values()))

# ------------------------------------------------------------------ spaces


def test_spaces_become_gymnasiums():
    """Our spaces become Gymnasium's; theirs pass through; others raise."""
    box = gymnasium.spaces.Box(-1, 2, (3,), np.float32)
    ours = spaces.Dict(
        {"a": spaces.Discrete(4), "b": spaces.MultiDiscrete([2, 3]), "c": spaces.Box(-1, 2, (3,)), "d": box}
    )
    want = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Discrete(4), "b": gymnasium.spaces.MultiDiscrete([2, 3]), "c": box, "d": box}
    )
    assert to_gymnasium(ours) == want
    assert to_gymnasium(box) is box
    with pytest.raises(ConfigError, match=r"must get a Discrete, MultiDiscrete, Box or Dict .* .got 4"):
        to_gymnasium(4)


# ------------------------------------------------------------------ as Gymnasium's SyncVectorEnv


ENVIRONMENTS = {
    "choices": (lambda: CartPole(reset_pool_size=1, episode_length=14), 140),
    "numbers": (lambda: Pendulum(reset_pool_size=1, episode_length=5), 12),
    "a Dict": (lambda: Lookout(1), 7),
}
"""Factories of environments with equal starts, and steps."""


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_vector_env_does_what_gymnasiums_own_does(case, mode):
    """Spaces, observations, rewards, ends and infos equal SyncVectorEnv's."""
    make, n_steps = ENVIRONMENTS[case]
    got = GymnasiumVectorEnv(make(), num_envs=4, autoreset_mode=mode, to_numpy=True, exact=True)
    want = SyncVectorEnv([lambda: GymnasiumEnv(make(), exact=True)] * 4, autoreset_mode=mode)
    assert got.metadata["autoreset_mode"] is mode
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(got, name) == getattr(want, name)
    observations, infos = got.reset(seed=1)
    assert data_equivalence((observations, infos), want.reset(seed=1), exact=True)
    got.action_space.seed(5)
    n_terminated = n_truncated = 0
    for step in range(n_steps):
        assert got.observation_space.contains(observations)
        actions = got.action_space.sample()
        if case == "a Dict":
            actions = np.array([got.single_action_space.sample(mask) for mask in observations["action_mask"]])
        (observations, rewards, *ends), (wanted, want_rewards, *want_ends) = got.step(actions), want.step(actions)
        assert data_equivalence([observations, *ends], [wanted, *want_ends], exact=True), step
        assert rewards.dtype == np.float32
        np.testing.assert_array_equal(rewards, want_rewards)
        assert case != "a Dict" or rewards.min() >= 0, "the mask must say what is allowed"
        terminated, truncated, _ = ends
        n_terminated += terminated.sum()
        n_truncated += truncated.sum()
        if mode is AutoresetMode.DISABLED and (ended := terminated | truncated).any():
            again = [each.reset(options={"reset_mask": ended.copy()}) for each in (got, want)]
            assert data_equivalence(*again, exact=True)
            observations = again[0][0]
    assert n_terminated > 5 or case != "choices", "episodes must end by themselves"
    assert n_truncated > 5, "episodes must run out of time"


# ------------------------------------------------------------------ tensors


def test_tensors_hold_what_the_numpy_arrays_hold():
    """Tensors equal the NumPy arrays, and later steps keep them."""
    config = {"episode_length": 9}
    tensors = GymnasiumVectorEnv(CartPole(**config), num_envs=3, seed=4)
    arrays = GymnasiumVectorEnv(CartPole(**config), num_envs=3, seed=4, to_numpy=True)
    np.testing.assert_array_equal(tensors.reset()[0], arrays.reset()[0])
    n_ended, kept = 0, []
    for step in range(30):
        actions = torch.full((3,), step % 2)
        *got, infos = tensors.step(actions)
        *want, wanted = arrays.step(actions.numpy())
        assert all(isinstance(each, torch.Tensor) for each in got)
        for each, array in zip(got, want, strict=True):
            np.testing.assert_array_equal(each, array)
        ended = infos["_final_obs"]
        np.testing.assert_array_equal(ended, want[2] | want[3])
        assert infos["final_obs"].shape == (3, 4)
        assert ("final_obs" in wanted) == bool(ended.any())
        for row in ended.nonzero()[:, 0]:
            np.testing.assert_array_equal(infos["final_obs"][row], wanted["final_obs"][row])
        n_ended += int(ended.sum())
        kept.append((got[0], got[0].clone()))
    assert n_ended >= 9
    assert all(torch.equal(*each) for each in kept), "a later step must not write into what was returned"


SEVERAL = {"cartpole": lambda: CartPole(episode_length=3), "lookout": lambda: Lookout(1), "negotiating": negotiating}
MODES = list(itertools.product(SEVERAL, AutoresetMode))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("env", "mode"),
    by_day(MODES, [each for each in MODES if "cartpole" in each or AutoresetMode.SAME_STEP in each]),
)
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_step_and_reset_do_not_synchronise(backend, env, mode):
    """`step` and `reset` make no synchronising CUDA call.

    Torch checks arrays, a Dict, and masks in infos.
    """
    envs = GymnasiumVectorEnv(
        SEVERAL[env](), num_envs=64, env_backend=backend, agents_as_envs=True, autoreset_mode=mode
    )
    envs.reset()
    actions = torch.ones(envs.action_space.shape, dtype=torch.int64, device=envs.wrapper.cuda_data_manager.device)
    mask = actions.reshape(envs.num_envs, -1)[:, 0] > 0
    envs.step(actions)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Gymnasium warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            *_, infos = envs.step(actions)
        envs.reset()
        envs.reset(options={"reset_mask": mask})
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert ("_final_obs" in infos) == (mode is AutoresetMode.SAME_STEP)


# ------------------------------------------------------------------ several agents


def test_agents_become_environments():
    """Each agent becomes a row, ``env * n_agents + agent``."""
    envs = GymnasiumVectorEnv(Counter(episode_length=3), num_envs=2, agents_as_envs=True, auto_reset=False)
    observations, _ = envs.reset()
    assert (envs.num_envs, tuple(observations.shape)) == (6, (6, 2))
    actions = torch.tensor([1, 0, 0, 0, 1, 1])
    for _ in range(3):
        observations, rewards, terminated, truncated, infos = envs.step(actions)
    assert observations[:, 0].tolist() == [3, 0, 0, 0, 3, 3]
    assert rewards.tolist() == [1.5, 0, 0, 0, 3, 4.5]  # weights 0.5, 1, 1.5
    assert truncated.all()
    assert not terminated.any()
    assert infos == {}
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False, False, False, False])})
    assert observations[:, 0].tolist() == [0, 0, 0, 0, 3, 3]


# ------------------------------------------------------------------ observations in a Dict


@on_every_backend
def test_dict_observations_are_dicts_of_batches(backend):
    """Dict observations arrive as fresh batches, over an episode's end too."""
    envs = GymnasiumVectorEnv(Lookout(episode_length=2), num_envs=2, env_backend=backend, agents_as_envs=True)
    actions, totals = torch.tensor([0, 1, 2, 0]), np.array([0, 0, 0, 0])
    got, want = [envs.reset()[0]], [(0, totals)]
    for step in range(1, 4):
        observations, _, _, truncated, infos = envs.step(actions)
        totals = totals + actions.numpy()
        assert infos["_final_obs"].tolist() == truncated.tolist() == [step == 2] * 4
        if step == 2:
            got.append(infos["final_obs"])
            want.append((step, totals))
            totals = totals * 0
        got.append(observations)
        want.append((step % 2, totals))
    assert len(got) == 5, "an episode must end"
    for parts, (time, total) in zip(got, want, strict=True):
        rows = [seen(row % 2, time, total[row]) for row in range(4)]
        assert parts.keys() == rows[0].keys() == envs.single_observation_space.keys()
        for key, part in parts.items():
            np.testing.assert_array_equal(part.cpu(), [row[key] for row in rows], err_msg=key)
            assert str(part.dtype) == f"torch.{envs.single_observation_space[key].dtype}"
            assert part.device == envs.wrapper.cuda_data_manager.device


def test_plain_env_with_dict_observations_passes_gymnasiums_checker():
    """`check_env` passes with dict observations, which Gymnasium can flatten."""
    check_env(GymnasiumEnv(Lookout(1)), skip_render_check=True)
    flat = gymnasium.wrappers.FlattenObservation(GymnasiumEnv(Lookout(1)))
    assert flat.reset()[0].shape == flat.observation_space.shape == (12,)


@pytest.mark.parametrize(
    ("key", "part", "error", "match"),
    [
        ("map", spaces.Dict(), ConfigError, r"under 'map' must be one array .got {}.; give every array a key"),
        ("sky", spaces.Box(-1, 1, (2,)), DataError, r"the array 'observations_sky'; push it in get_tensor_dictionary"),
        ("map", spaces.Box(-1, 1, (4,)), ConfigError, r"the array 'observations_map' of shape .1, 2, 4. .got .1, 2, 2"),
        ("action_mask", spaces.Box(0, 1, (4,)), ConfigError, r"'observations_action_mask' of shape .1, 2, 4. .got"),
    ],
)
def test_dict_observations_that_no_bridge_shows(key, part, error, match):
    """The error names bridge, agent, space and remedy."""
    wrapper = EnvWrapper(Lookout())
    wrapper.env.observation_space[1][key] = part
    with pytest.raises(error, match=f"^GymnasiumVectorEnv: agent 1 of environment 'Lookout': .*{match}"):
        GymnasiumVectorEnv(wrapper, agents_as_envs=True)


def test_action_mask_needs_an_entry_for_each_choice():
    """An action mask has an entry per choice; boxes have none."""
    for actions, n_choices in ((spaces.MultiDiscrete([3, 2]), 5), (spaces.Box(-1, 1, (3,)), 0)):
        env = Lookout(1)
        env.action_space = {0: actions}
        match = rf"agent 0 of .* its action mask needs one entry for each of the {n_choices} choices of .* .got .3,."
        with pytest.raises(ConfigError, match=match):
            GymnasiumVectorEnv(env)


def test_restarting_in_the_step_needs_every_part_of_final_observations():
    """The error lists the final-observation arrays that the environment needs."""
    env = Lookout(1)
    feed = env.get_tensor_dictionary()
    del feed["final_observations_hour"]
    env.get_tensor_dictionary = lambda: feed
    with pytest.raises(ConfigError, match=r"needs a kernel 'reset' and the arrays .*final_observations_hour"):
        GymnasiumVectorEnv(env)


# ------------------------------------------------------------------ action masks next to the observations


@on_every_backend
def test_masks_are_infos(backend):
    """Masks in infos equal the reference's; sampled actions are accepted."""
    envs = GymnasiumVectorEnv(negotiating(), num_envs=2, env_backend=backend, agents_as_envs=True, to_numpy=True)
    oracle, space = Oracle(2, auto_reset=True), envs.single_action_space
    space.seed(3)
    observations, infos = envs.reset()
    assert envs.observation_space.contains(observations)
    for step in range(1, 13):
        mask = infos["action_mask"]
        assert mask.dtype == np.int8
        np.testing.assert_array_equal(mask, oracle.masks.reshape(6, -1))
        assert infos["_action_mask"].tolist() == [True] * 6
        actions = np.array([space.sample(mask_for_sample(row, space)) for row in mask])
        *_, truncated, infos = envs.step(actions)
        assert truncated.all() == ("final_obs" in infos) == (step % 6 == 0)
        oracle.step(actions.reshape(2, 3, -1))
    assert oracle.n_bound > 0, "pledges must limit rates"


def test_masks_are_tensors_with_tensors():
    """`reset` and `step` return masks as fresh tensors."""
    envs = GymnasiumVectorEnv(negotiating(), num_envs=2, agents_as_envs=True)
    _, before = envs.reset()
    kept = before["action_mask"].clone()
    *_, infos = envs.step(torch.zeros(envs.action_space.shape, dtype=torch.int64))
    assert infos.keys() == {"action_mask", "_action_mask", "final_obs", "_final_obs"}
    assert (infos["action_mask"].dtype, infos["action_mask"].shape) == (torch.int8, kept.shape)
    assert torch.equal(before["action_mask"], kept)
    assert not torch.equal(infos["action_mask"], kept)


class OneWay(CartPole):
    """CartPole that may only push right."""

    masks_actions = True
    mask = np.array([[0, 1]], np.int32)

    def get_tensor_dictionary(self):
        feed = super().get_tensor_dictionary()
        feed.add_data("action_mask", self.mask, per_env=True)
        return feed


def test_mask_of_a_plain_env_is_what_its_space_samples_by():
    """A mask has the form that its action space needs to sample.

    Gymnasium's Taxi has ``info["action_mask"]`` too. One action type gives an array.
    """
    env = GymnasiumEnv(OneWay())
    check_env(env, skip_render_check=True)
    _, info = env.reset()
    for _ in range(5):
        assert (info["action_mask"].dtype, info["action_mask"].tolist()) == (np.int8, [0, 1])
        assert env.action_space.sample(info["action_mask"]) == 1
        *_, info = env.step(1)


def test_mask_must_be_there_with_an_entry_for_each_choice():
    """The error names the missing mask, or its wrong size."""
    env = OneWay()
    env.get_tensor_dictionary = super(OneWay, env).get_tensor_dictionary
    with pytest.raises(DataError, match=r"environment 'CartPole': masks actions, and needs the array 'action_mask'"):
        GymnasiumEnv(env)
    for mask, match in (
        ([[1, 1, 1]], r"agent 0: its action mask needs one entry for each of the 2 choices of .* .got .3,."),
        ([[1, 1], [1, 1]], r"the array 'action_mask' must have .1, 1. rows of copies and agents .got .1, 2."),
    ):
        env = OneWay()
        env.mask = np.array(mask, np.int32)
        with pytest.raises(ConfigError, match=match):
            GymnasiumEnv(env)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("bridge", [GymnasiumEnv, GymnasiumVectorEnv])
def test_roles_need_another_bridge(bridge):
    """The error for agents with roles names other bridges.

    Gymnasium has one space for all.
    """
    rule = rf"^{bridge.__name__}: needs agents with equal spaces, and environment 'Covid19Economy' has roles .*"
    with pytest.raises(ConfigError, match=rule + r"got 'governor, government'.; use PettingZooParallelEnv or TorchRL"):
        bridge(Covid19Economy(), **({"agents_as_envs": True} if bridge is GymnasiumVectorEnv else {}))


def test_several_agents_need_another_bridge():
    """The error for several agents names the bridges that fit."""
    match = r"must have 1 agent .got 5.; use PettingZooParallelEnv or TorchRLEnv, or .*agents_as_envs=True"
    with pytest.raises(ConfigError, match=match):
        GymnasiumVectorEnv(TagContinuous(**TAG))
    with pytest.raises(ConfigError, match=r"GymnasiumEnv: .* must have 1 agent"):
        GymnasiumEnv(TagContinuous(**TAG))


def test_agents_must_have_the_same_spaces_to_share_a_batch():
    """The error names the agents that differ."""
    env = Counter()
    env.action_space[1] = spaces.Discrete(3)
    with pytest.raises(
        ConfigError, match=r"agent .*: all agents must have the action space .*n=2.* of agent .* .got .*n=3"
    ):
        GymnasiumVectorEnv(env, agents_as_envs=True, auto_reset=False)
    match = r"agent 1: all agents must have the observation space .* of agent 0 .got .*; use PettingZooParallelEnv"
    with pytest.raises(ConfigError, match=match):
        GymnasiumVectorEnv(Lookout(without_map=[1]), agents_as_envs=True)


def test_restarting_in_the_step_needs_final_observations():
    """An environment without final observations cannot restart in its step.

    Counter has no kernel ``reset`` and stores none.
    """
    with pytest.raises(ConfigError, match=r"with auto_reset, environment 'Counter' needs .*; use auto_reset=False"):
        GymnasiumVectorEnv(Counter(), agents_as_envs=True)


def test_constructor_takes_a_wrapper_or_options():
    """A wrapper keeps its restart mode; invalid options raise."""
    wrapper = EnvWrapper(CartPole(), num_envs=5)
    envs = GymnasiumVectorEnv(wrapper)
    assert envs.wrapper is wrapper
    assert (envs.num_envs, envs.metadata["autoreset_mode"]) == (5, AutoresetMode.DISABLED)
    with pytest.raises(ConfigError, match=r"options: must not be given for an EnvWrapper, .* .got 'num_envs, seed'"):
        GymnasiumVectorEnv(wrapper, num_envs=5, seed=1)
    with pytest.raises(
        ConfigError, match=r"environment 'PythonCounter': has only Python, no kernels for the backend .got 'cpu'"
    ):
        GymnasiumVectorEnv(PythonCounter())
    match = r"GymnasiumVectorEnv.auto_reset: must be True for autoreset_mode 'SameStep' .got False."
    with pytest.raises(ConfigError, match=match):
        GymnasiumVectorEnv(wrapper, autoreset_mode="SameStep")
    with pytest.raises(ConfigError, match=r"must be False for autoreset_mode 'NextStep' .got True."):
        GymnasiumVectorEnv(CartPole(), auto_reset=True, autoreset_mode="NextStep")
    assert GymnasiumVectorEnv(wrapper, autoreset_mode="NextStep").metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    with pytest.raises(ConfigError, match=r"GymnasiumEnv.num_envs: must be 1 .got 5"):
        GymnasiumEnv(wrapper)
    with pytest.raises(ConfigError, match=r"GymnasiumEnv.auto_reset: must be False .got True"):
        GymnasiumEnv(CartPole(), auto_reset=True)


def test_refused_vector_env_closes():
    """A bridge whose constructor failed closes without a second error."""
    GymnasiumVectorEnv.__new__(GymnasiumVectorEnv).close()


@pytest.mark.parametrize("package", ["gymnasium", "pettingzoo", "torchrl"])
def test_missing_package_says_how_to_install_it(monkeypatch, package):
    """Importing a bridge without its package raises our ImportError."""
    name = f"warpdrive_min.bridges.{package}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for module in [each for each in sys.modules if each.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    match = rf"{name}: needs the package {package} .got .*; pip install -e \".*\[bridges\]\""
    with pytest.raises(MissingPackage, match=match) as caught:
        importlib.import_module(name)
    assert isinstance(caught.value, ImportError)
