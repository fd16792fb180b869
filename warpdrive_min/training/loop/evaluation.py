"""Evaluation of policies in whole episodes, without disturbing training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import torch

from warpdrive_min.backends.base import Launch
from warpdrive_min.constants import DONE
from warpdrive_min.env_wrapper import BorrowedEnvs, EnvWrapper
from warpdrive_min.environment import own_state
from warpdrive_min.errors import CompileError, require, require_int
from warpdrive_min.graph import capture
from warpdrive_min.rollouts import Episodes
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.config import PolicyConfig
from warpdrive_min.training.defaults import own_defaults
from warpdrive_min.training.loop.arrays import PolicyMap, SharedLayout
from warpdrive_min.training.loop.metrics import check_return
from warpdrive_min.training.loop.policies import PolicyGroup, action_samplers
from warpdrive_min.training.models.parts import n_members_of
from warpdrive_min.training.paths.triton.launch import compiled_ahead

log = logging.getLogger(__name__)

MAX_KEPT: Final = 2
"""Most sets of environments that an `Evaluator` keeps: those of metrics and of the best checkpoint."""


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
        as_graph: If the environments are new ones on a GPU, `play` takes greedy episodes in one launch where a kernel
            can, and else captures a step as a CUDA graph.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        models: Mapping[str, Any],
        policies: PolicyMap,
        layout: SharedLayout | None = None,
        n_envs: int = 1,
        seed: int = 0,
        *,
        as_graph: bool = False,
    ) -> None:
        self._borrowed = None if wrapper.can_be_repeated else BorrowedEnvs(wrapper, seed)
        self.wrapper = wrapper if self._borrowed else wrapper.like(n_envs, seed=seed)
        self._n_envs, self._seed = n_envs, seed
        self._as_graph = as_graph and self._borrowed is None and self.wrapper.backend.captures_graphs
        self._graphs: dict[bool, Callable[[], None]] = {}
        """Captured step; True: greedy."""
        self._start: dict[str, torch.Tensor] = {}
        """Arrays at the start of the first episode."""
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
        n_envs, device = self.wrapper.n_envs, self.wrapper.cuda_data_manager.device
        self._is_over = torch.zeros(n_envs, device=device, dtype=torch.bool)
        self._steps = torch.zeros(n_envs, device=device, dtype=torch.float32)
        """Steps of each episode so far."""
        self._returns = {
            name: torch.zeros(n_envs, group.arrays.n_agents, device=device, dtype=torch.float32)
            for name, group in self.groups.items()
        }
        self._rewards = {name: torch.zeros_like(total) for name, total in self._returns.items()}

    @functools.cached_property
    def _episodes(self) -> tuple[Episodes, dict[str, torch.Tensor]] | None:
        """Greedy episodes in one launch, with its arguments; None: step by step."""
        (name, group), *others = self.groups.items()
        facts = group.facts(
            is_eager=not self._as_graph,
            n_policies=1 + len(others),
            why_not_whole_array=group.arrays.why_not_whole(self.wrapper),
        )
        choice = group.choose("evaluation", facts)
        if not choice.is_fast or choice.path.build is None:
            return None
        constants, layers = choice.path.build(group.acting.as_network(), facts.precision)
        episodes = self.wrapper.episodes(constants)
        if isinstance(episodes, str):
            group.choose("evaluation", replace(facts, rollout_kernel=episodes))
            return None
        return episodes, {**layers, "episode_returns": self._returns[name], "episode_steps": self._steps}

    @functools.cached_property
    def _launch(self) -> Launch | None:
        """Launch of greedy episodes; None: step by step."""
        if self._episodes is None:
            return None
        episodes, arguments = self._episodes
        try:
            return episodes.bound(self.wrapper.episode_length, **arguments)
        except CompileError as error:
            log.info("greedy episodes are played step by step: %s", error)
            return None

    def prepare(self) -> None:
        """Prepare greedy episodes; `play` does so at first use.

        In a rehearsal their kernel compiles in another thread.
        """
        if self._borrowed is None and self._episodes is not None and not compiled_ahead(self._episodes[0].kernel.build):
            self._launch  # noqa: B018  (loads the kernel)

    def close(self) -> None:
        """Restore the wrapper's own environments, and release graphs; enqueues."""
        self._graphs.clear()
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

        In environments of their own a later call plays the same episodes again, with the weights of that time. On a
        CPU it stops when all episodes are over. A graph's first two steps synchronise.

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
        if self._borrowed is None:
            self._restart()
        if greedy and self._borrowed is None and self._launch is not None:
            self._launch()
            return self._results()
        for tensor in (self._is_over, self._steps, *self._returns.values()):
            tensor.zero_()
        # Borrowed environments play later rounds, whose draws and states may depend on the steps of this one.
        can_stop = self._borrowed is None and self._is_over.device.type == "cpu"
        step = self._graphs.get(greedy) or functools.partial(self._step, greedy)
        n_steps = 0
        while n_steps < self.wrapper.episode_length and not (can_stop and bool(self._is_over.all())):
            if n_steps == 1 and self._as_graph and greedy not in self._graphs:
                step = self._graphs[greedy] = capture(self.wrapper.backend, step)
            step()
            n_steps += 1
        return self._results()

    def _results(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {name: total.clone() for name, total in self._returns.items()}, self._steps.clone()

    def _restart(self) -> None:
        """Restore the environments, draws and attributes of the first episode; enqueues."""
        data, attributes = self.wrapper.cuda_data_manager, vars(self.wrapper.env)
        arrays = {name: data.tensor(name) for name in data.array_names()}
        if not self._start:
            self._start = {name: array.clone() for name, array in arrays.items()}
            self._attributes = dict(attributes)
        for name, array in arrays.items():
            array.copy_(self._start[name])
        attributes.clear()
        attributes.update(self._attributes | own_state(self._attributes))

    def _step(self, greedy: bool) -> None:
        """Act, step and add the rewards of running episodes; enqueues."""
        self.act(greedy)
        self.wrapper.step()
        self._steps.add_(~self._is_over)
        for name, group in self.groups.items():
            rewards = self._rewards[name]
            group.arrays.pick(group.arrays.rewards, rewards)
            # Filled, not multiplied: rewards after the end may be NaN.
            self._returns[name].add_(rewards.masked_fill_(self._is_over[:, None], 0.0))
        torch.logical_or(self._is_over, self.wrapper.cuda_data_manager.tensor(DONE), out=self._is_over)


class Evaluator:
    """Evaluation of policies, whose environments stay for later calls.

    Episodes of equal arguments have the returns that new environments would give.

    Args:
        wrapper: Wrapper with the environment and backend to evaluate on.
        policies: Agents of each policy.
        layout: As of `EvaluationEnvs`.
        as_graph: As of `EvaluationEnvs`.
    """

    def __init__(
        self, wrapper: EnvWrapper, policies: PolicyMap, layout: SharedLayout | None = None, *, as_graph: bool = False
    ) -> None:
        self._wrapper, self._given, self._as_graph = wrapper, (policies, layout), as_graph
        self._kept: dict[tuple[int, ...], EvaluationEnvs] = {}

    @own_defaults()
    def prepare(self, models: Mapping[str, Any], n_episodes: int, *, seed: int) -> None:
        """Prepare the greedy episodes of a later call of `scores`."""
        if self._wrapper.can_be_repeated:
            self._envs(models, n_episodes * (_n_members(models) or 1), seed).prepare()

    @own_defaults()
    def scores(
        self, models: Mapping[str, Any], n_episodes: int = 100, *, greedy: bool = True, seed: int = 0
    ) -> dict[str, Score]:
        """Play whole episodes and return scores; see `evaluate`; synchronises.

        Raises:
            ConfigError: As of `evaluate`.
            TrainingError: As of `evaluate`.
        """
        n_episodes = require_int("evaluate.n_episodes", n_episodes)
        n_members = _n_members(models)
        rule = "a population plays in environments of its own"
        do = "give its wrapper an environment that can be made again from its config"
        require(n_members is None or self._wrapper.can_be_repeated, "evaluate", rule, self._wrapper.name, do)
        returns, steps = self._play(models, n_episodes * (n_members or 1), greedy, seed)
        if n_members is not None:
            (of_all,) = returns.values()
            each = zip(of_all.cpu().split(n_episodes), steps.cpu().split(n_episodes), strict=True)
            return {str(member): _score(*of_member) for member, of_member in enumerate(each)}
        scores = {name: _score(total, steps) for name, total in returns.items()}
        for name, score in scores.items():
            check_return(name, score.mean_return)
        return scores

    def _play(
        self, models: Mapping[str, Any], n_envs: int, greedy: bool, seed: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        if not self._wrapper.can_be_repeated:
            with EvaluationEnvs(self._wrapper, models, *self._given, n_envs, seed) as envs:
                return envs.play(greedy)
        return self._envs(models, n_envs, seed).play(greedy)

    def _envs(self, models: Mapping[str, Any], n_envs: int, seed: int) -> EvaluationEnvs:
        key, given = (n_envs, seed, *map(id, models.values())), (self._wrapper, models, *self._given, n_envs, seed)
        envs = self._kept.pop(key) if key in self._kept else EvaluationEnvs(*given, as_graph=self._as_graph)
        self._kept[key] = envs  # the last one used is the last one in order
        for old in list(self._kept)[:-MAX_KEPT]:
            self._kept.pop(old).close()
        return envs

    def close(self) -> None:
        """Release all environments and graphs; a later call makes new ones."""
        for envs in self._kept.values():
            envs.close()
        self._kept.clear()


def evaluate(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    layout: SharedLayout | None = None,
    n_episodes: int = 100,
    greedy: bool = True,
    seed: int = 0,
    *,
    as_graph: bool = False,
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
        as_graph: As of `EvaluationEnvs`; the models must not wait for the GPU.

    Raises:
        ConfigError: ``n_episodes`` is below 1, or a population's wrapper cannot create environments like its own.
        TrainingError: A return is not finite; not for a population.
    """
    evaluator = Evaluator(wrapper, policies, layout, as_graph=as_graph)
    try:
        return evaluator.scores(models, n_episodes, greedy=greedy, seed=seed)
    finally:
        evaluator.close()


def _n_members(models: Mapping[str, Any]) -> int | None:
    """Return the number of a population's members; None: no population."""
    return max(map(n_members_of, models.values()), default=0) or None


def _score(returns: torch.Tensor, steps: torch.Tensor) -> Score:
    teams = returns.double().sum(1)
    n_episodes = len(teams)
    spread = teams.std() if n_episodes > 1 else teams.new_zeros(())
    numbers = torch.stack([spread, teams.mean(), returns.double().mean(), steps.double().mean()])
    spread, mean_return, mean_agent_return, mean_steps = numbers.tolist()  # one copy
    return Score(
        mean_return=mean_return,
        standard_error=spread / n_episodes**0.5,
        mean_agent_return=mean_agent_return,
        mean_steps=mean_steps,
        n_episodes=n_episodes,
    )
