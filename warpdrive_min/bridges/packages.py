"""The error for a package that a bridge leads to and that is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from warpdrive_min.errors import WarpDriveError


class MissingPackage(WarpDriveError, ImportError):  # noqa: N818  (a state, not a mistake)
    """An optional package is not installed."""


@contextlib.contextmanager
def needed_by(bridge: str, package: str) -> Iterator[None]:
    """Import a package in this context.

    Raises:
        MissingPackage: It, or something that it needs, is not installed; says what is missing and how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f'{bridge}: needs the package {package} (got {error}); pip install "warpdrive-min[bridges]"',
            name=error.name,
        ) from error
