"""Scene of Tag Continuous: taggers, runners, headings and trails."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Circles, Episode, Markers, Path, Scene
from warpdrive_min.rendering.scene import numbers, static_points, steps, subtitle

TRAIL = 15
"""Length of a trail, frames."""


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with positions, directions and game flags."""
    config = env.config
    x, y, angle = episode["loc_x"], episode["loc_y"], episode["direction"]
    in_game = episode["still_in_the_game"] > 0
    taggers, runners = (np.flatnonzero(env.agent_types == of) for of in (1, 0))
    side = config.grid_length
    size = float(np.clip(55 / np.sqrt(config.n_agents), 2.5, 6))
    runs = in_game[:, runners]
    runner_x, runner_y = x[:, runners], y[:, runners]
    layers: list[Markers | Path | Circles] = [
        Path(**static_points((0, 0), (side, 0), (side, side), (0, side)), closed=True, colour="muted", width=1),
        Circles(
            x=x[:, taggers],
            y=y[:, taggers],
            radius=config.reach,
            colour="vermilion",
            fill="tint",
            line="dotted",
            width=0.8,
            label="reach of a tagger",
        ),
    ]
    if config.runner_exits_game_after_tagged:
        layers.append(
            Markers(
                shape="cross",
                x=np.where(runs, np.nan, runner_x),
                y=np.where(runs, np.nan, runner_y),
                colour="muted",
                size=size,
                names=[f"runner {agent}, tagged" for agent in runners],
                label="tagged runner",
            )
        )
    layers += [
        Markers(
            shape="drop",
            x=np.where(runs, runner_x, np.nan),
            y=np.where(runs, runner_y, np.nan),
            angle=angle[:, runners],
            colour="blue",
            fill="none",
            size=size,
            trail=TRAIL,
            trail_line="dotted",
            names=[f"runner {agent}" for agent in runners],
            label="runner",
        ),
        Markers(
            shape="dart",
            x=x[:, taggers],
            y=y[:, taggers],
            angle=angle[:, taggers],
            colour="vermilion",
            size=1.2 * size,
            trail=TRAIL,
            names=[f"tagger {agent}" for agent in taggers],
            label="tagger",
        ),
    ]
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-0.02 * side, 1.02 * side),
        y_range=(-0.02 * side, 1.02 * side),
        layers=layers,
        readings={
            "step": steps(episode),
            "runners left": numbers(runs.sum(1)),
            "taggers' score": numbers(episode.scores[:, taggers].sum(1)),
            "runners' score": numbers(episode.scores[:, runners].sum(1)),
        },
        n_frames=episode.n_frames,
    )
