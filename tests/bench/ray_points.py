"""Points for a Ray cluster that report, meet, wait or die."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.core.measure import Timed
from bench.core.point import Point
from tests.bench.builders import timed

PATIENCE_S = 60.0


def wait_for(what: Callable[[], bool], why: str) -> None:
    """Return as soon as something is true.

    Raises:
        TimeoutError: It does not become so.
    """
    end = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(why)
        time.sleep(0.02)


def some_work() -> None:
    """Work for a moment."""
    sum(range(3000))


def count(folder: Path, point: Point) -> int:
    """Count a point's attempts; return their number."""
    file = folder / f"tried-{point['index']}"
    with file.open("a") as tries:
        tries.write("x")
    return len(file.read_text())


def node_id() -> str:
    """Return the node of this process."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


@contextlib.contextmanager
def held(folder: Path, *names: str) -> Iterator[None]:
    """Lock files exclusively."""
    for name in names:
        (folder / name).touch(exist_ok=False)
    try:
        yield
    finally:
        for name in names:
            (folder / name).unlink()


def exclusive(folder: Path, point: Point) -> Timed:
    """Hold one GPU or all.

    Points 0 and 1 continue once both have started.
    """
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    with held(folder, *([f"gpu-{gpu}"] if point["backend"] == "pycuda" else ["gpu-0", "gpu-1"])):
        (folder / f"met-{point['index']}").touch()
        if point["index"] in (0, 1):
            wait_for(lambda: all((folder / f"met-{each}").exists() for each in (0, 1)), "nobody ran beside this point")
        time.sleep(0.1)
    return timed(some_work, notes={"gpu": gpu})


def deadly(folder: Path, point: Point) -> Timed:
    """End the process: point 0 once, point 1 always."""
    if count(folder, point) == 1 or point["index"] == 1:
        os._exit(1)
    return timed(some_work)


def stuck(folder: Path, victim: str, point: Point) -> Timed:
    """Never end on one of the nodes."""
    if node_id() == victim:
        (folder / "there").touch()
        wait_for(lambda: False, "the node should have died")
    return timed(some_work)


def gated(folder: Path, point: Point) -> Timed:
    """Let point 1 wait for a file."""
    count(folder, point)
    if point["index"] == 1:
        wait_for((folder / "go").exists, "nobody opened the gate")
    return timed(some_work)
