"""Recording episodes, and what is drawn and written of them."""

from __future__ import annotations

import dataclasses
import html.parser
import itertools
import json
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from envs import ENVS, CartPole, TagContinuous
from envs.classic_control.acrobot.env import AcrobotConfig
from envs.classic_control.acrobot.scene import draw as draw_acrobot
from envs.classic_control.continuous_mountain_car.env import ContinuousMountainCarConfig
from envs.classic_control.continuous_mountain_car.scene import draw as draw_continuous_mountain_car
from envs.classic_control.mountain_car.env import MountainCarConfig
from envs.classic_control.mountain_car.scene import draw as draw_mountain_car
from envs.classic_control.pendulum.env import PendulumConfig
from envs.classic_control.pendulum.scene import draw as draw_pendulum
from envs.tag_gridworld.env import TagGridWorldConfig
from envs.tag_gridworld.scene import draw as draw_gridworld
from tests.support import BACKENDS_HERE, TAG_CONFIGS, is_simulated
from warpdrive_min import EnvWrapper
from warpdrive_min.commands.render import POLICIES, render
from warpdrive_min.errors import ConfigError, DataError, DeviceMemoryError, known
from warpdrive_min.policies import random_policy
from warpdrive_min.rendering import Circles, Episode, Markers, Scene, Text, record, scene_of, time_series, write
from warpdrive_min.rendering import Path as Line
from warpdrive_min.rendering.html import player_data
from warpdrive_min.rendering.raster import WIDTH, frames
from warpdrive_min.rendering.recording import WRITTEN_BY_STEPS
from warpdrive_min.rendering.scene import MAX_SERIES, OUTLINES, PALETTE, numbers, rectangle, steps
from warpdrive_min.rendering.writing import FORMATS, MAX_FPS

TAG = {**TAG_CONFIGS["partial, exits"], "seed": 3}
"""Five agents on a small square: somebody is tagged within a few steps."""


def started(env: Any = None, num_envs: int = 3, **options: Any) -> EnvWrapper:
    wrapper = EnvWrapper(env or TagContinuous(**TAG), num_envs=num_envs, seed=11, **options)
    wrapper.reset()
    return wrapper


def recorded(env: Any = None, n_steps: int | None = None, env_id: int = 1) -> Episode:
    wrapper = started(env)
    return record(wrapper, random_policy(wrapper, 5), n_steps, env_id)


def episode_of(env: Any, n_frames: int, **arrays: Any) -> Episode:
    """Return an episode of an environment with one agent, made by hand."""
    given = {name: np.asarray(values) for name, values in arrays.items()}
    rewards = np.ones((n_frames, 1), np.float32)
    rewards[0] = 0
    return Episode(
        env_name=env.name, config={}, backend="cpu", seed=0, env_id=0, episode_length=9,
        arrays={"_timestep_": np.arange(n_frames), "rewards": rewards} | given,
    )  # fmt: skip


# ------------------------------------------------------------------ recording


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_record_equals_stepping_by_hand(backend):
    """Every array of every frame is what the same wrapper has when it is stepped by hand."""
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


def test_record_copies_to_the_host_once(monkeypatch):
    """Everything comes over in one call of `Tensor.cpu`, of one buffer, and no flag is read before it."""
    wrapper = started()
    policy = random_policy(wrapper, 5)
    copies = []
    cpu = torch.Tensor.cpu

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
    assert len(copies) == 1
    assert copies[0][0] >= sum(array.nbytes for array in episode.arrays.values())


def test_record_ends_with_the_episode():
    """The last frame is the first with ``_done_``, though the wrapper steps on; frames before it are not done."""
    episode = recorded(CartPole())
    n_steps = episode.n_frames - 1
    assert 5 < n_steps < 100, "a random policy drops the pole early"
    np.testing.assert_array_equal(episode["_done_"], [0] * n_steps + [1])
    np.testing.assert_array_equal(episode["_timestep_"], np.arange(n_steps + 1))
    assert episode.outcome == "terminated"
    assert episode.scores[-1, 0] == n_steps


@pytest.mark.parametrize(("n_steps", "outcome"), [(4, ""), (7, "truncated"), (20, "truncated")])
def test_record_has_a_frame_for_each_step_and_one_before(n_steps, outcome):
    """An episode of 7 steps has 8 frames, however many are asked for beyond it, and 5 after 4 steps."""
    config = {**TAG, "runner_exits_game_after_tagged": False, "episode_length": 7}
    episode = recorded(TagContinuous(**config), n_steps)
    assert episode.n_frames == min(n_steps, 7) + 1
    assert episode.outcome == outcome
    assert all(len(array) == episode.n_frames for array in episode.arrays.values())


def test_record_says_where_it_comes_from():
    """Name, config, backend and the seed of 64 bits are those of the wrapper, also in an episode begun before."""
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
    """With names, observations stay on the device."""
    wrapper = started()
    episode = record(wrapper, random_policy(wrapper), 2, arrays=["loc_x"])
    assert episode.arrays.keys() == {"loc_x", "rewards", "terminated", "truncated", "_timestep_", "_done_"}
    with pytest.raises(DataError, match=r"'observations' was not recorded; known are _done_, .*loc_x"):
        episode["observations"]


def test_record_errors_name_the_rule(monkeypatch):
    """What cannot be recorded is refused before a step, and says what to do."""
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
    with pytest.raises(DataError, match=r"'_episodes_' has no row for each environment; known are .*state"):
        record(wrapper, lambda: None, arrays=["_episodes_"])
    record(wrapper, lambda: None)
    with pytest.raises(ConfigError, match=r"is over; call reset\(\) first"):
        record(wrapper, lambda: None)
    monkeypatch.setattr(wrapper.cuda_data_manager, "free_bytes", lambda: 100)
    with pytest.raises(DeviceMemoryError, match=r"2 frames need \d+ bytes on cpu \(free are 100\)"):
        record(wrapper, lambda: None)


def test_episode_is_loaded_as_it_was_saved(tmp_path):
    """Arrays with their dtypes and everything else come back."""
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
    """In every frame an agent is in one layer, at its place and heading: taggers, runners, or crosses once tagged."""
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
    """Taggers, runners and the tagged differ in shape, and taggers and runners in fill and trail too."""
    env = TagContinuous(**TAG)
    looks = {layer.label: layer for layer in env.scene(recorded(env, 2)).layers if isinstance(layer, Markers)}
    assert len({layer.shape for layer in looks.values()}) == 3
    assert looks["tagger"].fill != looks["runner"].fill
    assert looks["tagger"].trail_line != looks["runner"].trail_line
    stays = TagContinuous(**TAG_CONFIGS["partial, stays"])
    assert not any(layer.label == "tagged runner" for layer in stays.scene(recorded(stays, 2)).layers)


def test_cartpole_scene_is_the_worked_one():
    """A pole of 1 m that leans 30 degrees to the right from a cart at 1 m ends at (1.5, 0.15 + sqrt(3) / 2)."""
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


def shown(config: Any, draw: Callable[..., Scene], *arguments: Any, n_frames: int = 2, **arrays: Any) -> dict[str, Any]:
    """Return the labelled layers of a scene drawn of an episode made by hand."""
    env = types.SimpleNamespace(name="by hand")
    scene = draw(config, episode_of(env, n_frames, **arrays), *arguments)
    return {layer.label: layer for layer in scene.layers if not isinstance(layer, Text) and layer.label}


def test_acrobot_scene_is_the_worked_one():
    """A first link at a quarter turn ends at (1, 0); a second that goes on a quarter turn stands on it."""
    state = np.zeros((2, 1, 4), np.float32)
    state[1, 0, :2] = np.pi / 2
    layers = shown(AcrobotConfig(), draw_acrobot, state=state)
    np.testing.assert_allclose(layers["second link"].x, [[0, 0], [1, 1]], atol=1e-6)
    np.testing.assert_allclose(layers["second link"].y, [[-1, -2], [0, 1]], atol=1e-6)
    assert layers["goal of the tip"].y.tolist() == [[1, 1]]


def test_pendulum_scene_is_the_worked_one():
    """An angle of 0 stands up and a quarter turn lies to the left; half the torque is an arc of 3 pi / 4 from there."""
    state = np.zeros((2, 1, 2), np.float32)
    state[1, 0, 0] = np.pi / 2
    layers = shown(PendulumConfig(), draw_pendulum, state=state, sampled_actions=np.array([[[0.0]], [[1.0]]]))
    np.testing.assert_allclose(layers["rod"].x[:, 1], [0, -1], atol=1e-6)
    np.testing.assert_allclose(layers["rod"].y[:, 1], [1, 0], atol=1e-6)
    arc = layers["torque, from the rod on"]
    np.testing.assert_allclose(arc.x[0], 0, atol=1e-6)
    np.testing.assert_allclose([arc.x[1, -1], arc.y[1, -1]], [0.3 * np.sqrt(0.5), -0.3 * np.sqrt(0.5)], atol=1e-6)


def test_mountain_car_scene_is_the_worked_one():
    """The goal stands on the hill, and the arrow at the valley's bottom is as long as the push and level."""
    state = np.full((2, 1, 2), -np.pi / 6, np.float32)
    layers = shown(MountainCarConfig(), draw_mountain_car, np.array([0.0, -1.0]), state=state)
    np.testing.assert_allclose(layers["goal"].y[0, 0], 0.45 * np.sin(1.5) + 0.55)
    np.testing.assert_allclose(np.ptp(layers["push"].x, axis=1), [0, 0.2], atol=1e-6)
    assert layers["push"].x[1, 1] < layers["push"].x[1, 0], "to the left"
    np.testing.assert_allclose(np.ptp(layers["push"].y, axis=1), 0, atol=1e-6)
    clipped = shown(
        ContinuousMountainCarConfig(), draw_continuous_mountain_car, state=state, sampled_actions=[[[0.5]], [[7.0]]]
    )
    np.testing.assert_allclose(np.ptp(clipped["push"].x, axis=1), [0.1, 0.2], atol=1e-6)


def test_gridworld_scene_keeps_everyone_in_their_cell_and_crosses_the_tagged_runner():
    """Two taggers on one cell stand apart in it; the runner becomes a cross in the last frame."""
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
    """The features of agent 0 and the score have a lane each, whose height follows the value."""
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
    """Whole numbers have none, others two, and zero no minus."""
    assert numbers(np.array([0.0, -3.0])) == ["0", "-3"]
    assert numbers(np.array([-0.001, 2.5])) == ["0.00", "2.50"]


def test_scene_refuses_layers_of_another_length():
    """A layer has a row for each frame, or one; a reading a text for each."""
    base: dict[str, Any] = {"title": "T", "subtitle": "", "x_range": (0, 1), "y_range": (0, 2), "n_frames": 3}
    line = Line(x=np.zeros((2, 2)), y=np.zeros((1, 2)))
    with pytest.raises(DataError, match=r"layer Path must have 3 frames, or 1 \(got \[2, 1\]\)"):
        Scene(**base, layers=[line], readings={})
    with pytest.raises(DataError, match=r"reading 'score' must have 3 frames \(got 1\)"):
        Scene(**base, layers=[], readings={"score": ["1"]})
    assert Scene(**base, layers=[], readings={}).height_over_width == 2


# ------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def film() -> tuple[Episode, Scene]:
    """Return an episode of Tag and its scene."""
    env = TagContinuous(**TAG)
    episode = recorded(env, 8)
    return episode, env.scene(episode)


def every_layer() -> Scene:
    """Return a scene of two frames with every kind, shape, fill and line, and something that is not there."""
    x = np.array([[0.2, np.nan], [0.4, 0.8]])
    layers: list[Any] = [
        Markers(shape=shape, x=x, y=x, angle=angle, fill=fill, trail=2, trail_line=line, label=f"{shape} <&>")
        for shape, angle, fill, line in zip(
            OUTLINES, [None, x, None, x, None], ["solid", "tint", "none"] * 2, ["solid", "dotted"] * 3, strict=False
        )
    ]
    layers += [Line(x=x, y=x, closed=closed, line="dashed", label="line") for closed in (True, False)]
    layers += [Circles(x=x, y=x, radius=0.1, fill="tint", label="circle"), Text(x=0.5, y=0.5, texts=["a", "b"])]
    return Scene(
        title="</script><b>", subtitle="s", x_range=(0, 1), y_range=(0, 1), layers=layers,
        readings={"n": ["1", "2"]}, n_frames=2,
    )  # fmt: skip


def test_frames_show_what_moves_and_keep_what_stays(film):
    """Each picture differs from the last one, has even sides, and its corner is the ground."""
    pictures = list(frames(film[1]))
    assert len(pictures) == 9
    assert all(picture.shape == pictures[0].shape and picture.dtype == np.uint8 for picture in pictures)
    height, width, _ = pictures[0].shape
    assert width == WIDTH
    assert height % 2 == 0
    assert all((a != b).any() for a, b in itertools.pairwise(pictures))
    assert (pictures[-1][0, 0] == 255).all()
    vermilion = [int(PALETTE["vermilion"][0][i : i + 2], 16) for i in (1, 3, 5)]
    assert (pictures[-1] == vermilion).all(-1).sum() > 50, "the taggers are drawn"


def test_gif_has_every_frame_and_the_speed(film, tmp_path):
    """Pillow reads back nine frames of a twentieth of a second, in the size of the pictures."""
    done = []
    write(film[1], tmp_path / "tag.gif", fps=20, progress=lambda *at: done.append(at))
    with Image.open(tmp_path / "tag.gif") as gif:
        assert (gif.format, gif.n_frames, gif.info["duration"], gif.info["loop"]) == ("GIF", 9, 50, 0)
        want = next(frames(film[1], [0]))
        got = np.asarray(gif.convert("RGB")).astype(int)
        assert got.shape == want.shape
        assert np.abs(got - want).mean() < 1, "the palette keeps the colours"
    assert done == [(n, 9) for n in range(1, 10)]
    assert (tmp_path / "tag.gif").stat().st_size < 9 * 15_000, "200 frames stay below 3 MB"


def test_mp4_has_every_frame_and_the_speed(film, tmp_path):
    """FFmpeg reads back nine frames, ten a second, in the size of the pictures."""
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "tag.mp4"
    write(film[1], path, fps=10)
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (9, 0.9)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    want = np.stack(list(frames(film[1])))
    got = np.frombuffer(raw, np.uint8).reshape(want.shape).astype(int)
    assert np.abs(got - want).mean() < 5, "the compression keeps the colours"


def test_png_is_the_last_frame(film, tmp_path):
    """The picture is the last one of the film."""
    write(film[1], tmp_path / "tag.png")
    with Image.open(tmp_path / "tag.png") as png:
        np.testing.assert_array_equal(np.asarray(png), next(frames(film[1], [8])))


class Page(html.parser.HTMLParser):
    """Collects the elements of a page, and the text of its scripts by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag == "script":
            kind = attributes.get("type") or "text/javascript"
            self.scripts[kind] = self.scripts.get(kind, "") + data


def test_html_has_the_arrays_in_it(film, tmp_path):
    """The page's data are the recorded positions, to a thousandth of the square, and null for who is not there."""
    episode, scene = film
    write(scene, tmp_path / "tag.html", fps=25)
    data = json.loads(Page((tmp_path / "tag.html").read_text(encoding="utf-8")).scripts["application/json"])
    assert (data["fps"], data["n_frames"], data["title"]) == (25, 9, "TagContinuous")
    layers = {layer["label"]: layer for layer in data["layers"]}
    taggers = list(TagContinuous(**TAG).taggers)
    np.testing.assert_allclose(layers["tagger"]["x"], episode["loc_x"][:, taggers], atol=2.0 * 1e-3)
    np.testing.assert_allclose(layers["tagger"]["angle"], episode["direction"][:, taggers], atol=0.005 + 1e-6)
    there = [[x is not None for x in row] for row in layers["runner"]["x"]]
    np.testing.assert_array_equal(there, ~np.isnan(next(m for m in scene.layers if m.label == "runner").x))
    assert data["readings"]["step"] == steps(episode)


def test_html_needs_nothing_else_and_names_its_controls(film, tmp_path):
    """No element loads anything, and every control has a name for screen readers."""
    write(film[1], tmp_path / "tag.html")
    text = (tmp_path / "tag.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.elements)
    assert "http" not in text
    assert "{{" not in text
    controls = [attributes for tag, attributes in page.elements if tag in ("button", "input")]
    assert len(controls) == 4
    assert all(attributes.get("aria-label") for attributes in controls)
    assert ("canvas", "img") in [(tag, attributes.get("role")) for tag, attributes in page.elements]
    assert "prefers-color-scheme: dark" in text


def test_html_data_cannot_end_the_script(tmp_path):
    """A title with markup stays text, and comes back from the data as it was."""
    scene = every_layer()
    write(scene, tmp_path / "odd.html")
    page = Page((tmp_path / "odd.html").read_text(encoding="utf-8"))
    data = json.loads(page.scripts["application/json"])
    assert data == json.loads(json.dumps(player_data(scene, 20)))
    assert data["title"] == "</script><b>"
    assert data["layers"][0]["x"] == [[0.2, None], [0.4, 0.8]]
    assert not any(tag == "b" for tag, _ in page.elements)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_draws_every_kind_of_layer(suffix, tmp_path):
    """Each kind, shape, fill and line is written, also with something that is not there."""
    write(every_layer(), tmp_path / f"all{suffix}")
    assert (tmp_path / f"all{suffix}").stat().st_size > 1000
    first, second = frames(every_layer())
    assert (first != second).any()


@pytest.mark.parametrize("suffix", [*FORMATS, ".npz"])
def test_failed_write_leaves_what_was_there(film, tmp_path, suffix, monkeypatch):
    """If writing breaks off, the old file stays and nothing else is left in the folder."""
    path = tmp_path / f"tag{suffix}"
    path.write_bytes(b"before")

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("disk full")

    save: Callable[[], None]
    if suffix == ".npz":
        monkeypatch.setattr(np, "savez_compressed", broken)
        save = lambda: film[0].save(path)  # noqa: E731
    else:
        save = lambda: write(film[1], path, progress=broken)  # noqa: E731
    with pytest.raises(RuntimeError, match="disk full"):
        save()
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_write_errors_name_what_is_known(film, tmp_path, monkeypatch):
    """An unknown suffix, a speed out of range and a missing package are refused; the last names the install line."""
    with pytest.raises(ConfigError, match=r"unknown format '.avi' .* known are .gif, .html, .mp4, .png"):
        write(film[1], tmp_path / "tag.avi")
    for fps in (0, MAX_FPS + 1):
        with pytest.raises(ConfigError, match=rf"fps: must be from 1 to {MAX_FPS} \(got {fps}\)"):
            write(film[1], tmp_path / "tag.gif", fps=fps)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r'needs the package imageio_ffmpeg .* pip install "warpdrive-min\[render\]"'):
        write(film[1], tmp_path / "tag.mp4")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------ command


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(render)
    return CliRunner().invoke(app, arguments)


def test_command_writes_the_format_of_the_suffix(tmp_path):
    """Tag is played with a config from the command line, and the page shows it."""
    out = tmp_path / "tag.html"
    result = run(
        "tag_continuous", "--out", str(out), "--backend", "cpu", "--steps", "3", "--seed", "4", "--n-envs", "2",
        "--env-id", "1", "--config", "num_taggers=2", "--config", "start=fixed",
        "--config", "use_full_observation=False",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "backend: cpu" in result.output
    assert "TagContinuous, 3 steps, still going on" in result.output
    data = json.loads(Page(out.read_text(encoding="utf-8")).scripts["application/json"])
    assert data["n_frames"] == 4
    assert data["subtitle"] == "backend cpu, seed 4, environment 1"
    names = [name for layer in data["layers"] for name in layer.get("names", [])]
    assert sum(name.startswith("tagger") for name in names) == 2


@pytest.mark.parametrize("env", ENVS)
def test_command_plays_every_environment(env, tmp_path):
    """Each environment acts at random for three steps and gives a page of as many frames."""
    result = run(env, "--out", str(tmp_path / "film.html"), "--backend", "cpu", "--steps", "3")
    assert result.exit_code == 0, result.output
    data = json.loads(Page((tmp_path / "film.html").read_text(encoding="utf-8")).scripts["application/json"])
    assert (data["title"], data["n_frames"]) == (ENVS[env].name, 4)
    assert data["layers"]


def test_command_saves_the_episode(tmp_path):
    """With .npz the episode itself is written, of the first backend that is available."""
    result = run("cartpole", "--out", str(tmp_path / "cartpole.npz"))
    assert result.exit_code == 0, result.output
    episode = Episode.load(tmp_path / "cartpole.npz")
    assert f"backend: {episode.backend}" in result.output
    assert episode.outcome == "terminated"
    assert time_series(episode).n_frames == episode.n_frames


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chess"], f"unknown environment (got 'chess'); known are {known(ENVS)}"),
        (["cartpole", "--policy", "best"], f"unknown policy (got 'best'); known are {', '.join(POLICIES)}"),
        (["cartpole", "--backend", "tpu"], "unknown backend (got 'tpu')"),
        (["cartpole", "--config", "gravity"], "must be KEY=VALUE (got 'gravity'); keys of cartpole are cart_mass"),
        (["cartpole", "--config", "colour=1"], "must be KEY=VALUE (got 'colour=1')"),
        (["cartpole", "--config", "cart_mass=-1"], "cartpole.cart_mass: must be positive (got -1)"),
        (["cartpole", "--env-id", "1"], "env_id: must be from 0 to n_envs - 1 = 0 (got 1)"),
    ],
)
def test_command_errors_name_what_is_known(arguments, message, tmp_path):
    """Wrong arguments are one line that says what is right, and exit with 1."""
    result = run(*arguments, "--out", str(tmp_path / "film.html"))
    assert result.exit_code == 1
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_command_refuses_an_unknown_suffix_before_it_plays(tmp_path):
    """Nothing is stepped for a file that could not be written."""
    result = run("cartpole", "--out", str(tmp_path / "film.avi"))
    assert result.exit_code == 1
    assert "backend" not in result.output
    assert "unknown format '.avi'" in result.output
