"""A script that compiles Triton's kernels for a GPU where there is none, as training would launch them, and names them.

The interpreter, in which tests run without a GPU, takes more of Python than the compiler does.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths.fused import (
    activations,
    adam,
    learning,
    loss,
    narrow,
    rows,
    shared,
    wide,
)
from warpdrive_min.training.paths.fused.cpu import Network
from warpdrive_min.training.paths.fused.loss import LossRule, Minibatch

ROWS, AGENTS, SPACE = 96, 2, ActionSpace((3, 2), 2)


class AbsentGpu(DriverBase):
    """A driver that says for which architecture to compile."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        """Return the architecture."""
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        """Return the number of the device."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """Return the default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Return where the tensors are."""
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., float]:
        """Refuse to time."""
        raise NotImplementedError

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return a type as it is."""
        return ty

    @staticmethod
    def is_active() -> bool:
        """Return that there is one."""
        return True


def weights(*sizes: int) -> list[torch.Tensor]:
    """Return those of three layers."""
    shapes = [shape for n, m in itertools.pairwise(sizes) for shape in ((m, n), (m,))]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def pass_through(evaluate: Callable[..., torch.Tensor], sizes: tuple[int, ...], name: str, precision: str) -> None:
    """Go forward and back through a perceptron."""
    evaluate(torch.randn(ROWS, sizes[0]), weights(*sizes), name, precision).sum().backward()


def learn_many() -> None:
    """Find the gradients of two networks at once, each with a clip of its own."""
    n_rows, sizes = ROWS // 2, (6, 64, 32)
    shapes = [shape for n, m in itertools.pairwise((*sizes, SPACE.n_outputs)) for shape in ((m, n), (m,))]
    shapes += [(1, sizes[-1]), (1,)]
    matrix = torch.zeros(2, sum(map(math.prod, shapes)))
    views = [flat.view(shape) for flat, shape in zip(matrix[0].split([*map(math.prod, shapes)]), shapes, strict=True)]
    coefficients, clips = torch.ones(2), torch.tensor([0.1, 0.2])[:, None, None]
    rule = LossRule(coefficients, coefficients, clips, True, None)
    shape = (ROWS, 1, 1)
    rollout = {name: torch.zeros(shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    rollout |= {"observations": torch.zeros(*shape, 6), "actions": torch.zeros(*shape, 2, dtype=torch.int32)}
    network = Network(views[:6], views[:4] + views[6:], is_tanh=True, is_box=False, scale=1, offset=0, log_std=None)
    given = {"precision": "tf32", "n_rows": n_rows}
    one_pass = learning.Learning(network, matrix, matrix, SPACE, {**rollout, "masks": None}, rule, **given)
    one_pass.find(torch.zeros(2, n_rows, dtype=torch.int64))


def learn(*, is_shared: bool, is_ppo: bool, precision: str, own_columns: int | None = None) -> None:
    """Find the gradients of a small network in one pass, and those of a loss; on shared observations if so."""
    parts = weights(6, 64, 32, SPACE.n_outputs) + weights(6, 64, 32, 1)
    vector = torch.cat([part.detach().flatten() for part in parts])
    cut = zip(vector.split([part.numel() for part in parts]), parts, strict=True)
    views = [flat.view_as(part) for flat, part in cut]
    policy, value = views[:6], views[6:]
    value = policy[:4] + value[4:] if is_shared else value
    shape = (ROWS, 1, AGENTS)
    rule = LossRule(torch.ones(()), torch.ones(()), 0.2, is_ppo, 0.1 if is_ppo else None)
    rollout = {
        "observations": torch.zeros(*shape[:2], AGENTS if own_columns is None else 1, 6),
        "actions": torch.zeros(*shape, 2, dtype=torch.int32),
        **{name: torch.zeros(shape) for name in ("log_probs", "returns", "old_values")},
        "masks": torch.ones(*shape, SPACE.n_outputs, dtype=torch.int32) if is_ppo else None,
        "advantages": torch.zeros(shape) if is_ppo else None,
    }
    network = Network(policy, value, is_tanh=True, is_box=False, scale=1, offset=0, log_std=None)
    given = {"precision": precision, "n_rows": ROWS, "own_columns": own_columns}
    one_pass = learning.Learning(network, vector, vector, SPACE, rollout, rule, **given)
    indices = torch.arange(ROWS, dtype=torch.int32) if is_ppo else None
    one_pass.find(indices, None if is_ppo else rollout["old_values"])
    flat = {name: each.flatten(0, 1) for name, each in rollout.items() if each is not None}
    rows = Minibatch(
        flat["actions"],
        flat["log_probs"],
        flat["returns"],
        flat.get("advantages"),
        None,
        flat.get("masks"),
        flat["old_values"],
    )
    head = torch.zeros(ROWS, AGENTS, SPACE.n_outputs, requires_grad=True)
    loss.loss(SPACE, head, torch.zeros(ROWS, AGENTS), rows, rule, torch.ones(()), indices=indices)


def step() -> None:
    """Take a step of Adam."""
    vectors = {name: torch.zeros(3_000) for name in ("parameters", "gradient", "exp_avg", "exp_avg_sq")}
    numbers = {name: torch.zeros(()) for name in ("step", "norm", "n_skipped", "lr")}
    skip, settings = torch.zeros((), dtype=torch.bool), {"max_norm": 0.5, "eps": 1e-8, "almost_zero": 1e-6}
    adam.adam(**vectors, **numbers, skip=skip, **settings, betas=(0.9, 0.999))()


def main(capability: int) -> None:
    """Compile all kernels for an architecture, and print their names."""
    names: set[str] = set()
    run = JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        names.add(self.__name__)
        return run(self, *arguments, grid=grid, warmup=True, **named)

    JITFunction.run = compiled
    triton.runtime.driver.set_active(AbsentGpu(capability))
    rough, full = (activations.in_kernels("tanh", precision, torch.device("cuda")) for precision in ("tf32", "fp32"))
    pass_through(narrow.narrow, (6, 64, 32, 3), rough, "tf32")
    pass_through(narrow.narrow, (300, 32, 32, 3), full, "fp32")
    pass_through(wide.wide, (71, 256, 256, 23), rough, "bf16")
    learn(is_shared=True, is_ppo=True, precision="tf32")
    learn(is_shared=False, is_ppo=False, precision="fp32")
    learn(is_shared=True, is_ppo=True, precision="fp32", own_columns=3)
    learn_many()
    seen = shared.SharedRows(torch.zeros(ROWS, 1, 6), AGENTS, 3)
    w1, _, *others = weights(6, 64, 32, 3)
    shared.outputs(seen, torch.zeros(ROWS, 1, 64), (w1, *others), rough, "tf32")
    step()
    some, whole = torch.zeros(4, 3, 71), torch.zeros(4, 8, 71)
    for is_placing in (False, True):
        rows.move(some, whole, torch.arange(3), is_placing=is_placing)
    print(*sorted(names))


if __name__ == "__main__":
    main(int(sys.argv[1]))
