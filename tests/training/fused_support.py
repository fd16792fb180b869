"""Perceptrons for tests of Triton's kernels; skipped without Triton.

Without a GPU `conftest` has the kernels interpreted.
"""

from __future__ import annotations

import importlib.util
from itertools import pairwise

import pytest
import torch

from tests.training.builders import need_interpreter
from tests.training.models_support import in_torch
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.facts import Facts, Layers

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fits(rule, n_features, hidden, n_outputs, precision="fp32") -> bool:
    """Return true if a network satisfies the kernels' rule."""
    facts = Facts(network=Layers(n_features, hidden, n_outputs), precision=precision)
    return rule.why_not(facts) is None


def interpret(monkeypatch) -> None:
    """Train through interpreted Triton kernels, or skip the test."""
    need_interpreter()
    monkeypatch.setattr(available, "why_no_cpp", lambda: "needs a C++ compiler")
    monkeypatch.setattr(available, "why_no_triton", lambda device: None)


def rows(n_rows, n_columns, seed=2) -> torch.Tensor:
    """Return inputs, or gradients of outputs."""
    return torch.randn(n_rows, n_columns, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def network(*sizes) -> tuple[torch.Tensor, ...]:
    """Return weights and biases of layers whose outputs are about 1."""
    generator = torch.Generator().manual_seed(1)
    weights = []
    for before, after in pairwise(sizes):
        weights += [torch.randn(after, before, generator=generator) / before**0.5]
        weights += [torch.randn(after, generator=generator)]
    return tuple(weight.to(DEVICE) for weight in weights)


def gradients(evaluate, x, weights, d_out, dtype=torch.float32, *, needs_x=True) -> list[torch.Tensor]:
    """Return outputs, then gradients of weights and inputs."""
    x, d_out, *weights = (each.to(dtype, copy=True) for each in (x, d_out, *weights))
    leaves = [weight.requires_grad_() for weight in weights] + ([x.requires_grad_()] if needs_x else [])
    out = evaluate(x, tuple(weights))
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out)]


def errors(evaluate, x, weights, activation, d_out, **given) -> list[float]:
    """Return relative errors of outputs and gradients from float64 torch."""
    got = gradients(evaluate, x, weights, d_out, **given)
    want = gradients(lambda x, w: in_torch(x, w, activation), x, weights, d_out, torch.float64, **given)
    assert [(each.dtype, each.shape) for each in got] == [(torch.float32, each.shape) for each in want]
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]
