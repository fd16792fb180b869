"""CPU cores that this process may use, and their load."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MOST_LOAD: Final = 1.25
"""Load per core above which a machine is busy; one program alone causes about 1."""


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """Return the load average (1 min) per usable core."""
    return os.getloadavg()[0] / n_cores()


def busy(load: float | None, n: int) -> str:
    """Return a warning that a machine was busy; empty if not, or if unknown.

    Args:
        load: Load average per core.
        n: Number of cores.
    """
    if load is None or load <= MOST_LOAD:
        return ""
    return f"this machine is busy (load {load * n:.0f} on {n} cores): numbers unreliable"


def shared(n_ranks: int, n: int) -> str:
    """Return a warning that ranks are more than the cores they may use; empty if not."""
    return f"{n_ranks:,} ranks share {n:,} CPU cores; with {n:,} each has its own" if n_ranks > n else ""


@functools.cache
def limit(root: Path = Path("/")) -> float | None:
    """Return the limit of the process's control groups, in cores; None if absent.

    Args:
        root: Folder with `proc` and `sys`.

    Raises:
        ValueError: A file of a control group is malformed.
    """
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[float]:
    """Yield the limits of the process's groups and their parents, versions 1 and 2."""
    try:
        groups = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        groups = []
    mounts = {"": root / "sys/fs/cgroup", "cpu": root / "sys/fs/cgroup/cpu"}
    for controllers, mount in mounts.items():
        (own, *_) = [*(path for names, path in groups if controllers in names.split(",")), "/"]
        group = mount / own.lstrip("/")
        for folder in (group, *(each for each in group.parents if each.is_relative_to(mount))):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            try:
                quota, period = " ".join((folder / name).read_text() for name in names).split()
            except OSError:  # no limit, or a group that is not visible in a container
                continue
            if quota not in ("max", "-1"):
                yield int(quota) / int(period)
