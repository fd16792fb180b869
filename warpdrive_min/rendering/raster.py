"""Pictures of a scene: frames by Matplotlib, GIF by Pillow, MP4 by FFmpeg."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from warpdrive_min.errors import ConfigError, WriteError
from warpdrive_min.files import full_disk_errno
from warpdrive_min.packages import install_command, optional_package
from warpdrive_min.processes import Child
from warpdrive_min.rendering.scene import (
    GROUND,
    OUTLINES,
    PALETTE,
    TINT,
    Circles,
    Colour,
    Fill,
    Layer,
    Markers,
    Path,
    Scene,
    Text,
    circle,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Frame = npt.NDArray[np.uint8]
"""RGB picture, ``(height, width, 3)``."""
Progress = Callable[[int, int], None]
Update = Callable[[int], None]
"""Function that moves an artist to a frame."""

EXTRA: Final = "render"
LIGHT: Final = 0
DPI: Final = 100
WIDTH: Final = 560
"""Width of a picture, pixels; even, as MP4 requires."""
MARGIN: Final = 20
"""Margin around the world, pixels."""
LINE_HEIGHT: Final = 20
"""Height of a line of text, pixels."""
MAX_HEIGHT: Final = 640
"""Largest height of the world, pixels."""
LEGEND_COLUMNS: Final = 4
OPACITIES: Final = (TINT, 0.35, 0.5, 0.65, 0.8, 1)
"""Opacities of each colour in a GIF; more only enlarge the file."""
LINES: Final[dict[str, Any]] = {"solid": "-", "dashed": (0, (5, 3)), "dotted": (0, (1, 2.5))}


def write_gif(scene: Scene, path: pathlib.Path, fps: int, progress: Progress) -> None:
    """Write a looping GIF with one palette for all frames."""
    image = _package("PIL.Image")
    palette = image.new("P", (1, 1))
    palette.putpalette(_blends())
    none = image.Dither.NONE
    pictures = (image.fromarray(frame).quantize(palette=palette, dither=none) for frame in _reported(scene, progress))
    first = next(pictures)
    first.save(path, save_all=True, append_images=pictures, duration=1000 // fps, loop=0)


def write_mp4(scene: Scene, path: pathlib.Path, fps: int, progress: Progress) -> None:
    """Write an MP4 (H.264) that every browser plays.

    Raises:
        ConfigError: FFmpeg is not installed.
        OSError: The disk is full.
        WriteError: FFmpeg failed for another reason; includes the end of its message.
    """
    try:
        ffmpeg = _package("imageio_ffmpeg").get_ffmpeg_exe()
    except RuntimeError as error:
        raise ConfigError.of("rendering", "needs FFmpeg", error, install_command(EXTRA)) from error
    pictures = _reported(scene, progress)
    first = next(pictures)
    height, width, _ = first.shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    target = ["-c:v", "libx264", "-crf", "15", "-pix_fmt", "yuv420p", "-y", str(path)]
    words = [ffmpeg, "-hide_banner", "-nostats", "-loglevel", "error", *source, *target]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        child: Any = Child(words, **pipes)
    except OSError as error:
        raise ConfigError.of("rendering", "needs FFmpeg", error, install_command(EXTRA)) from error
    with child:
        try:
            with contextlib.suppress(BrokenPipeError):  # its exit code and message give the reason
                for frame in itertools.chain([first], pictures):
                    child.stdin.write(frame.tobytes())
            message = child.communicate()[1].decode(errors="replace")
        except BaseException:
            child.kill()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            raise
    if child.returncode:
        if number := full_disk_errno(message):
            raise OSError(number, os.strerror(number))
        last = "; ".join(message.splitlines()[-3:]) or f"exit code {child.returncode}"
        raise WriteError.of(path.name, "cannot be written", f"FFmpeg: {last}", "choose another format")


def write_png(scene: Scene, path: pathlib.Path, fps: int, progress: Progress) -> None:
    """Write the last frame."""
    _package("PIL.Image").fromarray(next(frames(scene, [scene.n_frames - 1]))).save(path)
    progress(1, 1)


def _blends() -> bytes:
    """Return a GIF's palette, RGB: the ground, and blends of all colours on it."""
    ground = np.array(_components(GROUND[LIGHT]))
    blends = [ground + opacity * (np.array(_rgb(colour)) - ground) for colour in PALETTE for opacity in OPACITIES]
    # Pillow looks colours up in coarse cells; a blend in the ground's cell would replace the ground.
    apart = [blend for blend in blends if np.abs(blend - ground).max() > 0.05]
    return np.round(255 * np.array([ground, *apart])).astype(np.uint8).tobytes()


def frames(scene: Scene, which: Sequence[int] | None = None) -> Iterator[Frame]:
    """Yield pictures of a scene; ``which`` selects frames, None all.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    _package("matplotlib")
    yield from _paint(scene, range(scene.n_frames) if which is None else which)


def _reported(scene: Scene, progress: Progress) -> Iterator[Frame]:
    for index, frame in enumerate(frames(scene)):
        progress(index + 1, scene.n_frames)
        yield frame


def _package(module: str) -> Any:
    return optional_package(module, "rendering", install_command(EXTRA))


# ------------------------------------------------------------------ painting


def _paint(scene: Scene, which: Sequence[int]) -> Iterator[Frame]:
    """Yield the frames; static parts are painted once."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    handles = [_handle(layer) for layer in scene.layers if not isinstance(layer, Text) and layer.label]
    columns = min(len(handles), LEGEND_COLUMNS) or 1
    n_legend = -(-len(handles) // columns)
    height = _even(min(MAX_HEIGHT, (WIDTH - 2 * MARGIN) * scene.height_over_width))
    head, foot = 3 * LINE_HEIGHT + MARGIN, n_legend * LINE_HEIGHT + MARGIN
    total = _even(head + height + foot)

    figure = Figure(figsize=(WIDTH / DPI, total / DPI), dpi=DPI, facecolor=GROUND[LIGHT])
    canvas: Any = FigureCanvasAgg(figure)  # partly untyped
    axes = figure.add_axes((MARGIN / WIDTH, foot / total, 1 - 2 * MARGIN / WIDTH, height / total))
    axes.set_xlim(*scene.x_range)
    axes.set_ylim(*scene.y_range)
    axes.set_aspect("equal" if scene.aspect is None else "auto")
    axes.set_axis_off()
    top = 1 - 0.5 * MARGIN / total
    figure.text(MARGIN / WIDTH, top, scene.title, size=11, weight="bold", va="top", color=_hex("ink"))
    figure.text(1 - MARGIN / WIDTH, top, scene.subtitle, size=8, va="top", ha="right", color=_hex("muted"))
    if handles:
        figure.legend(
            handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize=8.5, handlelength=2.5,
            labelcolor=_hex("ink"), borderaxespad=0.3,
        )  # fmt: skip
    # A column per reading, as wide as its longest text, so that columns do not move.
    widths = [max(map(len, (name, *texts))) + 2 for name, texts in scene.readings.items()]
    readings = []
    for index, (name, texts) in enumerate(scene.readings.items()):
        x = (MARGIN + (WIDTH - 2 * MARGIN) * sum(widths[:index]) / sum(widths)) / WIDTH
        y = top - 1.3 * LINE_HEIGHT / total
        figure.text(x, y, name, size=8, va="top", color=_hex("muted"))
        value = figure.text(x, y - 0.75 * LINE_HEIGHT / total, "", size=10, va="top", color=_hex("ink"))
        readings.append((value, texts))
    moving = [each for layer in scene.layers for each in _artists(axes, layer)]
    for artist, _ in (*readings, *moving):
        artist.set_animated(True)
        artist.set_clip_on(False)  # markers at the edge are drawn completely
    canvas.draw()  # once, without the animated artists
    ground = canvas.copy_from_bbox(figure.bbox)
    for t in which:
        canvas.restore_region(ground)
        for artist, update in moving:
            update(t)
            axes.draw_artist(artist)
        for value, texts in readings:
            value.set_text(texts[t])
            figure.draw_artist(value)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


Moving = tuple["Artist", Update]


def _artists(axes: Axes, layer: Layer) -> list[Moving]:
    """Return the artists of a layer in drawing order, each with its update."""
    if isinstance(layer, Markers):
        trail = [] if not layer.trail else [_dots(axes, layer) if layer.trail_line == "dotted" else _tail(axes, layer)]
        return [*trail, _markers(axes, layer)]
    if isinstance(layer, Path):
        return [_path(axes, layer)]
    return [_circles(axes, layer) if isinstance(layer, Circles) else _text(axes, layer)]


def _markers(axes: Axes, layer: Markers) -> Moving:
    from matplotlib.collections import PolyCollection  # noqa: PLC0415
    from matplotlib.transforms import IdentityTransform  # noqa: PLC0415

    outline = OUTLINES[layer.shape] * layer.size
    artist: Any = PolyCollection([outline], offsets=np.empty((0, 2)), offset_transform=axes.transData, linewidths=1.2)
    artist.set(facecolor=_face(layer.colour, layer.fill, GROUND[LIGHT]), edgecolor=_hex(layer.colour))
    artist.set_transform(IdentityTransform())
    axes.add_collection(artist, autolim=False)

    def update(t: int) -> None:
        at = np.stack([_at(layer.x, t), _at(layer.y, t)], axis=-1)
        is_visible = np.isfinite(at).all(-1)
        artist.set_offsets(at[is_visible])
        if layer.angle is not None:
            angle = _at(layer.angle, t)[is_visible, None]
            cos, sin, x, y = np.cos(angle), np.sin(angle), *outline.T
            artist.set_verts(np.stack([x * cos - y * sin, x * sin + y * cos], axis=-1))

    return artist, update


def _tail(axes: Axes, layer: Markers) -> Moving:
    """Draw a trail as a fading line."""
    from matplotlib.collections import LineCollection  # noqa: PLC0415

    artist = LineCollection([], linewidths=1.5)
    axes.add_collection(artist, autolim=False)

    def update(t: int) -> None:
        points, fade = _trail(layer, t)
        segments = np.stack([points[:-1], points[1:]], axis=2)  # (n_ages, n, 2, 2)
        is_visible = np.isfinite(segments).all((2, 3))
        artist.set_segments(segments[is_visible])
        artist.set_color([(*_rgb(layer.colour), fade[age]) for age in np.nonzero(is_visible)[0]])

    return artist, update


def _dots(axes: Axes, layer: Markers) -> Moving:
    """Draw a trail as fading dots, one per frame."""
    artist = axes.scatter([], [], s=5, linewidths=0)

    def update(t: int) -> None:
        points, fade = _trail(layer, t)
        is_visible = np.isfinite(points).all(-1)
        artist.set_offsets(points[is_visible])
        artist.set_facecolor([(*_rgb(layer.colour), fade[age]) for age in np.nonzero(is_visible)[0]])

    return artist, update


def _trail(layer: Markers, t: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return points of the trails, ``(n_ages, n, 2)``, oldest first, and opacities."""
    ages = np.arange(max(0, t - layer.trail), t + 1)
    points = np.stack([layer.x[ages], layer.y[ages]], axis=-1)
    return points, 0.7 * (1 - (t - ages) / (layer.trail + 1))


def _path(axes: Axes, layer: Path) -> Moving:
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Polygon  # noqa: PLC0415

    artist: Any
    if layer.closed:
        artist = Polygon(np.zeros((1, 2)), facecolor=_face(layer.colour, layer.fill), edgecolor=_hex(layer.colour))
        axes.add_patch(artist)
    else:
        artist = Line2D([], [], color=_hex(layer.colour), solid_capstyle="round")
        axes.add_line(artist)
    artist.set(linewidth=layer.width, linestyle=LINES[layer.line])

    def update(t: int) -> None:
        x, y = _at(layer.x, t), _at(layer.y, t)
        if layer.closed:
            artist.set_xy(np.stack([x, y], axis=-1))
        else:
            artist.set_data(x, y)

    return artist, update


def _circles(axes: Axes, layer: Circles) -> Moving:
    from matplotlib.collections import PolyCollection  # noqa: PLC0415

    artist: Any = PolyCollection([], linewidths=layer.width, linestyles=[LINES[layer.line]])
    artist.set(facecolor=_face(layer.colour, layer.fill), edgecolor=_hex(layer.colour))
    axes.add_collection(artist, autolim=False)

    def update(t: int) -> None:
        centres = np.stack([_at(layer.x, t), _at(layer.y, t)], axis=-1)
        artist.set_verts(centres[np.isfinite(centres).all(-1), None] + layer.radius * circle(64))

    return artist, update


def _text(axes: Axes, layer: Text) -> Moving:
    artist = axes.text(layer.x, layer.y, "", size=8.5, color=_hex(layer.colour), ha=layer.align, va="center")

    def update(t: int) -> None:
        artist.set_text(layer.texts[t if len(layer.texts) > 1 else 0])

    return artist, update


def _handle(layer: Markers | Path | Circles) -> Artist:
    """Return a layer's symbol in the legend."""
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415
    from matplotlib.path import Path as Outline  # noqa: PLC0415

    if isinstance(layer, Markers):
        outline = OUTLINES[layer.shape]
        marker = Outline(np.concatenate([outline, outline[:1]]), closed=True)
        style: dict[str, Any] = {"marker": marker, "markersize": 2 * min(max(layer.size, 4), 6)}
        style["markeredgecolor"] = _hex(layer.colour)
        style["markerfacecolor"] = _face(layer.colour, layer.fill, GROUND[LIGHT])
        line: Any = LINES[layer.trail_line] if layer.trail else "none"
        return Line2D([], [], color=(_hex(layer.colour), 0.5), linestyle=line, label=layer.label, **style)
    colour = _hex(layer.colour)
    if isinstance(layer, Path) and not layer.closed:
        return Line2D([], [], color=colour, linestyle=LINES[layer.line], linewidth=layer.width, label=layer.label)
    face = _face(layer.colour, layer.fill)
    return Patch(facecolor=face, edgecolor=colour, linestyle=LINES[layer.line], label=layer.label)


def _at(values: npt.NDArray[Any], t: int) -> npt.NDArray[Any]:
    """Return the row of a frame."""
    row: npt.NDArray[Any] = values[t if len(values) > 1 else 0]
    return row


def _face(colour: Colour, fill: Fill, ground: str = "none") -> Any:
    """Return the colour of an area; ``ground`` if not filled."""
    if fill == "tint":
        return (*_rgb(colour), TINT)
    return _hex(colour) if fill == "solid" else ground


def _hex(colour: Colour) -> str:
    return PALETTE[colour][LIGHT]


def _rgb(colour: Colour) -> tuple[float, ...]:
    return _components(_hex(colour))


def _components(code: str) -> tuple[float, ...]:
    return tuple(int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))


def _even(size: float) -> int:
    return 2 * round(size / 2)
