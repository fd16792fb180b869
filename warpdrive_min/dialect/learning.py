"""WarpDrive's learning rule: truncation is termination, a rollout is one batch."""

from __future__ import annotations

from typing import ClassVar

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import require
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.actor_critic import A2C, PPO, ActorCriticAlgorithm
from warpdrive_min.training.algorithms.ddpg import DDPG
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.config import TrainerConfig
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutBuffer

Tensor = torch.Tensor


class _WholeBatch(ActorCriticAlgorithm):
    """One update on the whole rollout, with WarpDrive's returns.

    Each time step is normalised separately.
    """

    clips_actions: ClassVar[bool] = False
    n_epochs: ClassVar[int] = 1
    n_minibatches: ClassVar[int] = 1

    def return_scan(self, backend: Backend, n_envs: int, n_agents: int) -> ReturnScan:
        """Return the scan that computes WarpDrive's returns."""
        return ReturnScan(backend, n_envs, n_agents, self.config.gamma, compat=True)

    def normalise(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Normalise each time step to mean 0 and standard deviation 1.

        ``values`` must hold all rows of the rollout, in order.
        """
        by_step = values.view_as(self.returns)
        return losses.normalise(by_step, self.weights, per_row=True).view_as(values)


class WarpDriveA2C(_WholeBatch, A2C):
    """A2C by WarpDrive's rule."""


class WarpDrivePPO(_WholeBatch, PPO):
    """PPO by WarpDrive's rule; in its single update the ratio is 1."""


class WarpDriveDDPG(DDPG):
    """DDPG by WarpDrive's rule: one update on the latest rows.

    The latest rows are a rollout's and the ``n_step - 1`` rows before it; older rows are not replayed. Truncation
    counts as termination. No update happens until enough rows exist. The critic descends the sum of its own loss and
    the actor's, because WarpDrive lets both gradients add up in it. Actions count as sampled, before clipping.

    Raises:
        ConfigError: The latest rows are fewer than 2.
    """

    clips_actions: ClassVar[bool] = False
    has_replay: ClassVar[bool] = False
    n_repeats: ClassVar[int] = 1

    def make_memory(
        self, group: PolicyGroup, buffer: RolloutBuffer, trainer: TrainerConfig, backend: Backend, seed: int
    ) -> None:
        """Allocate the buffer of the latest rows."""
        self._n_step = trainer.n_step
        n_rows = len(buffer.rewards) + self._n_step - 1
        rule = "WarpDrive's rule needs 2 rows, steps of a rollout + n_step - 1"
        require(n_rows >= 2, f"policy.{self.policy}", rule, n_rows, "raise train_batch_size or n_step")
        self._rows = {
            name: torch.zeros(n_rows, *array.shape[1:], device=self._device, dtype=torch.float32)
            for name, array in _new(buffer).items()
        }
        self._size = torch.zeros((), dtype=torch.int64, device=self._device)

    def compute_returns(self, buffer: RolloutBuffer) -> None:
        """Replace the oldest rows by the rollout; enqueues."""
        for name, new in _new(buffer).items():
            rows = self._rows[name]
            rows.copy_(torch.cat([rows[len(new) :], new]))
        self._size.add_(buffer.rewards.numel()).clamp_(max=self._rows["rewards"].numel())

    def stored_transitions(self) -> tuple[Tensor, Tensor]:
        """Return the number of rows, and True if they are too few, 0-d each."""
        return self._size, self._size < self._rows["rewards"].numel()

    def learn(self, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Update critic and actor once on all rows."""
        observations, actions, rewards, ends = self._rows.values()
        with torch.no_grad():
            following = observations[1:]
            next_q = self.target_critic.model(following, self.target_actor.model.act(following)).float()
            targets = self._normalised(n_step_returns(rewards, ends, next_q, self.config.gamma, self._n_step))
        q = self.critic(observations, actions).float()[: len(targets)]
        critic_loss = losses.critic_loss(q, targets)
        best = self.actor.act(observations)
        self.critic_optimiser.accumulate(critic_loss + self._actor_loss(best.detach()))
        actor_loss = self._actor_loss(best)
        self.actor_optimiser.accumulate(actor_loss)
        self.critic_optimiser.apply(skip)
        self.actor_optimiser.apply(skip)
        return actor_loss, critic_loss, q

    def rank_state(self) -> dict[str, Tensor]:
        """Return the live rows and their number."""
        return {**{f"rows/{name}": rows for name, rows in self._rows.items()}, "size": self._size}

    def _actor_loss(self, actions: Tensor) -> Tensor:
        return losses.actor_loss(self._normalised(self.critic(self._rows["observations"], actions).float()))

    def _normalised(self, values: Tensor) -> Tensor:
        return losses.normalise(values, per_row=True) if self.config.normalize_return else values


def _new(buffer: RolloutBuffer) -> dict[str, Tensor]:
    """Return the rollout's arrays by name."""
    return {
        "observations": buffer.observations[:-1],
        "actions": buffer.actions,
        "rewards": buffer.rewards,
        "ends": (buffer.terminated | buffer.truncated)[..., None],
    }


def n_step_returns(rewards: Tensor, dones: Tensor, next_q: Tensor, gamma: float, n: int) -> Tensor:
    """Return WarpDrive's DDPG targets from consecutive rows.

    The targets have shape ``(n_steps - n + 1, ...)``. Every end is terminal; a window stops at an end. The last row
    counts its reward only if it is an end, otherwise its undiscounted value. Unlike in WarpDrive, a done flag of 2
    counts as 1.

    Args:
        rewards: ``(n_steps, ...)``, at least 2 steps.
        dones: Flags of steps that ended an episode; shape of ``rewards``, or broadcast to it.
        next_q: ``(n_steps - 1, ...)``: row t is the value after step t.
        gamma: Discount of one step.
        n: Steps of a window, at most ``n_steps``.
    """
    is_end = (dones > 0).to(rewards.dtype)
    goes_on = 1 - is_end
    ends = rewards[n - 1 : -1] + gamma * goes_on[n - 1 : -1] * next_q[n - 1 :]
    last = is_end[-1:] * rewards[-1:] + goes_on[-1:] * next_q[-1:]
    returns = torch.cat([ends, last])
    for first in range(n - 2, -1, -1):
        rows = slice(first, first + len(returns))
        returns = rewards[rows] + gamma * goes_on[rows] * returns
    return returns
