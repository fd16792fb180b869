"""Console scripts `warpdrive-min` and `warpdrive-bench`."""

from __future__ import annotations

import runpy

from warpdrive_min.packages import bench_package


def main() -> None:
    """Run `python -m warpdrive_min`."""
    _run("warpdrive_min")


def bench() -> None:
    """Run `python -m warpdrive_min.bench`; in a checkout, `python -m bench`."""
    _run(bench_package())


def _run(package: str) -> None:
    runpy.run_module(package, run_name="__main__", alter_sys=True)
