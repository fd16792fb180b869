"""Fixtures of the tests of training."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch

from tests.training import builders
from warpdrive_min.training.models.parts import ModelFactory


@pytest.fixture(autouse=True)
def _closed_trainers():
    """Close the trainers that a test has made."""
    yield
    while builders.MADE:
        builders.MADE.pop().graceful_close()


@pytest.fixture(autouse=True)
def _alone(_one_thread):
    """Train on one thread; other tests request more."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Mend Triton's interpreter (3.6): loops and float32 products.

    Row counts are arrays of one there, and NumPy counts by 0-d arrays only. Every product of float32 counts as exact.
    """
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    patch, builder = interpreter._patch_lang_tensor, interpreter.interpreter_builder
    products = (*builder.options.allowed_dot_input_precisions, "bf16x6")

    def patch_tensor(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_tensor)
    monkeypatch.setattr(builder, "options", replace(builder.options, allowed_dot_input_precisions=products))


@pytest.fixture
def factory(monkeypatch):
    """Yield the table of models, restored after the test."""
    monkeypatch.setattr(ModelFactory, "_classes", dict(ModelFactory._classes))
    return ModelFactory
