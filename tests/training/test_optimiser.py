"""FlatAdam: the steps of torch's Adam with clipping, taken as one vector; which steps it does not take."""

from __future__ import annotations

import copy

import pytest
import torch

from warpdrive_min.training.algorithms.optimiser import FlatAdam

MAX_NORM = 0.3


def network(seed=0):
    """Return a small network with a parameter that stays as it is, and one that no loss reaches."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    made[0].bias.requires_grad_(False)
    made.unused = torch.nn.Parameter(torch.ones(2))
    return made


def optimiser(model, max_norm=MAX_NORM, lr=1e-2):
    """Return one over the model's parameters, and its rate."""
    rate = torch.tensor(lr)
    return FlatAdam(model.parameters(), rate, max_norm), rate


def loss_of(model, scale=1.0, rows=slice(None)):
    """Return a loss, a mean over 6 rows."""
    inputs = torch.arange(18.0).view(6, 3) / 9 - 1
    return scale * (model(inputs) - 1).square().sum(1)[rows].sum() / 6


def snapshot(adam):
    """Return a copy of all live tensors."""
    return {name: tensor.clone() for name, tensor in adam.state().items()}


@pytest.mark.parametrize("max_norm", [None, MAX_NORM])
def test_flat_adam_equals_adam_with_clipping(max_norm):
    """Forty steps under a changing rate agree with torch's Adam after clip_grad_norm_, as do the norms."""
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


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_flat_adam_skips_and_counts_broken_gradients(broken):
    """A gradient that is not finite changes nothing but the count, and the next step is that of a run without it."""
    models = [network(), network()]
    adams = [optimiser(model)[0] for model in models]
    for adam, model in zip(adams, models, strict=True):
        adam.step(loss_of(model))
    before = snapshot(adams[0])
    adams[0].step(loss_of(models[0]) * broken)
    after = snapshot(adams[0])
    assert not torch.isfinite(adams[0].norm)
    assert [before.pop("n_skipped").item(), after.pop("n_skipped").item()] == [0, 1]
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    for adam, model in zip(adams, models, strict=True):
        adam.step(loss_of(model))
    for got, want in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(got, want)
    assert not torch.equal(before["parameters"], adams[0].state()["parameters"])


def test_flat_adam_skips_where_told():
    """With the flag set nothing changes and nothing is counted; unset, it is as if it were not there."""
    models = [network(), network()]
    adams = [optimiser(model)[0] for model in models]
    start = snapshot(adams[0])
    adams[0].step(loss_of(models[0]), skip=torch.tensor(True))
    for name, tensor in start.items():
        assert torch.equal(tensor, adams[0].state()[name]), name
    adams[0].step(loss_of(models[0]), skip=torch.tensor(False))
    adams[1].step(loss_of(models[1]))
    for name, tensor in adams[1].state().items():
        assert torch.equal(tensor, adams[0].state()[name]), name
    assert adams[0].state()["step"].item() == 1
