"""Fake points that log actions and times, with few imports."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch

from bench.core.case import Case
from bench.core.errors import Skip
from bench.core.measure import Once, Timed
from bench.core.point import Check, Facts, Measurement, Metric
from bench.process.server import Server
from bench.process.worker import Connection, serve


class Log:
    """Log file with a JSON object per action.

    An object has action, process, start and end.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._file, self._index = Path(point["folder"], "log"), point["index"]

    def add(self, what: str, began: float) -> None:
        """Add an action that ends now."""
        entry = {"what": what, "index": self._index, "pid": os.getpid(), "span": [began, time.monotonic()]}
        with self._file.open("a") as file:
            file.write(f"{json.dumps(entry)}\n")

    def count(self, what: str) -> int:
        """Return the number of times that an action was done."""
        return sum(f'"{what}"' in line for line in self._file.read_text().splitlines())

    def do(self, what: str, seconds: float) -> None:
        """Take some time, and log it."""
        began = time.monotonic()
        time.sleep(seconds)
        self.add(what, began)


def set_up(point: Mapping[str, Any]) -> Timed | Once:
    """Set up a point that may fail.

    ``how`` picks the failure; ``together`` is the number of starts to wait for.
    """
    log, how, began = Log(point), point["how"], time.monotonic()

    def happens(what: str) -> bool:
        trace = Path(point["folder"], f"{what} {point['index']}")
        if how == f"{what} always" or (how == f"{what} once" and not trace.exists()):
            trace.touch()
            return True
        return False

    log.add("start", began)
    while log.count("start") < point["together"]:
        assert time.monotonic() < began + 60, "the others do not come"
        time.sleep(0.01)
    time.sleep(0.05 * point["index"])
    log.add("set-up", began)
    if how == "skips":
        util.Finalize(None, log.do, ("end", 0.5), exitpriority=0)
        raise Skip("no such device; buy one")
    if happens("fails"):
        raise MemoryError("too many at once")

    def run() -> None:
        if happens("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        log.do("run", 0.001)

    def check() -> Check:
        log.do("check", 0.1)
        return Check(passed=True, max_error=0.0)

    def run_once() -> Measurement:
        run()
        return Measurement(metrics={"return": Metric.exact(1.0, "", "higher")})

    facts = Facts(mode="eager", device=torch.device("cpu"), threads=1, work={"env_steps": 1000})
    if point["env"] == "once":
        return Once(run=run_once, check=check, facts=facts)
    return Timed(run=run, synchronize=lambda: None, check=check, facts=facts)


CASES = {
    kind.__name__: Case(
        name=kind.__name__, title="a fake", scope=scope, workload=kind, points=lambda preset: [], setup=set_up
    )
    for kind, scope in ((Timed, "env"), (Once, "learn"))
}


def serve_fakes(connection: Connection) -> None:
    """Answer requests about these cases."""
    serve(connection, Server(CASES))
