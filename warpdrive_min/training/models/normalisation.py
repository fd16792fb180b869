"""Running normalisation of observations, feature by feature.

Moments cover all agents, environments, steps and ranks since training began. They change once an iteration, so acting
and learning use the same moments. In evaluation they do not change. Nothing synchronises, so it can be captured.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", for the merge of moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import nn

from warpdrive_min.training.ranks import World, average

if TYPE_CHECKING:
    from warpdrive_min.training.paths.exact.exact import Exact

Tensor = torch.Tensor

LARGEST: Final = 10.0
"""Clipping limit of normalised numbers, in standard deviations."""
EPSILON: Final = 1e-8
"""Added to the variance."""
FIRST_COUNT: Final = 1e-4
"""Weight of the initial mean 0 and variance 1, in rows."""


class Moments(NamedTuple):
    """Mean and variance of rows over all ranks, and the number of rows.

    Mean and variance are ``(...)`` float64.
    """

    mean: Tensor
    variance: Tensor
    n_rows: int

    @classmethod
    def of(cls, rows: Tensor, exact: Exact | None = None) -> Moments:
        """Return the moments of ``(n_rows, ...)``, equally many on each rank; enqueues.

        ``exact`` has kernels with one order of operations, for the rows of all ranks; None: torch computes.
        """
        if exact is not None:
            mean, variance = exact.moments(rows)
            return cls(mean.double(), variance.double(), len(rows))
        variance, mean = torch.var_mean(rows, 0, correction=0)
        mean, variance = mean.double(), variance.double()
        together = average(mean.clone())
        return cls(together, average(variance + (mean - together) ** 2), len(rows) * World.of().size)


class RunningMoments(nn.Module):
    """Mean and variance of all rows so far, in buffers.

    Args:
        shape: Shape of a row.
    """

    mean: Tensor
    """Mean, ``shape`` float64, like `variance`."""
    variance: Tensor
    count: Tensor
    """Rows so far, 0-d float64."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64, device="cpu"))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64, device="cpu"))
        self.register_buffer("count", torch.tensor(FIRST_COUNT, dtype=torch.float64, device="cpu"))

    @torch.no_grad()
    def merge(self, new: Moments, stopped: Tensor | None = None) -> None:
        """Add rows, unless one is not finite or its member has stopped; enqueues."""
        n_rows: int | Tensor = new.n_rows if stopped is None else new.n_rows * ~stopped
        total = self.count + n_rows
        is_taken = (new.mean + new.variance).isfinite().view(*total.shape, -1).all(-1)
        share = torch.where(is_taken, total.reciprocal() * n_rows, 0.0)
        self.count.copy_(torch.where(is_taken, total, self.count))
        axes = share.shape + (1,) * (new.mean.dim() - share.dim())
        share, is_taken = share.view(axes), is_taken.view(axes)
        distance = torch.where(is_taken, new.mean - self.mean, 0.0)
        variance = torch.where(is_taken, new.variance, 0.0)
        spread = self.variance * (1 - share) + variance * share + distance**2 * share * (1 - share)
        self.variance.copy_(spread)
        self.mean.add_(distance * share)

    @property
    def scale(self) -> Tensor:
        """One over the standard deviation, ``shape`` float32; enqueues."""
        return (self.variance + EPSILON).sqrt().reciprocal().float()


class Normaliser(RunningMoments):
    """First layer of a network: normalises and clips each feature.

    A normalised feature has mean 0 and standard deviation 1.

    Args:
        n_features: Number of features to normalise; further ones are unchanged.
    """

    centre: Tensor
    """`mean` in float32, stored to save launches in each pass."""
    factor: Tensor
    """`scale`, stored for the same reason."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features)
        self.register_buffer("centre", self.mean.float())
        self.register_buffer("factor", self.scale)

    @torch.no_grad()
    def merge(self, new: Moments, stopped: Tensor | None = None) -> None:
        """Add rows as `RunningMoments.merge`, and update the float32 copies; enqueues."""
        super().merge(new, stopped)
        self.centre.copy_(self.mean)
        self.factor.copy_(self.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs ``(..., n_features)`` normalised."""
        n = len(self.mean)
        scaled = ((inputs[..., :n] - self.centre) * self.factor).clamp(-LARGEST, LARGEST)
        return scaled if inputs.shape[-1] == n else torch.cat([scaled, inputs[..., n:]], -1)


def normalisers(model: nn.Module) -> list[Normaliser]:
    """Return the normalising layers of a network."""
    return [module for module in model.modules() if isinstance(module, Normaliser)]


def share_moments(model: nn.Module, source: nn.Module) -> None:
    """Make a copy's normalisers use the live moments of its source network."""
    for mine, theirs in zip(normalisers(model), normalisers(source), strict=True):
        for name, buffer in theirs.named_buffers():
            setattr(mine, name, buffer)
