"""Ties the process that imports it to its parent: first of all in the one that copies of ours come from.

That one imports torch, which takes seconds, and looks only then whether its parent is there. So nothing of ours is
imported here, which would bring torch along, too.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

_OUTER = Path(__file__).resolve().parents[2]
_PLACES = (_OUTER / "processes.py", _OUTER / "warpdrive_min" / "processes.py")  # in an install, and in a checkout
_PROCESSES = runpy.run_path(str(next(each for each in _PLACES if each.exists())))
_PROCESSES["end_with_parent"](int(os.environ.get("BENCH_STARTER", os.getppid())))
