"""FlatAdam: torch's Adam with clipping as one vector."""

from __future__ import annotations

import copy

import pytest
import torch

from warpdrive_min.backends.host import HostBackend
from warpdrive_min.training.algorithms.optimiser import FlatAdam
from warpdrive_min.training.paths import available

MAX_NORM = 0.3
NAMES = {"cpu": "host", "cuda": "numba"}
"""Backend that makes programs, by device."""
ON_GPU = [pytest.param((way, "cuda"), marks=pytest.mark.gpu) for way in ("torch", "CUDA C")]


class ByFibres:
    """Program of backend `host`, which runs on a CPU as those of a GPU do."""

    def __init__(self, backend, source, constants) -> None:
        self._kernels, self._threads = backend.compile(source, constants), constants["THREADS"]

    def launch(self, name, grid, **arguments) -> None:
        """Run a kernel."""
        kernel = self._kernels[name]
        given = [arguments[each.name] for each in kernel.parameters]
        kernel.prepare(
            [each.view(-1) if isinstance(each, torch.Tensor) else each for each in given], grid[0], self._threads
        )()

    def load(self) -> None:
        """Do nothing; the constructor compiles."""


@pytest.fixture(params=[("C++", "cpu"), ("torch", "cpu"), ("CUDA C", "cpu"), *ON_GPU], ids=" on ".join, autouse=True)
def device(request, monkeypatch):
    """Yield a device for each implementation of the step."""
    way, here = request.param
    if way == "CUDA C" and here == "cpu":
        monkeypatch.setattr(HostBackend, "program", lambda *given: ByFibres(*given))
    if way != "C++":
        reason = None if way == "CUDA C" else "needs a GPU"
        monkeypatch.setattr(available, "why_no_cpp", lambda: "needs a C++ compiler")
        monkeypatch.setattr(available, "why_no_cuda_c", lambda device, backend: reason)
    with torch.device(here) as found:
        yield found


def network(seed=0):
    """Return a network with frozen and unused parameters."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    made[0].bias.requires_grad_(False)
    made.unused = torch.nn.Parameter(torch.ones(2))
    return made


def optimiser(model, max_norm=MAX_NORM, lr=1e-2):
    """Return one over the model's parameters, and its rate."""
    rate = torch.tensor(lr)
    return FlatAdam(model.parameters(), rate, max_norm, backend=NAMES[rate.device.type]), rate


def loss_of(model, scale=1.0, rows=slice(None)):
    """Return a loss, a mean over 6 rows."""
    inputs = torch.arange(18.0).view(6, 3) / 9 - 1
    return scale * (model(inputs) - 1).square().sum(1)[rows].sum() / 6


def snapshot(adam):
    """Return a copy of all live tensors."""
    return {name: tensor.clone() for name, tensor in adam.state().items()}


@pytest.mark.parametrize("max_norm", [None, MAX_NORM])
def test_flat_adam_equals_adam_with_clipping(max_norm):
    """Steps and norms equal Adam's after clip_grad_norm_.

    Forty steps at changing rates.
    """
    model = network()
    want = copy.deepcopy(model)
    adam, rate = optimiser(model, max_norm)
    plain = torch.optim.Adam([each for each in want.parameters() if each.requires_grad], lr=1e-2)
    n_clipped = 0
    for step in range(40):
        lr = 1e-2 / (1 + step)
        rate.fill_(lr)
        plain.param_groups[0]["lr"] = lr
        scale = 0.05 if step % 3 else 1.0
        adam.step(loss_of(model, scale))
        plain.zero_grad()
        loss_of(want, scale).backward()
        norm = torch.nn.utils.clip_grad_norm_(want.parameters(), max_norm or torch.inf)
        n_clipped += bool(max_norm and norm > max_norm)
        plain.step()
        assert adam.norm.item() == pytest.approx(norm.item(), rel=1e-5)
    for name, tensor in want.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)
    assert max_norm is None or 0 < n_clipped < 40, "some gradients must be longer, and some shorter"


@pytest.mark.parametrize("scale", [torch.nan, torch.inf, 1.0], ids=["NaN", "infinite", "as told"])
def test_flat_adam_skips(scale):
    """A broken gradient only counts as skipped.

    With the skip flag a step does not even count.
    """
    is_told = scale == 1
    models = [network(), network()]
    adams = [optimiser(model)[0] for model in models]
    for adam, model in zip(adams, models, strict=True):
        adam.step(loss_of(model))
    before = snapshot(adams[0])
    adams[0].step(loss_of(models[0]) * scale, skip=torch.tensor(True) if is_told else None)
    after = snapshot(adams[0])
    assert torch.isfinite(adams[0].norm) == is_told
    assert [before.pop("n_skipped").item(), after.pop("n_skipped").item()] == [0, not is_told]
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    for adam, model in zip(adams, models, strict=True):
        adam.step(loss_of(model), skip=torch.tensor(False) if is_told and adam is adams[0] else None)
    for got, want in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(got, want)
    assert not torch.equal(before["parameters"], adams[0].state()["parameters"])
    assert adams[0].state()["step"].item() == 2


def test_long_vectors_take_the_same_steps(device, monkeypatch):
    """A million parameters take the same steps.

    On a CPU they are fewer, with as large blocks.
    """
    generator, n = torch.Generator(device).manual_seed(0), 1_200_001
    if device.type == "cpu":
        n //= 16
        monkeypatch.setattr("warpdrive_min.training.paths.fused.adam.MOST_BLOCKS", 64)
    start = torch.randn(n, generator=generator)
    parameter, want = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.double())
    adam = FlatAdam([parameter], torch.tensor(1e-2), MAX_NORM, backend=NAMES[device.type])
    plain = torch.optim.Adam([want], lr=1e-2)
    for _ in range(2):
        adam.gradient.copy_(torch.randn(len(start), generator=generator))
        want.grad = adam.gradient.double()
        norm = torch.nn.utils.clip_grad_norm_([want], MAX_NORM)
        adam.apply()
        plain.step()
        assert adam.norm.item() == pytest.approx(norm.item(), rel=1e-4)  # torch's own sum of squares is this far off
    torch.testing.assert_close(parameter.detach().double(), want.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norms", [None, 0.3, (0.3, 1e9, 0.5)])
def test_members_take_steps_of_their_own(device, norms):
    """Each member has its rate and norm, and skips alone."""
    n_members, n = 3, 1_500
    generator = torch.Generator(device).manual_seed(0)
    start = torch.randn(n_members, n, generator=generator)
    rates, parameter = torch.tensor([0.01, 0.02, 0.03]), torch.nn.Parameter(start.clone())
    limits = torch.tensor(norms) if isinstance(norms, tuple) else norms
    adam = FlatAdam([parameter], rates, limits, backend=NAMES[device.type])
    alone = [torch.nn.Parameter(row.double()) for row in start]
    plain = [torch.optim.Adam([each], lr=float(rate)) for each, rate in zip(alone, rates, strict=True)]
    for step in range(4):
        adam.gradient.copy_(torch.randn(n_members, n, generator=generator) / 100)
        adam.gradient[1, 7] = torch.nan if step == 1 else 0.0
        stays = torch.tensor([False, False, step == 2])
        for member, (each, by) in enumerate(zip(alone, plain, strict=True)):
            each.grad = adam.gradient[member].double()
            limit = norms[member] if isinstance(norms, tuple) else norms or torch.inf
            norm = torch.nn.utils.clip_grad_norm_([each], limit)
            if norm.isfinite() and not stays[member]:
                by.step()
        adam.apply(stays)
        assert adam.norm.isfinite().tolist() == [True, step != 1, True]
    assert adam.n_skipped.tolist() == [0, 1, 0]
    assert adam.state()["step"].tolist() == [4, 3, 3]
    for got, want in zip(adam.vector, alone, strict=True):
        torch.testing.assert_close(got.double(), want.detach(), rtol=1e-4, atol=1e-5)
