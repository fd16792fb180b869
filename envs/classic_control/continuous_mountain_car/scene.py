"""Scene of ContinuousMountainCar: MountainCar's with a push of any strength."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from warpdrive_min.rendering import Episode, Scene

from ..mountain_car import scene

if TYPE_CHECKING:
    from .env import ContinuousMountainCarConfig


def draw(config: ContinuousMountainCarConfig, episode: Episode) -> Scene:
    """Return the scene of an episode with the state and the actions."""
    push = np.clip(episode["sampled_actions"][:, 0, 0], config.min_action, config.max_action)
    return scene.draw(config, episode, push / max(abs(config.min_action), abs(config.max_action)))
