"""Learning in CUDA C, by fibres and on a GPU, against torch in float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.support import BACKENDS, by_night, needs_cuda_compiler
from warpdrive_min.backends import cuda_c
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training import config
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused import matrix_units
from warpdrive_min.training.paths.fused.loss import N_TERMS, Learned, LossRule, Rows
from warpdrive_min.training.paths.fused.network import Network

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP = 0.7, 0.05, 0.2
WITHIN = {"fp32": 5e-6, "tf32": 2e-2}
"""Tolerance of outputs and terms, and of a gradient's error, relative to its norm."""


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


class Data:
    """Random parameters and a rollout, and the gradient in float64."""

    def __init__(self, case: Case, device: torch.device = DEVICE) -> None:
        generator = torch.Generator().manual_seed(0)
        self.case, self.device = case, device

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        n_features, first, second = case.sizes
        hidden = [(first, n_features), (first,), (second, first), (second,)]
        n_outputs, n_total = sum(case.choices), case.n_rows + 30
        self.shapes = [*hidden, (n_outputs, second), (n_outputs,)]
        self.shapes += [*([] if case.is_shared else hidden), (1, second), (1,)]
        of_layers = [normal(*shape) * (0.1 if len(shape) == 1 else 1.2 / shape[1] ** 0.5) for shape in self.shapes]
        one = torch.cat([each.flatten() for each in of_layers])
        self.vector = torch.stack([one, -0.7 * one, 0.5 * one][: case.n_members]) if case.n_members else one
        shape = n_total, case.n_agents
        self.rollout: dict[str, Any] = {
            "observations": normal(*shape, n_features),
            "returns": 2 + normal(*shape),
            "old_values": normal(*shape),
            "advantages": normal(*shape) if case.advantages == "rollout" else None,
            "actions": torch.stack(
                [torch.randint(n, shape, generator=generator, dtype=torch.int32) for n in case.choices], -1
            ),
            "masks": (normal(*shape, n_outputs) > -0.5).int() if case.is_masked else None,
        }
        if case.is_masked:  # taken choices are allowed, but for a type of some rows that has none
            firsts = torch.tensor([sum(case.choices[:j]) for j in range(len(case.choices))])
            self.rollout["masks"].scatter_(-1, self.rollout["actions"].long() + firsts, 1)
            if len(case.choices) > 1:
                self.rollout["masks"][:, :, : case.choices[0]][::7] = 0
        self.rollout["log_probs"] = self.log_probs(one)[0] + 0.2 * normal(*shape)
        members = max(case.n_members, 1)
        dealt = torch.stack([torch.randperm(n_total, generator=generator)[: case.n_rows].int() for _ in range(members)])
        self.indices = dealt if case.is_dealt else None
        self.taken = normal(members, case.n_rows, case.n_agents) if case.advantages == "taken" else None
        self.weights = (normal(case.n_rows, 1) > -0.5).float() if case.is_weighted else None
        self.vector = self.vector.to(device)
        self.rollout = {name: None if each is None else each.to(device) for name, each in self.rollout.items()}
        self.indices, self.taken, self.weights = (
            None if each is None else each.to(device) for each in (self.indices, self.taken, self.weights)
        )
        ones = torch.ones(case.n_rows, 1, device=device)
        self.total = (ones if self.weights is None else self.weights).sum() * case.n_agents

    def layers(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the layers, as views of a vector."""
        parts = vector.split([torch.Size(shape).numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def value_layers(self, layers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the value, which may share the policy's."""
        return layers[:4] + layers[6:] if self.case.is_shared else layers[6:]

    def outputs(self, x: torch.Tensor, layers: list[torch.Tensor]) -> torch.Tensor:
        """Return a network's outputs."""
        w1, b1, w2, b2, w3, b3 = layers
        act = getattr(torch, self.case.activation)
        return act(act(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3

    def log_probs(self, vector: torch.Tensor, at: Any = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities of the actions and entropies."""
        x = self.rollout["observations"][at].to(vector.dtype)
        logits, masks = self.outputs(x, self.layers(vector)[:6]), self.rollout["masks"]
        log_prob, entropy = torch.zeros_like(logits[..., 0]), torch.zeros_like(logits[..., 0])
        first = 0
        for j, n in enumerate(self.case.choices):
            own = logits[..., first : first + n]
            is_free = torch.ones_like(own[..., 0], dtype=torch.bool)
            if masks is not None:
                allowed = masks[at][..., first : first + n] != 0
                is_free = allowed.any(-1)
                own = torch.where(allowed | ~is_free[..., None], own, -1e30)
            logs = own.log_softmax(-1)
            chosen = logs.gather(-1, self.rollout["actions"][at][..., j : j + 1].long())[..., 0]
            log_prob = log_prob + torch.where(is_free, chosen, 0.0)
            entropy = entropy - torch.where(is_free, (logs.exp() * logs).sum(-1), 0.0)
            first += n
        return log_prob, entropy

    def in_float64(self, member: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return gradient, terms and values of a member."""
        case = self.case
        vector = self.vector.view(-1, self.vector.shape[-1])[member].double().requires_grad_()
        at = slice(0, case.n_rows) if self.indices is None else self.indices[member].long()
        rows = {
            name: self.rollout[name][at].double() for name in ("observations", "returns", "old_values", "log_probs")
        }
        log_prob, entropy = self.log_probs(vector, at)
        values = self.outputs(rows["observations"], self.value_layers(self.layers(vector)))[..., 0]
        advantages = (rows["returns"] - values).detach()
        if self.taken is not None:
            advantages = self.taken[member].double()
        elif self.rollout["advantages"] is not None:
            advantages = self.rollout["advantages"][at].double()
        log_ratio = log_prob - rows["log_probs"]
        ratio = log_ratio.exp()
        policy = -log_prob * advantages
        if case.is_clipped:
            policy = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        errors = (values - rows["returns"]).square()
        if case.value_clip is not None:
            moved = (values - rows["old_values"]).clamp(-case.value_clip, case.value_clip)
            errors = torch.maximum(errors, (rows["old_values"] + moved - rows["returns"]).square())
        terms = [policy, errors, entropy, log_ratio.expm1() - log_ratio, ((ratio - 1).abs() > CLIP).double()]
        weights = 1 if self.weights is None else self.weights.double()
        means = torch.stack([(weights * term).sum() for term in terms]) / self.total
        loss = means[0] + VALUE_WEIGHT * means[1] - ENTROPY_WEIGHT * means[2]
        return torch.autograd.grad(loss, vector)[0], means.detach(), values.detach()

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
                at = slice(0, self.case.n_rows) if self.indices is None else self.indices[member].long()
                torch.testing.assert_close(values[at].double(), want_values, rtol=within, atol=within)

    def network(self) -> Network:
        """Return the layers of the first member."""
        layers = self.layers(self.vector.view(-1, self.vector.shape[-1])[0])
        is_tanh = self.case.activation == "tanh"
        return Network(layers[:6], self.value_layers(layers), is_tanh, False, 1.0, 0.0, None)

    @property
    def space(self) -> ActionSpace:
        """Action types and their choices."""
        return ActionSpace(self.case.choices, len(self.case.choices))

    def rule(self) -> LossRule:
        """Loss with coefficients of each member."""
        shape = (self.case.n_members,) if self.case.n_members else ()
        of_value, of_entropy = (torch.full(shape, w, device=self.device) for w in (VALUE_WEIGHT, ENTROPY_WEIGHT))
        return LossRule(of_value, of_entropy, CLIP, self.case.is_clipped, self.case.value_clip)


CASES = [
    Case((4, 64, 64)),
    Case((4, 16, 32), is_shared=True, precision="tf32", is_weighted=True, is_dealt=False),
    Case((7, 24, 50), (3, 5, 2), activation="relu", advantages="values", is_masked=True, n_agents=3, n_rows=25),
    Case((12, 16, 16), (11,), is_shared=True, value_clip=0.3, is_clipped=False, advantages="taken"),
]
EMULATED = [CASES[0]._replace(sizes=(4, 32, 64), n_rows=40), *CASES[1:]]
"""The same with fewer products."""


@pytest.mark.parametrize("case", [EMULATED[2], *map(by_night, EMULATED[:2]), by_night(EMULATED[3])], ids=str)
def test_warps_of_fibres_find_the_gradients_of_float64(case, monkeypatch):
    """Lanes simulated by fibres, with products in words, find the gradients."""
    n_warps, n_blocks = 2, 2
    monkeypatch.setattr(matrix_units, "WARPS", n_warps)
    data = Data(case, torch.device("cpu"))
    sizes = matrix_units.Sizes(*case.sizes, sum(case.choices), len(case.choices), case.is_shared)
    given = {"is_tanh": case.activation == "tanh", "is_tf32": case.precision == "tf32", "is_masked": case.is_masked}
    constants = matrix_units.constants(sizes, data.space, data.rule(), n_agents=case.n_agents, **given)
    kernels = BACKENDS["host"].compile(Path(__file__).with_name("learn.cu"), constants)
    n, rollout = data.vector.numel(), data.rollout
    partial, room = (
        torch.zeros(n_blocks, n + N_TERMS),
        torch.full((n_blocks, sizes.n_bytes(learns=True) // 4), torch.nan),
    )
    gradient, terms, values = torch.zeros(n), torch.zeros(N_TERMS), rollout["old_values"].clone()
    optional = {
        "advantages": data.taken if rollout["advantages"] is None else rollout["advantages"],
        "weights": data.weights,
        "indices": data.indices,
        "masks": rollout["masks"],
    }
    has = [optional[name] is not None for name in ("advantages", "weights", "indices")] + [True, data.taken is not None]
    given = {
        **rollout,
        **{name: torch.zeros(1, dtype=torch.int32) if each is None else each for name, each in optional.items()},
        "room": room,
        "parameters": data.vector,
        "places": torch.tensor(matrix_units.places(data.network(), data.vector), dtype=torch.int32),
        "old_values": values if case.advantages == "values" else rollout["old_values"],
        "coefficients": torch.tensor([VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP]),
        "values": values,
        "partial": partial,
        "n_rows": case.n_rows * case.n_agents,
        "n_parameters": n,
        "has": sum(1 << k for k, it in enumerate(has) if it),
    }
    arguments = [given[each.name] for each in kernels["learn"].parameters]
    kernels["learn"].prepare(arguments, n_blocks, 32 * n_warps)()
    n_adding = -(-(n + N_TERMS) // 32)
    adding = [torch.zeros(n_adding, n_warps, 32), partial, data.total.view(1), gradient, terms, n_blocks, n]
    kernels["add_up"].prepare(adding, n_adding, 32 * n_warps)()
    data.check(gradient, terms, values)


@pytest.mark.parametrize("is_tf32", [False, by_night(True)])
def test_warps_of_fibres_evaluate_the_network(is_tf32):
    """Lanes simulated by fibres pass rows forward."""
    n_warps, n_blocks, n_rows = matrix_units.WARPS, 2, 300
    sizes = matrix_units.Sizes(9, 20, 32, 11, 1, False)
    data = Data(Case(sizes[:3], (11,), n_rows=n_rows), torch.device("cpu"))
    constants = sizes.constants(learns=False, is_tanh=True, is_tf32=is_tf32)
    kernel = BACKENDS["host"].compile(Path(__file__).with_name("evaluate.cu"), constants)["evaluate"]
    room = torch.full((n_blocks, sizes.n_bytes(learns=False) // 4), torch.nan)
    layers, x, out = data.layers(data.vector)[:6], data.rollout["observations"][:n_rows, 0], torch.zeros(n_rows, 11)
    kernel.prepare([room, *layers, x, out, n_rows], n_blocks, 32 * n_warps)()
    want = data.outputs(x.double(), [each.double() for each in layers])
    torch.testing.assert_close(out.double(), want, rtol=0, atol=WITHIN["tf32" if is_tf32 else "fp32"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("of_value", [False, True])
@pytest.mark.parametrize("case", [CASES[0]._replace(n_rows=30_001), CASES[1], CASES[2], CASES[3]], ids=str)
def test_a_gpu_evaluates_the_network(case, of_value, precision):
    """Logits and values equal float64's."""
    data = Data(case)
    x = data.rollout["observations"]
    layers = data.layers(data.vector)
    layers = data.value_layers(layers) if of_value else layers[:6]
    out = torch.zeros(*x.shape[:-1], len(layers[4]), device=data.device)
    with config.precision(precision, data.device):
        matrix_units.Evaluation(BACKENDS["pycuda"], data.network(), of_value=of_value)(x, out)
    want = data.outputs(x.double(), [each.double() for each in layers])
    torch.testing.assert_close(out.double(), want, rtol=WITHIN[precision], atol=WITHIN[precision])


@needs_cuda_compiler
def test_kernels_compile_for_a_gpu():
    """The kernels compile without a GPU, for one with matrix units."""
    space, sizes = ActionSpace((2,), 1), matrix_units.Sizes(4, 64, 64, 2, 1, False)
    rule = LossRule(torch.ones(()), torch.ones(()), CLIP, True, None)
    given = {"is_tanh": True, "is_tf32": True, "is_masked": False}
    constants = matrix_units.constants(sizes, space, rule, n_agents=1, **given)
    forward = sizes.constants(learns=False, is_tanh=True, is_tf32=False)
    for name, of in {"learn.cu": constants, "evaluate.cu": forward}.items():
        assert cuda_c.compile_cubin(KERNELS / name, of, "sm_90").read_bytes()[:4] == b"\x7fELF"


def found(data: Data) -> tuple[torch.Tensor, ...]:
    """Return a GPU's gradient, terms and values."""
    case, rollout = data.case, data.rollout
    gradient, values = torch.zeros_like(data.vector), rollout["old_values"].clone()
    learned = Learned(data.vector, gradient, data.space, rollout, data.rule(), case.n_rows)
    if case.advantages == "values":
        learned.rollout["old_values"] = values
    learning = matrix_units.Learning(BACKENDS["pycuda"], data.network(), learned, precision=case.precision)
    indices, taken = data.indices, data.taken
    if not case.n_members:
        indices, taken = (None if each is None else each[0] for each in (indices, taken))
    rows = Rows(indices, values, taken, data.weights, data.total)
    learning.find(rows)
    first = gradient.clone(), learning.terms.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        learning.find(rows)
    for each in (gradient, learning.terms):
        each.fill_(torch.nan)
    graph.replay()
    assert torch.equal(gradient, first[0])  # the same bits twice
    assert torch.equal(learning.terms, first[1])
    return gradient, learning.terms, values


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        CASES[0]._replace(n_rows=30_001),
        CASES[0]._replace(n_rows=100_003, is_clipped=False, is_weighted=True),
        CASES[2]._replace(n_rows=9_000, activation="tanh", advantages="rollout", value_clip=0.1),
        Case((5, 64, 32), n_rows=500, advantages="taken", n_members=3, value_clip=0.3),
        Case((21, 32, 32), (20,), activation="relu", n_rows=1_000, is_masked=True),
    ],
    ids=str,
)
def test_a_gpu_finds_the_gradients_of_float64(case, is_shared, precision):
    """Gradients, terms and values equal float64's.

    Both runs have the same bits; the second is a CUDA graph's.
    """
    data = Data(case._replace(is_shared=is_shared, precision=precision))
    data.check(*found(data))


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (Layers(4, (64, 64), 2), None),
        (Layers(40, (32, 32), 20), None),
        (Layers(4, (64, 65), 2), "needs up to 64 units"),
        (Layers(15, (64, 64), 2), None),
        (Layers(16, (64, 64), 2), "needs at most 192 sums .* 207"),
    ],
    ids=str,
)
def test_networks_whose_sums_exceed_the_registers_are_refused(layers, reason):
    """A network fits if its gradients fit into a warp's registers."""
    why = matrix_units.fits.why_not(Facts(network=layers))
    assert why == reason if reason is None else re.match(reason, why)
