"""Small environments and kernels for the core's tests."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent

FILL = {
    "numpy": "tests.environments.fill_numpy",
    "cuda_c": FOLDER / "fill.cu",
    "numba": "tests.environments.fill_numba",
}
"""Kernel ``fill``: add ``scale * (agents before) + offset`` to ``target``.

Shape: ``(n_envs, n_agents)``.
"""
