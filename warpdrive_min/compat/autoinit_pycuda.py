"""WarpDrive's ``autoinit_pycuda``.

Importing it pushes the current device's primary context for the whole process.
"""

from __future__ import annotations

import atexit

from warpdrive_min.compat.functions import make_current_context

__all__ = ["context", "device"]

context = make_current_context()
device = context.get_device()
atexit.register(context.pop)
