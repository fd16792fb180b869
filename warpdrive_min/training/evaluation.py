"""Looking at what was learned: whole episodes in environments of their own, so that training is not disturbed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.constants import DONE, Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError
from warpdrive_min.rendering import Episode, record
from warpdrive_min.sampler import CUDASampler
from warpdrive_min.training.placeholders import create_and_push_data_placeholders
from warpdrive_min.training.rollout import Actors, Player
from warpdrive_min.training.seats import Seat, seats

Agents = Sequence[Hashable]
PolicyMap = Mapping[str, Agents]


@dataclass(frozen=True, slots=True)
class Score:
    """How a policy did in some whole episodes."""

    mean_return: float
    """Rewards of an episode, summed over the policy's agents; the mean over episodes."""
    standard_error: float
    """Of that mean."""
    mean_agent_return: float
    """The same for one agent."""
    mean_steps: float
    """Of an episode."""
    n_episodes: int


class Stage:
    """Fresh environments in which given models act.

    Args:
        wrapper: Whose environment and backend they have.
        models: Of each policy; offers ``act``.
        policies: Agents of each policy.
        arrays: Whether each policy has arrays of its own, and the axis of agents in observations.
        n_envs: Environments.
        seed: Of starts and draws.
    """

    def __init__(
        self,
        wrapper: EnvWrapper,
        models: Mapping[str, Any],
        policies: PolicyMap,
        arrays: tuple[bool, str] = (False, "first"),
        n_envs: int = 1,
        seed: int = 0,
    ) -> None:
        separate, agents_axis = arrays
        self.wrapper = wrapper.like(n_envs, seed=seed)
        self.wrapper.reset()
        create_and_push_data_placeholders(
            self.wrapper,
            policy_tag_to_agent_id_map=policies,
            create_separate_placeholders_for_each_policy=separate,
            obs_dim_corresponding_to_num_agents=agents_axis,
            push_data_batch_placeholders=False,
        )
        self.seats: dict[str, Seat] = seats(self.wrapper, policies, separate, agents_axis)
        sampler = CUDASampler(self.wrapper.cuda_function_manager)
        sampler.init_random(seed)
        # A model without a scale of its own gives the action itself.
        players = {
            name: Player(seat, models[name], seat.space.is_continuous and not hasattr(models[name], "log_std"))
            for name, seat in self.seats.items()
        }
        self._actors = Actors(self.wrapper, sampler, players)

    def act(self, greedy: bool = True) -> None:
        """Write all agents' actions; enqueues."""
        self._actors.act(greedy=greedy, scale=0.0)
        self._actors.clip()

    def play(self, greedy: bool = True) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Play one whole episode in each environment; enqueues.

        Returns:
            Rewards summed over the episode by policy, (n_envs, n_agents), and its steps, (n_envs,) float32.
        """
        data = self.wrapper.cuda_data_manager
        playing = torch.ones(self.wrapper.n_envs, device=data.device)
        steps = torch.zeros_like(playing)
        returns = {
            name: torch.zeros(self.wrapper.n_envs, seat.n_agents, device=data.device)
            for name, seat in self.seats.items()
        }
        earned = {name: torch.zeros_like(total) for name, total in returns.items()}
        for _ in range(self.wrapper.episode_length):
            self.act(greedy)
            self.wrapper.step()
            steps += playing
            for name, seat in self.seats.items():
                seat.pick(data.tensor(Constants.REWARDS + seat.suffix), earned[name])
                # Chosen, not multiplied: what an environment pays after the end may be no number.
                returns[name] += torch.where(playing[:, None] > 0, earned[name], 0.0)
            playing = playing * (data.tensor(DONE) == 0)
        return returns, steps

    def heads(self) -> dict[str, torch.Tensor]:
        """Return what each policy said last: logits of its agents, or means, (n_envs, n_agents, n_outputs).

        The logit of a forbidden choice is the least number.
        """
        found = {}
        for table in self._actors.tables:
            head = table.masked_head()
            for seat in table.members:
                found[seat.policy] = head if seat.rows is None else head.index_select(1, seat.rows)
        return found


def evaluate(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    arrays: tuple[bool, str] = (False, "first"),
    n_episodes: int = 100,
    greedy: bool = True,
    seed: int = 0,
) -> dict[str, Score]:
    """Play one whole episode in each of some environments and return the policies' scores; synchronises.

    Args:
        wrapper: Whose environment and backend count.
        models: Of each policy.
        policies: Agents of each policy.
        arrays: As of `Stage`.
        n_episodes: Episodes.
        greedy: Take the likeliest choice, or the mean.
        seed: Of starts and draws.

    Raises:
        ConfigError: ``n_episodes`` is below 1.
    """
    if n_episodes < 1:
        raise ConfigError(f"evaluate.n_episodes: must be at least 1 (got {n_episodes})")
    stage = Stage(wrapper, models, policies, arrays, n_episodes, seed)
    returns, steps = stage.play(greedy)
    return {name: _score(total, steps) for name, total in returns.items()}


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


def episode_states(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    arrays: tuple[bool, str],
    list_of_states: Sequence[str],
    env_id: int = 0,
    include_rewards_actions: bool = False,
    include_probabilities: bool = False,
    greedy: bool = False,
    seed: int = 0,
) -> Any:
    """Play one episode and return its states, in WarpDrive's form; synchronises.

    Args:
        wrapper: Whose environment and backend count.
        models: Of each policy.
        policies: Agents of each policy.
        arrays: As of `Stage`.
        list_of_states: Arrays with a row for each environment.
        env_id: Which environment of the seed.
        include_rewards_actions: Return actions and rewards too.
        include_probabilities: Return the probabilities of the choices too; of continuous actions the mean.
        greedy: Take the likeliest choice, or the mean.
        seed: Of starts and draws.

    Returns:
        The states by name, (episode_length + 1, ...) each, NaN after the end; with ``include_rewards_actions`` a tuple
        with actions and rewards, (episode_length, ...) each; with ``include_probabilities`` further
        ``{step: {policy: (n_agents, n_outputs)}}``.

    Raises:
        ConfigError: ``env_id`` is negative.
        DataError: A state is not there, or has no row for each environment.
    """
    stage = Stage(wrapper, models, policies, arrays, env_id + 1, seed)
    heads: list[dict[str, torch.Tensor]] = []

    def act() -> None:
        stage.act(greedy)
        if include_probabilities:
            heads.append({name: head[env_id].clone() for name, head in stage.heads().items()})

    suffixes = dict.fromkeys(seat.suffix for seat in stage.seats.values())
    written = [name + suffix for name in (Constants.ACTIONS, Constants.REWARDS) for suffix in suffixes]
    named = [*list_of_states, *(written if include_rewards_actions else [])]
    episode = record(stage.wrapper, act, env_id=env_id, arrays=named)
    length = stage.wrapper.episode_length
    states = {name: _padded(episode[name], length + 1) for name in list_of_states}
    result: list[Any] = [states]
    if include_rewards_actions:
        everyone = list(stage.wrapper.env.action_space)
        result += [
            _padded(_of_all(name, episode, stage.seats, everyone)[1:], length)
            for name in (Constants.ACTIONS, Constants.REWARDS)
        ]
    if include_probabilities:
        played = heads[: episode.n_frames - 1]
        result.append(
            {
                step: {name: _chances(stage.seats[name], head) for name, head in each.items()}
                for step, each in enumerate(played)
            }
        )
    return states if len(result) == 1 else tuple(result)


def _of_all(name: str, episode: Episode, seats: Mapping[str, Seat], everyone: Agents) -> npt.NDArray[Any]:
    """Return a recorded array with all agents in the environment's order, put together where policies have their own.

    Raises:
        ConfigError: Policies with arrays of their own differ in the number of action types.
    """
    if any(not seat.suffix for seat in seats.values()):
        return episode[name]
    parts = [episode[name + seat.suffix] for seat in seats.values()]
    if len({part.shape[2:] for part in parts}) > 1:
        shapes = {policy: seat.space for policy, seat in seats.items()}
        raise ConfigError(
            f"fetch_episode_states: actions of all policies must have as many types to be one array (got {shapes}); "
            f"name {name}_<policy> among the states instead"
        )
    agents = [agent for seat in seats.values() for agent in seat.agents]
    return np.concatenate(parts, axis=1)[:, [agents.index(agent) for agent in everyone]]


def _padded(rows: npt.NDArray[Any], n_rows: int) -> npt.NDArray[np.float64]:
    """Return rows as float64, filled up with NaN."""
    padded = np.full((n_rows, *rows.shape[1:]), np.nan)
    padded[: len(rows)] = rows
    return padded


def _chances(seat: Seat, head: torch.Tensor) -> npt.NDArray[Any]:
    if seat.space.is_continuous:
        return head.cpu().numpy()
    parts = torch.split(head, list(seat.space.categories), dim=-1)
    return torch.cat([part.softmax(-1) for part in parts], dim=-1).cpu().numpy()
