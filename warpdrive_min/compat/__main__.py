"""``python -m warpdrive_min.compat script.py arguments...``: run a script that was written for WarpDrive."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import warpdrive_min.compat  # noqa: F401  (installs WarpDrive's module paths)
from warpdrive_min.errors import ConfigError


def main() -> None:
    """Run the script of the command line as Python would, with WarpDrive's module paths in place.

    Raises:
        ConfigError: No script is given, or there is no such file.
    """
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        got = sys.argv[1] if len(sys.argv) > 1 else "nothing"
        raise ConfigError(
            f"warpdrive_min.compat: needs the path of a Python script (got {got}); "
            "python -m warpdrive_min.compat script.py arguments..."
        )
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
