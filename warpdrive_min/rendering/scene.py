"""Drawing of an episode, stated once for every output: layers of shapes in world coordinates.

World coordinates have x to the right and y up; NaN means "not there". The first axis of a layer's arrays is the frame,
and has one entry where nothing changes.
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

# The hues are Okabe and Ito's, which people with any colour vision tell apart; shape, fill and line say the same again.
PALETTE: Final[dict[Colour, tuple[str, str]]] = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#656d76", "#9198a1"),
    "faint": ("#d8dee4", "#30363d"),
    "blue": ("#0072b2", "#56b4e9"),
    "vermilion": ("#d55e00", "#ff8c42"),
    "green": ("#009e73", "#2fc79a"),
    "orange": ("#b87f00", "#e69f00"),
}
"""Each colour on a light and on a dark ground."""
GROUND: Final = ("#ffffff", "#0d1117")
"""The light and the dark ground."""
TINT: Final = 0.15
"""Opacity of a tinted area."""


def circle(n: int, first: float = 0.0, last: float = 2 * np.pi) -> Array:
    """Return ``n`` points of the unit circle, ``(n, 2)``, from one angle to another, rad."""
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
"""Corners of each shape, ``(n_corners, 2)``, about 1 from its centre; a drop and a dart point to the right."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Markers:
    """Symbols of one size on the screen, such as agents; they can point somewhere, and leave a fading trail."""

    shape: Shape
    x: Array
    """``(n_frames or 1, n)``."""
    y: Array
    """As ``x``."""
    angle: Array | None = None
    """Direction, rad from the x axis to the y axis, as ``x``; None: as the outline does."""
    colour: Colour = "ink"
    fill: Fill = "solid"
    size: float = 6.0
    """Radius, pixels."""
    trail: int = 0
    """Frames that the trail goes back."""
    trail_line: Line = "solid"
    """"dotted": a dot for each frame; else a line."""
    names: Sequence[str] = ()
    """Name of each marker; () if they have none."""
    label: str = ""
    """Text of the legend; "" leaves the layer out of it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Path:
    """A line through points, or with ``closed`` an area."""

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
    """Circles of one radius in the world."""

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
    """A text at a point that stays."""

    x: float
    y: float
    texts: Sequence[str]
    """One for each frame, or one for all."""
    colour: Colour = "muted"
    align: Literal["left", "center", "right"] = "left"


Layer = Markers | Path | Circles | Text


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """Everything that an output needs; later layers are drawn over earlier ones.

    Raises:
        DataError: A layer or a reading has another number of frames.
    """

    title: str
    subtitle: str
    x_range: tuple[float, float]
    """Part of the world that is shown."""
    y_range: tuple[float, float]
    layers: Sequence[Layer]
    readings: Mapping[str, Sequence[str]]
    """Texts beside the picture by name, each with one for each frame."""
    n_frames: int
    aspect: float | None = None
    """Height over width of the picture; None: as the world's, so that a circle is round."""

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
        """Shape of the picture."""
        width, height = np.ptp(self.x_range), np.ptp(self.y_range)
        return self.aspect or float(height / width)


# ------------------------------------------------------------------ what several environments draw


def subtitle(episode: Episode) -> str:
    """Say where an episode comes from."""
    return f"backend {episode.backend}, seed {episode.seed}, environment {episode.env_id}"


def steps(episode: Episode) -> list[str]:
    """Return the reading of the step, which ends with how the episode ended."""
    texts = [f"{step} of {episode.episode_length}" for step in episode[TIMESTEP]]
    if episode.outcome:
        texts[-1] += f", {episode.outcome}"
    return texts


def numbers(values: Array) -> list[str]:
    """Return the reading of a number: with two decimals, unless it is whole throughout."""
    decimals = 0 if np.array_equal(values, np.round(values)) else 2
    return [f"{value:.{decimals}f}" for value in np.round(values, decimals) + 0.0]  # + 0.0: no minus before a zero


def rectangle(x: Array, y: Array, width: float, height: float, angle: Array | float = 0.0) -> tuple[Array, Array]:
    """Return the corners, x and y each ``(n_frames, 4)``, of a rectangle about ``(x, y)`` turned by ``angle``, rad."""
    along, up = np.array([1, -1, -1, 1]) * width / 2, np.array([1, 1, -1, -1]) * height / 2
    cos, sin = np.cos(angle)[..., None], np.sin(angle)[..., None]
    return x[:, None] + along * cos - up * sin, y[:, None] + along * sin + up * cos


def still(*points: tuple[float, float]) -> dict[str, Any]:
    """Return the ``x`` and ``y`` of a layer that does not change, from its points."""
    x, y = np.array(points, dtype=float).T[:, None]
    return {"x": x, "y": y}


# ------------------------------------------------------------------ any environment


MAX_SERIES: Final = 12
"""Observed features that are drawn; more would be too thin to read."""


def time_series(episode: Episode) -> Scene:
    """Return the scene of an environment that has none of its own: what agent 0 observes, over time.

    Every feature has a lane of height 1, from its least to its largest value.

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
            Path(**still((0, base), (last, base)), colour="faint", width=1),
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
