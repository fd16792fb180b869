"""The outputs of a scene by suffix: `FORMATS` is the one table of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from warpdrive_min.errors import require
from warpdrive_min.files import replacing
from warpdrive_min.rendering.episode import Episode
from warpdrive_min.rendering.html import write_html
from warpdrive_min.rendering.raster import write_gif, write_mp4, write_png
from warpdrive_min.rendering.scene import Scene, time_series

Progress = Callable[[int, int], None]
"""Is told the frames done, and of how many."""

FORMATS: Final[dict[str, Callable[[Scene, Path, int, Progress], None]]] = {
    ".gif": write_gif,
    ".html": write_html,
    ".mp4": write_mp4,
    ".png": write_png,
}
MAX_FPS: Final = 50
"""A GIF counts in hundredths of a second, and viewers slow down what is shorter than two of them."""


def scene_of(env: Any, episode: Episode) -> Scene:
    """Return the environment's own scene of an episode, or its observations over time if it has none."""
    scene: Scene | None = env.scene(episode) if hasattr(env, "scene") else None
    return scene if scene is not None else time_series(episode)


def write(scene: Scene, path: str | Path, fps: int = 20, progress: Progress = lambda done, n: None) -> None:
    """Write a scene in the format that the path's suffix names; the file appears whole or not at all.

    Args:
        scene: What is drawn.
        path: ``.gif`` and ``.mp4`` move, ``.html`` is a player in one file, ``.png`` is the last frame.
        fps: Frames a second.
        progress: Called after each frame with the frames done and of how many.

    Raises:
        ConfigError: The suffix is unknown, ``fps`` is out of range, or a package is missing; names the install line.
    """
    path = Path(path)
    require_format(path)
    require(1 <= fps <= MAX_FPS, "write.fps", f"must be from 1 to {MAX_FPS}", fps)
    with replacing(path) as unfinished:
        FORMATS[path.suffix](scene, unfinished, fps, progress)


def require_format(path: Path, *others: str) -> None:
    """Raise `ConfigError` unless the path's suffix is known; it names those of ``others``, which a caller writes."""
    do = f"known are {', '.join([*FORMATS, *others])}"
    require(path.suffix in FORMATS, "write", f"unknown format {path.suffix!r}", path, do)
