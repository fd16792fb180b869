"""The benchmark suite: one measurement core with many views."""

import sys
from typing import Any

if sys.argv[:1] == ["-m"]:  # a command starts: this handles its signals before it imports torch
    import warpdrive_min  # noqa: F401


def __getattr__(name: str) -> Any:
    """Import `records` on first use; it needs pandas."""
    if name != "records":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .show.frames import records  # noqa: PLC0415  (lazy: measuring must not import pandas)

    return records
