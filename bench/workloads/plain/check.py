"""Check of a plain baseline, step by step from its own state."""

from __future__ import annotations

import numpy as np
import torch

from warpdrive_min import EnvWrapper
from warpdrive_min.consistency import Agreement, difference
from warpdrive_min.errors import require

from .batch import Array, Batch


def agreement(batch: Batch, oracle: EnvWrapper, n_steps: int) -> Agreement:
    """Step a batch and its reference from the same state, and compare.

    Episodes that end are compared too: flags, rewards and last observations. What comes after is the start of another
    one, by another generator, and is not.

    Args:
        batch: Any number of environments.
        oracle: Started wrapper of the same environment on `cpu`, of as many or fewer copies, without `auto_reset`.
        n_steps: Steps.

    Raises:
        ConfigError: The oracle restarts environments itself.
    """
    require(not oracle.auto_reset, "agreement: oracle", "must not restart", "auto_reset=True", "build it without")
    result = Agreement()
    for _ in range(n_steps):
        result.add(_step(batch, oracle))
    return result


def _step(batch: Batch, oracle: EnvWrapper) -> Agreement:
    """Step both once, and return what was seen."""
    data, n = oracle.cuda_data_manager, oracle.n_envs
    actions = batch.draw()
    for name, values in {**batch.arrays(), "sampled_actions": batch.as_sampled(actions)}.items():
        array = data.tensor(name)
        array.copy_(torch.from_numpy(np.ascontiguousarray(values[:n]).reshape(array.shape)))
    before = _of(oracle)
    oracle.step_all_envs()
    batch.step(actions)
    after = _of(oracle)
    ended = batch.done[:n]
    envs, agents = oracle.env.rounding_decides(before, after)
    in_doubt = envs[:, None] | agents
    seen = Agreement(
        n_rows=agents.size + envs.size,
        n_in_doubt=int(envs.sum() + agents[~envs].sum()),
        n_compared=int((~envs).sum()),
        n_done=int(ended.sum()),
    )
    got = {name: np.asarray(values[:n]) for name, values in batch.arrays().items()}
    last = {name.removeprefix("final_"): got.pop(name) for name in list(got) if name.startswith("final_")}
    flags = {"terminated": batch.terminated[:n], "truncated": batch.truncated[:n]}
    for name, values in {**got, **flags}.items():
        want = after[name]
        mine = values.reshape(want.shape).astype(want.dtype)
        if name in last:
            mine[ended] = last[name][ended]
            mine[in_doubt] = want[in_doubt]
        elif not name.startswith(("rewards", *flags)):
            mine[ended] = want[ended]
        mine[envs] = want[envs]
        seen.largest[name] = difference(want, mine, data.attribute(name, "period", 0.0))
    return seen


def _of(oracle: EnvWrapper) -> dict[str, Array]:
    """Return copies of all arrays of a wrapper."""
    data = oracle.cuda_data_manager
    return {name: data.tensor(name).numpy().copy() for name in data.array_names()}
