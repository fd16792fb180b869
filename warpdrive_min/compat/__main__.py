"""Runner of WarpDrive scripts.

Usage: ``python -m warpdrive_min.compat [--host] script.py arguments...``
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import warpdrive_min.compat  # noqa: F401  (installs WarpDrive's module paths)
from warpdrive_min.compat.modules import COMPAT_VARIABLE, PYCUDA_VARIABLE, cast_pycuda
from warpdrive_min.compat.project import checkout_around


def main() -> None:
    """Run a script as Python would, with WarpDrive's module paths installed.

    ``-m module`` runs a module instead. ``--host`` before either runs code for `pycuda` on `host`, without a GPU. In a
    checkout of WarpDrive its top folder is on the path: the script finds its own `example_envs` and data, and our
    package replaces its `warp_drive`.

    A missing script or file prints one line and exits with code 2.
    """
    os.environ[COMPAT_VARIABLE] = "replace"  # for processes spawned by the script
    del sys.argv[0]
    if sys.argv[:1] == ["--host"]:
        os.environ[PYCUDA_VARIABLE] = "host"
        cast_pycuda()
        del sys.argv[0]
    is_module = sys.argv[:1] == ["-m"] and len(sys.argv) > 1
    if not is_module and not (sys.argv and Path(sys.argv[0]).is_file()):
        got = sys.argv[0] if sys.argv else "nothing"
        print(
            f"warpdrive_min.compat: needs the path of a Python script (got {got}); "
            "python -m warpdrive_min.compat script.py arguments...",
            file=sys.stderr,
        )
        raise SystemExit(2)
    folder = Path.cwd() if is_module else Path(sys.argv[0]).resolve().parent
    sys.path[0] = str(folder)
    root = checkout_around(folder) or checkout_around(Path.cwd())
    if root is not None:
        sys.path.insert(1, str(root))
    if is_module:
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
