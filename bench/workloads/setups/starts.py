"""New processes of a point, and the folders of their compiled code."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[__name__.count(".")]
"""Folder of the package, which processes import from."""
CACHES: Final = {
    "WARPDRIVE_MIN_CACHE": "",
    "XDG_CACHE_HOME": "home",
    "CUDA_CACHE_PATH": "driver",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "NUMBA_CACHE_DIR": "numba",
}
"""Variables of the caches of compiled code, and their places in one folder.

The driver has its own cache of code compiled from PTX."""
BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": ""}
"""Variable that lets a process keep its bytecode, as a user's does; else each process would compile all it imports."""


def scratch_folder(owner: object, name: str) -> Path:
    """Create a folder that is removed together with its owner."""
    folder = tempfile.mkdtemp(prefix=f"warpdrive-{name}-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def cache_variables(folder: Path) -> dict[str, str]:
    """Return the environment variables that put all caches into a folder."""
    return {name: str(folder / place) for name, place in CACHES.items()}


def import_share(import_s: float, total_s: float) -> float:
    """Return the import's part of a process, s, from one that only imports.

    On a disturbed host that one may take longer; the rest is then 1 %.
    """
    return min(import_s, 0.99 * total_s)


class StartError(RuntimeError):
    """A timed process failed."""


def run_process(case: str, command: Sequence[str], caches: Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a process; return its output.

    Args:
        case: Case that the error names.
        command: Program and arguments.
        caches: Folder of all compiled code; may be missing.
        cwd: Working directory.
        variables: More environment variables.

    Raises:
        StartError: The process failed; quotes the end of its output.
    """
    from warpdrive_min.backends.cache import excerpt
    from warpdrive_min.processes import run

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    given = {**os.environ, **BYTECODE, **cache_variables(caches), "PYTHONPATH": path}
    done = run(command, cwd=cwd, env={**given, **variables})
    if done.returncode != 0:
        raise StartError(
            f"{case}: the process must end well (got exit status {done.returncode}): {excerpt(done.stderr.strip())}"
        )
    return f"{done.stdout}{done.stderr}"
