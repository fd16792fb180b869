"""Every Triton kernel, launched as in training or only compiled.

`python -m tests.training.triton_kernels 90` compiles for an absent GPU and prints the kernels' names. The interpreter
runs the tests without a GPU, and accepts more of Python than the compiler does.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import Precision
from warpdrive_min.training.paths.fused import activations, learning, loss, narrow, rows, shared, wide
from warpdrive_min.training.paths.fused.cpu import Network
from warpdrive_min.training.paths.fused.loss import Learned, LossRule, Minibatch, Rows

ROWS, AGENTS, SPACE = 96, 2, ActionSpace((3, 2), 2)


class AbsentGpu(DriverBase):
    """Fake driver that names an architecture to compile for."""

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
        """Refuse timing."""
        raise NotImplementedError

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Return a type as it is."""
        return ty

    @staticmethod
    def is_active() -> bool:
        """Return true: a driver is active."""
        return True


PASSES: list[tuple[Any, tuple[int, ...], tuple[Precision, ...]]] = [
    (narrow.narrow, (4, 64, 64, 3), ("tf32", "fp32", "bf16")),
    (narrow.narrow, (401, 32, 32, 6), ("fp32", "tf32", "bf16")),
    (wide.wide, (71, 256, 256, 43), ("bf16", "tf32")),
    (narrow.narrow, (40, 24, 50, 7), ("fp32", "tf32", "bf16")),
]
"""Perceptrons, their sizes, and their precisions."""


def launch_all(*, more: bool) -> None:
    """Launch all kernels on torch's device.

    Perceptrons once, or in all forms (`more`).
    """
    for evaluate, sizes, precisions in PASSES if more else PASSES[:3]:
        forms = itertools.product(precisions, ("tanh", "relu")) if more else [(precisions[0], "tanh")]
        for precision, activation in forms:
            named = activations.in_kernels(activation, precision, torch.device("cuda"))
            x = torch.rand(200, sizes[0], requires_grad=True)
            evaluate(x, weights(*sizes), named, precision).sum().backward()
            if more:
                evaluate(x.detach(), tuple(each.detach() for each in weights(*sizes)), named, precision)
    learn(is_shared=True, is_ppo=True, precision="tf32")
    learn(is_shared=False, is_ppo=False, precision="fp32")
    learn(is_shared=True, is_ppo=True, precision="fp32", own_columns=3)
    learn_many()
    w1, _, *others = weights(6, 64, 32, 3)
    named = activations.in_kernels("tanh", "tf32", torch.device("cuda"))
    seen = shared.SharedRows(torch.zeros(ROWS, 1, 6), AGENTS, 3)
    shared.outputs(seen, torch.zeros(ROWS, 1, 64), (w1, *others), named, "tf32")
    for is_placing in (False, True):
        rows.move(torch.zeros(4, 3, 71), torch.zeros(4, 8, 71), torch.arange(3), is_placing=is_placing)


def weights(*sizes: int) -> tuple[torch.Tensor, ...]:
    """Return weights and biases of layers."""
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes_of(*sizes))


def shapes_of(*sizes: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of weights and biases of layers."""
    for n, m in itertools.pairwise(sizes):
        yield from ((m, n), (m,))


def views_of(vector: torch.Tensor, shapes: Iterable[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return the parts of a vector as arrays of these shapes."""
    shapes = list(shapes)
    return [flat.view(shape) for flat, shape in zip(vector.split([*map(math.prod, shapes)]), shapes, strict=True)]


def learn_many() -> None:
    """Compute two networks' gradients at once, each with a clip."""
    n_rows, shapes = ROWS // 2, [*shapes_of(6, 64, 32, SPACE.n_outputs), (1, 32), (1,)]
    matrix = torch.zeros(2, sum(map(math.prod, shapes)))
    views = views_of(matrix[0], shapes)
    coefficients, clips = torch.ones(2), torch.tensor([0.1, 0.2])[:, None, None]
    rule = LossRule(coefficients, coefficients, clips, True, None)
    rollout = rollout_of((ROWS, 1, 1), 1) | {"masks": None}
    network = Network(views[:6], views[:4] + views[6:], is_tanh=True, is_box=False, scale=1, offset=0, log_std=None)
    learned = Learned(matrix, matrix, SPACE, rollout, rule, n_rows)
    one_pass = learning.Learning(network, learned, precision="tf32")
    one_pass.find(Rows(torch.zeros(2, n_rows, dtype=torch.int64)))


def rollout_of(shape: tuple[int, int, int], n_seen: int) -> dict[str, torch.Tensor]:
    """Return a zero rollout with rows for `n_seen` agents."""
    rollout = {name: torch.zeros(shape) for name in ("log_probs", "returns", "old_values", "advantages")}
    actions = torch.zeros(*shape, SPACE.n_types, dtype=torch.int32)
    masks = torch.ones(*shape, SPACE.n_outputs, dtype=torch.int32)
    return rollout | {"observations": torch.zeros(*shape[:2], n_seen, 6), "actions": actions, "masks": masks}


def learn(*, is_shared: bool, is_ppo: bool, precision: Precision, own_columns: int | None = None) -> None:
    """Compute gradients in one pass, and of a loss."""
    shapes = [*shapes_of(6, 64, 32, SPACE.n_outputs), *shapes_of(6, 64, 32, 1)]
    vector = torch.randn(sum(map(math.prod, shapes)))
    views = views_of(vector, shapes)
    policy, value = views[:6], views[6:]
    value = policy[:4] + value[4:] if is_shared else value
    rule = LossRule(torch.ones(()), torch.ones(()), 0.2, is_ppo, 0.1 if is_ppo else None)
    rollout = rollout_of((ROWS, 1, AGENTS), AGENTS if own_columns is None else 1)
    rollout |= {} if is_ppo else {"masks": None, "advantages": None}
    network = Network(policy, value, is_tanh=True, is_box=False, scale=1, offset=0, log_std=None)
    learned = Learned(vector, torch.zeros_like(vector), SPACE, rollout, rule, ROWS)
    one_pass = learning.Learning(network, learned, precision=precision, own_columns=own_columns)
    indices = torch.arange(ROWS, dtype=torch.int32) if is_ppo else None
    one_pass.find(Rows(indices, None if is_ppo else rollout["old_values"]))
    minibatch = Minibatch(
        **{name: None if rollout.get(name) is None else rollout[name].flatten(0, 1) for name in Minibatch._fields}
    )
    head = torch.zeros(ROWS, AGENTS, SPACE.n_outputs, requires_grad=True)
    loss.loss(SPACE, head, torch.zeros(ROWS, AGENTS), minibatch, rule, torch.ones(()), indices=indices)


def main(capability: int) -> None:
    """Compile all kernels for an architecture, and print their names."""
    names: set[str] = set()
    run = JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        names.add(self.__name__)
        return run(self, *arguments, grid=grid, warmup=True, **named)

    JITFunction.run = compiled
    triton.runtime.driver.set_active(AbsentGpu(capability))
    launch_all(more=False)
    print(*sorted(names))


if __name__ == "__main__":
    main(int(sys.argv[1]))
