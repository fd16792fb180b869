"""The narrow perceptron's kernels against torch in float64: outputs and every gradient."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.training.fused_support import DEVICE, errors, fits, gradients, network, rows  # (skips without Triton)
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig
from warpdrive_min.training.models.fully_connected import Trunk, create_actor_critic
from warpdrive_min.training.models.members import Members
from warpdrive_min.training.paths import available, table
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.fused import narrow as module
from warpdrive_min.training.paths.fused.narrow import narrow

CASES = [
    (4, (64, 64), 3, "tanh", 150),
    (7, (32, 16), 2, "relu", 64),
    (40, (24, 50), 7, "relu", 200),
    (3, (8, 8), 1, "tanh", 1),
    (401, (32, 32), 6, "relu", 130),
    (512, (20, 64), 17, "tanh", 65),
    (300, (64, 24), 1, "relu", 1),
]
"""Of the last three the first layer is streamed: features that fill no chunk, all that there may be, and one row."""


def check(x, weights, activation, d_out, within, name="fp32"):
    """Hold outputs and gradients of x and all weights against float64."""
    assert max(errors(lambda x, w: narrow(x, w, activation, name), x, weights, activation, d_out)) <= within


@pytest.mark.parametrize(("n_features", "hidden", "n_outputs", "activation", "n_rows"), CASES)
def test_narrow_gives_outputs_and_gradients_of_torch(n_features, hidden, n_outputs, activation, n_rows):
    """To the precision of float32, with sizes that fill no block and rows that end within one."""
    assert fits(module.fits, n_features, hidden, n_outputs)
    weights = network(n_features, *hidden, n_outputs)
    check(rows(n_rows, n_features), weights, activation, rows(n_rows, n_outputs, seed=3), 2e-6)


@pytest.mark.parametrize(("n_features", "n_outputs"), [(4, 3), (401, 1)])
def test_networks_side_by_side_are_those_one_by_one(n_features, n_outputs):
    """Under vmap outputs have the bits of each network alone, and gradients its numbers."""
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


@pytest.mark.parametrize(("n_features", "n_processors"), [(4, 2), (401, 7)])
def test_narrow_adds_up_what_programs_find(monkeypatch, n_features, n_processors):
    """Several programs, each with several blocks of rows, come to the gradients of all rows; streamed layers too."""
    monkeypatch.setattr(module, "_processors", lambda device: n_processors)
    tile = module.FIRST_LAYER["fp32"]
    n_parts = module._n_programs(torch.empty(700, 0), tile.rows, tile.n_programs / -(-n_features // tile.features))
    assert 1 < n_parts < 700 // tile.rows
    check(rows(700, n_features), network(n_features, 32, 16, 2), "tanh", rows(700, 2, seed=3), 2e-6)


@pytest.mark.parametrize(("fc_dims", "n_kernels"), [((16, 8), 2), ((72, 8), 0), ((8,), 0)])
def test_members_of_a_population_are_one_kernel(monkeypatch, fc_dims, n_kernels):
    """Narrow networks are a launch for each trunk, with torch's numbers; others are torch's own products."""
    calls = []
    monkeypatch.setattr(available, "why_no_triton", lambda device: None if device == DEVICE.type else "needs a GPU")
    counted = replace(table.PATHS["network"][0], build=lambda *given: calls.append(given) or narrow(*given))
    monkeypatch.setitem(table.PATHS, "network", (counted, *table.PATHS["network"][1:]))
    made = {}
    for is_fused in (None, False):
        torch.manual_seed(0)
        config = ModelConfig(fc_dims=fc_dims, activation="tanh", shared=False, fused=is_fused)
        networks = [create_actor_critic(4, ActionSpace((3,), 1), config) for _ in range(2)]
        made[is_fused] = Members(networks).to(DEVICE)
    calls.clear()
    observations = rows(12, 4).view(12, 1, 4)
    got, want = (made[is_fused](observations) for is_fused in (None, False))
    assert len(calls) == n_kernels
    of_got, of_want = (
        torch.autograd.grad(head.square().sum() + value.sum(), list(made[is_fused].parameters()))
        for is_fused, (head, value) in zip((None, False), (got, want), strict=True)
    )
    for mine, theirs in zip((*got, *of_got), (*want, *of_want), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_narrow_keeps_a_layer_only_for_gradients(monkeypatch):
    """A streamed network keeps its first hidden layer for the way back; nothing without gradients, nor a small one."""
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


def test_narrow_fits_up_to_its_limits():
    """Up to 512 features and 64 units or outputs, and not one more."""
    assert fits(module.fits, 512, (64, 64), 64)
    assert fits(module.fits, 512, (64, 64), 1)
    assert not fits(module.fits, 513, (32, 32), 2)
    assert not fits(module.fits, 512, (65, 32), 2)
    assert not fits(module.fits, 4, (32, 65), 2)
    assert not fits(module.fits, 4, (32, 32), 65)


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("n_features", [4, 401])
def test_narrow_takes_gradients_as_they_lie(n_features, n_outputs):
    """Gradients may be columns of a wider array, of which the others do not count, or lie the other way round."""
    x, weights, d_out = rows(70, n_features), network(n_features, 16, 8, n_outputs), rows(70, n_outputs, seed=3)
    wide = torch.full((70, 7), torch.nan, device=d_out.device)
    wide[:, 2 : 2 + n_outputs] = d_out
    leaves = tuple(weight.requires_grad_() for weight in weights)
    want = torch.autograd.grad(narrow(x, leaves, "tanh", "fp32"), leaves, d_out)
    for lying in (wide[:, 2 : 2 + n_outputs], d_out.T.contiguous().T):
        got = torch.autograd.grad(narrow(x, leaves, "tanh", "fp32"), leaves, lying)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, want, strict=True))


def test_narrow_passes_what_is_not_a_number():
    """A NaN in an observation is one in its outputs, and in no other row's."""
    x = torch.zeros(3, 4)
    x[1, 2] = torch.nan
    for activation, n_features in itertools.product(("relu", "tanh"), (4, 401)):
        padded = torch.nn.functional.pad(x, (0, n_features - 4))
        out = narrow(padded.to(DEVICE), network(n_features, 32, 8, 2), activation, "fp32")
        assert out.isnan().any(1).tolist() == [False, True, False]


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
        ({"activation": "gelu"}, "knows the activations relu and tanh"),
        ({"fc_dims": (600, 600)}, "must fit on the chip"),
        ({"n_features": 513}, "64 units over 512 features"),
        ({"fc_dims": (8,)}, "needs two hidden layers"),
    ],
)
def test_what_cannot_be_fused_is_said(monkeypatch, changed, message):
    """Torch goes through the layers that no kernel takes, for a reason."""
    monkeypatch.setattr(available, "why_no_triton", lambda device: None)
    sizes = {"n_features": 4, "fc_dims": (8, 8), "activation": "relu", **changed}
    trunk = Trunk(sizes.pop("n_features"), ModelConfig(**sizes))
    choice = table.choose("network", Facts(network=trunk.layers(2)))
    assert message in choice.why
    assert choice.path is table.PATHS["network"][-1]
    x = torch.zeros(5, trunk.layers(2).n_features)
    head = torch.nn.Linear(trunk.width, 2)
    assert torch.equal(trunk.under(x, head), head(trunk(x)))


@pytest.mark.parametrize("product", ["tf32x3", "bf16x6"])
@pytest.mark.parametrize("n_features", [4, 401])
def test_narrow_has_float32_of_each_product(monkeypatch, n_features, product):
    """Three products of TF32 or six of bfloat16 have the errors of float32, in whatever kernel they are used."""
    monkeypatch.setitem(module.PRODUCTS, "fp32", product)
    for tiles in (module.FORWARD, module.FIRST_LAYER):
        monkeypatch.setitem(tiles, "fp32", tiles["fp32"]._replace(product=product))
    check(rows(200, n_features), network(n_features, 64, 32, 3), "tanh", rows(200, 3, seed=3), 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "within"), [("fp32", 1e-5), ("tf32", 3e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize(
    "sizes",
    [
        (4, (64, 64), 3),
        (203, (32, 32), 6),
        (4, (64, 64), 1),
        (3, (32, 16), 1),
        (300, (64, 64), 1),
        (401, (32, 32), 1),
        (128, (64, 64), 43),
        (401, (32, 32), 6),
        (300, (16, 64), 2),
        (512, (64, 64), 64),
        (21, (64, 64), 5),
        (6, (64, 32), 20),
    ],
)
def test_narrow_is_right_on_a_gpu(sizes, name, within):
    """Compiled, in each precision, on more rows than programs take at once; and to the bit when it runs again."""
    n_features, hidden, n_outputs = sizes
    weights, x, d_out = (
        network(n_features, *hidden, n_outputs),
        rows(100_003, n_features),
        rows(100_003, n_outputs, seed=3),
    )
    check(x, weights, "tanh", d_out, within, name)
    first, second = (gradients(lambda x, w: narrow(x, w, "tanh", name), x, weights, d_out) for _ in range(2))
    assert all(map(torch.equal, first, second))
