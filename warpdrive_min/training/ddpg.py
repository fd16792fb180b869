"""DDPG: an actor whose actions follow from what it sees, and a critic that tells it where better ones lie."""

from __future__ import annotations

import abc
import copy
from typing import TYPE_CHECKING, Any, Final

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import ConfigError
from warpdrive_min.training import losses
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import PolicyConfig
from warpdrive_min.training.optimiser import FlatAdam
from warpdrive_min.training.precision import Precision, precision
from warpdrive_min.training.replay import ReplayBuffer

if TYPE_CHECKING:
    from warpdrive_min.training.rollout import Batch

Tensor = torch.Tensor

METRICS: Final = ("actor_loss", "critic_loss", "mean_q", "max_q", "n_skipped_steps", "buffer_size")


class Target:
    """A copy of a network that follows its weights slowly.

    Args:
        model: To follow; its parameters lie in the optimiser's vector.
        optimiser: Of the model.
    """

    def __init__(self, model: torch.nn.Module, optimiser: FlatAdam) -> None:
        self._followed = optimiser.vector.detach()
        self.vector = self._followed.clone()
        """All parameters, (n,) float32."""
        self.model: Any = copy.deepcopy(model)
        start = 0
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = self.vector[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
        self.model.requires_grad_(False)

    def follow(self, share: Tensor) -> None:
        """Take over a share, 0-d, of the weights as they are now; enqueues."""
        self.vector.lerp_(self._followed, share)


class DeterministicPolicyGradient(abc.ABC):
    """Two networks, their targets and optimisers, and the update around a rule of learning.

    `update` does the same whatever is on the device, so a CUDA graph captures it whole.

    Args:
        policy: Name of the policy.
        config: Its settings.
        actor: Offers ``act(observations) -> actions``.
        critic: Values actions, ``critic(observations, actions)``.
        batch: What the policy's agents saw and did.
        precision: In which matrices are multiplied.
    """

    def __init__(
        self, policy: str, config: PolicyConfig, actor: Any, critic: Any, batch: Batch, precision: Precision
    ) -> None:
        assert config.tau is not None, "of DDPG, which the config checks"
        self.policy, self.config, self.actor, self.critic = policy, config, actor, critic
        self._batch, self._tau, self._precision = batch, config.tau, precision
        self._device = batch.rewards.device
        self.scheduled = {name: torch.zeros((), device=self._device) for name in ("lr/actor", "lr/critic")}
        """Learning rates, 0-d; written before each update."""
        max_norm = config.max_grad_norm if config.clip_grad_norm else None
        self.actor_optimiser, self.critic_optimiser = (
            FlatAdam(model.parameters(), lr, max_norm, config.adam_eps)
            for model, lr in zip((actor, critic), self.scheduled.values(), strict=True)
        )
        self.target_actor = Target(actor, self.actor_optimiser)
        self.target_critic = Target(critic, self.critic_optimiser)
        self.metrics = {name: torch.zeros((), device=self._device) for name in METRICS}
        """Of the last step of the last update, 0-d; ``n_skipped_steps`` of all."""
        self.metrics["gradient_norm_actor"] = self.actor_optimiser.norm
        self.metrics["gradient_norm_critic"] = self.critic_optimiser.norm

    @property
    @abc.abstractmethod
    def n_repeats(self) -> int:
        """Steps of each optimiser in an update."""

    @abc.abstractmethod
    def remember(self) -> tuple[Tensor, Tensor]:
        """Take in the rollout; returns how many transitions there are, and whether they are too few, 0-d each."""

    @abc.abstractmethod
    def learn(self, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step of each optimiser, none where ``skip`` (0-d bool) is true.

        Returns:
            Losses of the actor and the critic, 0-d, and what the critic said of the actions taken.
        """

    @abc.abstractmethod
    def own_state(self) -> dict[str, Tensor]:
        """Return the live tensors of what is remembered and of what is drawn from it; each rank has its own."""

    def update(self) -> None:
        """Learn from the rollout in the batch and from what is remembered; enqueues, does not synchronise."""
        with precision(self._precision, self._device):
            size, skip = self.remember()
            share = torch.where(skip, 0.0, self._tau)
            for _ in range(self.n_repeats):
                actor_loss, critic_loss, q = self.learn(skip)
                self.target_actor.follow(share)
                self.target_critic.follow(share)
            self._report(actor_loss, critic_loss, q, size)

    @torch.no_grad()
    def _report(self, actor_loss: Tensor, critic_loss: Tensor, q: Tensor, size: Tensor) -> None:
        n_skipped = self.actor_optimiser.n_skipped + self.critic_optimiser.n_skipped
        numbers = (actor_loss, critic_loss, q.mean(), q.max(), n_skipped, size)
        for name, number in zip(METRICS, numbers, strict=True):
            self.metrics[name].copy_(number)

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors of the optimisers and the targets, the same on all ranks."""
        optimisers = {"actor": self.actor_optimiser, "critic": self.critic_optimiser}
        return {
            **{f"{part}/{name}": tensor for part, each in optimisers.items() for name, tensor in each.state().items()},
            "target/actor": self.target_actor.vector,
            "target/critic": self.target_critic.vector,
        }


class DDPG(DeterministicPolicyGradient):
    """Learns from transitions of n steps that are drawn from a replay buffer.

    The critic's loss is the mean of ``(Q(s, a) - r - discount Q'(s', clip(mu'(s'))))^2``; then the actor's is that of
    ``-Q(s, mu(s))`` with the new critic, whose weights it leaves alone; then the targets, with a prime, follow both.

    Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", algorithm 1, with windows of
    n steps as in Barth-Maron et al. 2018, "Distributed distributional deterministic policy gradients".

    Args:
        policy: Name of the policy.
        config: Its settings.
        n_step: Rewards that are summed before the critic is asked.
        actor: Offers ``act(observations) -> actions``.
        critic: Values actions, ``critic(observations, actions)``.
        space: Of the actions, continuous.
        batch: What the policy's agents saw and did.
        backend: Of the environments.
        seed: Of the draws.
        precision: In which matrices are multiplied.

    Raises:
        ConfigError: The buffer is too small or too large, or returns are to be normalised.
        torch.cuda.OutOfMemoryError: The buffer does not fit.
    """

    def __init__(
        self,
        policy: str,
        config: PolicyConfig,
        n_step: int,
        actor: Any,
        critic: Any,
        space: ActionSpace,
        batch: Batch,
        backend: Backend,
        seed: int,
        precision: Precision = "fp32",
    ) -> None:
        if config.normalize_return:
            raise ConfigError(
                f"policy {policy!r}: normalize_return must be false for DDPG (got True), whose critic predicts the "
                "returns as they are; leave it out, or scale the rewards"
            )
        super().__init__(policy, config, actor, critic, batch, precision)
        self.buffer = ReplayBuffer(
            batch, space, config.buffer_size, n_step, config.gamma, config.batch_size, backend, seed
        )
        if config.learning_starts > self.buffer.capacity:
            raise ConfigError(
                f"policy {policy!r}: learning_starts must be at most the {self.buffer.capacity:,} transitions that the "
                f"buffer holds (got {config.learning_starts:,}); lower it, or raise buffer_size"
            )

    @property
    def n_repeats(self) -> int:
        """As many as the config says."""
        return self.config.updates_per_iteration

    def remember(self) -> tuple[Tensor, Tensor]:
        """Add the rollout to the buffer."""
        self.buffer.add()
        size = self.buffer.size.squeeze()
        return size, size < self.config.learning_starts

    def learn(self, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw transitions and take a step of the critic, then of the actor."""
        drawn = self.buffer.sample()
        with torch.no_grad():
            actions = self.buffer.clip(self.target_actor.model.act(drawn.following))
            next_q = self.target_critic.model(drawn.following, actions).float()
            targets = losses.n_step_targets(drawn.rewards, drawn.discounts, next_q)
        q = self.critic(drawn.observations, drawn.actions).float()
        critic_loss = losses.critic_loss(q, targets)
        self.critic_optimiser.step(critic_loss, skip)
        actor_loss = losses.actor_loss(self.critic(drawn.observations, self.actor.act(drawn.observations)).float())
        self.actor_optimiser.step(actor_loss, skip)
        return actor_loss, critic_loss, q

    def own_state(self) -> dict[str, Tensor]:
        """Return the live tensors of the buffer."""
        return {f"buffer/{name}": tensor for name, tensor in self.buffer.state().items()}


class WarpDriveDDPG(DeterministicPolicyGradient):
    """WarpDrive's rule of learning: one step on the latest rows, ``n_step - 1`` more of them than a rollout has.

    Nothing older is replayed, every end counts as one by the dynamics, and no update is made until there are enough
    rows. The critic descends the sum of its own loss and the actor's, since WarpDrive lets both gradients add up in
    it. Actions count as drawn, before they are clipped.

    Args:
        policy: Name of the policy.
        config: Its settings.
        n_step: Rewards that are summed before the critic is asked.
        actor: Offers ``act(observations) -> actions``.
        critic: Values actions, ``critic(observations, actions)``.
        batch: What the policy's agents saw and did.
        precision: In which matrices are multiplied.

    Raises:
        ConfigError: There is one row only, and none after it.
    """

    def __init__(
        self,
        policy: str,
        config: PolicyConfig,
        n_step: int,
        actor: Any,
        critic: Any,
        batch: Batch,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(policy, config, actor, critic, batch, precision)
        self._n_step = n_step
        n_rows = len(batch.rewards) + n_step - 1
        if n_rows < 2:
            raise ConfigError(
                f"policy {policy!r}: WarpDrive's rule needs 2 rows, steps of a rollout + n_step - 1 (got {n_rows}); "
                "raise train_batch_size or n_step"
            )
        self._rows = {
            name: torch.zeros(n_rows, *array.shape[1:], device=self._device) for name, array in self._new().items()
        }
        self._size = torch.zeros((), dtype=torch.int64, device=self._device)

    @property
    def n_repeats(self) -> int:
        """One."""
        return 1

    def remember(self) -> tuple[Tensor, Tensor]:
        """Let the rollout push out the oldest rows."""
        for name, new in self._new().items():
            rows = self._rows[name]
            rows.copy_(torch.cat([rows[len(new) :], new]))
        rewards = self._rows["rewards"]
        self._size.add_(self._batch.rewards.numel()).clamp_(max=rewards.numel())
        return self._size, self._size < rewards.numel()

    def learn(self, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step of both on all rows."""
        observations, actions, rewards, ends = self._rows.values()
        with torch.no_grad():
            following = observations[1:]
            next_q = self.target_critic.model(following, self.target_actor.model.act(following)).float()
            targets = self._normalised(
                losses.warpdrive_n_step_returns(rewards, ends, next_q, self.config.gamma, self._n_step)
            )
        q = self.critic(observations, actions).float()[: len(targets)]
        critic_loss = losses.critic_loss(q, targets)
        best = self.actor.act(observations)
        self.critic_optimiser.accumulate(critic_loss + self._actor_loss(best.detach()))
        actor_loss = self._actor_loss(best)
        self.actor_optimiser.accumulate(actor_loss)
        self.critic_optimiser.apply(skip)
        self.actor_optimiser.apply(skip)
        return actor_loss, critic_loss, q

    def own_state(self) -> dict[str, Tensor]:
        """Return the live rows, and their number."""
        return {**{f"rows/{name}": rows for name, rows in self._rows.items()}, "size": self._size}

    def _new(self) -> dict[str, Tensor]:
        batch = self._batch
        return {
            "observations": batch.observations[:-1],
            "actions": batch.actions,
            "rewards": batch.rewards,
            "ends": (batch.terminated | batch.truncated)[..., None],
        }

    def _actor_loss(self, actions: Tensor) -> Tensor:
        return losses.actor_loss(self._normalised(self.critic(self._rows["observations"], actions).float()))

    def _normalised(self, values: Tensor) -> Tensor:
        return losses.normalise(values, per_row=True) if self.config.normalize_return else values
