"""Console scripts `warpdrive-min` and `warpdrive-bench`."""

from __future__ import annotations

import runpy
from importlib.util import find_spec


def main() -> None:
    """Run `python -m warpdrive_min`."""
    _run("warpdrive_min")


def bench() -> None:
    """Run `python -m warpdrive_min.bench`; in a checkout, `python -m bench`."""
    _run("warpdrive_min.bench" if find_spec("warpdrive_min.bench") else "bench")


def _run(package: str) -> None:
    runpy.run_module(package, run_name="__main__", alter_sys=True)
