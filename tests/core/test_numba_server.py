"""Fork server that compiles Numba kernels."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed")

ROOT = Path(__file__).parents[2]
KERNELS = """
import os
from numba import cuda
from numba.cuda import dispatcher
from tests.core.numba_cache_process import Compiled
from warpdrive_min.backends import numba_cache

def build(c):
    if c.N < 0:
        os.kill(os.getpid(), 9)
    if c.N == 0:
        raise ValueError("no such kernel")
    dispatcher._Kernel, numba_cache._libraries = Compiled, list

    @cuda.jit
    def kernel(x):
        x[0] = c.N

    return {"kernel": kernel}
"""


def test_jobs_that_end_in_any_way_are_waited_for(tmp_path):
    """Two kernels are cached; one fails and one is killed.

    The package of the kernels is not imported, as its other modules may need torch.
    """
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the package is not needed')\n")
    (package / "kernels.py").write_text(KERNELS)
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")},
        "PYTHONPATH": str(ROOT),
        "WARPDRIVE_MIN_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "tests.core.numba_server_process", str(tmp_path), "1", "0", "-1", "2"]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "False"]
