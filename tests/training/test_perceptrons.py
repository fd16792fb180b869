"""Perceptrons, narrow and wide, against torch in float64."""

from __future__ import annotations

import contextlib
import itertools
import os
from functools import partial
from typing import NamedTuple

import pytest
import torch

from tests.support import by_night, run_python
from tests.training.fused_support import DEVICE, errors, fits, gradients, network, rows  # (skips without Triton)
from warpdrive_min.training.config import ModelConfig
from warpdrive_min.training.config import precision as within
from warpdrive_min.training.models.parts import Trunk
from warpdrive_min.training.paths import available, table
from warpdrive_min.training.paths.available import why_no_warp_groups
from warpdrive_min.training.paths.cuda_c import warp_groups
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.fused import narrow as narrow_module
from warpdrive_min.training.paths.fused import wide as wide_module
from warpdrive_min.training.paths.fused.narrow import narrow
from warpdrive_min.training.paths.fused.wide import Layers, OfAgents, wide
from warpdrive_min.training.paths.triton import sizes as triton_sizes

KERNELS = {"narrow": narrow, "wide": wide, "groups": partial(wide, kernels=warp_groups.IN_CUDA_C)}
BOUNDS = {"fp32": 2e-6, "tf32": 3e-3, "bf16": 3e-2}
MANY = 100_003
"""Rows that are more than programs take at once."""


class Case(NamedTuple):
    """Kernel and its cases."""

    kernel: str
    precision: str
    n_rows: int
    sizes: tuple[int, ...]
    activation: str
    needs_x: bool = True


CASES = [
    Case("narrow", "fp32", 150, (4, 64, 64, 3), "tanh"),
    Case("narrow", "fp32", 64, (7, 32, 16, 2), "relu"),
    Case("narrow", "fp32", 200, (40, 24, 50, 7), "relu"),
    Case("narrow", "fp32", 1, (3, 8, 8, 1), "tanh"),
    Case("narrow", "fp32", 130, (401, 32, 32, 6), "relu"),  # streamed from here: features that fill no chunk,
    Case("narrow", "fp32", 65, (512, 20, 64, 17), "tanh"),  # all that there may be,
    Case("narrow", "fp32", 1, (300, 64, 24, 1), "relu"),  # and one row
]
WIDE = list(itertools.product(("tf32", "bf16"), (
    (130, (71, 128, 256, 43), "relu"), (67, (5, 256, 128, 1), "tanh", False),
    (1, (32, 64, 64, 16), "tanh"), (70, (33, 100, 72, 17), "relu", False),
)))  # fmt: skip
CASES += [
    pytest.param(Case("wide", precision, *rest), marks=[pytest.mark.nightly] if i % 3 else [])
    for i, (precision, rest) in enumerate(WIDE)
]
NARROW_ON_GPU = [
    (4, 64, 64, 3), (401, 32, 32, 1), (300, 16, 64, 2), (203, 32, 32, 6), (4, 64, 64, 1), (3, 32, 16, 1),
    (300, 64, 64, 1), (128, 64, 64, 43), (401, 32, 32, 6), (512, 64, 64, 64), (21, 64, 64, 5), (6, 64, 32, 20),
]  # fmt: skip
"""Each precision has another size by day: each compiles for seconds."""
WIDE_ON_GPU = list(itertools.product(("tf32", "bf16"), [(71, 256, 256, 43), (128, 512, 512, 128)], ("relu", "tanh")))
CASES += [
    pytest.param(Case("narrow", precision, MANY, sizes, "tanh"), marks=[pytest.mark.gpu, *late])
    for place, precision in enumerate(BOUNDS)
    for i, sizes in enumerate(NARROW_ON_GPU)
    for late in [[] if i == place else [pytest.mark.nightly]]
]
CASES += [
    pytest.param(Case("wide", precision, MANY, sizes, activation), marks=[pytest.mark.gpu, *late])
    for i, (precision, sizes, activation) in enumerate(WIDE_ON_GPU)
    for late in [[pytest.mark.nightly] if i % 3 else []]
]
BY_GROUPS = [
    (MANY, (71, 256, 256, 43), "tanh"), (1, (71, 256, 256, 43), "relu"), (129, (22, 130, 200, 12), "tanh", False),
    (17_000, (72, 256, 129, 48), "relu"), (300, (5, 200, 256, 1), "tanh"),
]  # fmt: skip
CASES += [
    pytest.param(Case("groups", precision, *rest), marks=pytest.mark.gpu)
    for precision, *rest in [*(("tf32", *rest) for rest in BY_GROUPS), *(("bf16", *rest) for rest in BY_GROUPS)]
]
CASES.append(pytest.param(Case("groups", "bf16", 1_000, (128, 256, 256, 48), "tanh"), marks=pytest.mark.gpu))


@pytest.fixture(autouse=True)
def interpreted_bfloat16(monkeypatch):
    """Multiply interpreted bfloat16 as float32, which is exact.

    Triton 3.6 uses its bits.
    """
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


def need(kernel):
    """Skip a test of groups of warps on other GPUs than Hopper."""
    if kernel == "groups" and (reason := why_no_warp_groups(DEVICE.type)):
        pytest.skip(reason)


def by(kernel, activation, precision):
    """Return a function that evaluates with a kernel."""
    return lambda x, weights: KERNELS[kernel](x, weights, activation, precision)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_outputs_and_gradients_are_those_of_torch(case):
    """Outputs and gradients equal torch's.

    Partial blocks and rows; on a GPU, many rows with the same bits twice.
    """
    need(case.kernel)
    evaluate, d_out = by(case.kernel, case.activation, case.precision), rows(case.n_rows, case.sizes[-1], seed=3)
    x, weights = rows(case.n_rows, case.sizes[0]), network(*case.sizes)
    bound = 1e-5 if (case.precision, case.n_rows) == ("fp32", MANY) else BOUNDS[case.precision]
    is_rough = case.activation == "relu" and case.precision != "fp32"
    with within(case.precision, DEVICE) if case.kernel != "narrow" else contextlib.nullcontext():
        far = errors(evaluate, x, weights, case.activation, d_out, needs_x=case.needs_x)
        assert len(far) == 7 + case.needs_x
        assert far[0] <= bound
        assert max(far[1:]) <= (bound**0.5 if is_rough else bound)  # as many units cross relu's edge altogether
        assert case.precision != "bf16" or far[0] > 1e-4, "the operands must be rounded"
        if case.n_rows == MANY:
            first, second = (gradients(evaluate, x, weights, d_out) for _ in range(2))
            assert all(map(torch.equal, first, second))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n_envs", "n_all", "chosen"),
    [(300, 7, [5, 0, 2, 6]), (3, 200, [*range(0, 200, 3)]), (5_000, 7, [5, 0, 2, 6]), (70, 3, None)],
)
def test_groups_read_rows_in_place(n_envs, n_all, chosen):
    """Rows of some agents of an array have the outputs of copied rows."""
    need("groups")
    whole, weights = rows(n_envs * n_all, 22).view(n_envs, n_all, 22), network(22, 200, 129, 12)
    agents = None if chosen is None else torch.tensor(chosen, device=DEVICE, dtype=torch.int32)
    copied = (whole if chosen is None else whole[:, chosen]).flatten(0, 1).contiguous()
    found = []
    for x in (copied, OfAgents(whole, agents)):
        out = torch.full((len(copied), 12), torch.nan, device=DEVICE)
        layers = Layers.empty(len(copied) + 40, (22, 200, 129), "tf32", DEVICE)
        warp_groups.evaluate(x, warp_groups.ordered(weights, "tanh", "tf32"), "tanh", "tf32", out, layers)
        found.append((out, *layers))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert not found[0][0].isnan().any()
    assert torch.equal(found[0][1][: len(copied), :22], copied)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    ("kernel", "n_features"),
    [("narrow", 4), ("narrow", 401), ("wide", 5), pytest.param("groups", 5, marks=pytest.mark.gpu)],
)
def test_what_is_not_a_number_stays_in_its_row(kernel, n_features, activation):
    """A NaN in an observation affects only its own row."""
    need(kernel)
    x = rows(3, n_features)
    x[1, 3] = torch.nan
    precision, units = "fp32" if kernel == "narrow" else "tf32", 150 if kernel == "groups" else 64
    out = by(kernel, activation, precision)(x, network(n_features, units, units, 2))
    assert out.isnan().any(1).tolist() == out.isnan().all(1).tolist() == [False, True, False]


def test_kernels_have_limits():
    """Each kernel accepts networks up to its limits.

    Narrow: 512 features, 64 units or outputs; wide: networks in tiles, never fp32; by groups of warps: 129 to 256
    units.
    """
    assert fits(narrow_module.fits, 512, (64, 64), 64)
    assert fits(narrow_module.fits, 512, (64, 64), 1)
    for sizes in ((513, (32, 32), 2), (512, (65, 32), 2), (4, (32, 65), 2), (4, (32, 32), 65)):
        assert not fits(narrow_module.fits, *sizes)
    assert all(fits(narrow_module.fits, n, tuple(hidden), m) for n, *hidden, m in NARROW_ON_GPU)
    assert not fits(wide_module.fits, 129, (64, 64), 2, "tf32")
    assert fits(wide_module.fits, 128, (512, 512), 128, "tf32")
    assert not fits(wide_module.fits, 128, (512, 512), 128, "fp32")
    for precision, most in warp_groups.MOST_FEATURES.items():
        assert fits(warp_groups.fits, most, (256, 129), 48, precision)
        for sizes in (
            (most + 1, (256, 256), 48),
            (most, (256, 128), 48),
            (most, (256, 257), 48),
            (most, (256, 256), 49),
        ):
            assert not fits(warp_groups.fits, *sizes, precision)
    assert not fits(warp_groups.fits, 4, (256, 256), 2, "fp32")


@pytest.mark.parametrize(("name", "by_torch"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_precision_holds_within_its_block(name, by_torch):
    """A block sets the matrix precision, and restores it."""
    before, ones, cpu = torch.get_float32_matmul_precision(), torch.ones(2, 2), torch.device("cpu")
    with within(name, cpu):
        assert torch.get_float32_matmul_precision() == by_torch
        assert (ones @ ones).dtype == (torch.bfloat16 if name == "bf16" else torch.float32)
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ZeroDivisionError), within(name, cpu):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before
    assert (ones @ ones).dtype == torch.float32


@pytest.mark.nightly
def test_kernels_compile_for_a_gpu(tmp_path):
    """The compiler accepts all kernels, in a new process.

    Here they are interpreted.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = run_python("-m", "tests.training.triton_kernels", "90", env=environment, TRITON_CACHE_DIR=str(tmp_path))
    assert said.split() == ["add_up", "backward", "evaluate", "first_layer", "forward", "learn", "of_agents", "take"]


# ------------------------------------------------------------------ narrow


def check_narrow(n_rows, sizes, bound):
    """Compare the narrow kernels in fp32 with float64."""
    x, d_out = rows(n_rows, sizes[0]), rows(n_rows, sizes[-1], seed=3)
    assert max(errors(by("narrow", "tanh", "fp32"), x, network(*sizes), "tanh", d_out)) <= bound


@pytest.mark.parametrize(("n_features", "n_outputs"), [(4, 3), (401, 1)])
def test_networks_side_by_side_are_those_one_by_one(n_features, n_outputs):
    """Under vmap, networks equal single ones.

    Outputs are bit-identical, and gradients have their values.
    """
    n_networks, n_rows = 2, 40
    weights = [[w * (1 - i / 4) for w in network(n_features, 32, 16, n_outputs)] for i in range(n_networks)]
    stacked = tuple(torch.stack(each).requires_grad_() for each in zip(*weights, strict=True))
    x, d_out = rows(n_networks * n_rows, n_features), rows(n_networks * n_rows, n_outputs, seed=3)
    x, d_out = x.view(n_networks, n_rows, -1).requires_grad_(), d_out.view(n_networks, n_rows, -1)
    together = torch.vmap(lambda x, *w: narrow(x, w, "tanh", "fp32"))(x, *stacked)
    gradients = torch.autograd.grad(together, (x, *stacked), d_out)
    for index, each in enumerate(weights):
        alone = (x[index].detach().requires_grad_(), *(weight.requires_grad_() for weight in each))
        out = narrow(alone[0], alone[1:], "tanh", "fp32")
        assert torch.equal(together[index], out)
        for got, want in zip(gradients, torch.autograd.grad(out, alone, d_out[index]), strict=True):
            torch.testing.assert_close(got[index], want, rtol=1e-5, atol=1e-5)  # sums of parts in another order


@pytest.mark.parametrize(("n_features", "n_processors"), [(4, 2), by_night(401, 7)])
def test_narrow_adds_up_what_programs_find(monkeypatch, n_features, n_processors):
    """Partial gradients of several programs sum to the total.

    Blocks of rows and streamed layers too.
    """
    monkeypatch.setattr(triton_sizes, "_processors", lambda device: n_processors)
    tile = narrow_module.FIRST_LAYER["fp32"]
    n_parts = narrow_module._n_programs(
        torch.empty(700, 0), tile.rows, tile.n_programs / -(-n_features // tile.features)
    )
    assert 1 < n_parts < 700 // tile.rows
    check_narrow(700, (n_features, 32, 16, 2), 2e-6)


def test_narrow_keeps_a_layer_only_for_gradients(monkeypatch):
    """The first layer is kept only for streamed networks with gradients."""
    kept, save = [], torch.autograd.function.FunctionCtx.save_for_backward
    monkeypatch.setattr(
        torch.autograd.function.FunctionCtx,
        "save_for_backward",
        lambda ctx, *tensors: kept.append(tensors[1].shape[0]) or save(ctx, *tensors),
    )
    for n_features in (401, 4):
        x, weights = rows(3, n_features), tuple(each.requires_grad_() for each in network(n_features, 32, 8, 2))
        with torch.no_grad():
            first = narrow(x, weights, "tanh", "fp32")
        assert torch.equal(first, narrow(x, weights, "tanh", "fp32").detach())
    assert kept == [0, 3, 0, 0]


@pytest.mark.parametrize(("n_features", "n_outputs"), [(4, 1), (401, 3), by_night(4, 3), by_night(401, 1)])
def test_narrow_takes_gradients_as_they_lie(n_features, n_outputs):
    """Gradients may be columns of a wider array, or transposed."""
    x, weights, d_out = rows(70, n_features), network(n_features, 16, 8, n_outputs), rows(70, n_outputs, seed=3)
    wide = torch.full((70, 7), torch.nan, device=d_out.device)
    wide[:, 2 : 2 + n_outputs] = d_out
    leaves = tuple(weight.requires_grad_() for weight in weights)
    want = torch.autograd.grad(narrow(x, leaves, "tanh", "fp32"), leaves, d_out)
    for lying in (wide[:, 2 : 2 + n_outputs], d_out.T.contiguous().T):
        got = torch.autograd.grad(narrow(x, leaves, "tanh", "fp32"), leaves, lying)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))


def test_narrow_tanh_is_accurate_near_zero():
    """Small inputs keep their relative precision through both layers."""
    eye, zeros = torch.eye(8, device=DEVICE), torch.zeros(8, device=DEVICE)
    weights = (eye[:, :1].clone(), zeros, eye, zeros, eye[:1].clone(), zeros[:1])
    x = torch.tensor([[1e-6], [1e-3], [0.1], [0.149], [0.151], [1.0], [-0.3], [30.0]], device=DEVICE)
    want = x.double().tanh().tanh()
    assert ((narrow(x, weights, "tanh", "fp32") - want).abs() <= 4e-7 * want.abs()).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"activation": "gelu"}, "the activation must be relu or tanh"),
        ({"fc_dims": (600, 600)}, "must fit on the chip"),
        ({"n_features": 513}, "512 features, 64 units per layer"),
        ({"fc_dims": (8,)}, "needs two hidden layers"),
    ],
)
def test_what_cannot_be_fused_is_said(monkeypatch, changed, message):
    """Layers without a kernel use torch, with a reason."""
    monkeypatch.setattr(available, "why_no_triton", lambda device: None)
    sizes = {"n_features": 4, "fc_dims": (8, 8), "activation": "relu", **changed}
    trunk = Trunk(sizes.pop("n_features"), ModelConfig(**sizes))
    choice = table.choose("network", Facts(network=trunk.layers(2)))
    assert message in choice.why
    assert choice.path is table.PATHS["network"][-1]
    x = torch.zeros(5, trunk.layers(2).n_features)
    head = torch.nn.Linear(trunk.width, 2)
    assert torch.equal(trunk.head_outputs(x, head), head(trunk(x)))


@pytest.mark.parametrize(
    ("n_features", "product"), [(401, "tf32x3"), (4, "bf16x6"), by_night(4, "tf32x3"), by_night(401, "bf16x6")]
)
def test_narrow_has_float32_of_each_product(monkeypatch, n_features, product):
    """Products of TF32 or bfloat16 are as accurate as float32.

    Three TF32 or six bfloat16 products, in every kernel.
    """
    monkeypatch.setitem(narrow_module.PRODUCTS, "fp32", product)
    for tiles in (narrow_module.FORWARD, narrow_module.FIRST_LAYER):
        monkeypatch.setitem(tiles, "fp32", tiles["fp32"]._replace(product=product))
    check_narrow(200, (n_features, 64, 32, 3), 1e-5)


# ------------------------------------------------------------------ wide


@pytest.mark.parametrize("by_column", [False, True])
def test_wide_sums_parts_of_the_rows(monkeypatch, by_column):
    """Weight gradients sum padded parts of the rows, in either order."""
    small = wide_module.Tile(16, 32, 4, 2)
    plan = wide_module.TileSizes(small, small, small._replace(rows=32), by_column, n_parts=2)
    monkeypatch.setitem(wide_module.PLANS, "tf32", (plan, plan))
    monkeypatch.setattr(wide_module, "LEAST_TILES", 2)
    parts, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: parts.append(len(a)) or bmm(a, b))
    activation = "relu" if DEVICE.type == "cpu" else "tanh"  # a GPU's rounding takes units across relu's edge
    far = errors(by("wide", activation, "tf32"), rows(130, 5), network(5, 64, 64, 3), activation, rows(130, 3, seed=3))
    assert parts == [2, 2, 2]
    assert max(far) < BOUNDS["tf32"]


def test_wide_without_gradients_keeps_nothing(monkeypatch):
    """Without gradients, only outputs are computed.

    Under `no_grad`, or without required gradients.
    """
    x, weights = rows(3, 5), tuple(weight.requires_grad_() for weight in network(5, 64, 64, 2))
    kept, triton = [], wide_module.TRITON
    noted = triton._replace(evaluate=lambda *a: kept.append(len(a) > 5) or triton.evaluate(*a))
    monkeypatch.setattr(wide_module, "TRITON", noted)
    with torch.no_grad():
        first = wide(x, weights, "relu", "tf32")
    second = wide(x, tuple(weight.detach() for weight in weights), "relu", "tf32")
    third = wide(x, weights, "relu", "tf32")
    assert kept == [False, False, True]
    assert (first.grad_fn, second.grad_fn) == (None, None)
    assert third.grad_fn is not None
    torch.testing.assert_close(first, third.detach())
