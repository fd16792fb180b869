"""WarpDrive's animation of a Tag Continuous episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warpdrive_min.errors import require

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation


def generate_tag_env_rollout_animation(
    trainer: Any,
    fps: int = 50,
    tagger_color: str = "#C843C3",
    runner_color: str = "#245EB6",
    runner_not_in_game_color: str = "#666666",
    fig_width: float = 6,
    fig_height: float = 6,
) -> FuncAnimation:
    """Play an episode with a trainer's policies and animate it; synchronises.

    Args:
        trainer: Trainer of Tag Continuous with ``fetch_episode_states`` and ``cuda_envs``.
        fps: Steps per second.
        tagger_color: Colour of taggers.
        runner_color: Colour of runners.
        runner_not_in_game_color: Colour of runners out of the game.
        fig_width: Width, inches.
        fig_height: Height, inches.

    Raises:
        ConfigError: The trainer is None.
        ImportError: matplotlib is not installed.
    """
    require(trainer is not None, "generate_tag_env_rollout_animation", "needs a trainer", do="pass one")
    from matplotlib import animation, pyplot  # noqa: PLC0415  (optional)

    states = trainer.fetch_episode_states(["loc_x", "loc_y", "still_in_the_game"])
    env = trainer.cuda_envs.env
    n_frames = int((~np.isnan(states["loc_x"][:, 0])).sum())
    is_tagger = np.array([agent in env.taggers for agent in range(env.num_agents)])
    own, out = np.where(is_tagger, tagger_color, runner_color), np.array(runner_not_in_game_color)
    figure, axes = pyplot.subplots(figsize=(fig_width, fig_height))
    axes.set(xlim=(0, env.grid_length), ylim=(0, env.grid_length), aspect="equal", xticks=[], yticks=[])
    agents = axes.scatter(states["loc_x"][0], states["loc_y"][0], c=own)
    title = axes.set_title("")

    def show(frame: int) -> tuple[Any, ...]:
        playing = states["still_in_the_game"][frame] > 0
        agents.set_offsets(np.stack([states["loc_x"][frame], states["loc_y"][frame]], -1))
        agents.set_color(np.where(playing | is_tagger, own, out).tolist())
        title.set_text(f"step {frame}, runners left: {int((playing & ~is_tagger).sum())}")
        return agents, title

    film = animation.FuncAnimation(figure, show, frames=n_frames, interval=1000 / fps)
    pyplot.close(figure)  # a notebook shows the animation, not the figure
    return film
