"""Tests of the ids that `gymnasium.make` and `gymnasium.make_vec` know."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types

import numpy as np
import pytest

from envs import ENVS, CartPole
from tests.support import on_every_fast_backend
from warpdrive_min.bridges import registration
from warpdrive_min.errors import ConfigError
from warpdrive_min.lazy import AfterImport

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402
from gymnasium.wrappers import RecordEpisodeStatistics, TimeAwareObservation, TimeLimit  # noqa: E402
from gymnasium.wrappers import vector as wrappers  # noqa: E402

CARTPOLE = "warpdrive_min/CartPole-v0"
IDS = [f"warpdrive_min/{name}-v0" for name in registration.ENV_NAMES]
MAKE = "gymnasium.make_vec('{}warpdrive_min/CartPole-v0', num_envs=2).close()"
SLOW = ("torch", "numba", "pydantic", "envs", "warpdrive_min.envs", "warpdrive_min.backends")
"""Modules that a program loads only when it creates an environment."""

# ------------------------------------------------------------------ registration


@pytest.mark.parametrize(
    "program",
    [
        "import gymnasium, warpdrive_min; look(); " + MAKE.format(""),
        pytest.param("import warpdrive_min, gymnasium; look(); " + MAKE.format(""), marks=pytest.mark.nightly),
        pytest.param(
            "import importlib.util, warpdrive_min; importlib.util.find_spec('gymnasium'); import gymnasium; look()",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "import gymnasium; " + MAKE.format("warpdrive_min:") + "; look = print", marks=pytest.mark.nightly
        ),
    ],
    ids=["gymnasium first", "warpdrive_min first", "only looked for", "by the id"],
)
def test_import_registers_the_ids_in_any_order(program):
    """Importing both packages registers the ids, and loads nothing slow."""
    look = f"""import sys
def look():
    assert not [name for name in {SLOW} if name in sys.modules]
"""
    ids = "print(*sorted(each for each in gymnasium.registry if each.startswith('warpdrive_min/')))"
    words = [sys.executable, "-c", f"{look}{program}\n{ids}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == IDS, done.stderr


def test_ids_are_the_environments_with_one_agent():
    """Each environment with one agent has an id."""
    single = [cls.__name__ for cls in ENVS.values() if cls().num_agents == 1]
    assert sorted(single) == list(registration.ENV_NAMES)


def fake(name, register):
    """Return a module that looks like Gymnasium."""
    module = types.ModuleType(name)
    module.registry, module.register = {IDS[0]: "a user's"}, register
    return module


def test_registration_never_raises(monkeypatch):
    """Ids that are taken, or that Gymnasium refuses, break no program."""
    asked = []

    def refuse(env_id, **_):
        asked.append(env_id)
        raise RuntimeError("no")

    monkeypatch.setitem(sys.modules, "gymnasium", fake("gymnasium", refuse))
    registration.register_envs()
    assert asked == IDS[1:]
    monkeypatch.setitem(sys.modules, "gymnasium", types.ModuleType("gymnasium"))
    registration.register_envs()


def test_hook_calls_after_each_import(monkeypatch, tmp_path):
    """The hook calls its function after each import of the module."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "hooked.py").write_text("done = 1\n")
    (tmp_path / "called.py").write_text("import sys\ndef note(): sys.modules['hooked'].done += 1\n")
    AfterImport("hooked", "called:note")
    assert "called" not in sys.modules
    try:
        for _ in range(2):
            assert importlib.util.find_spec("hooked").origin.endswith("hooked.py")
            assert importlib.import_module("hooked").done == 2
            del sys.modules["hooked"]
        importlib.import_module("hooked")
        AfterImport("hooked", "called:note")
        assert sys.modules["hooked"].done == 3, "a module that is imported already"
        AfterImport("absent_module", "called:note")
        with pytest.raises(ModuleNotFoundError, match="absent_module"):
            importlib.import_module("absent_module")
    finally:
        for name in ("hooked", "called"):
            sys.modules.pop(name, None)


# ------------------------------------------------------------------ make and make_vec


@pytest.mark.parametrize("env_id", IDS)
def test_made_environments_pass_gymnasiums_checker(env_id, recwarn):
    """`check_env` passes, also its checks of rendering, closing and the spec."""
    env = gymnasium.make(env_id)
    check_env(env.unwrapped)
    assert all("symmetric and normalized" in str(each.message) for each in recwarn.list)
    assert gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())).spec.id == env_id


@on_every_fast_backend
def test_make_vec_steps_as_gymnasiums_own_vector_env(backend):
    """A vector environment equals Gymnasium's of single ones, in its default mode."""
    given = {"backend": backend, "exact": True, "reset_pool_size": 1, "episode_length": 9}
    got = gymnasium.make_vec(CARTPOLE, num_envs=3, **given)
    want = gymnasium.make_vec(CARTPOLE, num_envs=3, vectorization_mode="sync", **given)
    assert (got.num_envs, got.spec.id) == (3, CARTPOLE)
    assert got.metadata["autoreset_mode"] is want.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert (got.observation_space, got.action_space) == (want.observation_space, want.action_space)
    assert data_equivalence(got.reset(seed=[4, 5, 6]), want.reset(seed=[4, 5, 6]), exact=True)
    got.action_space.seed(0)
    n_ended = 0
    for _ in range(25):
        actions = got.action_space.sample()
        (seen, rewards, *rest), (expected, want_rewards, *others) = got.step(actions), want.step(actions)
        assert data_equivalence([seen, *rest], [expected, *others], exact=True)
        np.testing.assert_array_equal(rewards, want_rewards)
        n_ended += np.sum(rest[0] | rest[1])
    assert n_ended >= 6


def test_reset_mask_starts_waiting_environments_once():
    """A row that `reset` starts by a mask is not started again by the next step."""
    given = {"num_envs": 3, "exact": True, "reset_pool_size": 1, "episode_length": 2}
    all_envs = [gymnasium.make_vec(CARTPOLE, vectorization_mode=mode, **given) for mode in (None, "sync")]
    mask, actions = np.array([True, False, False]), np.array([1, 0, 1])
    got, want = [], []
    for envs, results in zip(all_envs, (got, want), strict=True):
        results.append(envs.reset(seed=0)[0])
        results.extend(envs.step(actions)[:4:2] for _ in range(2))
        results.append(envs.reset(options={"reset_mask": mask.copy()})[0])
        results.extend(envs.step(actions)[:4:2] for _ in range(3))
        results.extend(envs.step(actions)[3] for _ in range(3))
    assert data_equivalence(got, want, exact=True)
    assert np.any(got[-2] != got[-1])


def test_seeds_of_rows_start_their_rows():
    """A row starts as with its seed for all rows; row 0 as a single environment."""
    envs = gymnasium.make_vec(CARTPOLE, num_envs=2)
    rows, _ = envs.reset(seed=[8, 3])
    np.testing.assert_array_equal(rows[0], gymnasium.make(CARTPOLE).reset(seed=8)[0])
    np.testing.assert_array_equal(rows, envs.reset(seed=[8, 3])[0])
    np.testing.assert_array_equal(rows[1], envs.reset(seed=3)[0][1])


def test_rendering_is_refused_as_an_unknown_argument():
    """A render mode is also a TypeError, which trainers catch."""
    with pytest.raises(TypeError, match=r"render_mode: must be None .got 'human'."):
        gymnasium.make_vec(CARTPOLE, render_mode="human")


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_specs_tell_the_length_of_episodes(make):
    """`spec.max_episode_steps` is the episode length, also if made from a spec."""
    assert make(CARTPOLE).spec.max_episode_steps == CartPole().episode_length
    short = make(make(CARTPOLE, episode_length=7).spec)
    assert short.spec.max_episode_steps == short.unwrapped.wrapper.episode_length == 7


def test_time_aware_observation_reads_the_spec():
    """Gymnasium's wrapper of times needs no TimeLimit."""
    env = TimeAwareObservation(gymnasium.make(CARTPOLE, episode_length=7))
    assert env.reset()[0].shape == env.observation_space.shape == (5,)


def test_environments_without_a_seed_differ():
    """Without a seed each environment starts elsewhere, as Gymnasium's do."""
    starts = [gymnasium.make(CARTPOLE).reset()[0] for _ in range(2)]
    assert (starts[0] != starts[1]).any()
    chosen = [gymnasium.make(CARTPOLE, seed=6).reset()[0] for _ in range(2)]
    np.testing.assert_array_equal(*chosen)


def test_vector_wrappers_of_gymnasium_work():
    """Gymnasium's vector wrappers normalise, count and clip over ends of episodes."""
    envs = gymnasium.make_vec("warpdrive_min/Pendulum-v0", num_envs=4, max_episode_steps=6)
    envs = wrappers.RecordEpisodeStatistics(envs)
    envs = wrappers.ClipReward(wrappers.NormalizeObservation(envs), -0.5, 0.0)
    observations, _ = envs.reset(seed=0)
    seen, n_counted = [observations], 0
    for step in range(1, 36):
        observations, rewards, _, truncated, infos = envs.step(np.full((4, 1), 1.5, np.float32))
        seen.append(observations)
        assert -0.5 <= rewards.min() <= rewards.max() <= 0
        assert truncated.all() == ("episode" in infos) == (step % 7 == 6)
        assert rewards.any() == (step % 7 != 0), "the step of a restart gives no reward"
        if "episode" in infos:
            n_counted += 1
            assert infos["episode"]["l"].tolist() == [6] * 4
            assert infos["episode"]["r"].min() < -3, "returns are not clipped"
    assert n_counted == 5
    assert abs(np.mean(seen[20:])) < 1


def test_wrappers_of_gymnasium_work():
    """`max_episode_steps` adds TimeLimit; RecordEpisodeStatistics counts."""
    env = gymnasium.make("warpdrive_min/Pendulum-v0", max_episode_steps=5)
    assert isinstance(env, TimeLimit)
    env = RecordEpisodeStatistics(env)
    for _ in range(2):
        env.reset()
        ends = [env.step(np.zeros(1, np.float32))[2:] for _ in range(5)]
        assert [truncated for _, truncated, _ in ends] == [False] * 4 + [True]
        assert ends[-1][2]["episode"]["l"] == 5
    assert len(env.return_queue) == 2


@pytest.mark.parametrize(
    ("make", "given", "match"),
    [
        ("make", {"nonsense": 3}, r"cartpole.nonsense: is not a key .known are "),
        ("make_vec", {"nonsense": 3}, r"cartpole.nonsense: is not a key .known are "),
        ("make", {"render_mode": "rgb_array"}, r"gymnasium.make: render_mode: must be None .got 'rgb_array'.; record"),
        ("make_vec", {"auto_reset": True}, r"cartpole.auto_reset: is not a key"),
        ("make_vec", {"autoreset_mode": "Never"}, r"must be one of 'NextStep', 'SameStep', 'Disabled' .got 'Never'."),
        (
            "make_vec",
            {"max_episode_steps": 3, "episode_length": 4},
            r"episode_length: must equal max_episode_steps, 3 .got 4.; give one of them",
        ),
    ],
)
def test_wrong_options_are_named(make, given, match):
    """A wrong option is an error of one line."""
    with pytest.raises(ConfigError, match=match):
        getattr(gymnasium, make)(CARTPOLE, **given)
