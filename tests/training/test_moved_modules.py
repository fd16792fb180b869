"""Modules of training by the names that they had before."""

from __future__ import annotations

import importlib
import sys

import pytest

from warpdrive_min import training


@pytest.mark.parametrize("name", sorted(training.MOVED))
def test_old_names_import_with_a_warning(name, monkeypatch):
    old, new = f"warpdrive_min.training.{name}", f"warpdrive_min.training.{training.MOVED[name]}.{name}"
    module = importlib.import_module(new)
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        assert importlib.import_module(old) is module
    assert module.__spec__.name == new
    monkeypatch.delattr(training, name, raising=False)
    monkeypatch.delitem(sys.modules, old, raising=False)


def test_unknown_names_are_refused():
    with pytest.raises(ModuleNotFoundError, match=r"warpdrive_min\.training\.nothing"):
        importlib.import_module("warpdrive_min.training.nothing")
