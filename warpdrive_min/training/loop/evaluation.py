"""Evaluation of policies in whole episodes, without disturbing training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from warpdrive_min.constants import DONE
from warpdrive_min.env_wrapper import BorrowedEnvs, EnvWrapper
from warpdrive_min.errors import require, require_int
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.config import PolicyConfig
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop.arrays import PolicyMap, SharedLayout
from warpdrive_min.training.loop.metrics import check_return
from warpdrive_min.training.loop.policies import PolicyGroup, action_samplers
from warpdrive_min.training.models.parts import n_members_of


@dataclass(frozen=True, slots=True)
class Score:
    """Returns of a policy in whole episodes."""

    mean_return: float
    """Mean episode return, summed over the policy's agents."""
    standard_error: float
    """Standard error of `mean_return`."""
    mean_agent_return: float
    """Mean episode return of one agent."""
    mean_steps: float
    """Mean steps of an episode."""
    n_episodes: int


class EvaluationEnvs:
    """Environments for given models: new ones if possible, else the wrapper's.

    `close`, or the end of a ``with`` statement, restores the wrapper's own environments. Until then nothing else may
    step them.

    Args:
        wrapper: Wrapper with the same environment and backend.
        models: Model of each policy; offers ``act``.
        policies: Agents of each policy.
        layout: Layout of the agents in the arrays; None: `SharedLayout`.
        n_envs: Number of environments; if the wrapper's own are fewer, they play several rounds.
        seed: Seed of resets and draws.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        models: Mapping[str, Any],
        policies: PolicyMap,
        layout: SharedLayout | None = None,
        n_envs: int = 1,
        seed: int = 0,
    ) -> None:
        self._borrowed = None if wrapper.can_be_repeated else BorrowedEnvs(wrapper, seed)
        self.wrapper = wrapper if self._borrowed else wrapper.like(n_envs, seed=seed)
        self._n_envs, self._seed = n_envs, seed
        try:
            self._prepare(layout or SharedLayout(), models, policies)
        except BaseException:
            self.close()
            raise

    def _prepare(self, layout: SharedLayout, models: Mapping[str, Any], policies: PolicyMap) -> None:
        if self._borrowed is None:
            self.wrapper.reset()
        layout.push(self.wrapper, policies)
        sampler = CUDASampler(self.wrapper.cuda_function_manager)
        sampler.init_random(self._seed)
        self.groups: dict[str, PolicyGroup] = {}
        """Policies by name."""
        for name, arrays in layout.arrays(self.wrapper, policies).items():
            # A continuous model without `log_std` outputs the action itself.
            is_actor = arrays.space.is_continuous and not hasattr(models[name], "log_std")
            network = {"actor" if is_actor else "model": models[name]}
            self.groups[name] = PolicyGroup(name, PolicyConfig(), arrays, network)
        self.action_samplers = action_samplers(self.wrapper, sampler, list(self.groups.values()))

    def close(self) -> None:
        """Restore the wrapper's own environments; enqueues."""
        if self._borrowed is not None:
            self._borrowed.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def act(self, greedy: bool = True) -> None:
        """Write all agents' actions; enqueues."""
        for group in self.groups.values():
            group.act()
        for actions in self.action_samplers:
            actions.sample(greedy=greedy, scale=0.0)

    def play(self, greedy: bool = True) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Play one whole episode in each environment; enqueues.

        Returns:
            Episode returns by policy, (n_envs, n_agents), and episode lengths, (n_envs,) float32.
        """
        rounds = [self._play(greedy)]
        while (n_played := len(rounds) * self.wrapper.n_envs) < self._n_envs and self._borrowed is not None:
            self._borrowed.start(self._seed + n_played)
            rounds.append(self._play(greedy))
        returns, steps = zip(*rounds, strict=True)
        total = {name: torch.cat([each[name] for each in returns])[: self._n_envs] for name in self.groups}
        return total, torch.cat(steps)[: self._n_envs]

    def _play(self, greedy: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        data = self.wrapper.cuda_data_manager
        playing = torch.ones(self.wrapper.n_envs, device=data.device, dtype=torch.float32)
        steps = torch.zeros_like(playing)
        returns = {
            name: torch.zeros(self.wrapper.n_envs, group.arrays.n_agents, device=data.device, dtype=torch.float32)
            for name, group in self.groups.items()
        }
        rewards = {name: torch.zeros_like(total) for name, total in returns.items()}
        for _ in range(self.wrapper.episode_length):
            self.act(greedy)
            self.wrapper.step()
            steps += playing
            for name, group in self.groups.items():
                group.arrays.pick(group.arrays.rewards, rewards[name])
                # `where`, not a product: rewards after the end may be NaN.
                returns[name] += torch.where(playing[:, None] > 0, rewards[name], 0.0)
            playing = playing * (data.tensor(DONE) == 0)
        return returns, steps


@own_defaults()
def evaluate(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    layout: SharedLayout | None = None,
    n_episodes: int = 100,
    greedy: bool = True,
    seed: int = 0,
) -> dict[str, Score]:
    """Play whole episodes, one per environment, and return scores; synchronises.

    For a population, whose one model is `Members`, the scores are by member number. Members play at the same time, each
    from different starts.

    Args:
        wrapper: Wrapper with the environment and backend to evaluate on.
        models: Model of each policy.
        policies: Agents of each policy.
        layout: As of `EvaluationEnvs`.
        n_episodes: Number of episodes; for each member of a population.
        greedy: Take the likeliest choice, or the mean.
        seed: Seed of resets and draws.

    Raises:
        ConfigError: ``n_episodes`` is below 1, or a population's wrapper cannot create environments like its own.
        TrainingError: A return is not finite; not for a population.
    """
    n_episodes = require_int("evaluate.n_episodes", n_episodes)
    n_members = max(map(n_members_of, models.values()), default=0) or None
    rule = "a population plays in environments of its own"
    do = "give its wrapper an environment that can be made again from its config"
    require(n_members is None or wrapper.can_be_repeated, "evaluate", rule, wrapper.name, do)
    with EvaluationEnvs(wrapper, models, policies, layout, n_episodes * (n_members or 1), seed) as envs:
        returns, steps = envs.play(greedy)
    if n_members is not None:
        (of_all,) = returns.values()
        each = zip(of_all.cpu().split(n_episodes), steps.cpu().split(n_episodes), strict=True)
        return {str(member): _score(*of_member) for member, of_member in enumerate(each)}
    scores = {name: _score(total, steps) for name, total in returns.items()}
    for name, score in scores.items():
        check_return(name, score.mean_return)
    return scores


def _score(returns: torch.Tensor, steps: torch.Tensor) -> Score:
    teams = returns.double().sum(1)
    n_episodes = len(teams)
    spread = float(teams.std()) if n_episodes > 1 else 0.0
    return Score(
        mean_return=float(teams.mean()),
        standard_error=spread / n_episodes**0.5,
        mean_agent_return=float(returns.double().mean()),
        mean_steps=float(steps.double().mean()),
        n_episodes=n_episodes,
    )
