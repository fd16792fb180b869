"""Training from a seed to a threshold or to the end: `learn`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ..core.measure import Once
from ..core.point import Facts, Point
from .points import ROWS, point_of
from .shared import default_mode, shipped_envs

# ------------------------------------------------------------------ tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Training task."""

    env: str
    algorithm: str
    threshold: float
    """Mean episodic return that counts as learned."""
    learner: str = "shared"
    """Policy that is evaluated.

    It is trained until it reaches the threshold; other policies stay at their initial weights, close to uniformly
    random. In a run to the end, all policies train that the run config names."""

    @property
    def n_envs(self) -> int:
        """Environments of the shipped run config."""
        return shipped_envs(self.env, self.algorithm)


TASKS: Final = [Task(**each) for each in ROWS["tasks"]]
"""Tasks of runs that stop at the threshold."""
WHOLE_TASKS: Final = [Task(**each) for each in ROWS["whole_tasks"]]
"""Tasks of runs to the end: every run config."""


def task_point(task: Task, backend: str, seed: int, n_envs: int | None = None) -> dict[str, Any]:
    """Return a task's point, by default with its run config's environments."""
    size = {"n_envs": n_envs} if n_envs else {}
    return dict(point_of(**asdict(task), **size, backend=backend, seed=seed))


# ------------------------------------------------------------------ set-up


def learn(point: Point) -> Once:
    """Train until the policy reaches the threshold, or to the end."""
    from .setups.learning import learning_of_members, learning_of_policies
    from .setups.timing import available, torch_threads

    backend = available(point["backend"])
    run, check = (learning_of_members if "population" in point else learning_of_policies)(point)
    return Once(
        run=run,
        check=check,
        facts=Facts(mode=default_mode(backend.name), device=backend.device, threads=torch_threads(backend)),
    )
