"""A fake point with a fake clock: what the harness does is tested without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bench.case import Case, Check, Facts, Job, Point
from bench.measure import Stopwatch, Timed, run_point
from bench.record import Context, Record


def in_this_process(todo: Sequence[Job], context: Context) -> Iterator[Record]:
    """Run points where they are fakes, which another process would not find."""
    for job in todo:
        yield run_point(job, context)


class FakeWatch:
    """A stopwatch that takes the length of each run from an iterator, ns."""

    def __init__(self, run_ns: Callable[[int], float], device_share: float | None = None) -> None:
        self.runs = 0
        self.now = 0.0
        self._run_ns = run_ns
        self._device_share = device_share

    def run(self) -> None:
        """Let one run's time pass."""
        self.now += self._run_ns(self.runs)
        self.runs += 1

    def time(self, block: Callable[[], None]) -> tuple[int, int | None]:
        """Time a block by the fake clock."""
        start = self.now
        block()
        wall = round(self.now - start)
        return wall, None if self._device_share is None else round(wall * self._device_share)


def timed(
    run: Callable[[], None] = lambda: None,
    *,
    check: Callable[[], Check] = lambda: Check(True, 1e-7, "by hand"),
    synchronize: Callable[[], None] = lambda: None,
    stopwatch: Stopwatch | None = None,
    **facts: Any,
) -> Timed:
    """Return a point that is right, whose run does 1,000 environment steps of 10 agents."""
    plain = {"mode": "eager", "device": torch.device("cpu"), "threads": 1}
    work = {"work": {"env_steps": 1000, "agent_steps": 10_000}}
    return Timed(
        run=run, synchronize=synchronize, check=check, stopwatch=stopwatch, facts=Facts(**{**plain, **work, **facts})
    )


def case(setup: Callable[[Point], Any], n_points: int = 3, **changes: Any) -> Case:
    """Return a case with points 0 to ``n_points - 1``."""
    points = [{"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": i} for i in range(n_points)]
    fields: dict[str, Any] = {"name": "fake", "title": "a fake", "scope": "env", "version": 1, "workload": Timed}
    return Case(**{**fields, "points": lambda preset: points, "setup": setup, **changes})


def cycle(values: list[float]) -> Callable[[int], float]:
    """Return the length of each run from a list, over and over."""

    def endless() -> Iterator[float]:
        while True:
            yield from values

    lengths = endless()
    return lambda run: next(lengths)
