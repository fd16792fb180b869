"""Puts WarpDrive's module paths in place before the tests of this folder are imported."""

from __future__ import annotations

import pytest

import warpdrive_min.compat  # noqa: F401
from warpdrive_min import EnvironmentRegistrar


@pytest.fixture(autouse=True)
def _alone(_one_thread):
    """Run on one thread: what threads share is tested with the kernels."""


@pytest.fixture(autouse=True)
def registrar(monkeypatch: pytest.MonkeyPatch) -> EnvironmentRegistrar:
    """Lend the registrar, which knows users' classes and sources for one test."""
    from tests.compat.builders import registrar_of_users

    for table in ("_classes", "_sources"):
        monkeypatch.setattr(EnvironmentRegistrar, table, dict(getattr(EnvironmentRegistrar, table)))
    return registrar_of_users()
