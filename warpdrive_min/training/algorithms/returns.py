"""Returns and advantages by one backward scan, and reward scaling."""

from __future__ import annotations

from typing import NamedTuple

import torch

from warpdrive_min import backends
from warpdrive_min.backends.base import Argument, Backend, Launch
from warpdrive_min.errors import DataError, require
from warpdrive_min.function_manager import CUDAFunctionManager, KernelPlan, core_sources
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.models.normalisation import LARGEST, Moments, RunningMoments
from warpdrive_min.training.models.parts import by_member
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.triton.launch import planned_ahead

Key = tuple[tuple[int, torch.Size] | None, ...]


class Scanned(NamedTuple):
    """Arrays of a scan.

    They are ``(n_steps, n_envs, n_agents)`` float32 if not stated otherwise.
    """

    rewards: torch.Tensor
    values: torch.Tensor | None
    """Values of the observations before each step; None: plain returns only."""
    terminated: torch.Tensor
    """``(n_steps, n_envs)`` int32: the dynamics ended the episode with the step."""
    truncated: torch.Tensor
    """As ``terminated``: the time limit ended the episode."""
    last_values: torch.Tensor
    """``(n_envs, n_agents)``: values after the last step. WarpDrive's rule ignores them."""
    cut_values: torch.Tensor | None
    """``(n_cuts, n_envs, n_agents)``: values of the last observations of truncated episodes.

    They are in their order in each environment. WarpDrive's rule ignores them.
    """
    advantages: torch.Tensor | None
    """Output; None without values."""
    returns: torch.Tensor
    """Output."""


class ReturnScan:
    """Scan of rollouts for returns and generalised advantages.

    A termination is followed by no value. A truncation is followed by the value of its last observation if given, else
    by no value.

    Args:
        backend: Backend of the computation, or its name.
        n_envs: Environments.
        n_agents: Agents of each.
        gamma: Discount of a step, from 0 to 1.
        lam: From 0, advantages of one step, to 1, of the whole rest of the rollout.
        compat: WarpDrive's rule: every end is a termination. If a rollout ends within an episode, the return of its
            last step is the value there, without reward and discount. Advantages are returns minus values.

    Raises:
        ConfigError: A number is out of its range, or ``lam`` is given for WarpDrive's rule.
    """

    def __init__(
        self,
        backend: str | Backend,
        n_envs: int,
        n_agents: int,
        gamma: float,
        lam: float = 1.0,
        *,
        compat: bool = False,
    ) -> None:
        for name, number in (("gamma", gamma), ("lam", lam)):
            require(0 <= number <= 1, f"returns.{name}", "must be from 0 to 1", number)
        require(not compat or lam == 1, "returns.lam", "WarpDrive's rule has none", lam, "leave it at 1")
        self._backend = backends.get(backend) if isinstance(backend, str) else backend
        self._envs, self._rows = (n_envs,), (n_envs, n_agents)
        self._gamma, self._lam, self._is_compat = float(gamma), float(lam), compat
        self.needs_values = compat or lam != 1
        """True if returns depend on values too, not on rewards alone."""
        self._prepared: tuple[Key, Launch] | None = None

    def scan(
        self,
        rewards: torch.Tensor,
        values: torch.Tensor | None,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        last_values: torch.Tensor,
        cut_values: torch.Tensor | None,
        advantages: torch.Tensor | None,
        returns: torch.Tensor,
    ) -> None:
        """Fill ``returns`` and ``advantages``; enqueues.

        Arguments are the fields of `Scanned`. The first call with other tensors prepares the launch.

        Raises:
            DataError: As `prepared`.
        """
        self.prepared(Scanned(rewards, values, terminated, truncated, last_values, cut_values, advantages, returns))()

    def prepared(self, given: Scanned) -> Launch:
        """Return the launch of `scan` for tensors that stay in place.

        Raises:
            DataError: A tensor has another shape, dtype or device, or one of ``values`` and ``advantages`` is missing.
        """
        arrays: dict[str, torch.Tensor | None] = given._asdict()
        if self._is_compat:
            arrays |= {"last_values": None, "cut_values": None}
        key = tuple(None if array is None else (array.data_ptr(), array.shape) for array in arrays.values())
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = (key, self._prepare(arrays))
        return self._prepared[1]

    def _prepare(self, arrays: dict[str, torch.Tensor | None]) -> Launch:
        rewards, values, cut_values = arrays["rewards"], arrays["values"], arrays["cut_values"]
        assert rewards is not None
        n_steps, n_cuts = len(rewards), 0 if cut_values is None else len(cut_values)
        shapes = {"last_values": self._rows, "cut_values": (n_cuts, *self._rows)}
        for name, array in arrays.items():
            if array is not None:
                is_flag = name in ("terminated", "truncated")
                shape = shapes.get(name, (n_steps, *(self._envs if is_flag else self._rows)))
                self._check(name, array, shape, torch.int32 if is_flag else torch.float32)
        is_paired = (values is None) == (arrays["advantages"] is None)
        rule = "advantages need values, and values give advantages"
        require(is_paired, "returns", rule, do="pass both or neither", error=DataError)
        needs = "WarpDrive's rule" if self._is_compat else f"lam={self._lam}"
        require(values is not None or not self.needs_values, "returns", f"{needs} needs values", None, error=DataError)
        manager = self._plan(has_values=values is not None, has_cuts=cut_values is not None).load()
        arguments: dict[str, Argument] = {
            name: self._unused(name) if array is None else _by_row(array) for name, array in arrays.items()
        }
        arguments |= {"gamma": self._gamma, "lam": self._lam}
        arguments |= {"n_steps": n_steps, "n_cuts": n_cuts, "n_rows": manager.n_envs}
        kernel = manager.kernel("scan")
        return manager.prepare(kernel, [arguments[parameter.name] for parameter in kernel.parameters])

    def _plan(self, *, has_values: bool, has_cuts: bool) -> KernelPlan:
        n_envs, n_agents = self._rows
        functions = CUDAFunctionManager(1, n_envs * n_agents, backend=self._backend)
        # EXACT: never contracted, so that every backend computes the same.
        of_kernel = {"AGENTS_PER_ENV": n_agents, "COMPAT": self._is_compat, "EXACT": True}
        return KernelPlan(functions, core_sources("scan"), {**of_kernel, "VALUES": has_values, "CUTS": has_cuts})

    def rehearse(self, given: Scanned) -> None:
        """Compile the kernel of `prepared`, for `ahead.compiled`."""
        has_cuts = given.cut_values is not None and not self._is_compat
        planned_ahead(self._plan(has_values=given.values is not None, has_cuts=has_cuts))

    def _check(self, name: str, array: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        device = self._backend.device
        is_right = tuple(array.shape) == shape and array.dtype == dtype and array.device == device
        is_right = is_right and array.is_contiguous() and array.numel() > 0
        rule = f"must be contiguous {dtype} of shape {shape} on {device}, not empty"
        got = (array.dtype, tuple(array.shape), array.device)
        require(is_right, f"returns.{name}", rule, got, error=DataError)

    def _unused(self, name: str) -> torch.Tensor:
        """Return a placeholder for a disabled argument, of its rank and type."""
        return torch.zeros(1 if name == "last_values" else (1, 1), device=self._backend.device, dtype=torch.float32)


def _by_row(array: torch.Tensor) -> torch.Tensor:
    """Merge the axes of environments and agents into a view, except for flags."""
    return array if array.dtype == torch.int32 else array.detach().flatten(-2)


class RewardScale:
    """Reward scaling by the running std of discounted returns, with clipping.

    The return is over past rewards, ``R_t = r_t + gamma R_{t-1}``. It restarts with each episode and continues from one
    rollout to the next.

    Source: Engstrom et al. 2020, "Implementation matters in deep policy gradients", section 2.

    Args:
        backend: Backend of the environments.
        buffer: Rewards of a rollout, (n_steps, n_envs, n_agents).
        gamma: Discount of a step.
        members: Number of members of a population, each with its own moments; left out in an ordinary run.
        exact: Kernels with one order of operations, which compute the moments; None: torch does.
    """

    def __init__(
        self, backend: Backend, buffer: RolloutBuffer, gamma: float, *members: int, exact: Exact | None = None
    ) -> None:
        self._exact = exact
        rewards = buffer.rewards
        n_steps, n_envs, n_agents = rewards.shape
        self._gamma, self._members = gamma, members
        self._scan = ReturnScan(backend, n_envs, n_agents, gamma)
        self._scaled, self._returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
        self._ends = torch.zeros(n_steps, n_envs, dtype=torch.int32, device=rewards.device)
        self._never = torch.zeros_like(self._ends)
        self._carried = torch.zeros(n_envs, n_agents, device=rewards.device, dtype=torch.float32)
        """Return before the first step of the next rollout."""
        self.moments = RunningMoments(*members)
        self.moments.count = self.moments.count.expand(members).clone()
        self.moments.to(rewards.device)
        """Moments of the returns after each step."""

    @torch.no_grad()
    def scaled(self, buffer: RolloutBuffer, stopped: torch.Tensor | None = None) -> torch.Tensor:
        """Merge a rollout's rewards into the moments; return them scaled; enqueues.

        Moments of stopped members do not change.
        """
        # A scan sums over later steps; on reversed time, over earlier ones
        self._scaled.copy_(buffer.rewards.flip(0))
        ends = buffer.terminated | buffer.truncated
        self._ends[:-1] = ends[:-1].flip(0)
        self._scan.scan(self._scaled, None, self._ends, self._never, self._carried, None, None, self._returns)
        self._carried.copy_(self._returns[0].masked_fill(ends[-1, :, None] != 0, 0.0))
        returns = self._returns.flatten()
        if self._members:
            returns = by_member(self._returns, *self._members).flatten(1).T
        self.moments.merge(Moments.of(returns, self._exact), stopped)
        scale = self.moments.scale
        if self._members:
            scale = scale[:, None].expand(-1, buffer.rewards.shape[1] // len(scale)).reshape(-1, 1)
        return torch.mul(buffer.rewards, scale, out=self._scaled).clamp_(-LARGEST, LARGEST)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the live moments, equal on all ranks."""
        return dict(self.moments.named_buffers())

    def rank_state(self) -> dict[str, torch.Tensor]:
        """Return the live returns of running episodes, of this rank."""
        return {"returns": self._carried}
