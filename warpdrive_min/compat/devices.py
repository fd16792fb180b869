"""WarpDrive's processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
from multiprocessing.context import SpawnProcess
from typing import Any

from warpdrive_min.processes import end_with_parent

log = logging.getLogger(__name__)

_SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU

event_messenger = _SPAWN.Event()
"""WarpDrive's event for a finished build; nothing here waits for it."""


class ProcessWrapper(SpawnProcess):
    """Process that passes its exception to the parent.

    Takes the arguments of `multiprocessing.Process`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._parent_end, self._own_end = _SPAWN.Pipe(duplex=False)
        self._exception: Exception | None = None

    def run(self) -> None:
        """Call the target."""
        end_with_parent(os.getppid())
        try:
            super().run()
        except Exception as error:
            log.exception("process %s", self.name)
            try:
                self._own_end.send(error)
            except Exception:  # noqa: BLE001  (an error may not be picklable)
                self._own_end.send(RuntimeError(f"{type(error).__name__}: {error}"))

    @property
    def exception(self) -> Exception | None:
        """Exception of the target; None while it runs or after success."""
        if self._parent_end.poll():
            self._exception = self._parent_end.recv()
        return self._exception
