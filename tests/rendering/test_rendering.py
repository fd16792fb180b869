"""Recording episodes, and drawing them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from envs import CartPole, TagContinuous
from envs.classic_control.acrobot.env import AcrobotConfig
from envs.classic_control.acrobot.scene import draw as draw_acrobot
from envs.classic_control.continuous_mountain_car.env import ContinuousMountainCarConfig
from envs.classic_control.mountain_car.env import MountainCarConfig
from envs.classic_control.mountain_car.scene import draw as draw_mountain_car
from envs.classic_control.pendulum.env import PendulumConfig
from envs.classic_control.pendulum.scene import draw as draw_pendulum
from envs.tag_gridworld.env import TagGridWorldConfig
from envs.tag_gridworld.scene import draw as draw_gridworld
from tests.rendering.builders import TAG, recorded, started
from tests.support import TAG_CONFIGS, is_simulated, on_every_backend
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import ConfigError, DataError, DeviceMemoryError
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering import Episode, Markers, Scene, Text, record, scene_of
from warpdrive_min.rendering import Path as Line
from warpdrive_min.rendering.recording import WRITTEN_BY_STEPS
from warpdrive_min.rendering.scene import MAX_SERIES, numbers, rectangle


def episode_of(env: Any, n_frames: int, **arrays: Any) -> Episode:
    """Return a hand-made episode of an environment with one agent."""
    given = {name: np.asarray(values) for name, values in arrays.items()}
    rewards = np.ones((n_frames, 1), np.float32)
    rewards[0] = 0
    return Episode(
        env_name=env.name, config={}, backend="cpu", seed=0, env_id=0, episode_length=9,
        arrays={"_timestep_": np.arange(n_frames), "rewards": rewards} | given,
    )  # fmt: skip


# ------------------------------------------------------------------ recording


@on_every_backend
def test_record_equals_stepping_by_hand(backend):
    """A recorded episode equals the same steps by hand."""
    n_steps = 3 if is_simulated(backend) else 12
    wrapper = started(num_envs=2, env_backend=backend)
    episode = record(wrapper, random_policy(wrapper, 5), n_steps, env_id=1)
    by_hand = started(num_envs=2, env_backend=backend)
    policy, data = random_policy(by_hand, 5), by_hand.cuda_data_manager
    assert episode.n_frames == n_steps + 1
    for t in range(n_steps + 1):
        if t > 0:
            policy()
            by_hand.step()
        for name, values in episode.arrays.items():
            want = np.asarray(data.pull_data_from_device(name))[1]
            if t == 0 and name in WRITTEN_BY_STEPS:
                want = np.zeros_like(want)
            np.testing.assert_array_equal(values[t], want, err_msg=f"{name}, frame {t}")
            assert values.dtype == want.dtype
    assert {"loc_x", "observations", "rewards", "sampled_actions", "_timestep_"} <= episode.arrays.keys()
    assert "agent_types" not in episode.arrays, "all environments share it"
    assert np.ptp(episode["loc_x"], axis=0).max() > 0, "the agents must have moved"


def test_record_copies_to_the_host_at_the_end(monkeypatch):
    """A recording copies each array to the host once, and synchronises at no step."""
    wrapper = started()
    act = random_policy(wrapper, 5)
    copies = []
    cpu = torch.Tensor.cpu

    def policy() -> None:
        assert not copies
        act()

    def count(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(tensor.shape)
        return cpu(tensor)

    def refuse(tensor: torch.Tensor, *_: Any) -> Any:
        raise AssertionError("synchronises")

    monkeypatch.setattr(torch.Tensor, "cpu", count)
    for name in ("item", "tolist", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    episode = record(wrapper, policy, 10)
    monkeypatch.undo()
    assert len(copies) == len(episode.arrays) + 1, "and the seed"


def test_record_ends_with_the_episode():
    """A recording ends at the first ``_done_``."""
    episode = recorded(CartPole())
    n_steps = episode.n_frames - 1
    assert 5 < n_steps < 100, "a random policy drops the pole early"
    np.testing.assert_array_equal(episode["_done_"], [0] * n_steps + [1])
    np.testing.assert_array_equal(episode["_timestep_"], np.arange(n_steps + 1))
    assert episode.outcome == "terminated"
    assert episode.scores[-1, 0] == n_steps


@pytest.mark.parametrize(("n_steps", "outcome"), [(4, ""), (7, "truncated"), (20, "truncated")])
def test_record_has_a_frame_for_each_step_and_one_before(n_steps, outcome):
    """A recording has a frame per step, and the start.

    An episode of 7 steps has 8 frames at most, and 5 after 4 steps.
    """
    config = {**TAG, "runner_exits_game_after_tagged": False, "episode_length": 7}
    episode = recorded(TagContinuous(**config), n_steps)
    assert episode.n_frames == min(n_steps, 7) + 1
    assert episode.outcome == outcome
    assert all(len(array) == episode.n_frames for array in episode.arrays.values())


def test_record_says_where_it_comes_from():
    """A recording has the wrapper's name, config, backend and seed.

    The recording begins in the middle of an episode; the seed has 64 bits.
    """
    wrapper = EnvWrapper(TagContinuous(**TAG), num_envs=2, seed=2**63 + 5)
    wrapper.reset()
    policy = random_policy(wrapper)
    policy()
    wrapper.step()
    episode = record(wrapper, policy, 2)
    assert (episode.env_name, episode.backend, episode.seed) == ("TagContinuous", "cpu", 2**63 + 5)
    assert TagContinuous(**episode.config).config == wrapper.env.config
    assert episode["_timestep_"].tolist() == [1, 2, 3]
    assert not episode["rewards"][0].any()


def test_record_keeps_only_named_arrays_and_what_says_how_it_went():
    """A recording has only named arrays and those of the outcome.

    With names, observations stay on the device.
    """
    wrapper = started()
    episode = record(wrapper, random_policy(wrapper), 2, arrays=["loc_x"])
    assert episode.arrays.keys() == {"loc_x", "rewards", "terminated", "truncated", "_timestep_", "_done_"}
    with pytest.raises(DataError, match=r"'observations' was not recorded; known are _done_, .*loc_x"):
        episode["observations"]


def test_record_errors_name_the_rule(monkeypatch):
    """Unsupported recordings are refused before a step, with a remedy."""
    with pytest.raises(ConfigError, match="auto_reset=False"):
        record(started(auto_reset=True), lambda: None)
    wrapper = EnvWrapper(CartPole(episode_length=1))
    with pytest.raises(ConfigError, match=r"has not started; call reset\(\) first"):
        record(wrapper, lambda: None)
    wrapper.reset()
    with pytest.raises(ConfigError, match=r"n_steps: must be at least 1 \(got 0\)"):
        record(wrapper, lambda: None, 0)
    with pytest.raises(ConfigError, match=r"env_id: must be from 0 to n_envs - 1 = 0 \(got 1\)"):
        record(wrapper, lambda: None, 1, env_id=1)
    with pytest.raises(DataError, match=r"'speed' has no row for each environment; known are .*state"):
        record(wrapper, lambda: None, arrays=["speed"])
    record(wrapper, lambda: None)
    with pytest.raises(ConfigError, match=r"is over; call reset\(\) first"):
        record(wrapper, lambda: None)
    monkeypatch.setattr(wrapper.cuda_data_manager, "free_bytes", lambda: 100)
    with pytest.raises(DeviceMemoryError, match=r"2 frames need \d+ bytes on cpu \(free are 100\)"):
        record(wrapper, lambda: None)


def test_episode_is_loaded_as_it_was_saved(tmp_path):
    """A loaded episode equals the saved one, dtypes included."""
    episode = recorded(n_steps=5)
    episode.save(tmp_path / "new" / "tag.npz")
    loaded = Episode.load(tmp_path / "new" / "tag.npz")
    for field in dataclasses.fields(Episode):
        if field.name != "arrays":
            assert getattr(loaded, field.name) == getattr(episode, field.name)
    assert loaded.arrays.keys() == episode.arrays.keys()
    for name, values in episode.arrays.items():
        np.testing.assert_array_equal(loaded[name], values)
        assert loaded[name].dtype == values.dtype


def test_episode_errors_name_the_file(tmp_path):
    """Another suffix, and files that are no episode, are refused."""
    with pytest.raises(DataError, match=r"saved as .npz \(got .*tag.json\)"):
        recorded(n_steps=1).save(tmp_path / "tag.json")
    (tmp_path / "text.npz").write_text("nothing")
    np.savez(tmp_path / "other.npz", x=np.zeros(2))
    for name in ("text.npz", "other.npz"):
        with pytest.raises(DataError, match=rf"{name} was not written by Episode.save"):
            Episode.load(tmp_path / name)


# ------------------------------------------------------------------ scenes


def test_tag_scene_shows_who_is_where():
    """Tag's scene has each agent in one layer per frame.

    Tagger, runner, or cross once tagged.
    """
    env = TagContinuous(**TAG)
    episode = recorded(env)
    scene = env.scene(episode)
    by_label = {layer.label: layer for layer in scene.layers if not isinstance(layer, Text) and layer.label}
    assert list(by_label) == ["reach of a tagger", "tagged runner", "runner", "tagger"]
    taggers, runners = list(env.taggers), list(env.runners)
    np.testing.assert_array_equal(by_label["tagger"].x, episode["loc_x"][:, taggers])
    np.testing.assert_array_equal(by_label["tagger"].angle, episode["direction"][:, taggers])
    assert by_label["tagger"].names == [f"tagger {agent}" for agent in taggers]
    plays = episode["still_in_the_game"][:, runners] == 1
    assert plays[0].all()
    assert not plays[-1].all(), "somebody must have been tagged"
    np.testing.assert_array_equal(np.isnan(by_label["runner"].x), ~plays)
    np.testing.assert_array_equal(np.isnan(by_label["tagged runner"].y), plays)
    np.testing.assert_array_equal(by_label["runner"].y[plays], episode["loc_y"][:, runners][plays])
    np.testing.assert_array_equal(by_label["tagged runner"].x[~plays], episode["loc_x"][:, runners][~plays])
    assert by_label["reach of a tagger"].radius == pytest.approx(0.1 * 2.0)
    assert scene.readings["runners left"][-1] == str(plays[-1].sum())
    assert float(scene.readings["taggers' score"][-1]) == pytest.approx(episode["rewards"][:, taggers].sum(), abs=0.005)


def test_tag_scene_tells_agents_apart_without_colour():
    """Tag's layers differ in shape and style, not only colour."""
    env = TagContinuous(**TAG)
    looks = {layer.label: layer for layer in env.scene(recorded(env, 2)).layers if isinstance(layer, Markers)}
    assert len({layer.shape for layer in looks.values()}) == 3
    assert looks["tagger"].fill != looks["runner"].fill
    assert looks["tagger"].trail_line != looks["runner"].trail_line
    stays = TagContinuous(**TAG_CONFIGS["partial, stays"])
    assert not any(layer.label == "tagged runner" for layer in stays.scene(recorded(stays, 2)).layers)


def test_cartpole_scene_is_the_worked_one():
    """CartPole's scene has the pole where geometry puts it.

    A pole at 30 degrees on a cart at 1 m ends at (1.5, 0.15 + sqrt(3) / 2).
    """
    env = CartPole()
    state = np.zeros((2, 1, 4), np.float32)
    state[1, 0] = [1, 0, np.pi / 6, 0]
    scene = env.scene(episode_of(env, 2, state=state))
    pole = next(layer for layer in scene.layers if isinstance(layer, Line) and layer.width == 6)
    np.testing.assert_allclose([pole.x[0, 1], pole.y[0, 1]], [0, 1.15], atol=1e-6)
    np.testing.assert_allclose([pole.x[1], pole.y[1]], [[1, 1.5], [0.15, 0.15 + np.sqrt(3) / 2]], atol=1e-6)
    cart = next(layer for layer in scene.layers if isinstance(layer, Line) and layer.closed)
    np.testing.assert_allclose([cart.x[1].min(), cart.x[1].max()], [0.75, 1.25])
    assert [layer.x[0, 0] for layer in scene.layers if layer.line == "dashed"] == [-2.4, 2.4]
    assert scene.readings["angle"] == ["+0.0°", "+30.0°"]
    assert scene.readings["score"] == ["0", "1"]
    assert scene.readings["step"] == ["0 of 9", "1 of 9"]


def shown(config: Any, draw: Callable[..., Scene], n_frames: int = 2, **arrays: Any) -> dict[str, Any]:
    """Return the labelled layers of a hand-made episode's scene."""
    env = types.SimpleNamespace(name="by hand", config=config)
    scene = draw(env, episode_of(env, n_frames, **arrays))
    return {layer.label: layer for layer in scene.layers if not isinstance(layer, Text) and layer.label}


def test_acrobot_scene_is_the_worked_one():
    """Acrobot's scene has the links where geometry puts them.

    A quarter turn ends at (1, 0); the second link stands on it.
    """
    state = np.zeros((2, 1, 4), np.float32)
    state[1, 0, :2] = np.pi / 2
    layers = shown(AcrobotConfig(), draw_acrobot, state=state)
    np.testing.assert_allclose(layers["second link"].x, [[0, 0], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(layers["second link"].y, [[-1, -2], [0, 1]], atol=1e-6)
    assert layers["goal of the tip"].y.tolist() == [[1, 1]]


def test_pendulum_scene_is_the_worked_one():
    """Pendulum's scene has rod and torque where geometry puts them.

    Angle 0 stands up; half of the torque is an arc of 3 pi / 4.
    """
    state = np.zeros((2, 1, 2), np.float32)
    state[1, 0, 0] = np.pi / 2
    layers = shown(PendulumConfig(), draw_pendulum, state=state, sampled_actions=np.array([[[0.0]], [[1.0]]]))
    np.testing.assert_allclose(layers["rod"].x[:, 1], [0, -1], atol=1e-6)
    np.testing.assert_allclose(layers["rod"].y[:, 1], [1, 0], atol=1e-6)
    arc = layers["torque, from the rod on"]
    np.testing.assert_allclose(arc.x[0], 0, atol=1e-6)
    np.testing.assert_allclose([arc.x[1, -1], arc.y[1, -1]], [0.3 * np.sqrt(0.5), -0.3 * np.sqrt(0.5)], atol=1e-6)


def test_mountain_car_scene_is_the_worked_one():
    """The mountain car's scene has its goal and push.

    The goal is on the hill; in the valley the arrow is level.
    """
    state = np.full((2, 1, 2), -np.pi / 6, np.float32)
    layers = shown(MountainCarConfig(), draw_mountain_car, state=state, sampled_actions=[[[1]], [[0]]])
    np.testing.assert_allclose(layers["goal"].y[0, 0], 0.45 * np.sin(1.5) + 0.55)
    np.testing.assert_allclose(np.ptp(layers["push"].x, axis=1), [0, 0.2], atol=1e-6)
    assert layers["push"].x[1, 1] < layers["push"].x[1, 0], "to the left"
    np.testing.assert_allclose(np.ptp(layers["push"].y, axis=1), 0, atol=1e-6)
    clipped = shown(ContinuousMountainCarConfig(), draw_mountain_car, state=state, sampled_actions=[[[0.5]], [[7.0]]])
    np.testing.assert_allclose(np.ptp(clipped["push"].x, axis=1), [0.1, 0.2], atol=1e-6)


def test_gridworld_scene_keeps_everyone_in_their_cell_and_crosses_the_tagged_runner():
    """The grid's scene has each agent in its cell.

    Two taggers share a cell next to each other; the tagged runner becomes a cross.
    """
    cells = np.array([[5, 5, 0], [5, 4, 0], [0, 4, 0]], np.int32)
    layers = shown(
        TagGridWorldConfig(num_taggers=2), draw_gridworld, n_frames=3,
        loc_x=cells, loc_y=cells, rewards=np.zeros((3, 3)), terminated=[0, 0, 1],
    )  # fmt: skip
    tagger, runner, tagged = layers["tagger"], layers["runner"], layers["tagged runner"]
    assert np.round(tagger.x).tolist() == cells[:, :2].tolist()
    assert abs(tagger.x[0, 0] - tagger.x[0, 1]) > 0.5
    assert np.isnan(runner.x[:, 0]).tolist() == [False, False, True]
    assert np.isnan(tagged.x[:, 0]).tolist() == [True, True, False]


def test_environment_without_a_scene_shows_what_it_observes():
    """An environment without a scene gets its observations as lines.

    Agent 0's features and score have a lane each; the height follows the value.
    """
    episode = recorded(n_steps=6)
    scene = scene_of(object(), episode)
    texts = [layer.texts for layer in scene.layers if isinstance(layer, Text)]
    assert len(texts) == MAX_SERIES + 1
    observed = episode["observations"][:, 0, 0]
    assert texts[0] == [f"observation 0: {value:.2f}".replace("-0.00", "0.00") for value in observed]
    lane = next(layer for layer in scene.layers if isinstance(layer, Line) and layer.colour == "blue")
    assert np.argmax(lane.y[0]) == np.argmax(observed)
    assert np.argmin(lane.y[0]) == np.argmin(observed)


def test_rectangle_turns_about_its_middle():
    """A quarter turn swaps width and height."""
    x, y = rectangle(np.array([1.0]), np.array([2.0]), 4, 2, np.array([np.pi / 2]))
    np.testing.assert_allclose(x, [[0, 0, 2, 2]], atol=1e-12)
    np.testing.assert_allclose(y, [[4, 0, 0, 4]], atol=1e-12)


def test_numbers_are_read_with_as_many_decimals_as_they_need():
    """Integers print without decimals, other numbers with two."""
    assert numbers(np.array([0.0, -3.0])) == ["0", "-3"]
    assert numbers(np.array([-0.001, 2.5])) == ["0.00", "2.50"]


def test_scene_refuses_layers_of_another_length():
    """A scene refuses layers of another number of frames."""
    base: dict[str, Any] = {"title": "T", "subtitle": "", "x_range": (0, 1), "y_range": (0, 2), "n_frames": 3}
    line = Line(x=np.zeros((2, 2)), y=np.zeros((1, 2)))
    with pytest.raises(DataError, match=r"layer Path must have 3 frames, or 1 \(got \[2, 1\]\)"):
        Scene(**base, layers=[line], readings={})
    with pytest.raises(DataError, match=r"reading 'score' must have 3 frames \(got 1\)"):
        Scene(**base, layers=[], readings={"score": ["1"]})
    assert Scene(**base, layers=[], readings={}).height_over_width == 2
