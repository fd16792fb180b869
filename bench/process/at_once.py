"""Points of a sweep on this machine: one after the other, or several that are set up and checked at once (ADR 0025)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import connection
from typing import Any

from ..core.case import Job
from ..core.measure import Timed
from ..core.record import Context, Record, parsed
from . import server
from .worker import ENDING_S, Worker, WorkerError


def run_points(todo: Sequence[Job], context: Context, at_once: int = 1) -> Iterator[Record]:
    """Measure points, each of a GPU in a process of its own; the `Runner` of a sweep on this machine.

    Args:
        todo: The points.
        context: What their records share.
        at_once: Most points that are set up and checked at the same time, each of which is timed in `quiet`. First come
            those of a GPU that are `Timed`. All others run by themselves, for of those the set-up is timed too, or
            they take all memory, all threads or several GPUs; so does what has failed beside others.
    """
    beside_others: list[Job] = []
    by_themselves: list[Job] = []
    for job in todo:
        may_be_beside = at_once > 1 and job.case.workload is Timed and server.is_on_gpu(job)
        (beside_others if may_be_beside else by_themselves).append(job)
    failed = yield from _run_at_once(beside_others, context, at_once)
    for job, reason in failed:
        yield _noted(server.run_point(job, context), failed_beside_others=reason)
    for job in by_themselves:
        yield server.run_point(job, context)


def _noted(record: Record, **notes: Any) -> Record:
    return record.model_copy(update={"notes": {**record.notes, **notes}})


@dataclass(eq=False, slots=True)
class Attempt:
    """A point in its process."""

    job: Job
    worker: Worker
    waits: bool = False
    wants_quiet: bool = False
    """It waits to be timed, not for others to have been."""
    is_done: bool = False
    """It has sent its record, and ends."""

    @classmethod
    def start(cls, job: Job, context: Context) -> Attempt:
        """Start the process."""
        attempt = cls(job, server.start())
        arguments = {"case": job.case.name, "point": dict(job.point), "context": asdict(context)}
        attempt.worker.send(method="measure", arguments=arguments, has_siblings=True)
        return attempt

    def go_on(self, n_siblings: int) -> None:
        """Wait no longer."""
        self.waits = self.wants_quiet = False
        self.worker.send(n_siblings=n_siblings)

    def take(self) -> Record | None:
        """Return the record that the process has sent; None: it waits from now on. Raises WorkerError."""
        message = self.worker.receive("measure")
        if "record" not in message:
            self.waits, self.wants_quiet = True, message["wants_quiet"]
            return None
        self.is_done = True
        self.worker.send()  # an empty request is the last one
        return parsed(Record, message["record"], self.job.case.name)


def _run_at_once(todo: Sequence[Job], context: Context, n: int) -> Generator[Record, None, list[tuple[Job, str]]]:
    """Yield the record of each point that does not fail, as it comes; returns those that fail, with the reason.

    Once all wait, those that want quiet are timed one after the other; when none is left that does, all others go on.
    So nobody is set up or checked, starts or ends while another one is timed, and this process only waits.
    """
    to_start = deque(todo)
    there: list[Attempt] = []
    failed: list[tuple[Job, str]] = []
    try:
        while to_start or there:
            while to_start and len(there) < n:
                there.append(Attempt.start(to_start.popleft(), context))
            if all(each.waits for each in there):
                timed_next = [each for each in there if each.wants_quiet][:1]
                for each in timed_next or there:
                    each.go_on(len(there) - 1)
            running = [each for each in there if not each.waits]
            some_end = any(each.is_done for each in running)
            ready = connection.wait([each.worker.fileno() for each in running], ENDING_S if some_end else None)
            for each in running:
                if each.worker.fileno() not in ready:
                    if not ready and each.is_done:  # it does not end by itself
                        each.worker.kill()
                    continue
                try:
                    record = each.take()
                except WorkerError as error:
                    each.worker.__exit__()
                    there.remove(each)
                    if not each.is_done:
                        failed.append((each.job, str(error)))
                    continue
                if record and record.status == "failed":
                    failed.append((each.job, str(record.reason)))
                elif record:
                    yield _noted(record, at_once=n)
    finally:
        for each in there:
            each.worker.kill()
        for each in there:
            each.worker.__exit__()
    return failed
