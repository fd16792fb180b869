"""A2C and PPO of a population: one update for all members.

Each member learns only from its own rows. Rows of a minibatch are ``(members, rows of one)``; losses, norms and moments
are over the rows of a member. Gradients are those of the sum of the losses. Each member's weights affect only its own
term of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch

from warpdrive_min.training.algorithms import losses
from warpdrive_min.training.algorithms.actor_critic import A2C, PPO, ActorCriticAlgorithm, Rows, Within
from warpdrive_min.training.loop.rollout import RolloutBuffer
from warpdrive_min.training.models.parts import by_member
from warpdrive_min.training.paths.exact.exact import Exact
from warpdrive_min.training.paths.fused.loss import LossRule, Minibatch

Tensor = torch.Tensor


class _OfMembers(ActorCriticAlgorithm):
    """Update of all members at once.

    Arrays of a batch are ``(members, rows, n_agents, ...)``.
    """

    @cached_property
    def _rows(self) -> Tensor:
        """Indices of the rollout's rows (step, environment), (members, rows of one)."""
        n_steps, n_envs, _ = self.returns.shape
        rows = torch.arange(n_steps * n_envs, device=self.returns.device).view(n_steps, n_envs)
        return by_member(rows, *self.shape).flatten(1)

    # -------------------------------------------------------------- rows

    def _minibatch(self, k: int) -> Rows:
        if self._shuffle is None:
            return self._rows
        order = self._shuffle.indices.view(self._rows.shape)
        size = order.shape[1] // self.n_minibatches
        return self._rows.gather(1, order[:, k * size : (k + 1) * size].long())

    def _parts(self, rows: Rows) -> Iterator[tuple[Rows, Within]]:
        """Split the rows of each member into the same number of parts."""
        assert isinstance(rows, Tensor)
        n_members, n_rows = rows.shape
        n_together = n_members * self.returns.shape[2]
        at_once = max(1, self._max_rows // n_together) if self._max_rows else n_rows
        for start in range(0, n_rows, at_once):
            within = (slice(None), slice(start, start + at_once))
            yield rows[within], within

    def _take(self, array: Tensor, rows: Rows) -> Tensor:
        assert isinstance(rows, Tensor)
        taken = super()._take(array, rows.flatten())
        return taken.view(*rows.shape, *taken.shape[1:])

    def evaluate(self, buffer: RolloutBuffer, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return heads and values.

        Heads are (members, rows, n_agents, n_outputs), values (members, rows, n_agents).
        """
        assert isinstance(rows, Tensor)
        observations = self._take(buffer.observations[:-1], rows)
        head, values = self.model(observations.flatten(0, 1))
        return head.unflatten(0, rows.shape), values.unflatten(0, rows.shape)

    # -------------------------------------------------------------- numbers of each member

    def normalise(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Normalise (members, ...) separately for each member."""
        if self._exact is not None:
            return torch.stack([self._exact.normalise(of_one) for of_one in values])
        return losses.normalise(values, per_row=True)

    def normalised_returns(self) -> Tensor:
        """Return the rollout's returns, normalised separately for each member."""
        returns = self.normalise(by_member(self.returns, *self.shape), None)
        return returns.movedim(0, 1).flatten(1, 2)

    @property
    def _log_std(self) -> Tensor | None:
        log_std: Tensor | None = self.model.log_std
        return None if log_std is None else log_std[:, None, None]

    @cached_property
    def _rules(self) -> list[LossRule]:
        """Loss of each member, with numbers that exact kernels compile in."""
        (n_members,), rule = self.shape, self._rule
        clip = torch.as_tensor(rule.clip_param, dtype=torch.float32, device="cpu").flatten().expand(n_members).tolist()
        return [
            rule._replace(
                vf_loss_coeff=rule.vf_loss_coeff[index], entropy_coeff=rule.entropy_coeff[index], clip_param=clip[index]
            )
            for index in range(n_members)
        ]

    def prepare(self, buffer: RolloutBuffer) -> None:
        """Prepare launches, and read the members' settings, which synchronises."""
        super().prepare(buffer)
        self._rules  # noqa: B018

    def _exact_loss(
        self, exact: Exact, head: Tensor, values: Tensor, rows: Minibatch, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        log_std: Tensor | None = self.model.log_std
        found = [
            exact.loss(
                self._space,
                head[index],
                values[index],
                Minibatch(*(None if each is None else each[index] for each in rows)),  # type: ignore[arg-type]
                rule,
                total,
                None if log_std is None else log_std[index],
            )
            for index, rule in enumerate(self._rules)
        ]
        loss, terms = zip(*found, strict=True)
        return torch.stack(loss), torch.stack(terms, -1)

    def _sum(self, term: Tensor, weights: Tensor | None) -> Tensor:
        return term.flatten(1).sum(1)

    def _count(self, rows: Tensor, weights: Tensor | None) -> Tensor:
        return torch.full((), float(rows[0].numel()), device=rows.device, dtype=torch.float32)

    def _figures(self) -> tuple[Tensor, ...]:
        arrays = (self.values[:-1], self.returns, self.advantages)
        values, returns, advantages = (by_member(each, *self.shape).flatten(1) for each in arrays)
        explained = torch.vmap(losses.explained_variance)(values, returns)
        return explained, values.mean(1), advantages.mean(1), returns.mean(1)


class PopulationA2C(_OfMembers, A2C):
    """A2C of a population: one update of each member on its whole rollout."""


class PopulationPPO(_OfMembers, PPO):
    """PPO of a population; each member has its own order of minibatches."""
