"""Scene of CartPole: cart on its track, pole, and bounds of the episode."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdrive_min.rendering import Circles, Episode, Path, Scene
from warpdrive_min.rendering.scene import numbers, rectangle, static_points, steps, subtitle

CART_WIDTH, CART_HEIGHT = 0.5, 0.3
"""Size of the cart, m; a point in the dynamics."""


def draw(env: Any, episode: Episode) -> Scene:
    """Return the scene of an episode with the state."""
    config = env.config
    x, _, angle, _ = episode["state"][:, 0].T
    length, bound = 2 * config.half_length, config.max_position
    axle = np.full_like(x, CART_HEIGHT / 2)
    cart_x, cart_y = rectangle(x, np.zeros_like(x), CART_WIDTH, CART_HEIGHT)

    def ray(lean: Any) -> dict[str, Any]:
        """Return the line of a pole with a lean to the right, rad."""
        return {
            "x": np.stack([x, x + length * np.sin(lean)], axis=1),
            "y": np.stack([axle, axle + length * np.cos(lean)], axis=1),
        }

    limit = np.full_like(x, config.max_angle)
    ends: dict[str, Any] = {"colour": "vermilion", "line": "dashed"}
    edge = bound + CART_WIDTH
    return Scene(
        title=episode.env_name,
        subtitle=subtitle(episode),
        x_range=(-edge, edge),
        y_range=(-CART_HEIGHT, CART_HEIGHT + length),
        layers=[
            Path(**static_points((-edge, -CART_HEIGHT / 2), (edge, -CART_HEIGHT / 2)), colour="muted", width=1),
            Path(**static_points((-bound, -CART_HEIGHT), (-bound, length)), **ends, label="ends the episode"),
            Path(**static_points((bound, -CART_HEIGHT), (bound, length)), **ends),
            Path(**ray(-limit), colour="vermilion", line="dotted", width=1, label="angle that ends it"),
            Path(**ray(limit), colour="vermilion", line="dotted", width=1),
            Path(x=cart_x, y=cart_y, closed=True, fill="tint", colour="ink"),
            Path(**ray(angle), colour="blue", width=6),
            Circles(x=x[:, None], y=axle[:, None], radius=0.05, fill="solid", colour="ink"),
        ],
        readings={
            "step": steps(episode),
            "position": [f"{value:+.2f} m" for value in x],
            "angle": [f"{value:+.1f}°" for value in np.degrees(angle)],
            "score": numbers(episode.scores[:, 0]),
        },
        n_frames=episode.n_frames,
    )
