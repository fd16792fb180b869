"""Scene of a car in a valley: hill, goal, car with wheels, and push."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Circles, Episode, Markers, Path, Scene
from warpdrive_min.rendering.scene import numbers, rectangle, static_points, steps, subtitle

LENGTH, HEIGHT, WHEEL = 0.16, 0.06, 0.03
"""Size of the car, in the unit of its position; a point in the dynamics."""


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode of either mountain car, with the state."""
    config = env.config
    push = episode["sampled_actions"][:, 0, 0]  # from -1 (left) to 1 (right)
    if hasattr(config, "max_action"):
        most = max(abs(config.min_action), abs(config.max_action))
        push = np.clip(push, config.min_action, config.max_action) / most
    else:
        push = push - 1
    x, velocity = episode["state"][:, 0].T.astype(float)
    ground = np.linspace(config.min_position, config.max_position, 101)
    slope = np.arctan(3 * 0.45 * np.cos(3 * x))
    along, up = np.stack([np.cos(slope), np.sin(slope)]), np.stack([-np.sin(slope), np.cos(slope)])
    middle = np.stack([x, height(x)]) + up * (WHEEL + HEIGHT / 2)
    car_x, car_y = rectangle(middle[0], middle[1], LENGTH, HEIGHT, slope)
    wheels = np.stack([middle - up * HEIGHT / 2 + along * LENGTH * at for at in (-0.3, 0.3)])  # (2, x and y, n_frames)
    arrow = np.stack([middle + up * 0.1, middle + up * 0.1 + along * 0.2 * push])
    goal, top = config.goal_position, float(height(config.goal_position))
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(config.min_position - 0.1, config.max_position + 0.1),
        y_range=(0.0, 1.3),
        layers=[
            Path(x=ground[None], y=height(ground)[None], colour="muted", width=2),
            Path(**static_points((goal, top), (goal, top + 0.2)), colour="green", width=2, label="goal"),
            Path(
                **static_points((goal, top + 0.2), (goal + 0.09, top + 0.16), (goal, top + 0.12)),
                closed=True,
                colour="green",
                fill="solid",
            ),
            Path(x=car_x, y=car_y, closed=True, colour="ink", fill="tint"),
            Circles(x=wheels[:, 0].T, y=wheels[:, 1].T, radius=WHEEL, colour="ink", fill="solid"),
            Path(x=arrow[:, 0].T, y=arrow[:, 1].T, colour="vermilion", width=4, label="push"),
            Markers(
                shape="dart",
                x=np.where(push == 0, np.nan, arrow[1, 0])[:, None],
                y=arrow[1, 1][:, None],
                angle=(slope + np.where(push < 0, np.pi, 0))[:, None],
                colour="vermilion",
            ),
        ],
        readings={
            "step": steps(episode),
            "position": [f"{value:+.2f}" for value in x],
            "velocity": [f"{value:+.3f}" for value in velocity],
            "score": numbers(episode.scores[:, 0]),
        },
        n_frames=episode.n_frames,
    )


def height(x: Any) -> Any:
    """Return the height of the hill."""
    return 0.45 * np.sin(3 * x) + 0.55
