"""Scene of Acrobot: two links on a joint, and the goal height."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Circles, Episode, Path, Scene
from warpdrive_min.rendering.scene import numbers, static_points, steps, subtitle


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with the state; an angle of 0 hangs down."""
    config = env.config
    first, second, _, _ = episode["state"][:, 0].T.astype(float)
    zero = np.zeros_like(first)
    elbow_x, elbow_y = config.link_length_1 * np.sin(first), -config.link_length_1 * np.cos(first)
    tip_x = elbow_x + config.link_length_2 * np.sin(first + second)
    tip_y = elbow_y - config.link_length_2 * np.cos(first + second)
    reach = 1.1 * (config.link_length_1 + config.link_length_2)
    goal = config.goal_height
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-reach, reach),
        y_range=(-reach, reach),
        layers=[
            Path(
                **static_points((-reach, goal), (reach, goal)), colour="green", line="dashed", label="goal of the tip"
            ),
            Path(x=np.stack([zero, elbow_x], 1), y=np.stack([zero, elbow_y], 1), width=7, label="first link"),
            Path(
                x=np.stack([elbow_x, tip_x], 1),
                y=np.stack([elbow_y, tip_y], 1),
                colour="blue",
                width=5,
                label="second link",
            ),
            Circles(
                x=np.stack([zero, elbow_x], 1),
                y=np.stack([zero, elbow_y], 1),
                radius=0.07,
                colour="orange",
                fill="solid",
            ),
        ],
        readings={
            "step": steps(episode),
            "height of the tip": [f"{value:+.2f} m" for value in tip_y],
            "score": numbers(episode.scores[:, 0]),
        },
        n_frames=episode.n_frames,
    )
