"""Loss of A2C and PPO in one kernel, against float64.

Kernels are Triton's or exact; the reference is `losses`.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from tests.support import by_day, by_night
from tests.training import fused_support  # noqa: F401  (skips without Triton)
from tests.training.builders import need_interpreter
from tests.training.learning_cases import CLIP, chosen, double, log_probs, loss_in_torch
from warpdrive_min import BACKENDS
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.fused import loss as fused
from warpdrive_min.training.paths.fused.loss import LossRule, Minibatch
from warpdrive_min.training.paths.triton import columns

SPACES = {
    "two choices": ActionSpace((2,), 1),
    "five choices": ActionSpace((5,), 1),
    "three types": ActionSpace((3, 1, 21), 3),
    "many types": ActionSpace((2,) * 5 + (3,) * 4, 9),
    "gaussian": ActionSpace((), 3, (-1.0,) * 3, (1.0,) * 3),
}
ROLLOUT, ROWS, N_AGENTS = 36, 27, 3


@pytest.fixture(autouse=True)
def _one_device(request):
    """Use CPU arrays and interpreted kernels, except in the marked test."""
    if not request.node.get_closest_marker("gpu"):
        need_interpreter()


def arrays(space, n_rollout=ROLLOUT, n_rows=ROWS, n_agents=N_AGENTS, *, masks=False, indices=False, seed=0):
    """Return loss arguments on both sides of the clip.

    These are ratios and values.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random)

    rollout = (n_rollout, n_agents)
    given = {
        "head": normal(n_rows, n_agents, space.n_outputs),
        "values": normal(n_rows, n_agents),
        "returns": normal(*rollout),
        "advantages": normal(n_rows, n_agents),
        "weights": (torch.rand(n_rows, generator=random) < 0.7).float(),
        "total": torch.tensor(77.0),
        "vf_loss_coeff": torch.tensor(0.3),
        "entropy_coeff": torch.tensor(0.05),
        "masks": None,
        "indices": None,
        "log_std": None,
    }
    if indices:
        given["indices"] = torch.randperm(n_rollout, generator=random)[:n_rows].int()
    if space.is_continuous:
        given["log_std"] = 0.3 * normal(space.n_types)
        given["actions"] = normal(*rollout, space.n_types)
    else:
        types = [torch.randint(size, rollout, generator=random) for size in space.categories]
        given["actions"] = torch.stack(types, -1).int()
    if masks:
        given["masks"] = allow(space, given["actions"], torch.rand(*rollout, space.n_outputs, generator=random) < 0.5)
    given["log_probs"] = log_probs(space, given) + 0.3 * normal(*rollout)
    given["old_values"] = given["values"].new_zeros(rollout)
    given["old_values"][chosen(given)] = given["values"]
    given["old_values"] += 0.3 * normal(*rollout)
    return given


def allow(space, actions, mask):
    """Return a mask that allows all chosen actions.

    Every third row allows nothing of the last type.
    """
    starts = torch.tensor([0, *space.categories[:-1]]).cumsum(0)
    mask = mask.scatter(-1, actions + starts, True).int()
    mask[::3, :, -space.categories[-1] :] = 0
    return mask


def in_one(space, given, *, is_clipped, value_clip, is_root=False):
    """Return loss and terms of the kernel."""
    rows = Minibatch(**{name: given[name] for name in Minibatch._fields if name in given})
    rule = LossRule(given["vf_loss_coeff"], given["entropy_coeff"], CLIP, is_clipped, value_clip)
    more = {name: given.get(name) for name in ("log_std", "indices")}
    return fused.loss(space, given["head"], given["values"], rows, rule, given["total"], **more, is_root=is_root)


def in_order(space, given, *, is_clipped, value_clip):
    """Return loss and terms of the device's exact kernels."""
    exact = Exact(BACKENDS["pycuda" if given["head"].is_cuda else "host"])
    rows = Minibatch(**{name: given[name] for name in Minibatch._fields if name in given})
    rule = LossRule(given["vf_loss_coeff"], given["entropy_coeff"], CLIP, is_clipped, value_clip)
    return exact.loss(space, given["head"], given["values"], rows, rule, given["total"], given["log_std"])


def differentiate(evaluate, space, given, upstream=1.0, **how):
    """Return loss, terms and gradients by head, values and log_std."""
    names = [name for name in ("head", "values", "log_std") if given[name] is not None]
    given = given | {name: given[name].detach().requires_grad_() for name in names}
    loss, sums = evaluate(space, given, **how)
    return loss.detach(), sums, *torch.autograd.grad(upstream * loss, [given[name] for name in names])


def compare(space, given, *, evaluate=in_one, within=1e-6, rtol=5e-6, sums_within=None, **how):
    """Compare the kernel with float64, and return the expected values."""
    got, want = differentiate(evaluate, space, given, **how), differentiate(loss_in_torch, space, double(given), **how)
    assert len(got) == len(want)
    for index, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        is_of_rows = index in (2, 3)
        assert mine.dtype == torch.float32
        assert_close(mine, theirs.float(), rtol=rtol, atol=within if is_of_rows or sums_within is None else sums_within)
    return want


KINDS = [
    (name, masks)
    for name, masks in itertools.product(SPACES, (False, True))
    if not (masks and SPACES[name].is_continuous)
]


OF_EITHER = [(*kind, either) for kind in KINDS for either in (False, True)]

of_every_algorithm = pytest.mark.parametrize(
    ("is_clipped", "value_clip"),
    [(False, None), by_night(True, None), (True, 0.2)],
    ids=["a2c", "ppo", "ppo with value_clip"],
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "masks"), KINDS)
@of_every_algorithm
def test_exact_loss_and_gradients_are_those_of_torch(is_clipped, value_clip, name, masks, device):
    """Exact loss and gradients equal torch's, over all rows."""
    if not BACKENDS["host"].availability().available:
        pytest.skip("no C++ compiler")
    given = arrays(SPACES[name], ROWS, masks=masks) | {"weights": None}
    given = {key: None if each is None else each.to(device) for key, each in given.items()}
    with torch.autograd.set_multithreading_enabled(False):
        compare(SPACES[name], given, evaluate=in_order, is_clipped=is_clipped, value_clip=value_clip)


@pytest.mark.parametrize(("name", "masks", "indices"), by_day(OF_EITHER, OF_EITHER[::4] + OF_EITHER[3::4]))
@of_every_algorithm
def test_loss_and_gradients_are_those_of_torch(is_clipped, value_clip, name, masks, indices, monkeypatch):
    """Loss and gradients equal torch's for each form of input.

    Every algorithm, head, mask and row choice; several blocks, the last cut short.
    """
    space = SPACES[name]
    monkeypatch.setattr(fused, "MOST_ROWS", 32)
    monkeypatch.setattr(fused, "MOST_PROGRAMS", 2)
    given = arrays(space, masks=masks, indices=indices)
    want = compare(space, given, is_clipped=is_clipped, value_clip=value_clip)
    assert 0 < want[1][4] < 0.9, "some rows are clipped, some not"
    assert want[2].abs().sum() > 0


@pytest.mark.parametrize("name", SPACES)
def test_advantages_may_be_what_values_are_short_of_returns_by(name):
    """Missing advantages are computed as returns less values.

    They give no gradient to the values.
    """
    given = arrays(SPACES[name], indices=True) | {"advantages": None}
    given["indices"] = given["indices"].long()
    _, _, _, d_values, *_ = compare(SPACES[name], given, is_clipped=False, value_clip=None)
    factor = 2 * given["vf_loss_coeff"] / given["total"] * given["weights"][:, None]
    assert_close(d_values.float(), factor * (given["values"] - given["returns"][chosen(given)]))


@pytest.mark.parametrize("name", SPACES)
def test_columns_of_one_array_have_gradients_that_are(name):
    """Columns of one array have gradients in one array.

    Adjacent heads and values are read in place.
    """
    space = SPACES[name]
    given = arrays(space, indices=True)
    how = {"is_clipped": True, "value_clip": 0.2, "is_root": True}
    want = differentiate(in_one, space, given, is_clipped=True, value_clip=0.2)
    outputs = torch.cat([given["head"], given["values"][..., None]], -1).requires_grad_()
    head, values = columns.split(outputs)
    assert columns.parent_array(head, values).data_ptr() == outputs.data_ptr()
    total, sums = in_one(space, given | {"head": head, "values": values}, **how)
    gradients = torch.autograd.grad(total, [head, values, outputs])
    assert columns.parent_array(*gradients[:2]).data_ptr() == gradients[2].data_ptr()
    assert_close(gradients[2], torch.cat([want[2], want[3][..., None]], -1))
    assert_close(sums, want[1])


@pytest.mark.parametrize("value", [-1.0, -0.25, 0.0, 0.25, 1.0])
def test_ties_of_clipped_values_are_those_of_torch(value):
    """Ties of clipped values give torch's loss and gradient.

    Ties are at the clip itself, and if the clipped value errs as much on the other side.
    """
    space = SPACES["two choices"]
    given = arrays(space, 1, 1, 1) | {"weights": None, "total": torch.tensor(1.0)}
    given |= {"values": torch.full((1, 1), value), "old_values": torch.zeros(1, 1)}
    for target in (-0.625, -0.25, 0.0, 0.25, 0.625, 2.0):
        compare(space, given | {"returns": torch.full((1, 1), target)}, is_clipped=True, value_clip=0.25)


def test_kl_keeps_its_digits_near_zero():
    """The KL divergence stays accurate near zero.

    Near 1, r - 1 - log r is half the square; plain float32 would cancel it.
    """
    space = ActionSpace((4,), 1)
    given = arrays(space, 1, 1, 1) | {"weights": None, "total": torch.tensor(1.0)}
    given |= {"head": torch.zeros(1, 1, 4), "log_probs": torch.full((1, 1), math.log(0.25) - 2.0**-10)}
    want = math.expm1(2.0**-10) - 2.0**-10
    _, terms = in_one(space, given, is_clipped=True, value_clip=None)
    assert_close(terms[3].item(), want, rtol=1e-3, atol=0)  # the log-ratio itself is right to 2^-23 of log 4


@pytest.mark.parametrize("upstream", [0.0, -2.5])
def test_gradient_is_scaled_by_what_comes_from_above(upstream):
    """The gradient is scaled if the loss is part of another."""
    space = SPACES["gaussian"]
    given = arrays(space)
    _, _, *plain = differentiate(in_one, space, given, is_clipped=True, value_clip=None)
    _, _, *scaled = differentiate(in_one, space, given, upstream, is_clipped=True, value_clip=None)
    assert len(plain) == 3
    for one, other in zip(plain, scaled, strict=True):
        assert_close(upstream * one, other)


@pytest.mark.parametrize("name", ["three types", "gaussian"])
def test_gradient_of_a_root_is_returned_as_it_is(name):
    """A root's gradient skips the scaling pass, and stays equal."""
    given, how = arrays(SPACES[name]), {"is_clipped": True, "value_clip": 0.2}
    plain = differentiate(in_one, SPACES[name], given, **how)
    root = differentiate(in_one, SPACES[name], given, **how, is_root=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, root, strict=True))
    doubled = differentiate(in_one, SPACES[name], given, 2.0, **how, is_root=True)
    assert torch.equal(doubled[2], root[2]), "what comes from above is left out"


def test_large_logits_stay_finite():
    """Large logits give a finite loss and gradients.

    Probability 0 adds no entropy; allowed logits may be below forbidden ones.
    """
    space = SPACES["five choices"]
    given = arrays(space, masks=True)
    given["head"] = given["head"] * 300
    given["log_probs"] = log_probs(space, given)
    compare(space, given, within=1e-4, is_clipped=True, value_clip=None)


def test_broken_numbers_reach_the_gradient():
    """A NaN head, value or return gives NaN gradients."""
    space = SPACES["five choices"]
    for broken in ("head", "values", "returns", "log_probs"):
        given = arrays(space) | {"weights": None}
        given[broken] = given[broken].clone()
        given[broken].view(-1)[7] = torch.nan
        loss, _, *gradients = differentiate(in_one, space, given, is_clipped=True, value_clip=0.2)
        assert loss.isnan(), broken
        assert any(each.isnan().any() for each in gradients), broken


def test_a_gaussian_needs_its_scale():
    """Continuous actions without log_std are refused."""
    space = SPACES["gaussian"]
    with pytest.raises(ConfigError, match="log_std=None"):
        in_one(space, arrays(space) | {"log_std": None}, is_clipped=True, value_clip=None)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "masks", "is_clipped"), by_day(OF_EITHER, OF_EITHER[::4] + OF_EITHER[3::4]))
def test_kernel_on_a_gpu_is_that_of_torch_to_the_same_bits(is_clipped, name, masks):
    """On a GPU, 100,001 rows equal float64's loss.

    Eager runs and graph replays are bit-identical.
    """
    space, how = SPACES[name], {"is_clipped": is_clipped, "value_clip": 0.2 if is_clipped else None}
    given = arrays(space, 120_000, 100_001, 2, masks=masks, indices=True)
    given = {key: None if each is None else each.cuda() for key, each in given.items()}
    # A ratio rounded over an edge would have another gradient; none is that near.
    ratio = (log_probs(space, double(given)) - given["log_probs"])[chosen(given)].exp()
    near = ((ratio - 1).abs() - CLIP).abs().amin(-1) < 1e-4
    given["weights"] *= ~near
    assert near.sum() < 1_000
    # Far densities have log-probabilities of some tens; their last bits affect the ratio's.
    want = compare(space, given, rtol=5e-5, sums_within=1e-6 * 200_002 / given["total"].item(), **how)
    assert want[1][4] * given["total"] > 10_000, "many rows are clipped"
    first = differentiate(in_one, space, given, **how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = differentiate(in_one, space, given, **how)
    for _ in range(2):
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(first, captured, strict=True))
