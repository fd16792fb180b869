"""Time from a fresh process to its first step or update: `startup`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..core.measure import ColdStart
from ..core.point import Check, Facts, Point
from .fresh import FIRST_UPDATE, PartTimes, start

if TYPE_CHECKING:
    from warpdrive_min.agreement.compare import Arrays

FRESH: Final = Path(__file__).with_name("fresh.py")
CACHED: Final = "cached"


class Starter:
    """Starts a point's processes, and keeps their arrays for the check.

    Args:
        point: The point. Its ``cache`` selects an empty folder of compiled code for each process, or the user's, which
            the first one fills.
        threads: CPU threads of torch in each process.
    """

    def __init__(self, point: Point, threads: int) -> None:
        from .setups.starts import scratch_folder

        self._point, self._threads = point, threads
        self._folder = scratch_folder(self, "startup")
        self._unchecked: list[Arrays] = []
        self.n_started = 0

    def start(self, index: int = 0) -> dict[str, float]:
        """Run a process, all alike; return the duration of each part, s, in order.

        Raises:
            StartError: The process failed; quotes the end of its output.
        """
        import numpy as np

        from warpdrive_min.backends import cache as user_cache

        from .setups.starts import run_process

        number = self.n_started
        self.n_started += 1
        is_cached = self._point["cache"] == CACHED
        cache = self._folder / (CACHED if is_cached else f"cache-{number}")
        out = self._folder / f"out-{number}"
        out.mkdir()
        ours = user_cache.folder() if is_cached else cache
        # By path: as a module it would import its package and all cases before the clock starts.
        program = [sys.executable, "-P", str(FRESH), json.dumps(dict(self._point)), str(out)]
        run_process("startup", program, cache, OMP_NUM_THREADS=str(self._threads), WARPDRIVE_MIN_CACHE=str(ours))
        with np.load(out / "arrays.npz") as arrays:
            self._unchecked.append(dict(arrays))
        parts: dict[str, float] = json.loads((out / "parts.json").read_text())
        return parts

    def take(self) -> list[Arrays]:
        """Return the arrays of each process since the last call.

        If there was none, start one, which also fills the cache.
        """
        if not self._unchecked:
            self.start()
        arrays, self._unchecked = self._unchecked, []
        return arrays


def startup(point: Point) -> ColdStart:
    """Time fresh processes up to their first step or update.

    The arrays of every process must be bit-identical to the reference's in this process, so floats are exact.
    """
    import torch

    from warpdrive_min.agreement.compare import errors

    from .setups.timing import available, torch_threads

    backend = available(point["backend"])
    starter = Starter(point, torch.get_num_threads())
    expected, oracle = reference(point)

    def check() -> Check:
        error = max(max(errors(expected, arrays).values()) for arrays in starter.take())
        detail = f"{starter.n_started} processes so far, {', '.join(expected)}"
        return Check.within(error, 0, f"{oracle}: to the bit", detail)

    return ColdStart(
        run=starter.start,
        check=check,
        facts=Facts(
            mode="graph" if point["until"] == FIRST_UPDATE and backend.captures_graphs else "eager",
            device=backend.device,
            threads=torch_threads(backend),
            work={"starts": 1},
            notes={"floats": "exact"},
        ),
    )


def reference(point: Point) -> tuple[Arrays, str]:
    """Return the arrays of the same start on the reference, and its name."""
    from .setups.iterations import reference_point
    from .setups.timing import counterpart

    if point["until"] == FIRST_UPDATE:
        other = dict(reference_point(point))
        return start(other, PartTimes()), f"two iterations on {other['backend']}, {other['mode']}"
    other = {**point, "backend": counterpart(point["backend"])}
    return start(other, PartTimes()), f"one step on {other['backend']}"
