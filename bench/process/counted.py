"""Program that callgrind counts: runs points of this code between marks; see `callgrind`."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch

if __name__ == "__main__":  # started by its path, from a checkout or an install
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[2] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench.process"

from warpdrive_min.backends import cuda_c, host
from warpdrive_min.backends.cache import cached

from ..core.case import Skip
from ..core.machine import ROOT
from ..core.measure import Timed
from ..workloads.cases import CASES
from .callgrind import TARGET
from .worker import Dispatcher, Message, serve

WARM_RUNS: Final = 8
"""Runs before the count, after which CPython's interpreter has settled on its specialised instructions."""
COUNTED_RUNS: Final = 5
WARM_RUNS_OF_LONG, COUNTED_RUNS_OF_LONG = 2, 1
LONG: Final = ("rollout", "train")
"""Cases whose one run has as many steps as a rollout."""

_MARKS: Final = """
#include <valgrind/callgrind.h>
extern "C" void wd_count_start() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void wd_count_stop() { CALLGRIND_STOP_INSTRUMENTATION; }
extern "C" void wd_count_begin() { CALLGRIND_ZERO_STATS; }
extern "C" void wd_count_end(const char* label) { CALLGRIND_DUMP_STATS_AT(label); }
"""


@cache
def marks() -> ctypes.CDLL:
    """Return callgrind's client requests; outside of Valgrind they do nothing.

    Raises:
        CompileError: Valgrind's header is missing.
    """
    compiler = cuda_c.cpu_compiler()
    assert compiler is not None, "`availability` has found one"
    key = {"text": _MARKS, "compiler": cuda_c.compiler_version(compiler)}
    library = cached(key, ".so", lambda to: cuda_c.compile_shared_library(_MARKS, to, compiler, ["-O1"], "marks"))
    return ctypes.CDLL(str(library))


class Server(Dispatcher):
    """Runs points while callgrind counts."""

    def describe(self) -> Message:
        """Return the code folder."""
        return {"root": str(ROOT)}

    def count(self, points: Sequence[tuple[str, Message]]) -> Message:
        """Set up points and count runs of each; returns the number of runs and the work, or the error.

        The label of a run's profile is the index of its point and its own number.
        """
        if platform.machine() == "x86_64":
            host.TARGET = f"-march={TARGET}"
        torch.set_num_threads(1)
        ready = [_ready(case, point) for case, point in points]
        tell, counted = marks(), list[Message]()
        gc.collect()
        gc.freeze()
        gc.disable()
        tell.wd_count_start()
        for place, found in enumerate(ready):
            if not isinstance(found, Timed):
                counted.append(found)
                continue
            runs = COUNTED_RUNS_OF_LONG if points[place][0] in LONG else COUNTED_RUNS
            for number in range(runs):
                tell.wd_count_begin()
                found.run()
                tell.wd_count_end(f"{place} {number}".encode())
            counted.append({"runs": runs, "work": dict(found.facts.work)})
        tell.wd_count_stop()
        return {"points": counted}


def _ready(name: str, point: Message) -> Timed | Message:
    """Set up a point and warm it up; returns the error if it fails."""
    try:
        if name not in CASES:
            raise Skip(f"this code has no case {name}")
        timed = CASES[name].setup(point)
        assert isinstance(timed, Timed), "points that are counted are run many times"
        for _ in range(WARM_RUNS_OF_LONG if name in LONG else WARM_RUNS):
            timed.run()
    except Skip as skip:
        return {"error": "Skip", "message": str(skip)}
    except Exception as error:  # noqa: BLE001  (one broken point must not lose the others)
        return {"error": type(error).__name__, "message": str(error)}
    return timed


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Server())
    os._exit(0)  # a normal exit takes seconds on an emulated CPU
