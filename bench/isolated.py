"""Points of a GPU, each in a process of its own.

So a point is measured alike whatever was measured before it: a process that has captured several CUDA graphs launches
out of all of them more slowly, for good (ADR 0014). And what breaks a GPU's context breaks no other point.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from bench import sweep
from bench.case import Point
from bench.cases import CASES
from bench.record import Context, Record
from bench.sweep import Job
from warpdrive_min.backends import BACKENDS

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

Result = TypeVar("Result")

CAN_COPY: Final = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES: Final[ForkServerContext | SpawnContext] = (
    multiprocessing.get_context("forkserver") if CAN_COPY else multiprocessing.get_context("spawn")
)
"""Starts processes, where it can as copies of one that has imported all this and has not touched a GPU."""
if CAN_COPY:
    PROCESSES.set_forkserver_preload([__name__])


class ProcessDied(RuntimeError):  # noqa: N818  (what happened)
    """A process ended before it had a result."""


def run_points(todo: Sequence[Job], context: Context) -> Iterator[Record]:
    """Run each point, those of a GPU in a process of their own; the `Runner` of a sweep on this machine."""
    for job in todo:
        yield run_point(job, context)


def run_point(job: Job, context: Context) -> Record:
    """Set up, check, measure, check and record one point."""
    if not is_on_gpu(job):
        return sweep.run_point(job, context)
    started = datetime.now(UTC)
    try:
        return apart(_run_point, job.case.name, job.point, context)
    except ProcessDied as death:
        return Record.of(job.case, job.point, context, started=started, status="failed", reason=str(death))


def is_on_gpu(job: Job) -> bool:
    """Return whether a point is measured on a GPU of this machine."""
    return torch.cuda.is_available() and BACKENDS[job.point["backend"]].captures_graphs


def _run_point(case: str, point: Point, context: Context) -> Record:
    return sweep.run_point(Job(CASES[case], point), context)


def apart(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of a module in a process of its own and return what it returns; both must be able to be pickled.

    Raises:
        ProcessDied: It raised or crashed; its own message is on the error output.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        result: Result = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise ProcessDied(f"its process ended {how}; see the error output") from None
    except BaseException:
        process.kill()
        raise
    finally:
        process.join()
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    sender.send(function(*arguments))


def _end_with_the_parent() -> None:
    """Stop measuring for a sweep that was killed: the next one must find the GPU free."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of its own has a parent"
    wait([parent.sentinel])
    os._exit(1)
