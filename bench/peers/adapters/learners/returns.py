"""Episode returns of a training run that stops at a mean return."""

from __future__ import annotations

from typing import Any

from ..work import Point

N_EPISODES = 100
"""Latest episodes of a mean return, as in Gymnasium's definition of solved."""


def total_steps(point: Point) -> int:
    """Return the maximum of env steps: a twentieth in an untimed run.

    That only loads files.
    """
    steps: int = point["total_steps"]
    return steps if point["is_timed"] else steps // 20


class Returns:
    """Returns of ended episodes, with the number of env steps at their end.

    Args:
        point: With ``row_steps``, the env steps of a row, and ``threshold``.
    """

    def __init__(self, point: Point) -> None:
        self._point = point
        self._ended: list[tuple[int, float]] = []
        self.env_steps = 0
        """Env steps so far."""

    def add(self, env_steps: int, returns: list[float]) -> bool:
        """Add a step's episodes; return True if the mean return is at the threshold."""
        self.env_steps = env_steps
        self._ended += [(env_steps, each) for each in returns]
        latest = [each for _, each in self._ended[-N_EPISODES:]]
        return len(latest) == N_EPISODES and sum(latest) >= self._point["threshold"] * N_EPISODES

    def report(self) -> dict[str, Any]:
        """Return the env steps, and rows of steps, ended episodes and their mean return."""
        last, size = self.env_steps, self._point["row_steps"]
        rows = list[tuple[int, int, float | None]]()
        for end in [*range(size, last, size), last]:
            start = rows[-1][0] if rows else 0
            returns = [found for steps, found in self._ended if start < steps <= end]
            rows.append((end, len(returns), sum(returns) / len(returns) if returns else None))
        return {"env_steps": last, "rows": rows, "compile_s": 0.0, "programs": 0, "mode": "eager"}
