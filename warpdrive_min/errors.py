"""The errors of the project, one class for each border at which something can be wrong."""

from __future__ import annotations

from collections.abc import Iterable


class WarpDriveError(Exception):
    """Base of every error that the project raises on purpose."""


class ConfigError(WarpDriveError, ValueError):
    """A setting breaks a rule."""


class DataError(WarpDriveError, ValueError):
    """An array, scalar or name given to a feed or a data manager breaks a rule."""


class BindingError(WarpDriveError, TypeError):
    """A kernel's parameter and the data that should be bound to it disagree."""


class BackendUnavailable(WarpDriveError, RuntimeError):  # noqa: N818  (a state, not a mistake)
    """A backend is unknown or cannot run on this machine."""


class CompileError(WarpDriveError, RuntimeError):
    """A kernel source does not compile; the message ends with what the compiler said."""


class DeviceMemoryError(WarpDriveError, MemoryError):
    """The device has too little free memory for what was asked."""


class ActionError(WarpDriveError, ValueError):
    """An action lies outside its space (checked in debug mode)."""


class TrainingError(WarpDriveError, ArithmeticError):
    """Training went wrong: a number is not finite, or explodes."""


class CheckpointError(WarpDriveError, ValueError):
    """A checkpoint is missing, damaged, of another release, or of another run."""


def known(names: Iterable[str]) -> str:
    """List the known names, for errors about an unknown one."""
    return ", ".join(sorted(names)) or "none"
