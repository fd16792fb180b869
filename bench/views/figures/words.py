"""How backends, environments, commits and numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench.record import Record

BACKEND_NAME: Final = {"cpu": "NumPy", "host": "C++", "numba": "Numba-CUDA", "pycuda": "CUDA C (PyCUDA)"}
ENV_NAME: Final = {
    "cartpole": "CartPole",
    "mountain_car": "MountainCar",
    "continuous_mountain_car": "Continuous MountainCar",
    "acrobot": "Acrobot",
    "pendulum": "Pendulum",
    "tag_gridworld": "Tag GridWorld",
    "tag_continuous": "Tag Continuous",
}
MEDIANS: Final = "Medians with their 95 % intervals."


def backend_label(record: Record) -> str:
    """Name the backend, on a CPU with its threads."""
    name = BACKEND_NAME[str(record.point["backend"])]
    return name if record.threads is None else f"{name} ({counted(record.threads, 'thread')})"


def commit_label(record: Record) -> str:
    """Name the commit that was measured, and whether it had changes."""
    sha = record.git.get("sha")
    return (str(sha)[:7] if sha else "unknown") + (" + changes" if record.git.get("dirty") else "")


def notes(records: Iterable[Record]) -> list[str]:
    """Return what whoever measured had to say about it."""
    return sorted({str(record.notes["note"]) for record in records if "note" in record.notes})


def said(record: Record) -> str:
    """Name the size of a point and its run."""
    sizes = [size(axis, int(value)) for axis, value in record.point.items() if axis.startswith("n_")]
    return f"{', '.join(sizes)}; {record.run_id}"


def times(ratio: float) -> str:
    """Write a number with three digits, and those before the point in full."""
    return f"{float(f'{ratio:.3g}'):,g}"


def counted(count: int, one: str, several: str = "") -> str:
    """Write a number of things."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def size(axis: str, count: int) -> str:
    """Write how many there are of what an axis such as ``n_envs`` counts."""
    things = axis.removeprefix("n_").replace("envs", "environments")
    return counted(count, things.removesuffix("s"), things)


def environment(env: str, agents: int = 1, envs: int | None = None) -> str:
    """Name an environment, its agents if there are several, and how many of it there are."""
    parts = [ENV_NAME.get(env, env)]
    parts += [counted(agents, "agent")] if agents > 1 else []
    parts += [] if envs is None else [counted(envs, "environment")]
    return ", ".join(parts)


OTHER_WAYS: Final = ("saved arrays",)
"""Implementations of ours beside "ours"; all others are others'."""


def sizes(point: Mapping[str, Any]) -> str:
    """Name a point by its environment, how we do the work if in another way, and all axes but who does it."""
    axes = {axis: value for axis, value in point.items() if axis not in ("backend", "implementation")}
    words = [environment(str(axes.pop("env")))] if "env" in axes else []
    words += [way for way in OTHER_WAYS if way == point.get("implementation")]
    return ", ".join(words + [_value(axis, value) for axis, value in axes.items()])


def _value(axis: str, value: Any) -> str:
    if type(value) is bool:
        return axis if value else f"not {axis}"
    return size(axis, value) if type(value) is int else str(value).replace("_", " ")


def quantity(metric: str) -> str:
    """Name what a metric such as ``env_steps_per_s`` or ``total_s`` counts, with its unit."""
    words = metric.replace("_", " ").replace("env", "environment")
    rate = words.removesuffix(" per s")
    return f"{rate} per second" if rate != words else f"{words.removesuffix(' s')}, s"
