"""Episodes in WarpDrive's form: arrays with NaN after the end.

The arrays are states, actions, rewards and probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.rendering import record
from warpdrive_min.training.loop.arrays import AgentArrays, PolicyMap, SharedLayout
from warpdrive_min.training.loop.evaluation import EvaluationEnvs


def episode_states(
    wrapper: EnvWrapper,
    models: Mapping[str, Any],
    policies: PolicyMap,
    layout: SharedLayout | None,
    list_of_states: Sequence[str],
    env_id: int = 0,
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
        list_of_states: Arrays with a row for each environment, also actions and rewards; row 0 of those is 0.
        env_id: Index of the environment under this seed.
        include_probabilities: Return the probabilities of all choices too; for continuous actions the mean.
        greedy: Take the most likely choice, or the mean.
        seed: Seed of initial states and sampled actions.

    Returns:
        States by name, (episode_length + 1, ...) each, NaN after the end. ``include_probabilities`` makes it a tuple
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

        episode = record(envs.wrapper, act, env_id=env_id, arrays=list_of_states)
    length = envs.wrapper.episode_length
    states = {name: _padded(episode[name], length + 1) for name in list_of_states}
    if not include_probabilities:
        return states
    played = enumerate(heads[: episode.n_frames - 1])
    return states, {step: {name: _chances(arrays[name], head) for name, head in each.items()} for step, each in played}


def _heads(envs: EvaluationEnvs) -> dict[str, torch.Tensor]:
    """Return each policy's latest logits or means, (n_envs, n_agents, n_outputs).

    A masked choice has the smallest float as its logit.
    """
    heads = {}
    for name, group in envs.groups.items():
        head, rows = group.actions.masked_head(), group.arrays.rows
        heads[name] = head if rows is None else head.index_select(1, rows)
    return heads


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
