"""Scene of Tag GridWorld: cells, taggers, runner and trails."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Episode, Markers, Path, Scene
from warpdrive_min.rendering.scene import circle, numbers, static_points, steps, subtitle

TRAIL = 6
"""Length of a trail, frames."""
MAX_LINES = 101
"""Maximum number of grid lines per direction; more would be one grey area."""


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with positions; the last agent is the runner.

    Taggers have small offsets in different directions, so that all on one cell are visible.
    """
    config = env.config
    aside = 0.27 * circle(config.num_taggers + 1)[:-1].T
    x = episode["loc_x"].astype(float)
    y = episode["loc_y"].astype(float)
    low, high = -0.5, config.grid_length + 0.5
    lines = np.linspace(low, high, config.grid_length + 2)
    lines = lines if len(lines) <= MAX_LINES else lines[[0, -1]]
    size = float(np.clip(150 / (config.grid_length + 1), 2.5, 9))
    is_tagged = np.zeros((episode.n_frames, 1), bool)
    is_tagged[-1] = episode.outcome == "terminated"
    runner_x, runner_y = x[:, -1:], y[:, -1:]
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(low - 0.1, high + 0.1),
        y_range=(low - 0.1, high + 0.1),
        layers=[
            *(Path(**static_points((line, low), (line, high)), colour="faint", width=1) for line in lines),
            *(Path(**static_points((low, line), (high, line)), colour="faint", width=1) for line in lines),
            Markers(
                shape="dart",
                x=x[:, :-1] + aside[0],
                y=y[:, :-1] + aside[1],
                angle=np.full((1, config.num_taggers), np.pi / 2),
                colour="vermilion",
                size=0.8 * size,
                trail=TRAIL,
                names=[f"tagger {agent}" for agent in range(config.num_taggers)],
                label="tagger",
            ),
            Markers(
                shape="circle",
                x=np.where(is_tagged, np.nan, runner_x),
                y=np.where(is_tagged, np.nan, runner_y),
                colour="blue",
                fill="none",
                size=size,
                trail=TRAIL,
                trail_line="dotted",
                names=["runner"],
                label="runner",
            ),
            Markers(
                shape="cross",
                x=np.where(is_tagged, runner_x, np.nan),
                y=np.where(is_tagged, runner_y, np.nan),
                size=1.3 * size,
                names=["runner, tagged"],
                label="tagged runner",
            ),
        ],
        readings={
            "step": steps(episode),
            "taggers' score": numbers(episode.scores[:, :-1].sum(1)),
            "runner's score": numbers(episode.scores[:, -1]),
        },
        n_frames=episode.n_frames,
    )
