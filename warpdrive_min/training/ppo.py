"""Proximal policy optimisation: several epochs of minibatches on one rollout, with a clipped ratio."""

from __future__ import annotations

from typing import ClassVar

import torch

from warpdrive_min.training import losses
from warpdrive_min.training.actor_critic import ActorCriticAlgorithm, Rows, Terms


class PPO(ActorCriticAlgorithm):
    """Loss: ``-min(r A, clip(r, 1 - clip_param, 1 + clip_param) A) + vf_loss_coeff (V - R)^2 - entropy_coeff H``.

    ``r`` is the ratio of the action's probability now to that with which it was drawn. With ``value_clip`` the value
    counts as moved at most so far from what it was, where that makes the error larger. With ``target_kl`` no further
    step is taken in an update once the policy has moved by 1.5 times that.

    Source: Schulman et al. 2017, "Proximal policy optimization algorithms", eq. 7 and 9; WarpDrive's PPO takes one
    step on the whole rollout, which ``compat="warpdrive"`` does too.
    """

    is_clipped: ClassVar[bool] = True
    default_lambda: ClassVar[float] = 0.95

    @property
    def n_epochs(self) -> int:
        """As configured."""
        return 1 if self._is_compat else self.config.n_epochs

    @property
    def n_minibatches(self) -> int:
        """As configured."""
        return 1 if self._is_compat else self.config.n_minibatches

    def terms(self, rows: Rows, head: torch.Tensor, values: torch.Tensor) -> Terms:
        """Return the terms of the clipped objective."""
        log_prob, entropy = self.log_prob_and_entropy(rows, head)
        log_ratio = log_prob - rows.log_probs
        return Terms(
            policy=losses.clipped_surrogate_loss(log_ratio, rows.advantages, self.config.clip_param),
            value=losses.value_loss(values, rows.returns, rows.values, self.config.value_clip),
            entropy=entropy,
            log_ratio=log_ratio.detach(),
        )
