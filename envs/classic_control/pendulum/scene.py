"""Scene of Pendulum: the rod on its pivot, and its torque."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Circles, Episode, Path, Scene
from warpdrive_min.rendering.scene import numbers, static_points, steps, subtitle

ARC = 24
"""Points of the torque's arc."""


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with state and actions.

    An angle of 0 is upright; it grows to the left.
    """
    config = env.config
    angle = episode["state"][:, 0, 0].astype(float)
    torque = np.clip(episode["sampled_actions"][:, 0, 0], -config.max_torque, config.max_torque)
    length, zero = config.length, np.zeros_like(angle)
    bearing = angle + np.pi / 2
    # The arc starts at the rod; its length is the torque, at most three quarters of a turn.
    sweep = bearing[:, None] + np.linspace(0, 1.5 * np.pi, ARC) * torque[:, None] / config.max_torque
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-1.2 * length, 1.2 * length),
        y_range=(-1.2 * length, 1.2 * length),
        layers=[
            Path(**static_points((0, 0), (0, 1.15 * length)), colour="green", line="dashed", label="upright, the goal"),
            Path(
                x=np.stack([zero, length * np.cos(bearing)], 1),
                y=np.stack([zero, length * np.sin(bearing)], 1),
                colour="blue",
                width=8,
                label="rod",
            ),
            Path(
                x=0.3 * length * np.cos(sweep),
                y=0.3 * length * np.sin(sweep),
                colour="vermilion",
                width=2.5,
                label="torque, from the rod on",
            ),
            Circles(**static_points((0, 0)), radius=0.05 * length, colour="ink", fill="solid"),
        ],
        readings={
            "step": steps(episode),
            "angle": [f"{value:+.0f}°" for value in np.degrees(np.arctan2(np.sin(angle), np.cos(angle)))],
            "torque": [f"{value:+.2f} N m" for value in torque],
            "score": numbers(episode.scores[:, 0]),
        },
        n_frames=episode.n_frames,
    )
