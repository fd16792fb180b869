"""Install WarpDrive's module paths before this folder's tests are imported."""

from __future__ import annotations

import pytest

import warpdrive_min.compat  # noqa: F401
from warpdrive_min import EnvironmentRegistrar


@pytest.fixture(autouse=True)
def _alone(_one_thread):
    """Run on one thread: kernel tests cover shared work."""


@pytest.fixture(autouse=True)
def registrar(monkeypatch: pytest.MonkeyPatch) -> EnvironmentRegistrar:
    """Yield the registrar with users' classes and sources, for one test."""
    from tests.compat.builders import registrar_of_users

    for table in ("_classes", "_sources"):
        monkeypatch.setattr(EnvironmentRegistrar, table, dict(getattr(EnvironmentRegistrar, table)))
    return registrar_of_users()
