"""Gradients of Triton's one-pass kernels, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from tests.support import by_night
from tests.training.fused_support import DEVICE, network  # (skips without Triton)
from tests.training.learning_cases import MORE, OWN, Case, Data
from tests.training.models_support import in_torch
from warpdrive_min.training.paths.fused import learning, shared
from warpdrive_min.training.paths.fused.loss import Learned, LossRule, Rows
from warpdrive_min.training.paths.triton import sizes

WITHIN = {"fp32": 1e-5, "tf32": 2e-2, "bf16": 4e-2}
"""Tolerances relative to the largest number.

That of float32 is for six products of bfloat16; interpreted products are those of float32.
"""
SIZES = [(4, 64, 64, 2), (21, 32, 64, 20), (21, 64, 64, 5), (40, 64, 64, 5), (6, 64, 32, 5), (4, 64, 64, 20)]
"""Features, units, choices: block sizes where Triton may use another product."""
A2C = Case((0, 32, 32), (5,), activation="relu", is_clipped=False, is_dealt=False, n_rows=12)
SHARED = [
    A2C._replace(n_agents=5, has_one_row=True),
    A2C._replace(sizes=(0, 32, 16), n_agents=100, n_rows=5, has_one_row=True, is_dealt=True),
    A2C._replace(sizes=(0, 64, 64), choices=(2,), n_agents=70, has_one_row=True),
]
CASES = [
    *SHARED[:2],
    by_night(SHARED[2]),
    *(by_night(each._replace(is_dealt=not each.is_dealt)) for each in SHARED),
    *(
        pytest.param(
            A2C._replace(sizes=tuple(units), choices=(n,), precision=precision, n_rows=1_600),
            marks=[pytest.mark.gpu, *([pytest.mark.nightly] if i != place % 2 else [])],
        )
        for place, precision in enumerate(WITHIN)
        for i, (*units, n) in enumerate(SIZES)
    ),
]


def found(data, vector, rule, indices, values=None, advantages=None):
    """Return the kernels' gradients and terms of a vector, or of a matrix of members."""
    gradient, case = torch.zeros_like(vector), data.case
    learned = Learned(vector, gradient, data.space, data.rollout, rule, case.n_rows)
    own_columns = OWN if case.has_one_row else None
    of_first = data.network(vector)
    one_pass = learning.Learning(of_first, learned, precision=case.precision, own_columns=own_columns)
    one_pass.find(Rows(indices, values, advantages))
    return gradient, one_pass.terms


def assert_close(got, want, within):
    """Assert errors within a share of the largest number."""
    assert got.shape == want.shape
    assert (got - want).abs().max() <= within * want.abs().max()


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_float64(case, is_shared):
    """Kernels' gradients, terms and values equal float64's."""
    data = Data(case._replace(is_shared=is_shared))
    indices = data.indices[0] if case.is_dealt else None
    values = data.rollout["old_values"]
    got, got_terms = found(data, data.vector, data.rule(), indices, values)
    want, terms, want_values = data.in_float64()
    assert_close(got, want, WITHIN[case.precision])
    assert_close(values[data.rows()], want_values, WITHIN[case.precision])
    assert_close(got_terms, terms, WITHIN[case.precision])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-5), pytest.param("bf16", 3e-2, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n_agents", [5, 64, 100])
def test_outputs_are_those_of_the_row_of_each_agent(n_agents, precision, within, activation):
    """Agents that share a row get their own outputs.

    This is checked in torch and in the kernel; agents fill a block, or do not.
    """
    data = Data(A2C._replace(n_agents=n_agents, has_one_row=True))
    seen, each = shared.SharedRows(data.rollout["observations"], n_agents, OWN), data.seen
    w1, b1, *others = network(OWN + n_agents + MORE, 32, 16, 6)
    got = shared.outputs(seen, seen.sums(w1, b1), (w1, *others), activation, precision)
    assert_close(got, in_torch(each, (w1, b1, *others), activation), within)
    assert torch.allclose(seen.first_layer(w1, b1), each @ w1.T + b1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_shared", [True, by_night(False)])
def test_networks_of_members_have_the_gradients_of_each_alone(is_shared, monkeypatch):
    """Each member of a population has its own gradient.

    Members have own minibatches, coefficients, clips, also over several programs.
    """
    monkeypatch.setattr(sizes, "n_programs", lambda *given: 2)
    case = Case((5, 16, 32), (4,), is_shared, "relu", value_clip=0.2, advantages="taken", n_rows=200, n_members=3)
    data = Data(case)
    coefficients, clips = torch.tensor([[1.0, 0.5, 2.0], [0.0, 0.01, 0.1]]).to(DEVICE), [0.1, 0.2, 0.3]
    all_clips = torch.tensor(clips, device=DEVICE)[:, None, None]
    rule = LossRule(*coefficients, all_clips, True, 0.2)
    gradients, terms = found(data, data.vector, rule, data.indices.long(), advantages=data.taken)
    for member, clip in enumerate(clips):
        rule = LossRule(*coefficients[:, member], clip, True, 0.2)
        given = data.vector[member].clone(), rule, data.rows(member)
        want, of_terms = found(data, *given, advantages=data.taken[member])
        assert torch.equal(gradients[member], want), member
        assert torch.equal(terms[:, member], of_terms), member
