"""Deprecated alias of `bench.core.nvml`."""

import warnings

from .core.nvml import Sampler

__all__ = ["Sampler"]

warnings.warn("bench.nvml moved to bench.core.nvml", DeprecationWarning, stacklevel=2)
