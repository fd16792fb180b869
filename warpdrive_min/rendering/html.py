"""Player of a scene in one HTML file that works offline."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from warpdrive_min.errors import printable
from warpdrive_min.rendering.scene import GROUND, OUTLINES, PALETTE, TINT, Layer, Scene

TEMPLATE: Final = Path(__file__).with_name("player.html")
DIGITS: Final = 4
"""Digits of a coordinate relative to the world's size; far less than a pixel."""
ANGLE_DECIMALS: Final = 2


def write_html(scene: Scene, path: Path, fps: int, progress: Callable[[int, int], None]) -> None:
    """Write the player with the scene's data embedded."""
    # Only "</" could end a script element; no other text needs an escape.
    data = json.dumps(player_data(scene, fps), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    filled = {"title": html.escape(printable(scene.title)), "data": data}
    text = re.sub(r"{{(title|data)}}", lambda found: filled[found[1]], TEMPLATE.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    progress(scene.n_frames, scene.n_frames)


def player_data(scene: Scene, fps: int) -> dict[str, Any]:
    """Return the scene as the player's data: rounded numbers, null for missing ones."""
    extent = max(np.ptp(scene.x_range), np.ptp(scene.y_range))
    decimals = max(0, DIGITS - 1 - math.floor(math.log10(extent)))
    return {
        "title": scene.title,
        "subtitle": scene.subtitle,
        "fps": fps,
        "n_frames": scene.n_frames,
        "x_range": list(map(float, scene.x_range)),
        "y_range": list(map(float, scene.y_range)),
        "height_over_width": scene.height_over_width,
        "keep_aspect": scene.aspect is None,
        "palette": PALETTE,
        "ground": GROUND,
        "tint": TINT,
        "outlines": {shape: outline.round(3).tolist() for shape, outline in OUTLINES.items()},
        "layers": [_layer(layer, decimals) for layer in scene.layers],
        "readings": {name: list(texts) for name, texts in scene.readings.items()},
    }


def _layer(layer: Layer, decimals: int) -> dict[str, Any]:
    fields = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}
    return {"kind": type(layer).__name__} | {
        name: _rounded(value, ANGLE_DECIMALS if name == "angle" else decimals) for name, value in fields.items()
    }


def _rounded(value: Any, decimals: int) -> Any:
    """Return a field as JSON: arrays as rounded numbers, integers without a point."""
    if not isinstance(value, np.ndarray):
        return value
    rounded = np.round(value.astype(float), decimals)
    return [[_number(each) for each in row] for row in rounded.tolist()]


def _number(value: float) -> float | int | None:
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value
