"""The process that measures points of this code: it answers requests to set up, check and time one point.

It is started by its path on the code of another commit, too: a commit's points are measured by its own server.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":  # run by its path, which says whether the package lies in another one
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[2] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench.process"

from ..core import machine, measure
from ..core.case import Case, Job
from ..core.errors import Skip
from ..core.measure import Plan, Timed, Timer
from ..core.record import Context, Host, Record, StartTime, parsed
from ..workloads.cases import CASES
from ..workloads.setups import every as every  # its copies start with all of it
from ..workloads.shared import ON_GPU
from .worker import Message, Worker, WorkerError, serve


class StartingFrom:
    """A stopwatch that brings the work back to one state before each block, outside of the time.

    Args:
        timed: Work with a snapshot; its present state is the first.
    """

    def __init__(self, timed: Timed) -> None:
        assert timed.snapshot is not None, "work that goes back has a snapshot"
        self._snapshot, self._stopwatch = timed.snapshot, timed.stopwatch or measure.stopwatch_for(timed)
        self.move()

    def move(self) -> None:
        """Start the blocks to come from the present state."""
        self._restore = self._snapshot()

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        self._restore()
        return self._stopwatch.time(block)


class Server:
    """Answers requests in this process; holds one point at a time.

    Args:
        cases: The cases that it knows.
    """

    def __init__(self, cases: Mapping[str, Case] = CASES) -> None:
        self._cases = cases
        self._timed: Timed | None = None
        self._timer: Timer | None = None
        self._start: StartingFrom | None = None

    def ask(self, method: str, **arguments: Any) -> Message:
        """Answer a request; raises WorkerError. Waits for the device."""
        try:
            reply: Message = getattr(self, method)(**arguments)
        except WorkerError:
            raise
        except Exception as error:
            raise WorkerError(type(error).__name__, str(error)) from error
        return reply

    def describe(self) -> Message:
        """Return machine, commit and installed packages, and the folder of the code."""
        return {
            "root": str(machine.ROOT),
            "machine": machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "git": machine.git_state(machine.ROOT),
            "dependencies_hash": machine.dependencies_hash(),
        }

    def measure(self, case: str, point: Message, context: Mapping[str, Any]) -> Message:
        """Set up, check, measure, check and record one point; returns the record."""
        record = Job(self._cases[case], point).run(Context(**context))
        return {"record": json.loads(record.to_line())}

    def set_up(self, case: str, point: Message) -> Message:
        """Make a point ready and check it; ``has_snapshot`` says whether it can go back to where it is now."""
        self._let_go()
        if case not in self._cases:
            raise Skip(f"this code has no case {case}")
        found, self._host = self._cases[case], Host.before()
        timed = found.setup(point)
        if not isinstance(timed, Timed):
            raise Skip(f"{case} is run once, it has no blocks to be timed in turns")
        before = asdict(timed.check().require("before"))
        self._timed, facts = timed, timed.facts
        return {
            "case_version": found.version,
            "scope": found.scope,
            "facts": {**asdict(facts), "device": facts.device.type},
            "has_snapshot": timed.snapshot is not None,
            "check": before,
        }

    def warm_up(self, sample_s: float, warm_up_cap_s: float, *, goes_back: bool) -> Message:
        """Choose the length of a block and warm up.

        Args:
            sample_s: Least length of a block, s.
            warm_up_cap_s: Longest warm-up, s.
            goes_back: Each block, here and in `sample`, starts from one state: that of the set-up, till `go_on`.
        """
        assert self._timed is not None, "a point is set up before it is warmed up"
        self._start = StartingFrom(self._timed) if goes_back else None
        self._timer = self._timer_of(self._timed)
        self._timer.settle(Plan(sample_s=sample_s, warm_up_cap_s=warm_up_cap_s))
        return {"runs_per_sample": self._timer.runs, "warm_up": self._timer.warm_up}

    def begin(self, runs: int, n_blocks: int) -> Message:
        """Set the runs of a block, and skip ``n_blocks`` blocks."""
        assert self._timed is not None, "a point is set up before it begins"
        assert self._timer is not None, "a point is warmed up before it begins"
        self._timer.runs = runs
        for _ in range(n_blocks):
            self.sample()
            self.go_on()
        return {}

    def sample(self) -> Message:
        """Time one block and wait for it; returns ``wall_ns`` and ``device_ns`` of one run."""
        assert self._timer is not None, "a point is warmed up before it is sampled"
        wall_ns, device_ns = self._timer.sample()
        return {"wall_ns": wall_ns, "device_ns": device_ns}

    def go_on(self) -> Message:
        """Let the blocks to come start where the last one has ended."""
        if self._start:
            self._start.move()
        return {}

    def finish(self, *, with_twin: bool) -> Message:
        """Check the point again, and its twin where asked, and let go of it."""
        assert self._timed is not None, "a point is set up before it is finished"
        try:
            host = self._host.after(self._timed.facts.device)
            check = self._timed.check_after(with_twin=with_twin)
            return {"check": asdict(check.require("after")), "host": host.model_dump()}
        finally:
            self._let_go()

    def _timer_of(self, timed: Timed) -> Timer:
        return Timer(replace(timed, stopwatch=self._start) if self._start else timed)

    def _let_go(self) -> None:
        """Free what a point took: the other side, or the next point, may need it."""
        if self._timed is None:
            return
        self._timed = self._timer = self._start = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# ------------------------------------------------------------------ from another process


def serve_points(connection: Connection) -> None:
    """Serve requests to measure points of this code."""
    serve(connection, Server())


def start() -> Worker:
    """Start a process that measures points of this code."""
    return Worker.copy(serve_points)


def run_point(job: Job, context: Context) -> Record:
    """Measure one point; where its process dies the record has failed."""
    if not is_on_gpu(job):
        return job.run(context)
    failed = partial(Record.of, job.case, job.point, context, started=StartTime(), status="failed")
    try:
        with start() as worker:
            reply = worker.ask("measure", case=job.case.name, point=dict(job.point), context=asdict(context))
        return parsed(Record, reply["record"], job.case.name)
    except WorkerError as error:
        return failed(reason=str(error))


def is_on_gpu(job: Job) -> bool:
    """Return whether a point is measured on a GPU of this machine."""
    return torch.cuda.is_available() and job.point["backend"] in ON_GPU


if __name__ == "__main__":
    serve_points(Connection(int(sys.argv[1])))
