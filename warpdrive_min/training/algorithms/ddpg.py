"""DDPG: a deterministic actor and a critic that guides it."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar, Final

import torch

from warpdrive_min.backends.base import Backend
from warpdrive_min.errors import require
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.optimiser import ExactAdam, FlatAdam, make_views
from warpdrive_min.training.algorithms.replay import ReplayBuffer
from warpdrive_min.training.config import TrainerConfig, precision
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.models.normalisation import share_moments
from warpdrive_min.training.paths.exact.exact import Exact

Tensor = torch.Tensor

METRICS: Final = ("actor_loss", "critic_loss", "mean_q", "max_q", "n_skipped_steps", "buffer_size")


class TargetNetwork:
    """Copy of a network that follows its weights slowly.

    Args:
        model: Network to follow; its parameters lie in the optimiser's vector.
        optimiser: Optimiser of the model.
    """

    def __init__(self, model: torch.nn.Module, optimiser: FlatAdam) -> None:
        self._source = optimiser.vector.detach()
        self.vector = self._source.clone()
        """All parameters, (n,) float32."""
        self.model: Any = copy.deepcopy(model)
        make_views([parameter for parameter in self.model.parameters() if parameter.requires_grad], self.vector)
        self.model.requires_grad_(False)
        share_moments(self.model, model)

    def update(self, share: Tensor, *, exact: bool = False) -> None:
        """Move to the current weights by ``share``; ``exact``: no contraction; enqueues."""
        if exact:
            self.vector.add_((self._source - self.vector) * share)
        else:
            self.vector.lerp_(self._source, share)


class DDPG:
    """Deep deterministic policy gradient, on n-step transitions from a replay buffer.

    The critic's loss is the mean of ``(Q(s, a) - r - discount Q'(s', clip(mu'(s'))))^2``. Then the actor's loss is the
    mean of ``-Q(s, mu(s))`` with the new critic, whose weights stay fixed. Then the targets, with a prime, follow both.
    Control flow does not depend on device values, so a CUDA graph captures the whole update.

    Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", algorithm 1, with windows of
    n steps as in Barth-Maron et al. 2018, "Distributed distributional deterministic policy gradients".

    Args:
        group: Policy with its buffer; its actor offers ``act(observations) -> actions``, its critic values them,
            ``critic(observations, actions)``.
        trainer: Settings that all policies share.
        backend: Backend of the environments.
        seed: Seed of the draws.

    Raises:
        ConfigError: The replay buffer is too small or too large, or returns are to be normalised.
        torch.cuda.OutOfMemoryError: It does not fit.
    """

    clips_actions: ClassVar[bool] = True
    has_replay: ClassVar[bool] = True

    def __init__(self, group: PolicyGroup, trainer: TrainerConfig, backend: Backend, seed: int) -> None:
        config, buffer = group.config, group.batch
        assert config.tau is not None, "of DDPG, which the config checks"
        assert buffer is not None, "a policy that learns has a buffer"
        self.policy, self.config = group.name, config
        self.actor, self.critic = group.models["actor"], group.models["critic"]
        self._tau, self._precision, self._device = config.tau, trainer.precision, buffer.rewards.device
        self.scheduled = {
            name: torch.zeros((), device=self._device, dtype=torch.float32) for name in ("lr/actor", "lr/critic")
        }
        """Learning rates, 0-d; written before each update."""
        self._exact: Exact | None = group.exact
        """Kernels with one order of operations; None: torch's."""
        max_norm = config.max_grad_norm if config.clip_grad_norm else None
        of_backend = partial(FlatAdam, backend=group.arrays.backend)
        make = of_backend if self._exact is None else partial(ExactAdam, self._exact)
        self.actor_optimiser, self.critic_optimiser = (
            make(model.parameters(), lr, max_norm, config.adam_eps)
            for model, lr in zip((self.actor, self.critic), self.scheduled.values(), strict=True)
        )
        group.choices["Adam"] = self.actor_optimiser.choice
        self.target_actor = TargetNetwork(self.actor, self.actor_optimiser)
        self.target_critic = TargetNetwork(self.critic, self.critic_optimiser)
        self.metrics = {name: torch.zeros((), device=self._device, dtype=torch.float32) for name in METRICS}
        """Metrics of the last optimiser step, 0-d; ``n_skipped_steps`` counts all steps."""
        self.metrics["gradient_norm_actor"] = self.actor_optimiser.norm
        self.metrics["gradient_norm_critic"] = self.critic_optimiser.norm
        self.make_memory(group, buffer, trainer, backend, seed)

    # -------------------------------------------------------------- overridable settings

    def make_memory(
        self, group: PolicyGroup, buffer: RolloutBuffer, trainer: TrainerConfig, backend: Backend, seed: int
    ) -> None:
        """Allocate the replay buffer."""
        config, space = self.config, group.arrays.space
        rule = "must be false for DDPG, whose critic predicts the returns as they are"
        what, do = f"policy.{self.policy}.normalize_return", "leave it out, or scale the rewards"
        require(not config.normalize_return, what, rule, config.normalize_return, do)
        self.replay = ReplayBuffer(
            buffer, space, config.buffer_size, trainer.n_step, config.gamma, config.batch_size, backend, seed
        )
        rule = f"must be at most the {self.replay.capacity} transitions that the buffer holds"
        what, do = f"policy.{self.policy}.learning_starts", "lower it, or raise buffer_size"
        require(config.learning_starts <= self.replay.capacity, what, rule, config.learning_starts, do)

    @property
    def n_repeats(self) -> int:
        """Steps of each optimiser in an update, as configured."""
        return self.config.updates_per_iteration

    def compute_returns(self, buffer: RolloutBuffer) -> None:
        """Add the transitions of a rollout to the replay buffer; enqueues."""
        self.replay.add(buffer)

    def stored_transitions(self) -> tuple[Tensor, Tensor]:
        """Return the number of transitions, and True if too few, 0-d each."""
        size = self.replay.size.squeeze()
        return size, size < self.config.learning_starts

    def learn(self, skip: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a critic and an actor step on new draws, unless ``skip`` (0-d bool).

        Returns:
            Losses of the actor and the critic, 0-d, and the critic's values of the drawn actions.
        """
        drawn = self.replay.sample()
        with torch.no_grad():
            actions = self.replay.clip(self.target_actor.model.act(drawn.following))
            next_q = self.target_critic.model(drawn.following, actions).float()
            targets = losses.n_step_targets(drawn.rewards, drawn.discounts, next_q)
        q = self.critic(drawn.observations, drawn.actions).float()
        critic_loss = losses.critic_loss(q, targets) if self._exact is None else self._exact.squared_error(q, targets)
        self.critic_optimiser.step(critic_loss, skip)
        valued = self.critic(drawn.observations, self.actor.act(drawn.observations)).float()
        actor_loss = losses.actor_loss(valued) if self._exact is None else -self._exact.mean(valued)
        self.actor_optimiser.step(actor_loss, skip)
        return actor_loss, critic_loss, q

    def rank_state(self) -> dict[str, Tensor]:
        """Return this rank's live tensors: replay buffer and draws."""
        return {f"buffer/{name}": tensor for name, tensor in self.replay.state().items()}

    # -------------------------------------------------------------- steps

    def update(self, buffer: RolloutBuffer) -> None:
        """Learn from the replay buffer; enqueues."""
        with precision(self._precision, self._device):
            size, skip = self.stored_transitions()
            share = torch.where(skip, 0.0, self._tau)
            for _ in range(self.n_repeats):
                actor_loss, critic_loss, q = self.learn(skip)
                for target in (self.target_actor, self.target_critic):
                    target.update(share, exact=self._exact is not None)
            self._report(actor_loss, critic_loss, q, size)

    @torch.no_grad()
    def _report(self, actor_loss: Tensor, critic_loss: Tensor, q: Tensor, size: Tensor) -> None:
        n_skipped = self.actor_optimiser.n_skipped + self.critic_optimiser.n_skipped
        numbers = (actor_loss, critic_loss, q.mean(), q.max(), n_skipped, size)
        for name, number in zip(METRICS, numbers, strict=True):
            self.metrics[name].copy_(number)

    def state(self) -> dict[str, Tensor]:
        """Return live tensors of optimisers and targets, equal on all ranks."""
        optimisers = {"actor": self.actor_optimiser, "critic": self.critic_optimiser}
        return {
            **{f"{part}/{name}": tensor for part, each in optimisers.items() for name, tensor in each.state().items()},
            "target/actor": self.target_actor.vector,
            "target/critic": self.target_critic.vector,
        }
