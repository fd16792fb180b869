"""One recorded episode of one environment: arrays by name, and their origin."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdrive_min.constants import TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.errors import DataError, known, require
from warpdrive_min.files import replacing

Array = npt.NDArray[Any]

FOLDER = "arrays/"
"""Prefix of array names in a file; avoids clashes with the metadata."""
ABOUT = "about"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Episode:
    """One episode on the host; frame 0 precedes step 1, frame t follows step t."""

    env_name: str
    """The environment's ``name``."""
    config: Mapping[str, Any]
    """Its config by field, as JSON (tuples are lists)."""
    backend: str
    """Backend of the run."""
    seed: int
    """Seed of its starts."""
    env_id: int
    """Index of the copy."""
    episode_length: int
    """Steps until truncation."""
    arrays: Mapping[str, Array]
    """Arrays ``(n_frames, ...)`` by name; actions, rewards and flags are 0 in frame 0."""

    def __getitem__(self, name: str) -> Array:
        """Return an array, ``(n_frames, ...)``.

        Raises:
            DataError: It was not recorded; lists the recorded arrays.
        """
        rule, do = f"array {name!r} was not recorded", f"known are {known(self.arrays)}"
        require(name in self.arrays, f"episode of {self.env_name!r}", rule, do=do, error=DataError)
        return self.arrays[name]

    @property
    def n_frames(self) -> int:
        """Number of steps plus one."""
        return len(self[TIMESTEP])

    @property
    def scores(self) -> Array:
        """Cumulative rewards, ``(n_frames, n_agents)`` float64; roles concatenated."""
        names = [name for name in self.arrays if name.startswith(f"{Constants.REWARDS}_")] or [Constants.REWARDS]
        return np.cumsum(np.concatenate([self[name] for name in names], axis=1), axis=0, dtype=np.float64)

    @property
    def outcome(self) -> str:
        """Reason of its end: "terminated", "truncated", or "" if it has not ended."""
        return next((flag for flag in (TERMINATED, TRUNCATED) if flag in self.arrays and self[flag][-1]), "")

    def save(self, path: str | Path) -> None:
        """Write a compressed ``.npz``; a failed write leaves no partial file.

        Raises:
            DataError: The path does not end in ``.npz``.
        """
        path = Path(path)
        require(path.suffix == ".npz", "episode", "is saved as .npz", path, error=DataError)
        about = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "arrays"}
        named: dict[str, Any] = {FOLDER + name: array for name, array in self.arrays.items()}
        named[ABOUT] = np.array(json.dumps(about))
        with replacing(path) as unfinished:
            np.savez_compressed(unfinished, **named)

    @classmethod
    def load(cls, path: str | Path) -> Episode:
        """Read a file written by `save`.

        Raises:
            DataError: The file is not an episode.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name.removeprefix(FOLDER): file[name] for name in file.files if name.startswith(FOLDER)}
                return cls(**json.loads(file[ABOUT].item()), arrays=arrays)
        except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"episode: {path} was not written by Episode.save ({error}); record it again") from error
