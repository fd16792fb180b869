"""Running normalisation: of what networks see, feature by feature, and of the scale of rewards.

Moments are of all agents, environments and steps of all ranks since training began. They change once an iteration, so
that acting and learning see the same; in evaluation they stay. Nothing synchronises, so it can be captured.

Source: Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance", for the merge of moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import torch
from torch import nn

from warpdrive_min.backends.base import Backend
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.ranks import World, average
from warpdrive_min.training.rollout import RolloutBuffer

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
        variance, mean = (each.double() for each in torch.var_mean(rows, 0, correction=0))
        together = average(mean.clone())
        return cls(together, average(variance + (mean - together) ** 2), len(rows) * World.of().size)


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
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(FIRST_COUNT, dtype=torch.float64))

    @torch.no_grad()
    def merge(self, new: Moments) -> None:
        """Take further rows into account; enqueues."""
        total = self.count + new.n_rows
        share, distance = new.n_rows / total, new.mean - self.mean
        spread = self.variance * (1 - share) + new.variance * share + distance**2 * share * (1 - share)
        self.variance.copy_(spread)
        self.mean.add_(distance * share)
        self.count.copy_(total)

    @property
    def scale(self) -> Tensor:
        """One over the standard deviation, ``shape`` float32; enqueues."""
        return (self.variance + EPSILON).rsqrt().float()


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
    def merge(self, new: Moments) -> None:
        """Take further rows into account; enqueues."""
        super().merge(new)
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


@torch.no_grad()
def take_moments(models: Mapping[str, nn.Module], buffer: RolloutBuffer) -> None:
    """Merge what was observed in a rollout into the moments of a policy's networks, by their part; enqueues."""
    of_observations: Moments | None = None
    for part, model in models.items():
        layers = normalisers(model)
        if part == "critic" and buffer.global_states is not None and layers:
            moments = Moments.of(buffer.global_states[:-1].flatten(0, -2))
        elif layers:
            moments = of_observations = of_observations or Moments.of(buffer.observations[:-1].flatten(0, -2))
        for layer in layers:
            layer.merge(moments)


class RewardScale:
    """Divides rewards by the running standard deviation of each agent's discounted return, and clips them.

    That return is of the rewards so far, ``R_t = r_t + gamma R_{t-1}``, which begins anew with each episode and goes on
    from one rollout to the next.

    Source: Engstrom et al. 2020, "Implementation matters in deep policy gradients", section 2.

    Args:
        backend: Backend of the environments.
        buffer: Rewards of a rollout, (n_steps, n_envs, n_agents).
        gamma: Discount of a step.
    """

    def __init__(self, backend: Backend, buffer: RolloutBuffer, gamma: float) -> None:
        rewards = buffer.rewards
        n_steps, n_envs, n_agents = rewards.shape
        self._gamma = gamma
        self._scan = ReturnScan(backend, n_envs, n_agents, gamma)
        self._scaled, self._returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
        self._ends = torch.zeros(n_steps, n_envs, dtype=torch.int32, device=rewards.device)
        self._never = torch.zeros_like(self._ends)
        self._carried = torch.zeros(n_envs, n_agents, device=rewards.device)
        """Return before the first step of the next rollout."""
        self.moments = RunningMoments().to(rewards.device)
        """Moments of the returns after each step."""

    @torch.no_grad()
    def scaled(self, buffer: RolloutBuffer) -> Tensor:
        """Take the rewards of a rollout into account, and return them scaled; enqueues."""
        # A scan sums what comes after a step: backwards in time, what came before it
        self._scaled.copy_(buffer.rewards.flip(0))
        ends = buffer.terminated | buffer.truncated
        self._ends[:-1] = ends[:-1].flip(0)
        self._scan.scan(self._scaled, None, self._ends, self._never, self._carried, None, None, self._returns)
        self._carried.copy_(self._returns[0].masked_fill(ends[-1, :, None] != 0, 0.0))
        self.moments.merge(Moments.of(self._returns.flatten()))
        return torch.mul(buffer.rewards, self.moments.scale, out=self._scaled).clamp_(-LARGEST, LARGEST)

    def state(self) -> dict[str, Tensor]:
        """Return the live moments, the same on all ranks."""
        return dict(self.moments.named_buffers())

    def own_state(self) -> dict[str, Tensor]:
        """Return the live returns of the episodes that go on; each rank has its own."""
        return {"returns": self._carried}
