"""Advantage actor-critic: one step on the whole rollout."""

from __future__ import annotations

from typing import ClassVar

import torch

from warpdrive_min.training import losses
from warpdrive_min.training.actor_critic import ActorCriticAlgorithm, Rows, Terms


class A2C(ActorCriticAlgorithm):
    """Loss: ``-log pi(a) A + vf_loss_coeff (V - R)^2 - entropy_coeff H``, the mean over the rollout.

    Source: Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", algorithm S3, with all
    environments in step.
    """

    is_clipped: ClassVar[bool] = False
    default_lambda: ClassVar[float] = 1.0

    @property
    def n_epochs(self) -> int:
        """One: the rollout is the present policy's only once."""
        return 1

    @property
    def n_minibatches(self) -> int:
        """One."""
        return 1

    def terms(self, rows: Rows, head: torch.Tensor, values: torch.Tensor) -> Terms:
        """Return the terms of the policy gradient."""
        log_prob, entropy = self.log_prob_and_entropy(rows, head)
        return Terms(
            policy=losses.policy_gradient_loss(log_prob, rows.advantages),
            value=losses.value_loss(values, rows.returns),
            entropy=entropy,
            log_ratio=(log_prob - rows.log_probs).detach(),
        )
