"""The wide perceptron against torch's own layers in float64, in Triton's interpreter or on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.training.fused_support import DEVICE, errors, fits, gradients, network, rows  # (before Triton is imported)
from warpdrive_min.training.config import precision as within
from warpdrive_min.training.paths.fused import wide as module
from warpdrive_min.training.paths.fused.wide import wide

BOUNDS = {"tf32": 3e-3, "bf16": 3e-2}


@pytest.fixture(autouse=True)
def interpreted_bfloat16(monkeypatch):
    """Let the interpreter multiply bfloat16 as float32, which is exact; it takes its bits for integers (Triton 3.6)."""
    if DEVICE.type == "cuda":
        return
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(builder, a, b, *rest):
        if a.dtype == tl.bfloat16:
            a, b = (builder.cast_impl(each, tl.float32) for each in (a, b))
        return multiply(builder, a, b, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def by(activation, precision):
    """Return what evaluates by the kernels."""
    return lambda x, weights: wide(x, weights, activation, precision)


def slopes_bound(precision, activation):
    """Return the bound of gradients; rounding takes a share of units, like the bound, across relu's edge altogether."""
    return BOUNDS[precision] ** (0.5 if activation == "relu" else 1.0)


@pytest.mark.parametrize(
    ("n_rows", "sizes", "activation", "needs_x"),
    [
        (130, (71, 128, 256, 43), "relu", True),
        (67, (5, 256, 128, 1), "tanh", False),
        (1, (32, 64, 64, 16), "tanh", True),
        (70, (33, 100, 72, 17), "relu", False),
    ],
)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_wide_agrees_with_torch(n_rows, sizes, activation, needs_x, precision):
    """Outputs and all gradients are those of torch's layers: tails, unequal and odd widths, with and without dx."""
    x, d_out = rows(n_rows, sizes[0]), rows(n_rows, sizes[-1], seed=3)
    with within(precision, DEVICE):
        far = errors(by(activation, precision), x, network(*sizes), activation, d_out, needs_x=needs_x)
    assert len(far) == 7 + needs_x
    assert far[0] < BOUNDS[precision]
    assert max(far[1:]) < slopes_bound(precision, activation)
    assert precision != "bf16" or far[0] > 1e-4  # the operands were rounded


@pytest.mark.parametrize("by_column", [False, True])
def test_wide_sums_parts_of_the_rows(monkeypatch, by_column):
    """Weights' gradients are whole where rows are summed in parts, padded to a multiple of them, in either order."""
    small = module.Tile(16, 32, 4, 2)
    plan = module.TileSizes(small, small, small._replace(rows=32), by_column, n_parts=2)
    monkeypatch.setitem(module.PLANS, "tf32", (plan, plan))
    monkeypatch.setattr(module, "LEAST_TILES", 2)
    parts, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: parts.append(len(a)) or bmm(a, b))
    activation = "relu" if DEVICE.type == "cpu" else "tanh"  # a GPU's rounding takes units across relu's edge
    far = errors(by(activation, "tf32"), rows(130, 5), network(5, 64, 64, 3), activation, rows(130, 3, seed=3))
    assert parts == [2, 2, 2]
    assert max(far) < BOUNDS["tf32"]


def test_wide_without_gradients_keeps_nothing(monkeypatch):
    """Under `no_grad`, and where nothing requires a gradient, only the outputs are made."""
    x, weights = rows(3, 5), tuple(weight.requires_grad_() for weight in network(5, 64, 64, 2))
    kept, evaluate = [], module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *a: kept.append(len(a) > 5) or evaluate(*a))
    with torch.no_grad():
        first = wide(x, weights, "relu", "tf32")
    second = wide(x, tuple(weight.detach() for weight in weights), "relu", "tf32")
    third = wide(x, weights, "relu", "tf32")
    assert kept == [False, False, True]
    assert (first.grad_fn, second.grad_fn) == (None, None)
    assert third.grad_fn is not None
    torch.testing.assert_close(first, third.detach())


def test_wide_passes_on_what_is_not_a_number():
    """An input that is not a number is none in the outputs of its row, and only there."""
    x = rows(2, 5)
    x[1, 3] = float("nan")
    for activation in ("relu", "tanh"):
        out = wide(x, network(5, 64, 64, 2), activation, "tf32")
        assert out.isnan().all(1).tolist() == [False, True]


def test_wide_has_limits():
    """A network must be small enough for the tiles, and fp32 has none."""
    assert not fits(module.fits, 129, (64, 64), 2, "tf32")
    assert fits(module.fits, 128, (512, 512), 128, "tf32")
    assert not fits(module.fits, 128, (512, 512), 128, "fp32")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sizes", [(71, 256, 256, 43), (128, 512, 512, 128)])
def test_wide_is_exact_enough_and_repeats_on_a_gpu(precision, sizes, activation):
    """Over many rows each precision keeps its bound, and the same inputs give the same bits."""
    x, weights, d_out = rows(100_000, sizes[0]), network(*sizes), rows(100_000, sizes[-1], seed=3)
    with within(precision, DEVICE):
        far = errors(by(activation, precision), x, weights, activation, d_out)
        first, second = (gradients(by(activation, precision), x, weights, d_out) for _ in range(2))
    assert far[0] < BOUNDS[precision]
    assert max(far[1:]) < slopes_bound(precision, activation)
    assert all(map(torch.equal, first, second))
