"""Compatibility with WarpDrive 2.7: its modules under their own names.

After ``import warpdrive_min.compat``, ``import warp_drive...`` and ``import example_envs...`` load this project.
``python -m warpdrive_min.compat script.py arguments...`` runs a script unchanged. See `docs/compat.md` for
limits and differences.
"""

from __future__ import annotations

from warpdrive_min.compat.modules import NAMES, cast_pycuda, install

__all__ = ["NAMES", "install"]

install()
cast_pycuda()
