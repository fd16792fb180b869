"""Sampler in NumPy: the rule of `sample.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import rng
from warpdrive_min.kernels import maths_numpy
from warpdrive_min.kernels.arguments import Choices, UniformChoices

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

MINUS_INFINITY = np.float32(-np.inf)
SMALLEST, LARGEST = np.finfo(np.float32).tiny, np.finfo(np.float32).max


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernels ``sample`` and ``uniform_choices``."""
    words = _Words(c.N_AGENTS)
    sizes = [int(size) for size in c.CATEGORIES]
    forbidden = MINUS_INFINITY if c.LOGITS else np.float32(0)  # has weight 0
    starts = np.cumsum([0, *sizes[:-1]])

    def uniform(given: Choices | UniformChoices, action_type: int) -> FloatArray:
        """Return the draw's number in [0, 1) for each agent, (n_envs, n_agents)."""
        word = given.draws.view(np.uint32) * np.uint32(c.N_TYPES) + np.uint32(action_type)
        return rng.uniform(words.select(word, given.stream, given.seed))

    def sample(given: Choices, n_envs: int) -> None:
        if c.LOG_PROB:
            given.log_prob[...] = 0
        if c.ENTROPY:
            given.entropy[...] = 0
        for action_type, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            part = slice(start, start + size)
            # Categories first, so that sums over them add whole arrays.
            rows = np.moveaxis(given.distribution[..., part], -1, 0)
            allowed = np.moveaxis(given.mask[..., part], -1, 0) != 0 if c.MASKED else None
            rows = rows if allowed is None else np.where(allowed, rows, forbidden)
            is_impossible = _impossible(rows, is_logits=c.LOGITS)
            if is_impossible.any():
                given.impossible[...] += is_impossible
                first = 0 if allowed is None else allowed.argmax(axis=0)
                certain = np.where(np.arange(size)[:, None, None] == first, np.float32(1), forbidden)
                rows = np.where(is_impossible, certain, rows)
            if c.LOGITS:
                logs = rows - rows.max(axis=0)
                weights = maths_numpy.exp(logs)
            else:
                weights = np.where(rows >= SMALLEST, rows, np.float32(0))
                logs = maths_numpy.log(np.maximum(weights, SMALLEST)) if c.ENTROPY else rows
            action = rows.argmax(axis=0).astype(np.int32) if c.ARGMAX else _draw(weights, uniform(given, action_type))
            given.actions[..., action_type] = action
            if c.LOG_PROB or c.ENTROPY:
                targets = given.log_prob if c.LOG_PROB else None, given.entropy if c.ENTROPY else None
                _add_statistics(weights, logs, action, *targets)
        if not c.ARGMAX:
            given.draws[...] += 1

    def uniform_choices(given: UniformChoices, n_envs: int) -> None:
        for action_type, size in enumerate(sizes):
            choice = uniform(given, action_type) * np.float32(size)
            given.actions[..., action_type] = np.minimum(choice, np.float32(size - 1))
        given.draws[...] += 1

    return {"sample": sample, "uniform_choices": uniform_choices}


class _Words:
    """Random words of a draw; a block serves up to four draws."""

    def __init__(self, n_agents: int) -> None:
        self._agents = np.arange(n_agents)
        self._key: tuple[object, ...] = ()
        self._words: tuple[rng.UInt32Array, ...] = ()

    def select(self, word: rng.UInt32Array, stream: int, seed: IntArray) -> rng.UInt32Array:
        """Return the words (n_envs, n_agents) of index ``word`` (n_envs,)."""
        block, index = word >> np.uint32(2), word & np.uint32(3)
        key = (stream, seed.tobytes(), block.tobytes())
        if key != self._key:
            envs = np.arange(len(block))[:, None]
            self._words = rng.philox(block[:, None], envs, self._agents, stream, seed[0], seed[1])
            self._key = key
        if (index == index[0]).all():
            return self._words[int(index[0])]
        chosen: rng.UInt32Array = np.choose(index[:, None], self._words)
        return chosen


def _impossible(rows: FloatArray, *, is_logits: bool) -> NDArray[np.bool_]:
    """Return a mask of rows without a possible draw, (n_envs, n_agents).

    Entries have the categories as first axis.
    """
    if is_logits:
        total = np.abs(rows.max(axis=0)) + np.float32(1)  # NaN if one is
    else:
        total = np.zeros_like(rows[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for entry in rows:
                total += np.where(entry >= SMALLEST, entry, np.where(entry >= 0, np.float32(0), np.float32(np.nan)))
    is_fine: NDArray[np.bool_] = (total > 0) & (total <= LARGEST)
    return ~is_fine


def _draw(weights: FloatArray, uniform: FloatArray) -> IntArray:
    sums = np.empty_like(weights)
    total = np.zeros_like(uniform)
    for weight, running in zip(weights, sums, strict=True):
        total += weight
        running[...] = total
    threshold = uniform * total
    action = np.zeros(uniform.shape, np.int32)
    is_found = np.zeros(uniform.shape, bool)
    for k, (weight, running) in enumerate(zip(weights, sums, strict=True)):
        is_candidate = ~is_found & (weight > 0)
        action[is_candidate] = k
        is_found |= is_candidate & (running > threshold)
    return action


def _add_statistics(
    weights: FloatArray, logs: FloatArray, action: IntArray, log_prob: FloatArray | None, entropy: FloatArray | None
) -> None:
    total, moment = np.zeros_like(weights[0]), np.zeros_like(weights[0])
    for weight, log in zip(weights, logs, strict=True):
        total += weight
        if entropy is not None:
            np.add(moment, weight * np.where(weight > 0, log, np.float32(0)), out=moment)
    log_total = maths_numpy.log(total)
    if log_prob is not None:
        chosen = np.take_along_axis(weights, action[None].astype(np.int64), axis=0)[0]
        log_prob += maths_numpy.log(np.maximum(chosen, SMALLEST)) - log_total
    if entropy is not None:
        entropy += log_total - moment / total
