"""A fake point with a fake clock: what the harness does is tested without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bench import sweep
from bench.case import Case, Correctness, Point, Prepared
from bench.record import Record


def in_this_process(todo: Sequence[sweep.Job], context: sweep.Context) -> Iterator[Record]:
    """Run points where they are fakes, which another process would not find."""
    for job in todo:
        yield sweep.run_point(job, context)


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


def prepared(run: Callable[[], None] = lambda: None, **changes: Any) -> Prepared:
    """Return a point that is right, whose run does 1,000 environment steps of 10 agents."""
    fields: dict[str, Any] = {
        "run": run,
        "synchronize": lambda: None,
        "work": {"env_steps": 1000, "agent_steps": 10_000},
        "check": lambda: Correctness(True, 1e-7, "by hand"),
        "mode": "eager",
        "device": torch.device("cpu"),
        "threads": 1,
        "bytes_per_run": 0,
        "ops_per_run": 0,
    }
    return Prepared(**{**fields, **changes})


def case(setup: Callable[[Point], Prepared], n_points: int = 3) -> Case:
    """Return a case with points 0 to ``n_points - 1``."""
    points = [{"env": "fake", "backend": "cpu", "n_envs": 10, "n_agents": 1, "index": i} for i in range(n_points)]
    return Case(name="fake", summary="a fake", scope="env", version=1, points=lambda preset: points, setup=setup)


def cycle(values: list[float]) -> Callable[[int], float]:
    """Return the length of each run from a list, over and over."""

    def endless() -> Iterator[float]:
        while True:
            yield from values

    lengths = endless()
    return lambda run: next(lengths)
