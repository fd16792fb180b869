"""WarpDrive's algorithms: losses of whole batches, for direct calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from warpdrive_min import backends
from warpdrive_min.backends.base import Backend
from warpdrive_min.dialect.learning import n_step_returns
from warpdrive_min.errors import BackendUnavailable
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.config import ParamScheduler, Schedule

Tensor = torch.Tensor
Metrics = dict[str, float]
Numbers = dict[str, float | Tensor]

SUCCESS = 2
"""Done flag of an episode that reached its goal."""


class A2C:
    """Advantage actor-critic.

    The loss is ``mean(-log pi(a) A) + vf_loss_coeff (V - R)^2 - entropy_coeff H``.

    Args:
        discount_factor_gamma: Discount per step.
        normalize_advantage: Normalise the advantages of each step to mean 0 and standard deviation 1.
        normalize_return: The same for returns.
        vf_loss_coeff: Number or schedule.
        entropy_coeff: Number or schedule.
    """

    def __init__(
        self,
        discount_factor_gamma: float = 1.0,
        normalize_advantage: bool = False,
        normalize_return: bool = False,
        vf_loss_coeff: Schedule = 0.01,
        entropy_coeff: Schedule = 0.01,
    ) -> None:
        self.discount_factor_gamma = discount_factor_gamma
        self.normalize_advantage, self.normalize_return = normalize_advantage, normalize_return
        self.vf_loss_coeff_schedule = ParamScheduler(vf_loss_coeff)
        self.entropy_coeff_schedule = ParamScheduler(entropy_coeff)

    def compute_loss_and_metrics(
        self,
        timestep: int,
        actions_batch: Tensor,
        rewards_batch: Tensor,
        done_flags_batch: Tensor,
        action_probabilities_batch: Sequence[Tensor],
        value_functions_batch: Tensor,
        perform_logging: bool = False,
        negative_positive_ratio: float = -1,
    ) -> tuple[Tensor, Metrics]:
        """Return the loss of a batch and its metrics.

        Args:
            timestep: Timestep for the coefficients' schedules.
            actions_batch: (n_steps, n_envs, n_agents, n_types).
            rewards_batch: (n_steps, n_envs, n_agents).
            done_flags_batch: (n_steps, n_envs); 2 where an episode ended with success.
            action_probabilities_batch: For each type, (n_steps, n_envs, n_agents, choices).
            value_functions_batch: (n_steps, n_envs, n_agents).
            perform_logging: Return metrics, which synchronises; else an empty dict.
            negative_positive_ratio: Environments without a success to use for each one with a success; 0 or less: all.

        Raises:
            BackendUnavailable: The batch is on a GPU without a usable backend.
        """
        is_success = (done_flags_batch == SUCCESS).any(0)
        chosen = _chosen(is_success, negative_positive_ratio)
        actions, rewards, dones, values = (
            batch[:, chosen] for batch in (actions_batch, rewards_batch, done_flags_batch, value_functions_batch)
        )
        heads = [probabilities[:, chosen] for probabilities in action_probabilities_batch]
        returns, advantages = self._returns_and_advantages(rewards, dones, values.detach())
        scaled_returns = losses.normalise(returns, per_row=True) if self.normalize_return else returns
        if self.normalize_return:
            advantages = scaled_returns - values.detach()
        scaled = losses.normalise(advantages, per_row=True) if self.normalize_advantage else advantages
        # The logarithms of probabilities are logits; log 0 is undefined.
        head = torch.cat(heads, -1)
        logits = head.clamp(min=torch.finfo(head.dtype).tiny).log()
        space = ActionSpace(categories=tuple(each.shape[-1] for each in heads), n_types=len(heads))
        log_prob, entropy = losses.log_prob_and_entropy(space, logits, actions)
        policy_loss = self.policy_loss(log_prob, scaled).mean()
        value_loss = losses.value_loss(values, scaled_returns).mean()
        vf_loss_coeff = self.vf_loss_coeff_schedule.get_param_value(timestep)
        entropy_coeff = self.entropy_coeff_schedule.get_param_value(timestep)
        loss = policy_loss + vf_loss_coeff * value_loss - entropy_coeff * entropy.mean()
        if not perform_logging:
            return loss, {}
        numbers: Numbers = {
            "VF loss coefficient": vf_loss_coeff,
            "Entropy coefficient": entropy_coeff,
            "Total loss": loss,
            "Policy loss": policy_loss,
            "Value function loss": value_loss,
            **_statistics(rewards, values),
            "Mean advantages": advantages.mean(),
            "Mean (norm.) advantages": scaled.mean(),
            "Mean (discounted) returns": returns.mean(),
            "Mean normalized returns": scaled_returns.mean(),
            "Mean entropy": entropy.mean(),
            "Variance explained by the value function": losses.explained_variance(
                scaled_returns - scaled, scaled_returns
            ),
            **_spreads(actions),
        }
        if negative_positive_ratio > 0:
            n_positive = is_success[chosen].sum()
            numbers |= {
                "Num of Positive Sampled Envs": n_positive,
                "Num of Negative Sampled Envs": len(chosen) - n_positive,
            }
        return loss, _read(numbers)

    def policy_loss(self, log_prob: Tensor, advantages: Tensor) -> Tensor:
        """Return the terms of the policy loss."""
        return losses.policy_gradient_loss(log_prob, advantages)

    def _returns_and_advantages(self, rewards: Tensor, dones: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        _, n_envs, n_agents = rewards.shape
        ends = (dones > 0).int().contiguous()
        returns, advantages = torch.zeros(2, *rewards.shape, device=rewards.device, dtype=torch.float32)
        scan = ReturnScan(_backend(rewards.device), n_envs, n_agents, self.discount_factor_gamma, compat=True)
        scan.scan(
            rewards.float().contiguous(),
            values.float().contiguous(),
            ends,
            torch.zeros_like(ends),
            values[-1],
            None,
            advantages,
            returns,
        )
        return returns, advantages


class PPO(A2C):
    """A2C with a clipped ratio.

    The ratio is 1 here: WarpDrive updates once, with the policy that acted.

    Args:
        discount_factor_gamma: As for `A2C`, like all others except ``clip_param``.
        normalize_advantage: As for `A2C`.
        normalize_return: As for `A2C`.
        vf_loss_coeff: As for `A2C`.
        entropy_coeff: As for `A2C`.
        clip_param: Distance of the ratio from 1 at which its gradient stops.
    """

    def __init__(
        self,
        discount_factor_gamma: float = 1.0,
        normalize_advantage: bool = False,
        normalize_return: bool = False,
        vf_loss_coeff: Schedule = 0.01,
        entropy_coeff: Schedule = 0.01,
        clip_param: float = 0.1,
    ) -> None:
        super().__init__(discount_factor_gamma, normalize_advantage, normalize_return, vf_loss_coeff, entropy_coeff)
        self.clip_param = clip_param

    def policy_loss(self, log_prob: Tensor, advantages: Tensor) -> Tensor:
        """Return the terms of the clipped objective."""
        return losses.clipped_surrogate_loss(log_prob - log_prob.detach(), advantages, self.clip_param)


class DDPG:
    """Deterministic policy gradient on consecutive rows.

    Args:
        discount_factor_gamma: Discount per step.
        normalize_advantage: Normalise the logged advantages; no loss depends on it.
        normalize_return: Normalise the targets and the critic's values of the actor's actions, per step.
        n_step: Number of rewards summed before bootstrapping.
    """

    def __init__(
        self,
        discount_factor_gamma: float = 1.0,
        normalize_advantage: bool = False,
        normalize_return: bool = False,
        n_step: int = 1,
    ) -> None:
        self.discount_factor_gamma, self.n_step = discount_factor_gamma, n_step
        self.normalize_advantage, self.normalize_return = normalize_advantage, normalize_return

    def compute_loss_and_metrics(
        self,
        timestep: int,
        actions_batch: Tensor,
        rewards_batch: Tensor,
        done_flags_batch: Tensor,
        value_functions_batch: Tensor,
        next_value_functions_batch: Tensor,
        j_functions_batch: Tensor,
        perform_logging: bool = False,
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Return the losses of the actor and the critic, and their metrics.

        Args:
            timestep: Unused.
            actions_batch: (n_steps, n_envs, n_agents, n_types).
            rewards_batch: (n_steps, n_envs, n_agents).
            done_flags_batch: (n_steps, n_envs).
            value_functions_batch: Values of the actions taken, (n_steps, n_envs, n_agents).
            next_value_functions_batch: Target networks' values after each step but the last, (n_steps - 1, ...).
            j_functions_batch: Values of the actor's own actions, (n_steps, ...).
            perform_logging: Return metrics, which synchronises; else an empty dict.
        """
        targets = n_step_returns(
            rewards_batch,
            done_flags_batch[..., None],
            next_value_functions_batch.detach(),
            self.discount_factor_gamma,
            self.n_step,
        )
        scaled_targets = losses.normalise(targets, per_row=True) if self.normalize_return else targets
        j = losses.normalise(j_functions_batch, per_row=True) if self.normalize_return else j_functions_batch
        q = value_functions_batch[: len(targets)]
        critic_loss, actor_loss = losses.critic_loss(q, scaled_targets), losses.actor_loss(j)
        if not perform_logging:
            return actor_loss, critic_loss, {}
        advantages = scaled_targets - q
        scaled = losses.normalise(advantages, per_row=True) if self.normalize_advantage else advantages
        numbers: Numbers = {
            "Total loss": actor_loss + critic_loss,
            "Actor loss": actor_loss,
            "Critic loss": critic_loss,
            **_statistics(rewards_batch, value_functions_batch),
            "Mean J function": j_functions_batch.mean(),
            "Mean advantages": advantages.mean(),
            "Mean (norm.) advantages": scaled.mean(),
            "Mean (discounted) returns": targets.mean(),
            "Mean normalized returns": scaled_targets.mean(),
            "Variance explained by the value function": losses.explained_variance(q, scaled_targets),
            **_spreads(actions_batch),
        }
        for index, actions in enumerate(actions_batch.unbind(-1)):
            numbers |= {f"Max of action_{index}": actions.max(), f"Min of action_{index}": actions.min()}
        return actor_loss, critic_loss, _read(numbers)


# ------------------------------------------------------------------ parts


def _chosen(is_success: Tensor, ratio: float) -> Tensor:
    """Return the environments to use: successes, and ``ratio`` random others for each."""
    everyone = torch.arange(len(is_success), device=is_success.device)
    positive, negative = everyone[is_success], everyone[~is_success]
    n_negative = int(ratio * len(positive))
    if ratio <= 0 or not len(positive) or len(positive) + n_negative >= len(everyone):
        return everyone
    order = torch.randperm(len(negative), device=negative.device)
    return torch.cat([positive, negative[order[:n_negative]]])


def _backend(device: torch.device) -> Backend:
    """Return a backend that computes on a device."""
    reasons = []
    for backend in backends.BACKENDS.values():
        try:
            if backend.require().device.type == device.type:
                return backend
        except BackendUnavailable as error:
            reasons.append(str(error))
    raise BackendUnavailable(f"no backend computes on {device} (got {'; '.join(reasons)}); install one")


def _read(numbers: Numbers) -> Metrics:
    return {name: number.item() if isinstance(number, Tensor) else number for name, number in numbers.items()}


def _statistics(rewards: Tensor, values: Tensor) -> dict[str, Tensor]:
    return {
        "Mean rewards": rewards.mean(),
        "Max. rewards": rewards.max(),
        "Min. rewards": rewards.min(),
        "Mean value function": values.mean(),
    }


def _spreads(actions: Tensor) -> dict[str, Tensor]:
    """Return the mean spread of actions along each axis.

    Actions are (n_steps, n_envs, n_agents, n_types).
    """
    axes = {"time": 0, "envs": 1, "agents": 2}
    return {
        f"Std. of action_{index} over {name}": each.float().std(axis, correction=min(1, each.shape[axis] - 1)).mean()
        for index, each in enumerate(actions.unbind(-1))
        for name, axis in axes.items()
    }
