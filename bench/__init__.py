"""The benchmark suite: one measurement core with many views."""

import sys

if sys.argv[:1] == ["-m"]:  # a command starts: this handles its signals before it imports torch
    import warpdrive_min  # noqa: F401
