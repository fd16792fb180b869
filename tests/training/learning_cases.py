"""Networks, losses, rollouts and float64 results for tests of learning kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tests.training.models_support import in_torch
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.fused.loss import LossRule
from warpdrive_min.training.paths.fused.network import Network

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP = 0.7, 0.05, 0.2
WITHIN = {"fp32": 5e-6, "tf32": 2e-2}
"""Tolerance of outputs and terms, and of a gradient's error, relative to its norm."""
OWN, MORE = 2, 3
"""Features before and after the columns that mark agents, which share a row."""


def chosen(given):
    """Return the rollout rows of a minibatch."""
    return slice(0, len(given["head"])) if given["indices"] is None else given["indices"].long()


def log_probs(space, given):
    """Return a head's log-probabilities at a minibatch's rollout rows, 0 elsewhere."""
    out, rows = (
        torch.zeros(given["actions"].shape[:2], dtype=given["head"].dtype, device=given["head"].device),
        chosen(given),
    )
    masks = None if given["masks"] is None else given["masks"][rows]
    out[rows] = losses.log_prob_and_entropy(space, given["head"], given["actions"][rows], masks, given["log_std"])[0]
    return out


def loss_in_torch(space, given, *, is_clipped, value_clip):
    """Return loss and terms, computed by torch from complete tensors."""
    rows = chosen(given)
    actions, masks, old, returns, old_values = (
        None if given[name] is None else given[name][rows]
        for name in ("actions", "masks", "log_probs", "returns", "old_values")
    )
    values, advantages, weights = given["values"], given["advantages"], given["weights"]
    if advantages is None:
        advantages = returns - values.detach()
    weights = torch.ones_like(values) if weights is None else weights[:, None]
    log_prob, entropy = losses.log_prob_and_entropy(space, given["head"], actions, masks, given["log_std"])
    log_ratio = log_prob - old
    if is_clipped:
        policy = losses.clipped_surrogate_loss(log_ratio, advantages, CLIP)
    else:
        policy = losses.policy_gradient_loss(log_prob, advantages)
    value = losses.value_loss(values, returns, old_values, value_clip)
    kl, clipped = losses.approximate_kl(log_ratio), losses.clip_fraction(log_ratio, CLIP)
    sums = [(term * weights).sum() / given["total"] for term in (policy, value, entropy, kl, clipped)]
    loss = sums[0] + given["vf_loss_coeff"] * sums[1] - given["entropy_coeff"] * sums[2]
    return loss, torch.stack(sums).detach()


def double(given):
    """Return the same arguments in float64."""
    return {
        name: array.double() if array is not None and array.is_floating_point() else array
        for name, array in given.items()
    }


class Case(NamedTuple):
    """A network, its loss, and the rows."""

    sizes: tuple[int, int, int]
    """Features and units of two layers."""
    choices: tuple[int, ...] = (2,)
    is_shared: bool = False
    activation: str = "tanh"
    precision: str = "fp32"
    is_clipped: bool = True
    value_clip: float | None = None
    advantages: str = "rollout"
    """Those of the rollout, of the minibatch ("taken"), or None: from values."""
    is_masked: bool = False
    is_weighted: bool = False
    is_dealt: bool = True
    n_agents: int = 1
    n_rows: int = 90
    n_members: int = 0
    has_one_row: bool = False
    """All agents share a row, which marks each."""


class Data:
    """Random parameters and a rollout, and the gradient in float64."""

    def __init__(self, case: Case, device: torch.device = DEVICE) -> None:
        generator = torch.Generator().manual_seed(0)
        self.case, self.device = case, device
        self.space = ActionSpace(case.choices, len(case.choices))

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        shape = n_total, n_agents = case.n_rows + 30, case.n_agents
        n_features, first, second = case.sizes
        if case.has_one_row:
            n_features = OWN + n_agents + MORE
            rows = normal(n_total, 1, n_features)
            rows[..., OWN : OWN + n_agents] = 0
            self.seen = rows.repeat(1, n_agents, 1)
            self.seen[..., OWN : OWN + n_agents] = torch.eye(n_agents)
        else:
            rows = self.seen = normal(*shape, n_features)
        hidden = [(first, n_features), (first,), (second, first), (second,)]
        n_outputs = self.space.n_outputs
        self.shapes = [*hidden, (n_outputs, second), (n_outputs,)]
        self.shapes += [*([] if case.is_shared else hidden), (1, second), (1,)]
        of_layers = [normal(*shape) * (0.1 if len(shape) == 1 else 1.2 / shape[1] ** 0.5) for shape in self.shapes]
        one = torch.cat([each.flatten() for each in of_layers])
        self.vector = torch.stack([one, -0.7 * one, 0.5 * one][: case.n_members]) if case.n_members else one
        types = [torch.randint(n, shape, generator=generator, dtype=torch.int32) for n in case.choices]
        self.rollout: dict[str, Any] = {
            "observations": rows,
            "returns": 2 + normal(*shape),
            "old_values": normal(*shape),
            "advantages": normal(*shape) if case.advantages == "rollout" else None,
            "actions": torch.stack(types, -1),
            "masks": (normal(*shape, n_outputs) > -0.5).int() if case.is_masked else None,
        }
        if case.is_masked:  # taken choices are allowed, but for a type of some rows that has none
            firsts = torch.tensor([sum(case.choices[:j]) for j in range(len(case.choices))])
            self.rollout["masks"].scatter_(-1, self.rollout["actions"].long() + firsts, 1)
            if len(case.choices) > 1:
                self.rollout["masks"][:, :, : case.choices[0]][::7] = 0
        head = in_torch(self.seen, self.layers(one)[:6], case.activation)
        of_actions = losses.log_prob_and_entropy(self.space, head, self.rollout["actions"], self.rollout["masks"])
        self.rollout["log_probs"] = of_actions[0] + 0.2 * normal(*shape)
        members = max(case.n_members, 1)
        dealt = torch.stack([torch.randperm(n_total, generator=generator)[: case.n_rows].int() for _ in range(members)])
        self.indices = dealt if case.is_dealt else None
        self.taken = normal(members, case.n_rows, n_agents) if case.advantages == "taken" else None
        self.weights = (normal(case.n_rows, 1) > -0.5).float() if case.is_weighted else None
        self.rollout = {name: None if each is None else each.to(device) for name, each in self.rollout.items()}
        self.vector, self.seen, self.indices, self.taken, self.weights = (
            None if each is None else each.to(device)
            for each in (self.vector, self.seen, self.indices, self.taken, self.weights)
        )
        ones = torch.ones(case.n_rows, 1, device=device)
        self.total = (ones if self.weights is None else self.weights).sum() * n_agents

    def layers(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the layers, as views of a vector."""
        parts = vector.split([torch.Size(shape).numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def value_layers(self, layers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the value's layers; its hidden layers may be the policy's."""
        return layers[:4] + layers[6:] if self.case.is_shared else layers[6:]

    def rows(self, member: int = 0) -> Any:
        """Return the rollout rows of a member's minibatch."""
        return slice(0, self.case.n_rows) if self.indices is None else self.indices[member].long()

    def in_float64(self, member: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return gradient, terms and values of a member."""
        at = self.rows(member)
        vector = self.vector.view(-1, self.vector.shape[-1])[member].double().requires_grad_()
        parts, seen = self.layers(vector), self.seen[at].double()
        advantages = self.rollout["advantages"]
        given = double(self.rollout) | {
            "head": in_torch(seen, parts[:6], self.case.activation),
            "values": in_torch(seen, self.value_layers(parts), self.case.activation)[..., 0],
            "advantages": None if advantages is None else advantages[at].double(),
            "weights": None if self.weights is None else self.weights[:, 0].double(),
            **{"indices": None if self.indices is None else at, "log_std": None, "total": self.total},
            **{"vf_loss_coeff": VALUE_WEIGHT, "entropy_coeff": ENTROPY_WEIGHT},
        }
        if self.taken is not None:
            given["advantages"] = self.taken[member].double()
        how = {"is_clipped": self.case.is_clipped, "value_clip": self.case.value_clip}
        loss, terms = loss_in_torch(self.space, given, **how)
        return torch.autograd.grad(loss, vector)[0], terms, given["values"].detach()

    def check(self, gradient: torch.Tensor, terms: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Assert results of all members, within tolerance."""
        within = WITHIN[self.case.precision]
        for member, got in enumerate(gradient.view(-1, gradient.shape[-1])):
            want, of_terms, want_values = self.in_float64(member)
            assert (got - want).norm() <= within * want.norm()
            for mine, its in zip(self.layers(got), self.layers(want), strict=True):  # terms of small ones cancel out
                assert (mine - its).norm() <= 10 * within * (its.norm() + 1e-3 * want.norm())
            torch.testing.assert_close(terms.view(N_TERMS, -1)[:, member].double(), of_terms, rtol=within, atol=within)
            if values is not None and not self.case.n_members:  # members of a test share rows
                torch.testing.assert_close(values[self.rows(member)].double(), want_values, rtol=within, atol=within)

    def network(self, vector: torch.Tensor | None = None) -> Network:
        """Return the layers of the first member, as views of a vector or matrix."""
        vector = self.vector if vector is None else vector
        layers = self.layers(vector.view(-1, vector.shape[-1])[0])
        is_tanh = self.case.activation == "tanh"
        return Network(layers[:6], self.value_layers(layers), is_tanh, False, 1.0, 0.0, None)

    def rule(self) -> LossRule:
        """Loss with coefficients of each member."""
        shape = (self.case.n_members,) if self.case.n_members else ()
        of_value, of_entropy = (torch.full(shape, w, device=self.device) for w in (VALUE_WEIGHT, ENTROPY_WEIGHT))
        return LossRule(of_value, of_entropy, CLIP, self.case.is_clipped, self.case.value_clip)


def find_twice(learning, rows, gradient):
    """Find a gradient and terms, then by a CUDA graph: both have the same bits."""
    learning.find(rows)
    first = gradient.clone(), learning.terms.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        learning.find(rows)
    for each in (gradient, learning.terms):
        each.fill_(torch.nan)
    graph.replay()
    assert torch.equal(gradient, first[0])
    assert torch.equal(learning.terms, first[1])
