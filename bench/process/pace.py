"""Rough durations of long work, before it starts and while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean duration of each item, and of the start before them, s."""

    each_s: float
    start_s: float = 0.0

    def seconds(self, n: int) -> float:
        """Return the duration of n items; none take no time."""
        return self.start_s + n * self.each_s if n else 0.0

    def left(self, elapsed_s: float, n_done: int, n: int) -> str:
        """Return the remaining time as text, by that of the finished items."""
        done_s = self.seconds(n_done)
        return f"about {elapsed_s / done_s * (self.seconds(n) - done_s):.0f} s left"


def duration(seconds: float) -> str:
    """Return a rough duration with its unit."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {seconds:.0f} s"
