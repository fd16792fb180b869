"""The case `return_scan`: discounted rewards summed up, by our kernel and by two ways of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from bench.case import Check, Point, Preset
from bench.cases.environments import SEED, available
from bench.cases.kernels.shared import OURS, implementations, on_gpu_too, prepared
from bench.measure import Timed
from warpdrive_min.backends import Backend
from warpdrive_min.training.algorithms.returns import ReturnScan


def return_scan(point: Point) -> Timed:
    """Sum up discounted rewards backwards in time: our kernel, a loop over the steps in torch, or its cumulative sum.

    The check takes the definition in float64, on the CPU, for all rows.
    """
    backend = available(point["backend"])
    shape = (point["n_steps"], point["n_envs"], point["n_agents"])
    played = random_rollout(shape, backend.device)
    scans: Mapping[str, Callable[[], None]] = {
        OURS: our_scan(backend, played),
        "torch loop": lambda: loop_scan(played),
        "torch cumsum": lambda: cumulative_scan(played),
    }

    def check() -> Check:
        played.returns.fill_(torch.nan)
        scans[point["implementation"]]()
        want = returns_in_float64(played)
        error = (played.returns.cpu().double() - want).abs().max() / want.abs().max()
        # A comparison with NaN is false, so what is not filled in does not pass.
        return Check(
            passed=bool(error <= SCAN_TOLERANCE),
            max_error=float(error.nan_to_num(nan=float("inf"), posinf=float("inf"))),
            oracle="torch in float64, on the CPU, step by step",
            detail=f"over the largest return; {SCAN_TOLERANCE:g} at most",
        )

    n_returns = played.rewards.numel()
    return prepared(
        point,
        backend,
        scans[point["implementation"]],
        check,
        units={"returns": n_returns},
        least_bytes=2 * played.rewards.nbytes + 2 * played.terminated.nbytes + played.last_values.nbytes,
        least_ops=2 * n_returns,
        n=SCANS,
    )


GAMMA: Final = 0.99
SCANS: Final = 4
"""In a run; a loop of torch has thousands of launches for each."""
SCAN_TOLERANCE: Final = 1e-4
"""Largest error as a share of the largest return: a cumulative sum in float32 takes small differences of large sums."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a rollout leaves to be scanned."""

    rewards: torch.Tensor
    """(n_steps, n_envs, n_agents) float32."""
    terminated: torch.Tensor
    """(n_steps, n_envs) int32."""
    truncated: torch.Tensor
    """Likewise."""
    last_values: torch.Tensor
    """(n_envs, n_agents): what is expected after the last step."""
    returns: torch.Tensor
    """As `rewards`; filled."""

    @property
    def goes_on(self) -> torch.Tensor:
        """1 where no episode has ended, else 0, (n_steps, n_envs, 1) float32."""
        return ((self.terminated | self.truncated) == 0)[..., None].float()


def random_rollout(shape: tuple[int, int, int], device: torch.device) -> Played:
    """Return rewards from 0 to 1 and episodes that end with a chance of one in fifty a step, half of them cut off."""
    generator = torch.Generator().manual_seed(SEED)
    ends = torch.rand(shape[:2], generator=generator)
    rewards, last_values = torch.rand(shape, generator=generator), torch.rand(shape[1:], generator=generator)
    return Played(
        rewards=rewards.to(device),
        terminated=(ends < 0.01).int().to(device),
        truncated=((ends >= 0.01) & (ends < 0.02)).int().to(device),
        last_values=last_values.to(device),
        returns=torch.zeros(shape, device=device),
    )


def our_scan(backend: Backend, played: Played) -> Callable[[], None]:
    """Set up `ReturnScan` without values."""
    _, n_envs, n_agents = played.rewards.shape
    scan = ReturnScan(backend, n_envs, n_agents, GAMMA)
    tensors = (played.rewards, None, played.terminated, played.truncated, played.last_values, None, None)
    return lambda: scan.scan(*tensors, played.returns)


def loop_scan(played: Played) -> None:
    """Go back through the steps, some torch operations each."""
    after, goes_on = played.last_values, played.goes_on
    for step in reversed(range(len(played.rewards))):
        after = torch.addcmul(played.rewards[step], after, goes_on[step], value=GAMMA)
        played.returns[step] = after


def cumulative_scan(played: Played) -> None:
    """Take sums of gamma^t r(t) from each step on, less the one from the next episode on, over gamma^t."""
    n_steps = len(played.rewards)
    steps = torch.arange(n_steps, device=played.rewards.device)
    discount = (GAMMA ** steps.float())[:, None, None]
    weighted = played.rewards * discount
    weighted[-1] += played.goes_on[-1] * played.last_values * GAMMA**n_steps
    sums = weighted.flip(0).cumsum(0).flip(0)
    ends = torch.where(played.goes_on[..., 0] != 0, n_steps - 1, steps[:, None])
    last_step = ends.flip(0).cummin(0).values.flip(0)
    beyond = torch.cat([sums[1:], torch.zeros_like(sums[:1])])
    torch.div(sums - beyond.gather(0, last_step[..., None].expand_as(sums)), discount, out=played.returns)


def returns_in_float64(played: Played) -> torch.Tensor:
    """Return the definition, (n_steps, n_envs, n_agents) float64, on the CPU."""
    rewards, after = played.rewards.cpu().double(), played.last_values.cpu().double()
    goes_on = played.goes_on.cpu()
    found = torch.empty_like(rewards)
    for step in reversed(range(len(rewards))):
        after = found[step] = rewards[step] + GAMMA * after * goes_on[step]
    return found


def scan_points(preset: Preset) -> list[Point]:
    """Return rollouts of few and of many rows."""
    sizes = [(8, 16, 1)] if preset == "smoke" else [(100, 100, 1), (100, 100, 110)]
    sizes += [(100, 10_000, 1), (50, 2_000, 110)] if on_gpu_too(preset) else []
    return [
        point
        for n_steps, n_envs, n_agents in sizes
        for point in implementations(
            {"n_steps": n_steps, "n_envs": n_envs, "n_agents": n_agents}, (OURS, "torch loop", "torch cumsum")
        )
    ]
