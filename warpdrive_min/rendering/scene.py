"""Scene of an episode: layers of shapes in world coordinates.

All outputs use it. World coordinates have x to the right and y up; NaN means "absent". The first axis of a layer's
arrays is the frame; it has length 1 if nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from warpdrive_min.constants import TIMESTEP
from warpdrive_min.errors import DataError, require
from warpdrive_min.rendering.episode import Episode

Array = npt.NDArray[Any]
Colour = Literal["ink", "muted", "faint", "blue", "vermilion", "green", "orange"]
Fill = Literal["solid", "tint", "none"]
Line = Literal["solid", "dashed", "dotted"]
Shape = Literal["circle", "drop", "dart", "square", "cross"]

# Okabe and Ito's colours are distinct for any colour vision; shape, fill and line repeat the distinction.
PALETTE: Final[dict[Colour, tuple[str, str]]] = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#656d76", "#9198a1"),
    "faint": ("#d8dee4", "#30363d"),
    "blue": ("#0072b2", "#56b4e9"),
    "vermilion": ("#d55e00", "#ff8c42"),
    "green": ("#009e73", "#2fc79a"),
    "orange": ("#b87f00", "#e69f00"),
}
"""Colours on a light and on a dark ground."""
GROUND: Final = ("#ffffff", "#0d1117")
"""Light and dark ground."""
TINT: Final = 0.15
"""Opacity of a tinted area."""


def circle(n: int, first: float = 0.0, last: float = 2 * np.pi) -> Array:
    """Return ``n`` points of a unit circle's arc, ``(n, 2)``; angles in rad."""
    angle = np.linspace(first, last, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


OUTLINES: Final[dict[Shape, Array]] = {
    "circle": circle(25)[:-1],
    "drop": np.concatenate([[(1.9, 0)], circle(17, np.pi / 3, 5 * np.pi / 3)]),
    "dart": np.array([(1.7, 0), (-1.1, 1.1), (-0.5, 0), (-1.1, -1.1)]),
    "square": np.array([(0.9, 0.9), (-0.9, 0.9), (-0.9, -0.9), (0.9, -0.9)]),
    "cross": np.array([
        (0.25, 0), (1, 0.75), (0.75, 1), (0, 0.25), (-0.75, 1), (-1, 0.75),
        (-0.25, 0), (-1, -0.75), (-0.75, -1), (0, -0.25), (0.75, -1), (1, -0.75),
    ]),
}  # fmt: skip
"""Corners of each shape, ``(n_corners, 2)``, about 1 from its centre.

A drop and a dart point to the right.
"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Markers:
    """Symbols of fixed screen size, with optional direction and fading trail."""

    shape: Shape
    x: Array
    """``(n_frames or 1, n)``."""
    y: Array
    """As ``x``."""
    angle: Array | None = None
    """Direction, rad from the x axis to the y axis, as ``x``; None: not rotated."""
    colour: Colour = "ink"
    fill: Fill = "solid"
    size: float = 6.0
    """Radius, pixels."""
    trail: int = 0
    """Length of the trail, frames."""
    trail_line: Line = "solid"
    """"dotted": a dot for each frame; else a line."""
    names: Sequence[str] = ()
    """Name of each marker; () for none."""
    label: str = ""
    """Text in the legend; "" omits the layer."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Path:
    """Line through points; an area if ``closed``."""

    x: Array
    """``(n_frames or 1, n_points)``."""
    y: Array
    """As ``x``."""
    colour: Colour = "ink"
    closed: bool = False
    fill: Fill = "none"
    line: Line = "solid"
    width: float = 1.5
    """Width of the line, pixels."""
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Circles:
    """Circles with one radius in world coordinates."""

    x: Array
    """``(n_frames or 1, n)``."""
    y: Array
    """As ``x``."""
    radius: float
    colour: Colour = "ink"
    fill: Fill = "none"
    line: Line = "solid"
    width: float = 1.5
    """Width of the line, pixels."""
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Text:
    """Text at a fixed point."""

    x: float
    y: float
    texts: Sequence[str]
    """One per frame, or one for all."""
    colour: Colour = "muted"
    align: Literal["left", "center", "right"] = "left"


Layer = Markers | Path | Circles | Text


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """Scene for every output; later layers are drawn over earlier ones.

    Raises:
        DataError: A layer or a reading has a wrong number of frames.
    """

    title: str
    subtitle: str
    x_range: tuple[float, float]
    """Visible part of the world."""
    y_range: tuple[float, float]
    layers: Sequence[Layer]
    readings: Mapping[str, Sequence[str]]
    """Texts next to the picture: for each name, one per frame."""
    n_frames: int
    aspect: float | None = None
    """Height over width of the picture; None: the world's, so circles are round."""

    def __post_init__(self) -> None:
        what, rule = f"scene {self.title!r}", f"must have {self.n_frames} frames"
        for layer in self.layers:
            got = [len(each) for each in ((layer.texts,) if isinstance(layer, Text) else (layer.x, layer.y))]
            is_fine = {*got} <= {1, self.n_frames}
            require(is_fine, what, f"a layer {type(layer).__name__} {rule}, or 1", got, error=DataError)
        for name, texts in self.readings.items():
            n = len(texts)
            require(n == self.n_frames, what, f"reading {name!r} {rule}", n, error=DataError)

    @property
    def height_over_width(self) -> float:
        """Height of the picture divided by its width."""
        width, height = np.ptp(self.x_range), np.ptp(self.y_range)
        return self.aspect or float(height / width)


# ------------------------------------------------------------------ shared parts


def subtitle(episode: Episode) -> str:
    """Return the episode's origin: backend, seed and environment."""
    return f"backend {episode.backend}, seed {episode.seed}, environment {episode.env_id}"


def steps(episode: Episode) -> list[str]:
    """Return the step counter of each frame; the last one includes the outcome."""
    texts = [f"{step} of {episode.episode_length}" for step in episode[TIMESTEP]]
    if episode.outcome:
        texts[-1] += f", {episode.outcome}"
    return texts


def numbers(values: Array) -> list[str]:
    """Format numbers with two decimals, or none if all are integers."""
    decimals = 0 if np.array_equal(values, np.round(values)) else 2
    return [f"{value:.{decimals}f}" for value in np.round(values, decimals) + 0.0]  # + 0.0 removes the sign of -0


def rectangle(x: Array, y: Array, width: float, height: float, angle: Array | float = 0.0) -> tuple[Array, Array]:
    """Return the corners of rotated rectangles, x and y each ``(n_frames, 4)``.

    Args:
        x: Centres, ``(n_frames,)``.
        y: As ``x``.
        width: Width.
        height: Height.
        angle: Rotation, rad.
    """
    along, up = np.array([1, -1, -1, 1]) * width / 2, np.array([1, 1, -1, -1]) * height / 2
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    return x[:, None] + along * cos - up * sin, y[:, None] + along * sin + up * cos


def static_points(*points: tuple[float, float]) -> dict[str, Any]:
    """Return ``x`` and ``y`` of a static layer through the given points."""
    x, y = np.array(points, dtype=float).T[:, None]
    return {"x": x, "y": y}


# ------------------------------------------------------------------ any environment


MAX_SERIES: Final = 12
"""Maximum number of features drawn; more would be too thin to read."""


def time_series(episode: Episode) -> Scene:
    """Return the default scene: agent 0's observations over time.

    Every feature has a lane of height 1, scaled from its minimum to its maximum.

    Raises:
        DataError: The observations were not recorded.
    """
    observed = episode["observations"].reshape(episode.n_frames, episode["observations"].shape[1], -1)[:, 0]
    series = {f"observation {index}": values for index, values in enumerate(observed.T[:MAX_SERIES])}
    series["score"] = episode.scores.sum(1)
    time = np.arange(episode.n_frames, dtype=float)
    last = max(time[-1], 1.0)
    layers: list[Layer] = []
    for lane, (name, values) in enumerate(series.items()):
        base = len(series) - 1 - lane
        low, high = values.min(), values.max()
        height = base + 0.08 + 0.57 * (values - low) / (high - low or 1)
        layers += [
            Path(**static_points((0, base), (last, base)), colour="faint", width=1),
            Path(x=time[None], y=height[None], colour="blue"),
            Markers(shape="circle", x=time[:, None], y=height[:, None], colour="vermilion", size=4, names=[name]),
            Text(x=0, y=base + 0.83, texts=[f"{name}: {value}" for value in numbers(values)]),
        ]
    layers.append(Path(x=np.stack([time, time], 1), y=np.array([[0.0, len(series)]]), colour="muted", line="dotted"))
    return Scene(
        title=episode.env_name,
        subtitle=f"agent 0, {subtitle(episode)}",
        x_range=(-0.02 * last, 1.02 * last),
        y_range=(-0.2, len(series) + 0.2),
        layers=layers,
        readings={"step": steps(episode), "score": numbers(series["score"])},
        n_frames=episode.n_frames,
        aspect=0.12 * (len(series) + 1),
    )
