"""Gradients of Triton's one-pass kernels, against torch in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from tests.support import by_night
from tests.training.fused_support import DEVICE, network  # (skips without Triton)
from tests.training.models_support import in_torch
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.fused import learning, shared
from warpdrive_min.training.paths.fused.cpu import Network
from warpdrive_min.training.paths.fused.loss import Learned, LossRule, Rows
from warpdrive_min.training.paths.fused.shared import SharedRows
from warpdrive_min.training.paths.triton import sizes

ENTROPY = 0.01
OWN, MORE = 2, 3
"""Features before and after the columns that mark agents.

The marks belong to agents that share a row.
"""
WITHIN = 1e-5
"""Tolerance for six products of bfloat16.

Interpreted products are those of float32.
"""


class Case(NamedTuple):
    """Layer sizes, precision, tolerance; agents per row, and their minibatch."""

    sizes: tuple[int, ...]
    precision: str = "fp32"
    within: float = WITHIN
    n_agents: int = 0
    is_dealt: bool = False


SIZES = [(4, 64, 64, 2), (21, 32, 64, 20), (21, 64, 64, 5), (40, 64, 64, 5), (6, 64, 32, 5), (4, 64, 64, 20)]
"""Features, units, choices: block sizes where Triton may use another product."""
BOUNDS = {"fp32": WITHIN, "tf32": 2e-2, "bf16": 4e-2}
SHARED = [
    Case((32, 32, 5), n_agents=5),
    Case((32, 16, 5), n_agents=100, is_dealt=True),
    Case((64, 64, 2), n_agents=70),
]
CASES = [
    *SHARED,
    *(by_night(each._replace(is_dealt=not each.is_dealt)) for each in SHARED),
    *(pytest.param(Case(sizes, precision, within), marks=[pytest.mark.gpu, *([pytest.mark.nightly] if late else [])])
      for precision, within in BOUNDS.items() for late, sizes in ((i > 1, sizes) for i, sizes in enumerate(SIZES))),
]  # fmt: skip


def normals(seed):
    """Return a function that draws arrays of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)


def views(parameters, layers):
    """Return the parameters of each layer, one after the other."""
    parts = parameters.split([torch.Size(each).numel() for each in layers])
    return [part.view(each) for part, each in zip(parts, layers, strict=True)]


def value_of(parts):
    """Return the value's layers, which may share the policy's."""
    return parts[:4] + parts[6:] if len(parts) == 8 else parts[6:]


def made(normal, sizes, *, has_one_trunk):
    """Return shapes of layers and their parameters."""
    n_features, first, second, n_choices = sizes
    layers = [(first, n_features), (first,), (second, first), (second,), (n_choices, second), (n_choices,)]
    layers += [*([] if has_one_trunk else layers[:4]), (1, second), (1,)]
    return layers, 0.2 * normal(sum(torch.Size(each).numel() for each in layers))


def rollout_of(normal, shape, observations, n_choices):
    """Return a rollout of noise without masks."""
    rollout: dict[str, Any] = {name: normal(*shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    actions = torch.randint(n_choices, (*shape, 1), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    return rollout | {"observations": observations, "actions": actions.to(DEVICE), "masks": None}


def found(vector, layers, rollout, rule, *rows, advantages=None, precision="fp32", **given):
    """Return the kernels' gradients and terms.

    `vector` may be a matrix of members.
    """
    gradient, parts = torch.zeros_like(vector), views(vector.view(-1, vector.shape[-1])[0], layers)
    ways = {"is_tanh": False, "is_box": False, "scale": 1, "offset": 0, "log_std": None}
    space = ActionSpace((len(parts[5]),), 1)
    perceptron = Network(parts[:6], value_of(parts), **ways)
    learned = Learned(vector, gradient, space, rollout, rule, given.pop("n_rows"))
    one_pass = learning.Learning(perceptron, learned, precision=precision, **given)
    one_pass.find(Rows(*rows, advantages=advantages))
    return gradient, one_pass.terms


def in_float64(vector, layers, rows):
    """Return the gradients of A2C on given advantages, and the values."""
    vector = vector.double().requires_grad_()
    rows = {name: row.double() if row.is_floating_point() else row for name, row in rows.items()}
    parts = views(vector, layers)
    chances = torch.distributions.Categorical(logits=in_torch(rows["observations"], parts[:6], "relu"))
    values = in_torch(rows["observations"], value_of(parts), "relu")[..., 0]
    gain = chances.log_prob(rows["actions"][..., 0]) * rows["advantages"]
    loss = ((values - rows["returns"]) ** 2 - gain - ENTROPY * chances.entropy()).mean()
    return torch.autograd.grad(loss, vector)[0], values.detach()


def assert_close(got, want, within):
    """Assert errors within a share of the largest number."""
    assert got.shape == want.shape
    assert (got - want).abs().max() <= within * want.abs().max()


def shared_rows(n_agents, *n_envs):
    """Return the agents' observations, and each one's row."""
    rows = torch.randn(*n_envs, 1, OWN + n_agents + MORE, generator=torch.Generator().manual_seed(0))
    rows[..., OWN : OWN + n_agents] = 0
    each = rows.repeat(*[1 for _ in n_envs], n_agents, 1)
    each[..., OWN : OWN + n_agents] = torch.eye(n_agents)
    return SharedRows(rows.to(DEVICE), n_agents, OWN), each.to(DEVICE)


@pytest.mark.parametrize("has_one_trunk", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_float64(case, has_one_trunk):
    """Kernels' gradients equal float64's.

    Own or shared rows, in order or as a minibatch, with intermediate values.
    """
    normal, sizes, given = normals(1), case.sizes, {"precision": case.precision}
    if case.n_agents:
        shape = 4, 3, case.n_agents
        seen, each = shared_rows(case.n_agents, 5, 3)
        observations, sizes, given["own_columns"] = seen.rows, (each.shape[-1], *sizes), OWN
    else:
        shape = 1_600, 1, 1
        observations = each = normal(*shape, sizes[0])
    rollout = rollout_of(normal, shape, observations, sizes[-1])
    dealt = torch.tensor([7, 2, 11, 0, 5], dtype=torch.int32, device=DEVICE) if case.is_dealt else None
    rows = slice(None) if dealt is None else dealt.long()
    taken = {
        k: v[: shape[0]].flatten(0, 1)[rows] for k, v in (rollout | {"observations": each}).items() if v is not None
    }
    layers, vector = made(normal, sizes, has_one_trunk=has_one_trunk)
    one, coefficient = torch.ones((), device=DEVICE), torch.full((), ENTROPY, device=DEVICE)
    rule = LossRule(one, coefficient, 0.2, False, None)
    got, _ = found(vector, layers, rollout, rule, dealt, rollout["old_values"], n_rows=len(taken["returns"]), **given)
    want, values = in_float64(vector, layers, taken)
    assert_close(got, want, case.within)
    assert_close(rollout["old_values"].flatten(0, 1)[rows], values, case.within)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("precision", "within"), [("fp32", WITHIN), pytest.param("bf16", 3e-2, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n_agents", [5, 64, 100])
def test_outputs_are_those_of_the_row_of_each_agent(n_agents, precision, within, activation):
    """Agents that share a row get their own outputs.

    This is checked in torch and in the kernel; agents fill a block, or do not.
    """
    seen, each = shared_rows(n_agents, 3, 4)
    w1, b1, *others = network(OWN + n_agents + MORE, 32, 16, 6)
    got = shared.outputs(seen, seen.sums(w1, b1), (w1, *others), activation, precision)
    assert_close(got, in_torch(each, (w1, b1, *others), activation), within)
    assert torch.allclose(seen.first_layer(w1, b1), each @ w1.T + b1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_one_trunk", [True, False])
def test_networks_of_members_have_the_gradients_of_each_alone(has_one_trunk, monkeypatch):
    """Each member of a population has its own gradient.

    Members have own minibatches, coefficients, clips, also over several programs.
    """
    n_members, n_rows, normal = 3, 200, normals(0)
    monkeypatch.setattr(sizes, "n_programs", lambda *given: 2)
    shape = (n_members * n_rows, 1, 1)
    rollout = rollout_of(normal, shape, normal(*shape, 5), 4)
    layers, vector = made(normal, (5, 16, 32, 4), has_one_trunk=has_one_trunk)
    matrix = torch.stack([vector, 0.5 * vector, -vector])
    order = torch.randperm(n_members * n_rows, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    order, taken = order.view(n_members, n_rows), normal(n_members, n_rows, 1)
    coefficients, clips = torch.tensor([[1.0, 0.5, 2.0], [0.0, 0.01, 0.1]]).to(DEVICE), [0.1, 0.2, 0.3]
    all_clips = torch.tensor(clips, device=DEVICE)[:, None, None]

    def of(vector, rule, member):
        given = {"advantages": taken[member], "n_rows": n_rows}
        return found(vector, layers, rollout, rule, order[member], **given)

    gradients, terms = of(matrix, LossRule(*coefficients, all_clips, True, 0.2), slice(None))
    for member, clip in enumerate(clips):
        rule = LossRule(*coefficients[:, member], clip, True, 0.2)
        want, of_terms = of(matrix[member].clone(), rule, member)
        assert torch.equal(gradients[member], want), member
        assert torch.equal(terms[:, member], of_terms), member
