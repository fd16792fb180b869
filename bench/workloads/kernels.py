"""Kernels: `sampler`, `reset`, `return_scan`, `shuffle`, `record`, `launch`."""

from __future__ import annotations

from functools import partial

from ..core.measure import Timed
from ..core.point import Point


def _kernel(name: str, noun: str, point: Point) -> Timed:
    """Set up a `setups.kernels` kernel, called repeatedly."""
    from .setups import kernels

    return kernels.measured(getattr(kernels, name), point, noun)


sampler = partial(_kernel, "sampler", "draws")
reset, return_scan, shuffle, record, launch = (
    partial(_kernel, name, "launched") for name in ("reset", "return_scan", "shuffle", "record", "launch")
)
