"""Gradients of small networks in one pass over the rows, on a GPU, against torch in float64."""

import pytest
import torch

from tests.training.fused_support import DEVICE, in_torch
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.fused import learning, narrow
from warpdrive_min.training.paths.fused.cpu import Network
from warpdrive_min.training.paths.fused.loss import LossRule

N_ROWS, ENTROPY = 1_600, 0.01
SIZES = [(4, 64, 64, 2), (21, 64, 64, 5), (40, 64, 64, 5), (6, 64, 32, 5), (21, 32, 64, 20), (4, 64, 64, 20)]
"""Features, units and choices: each size of a block comes where Triton could choose another kind of product."""


def a2c(parts, is_shared, rollout):
    """Return the loss of A2C on given advantages."""
    policy = parts[:6]
    value = parts[:4] + parts[6:] if is_shared else parts[6:]
    chances = torch.distributions.Categorical(logits=in_torch(rollout["observations"], policy, "relu"))
    error = in_torch(rollout["observations"], value, "relu")[..., 0] - rollout["returns"]
    gain = chances.log_prob(rollout["actions"][..., 0]) * rollout["advantages"]
    return (error**2 - gain - ENTROPY * chances.entropy()).mean()


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-5), ("tf32", 2e-2), ("bf16", 4e-2)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_on_a_gpu_are_those_of_torch(sizes, precision, within):
    """Each is within a share of the largest, with hidden layers of one network or of two."""
    n_features, *_, n_choices = sizes
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    shape = (N_ROWS, 1, 1)
    rollout = {name: normal(*shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    actions = torch.randint(n_choices, (*shape, 1), generator=generator, device="cuda", dtype=torch.int32)
    rollout |= {"observations": normal(*shape, n_features), "actions": actions, "masks": None}
    one, coefficient = torch.ones((), device="cuda"), torch.full((), ENTROPY, device="cuda")
    for is_shared in (True, False):
        layers, parameters, network = made(normal, sizes, is_shared=is_shared)
        gradient = torch.zeros_like(parameters)
        rule = LossRule(one, coefficient, 0.2, False, None)
        space = ActionSpace((n_choices,), 1)
        learning.Learning(network, parameters, gradient, space, rollout, rule, precision=precision, n_rows=N_ROWS).find(
            None
        )
        exact = parameters.double().requires_grad_()
        doubles = {k: v.double() if v is not None and v.is_floating_point() else v for k, v in rollout.items()}
        a2c(views(exact, layers), is_shared, doubles).backward()
        assert (gradient - exact.grad).abs().max() <= within * exact.grad.abs().max()


def made(normal, sizes, *, is_shared):
    """Return shapes of layers, their parameters, and the network whose policy and value share hidden layers, or not."""
    n_features, first, second, n_choices = sizes
    layers = [(first, n_features), (first,), (second, first), (second,), (n_choices, second), (n_choices,)]
    layers += [*([] if is_shared else layers[:4]), (1, second), (1,)]
    parameters = 0.2 * normal(sum(torch.Size(each).numel() for each in layers))
    parts = views(parameters, layers)
    value = parts[:4] + parts[6:] if is_shared else parts[6:]
    return layers, parameters, Network(parts[:6], value, is_tanh=False, is_box=False, scale=1, offset=0, log_std=None)


def views(parameters, layers):
    """Return the parameters of each layer, one after the other."""
    parts = parameters.split([torch.Size(each).numel() for each in layers])
    return [part.view(each) for part, each in zip(parts, layers, strict=True)]


@pytest.mark.parametrize("is_shared", [True, False])
def test_networks_of_members_have_the_gradients_of_each_alone(is_shared, monkeypatch):
    """Each sees a minibatch of its own, by coefficients and a clip of its own, also where several programs share it."""
    n_members, n_rows, sizes = 3, 200, (5, 16, 32, 4)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(DEVICE)

    monkeypatch.setattr(narrow, "n_programs", lambda *given: 2)
    shape = (n_members * n_rows, 1, 1)
    rollout = {name: normal(*shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    actions = torch.randint(4, (*shape, 1), generator=generator, dtype=torch.int32).to(DEVICE)
    rollout |= {"observations": normal(*shape, 5), "actions": actions, "masks": None}
    layers, vector, network = made(normal, sizes, is_shared=is_shared)
    matrix = torch.stack([vector, 0.5 * vector, -vector])
    parts = views(matrix[0], layers)
    network = network._replace(policy=parts[:6], value=parts[:4] + parts[6:] if is_shared else parts[6:])
    order = torch.randperm(n_members * n_rows, generator=generator).view(n_members, n_rows).to(DEVICE)
    taken = normal(n_members, n_rows, 1)
    coefficients, clips = torch.tensor([[1.0, 0.5, 2.0], [0.0, 0.01, 0.1]]).to(DEVICE), [0.1, 0.2, 0.3]

    def found(network, parameters, rule, indices, advantages):
        gradient = torch.zeros_like(parameters)
        given = {"precision": "fp32", "n_rows": n_rows}
        one_pass = learning.Learning(network, parameters, gradient, ActionSpace((4,), 1), rollout, rule, **given)
        one_pass.find(indices, advantages=advantages)
        return gradient, one_pass.terms

    all_clips = torch.tensor(clips, device=DEVICE)[:, None, None]
    gradients, terms = found(network, matrix, LossRule(*coefficients, all_clips, True, 0.2), order, taken)
    for member in range(n_members):
        vector = matrix[member].clone()
        parts = views(vector, layers)
        alone = network._replace(policy=parts[:6], value=parts[:4] + parts[6:] if is_shared else parts[6:])
        rule = LossRule(coefficients[0, member], coefficients[1, member], clips[member], True, 0.2)
        want, of_terms = found(alone, vector, rule, order[member], taken[member])
        assert torch.equal(gradients[member], want), member
        assert torch.equal(terms[:, member], of_terms), member
