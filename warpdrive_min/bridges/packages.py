"""Error for an optional package that a bridge needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from warpdrive_min.errors import WarpDriveError
from warpdrive_min.packages import install_command


class MissingPackage(WarpDriveError, ImportError):  # noqa: N818  (a state, not a mistake)
    """Optional package that is not installed."""


@contextlib.contextmanager
def needed_by(bridge: str, package: str) -> Iterator[None]:
    """Import a bridge's package in this context.

    Raises:
        MissingPackage: The package or a dependency is not installed; names it and how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{bridge}: needs the package {package} (got {error}); {install_command('bridges')}",
            name=error.name,
        ) from error
