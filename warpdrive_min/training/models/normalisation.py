"""Running normalisation of what networks see, feature by feature.

Moments are of all agents, environments and steps of all ranks since training began. They change once an iteration, so
that acting and learning see the same; in evaluation they stay. Nothing synchronises, so it can be captured.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", for the merge of moments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import nn

from warpdrive_min.training.ranks import World, average

Tensor = torch.Tensor

LARGEST: Final = 10.0
"""Distance from 0, in standard deviations, to which normalised numbers are clipped."""
EPSILON: Final = 1e-8
"""Added to the variance."""
FIRST_COUNT: Final = 1e-4
"""Weight, in rows, of the mean 0 and the variance 1 that moments start with."""


class Moments(NamedTuple):
    """Mean and variance of some rows on all ranks together, ``(...)`` float64, and the number of rows."""

    mean: Tensor
    variance: Tensor
    n_rows: int

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Return the moments of ``(n_rows, ...)``, of which each rank has as many; enqueues."""
        variance, mean = torch.var_mean(rows, 0, correction=0)
        return cls.found(mean, variance, len(rows))

    @classmethod
    def found(cls, mean: Tensor, variance: Tensor, n_rows: int) -> Moments:
        """Return the moments of all ranks by those of this one's rows; enqueues."""
        mean, variance = mean.double(), variance.double()
        together = average(mean.clone())
        return cls(together, average(variance + (mean - together) ** 2), n_rows * World.of().size)


class RunningMoments(nn.Module):
    """Mean and variance of all rows so far, in buffers.

    Args:
        shape: Of a row.
    """

    mean: Tensor
    """``shape``, float64, as is `variance`."""
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
        """Take further rows into account, unless one is not finite or its member has stopped; enqueues."""
        n_rows: int | Tensor = new.n_rows if stopped is None else new.n_rows * ~stopped
        total = self.count + n_rows
        is_taken = (new.mean + new.variance).isfinite().view(*total.shape, -1).all(-1)
        share = torch.where(is_taken, n_rows / total, 0.0)
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
    """First layer of a network: shifts and scales each feature to mean 0 and standard deviation 1, and clips it.

    Args:
        n_features: Features that are normalised; further ones pass as they are.
    """

    centre: Tensor
    """``mean`` in float32: each pass through the network takes few launches."""
    factor: Tensor
    """``scale``, likewise."""

    def __init__(self, n_features: int) -> None:
        super().__init__(n_features)
        self.register_buffer("centre", self.mean.float())
        self.register_buffer("factor", self.scale)

    @torch.no_grad()
    def merge(self, new: Moments, stopped: Tensor | None = None) -> None:
        """As `RunningMoments.merge`; enqueues."""
        super().merge(new, stopped)
        self.centre.copy_(self.mean)
        self.factor.copy_(self.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs ``(..., n_features)`` normalised."""
        n = len(self.mean)
        scaled = ((inputs[..., :n] - self.centre) * self.factor).clamp(-LARGEST, LARGEST)
        return scaled if inputs.shape[-1] == n else torch.cat([scaled, inputs[..., n:]], -1)


def normalisers(model: nn.Module) -> list[Normaliser]:
    """Return the layers of a network that normalise."""
    return [module for module in model.modules() if isinstance(module, Normaliser)]


def share_moments(model: nn.Module, source: nn.Module) -> None:
    """Have the normalisers of a copy of a network use the live moments of its source."""
    for mine, theirs in zip(normalisers(model), normalisers(source), strict=True):
        for name, buffer in theirs.named_buffers():
            setattr(mine, name, buffer)
