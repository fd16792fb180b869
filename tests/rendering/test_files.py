"""Episodes written as films, pictures and pages, and their command.

Formats are GIF, MP4, PNG and HTML.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from envs import ENVS, TagContinuous
from tests.rendering.builders import TAG, recorded
from tests.support import Page, run
from tests.training.builders import limited
from warpdrive_min.commands.render import POLICIES
from warpdrive_min.errors import ConfigError, DiskFullError, WriteError, known
from warpdrive_min.rendering import Circles, Episode, Markers, Scene, Text, time_series, write
from warpdrive_min.rendering import Path as Line
from warpdrive_min.rendering.html import player_data
from warpdrive_min.rendering.raster import WIDTH, frames
from warpdrive_min.rendering.scene import OUTLINES, PALETTE, steps
from warpdrive_min.rendering.writing import FORMATS, MAX_FPS


@pytest.fixture(scope="module")
def film() -> tuple[Episode, Scene]:
    """Return an episode of Tag and its scene."""
    env = TagContinuous(**TAG)
    episode = recorded(env, 8)
    return episode, env.scene(episode)


def every_layer() -> Scene:
    """Return a scene with each kind of layer and style.

    It has two frames; one point is absent.
    """
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
    """Each picture shows the agents' movement on a constant background.

    Sides are even, and a corner shows the background.
    """
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
    """A GIF has nine frames of 1/20 s, in the pictures' size."""
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
    """An MP4 has nine frames, ten a second, in the pictures' size."""
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
    """A PNG shows the film's last frame."""
    write(film[1], tmp_path / "tag.png")
    with Image.open(tmp_path / "tag.png") as png:
        np.testing.assert_array_equal(np.asarray(png), next(frames(film[1], [8])))


def test_html_has_the_arrays_in_it(film, tmp_path):
    """The page contains the positions, and null for absent agents.

    They are rounded to 1/1000 of the square.
    """
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
    """The page loads nothing, and each control has a name.

    Screen readers use the names.
    """
    write(film[1], tmp_path / "tag.html")
    text = (tmp_path / "tag.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loaded == page.links == []
    assert "http" not in text
    assert "{{" not in text
    controls = [attributes for tag, attributes in page.elements if tag in ("button", "input")]
    assert len(controls) == 4
    assert all(attributes.get("aria-label") for attributes in controls)
    assert ("canvas", "img") in [(tag, attributes.get("role")) for tag, attributes in page.elements]
    assert "prefers-color-scheme: dark" in text


def test_html_data_cannot_end_the_script(tmp_path):
    """A title with markup stays text, and reads back unchanged."""
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
    """Each format draws each kind, shape, fill and line."""
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    write(every_layer(), tmp_path / f"all{suffix}")
    assert (tmp_path / f"all{suffix}").stat().st_size > 1000
    first, second = frames(every_layer())
    assert (first != second).any()


@pytest.mark.parametrize("suffix", [*FORMATS, ".npz"])
def test_failed_write_leaves_what_was_there(film, tmp_path, suffix, monkeypatch):
    """A failed write keeps the old file and leaves no other."""
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
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


@pytest.mark.parametrize("suffix", FORMATS)
def test_full_disk_is_an_error_in_every_format(film, tmp_path, suffix):
    """A full disk is an error in every format.

    The file may be written by another program. The old file stays.
    """
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()  # a sandbox may limit writes to /dev/null too
    path = tmp_path / f"tag{suffix}"
    path.write_bytes(b"before")
    with limited(2000), pytest.raises(DiskFullError, match=rf"tag{suffix}: needs .* 2,000 \(ulimit -f\)"):
        write(film[1], path)
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        ("echo 'no such encoder' >&2; cat > /dev/null; exit 3", WriteError, "FFmpeg: no such encoder"),
        ("exit 3", WriteError, "FFmpeg: exit code 3"),
        (None, ConfigError, "needs FFmpeg .*No such file"),
    ],
    ids=["late", "at once", "missing"],
)
def test_ffmpeg_that_fails_is_quoted(film, tmp_path, monkeypatch, program, error, says):
    """The error of a failed FFmpeg has its message or exit code.

    FFmpeg may end at any frame.
    """
    pytest.importorskip("imageio_ffmpeg")
    ffmpeg = tmp_path / "ffmpeg"
    if program is not None:
        ffmpeg.write_text(f"#!/bin/sh\n{program}\n")
        ffmpeg.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(ffmpeg))
    with pytest.raises(error, match=says):
        write(film[1], tmp_path / "films" / "tag.mp4")
    assert not list((tmp_path / "films").iterdir())


def test_write_errors_name_what_is_known(film, tmp_path, monkeypatch):
    """Unknown suffixes, bad speeds and missing packages raise.

    The error of a missing package has its install line.
    """
    with pytest.raises(ConfigError, match=r"unknown format '.avi' .* known are .gif, .html, .mp4, .png"):
        write(film[1], tmp_path / "tag.avi")
    for fps in (0, MAX_FPS + 1):
        with pytest.raises(ConfigError, match=rf"fps: must be from 1 to {MAX_FPS} \(got {fps}\)"):
            write(film[1], tmp_path / "tag.gif", fps=fps)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r'needs the package imageio_ffmpeg .* pip install -e ".*\[render\]"'):
        write(film[1], tmp_path / "tag.mp4")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------ command


render = partial(run, "render")


def test_command_writes_the_format_of_the_suffix(tmp_path):
    """The command plays Tag with the given config, as a page."""
    out = tmp_path / "tag.html"
    result = render(
        "tag_continuous", "--out", str(out), "--backend", "cpu", "--steps", "3", "--seed", "4", "--n-envs", "2",
        "--env-id", "1", "--config", "num_taggers=2", "--config", "start=fixed",
        "--config", "use_full_observation=False",
    )  # fmt: skip
    assert "backend: cpu" in result.output
    assert "TagContinuous, 3 steps, not ended" in result.output
    data = json.loads(Page(out.read_text(encoding="utf-8")).scripts["application/json"])
    assert data["n_frames"] == 4
    assert data["subtitle"] == "backend cpu, seed 4, environment 1"
    names = [name for layer in data["layers"] for name in layer.get("names", [])]
    assert sum(name.startswith("tagger") for name in names) == 2


@pytest.mark.parametrize("env", ENVS)
def test_command_plays_every_environment(env, tmp_path):
    """The command plays three steps of each environment."""
    render(env, "--out", str(tmp_path / "film.html"), "--backend", "cpu", "--steps", "3")
    data = json.loads(Page((tmp_path / "film.html").read_text(encoding="utf-8")).scripts["application/json"])
    assert (data["title"], data["n_frames"]) == (ENVS[env].name, 4)
    assert data["layers"]


def test_command_saves_the_episode(tmp_path):
    """With `.npz`, the command saves the episode itself.

    Without --backend it uses the first available one.
    """
    result = render("cartpole", "--out", str(tmp_path / "cartpole.npz"))
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
        (["cartpole", "--config", "gravity"], "render.config: must be KEY=VALUE (got 'gravity')"),
        (["cartpole", "--config", "colour=1"], "cartpole.colour: is not a key (known are cart_mass"),
        (["cartpole", "--config", "cart_mass=-1"], "cartpole.cart_mass: must be greater than 0 (got -1"),
        (["cartpole", "--env-id", "1"], "env_id: must be from 0 to n_envs - 1 = 0 (got 1)"),
    ],
)
def test_command_errors_name_what_is_known(arguments, message, tmp_path):
    """A wrong argument gives one line with the valid ones."""
    result = render(*arguments, "--out", str(tmp_path / "film.html"), exits=1)
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_command_refuses_an_unknown_suffix_before_it_plays(tmp_path):
    """An unknown suffix is refused before the first step."""
    result = render("cartpole", "--out", str(tmp_path / "film.avi"), exits=1)
    assert "backend" not in result.output
    assert "unknown format '.avi'" in result.output
