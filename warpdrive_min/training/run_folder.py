"""Folder of a run: name, lock, settings and metric sinks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warpdrive_min.errors import ConfigError, require
from warpdrive_min.files import FolderLock, lock_folder, new_folder, remove_leftovers, remove_unused, write_atomically
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop import checkpoint, sinks
from warpdrive_min.training.ranks import World

RUN_CONFIG: Final = "run_config.json"
"""Settings file in a run's folder."""
CLEANUP_TIMEOUT_S: Final = 5.0
"""Timeout for the lock of a folder, s; a killed process may still exit."""


class RunFolder:
    """Folder of a run's settings, metrics and checkpoints; locked before writing.

    Args:
        config: Run config.
        name: Name of the folder in ``basedir/name/tag``; None: the time.
        world: Ranks of the run, which agree on the folder.
        is_shared: The run may write next to the checkpoints of an earlier one.
    """

    def __init__(self, config: RunConfig, name: str | Path | None, world: World, *, is_shared: bool = False) -> None:
        self._config, self._name, self._world, self._is_shared = config, name, world, is_shared
        self.holds_run = False
        """True if the folder holds this run, new or resumed."""
        self.resumed_from: int | None = None
        """Iteration of the checkpoint to resume from; None: a new run."""
        self._lock: FolderLock | None = None
        self._sinks: list[sinks.Sink] | None = None

    @functools.cached_property
    def path(self) -> Path:
        """Path of the folder; created on access if unnamed."""
        runs = runs_of(self._config)
        if self._name is not None and str(self._name):
            return runs / str(self._name)
        return runs / self._world.agreed(reserve(runs).name if self._world.is_first else "")

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.path / checkpoint.FOLDER

    def lock(self) -> None:
        """Create and lock the folder, unless that is done.

        Raises:
            ConfigError: Another process writes to it, or it holds another run.
        """
        if self._lock is not None:
            return
        with _folder_can_be_made(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        what, do = f"run {self.path}", "resume that run, or choose another folder"
        try:
            lock = lock_folder(self.path, CLEANUP_TIMEOUT_S)
        except BlockingIOError as error:
            do = "wait for it, or choose another folder"
            raise ConfigError.of(what, "must not be written by another process", "one that runs", do) from error
        if not (self.holds_run or self._is_shared):
            is_free = not self.checkpoints.is_dir() or not any(self.checkpoints.iterdir())
            require(is_free, what, "must not hold another run", "its checkpoints", do)
            sinks.require_new(self.path)
        remove_leftovers(self.path)
        self._lock, self.holds_run = lock, True

    def open_sinks(self, seed: int) -> list[sinks.Sink]:
        """Open the sinks and write the settings, unless that is done.

        Raises:
            ConfigError: As of `lock` and `sinks.open_sinks`.
            DataError: As of `sinks.open_sinks`.
        """
        if self._sinks is None:
            self.lock()
            saving, settings = self._config.saving, self._config.to_dict() | {"seed": seed}
            self._sinks = sinks.open_sinks(saving.sinks, self.path, saving.name, settings, self.resumed_from)
            write_atomically(self.path / RUN_CONFIG, json.dumps(settings, indent=1) + "\n")
        return self._sinks

    def close_sinks(self) -> None:
        """Close the sinks; the next `open_sinks` continues their files."""
        for sink in self._sinks or []:
            sink.close()
        self._sinks = None

    def close(self) -> None:
        """Close the sinks, unlock the folder, and remove it if unused."""
        self.close_sinks()
        self._lock = None
        if self._world.is_first and "path" in vars(self):
            remove_unused(self.path)


def runs_of(config: RunConfig) -> Path:
    """Return the folder that holds a run config's runs."""
    return Path(config.saving.basedir, config.saving.name, config.saving.tag)


def reserve(runs: Path) -> Path:
    """Create a run's folder, named by the time in s or the next free number.

    Raises:
        ConfigError: It cannot be created.
    """
    with _folder_can_be_made(runs):
        return new_folder(runs, map(str, itertools.count(int(time.time()))))


@contextlib.contextmanager
def _folder_can_be_made(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        rule = f"must be a folder in which {folder} can be created"
        raise ConfigError.of("run config saving.basedir", rule, error.strerror, "name another one") from error
