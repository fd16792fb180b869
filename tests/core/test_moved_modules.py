"""Modules and methods by their former names."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys

import pytest

import warpdrive_min
from warpdrive_min import training
from warpdrive_min.lazy import MovedModules, renamed, renamed_attribute

MOVED = {old: new for finder in sys.meta_path if isinstance(finder, MovedModules) for old, new in finder.moved.items()}


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_names_import_with_a_warning(old, monkeypatch):
    """A former name imports the new module, with a warning."""
    new = MOVED[old]
    module = importlib.import_module(new)
    package, _, name = old.rpartition(".")
    for each in {old, package} & MOVED.keys():  # undone afterwards, so that the next import warns too
        monkeypatch.setitem(sys.modules, each, importlib.import_module(MOVED[each]))
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        assert importlib.import_module(old) is module
    assert module.__spec__.name == new
    monkeypatch.delattr(package, name, raising=False)
    monkeypatch.delitem(sys.modules, old, raising=False)


def test_modules_of_training_and_agreement_have_moved():
    """The tables have every module that was documented before."""
    assert {f"warpdrive_min.training.{name}" for name in training.MOVED} < MOVED.keys()
    assert {"warpdrive_min.consistency", "warpdrive_min.validation"} < MOVED.keys()


def test_old_package_is_an_attribute(monkeypatch):
    """`warpdrive_min.consistency` works without an import, and warns."""
    for name in ("warpdrive_min.consistency", "consistency"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    vars(warpdrive_min).pop("consistency", None)
    with pytest.warns(DeprecationWarning, match=r"warpdrive_min\.consistency is now warpdrive_min\.agreement"):
        assert warpdrive_min.consistency.EnvironmentCPUvsGPU is warpdrive_min.EnvironmentCPUvsGPU
    del warpdrive_min.consistency, sys.modules["warpdrive_min.consistency"]


def test_modules_of_training_are_attributes(monkeypatch):
    """`training.evaluation` works without a separate import, and warns."""
    monkeypatch.delitem(sys.modules, "warpdrive_min.training.evaluation", raising=False)
    vars(training).pop("evaluation", None)
    with pytest.warns(DeprecationWarning, match=r"training\.evaluation is now"):
        assert training.evaluation is importlib.import_module("warpdrive_min.training.loop.evaluation")
    vars(training).pop("evaluation", None)
    monkeypatch.delitem(sys.modules, "warpdrive_min.training.evaluation", raising=False)


@pytest.mark.parametrize("name", ["warpdrive_min.training.nothing", "warpdrive_min.validation.compare"])
def test_unknown_names_are_refused(name):
    """A moved package offers only its own modules, each once."""
    with pytest.warns(DeprecationWarning, match="is now") if "validation" in name else contextlib.nullcontext():
        sys.modules.pop("warpdrive_min.validation", None)
        with pytest.raises(ModuleNotFoundError, match=re.escape(name)):
            importlib.import_module(name)


def test_old_names_in_classes_warn():
    """The old name calls the new one, also in a subclass."""

    class Base:
        def add(self, x, *, y):
            return x + y

        plus = renamed("plus", "add")
        n = 3
        count = renamed_attribute("count", "n")

    class Derived(Base):
        def add(self, x, *, y):
            return 10 * (x + y)

    with pytest.warns(DeprecationWarning, match=r"Derived\.plus is now add"):
        assert Derived().plus(1, y=2) == 30
    with pytest.warns(DeprecationWarning, match=r"Derived\.count is now n"):
        assert Derived().count == 3
    assert "add" in Derived.plus.__doc__
