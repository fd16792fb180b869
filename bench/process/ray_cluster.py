"""Sweep on a Ray cluster: a GPU, or a node's CPUs, per point.

The driver chooses each point's node, because a CPU point needs all CPUs of that node. Each point has a new process;
only the driver writes records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from warpdrive_min.backends import BACKENDS, Availability
from warpdrive_min.packages import install_command

from ..core.case import Job
from ..core.machine import sources_hash
from ..core.measure import Ranks
from ..core.point import PLAIN, Measurement, point_name
from ..core.record import Context, Record, StartTime, Status
from ..workloads.shared import ON_GPU

log = logging.getLogger(__name__)

RETRIES: Final = 3
"""Retries of a point whose worker or node died."""
KNOCK_S: Final = 5.0
"""Timeout of the connection to a cluster's head, s."""
REFRESH_S: Final = 2.0
"""Interval between searches for new nodes, s."""


class ClusterError(RuntimeError):
    """A Ray cluster cannot run a sweep."""


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a Ray cluster, and disconnect at the end.

    Args:
        address: "local" starts a cluster on this machine, "auto" finds a running one, HOST:PORT is the head of a
            cluster with this machine.

    Raises:
        ClusterError: Ray or the cluster is missing, or a node has other sources.
    """
    try:
        import ray  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise ClusterError(f"--ray: needs Ray (got {error}); {install_command('ray')}") from error
    started_here: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
        started_here["include_dashboard"] = False
    try:
        if address not in ("local", "auto"):
            _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **started_here)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"--ray: must be local, auto, or HOST:PORT of a cluster that runs (got {address!r}: {error}); "
            "start one with `ray start --head`"
        ) from error
    try:
        cluster = Cluster(ray, sources_hash())
        cluster.nodes()
        yield cluster
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nobody listens; Ray itself would exit."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it is not HOST:PORT")
    socket.create_connection((host, int(port)), timeout=KNOCK_S).close()


# ------------------------------------------------------------------ the cluster


@dataclass(frozen=True, slots=True)
class Node:
    """Resources of a node."""

    id: str
    address: str
    """Address for messages; records name no host."""
    n_cpus: int
    n_gpus: int

    @property
    def usable_gpus(self) -> int:
        """Number of GPUs with a CPU for each."""
        return min(self.n_gpus, self.n_cpus)

    def could_run(self, task: Task) -> bool:
        """True if the node is large enough for a point."""
        return self.n_cpus > 0 and task.n_gpus <= self.usable_gpus

    def has_room_for(self, task: Task, others: Sequence[Task]) -> bool:
        """True if a point fits next to others; Ray decides between kinds."""
        if task.n_gpus == 0:
            return self.could_run(task) and not any(each.n_gpus == 0 for each in others)
        return task.n_gpus + sum(each.n_gpus for each in others) <= self.usable_gpus

    def share(self, task: Task) -> dict[str, int]:
        """Return a point's resources; Ray sets OpenMP threads to its CPUs."""
        if task.n_gpus == 0:
            return {"num_gpus": 0, "num_cpus": self.n_cpus}  # no point of a GPU runs at the same time
        return {"num_gpus": task.n_gpus, "num_cpus": self.n_cpus // self.usable_gpus * task.n_gpus}


@dataclass(eq=False, slots=True)
class Task:
    """A point with its earlier attempts."""

    job: Job
    node: Node | None = None
    started: StartTime = field(default_factory=StartTime)
    """Start of the last attempt."""
    losses: list[str] = field(default_factory=list)

    @property
    def n_gpus(self) -> int:
        """Number of GPUs of one node."""
        case, point = self.job.case, self.job.point
        if point["backend"] not in ON_GPU:
            return 0
        return max(2, int(point["n_ranks"])) if case.workload is Ranks else 1  # one rank alone is compared with more


class Cluster:
    """A Ray cluster that measures points."""

    def __init__(self, ray: Any, sources: str) -> None:
        self._ray = ray
        self._sources = sources
        self._checked: set[str] = set()
        self._dead: set[str] = set()
        """Dead nodes that Ray may still list; restarts have new ids."""

    def availability(self) -> dict[str, Availability]:
        """Return the available backends: those whose device a node has."""
        nodes = self.nodes()

        def state(on_gpu: bool) -> Availability:
            if any(node.usable_gpus if on_gpu else node.n_cpus for node in nodes):
                return Availability(True)
            return Availability(False, f"no node of the cluster has a {'GPU and a CPU' if on_gpu else 'CPU'}")

        return {name: state(name in ON_GPU) for name in (*BACKENDS, PLAIN)}

    def nodes(self) -> list[Node]:
        """Return the live nodes.

        Raises:
            ClusterError: A new node has other sources.
        """
        found = [
            Node(
                entry["NodeID"],
                entry["NodeManagerAddress"],
                int(entry["Resources"].get("CPU", 0)),
                int(entry["Resources"].get("GPU", 0)),
            )
            for entry in self._ray.nodes()
            if entry["Alive"] and entry["NodeID"] not in self._dead
        ]
        for node in found:
            if node.id not in self._checked:
                self._check_sources(node)
        return [node for node in found if node.id in self._checked]

    def _check_sources(self, node: Node) -> None:
        task = self._on(node, _sources_there(), num_cpus=0)
        try:
            there = self._ray.get(task.remote())
        except self._ray.exceptions.RayError as error:
            log.warning("--ray: node %s is left out, it does not say which sources it has: %s", node.address, error)
            return
        if there != self._sources:
            raise _other_sources(there, self._sources, f"node {node.address}")
        self._checked.add(node.id)

    def measure(self, todo: Sequence[Job], context: Context) -> Iterator[Record]:
        """Yield each point's record; retry points whose worker or node died.

        Raises:
            ClusterError: A node has other sources.
        """
        tasks, nodes = [Task(job) for job in todo], self.nodes()
        waiting = [task for task in tasks if any(node.could_run(task) for node in nodes)]
        for task in tasks:
            if task not in waiting:
                yield _unmeasured("skipped", task, context, f"no node of the cluster has {task.n_gpus} GPUs")
        running: dict[Any, Task] = {}
        try:
            while waiting or running:
                waiting = self._send_out(waiting, running, context)
                if not running:
                    for task in waiting:
                        yield _unmeasured("failed", task, context, "all nodes that could run it died")
                    return
                done, _ = self._ray.wait(list(running), timeout=REFRESH_S)
                for reference in done:
                    task = running.pop(reference)
                    record = self._come_back(reference, task, context)
                    if record is None:
                        waiting.append(task)
                    else:
                        yield record
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _send_out(self, waiting: Sequence[Task], running: dict[Any, Task], context: Context) -> list[Task]:
        """Start points that fit; return the others."""
        nodes, left = self.nodes(), []
        for task in waiting:
            there = {node: [each for each in running.values() if each.node == node] for node in nodes}
            free = [node for node in nodes if node.has_room_for(task, there[node])]
            if not free:
                left.append(task)
                continue
            running_on = {node: len(tasks) for node, tasks in there.items()}
            task.node = min(free, key=running_on.__getitem__)
            sent = self._on(task.node, measure_there, **task.node.share(task))
            task.started = StartTime()
            running[sent.remote(task.job, context, self._sources)] = task
        return left

    def _on(self, node: Node, function: Callable[..., Any], **share: int) -> Any:
        """Bind a function to a node; the driver retries elsewhere."""
        place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        # One call a process: it frees all GPU memory, and an error cannot break the next point.
        return self._ray.remote(max_retries=0, max_calls=1, scheduling_strategy=place, **share)(function)

    def _come_back(self, reference: Any, task: Task, context: Context) -> Record | None:
        """Return the record of a finished task; None: retry it."""
        errors = self._ray.exceptions
        try:
            record: Record = self._ray.get(reference)
        except ClusterError:
            raise
        except errors.RayTaskError as error:  # it would fail again
            return _unmeasured("failed", task, context, f"{type(error.cause).__name__}: {error.cause}")
        except errors.RayError as error:
            log.warning("lost: %s: %s", point_name(task.job.case.name, task.job.point), error)
            if task.node and isinstance(error, errors.NodeDiedError | errors.TaskUnschedulableError):
                self._dead.add(task.node.id)
            if isinstance(error, errors.TaskUnschedulableError):  # the node died before it received the point
                return None
            task.losses.append(type(error).__name__)  # its text names hosts and folders
            if len(task.losses) <= RETRIES:
                return None
            return _unmeasured("failed", task, context, f"its worker or node died {len(task.losses)} times")
        return record.model_copy(update={"notes": {**record.notes, **_losses(task)}})


def _losses(task: Task) -> dict[str, list[str]]:
    return {"lost": task.losses} if task.losses else {}


def _unmeasured(status: Status, task: Task, context: Context, why: str) -> Record:
    """Return the record of a point without result and machine."""
    reason = why + (f" ({', '.join(task.losses)})" if task.losses else "")
    seen = Measurement(notes=_losses(task), unread={"machine": "no node sent the point back"})
    nowhere, job = replace(context, machine={}), task.job
    return Record.of(job.case, job.point, nowhere, started=task.started, seen=seen, status=status, reason=reason)


def _other_sources(there: str, here: str, where: str) -> ClusterError:
    return ClusterError(
        f"--ray: every node must have the sources of this process, whose hash is {here} (got {there} on {where}); "
        "check out the same commit there, without changes, or copy the folder"
    )


# ------------------------------------------------------------------ on the node


def measure_there(job: Job, context: Context, sources: str) -> Record:
    """Run a point on this node, recording this machine and the driver's commit.

    Raises:
        ClusterError: The sources have changed.
    """
    if (found := sources_hash()) != sources:
        raise _other_sources(found, sources, "the node of a point, where they were the same before")
    there = Context.here(context.preset, context.run_id)
    return job.run(replace(there, git=context.git))


def _sources_there() -> Callable[[], str]:
    def ask() -> str:
        """Return the sources' hash; sent by value, as our package may be missing."""
        try:
            from ..core.machine import sources_hash  # noqa: PLC0415  (where it is called)
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        return sources_hash()

    return ask
