"""Perceptrons on observations that agents share, against torch on the rows of each agent."""

import pytest
import torch

from tests.training.fused_support import DEVICE, in_torch, network
from tests.training.test_fused_learning import a2c, made, views
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.fused import learning, shared
from warpdrive_min.training.paths.fused.loss import LossRule
from warpdrive_min.training.paths.fused.shared import SharedRows

OWN, MORE = 2, 3
"""Features before and behind the columns in which agents mark themselves."""
WITHIN = 1e-5
"""Errors of six products of bfloat16; interpreted products are those of float32."""


def shared_rows(n_agents, *n_envs):
    """Return what agents see, and the row of each."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(*n_envs, 1, OWN + n_agents + MORE, generator=generator)
    rows[..., OWN : OWN + n_agents] = 0
    each = rows.repeat(*[1 for _ in n_envs], n_agents, 1)
    each[..., OWN : OWN + n_agents] = torch.eye(n_agents)
    return SharedRows(rows.to(DEVICE), n_agents, OWN), each.to(DEVICE)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("precision", "within"), [("fp32", WITHIN), pytest.param("bf16", 3e-2, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n_agents", [5, 64, 100])
def test_outputs_are_those_of_the_row_of_each_agent(n_agents, precision, within, activation):
    """In torch, and in the kernel; agents fill a block, or do not."""
    seen, each = shared_rows(n_agents, 3, 4)
    w1, b1, *others = network(OWN + n_agents + MORE, 32, 16, 6)
    want = in_torch(each, (w1, b1, *others), activation)
    got = shared.outputs(seen, seen.sums(w1, b1), (w1, *others), activation, precision)
    assert got.shape == want.shape
    assert (got - want).abs().max() <= within * want.abs().max()
    first = each @ w1.T + b1
    assert torch.allclose(seen.first_layer(w1, b1), first, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_dealt", [False, True])
@pytest.mark.parametrize(("n_agents", "sizes"), [(5, (32, 32, 5)), (100, (32, 16, 5)), (70, (64, 64, 2))])
def test_gradients_are_those_of_the_row_of_each_agent(n_agents, sizes, is_dealt):
    """The kernel finds those of all rows in order, or of a minibatch, with hidden layers of one network or of two."""
    n_steps, n_envs, n_choices = 4, 3, sizes[-1]
    seen, each = shared_rows(n_agents, n_steps + 1, n_envs)
    generator, n_features = torch.Generator().manual_seed(1), each.shape[-1]

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(DEVICE)

    shape = (n_steps, n_envs, n_agents)
    rollout = {name: normal(*shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    actions = torch.randint(n_choices, (*shape, 1), generator=generator, dtype=torch.int32).to(DEVICE)
    rollout |= {"actions": actions, "masks": None, "observations": seen.rows}
    dealt = torch.tensor([7, 2, 11, 0, 5], dtype=torch.int32, device=DEVICE) if is_dealt else None
    n_rows = n_steps * n_envs if dealt is None else len(dealt)
    one, coefficient = torch.ones((), device=DEVICE), torch.full((), 0.01, device=DEVICE)
    for has_one_trunk in (True, False):
        layers, parameters, perceptron = made(normal, (n_features, *sizes), is_shared=has_one_trunk)
        gradient, rule = torch.zeros_like(parameters), LossRule(one, coefficient, 0.2, False, None)
        given = {"precision": "fp32", "n_rows": n_rows, "own_columns": OWN}
        one_pass = learning.Learning(
            perceptron, parameters, gradient, ActionSpace((n_choices,), 1), rollout, rule, **given
        )
        one_pass.find(dealt, rollout["old_values"])

        exact = parameters.double().requires_grad_()
        taken = {k: v[:n_steps].flatten(0, 1) for k, v in (rollout | {"observations": each}).items() if v is not None}
        if dealt is not None:
            taken = {k: v[dealt.long()] for k, v in taken.items()}
        doubles = {k: v.double() if v.is_floating_point() else v for k, v in taken.items()}
        a2c(views(exact, layers), has_one_trunk, doubles).backward()
        assert (gradient - exact.grad).abs().max() <= WITHIN * exact.grad.abs().max()
        weights = views(exact.detach(), layers)
        of_value = in_torch(
            doubles["observations"], weights[:4] + weights[6:] if has_one_trunk else weights[6:], "relu"
        )
        got = rollout["old_values"].flatten(0, 1)
        got = got if dealt is None else got[dealt.long()]
        assert (got - of_value[..., 0]).abs().max() <= WITHIN * of_value.abs().max()
