"""Rendering of episodes: record, make a scene, write GIF, MP4, PNG or HTML."""

from __future__ import annotations

from warpdrive_min.rendering.episode import Episode
from warpdrive_min.rendering.recording import record
from warpdrive_min.rendering.scene import Circles, Markers, Path, Scene, Text, time_series
from warpdrive_min.rendering.writing import scene_of, write

__all__ = ["Circles", "Episode", "Markers", "Path", "Scene", "Text", "record", "scene_of", "time_series", "write"]
