"""Gated units, their loss, rollouts and float64 results for tests of kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tests.training.learning_cases import CLIP, DEVICE, ENTROPY_WEIGHT, VALUE_WEIGHT, WITHIN, double, loss_in_torch
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.paths.constants import N_TERMS
from warpdrive_min.training.paths.cuda_c.gated import GatedNetwork, Sizes
from warpdrive_min.training.paths.fused.loss import LossRule


class Case(NamedTuple):
    """Gated units, their loss, and the sequences."""

    sizes: tuple[int, int, int]
    """Features, units of the hidden layer, and gated units."""
    choices: tuple[int, ...] = (2,)
    is_shared: bool = True
    activation: str = "tanh"
    precision: str = "fp32"
    is_clipped: bool = True
    value_clip: float | None = None
    is_taken: bool = False
    """The minibatch has its own advantages."""
    is_masked: bool = False
    is_weighted: bool = False
    n_agents: int = 1
    n_envs: int = 20
    length: int = 3
    n_parts: int = 2
    n_sequences: int = 37


class Data:
    """Random parameters and a rollout of sequences, and the gradient in float64."""

    def __init__(self, case: Case, device: torch.device = DEVICE) -> None:
        generator = torch.Generator().manual_seed(0)
        self.case, self.device, self.space = case, device, ActionSpace(case.choices, len(case.choices))

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        n_features, hidden, units = case.sizes
        n_steps, n_outputs = case.n_parts * case.length, self.space.n_outputs
        below = [(hidden, n_features), (hidden,), (3 * units, hidden), (3 * units,), (3 * units, units), (3 * units,)]
        of_value = [] if case.is_shared else below
        self.shapes = [*below, (n_outputs, units), (n_outputs,), *of_value, (1, units), (1,)]
        of_layers = [normal(*shape) * (0.1 if len(shape) == 1 else 1.2 / shape[1] ** 0.5) for shape in self.shapes]
        self.vector = torch.cat([each.flatten() for each in of_layers]).to(device)
        rows = n_steps, case.n_envs, case.n_agents
        types = [torch.randint(n, rows, generator=generator, dtype=torch.int32) for n in case.choices]
        rollout: dict[str, Any] = {
            "observations": normal(n_steps + 1, *rows[1:], n_features),
            "states": 0.5 * normal(case.n_parts + 1, *rows[1:], units * (1 if case.is_shared else 2)),
            "begins": (normal(*rows[:2]) > 1).int(),
            "returns": 2 + normal(*rows),
            "old_values": normal(*rows),
            "advantages": normal(*rows),
            "actions": torch.stack(types, -1),
            "masks": (normal(*rows, n_outputs) > -0.5).int() if case.is_masked else None,
        }
        if case.is_masked:  # taken choices are allowed
            firsts = torch.tensor([sum(case.choices[:j]) for j in range(len(case.choices))])
            rollout["masks"].scatter_(-1, rollout["actions"].long() + firsts, 1)
        numbers = torch.arange(n_steps * case.n_envs, dtype=torch.int32)
        by_sequence = numbers.view(case.n_parts, case.length, case.n_envs).transpose(1, 2).flatten(0, 1)
        self.sequences = torch.randperm(len(by_sequence), generator=generator)[: case.n_sequences]
        self.rows = by_sequence[self.sequences].flatten().to(device)
        """Rows (step, environment) of a minibatch, by sequence and step."""
        n_rows = len(self.rows)
        self.taken = normal(n_rows, case.n_agents).to(device) if case.is_taken else None
        self.weights = (normal(n_rows, 1) > -0.5).float().to(device) if case.is_weighted else None
        self.rollout = {name: None if each is None else each.to(device) for name, each in rollout.items()}
        ones = torch.ones(n_rows, 1, device=device)
        self.total = (ones if self.weights is None else self.weights).sum() * case.n_agents
        head = self.in_float64()[3]
        log_probs, at = normal(*rows).to(device), self.rows.long()
        masks, flat = self.rollout["masks"], log_probs.view(-1, case.n_agents)
        masks = None if masks is None else masks.flatten(0, 1)[at]
        of_actions = losses.log_prob_and_entropy(self.space, head, self.rollout["actions"].flatten(0, 1)[at], masks)[0]
        flat[at] = 0.2 * flat[at] + of_actions.float()
        self.rollout["log_probs"] = log_probs

    def layers(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the layers, as views of a vector."""
        parts = vector.split([torch.Size(shape).numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def value_layers(self, layers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the value's layers, which may be the policy's but for the last."""
        return layers[:6] + layers[8:] if self.case.is_shared else layers[8:]

    def network(self) -> GatedNetwork:
        """Return the layers as views of the vector."""
        layers = self.layers(self.vector)
        return GatedNetwork(layers[:8], self.value_layers(layers), self.case.activation == "tanh")

    @property
    def kernel_sizes(self) -> Sizes:
        """Sizes of the kernels that learn."""
        return Sizes.of(self.network().policy, n_types=self.space.n_types, is_shared=self.case.is_shared)

    def unrolled(self, layers: list[torch.Tensor], *, of_value: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states and outputs of the minibatch's sequences by torch's units.

        Both have the shape ``(sequences, length, n_agents, ...)``.
        """
        case, (w1, b1, wi, bi, wh, bh, w3, b3) = self.case, layers
        units = wh.shape[1]
        rollout, at = double(self.rollout), self.rows.long()
        seen = rollout["observations"][:-1].flatten(0, 1)[at].unflatten(0, (-1, case.length))
        begins = self.rollout["begins"].flatten()[at].view(-1, case.length) != 0
        state = rollout["states"].flatten(0, 1)[self.sequences.to(self.device)]
        state = state[..., -units:] if of_value else state[..., :units]
        x = (torch.tanh if case.activation == "tanh" else torch.relu)(seen @ w1.T + b1)
        cell = torch.nn.GRUCell(wi.shape[1], units, device=self.device, dtype=torch.float64)
        given = {"weight_ih": wi, "bias_ih": bi, "weight_hh": wh, "bias_hh": bh}
        states = []
        for t in range(case.length):
            state = state.masked_fill(begins[:, t, None, None], 0.0)
            arguments = x[:, t].flatten(0, 1), state.flatten(0, 1)
            state = torch.func.functional_call(cell, given, arguments).view_as(state)
            states.append(state)
        all_states = torch.stack(states, 1)
        return all_states, all_states @ w3.T + b3

    def in_float64(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return gradient, terms, values and heads; rows in the minibatch's order."""
        vector = self.vector.double().requires_grad_()
        layers = self.layers(vector)
        head = self.unrolled(layers[:8], of_value=False)[1].flatten(0, 1)
        values = self.unrolled(self.value_layers(layers), of_value=True)[1].flatten(0, 1)[..., 0]
        if "log_probs" not in self.rollout:
            return vector, vector, values, head.detach()
        at = self.rows.long()
        rows = {
            name: None if each is None else each.flatten(0, 1)
            for name, each in double(self.rollout).items()
            if name not in ("observations", "states", "begins")
        }
        given = rows | {
            "head": head,
            "values": values,
            "advantages": rows["advantages"][at] if self.taken is None else self.taken.double(),
            "weights": None if self.weights is None else self.weights[:, 0].double(),
            **{"indices": self.rows, "log_std": None, "total": self.total},
            **{"vf_loss_coeff": VALUE_WEIGHT, "entropy_coeff": ENTROPY_WEIGHT},
        }
        how = {"is_clipped": self.case.is_clipped, "value_clip": self.case.value_clip}
        loss, terms = loss_in_torch(self.space, given, **how)
        return torch.autograd.grad(loss, vector)[0], terms, values.detach(), head.detach()

    def check(self, gradient: torch.Tensor, terms: torch.Tensor, values: torch.Tensor) -> None:
        """Assert gradient, terms and the rollout's values, within tolerance."""
        within = WITHIN[self.case.precision]
        want, of_terms, want_values, _ = self.in_float64()
        for mine, its in zip(self.layers(gradient), self.layers(want), strict=True):  # terms of small ones cancel out
            assert (mine - its).norm() <= 10 * within * (its.norm() + 1e-3 * want.norm())
        assert (gradient - want).norm() <= within * want.norm()
        torch.testing.assert_close(terms.view(N_TERMS).double(), of_terms, rtol=within, atol=within)
        mine = values.view(-1, self.case.n_agents)[self.rows.long()]
        torch.testing.assert_close(mine.double(), want_values, rtol=within, atol=within)

    def rule(self) -> LossRule:
        """Return the loss."""
        of_value, of_entropy = (torch.full((), w, device=self.device) for w in (VALUE_WEIGHT, ENTROPY_WEIGHT))
        return LossRule(of_value, of_entropy, CLIP, self.case.is_clipped, self.case.value_clip)
