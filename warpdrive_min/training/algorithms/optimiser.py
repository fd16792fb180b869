"""Adam over flat buffers: all parameters of a policy, their gradients and moments are one vector each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from warpdrive_min.backends.base import Launch
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.facts import Facts
from warpdrive_min.training.paths.table import choose
from warpdrive_min.training.ranks import average

Tensor = torch.Tensor

ALMOST_ZERO: Final = 1e-6
"""Added to the norm that gradients are divided by, as in `torch.nn.utils.clip_grad_norm_`."""
BETAS: Final = (0.9, 0.999)
"""Decay of the moments, as torch's."""


class _Flat:
    """Parameters that are gathered into one array, of which they become views, and their gradients into another.

    Args:
        parameters: Those that need no gradient are left alone.
        axis: First axis of a parameter that is flattened.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], axis: int = 0) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._axis = axis
        self._flat = self._gathered(parameter.detach() for parameter in self._parameters)
        make_views(self._parameters, self._flat)
        self.gradient = torch.zeros_like(self._flat)

    def _gathered(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensor.flatten(self._axis) for tensor in tensors], -1)

    def accumulate(self, loss: torch.Tensor, *, first: bool = True) -> None:
        """Put the gradient of a loss into `gradient`, or add it to what is there; enqueues."""
        gradient = self._gathered(
            torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        )
        if first:
            self.gradient.copy_(gradient)
        else:
            self.gradient.add_(gradient)


def make_views(parameters: Iterable[torch.nn.Parameter], flat: torch.Tensor) -> None:
    """Let parameters be views of an array (..., n) that holds their numbers side by side, in place."""
    start = 0
    for parameter in parameters:
        width = parameter.numel() // flat[..., 0].numel()
        parameter.data = flat[..., start : start + width].view(parameter.shape)
        start += width


class FlatAdam(_Flat):
    """Adam whose whole step is a handful of kernels however many parameters there are, and can be captured.

    The parameters become views of one vector; their gradients are gathered into another one, which is averaged over
    ranks by one all-reduce, clipped by its norm, and applied. A step whose gradient is not finite is not taken, but
    counted in `n_skipped`.

    Args:
        parameters: Parameters of one network; moved into the flat vector, in place.
        lr: Learning rate, 0-d float32 on the parameters' device; read when the step runs, so a schedule may write it.
        max_norm: Norm to which longer gradients are shortened; None: they are left.
        eps: Added to the root of the second moment.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: torch.Tensor,
        max_norm: float | None = None,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters)
        flat = self._flat
        self.vector = torch.nn.Parameter(flat)
        """All parameters, (n,) float32."""
        self.norm = torch.zeros((), device=flat.device, dtype=torch.float32)
        """Norm of the last gradient before it was clipped, 0-d."""
        self.n_skipped = torch.zeros((), device=flat.device, dtype=torch.float32)
        """Steps not taken because the gradient was not finite, 0-d."""
        self._max_norm = max_norm
        self.vector.grad = self.gradient
        self._moments = {
            "step": torch.zeros((), device=flat.device, dtype=torch.float32),
            "exp_avg": torch.zeros_like(flat),
            "exp_avg_sq": torch.zeros_like(flat),
        }
        self._skip = torch.zeros((), dtype=torch.bool, device=flat.device)
        self._step: Launch | None = None
        """A step by kernels of ours, where there are some."""
        self._adam: torch.optim.Adam | None = None
        """Optimiser that takes the step elsewhere; to make one imports torch's compiler, which takes a second."""
        counts = {"norm": self.norm, "n_skipped": self.n_skipped, "lr": lr, "skip": self._skip}
        tensors = {"parameters": flat, "gradient": self.gradient, **self._moments, **counts}
        self.choice = choose("Adam", Facts(device=flat.device.type))
        """Path that the steps take."""
        if (build := self.choice.path.build) is not None:
            self._step = build(**tensors, max_norm=max_norm or 0.0, eps=eps, almost_zero=ALMOST_ZERO, betas=BETAS)
        else:
            self._adam = torch.optim.Adam([self.vector], lr=lr, eps=eps, fused=True, capturable=flat.is_cuda)
            self._adam.state[self.vector] = self._moments

    def apply(self, skip: torch.Tensor | None = None) -> None:
        """Average the gradient over ranks, clip it and take the step; enqueues.

        Args:
            skip: 0-d bool: nothing changes where it is true; the same on all ranks.
        """
        average(self.gradient)
        if self._step is not None:
            if skip is not None:
                self._skip.copy_(skip)
            self._step()
            return
        assert self._adam is not None, "a step is taken by one or the other"
        torch.linalg.vector_norm(self.gradient, out=self.norm)
        is_broken = ~torch.isfinite(self.norm)
        self.n_skipped.add_(is_broken if skip is None else is_broken & ~skip)
        # Adam's arguments for mixed precision: it divides gradients by the one, and keeps still where the other is 1.
        self._adam.found_inf = (is_broken if skip is None else is_broken | skip).float()  # type: ignore[attr-defined]
        if self._max_norm is not None:
            scale = ((self.norm + ALMOST_ZERO) / self._max_norm).clamp(min=1.0)
            self._adam.grad_scale = scale  # type: ignore[attr-defined]
        self._adam.step()

    def step(self, loss: torch.Tensor, skip: torch.Tensor | None = None) -> None:
        """Take one step down the gradient of a loss; enqueues."""
        self.accumulate(loss)
        self.apply(skip)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors from which the steps go on: parameters, moments, counts."""
        return {"parameters": self.vector.detach(), "n_skipped": self.n_skipped, **self._moments}


class MembersAdam(_Flat):
    """Adam for the members of a population, each with a rate, a norm and a count of steps of its own.

    Parameters, gradients and moments are ``(members, n)``. A step is a handful of kernels, and can be captured; no
    member's numbers meet another's. A member whose gradient is not finite takes no step, which is counted.

    Args:
        parameters: Parameters of `Members`, (members, ...) each; moved into the matrix, in place.
        lr: Learning rates, (members,) float32; read when the step runs.
        max_norm: Norms to which longer gradients are shortened, one for all or (members, 1); None: they are left.
        eps: Added to the root of the second moment.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: torch.Tensor,
        max_norm: float | torch.Tensor | None = None,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, axis=1)
        self._lr, self._max_norm, self._eps = lr, max_norm, eps
        self.vector = self._flat
        """All parameters, (members, n) float32."""
        self._mean, self._square = torch.zeros_like(self.vector), torch.zeros_like(self.vector)
        self.norm, self.n_skipped, self._step = (torch.zeros_like(lr) for _ in range(3))
        """`norm` of the last gradient before it was clipped; steps not taken for want of a finite one, (members,)."""
        self._skip = torch.zeros_like(lr, dtype=torch.bool)
        self._take_step: Launch | None = None
        """A step by kernels of ours, where there are some."""
        self.choice = choose("Adam", Facts(device=lr.device.type, is_population=True))
        """Path that the steps take."""
        if (build := self.choice.path.build) is not None:
            counts = {"norm": self.norm, "n_skipped": self.n_skipped, "lr": lr, "skip": self._skip}
            tensors = self.state() | {"gradient": self.gradient, **counts}
            norms = 0.0 if max_norm is None else max_norm
            self._take_step = build(**tensors, max_norm=norms, eps=eps, almost_zero=ALMOST_ZERO, betas=BETAS)

    def accumulate(self, loss: torch.Tensor, *, first: bool = True) -> None:
        """Put the gradients of the members' losses (members,) into `gradient`, or add them; enqueues."""
        super().accumulate(loss.sum(), first=first)

    @torch.no_grad()
    def apply(self, skip: torch.Tensor | None = None) -> None:
        """Clip the gradients and take the steps; enqueues.

        Args:
            skip: Members for whom nothing changes, (members,) bool.

        Source: Kingma and Ba 2015, "Adam", algorithm 1.
        """
        if self._take_step is not None:
            if skip is not None:
                self._skip.copy_(skip)
            self._take_step()
            return
        torch.linalg.vector_norm(self.gradient, dim=1, out=self.norm)
        is_broken = ~torch.isfinite(self.norm)
        self.n_skipped.add_(is_broken if skip is None else is_broken & ~skip)
        stays = (is_broken if skip is None else is_broken | skip)[:, None]
        moves = (~stays).float()
        gradient = self.gradient.masked_fill(stays, 0.0)
        if self._max_norm is not None:
            gradient.div_(((self.norm[:, None] + ALMOST_ZERO) / self._max_norm).clamp(min=1.0).masked_fill(stays, 1.0))
        self._step.add_(moves[:, 0])
        # Of who stays every share is 0, which leaves the moments and the parameters at their bits
        self._mean.lerp_(gradient, moves * (1 - BETAS[0]))
        self._square.lerp_(gradient.square_(), moves * (1 - BETAS[1]))
        done = self._step[:, None].clamp(min=1.0)
        rate = (self._lr[:, None] / (1 - BETAS[0] ** done)).masked_fill(stays, 0.0)
        root = self._square.sqrt().div_((1 - BETAS[1] ** done).sqrt()).add_(self._eps)
        self.vector.sub_(root.reciprocal_().mul_(self._mean).mul_(rate))

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live tensors from which the steps go on: parameters, moments, counts."""
        return {
            "parameters": self.vector,
            "n_skipped": self.n_skipped,
            "step": self._step,
            "exp_avg": self._mean,
            "exp_avg_sq": self._square,
        }


class ExactAdam(FlatAdam):
    """`FlatAdam` by kernels with one order; of one rank.

    Args:
        exact: Kernels.
        parameters: As of `FlatAdam`, as are the others.
        lr: Likewise.
        max_norm: Likewise.
        eps: Likewise.
    """

    def __init__(self, exact: Exact, parameters: Any, lr: Tensor, max_norm: float | None, eps: float) -> None:
        super().__init__(parameters, lr, max_norm, eps)
        self._exact, self.lr, self._eps = exact, lr, eps
        self.choice = choose("Adam", Facts(device=lr.device.type, is_exact=True))
        self._no_skip = torch.zeros_like(self.norm)

    def accumulate(self, loss: Tensor, *, first: bool = True) -> None:
        """As `FlatAdam.accumulate`, in the thread that calls: kernels are launched in its context."""
        with torch.autograd.set_multithreading_enabled(False):
            super().accumulate(loss, first=first)

    def apply(self, skip: Tensor | None = None) -> None:
        """Clip the gradient and take the step; enqueues."""
        exact, gradient, state, n = self._exact, self.gradient, self.state(), self.vector.numel()
        skip = self._no_skip if skip is None else skip.float()
        squares = torch.empty_like(gradient)
        exact.launch("square", n, x=gradient, out=squares)
        flags = {"sum_of_squares": exact.total(squares.view(-1, 1)), "skip": skip, "step": state["step"]}
        moments = {name: state[name] for name in ("exp_avg", "exp_avg_sq")}
        arrays = {"gradient": gradient, "parameters": self.vector.detach(), "lr": self.lr, **moments, **flags}
        exact.launch("adam", n, **arrays, max_norm=self._max_norm or 0.0, epsilon=self._eps)
        exact.launch("count_step", 1, **flags, norm=self.norm, n_skipped=self.n_skipped)
