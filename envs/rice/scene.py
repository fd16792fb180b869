"""Scene of RICE: bars of emissions and mitigation, and temperature curves."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from warpdrive_min.rendering import Episode, Markers, Path, Scene
from warpdrive_min.rendering.scene import Array, Colour, Fill, Layer, Text, numbers, static_points, subtitle

HEIGHT = 10.0
"""Height of each of the two panels."""
GAP = 2.5
"""Distance between them, with room for a title."""
BOXES: Final[tuple[tuple[str, Colour], ...]] = (("atmosphere", "vermilion"), ("ocean", "blue"))


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode; a frame is a period.

    The episode needs emissions, mitigation, output and temperature.
    """
    config = env.config
    n, world, ends = config.n_agents, config.world, slice(None, None, config.n_stages)
    names = ("emissions", "mitigation", "output", "temperature")
    emissions, mitigation, output, temperature = (episode[name][ends].astype(float) for name in names)
    n_frames = len(emissions)
    # Emissions without mitigation, from output before damage and mitigation.
    period = np.arange(n_frames - 1)
    warming = temperature[:-1, :1]
    kept = 1 - world["damage_linear"] * warming - world["damage_quadratic"] * warming**2
    clean = 1 - config.paths["abatement"][period] * mitigation[1:] ** world["abatement_exponent"]
    avoided = np.zeros_like(emissions)
    gross = output[1:] / np.maximum(kept * clean, 1e-9)
    avoided[1:] = config.paths["intensity"][period] * mitigation[1:] * gross
    most = max(float((emissions + avoided).max()), 1e-9)
    low = HEIGHT + GAP
    warmest = int(np.ceil(max(temperature.max(), 1.0)))
    title = f"a bar for each region: emissions, up to {most:.0f} Gt CO2 a year"
    layers: list[Layer] = [Text(x=0, y=HEIGHT + 0.4, texts=[title])]
    for region in range(n):
        first = HEIGHT / most * emissions[:, region]
        second = first + HEIGHT / most * avoided[:, region]
        layers += [
            bar(region, np.zeros(n_frames), first, "vermilion", "solid", "emitted"),
            bar(region, first, second, "green", "tint", "avoided"),
        ]
    layers += [
        Path(**static_points((0, 0), (n, 0)), colour="muted", width=1),
        Text(x=0, y=low + HEIGHT + 0.4, texts=[f"temperature above 1900, a line for each K up to {warmest}"]),
    ]
    for degree in range(warmest + 1):
        level = low + HEIGHT * degree / warmest
        layers.append(Path(**static_points((0, level), (n, level)), colour="faint", width=1))
    at = n * config.n_stages / config.episode_length * np.arange(n_frames)
    so_far = np.minimum(np.arange(n_frames), np.arange(n_frames)[:, None])
    for (name, colour), box in zip(BOXES, temperature.T, strict=True):
        level = low + HEIGHT / warmest * box
        layers += [
            Path(x=at[so_far], y=level[so_far], colour=colour, width=2.5, label=name),
            Markers(shape="circle", x=at[:, None], y=level[:, None], colour=colour, size=4, names=[name]),
        ]
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-0.5, n + 0.5),
        y_range=(-0.5, low + HEIGHT + 1.2),
        layers=layers,
        readings={
            "year": [f"{world['start_year'] + world['years'] * frame:.0f}" for frame in range(n_frames)],
            "temperature": [f"{value:.2f} K" for value in temperature[:, 0]],
            "Gt CO2 a year": numbers(emissions.sum(1)),
            "10^12 USD a year": numbers(output.sum(1)),
            "utility": numbers(episode.scores[ends].sum(1)),
        },
        n_frames=n_frames,
        aspect=0.75,
    )


def bar(region: int, low: Array, high: Array, colour: Colour, fill: Fill, label: str) -> Path:
    """Return a part of a region's bar; only the first region's is in the legend."""
    left, right = np.full_like(low, region + 0.1), np.full_like(low, region + 0.9)
    return Path(
        x=np.stack([left, right, right, left], 1),
        y=np.stack([low, low, high, high], 1),
        closed=True,
        colour=colour,
        fill=fill,
        width=0.5,
        label=label if region == 0 else "",
    )
