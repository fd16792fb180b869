"""Skips tests of Triton's kernels where it is not installed; without a GPU `conftest` has them interpreted."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
