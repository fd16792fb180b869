"""Writers of a scene by file suffix; see `FORMATS`."""

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
"""Callback with the number of frames done and the total."""

FORMATS: Final[dict[str, Callable[[Scene, Path, int, Progress], None]]] = {
    ".gif": write_gif,
    ".html": write_html,
    ".mp4": write_mp4,
    ".png": write_png,
}
MAX_FPS: Final = 50
"""Highest frame rate: viewers slow down GIF frames shorter than 2/100 s."""


def scene_of(env: Any, episode: Episode) -> Scene:
    """Return the environment's scene of an episode, or `time_series` without one."""
    scene: Scene | None = env.scene(episode) if hasattr(env, "scene") else None
    return scene if scene is not None else time_series(episode)


def write(scene: Scene, path: str | Path, fps: int = 20, progress: Progress = lambda done, n: None) -> None:
    """Write a scene in the format of the path's suffix.

    A failed write leaves no partial file.

    Args:
        scene: Scene to draw.
        path: ``.gif`` and ``.mp4`` are animated, ``.html`` is a player in one file, ``.png`` is the last frame.
        fps: Frames per second.
        progress: Called after each frame with the number of frames done and the total.

    Raises:
        ConfigError: The suffix is unknown, ``fps`` is out of range, or a package is missing; names the install line.
    """
    path = Path(path)
    require_format(path)
    require(1 <= fps <= MAX_FPS, "write.fps", f"must be from 1 to {MAX_FPS}", fps)
    with replacing(path) as unfinished:
        FORMATS[path.suffix](scene, unfinished, fps, progress)


def require_format(path: Path, *others: str) -> None:
    """Raise `ConfigError` unless the path's suffix is known.

    The message also lists ``others``, suffixes that the caller writes.
    """
    do = f"known are {', '.join([*FORMATS, *others])}"
    require(path.suffix in FORMATS, "write", f"unknown format {path.suffix!r}", path, do)
