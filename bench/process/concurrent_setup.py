"""Points set up and checked concurrently, timed one by one (ADR 0025)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import connection
from typing import Any

from ..core.case import Job
from ..core.measure import Ranks, Timed
from ..core.record import Context, Record, StartTime, parsed
from .worker import ENDING_S, Worker, WorkerError

Start = Callable[[], Worker]
"""Starts a process that measures points."""
StartOf = Callable[[Job], Start | None]
"""Returns the function that starts a point's process; None: use this one."""


def run_point(job: Job, context: Context, start: Start | None) -> Record:
    """Measure one point; if its process dies, the record has failed."""
    if start is None:
        return job.run(context)
    started = StartTime()
    try:
        with start() as worker:
            return _parsed(job, worker.ask("measure", **_arguments(job, context)))
    except WorkerError as error:
        return Record.of(job.case, job.point, context, started=started, status="failed", reason=str(error))


def run_points(todo: Sequence[Job], context: Context, start_of: StartOf, at_once: int = 1) -> Iterator[Record]:
    """Measure points; the `Runner` of a sweep on this machine.

    `Timed` and `Ranks` points on a GPU come first, several at once, each timed in `exclusive`. All others run alone:
    their set-up is timed too, or they use all memory or all threads. Points that failed alongside others are repeated
    alone.

    Args:
        todo: The points.
        context: Fields that their records share.
        start_of: Chooses the process of a point.
        at_once: Maximum number of points that are set up and checked at once.
    """
    beside_others: list[tuple[Job, Start]] = []
    alone: list[Job] = []
    for job in todo:
        start = start_of(job)
        if start and at_once > 1 and job.case.workload in (Timed, Ranks):
            beside_others.append((job, start))
        else:
            alone.append(job)
    failed = yield from _run_at_once(beside_others, context, at_once)
    for job, reason in failed:
        yield _noted(run_point(job, context, start_of(job)), failed_beside_others=reason)
    for job in alone:
        yield run_point(job, context, start_of(job))


def _arguments(job: Job, context: Context) -> dict[str, Any]:
    arguments = {"case": job.case.name, "point": dict(job.point), "context": asdict(context)}
    return arguments | ({"is_brief": True} if job.is_brief else {})  # commits before it refuse the argument


def _parsed(job: Job, reply: dict[str, Any]) -> Record:
    return parsed(Record, reply["record"], job.case.name)


def _noted(record: Record, **notes: Any) -> Record:
    return record.model_copy(update={"notes": {**record.notes, **notes}})


@dataclass(eq=False, slots=True)
class PointProcess:
    """A point in its process."""

    job: Job
    worker: Worker
    waits: bool = False
    wants_exclusive: bool = False
    """True while it waits for its own timing."""
    is_done: bool = False
    """True once it has sent its record; then it exits."""

    @classmethod
    def start(cls, job: Job, context: Context, start: Start) -> PointProcess:
        """Start the process."""
        attempt = cls(job, start())
        attempt.worker.send(method="measure", arguments=_arguments(job, context), has_siblings=True)
        return attempt

    def resume(self, n_siblings: int) -> None:
        """Let the process continue."""
        self.waits = self.wants_exclusive = False
        self.worker.send(n_siblings=n_siblings)

    def receive_record(self) -> Record | None:
        """Return the record of the process; None: it waits. Raises WorkerError."""
        message = self.worker.receive("measure")
        if "record" not in message:
            self.waits, self.wants_exclusive = True, message["wants_exclusive"]
            return None
        self.is_done = True
        self.worker.send()  # an empty request is the last one
        return _parsed(self.job, message)


def _run_at_once(
    todo: Sequence[tuple[Job, Start]], context: Context, n: int
) -> Generator[Record, None, list[tuple[Job, str]]]:
    """Yield each finished point's record; return failed ones with reasons.

    Once all processes wait, those that request exclusive timing are timed one by one; then all others continue. So no
    process sets up, checks, starts or ends while another one is timed. This process only waits.
    """
    to_start = deque(todo)
    running: list[PointProcess] = []
    failed: list[tuple[Job, str]] = []
    try:
        while to_start or running:
            while to_start and len(running) < n:
                job, start = to_start.popleft()
                running.append(PointProcess.start(job, context, start))
            if all(each.waits for each in running):
                timed_next = [each for each in running if each.wants_exclusive][:1]
                for each in timed_next or running:
                    each.resume(len(running) - 1)
            busy = [each for each in running if not each.waits]
            some_end = any(each.is_done for each in busy)
            ready = connection.wait([each.worker.fileno() for each in busy], ENDING_S if some_end else None)
            for each in busy:
                if each.worker.fileno() not in ready:
                    if not ready and each.is_done:  # it does not exit on its own
                        each.worker.kill()
                    continue
                try:
                    record = each.receive_record()
                except WorkerError as error:
                    each.worker.__exit__()
                    running.remove(each)
                    if not each.is_done:
                        failed.append((each.job, str(error)))
                    continue
                if record and record.status == "failed":
                    failed.append((each.job, str(record.reason)))
                elif record:
                    yield _noted(record, at_once=n)
    finally:
        for each in running:
            each.worker.kill()
        for each in running:
            each.worker.__exit__()
    return failed
