"""Episodes in WarpDrive's form: arrays with NaN after the end.

The arrays are states, actions, rewards and probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import require
from warpdrive_min.rendering import Episode, record
from warpdrive_min.training.loop.arrays import AgentArrays, Agents, PolicyMap, SharedLayout
from warpdrive_min.training.loop.evaluation import EvaluationEnvs


def episode_states(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    layout: SharedLayout | None,
    list_of_states: Sequence[str],
    env_id: int = 0,
    include_rewards_actions: bool = False,
    include_probabilities: bool = False,
    *,
    greedy: bool = False,
    seed: int = 0,
) -> Any:
    """Play one episode and return its states; synchronises.

    Args:
        wrapper: Wrapper whose environment and backend are used.
        models: Model of each policy.
        policies: Agents of each policy.
        layout: Array layout, as in `EvaluationEnvs`.
        list_of_states: Arrays with a row for each environment.
        env_id: Index of the environment under this seed.
        include_rewards_actions: Return actions and rewards too.
        include_probabilities: Return the probabilities of all choices too; for continuous actions the mean.
        greedy: Take the most likely choice, or the mean.
        seed: Seed of initial states and sampled actions.

    Returns:
        States by name, (episode_length + 1, ...) each, NaN after the end. ``include_rewards_actions`` makes it a
        tuple and appends actions and rewards, (episode_length, ...) each. ``include_probabilities`` makes it a tuple
        and appends ``{step: {policy: (n_agents, n_outputs)}}``.

    Raises:
        ConfigError: ``env_id`` is negative, or beyond the wrapper's environments where no others can be made.
        DataError: A state is missing, or has no row for each environment.
    """
    with EvaluationEnvs(wrapper, models, policies, layout, env_id + 1, seed) as envs:
        arrays = {name: group.arrays for name, group in envs.groups.items()}
        heads: list[dict[str, torch.Tensor]] = []

        def act() -> None:
            envs.act(greedy)
            if include_probabilities:
                heads.append({name: head[env_id].clone() for name, head in _heads(envs).items()})

        suffixes = dict.fromkeys(group.suffix for group in arrays.values())
        written = [name + suffix for name in (Constants.ACTIONS, Constants.REWARDS) for suffix in suffixes]
        named = [*list_of_states, *(written if include_rewards_actions else [])]
        episode = record(envs.wrapper, act, env_id=env_id, arrays=named)
    length = envs.wrapper.episode_length
    states = {name: _padded(episode[name], length + 1) for name in list_of_states}
    result: list[Any] = [states]
    if include_rewards_actions:
        everyone = list(envs.wrapper.env.action_space)
        result += [
            _padded(of_all(name, episode, arrays, everyone)[1:], length)
            for name in (Constants.ACTIONS, Constants.REWARDS)
        ]
    if include_probabilities:
        played = heads[: episode.n_frames - 1]
        result.append(
            {
                step: {name: _chances(arrays[name], head) for name, head in each.items()}
                for step, each in enumerate(played)
            }
        )
    return states if len(result) == 1 else tuple(result)


def _heads(envs: EvaluationEnvs) -> dict[str, torch.Tensor]:
    """Return each policy's latest logits or means, (n_envs, n_agents, n_outputs).

    A masked choice has the smallest float as its logit.
    """
    heads = {}
    for name, group in envs.groups.items():
        head, rows = group.actions.masked_head(), group.arrays.rows
        heads[name] = head if rows is None else head.index_select(1, rows)
    return heads


def of_all(name: str, episode: Episode, arrays: Mapping[str, AgentArrays], everyone: Agents) -> npt.NDArray[Any]:
    """Return a recorded array of all agents, in the environment's order.

    Joins the arrays of policies that have separate ones.

    Raises:
        ConfigError: Policies with separate arrays differ in their number of action types.
    """
    if any(not each.suffix for each in arrays.values()):
        return episode[name]
    parts = [episode[name + each.suffix] for each in arrays.values()]
    is_one = len({part.shape[2:] for part in parts}) == 1
    rule = "actions of all policies must have as many types to be one array"
    do = f"name {name}_<policy> among the states instead"
    spaces = {policy: each.space for policy, each in arrays.items()}
    require(is_one, "fetch_episode_states", rule, spaces, do)
    agents = [agent for each in arrays.values() for agent in each.agents]
    return np.concatenate(parts, axis=1)[:, [agents.index(agent) for agent in everyone]]


def _padded(rows: npt.NDArray[Any], n_rows: int) -> npt.NDArray[np.float64]:
    """Return rows as float64, padded with NaN to ``n_rows``."""
    padded = np.full((n_rows, *rows.shape[1:]), np.nan)
    padded[: len(rows)] = rows
    return padded


def _chances(arrays: AgentArrays, head: torch.Tensor) -> npt.NDArray[Any]:
    if arrays.space.is_continuous:
        return head.cpu().numpy()
    parts = torch.split(head, list(arrays.space.categories), dim=-1)
    return torch.cat([part.softmax(-1) for part in parts], dim=-1).cpu().numpy()
