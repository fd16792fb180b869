"""Check of a NumPy baseline, step by step from its own state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import Agreement
from warpdrive_min.agreement.stepping import compare_pairs, pair_arrays, snapshot, write
from warpdrive_min.errors import require

from .batch import Array, Batch


def agreement(batch: Batch, oracle: EnvWrapper, n_steps: int) -> Agreement:
    """Step a batch and its reference from the same state, and compare.

    For episodes that end, flags, rewards and last observations are compared. The next episode's start is not, because
    another generator draws it.

    Args:
        batch: Any number of environments.
        oracle: Started wrapper of the same environment on `cpu`, without `auto_reset`, with at most the batch's
            number of copies.
        n_steps: Steps.

    Raises:
        ConfigError: The oracle restarts environments itself.
    """
    require(not oracle.auto_reset, "agreement: oracle", "must not restart", "auto_reset=True", "build it without")
    result, data = Agreement(), oracle.cuda_data_manager
    for _ in range(n_steps):
        actions = batch.draw()
        write(data, {**batch.arrays(), "sampled_actions": batch.as_sampled(actions)})
        before = snapshot(data)
        oracle.step_all_envs()
        batch.step(actions)
        after = snapshot(data)
        result.add(compare_pairs(oracle, *pair_arrays(oracle, before, after, _results(batch, after))))
    return result


def _results(batch: Batch, after: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of a step before its restarts, shaped like ``after``.

    State that a restart overwrote is taken from the reference.
    """
    ended = batch.done[: len(after["_done_"])]
    flags = {"terminated": batch.terminated, "truncated": batch.truncated}
    arrays, got = {**batch.arrays(), **flags}, {}
    for name in (each for each in arrays if not each.startswith("final_")):
        want, last = after[name], arrays.get(f"final_{name}")
        got[name] = _like(arrays[name], want)
        if last is not None:
            got[name][ended] = _like(last, want)[ended]
        elif not name.startswith(("rewards", *flags)):
            got[name][ended] = want[ended]
    return got


def _like(values: Array, want: Array) -> Array:
    return np.array(values[: len(want)], want.dtype).reshape(want.shape)
