"""First import of the fork server: makes it exit with its parent.

The fork server imports torch next, which takes seconds, and checks its parent only afterwards. So this file imports
nothing of the project, which would import torch.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

_OUTER = Path(__file__).resolve().parents[2]
_PLACES = (_OUTER / "processes.py", _OUTER / "warpdrive_min" / "processes.py")  # in an install, and in a checkout
_PROCESSES = runpy.run_path(str(next(each for each in _PLACES if each.exists())))
_PROCESSES["end_with_parent"](int(os.environ.get("BENCH_STARTER", os.getppid())))
