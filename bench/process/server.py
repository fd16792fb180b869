"""Server that sets up, checks, times and counts points on request."""

from __future__ import annotations

import contextlib
import gc
import json
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from warpdrive_min.backends import host
from warpdrive_min.terminal import echo

from ..core import machine, measure
from ..core.case import Case, Job
from ..core.errors import Skip
from ..core.measure import Checked, ColdStart, Plan, Timed, Timer
from ..core.record import Context, Host
from ..workloads.shared import ON_GPU
from . import callgrind
from .worker import Dispatcher, Message

POLL_S: Final = 0.0005
"""Time between two looks at the threads, s."""
MOST_POLLS: Final = 1000
"""Looks after which the work itself keeps threads busy."""


def n_running() -> int:
    """Count the other threads of this process that run or want to; 0 without /proc."""
    own, n = threading.get_native_id(), 0
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            n += int(thread.name) != own and (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    return n


def wait_until_idle(count: Callable[[], int] = n_running, pause: Callable[[float], None] = time.sleep) -> None:
    """Wait until no other thread of this process runs or wants to, at most 0.5 s.

    An OpenMP thread that has finished its part polls for the next one, for about 8 ms of CPU time after each copy of
    torch. It takes a core from whatever is timed next: kernels of `host`, or the other side. The clock of the process
    would not tell on a busy machine, where such a thread waits for a core.
    """
    for _ in range(MOST_POLLS):
        if not count():
            return
        pause(POLL_S)


class RestoringStopwatch:
    """Stopwatch that restores a snapshot before each block, untimed.

    On a CPU the block starts when the threads that restored it are idle.

    Args:
        timed: Work with a snapshot; its present state comes first.
    """

    def __init__(self, timed: Timed) -> None:
        assert timed.snapshot is not None, "work that goes back has a snapshot"
        self._snapshot, self._stopwatch = timed.snapshot, timed.stopwatch or measure.stopwatch_for(timed)
        self._is_on_cpu = timed.facts.device.type == "cpu"
        self.move()

    def move(self) -> None:
        """Take the snapshot of the next blocks from the present state."""
        self._restore = self._snapshot()

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block."""
        self._restore()
        if self._is_on_cpu:
            wait_until_idle()
        return self._stopwatch.time(block)


class Server(Dispatcher):
    """Measures points in this process, one at a time.

    Args:
        cases: Its cases, by name.
    """

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self._cases = cases
        self._work: Checked | None = None
        self._timer: Timer | None = None
        self._start: RestoringStopwatch | None = None

    def describe(self) -> Message:
        """Return the machine, commit, installed packages and code folder."""
        return {
            "root": str(machine.ROOT),
            "machine": machine.fingerprint(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "git": machine.git_state(machine.ROOT),
            "dependencies_hash": machine.dependencies_hash(),
        }

    def measure(self, case: str, point: Message, context: Mapping[str, Any], *, is_brief: bool = False) -> Message:
        """Measure one point and return its record; see `Job.is_brief`."""
        self._leave_cores(case, point)
        record = Job(self._cases[case], point, is_brief).run(Context(**context))
        return {"record": json.loads(record.to_line())}

    def _leave_cores(self, case: str, point: Message) -> None:
        """Give torch one thread if a GPU works: idle ones poll on cores of siblings."""
        if self._cases[case].workload is Timed and point.get("backend") in ON_GPU:
            torch.set_num_threads(1)

    def set_up(self, case: str, point: Message) -> Message:
        """Set up and check a point.

        In the answer ``has_snapshot`` tells if the point can return to this state.
        """
        self._free()
        if case not in self._cases:
            raise Skip(f"this code has no case {case}")
        found, self._host = self._cases[case], Host.before()
        self._leave_cores(case, point)
        work = found.setup(point)
        if not isinstance(work, Timed | ColdStart):
            raise Skip(f"{case} runs once, so it cannot be interleaved")
        before = asdict(work.check().require("before"))
        self._work, facts = work, work.facts
        return {
            "case_version": found.version,
            "scope": found.scope,
            "facts": {**asdict(facts), "device": facts.device.type},
            "has_snapshot": isinstance(work, Timed) and work.snapshot is not None,
            "is_cold_start": isinstance(work, ColdStart),
            "check": before,
        }

    def warm_up(self, sample_s: float, warm_up_cap_s: float, *, goes_back: bool) -> Message:
        """Choose the length of a block and warm up.

        Args:
            sample_s: Minimum length of a block, s.
            warm_up_cap_s: Longest warm-up, s.
            goes_back: Each block starts from the state after the set-up, until `go_on`.
        """
        assert isinstance(self._work, Timed), "a timed point is set up before it is warmed up"
        self._start = RestoringStopwatch(self._work) if goes_back else None
        self._timer = Timer(replace(self._work, stopwatch=self._start) if self._start else self._work)
        self._timer.prepare(Plan(sample_s=sample_s, warm_up_cap_s=warm_up_cap_s))
        return {"runs_per_sample": self._timer.runs, "warm_up": self._timer.warm_up}

    def begin(self, runs: int, n_blocks: int) -> Message:
        """Set the runs of a block and skip ``n_blocks`` blocks."""
        assert self._timer is not None, "a point is warmed up before it begins"
        self._timer.runs = runs
        for _ in range(n_blocks):
            self.sample()
            self.go_on()
        return {}

    def sample(self) -> Message:
        """Time one block; return ``wall_ns`` and ``device_ns`` of one run. Waits.

        On a CPU it also waits until this process is idle, because the other side is timed next.
        """
        assert self._timer is not None, "a point is warmed up before it is sampled"
        assert self._work is not None, "a point is set up before it is sampled"
        wall_ns, device_ns = self._timer.sample()
        if self._work.facts.device.type == "cpu":
            wait_until_idle()
        return {"wall_ns": wall_ns, "device_ns": device_ns}

    def energy(self, window_s: float) -> Message:
        """Repeat the work for a time; return ``joules_per_unit``, or null. Waits."""
        assert self._timer is not None, "a point is warmed up before its energy is measured"
        return {"joules_per_unit": self._timer.joules_per_unit(window_s)}

    def start_process(self, index: int) -> Message:
        """Run the process of a sample; return ``wall_ns`` and its parts, s. Waits."""
        assert isinstance(self._work, ColdStart), "a point of new processes is set up before they start"
        parts_s = dict(self._work.run(index))
        return {"wall_ns": 1e9 * sum(parts_s.values()), "device_ns": None, "parts_s": parts_s}

    def go_on(self) -> Message:
        """Start the next blocks where the last one ended."""
        if self._start:
            self._start.move()
        return {}

    def finish(self, *, with_twin: bool) -> Message:
        """Check the point again, optionally its reference run, and free it."""
        assert self._work is not None, "a point is set up before it is finished"
        try:
            host = self._host.after(self._work.facts.device)
            check = self._work.check_after(with_reference_run=with_twin)
            throttled = self._timer.throttled if self._timer else {}
            return {"check": asdict(check.require("after")), "host": host.model_dump(), "throttled": throttled}
        finally:
            self._free()

    def count(self, points: Sequence[tuple[str, Message]]) -> Message:
        """Count runs of points; return each point's runs and work, or error."""
        if platform.machine() == "x86_64":
            host.TARGET = f"-march={callgrind.TARGET}"
        torch.set_num_threads(1)
        ready = list[Timed | Message]()
        for case, point in points:
            ready.append(self._ready(case, point))
            echo(callgrind.SET_UP, err=True)
        tell, counted = callgrind.client_requests(), list[Message]()
        gc.collect()
        gc.freeze()
        gc.disable()
        tell.wd_count_start()
        for place, found in enumerate(ready):
            if not isinstance(found, Timed):
                counted.append(found)
                continue
            runs = callgrind.COUNTED_RUNS_OF_LONG if points[place][0] in callgrind.LONG else callgrind.COUNTED_RUNS
            for number in range(runs):
                tell.wd_count_begin()
                found.run()
                tell.wd_count_end(f"{place} {number}".encode())
            counted.append({"runs": runs, "work": dict(found.facts.work)})
        tell.wd_count_stop()
        return {"root": str(machine.ROOT), "points": counted}

    def _ready(self, name: str, point: Message) -> Timed | Message:
        """Set up and warm up a point; return the error if it fails."""
        try:
            if name not in self._cases:
                raise Skip(f"this code has no case {name}")
            timed = self._cases[name].setup(point)
            assert isinstance(timed, Timed), "points that are counted are run many times"
            for _ in range(callgrind.WARM_RUNS_OF_LONG if name in callgrind.LONG else callgrind.WARM_RUNS):
                timed.run()
        except Skip as skip:
            return {"error": "Skip", "message": str(skip)}
        except Exception as error:  # noqa: BLE001  (one broken point must not lose the others)
            return {"error": type(error).__name__, "message": str(error)}
        return timed

    def _free(self) -> None:
        """Free the point's memory for the other side or next point."""
        if self._work is None:
            return
        self._work = self._timer = self._start = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
