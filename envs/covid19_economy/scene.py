"""Scene of the COVID-19 economy: a tile map with three bars per state."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdrive_min.rendering import Episode, Markers, Path, Scene, Text
from warpdrive_min.rendering.scene import Layer, numbers, static_points, steps, subtitle

from . import data

TILES: Final = """
AK .  .  .  .  .  .  .  .  .  ME
.  .  .  .  .  .  .  .  .  VT NH
WA ID MT ND MN IL WI MI NY RI MA
OR NV WY SD IA IN OH PA NJ CT .
CA UT CO NE MO KY WV VA MD DE .
.  AZ NM KS AR TN NC SC DC .  .
.  .  .  OK LA MS AL GA .  .  .
HI .  .  TX .  .  .  .  FL .  .
"""
"""Map of tiles at the states' approximate places, by postal code."""
MOST_UNEMPLOYED: Final = 25.0
"""Unemployment of a full bar, per cent."""
MOST_DEATHS: Final = 400.0
"""Total deaths of a full bar, per 100,000 people."""
EMPTY: Final = 0.02
"""Height of an empty bar."""


class Bar(NamedTuple):
    """One bar of a tile."""

    label: str
    colour: Literal["blue", "orange", "vermilion"]
    fill: Literal["solid", "tint", "none"]
    left: float
    """Left edge relative to the tile's middle; the tile's side is 1."""
    heights: NDArray[Any]
    """Heights ``(n_frames, n_states)``, full at 1."""


def places() -> dict[str, tuple[int, int]]:
    """Return the column and row of each state's tile; rows count from below."""
    rows = [line.split() for line in TILES.split("\n") if line]
    return {
        code: (column, len(rows) - 1 - row)
        for row, line in enumerate(rows)
        for column, code in enumerate(line)
        if code != "."
    }


def draw(_env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with levels, unemployment and recovered people."""
    known, place = data.load(), places()
    columns, rows = np.array([place[code] for code in known.states], float).T
    deaths = known.mortality * episode["recovered"].astype(float)
    bars = (
        Bar("stringency to 10", "blue", "tint", -0.42, episode["stringency"] / 10),
        Bar(
            f"unemployed to {MOST_UNEMPLOYED:.0f} %",
            "orange",
            "none",
            -0.13,
            episode["unemployment"] / MOST_UNEMPLOYED,
        ),
        Bar(
            f"deaths to {MOST_DEATHS / 1000:.1f} %",
            "vermilion",
            "solid",
            0.16,
            1e5 * deaths / MOST_DEATHS,
        ),
    )
    layers: list[Layer] = []
    for column, row, code in zip(columns, rows, known.states, strict=True):
        corners = [(column + x, row + y) for x, y in ((-0.48, -0.48), (0.48, -0.48), (0.48, 0.48), (-0.48, 0.48))]
        layers.append(Path(**static_points(*corners), closed=True, colour="faint", width=1))
        layers.append(Text(x=column, y=row + 0.25, texts=[code], align="center"))
    for bar in bars:
        heights = np.clip(bar.heights, EMPTY, 1.0)
        for state, (column, row) in enumerate(zip(columns, rows, strict=True)):
            left, low = column + bar.left, row - 0.44
            top = low + 0.56 * heights[:, state, None]
            layers.append(
                Path(
                    x=np.array([[left, left + 0.26, left + 0.26, left]]),
                    y=np.concatenate([np.full_like(top, low), np.full_like(top, low), top, top], axis=1),
                    closed=True,
                    colour=bar.colour,
                    fill=bar.fill,
                    width=1,
                    label=bar.label if state == 0 else "",
                )
            )
    layers.append(
        Markers(shape="circle", x=columns[None], y=rows[None] + 0.4, colour="faint", size=1, names=list(known.names))
    )
    national = episode["national"].astype(float)
    died = known.mortality * national[:, 2] * known.population.sum()
    paid = 100 * episode["subsidy"] / max(1, int(episode.config["num_subsidy_levels"]))
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-0.6, columns.max() + 0.6),
        y_range=(-0.6, rows.max() + 0.6),
        layers=layers,
        readings={
            "day": steps(episode),
            "deaths": [f"{value:,.0f}" for value in died],
            "unemployed": [f"{value:.1f} %" for value in national[:, 4]],
            "subsidy": [f"{value:.0f} %" for value in paid],
            "welfare": numbers(episode.scores[:, -1]),
        },
        n_frames=episode.n_frames,
    )
