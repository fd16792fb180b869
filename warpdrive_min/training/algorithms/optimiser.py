"""Adam over flat vectors of a policy's parameters, gradients and moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from warpdrive_min.backends.base import Launch
from warpdrive_min.tracing import named
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.table import choose
from warpdrive_min.training.ranks import average

Tensor = torch.Tensor
Tensors = dict[str, Tensor]

ALMOST_ZERO: Final = 1e-6
"""Term added to the norm for clipping, as in `torch.nn.utils.clip_grad_norm_`."""
BETAS: Final = (0.9, 0.999)
"""Decay rates of the moments, as in torch."""


class FlatAdam:
    """Adam over one vector of all parameters, in a few capturable kernels.

    The parameters become views of the vector. Their gradients are gathered into another vector, averaged over ranks by
    one all-reduce, clipped by its norm, and applied. A step with a non-finite gradient is skipped and counted in
    `n_skipped`.

    Networks of a population have a first axis of members in all arrays. Each member has its own norm, count of steps
    and learning rate; numbers of different members never mix.

    Args:
        parameters: Parameters of one network, or (members, ...) each; moved into the vector, in place. Those without a
            gradient are ignored.
        lr: Learning rate, 0-d or (members,) float32 on the parameters' device; read when the step runs, so a schedule
            may write it.
        max_norm: Maximum norm of a gradient, one or (members,); None: no clipping.
        eps: Term added to the root of the second moment.
        backend: Backend that makes kernels in CUDA C; on a CPU any.

    Source: Kingma and Ba 2015, "Adam", algorithm 1.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: Tensor,
        max_norm: float | Tensor | None = None,
        eps: float = 1e-8,
        backend: str = "",
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._lr, self._max_norm, self._eps, self._backend = lr, max_norm, eps, backend
        self._has_members = lr.dim() > 0
        flat = self._gathered(parameter.detach() for parameter in self._parameters)
        make_views(self._parameters, flat)
        self.vector = torch.nn.Parameter(flat)
        """All parameters, (n,) or (members, n) float32."""
        self.gradient = torch.zeros_like(flat)
        self.vector.grad = self.gradient
        self.norm, self.n_skipped, step = (torch.zeros_like(lr) for _ in range(3))
        """`norm` of the last gradient before clipping; number of skipped steps."""
        self._moments = {"step": step, "exp_avg": torch.zeros_like(flat), "exp_avg_sq": torch.zeros_like(flat)}
        self._skip = torch.zeros_like(lr, dtype=torch.bool)
        self._adam: torch.optim.Adam | None = None
        """Torch's Adam without our kernels; creation imports a compiler (1 s)."""
        counts = {"norm": self.norm, "n_skipped": self.n_skipped, "lr": lr, "skip": self._skip}
        step_by_kernels = self._kernel({"parameters": flat, "gradient": self.gradient, **self._moments, **counts})
        self._step = step_by_kernels and named(f"Adam: {self.choice.path.name}", step_by_kernels)
        """Step by our kernels; None: torch takes it."""

    def _kernel(self, tensors: Tensors) -> Launch | None:
        """Return a step by our kernels from tensors by name, or None."""
        vector, lr, eps = tensors["parameters"], self._lr, self._eps
        facts = Facts(device=vector.device.type, backend=self._backend, is_population=self._has_members)
        self.choice = choose("Adam", facts)
        """Chosen path of the steps."""
        if (build := self.choice.path.build) is not None:
            max_norm = 0.0 if self._max_norm is None else self._max_norm
            step: Launch = build(facts, **tensors, max_norm=max_norm, eps=eps, almost_zero=ALMOST_ZERO, betas=BETAS)
            return step
        if not self._has_members:
            self._adam = torch.optim.Adam([self.vector], lr=lr, eps=eps, fused=True, capturable=vector.is_cuda)
            self._adam.state[self.vector] = self._moments
        return None

    def _gathered(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([tensor.flatten(int(self._has_members)) for tensor in tensors], -1)

    def accumulate(self, loss: Tensor, *, first: bool = True) -> None:
        """Write or add the gradient of a loss, 0-d or (members,); enqueues."""
        loss = loss.sum() if self._has_members else loss
        gradient = self._gathered(
            torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        )
        if first:
            self.gradient.copy_(gradient)
        else:
            self.gradient.add_(gradient)

    def apply(self, skip: Tensor | None = None) -> None:
        """Average the gradient over ranks, clip and apply it; enqueues.

        Args:
            skip: 0-d or (members,) bool, equal on all ranks; where true, nothing changes.
        """
        self._complete_gradient()
        if self._step is None:
            self._step_in_torch(skip)
            return
        if skip is not None:
            self._skip.copy_(skip)
        self._step()

    def _complete_gradient(self) -> None:
        """Add what other ranks have of the gradient."""
        average(self.gradient)

    def rehearse(self) -> None:
        """Launch the kernels of a step, for `ahead.compiled`."""
        if self._step is not None:
            self._step()

    @torch.no_grad()
    def _step_in_torch(self, skip: Tensor | None) -> None:
        torch.linalg.vector_norm(self.gradient, dim=-1, out=self.norm)
        is_broken = ~torch.isfinite(self.norm)
        self.n_skipped.add_(is_broken if skip is None else is_broken & ~skip)
        stays = is_broken if skip is None else is_broken | skip
        shorter = None if self._max_norm is None else ((self.norm + ALMOST_ZERO) / self._max_norm).clamp(min=1.0)
        if self._adam is None:
            self._step_of_members(stays, shorter)
            return
        # Adam's mixed-precision inputs: it divides gradients by grad_scale, and skips the step where found_inf is 1.
        self._adam.found_inf = stays.float()  # type: ignore[attr-defined]
        if shorter is not None:
            self._adam.grad_scale = shorter  # type: ignore[attr-defined]
        self._adam.step()

    def _step_of_members(self, stays: Tensor, shorter: Tensor | None) -> None:
        """Take the step of each member outside ``stays``; ``shorter`` divides gradients.

        Both are (members,).
        """
        steps, mean, square = self._moments.values()
        steps.add_(~stays)
        stays, done = stays[:, None], steps[:, None].clamp(min=1.0)
        moves = (~stays).float()
        gradient = self.gradient.masked_fill(stays, 0.0)
        if shorter is not None:
            gradient.div_(shorter[:, None].masked_fill(stays, 1.0))
        # Weights of 0 leave moments and parameters of members that stay bit-identical
        mean.lerp_(gradient, moves * (1 - BETAS[0]))
        square.lerp_(gradient.square_(), moves * (1 - BETAS[1]))
        rate = (self._lr[:, None] / (1 - BETAS[0] ** done)).masked_fill(stays, 0.0)
        root = square.sqrt().div_((1 - BETAS[1] ** done).sqrt()).add_(self._eps)
        self.vector.sub_(root.reciprocal_().mul_(mean).mul_(rate))

    def step(self, loss: Tensor, skip: Tensor | None = None) -> None:
        """Take one step along the negative gradient of a loss; enqueues."""
        self.accumulate(loss)
        self.apply(skip)

    def state(self) -> Tensors:
        """Return the live tensors to resume from: parameters, moments, counts."""
        return {"parameters": self.vector.detach(), "n_skipped": self.n_skipped, **self._moments}


class ExactAdam(FlatAdam):
    """`FlatAdam` by kernels with one order of operations, from gradients of all ranks.

    Args:
        exact: Kernels.
        parameters: As of `FlatAdam`.
        lr: As of `FlatAdam`.
        max_norm: As of `FlatAdam`.
        eps: As of `FlatAdam`.
    """

    def __init__(self, exact: Exact, parameters: Any, lr: Tensor, max_norm: float | Tensor | None, eps: float) -> None:
        self._exact = exact
        super().__init__(parameters, lr, max_norm, eps)

    def _kernel(self, tensors: Tensors) -> Launch:
        self.choice = choose("Adam", Facts(device=tensors["parameters"].device.type, is_exact=True))
        if not self._has_members:
            return self._kernel_of_one(tensors, float(self._max_norm or 0.0))
        members = range(len(tensors["lr"]))
        limits = (
            torch.as_tensor(0.0 if self._max_norm is None else self._max_norm, device="cpu")
            .expand(len(members))
            .tolist()
        )
        steps = [
            self._kernel_of_one({name: tensor[member] for name, tensor in tensors.items()}, limits[member])
            for member in members
        ]

        def take_steps() -> None:
            for step in steps:
                step()

        return take_steps

    def _kernel_of_one(self, tensors: Tensors, max_norm: float) -> Launch:
        """Return the step of one vector, clipped to a norm unless that is 0."""
        exact, n = self._exact, tensors["parameters"].numel()
        squares = torch.empty_like(tensors["gradient"])

        def take_step() -> None:
            exact.launch("square", n, x=tensors["gradient"], out=squares)
            given = {"skip": tensors["skip"].float(), "sum_of_squares": exact.column_sums(squares.view(-1, 1))}
            exact.launch("adam", n, **tensors | given, max_norm=max_norm, epsilon=self._eps)
            exact.launch("count_step", 1, **tensors | given)

        return take_step

    def _complete_gradient(self) -> None:
        """Do nothing: each rank has the gradient of all rows."""

    def accumulate(self, loss: Tensor, *, first: bool = True) -> None:
        """Run `FlatAdam.accumulate` in the calling thread, whose context has the kernels."""
        with torch.autograd.set_multithreading_enabled(False):
            super().accumulate(loss, first=first)


def make_views(parameters: Iterable[torch.nn.Parameter], flat: Tensor) -> None:
    """Turn parameters into views of an array (..., n), in place."""
    start = 0
    for parameter in parameters:
        width = parameter.numel() // flat[..., 0].numel()
        parameter.data = flat[..., start : start + width].view(parameter.shape)
        start += width
