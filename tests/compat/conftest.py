"""Puts WarpDrive's module paths in place before the tests of this folder are imported."""

import warpdrive_min.compat  # noqa: F401
