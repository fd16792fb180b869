"""Progress line of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console  # noqa: TID251  (a caller's)

from warpdrive_min import terminal
from warpdrive_min.lazy import LazyModule
from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, STEPS_PER_S, Row

if TYPE_CHECKING:
    from rich import progress
else:  # only for a terminal
    progress = LazyModule("rich.progress", globals(), "progress")

LINES: Final = 20
"""Printed lines of a run, about."""
EARLY_S: Final = 5.0
"""Time after which the first iteration without a row is printed, s."""
LONG_S: Final = 1800.0
"""Time left above which advice is printed, s."""
A_CENTURY_S: Final = 100 * 365.25 * 24 * 3600


class ProgressLine:
    """Progress display: iterations, speed, each policy's mean return and time left.

    Use it in a ``with`` statement. In a terminal it is a bar that each `update` redraws. Elsewhere, as in the log of a
    job, it prints about `LINES` lines: the first row, the last one, and others at equal distances; where rows are
    rarer, also iterations without one.

    Args:
        n_iterations: Iterations at the end of the run.
        start: Iterations before: those of the checkpoint to resume from.
        verbose: False: print nothing.
        console: Output; None: standard output.
        clock: Clock, s.
        advice: Printed once, after the time left, if that is more than `LONG_S` some seconds after the start.
    """

    def __init__(
        self,
        n_iterations: int,
        start: int = 0,
        verbose: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        advice: str = "",
    ) -> None:
        self._n_iterations, self._start, self._verbose = n_iterations, start, verbose
        self._console, self._clock, self._advice = console or terminal.Console(), clock, advice
        self._started_s = clock()
        self._first: tuple[int, float] | None = None
        """Iteration and time, s, of the first display; the start and compilation are before it."""
        self._next = start
        """Iteration from which a row is printed."""
        self._every = math.ceil((n_iterations - start) / LINES)
        self._has_estimate = False
        """True if a line was printed after `EARLY_S`."""
        self._metrics: list[str] = []
        """Parts of the latest row's line."""
        self._unprinted = ""
        """Line of the latest row, if it was not printed."""
        self._bar: progress.Progress | None = None
        if verbose and self._console.is_terminal:
            self._bar = progress.Progress(
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.description}", markup=False),
                console=self._console,
            )
            self._task = self._bar.add_task("starting", total=n_iterations, completed=start)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._print(self._unprinted)

    def update(self, row: Row) -> None:
        """Display a row of metrics."""
        iteration, now_s = int(row["iteration"]), self._clock()
        parts = [f"{row[STEPS_PER_S]:,.0f} env steps/s"] if STEPS_PER_S in row else []
        returns = [
            f"{name.removesuffix(f'/{EPISODIC_RETURN}')} {value:.4g}"
            for name, value in row.items()
            if name.endswith(f"/{EPISODIC_RETURN}") and math.isfinite(value)
        ]
        if returns:
            parts.append(f"mean return by policy (higher is better): {', '.join(returns)}")
        self._metrics = parts
        self._unprinted = self._line(iteration, now_s, parts)
        if iteration >= self._next:
            self._print_now(self._unprinted, iteration, now_s)
        self._advise(iteration, now_s)

    def advance(self, iteration: int) -> None:
        """Display a finished iteration without a row, which its device must have run."""
        now_s = self._clock()
        line = self._line(iteration, now_s, [])
        is_early = not self._has_estimate and now_s - self._started_s >= EARLY_S
        if is_early or iteration >= self._next + self._every - 1:  # else a row is soon due
            self._print_now(self._unprinted or line, iteration, now_s)
        self._advise(iteration, now_s)

    def _advise(self, iteration: int, now_s: float) -> None:
        """Print the advice if the run is long, by the first estimate that is no bound."""
        is_bound = self._first is None or self._first[0] == iteration
        if self._advice and self._verbose and not is_bound and now_s - self._started_s >= EARLY_S:
            if self._left_s(iteration, now_s) > LONG_S:
                self._console.print(f"{self._left(iteration, now_s)}{self._advice}", soft_wrap=True, highlight=False)
            self._advice = ""

    def _line(self, iteration: int, now_s: float, parts: Sequence[str]) -> str:
        """Return the line of an iteration, and redraw the bar."""
        left = self._left(iteration, now_s)
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, description="  ".join([*self._metrics, left]))
        return "  ".join([f"iteration {iteration}/{self._n_iterations}", *parts, left])

    def _print_now(self, line: str, iteration: int, now_s: float) -> None:
        self._print(line)
        self._next = iteration + self._every
        self._has_estimate |= now_s - self._started_s >= EARLY_S

    def _print(self, line: str) -> None:
        if line and self._verbose and not self._console.is_terminal:
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)
        self._unprinted = ""

    def _left(self, iteration: int, now_s: float) -> str:
        """Return the time left at the mean speed since the first display, as h:mm:ss.

        At the first one it is a bound.
        """
        left_s = self._left_s(iteration, now_s)
        if math.isnan(left_s):
            return "unknown time left"
        left = str(timedelta(seconds=round(left_s))) if left_s < A_CENTURY_S else "over a century"
        return f"at most {left} left" if left_s and self._first == (iteration, now_s) else f"{left} left"

    def _left_s(self, iteration: int, now_s: float) -> float:
        """Return the time left, s; NaN before the first iteration."""
        self._first = self._first or (iteration, now_s)
        is_first = self._first[0] == iteration
        before, since_s = (self._start, self._started_s) if is_first else self._first
        done = iteration - before
        return (now_s - since_s) / done * (self._n_iterations - iteration) if done > 0 else math.nan
