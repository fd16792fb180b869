"""The sampler's kernel in every language."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.core import kernel_runner
from tests.support import by_day, on_every_backend, on_every_other_backend
from warpdrive_min import rng

SEED = np.array([11, -3], np.int32)
STREAM = rng.STREAM_ACTIONS + 1


class Sampler:
    """Sampler's constants and arrays, for one draw after another."""

    def __init__(
        self, backend: str, distribution: np.ndarray, categories: tuple[int, ...] | None = None, **flags: Any
    ) -> None:
        self.backend = backend
        self.mask = flags.pop("mask", None)
        self.n_envs, n_agents, n_categories = distribution.shape
        self.distribution = distribution.astype(np.float32)
        categories = categories or (n_categories,)
        self.constants = {
            "THREADS": 8,
            "ENVS_PER_BLOCK": 3 if n_agents < 8 else 1,
            "BLOCKS_PER_ENV": 1,
            "EXACT": True,
            "N_AGENTS": n_agents,
            "N_TYPES": len(categories),
            "N_CATEGORIES": n_categories,
            "CATEGORIES": categories,
            "LOGITS": False,
            "MASKED": self.mask is not None,
            "ARGMAX": False,
            "LOG_PROB": False,
            "ENTROPY": False,
            **flags,
        }
        untouched = np.full((self.n_envs, n_agents), 7, np.float32)
        self.actions = np.full((self.n_envs, n_agents, len(categories)), -9, np.int32)
        self.draws = np.zeros(self.n_envs, np.int32)
        self.log_prob, self.entropy = untouched.copy(), untouched.copy()
        self.impossible = np.zeros((self.n_envs, n_agents), np.int32)

    def draw(self) -> np.ndarray:
        """Run the kernel once; return a copy of the actions."""
        arguments = {
            "distribution": self.distribution,
            "mask": np.zeros((1, 1, 1), np.int32) if self.mask is None else self.mask.astype(np.int32),
            "actions": self.actions,
            "draws": self.draws,
            "seed": SEED,
            "log_prob": self.log_prob,
            "entropy": self.entropy,
            "impossible": self.impossible,
            "stream": STREAM,
            "n_envs": self.n_envs,
        }
        blocks = kernel_runner.n_blocks(self.constants, self.n_envs)
        kernel_runner.run(self.backend, "sample", "sample", self.constants, arguments, blocks)
        return self.actions.copy()


@on_every_backend
def test_sample_follows_the_rule_worked_by_hand(backend: str) -> None:
    """A draw is the first category above the threshold.

    The threshold is uniform * total; the running sum must exceed it, and draws advance.
    """
    probabilities = np.float32([1, 2, 0, 5])
    sampler = Sampler(backend, np.tile(probabilities, (2, 3, 1)))
    for draw in range(6):
        got = sampler.draw()
        for env, agent in np.ndindex(2, 3):
            words = rng.philox(draw // 4, env, agent, STREAM, *SEED)
            threshold = float(rng.uniform(words[draw % 4])) * 8
            want = 0 if threshold < 1 else 1 if threshold < 3 else 3
            assert got[env, agent, 0] == want
    assert sampler.draws.tolist() == [6, 6]
    assert (sampler.log_prob == 7).all()
    assert (sampler.entropy == 7).all()


@on_every_backend
@pytest.mark.parametrize("is_logits", [False, True])
@pytest.mark.parametrize("is_argmax", [False, True])
def test_sample_never_takes_a_forbidden_entry(backend: str, is_logits: bool, is_argmax: bool) -> None:
    """A masked entry is never drawn.

    The rest are drawn, or maximal, among themselves.
    """
    generator = np.random.default_rng(1)
    mask = generator.integers(0, 2, (4, 7, 5))
    mask[..., 2] = 1
    distribution = generator.uniform(0.1, 1, (4, 7, 5))
    sampler = Sampler(backend, distribution, mask=mask, LOGITS=is_logits, ARGMAX=is_argmax)
    n_draws = 4 if kernel_runner.is_simulated(backend) else 30
    actions = np.stack([sampler.draw()[..., 0] for _ in range(n_draws)], axis=-1)
    assert np.take_along_axis(mask, actions, axis=-1).all()
    if is_argmax:
        want = np.where(mask, sampler.distribution, -np.inf).argmax(axis=-1)
        assert (actions == want[..., None]).all()
        assert sampler.draws.tolist() == [0, 0, 0, 0]
    else:
        assert len(np.unique(actions)) == 5


@on_every_backend
def test_argmax_takes_the_first_of_equal_maxima(backend: str) -> None:
    """Argmax takes the first allowed one of equal maxima."""
    mask = np.ones((1, 2, 4), np.int32)
    mask[0, 1, 1] = 0
    sampler = Sampler(backend, np.tile([1.0, 3.0, 3.0, 2.0], (1, 2, 1)), mask=mask, ARGMAX=True, LOG_PROB=True)
    assert sampler.draw().ravel().tolist() == [1, 2]
    np.testing.assert_allclose(sampler.log_prob, [[np.log(3 / 9), np.log(3 / 6)]], rtol=1e-6)


NAN, INF = np.nan, np.inf
IMPOSSIBLE = {
    "nothing allowed": (False, [1, 1, 1], [0, 0, 0], 0),
    "nothing allowed, logits": (True, [1, 1, 1], [0, 0, 0], 0),
    "nothing probable": (False, [0, 0, 0], None, 0),
    "nothing probable, logits": (True, [-INF, -INF, -INF], None, 0),
    "nothing probable that is allowed": (False, [1, 0, 0], [0, 1, 1], 1),
    "nothing probable that is allowed, logits": (True, [-INF, -INF, -INF], [0, 0, 1], 2),
    "nothing normal": (False, [1e-40, 1e-40, 0], None, 0),
    "infinite": (False, [0, INF, 1], None, 0),
    "infinite first": (False, [INF, 0, 0], None, 0),
    "infinite logit": (True, [0, INF, 1], None, 0),
    "NaN": (False, [0, 1, NAN], None, 0),
    "NaN, masked": (False, [0, 1, NAN], [0, 1, 1], 1),
    "NaN logit": (True, [NAN, 1, 1], None, 0),
    "last logit NaN": (True, [0, 1, NAN], None, 0),
    "all logits NaN": (True, [NAN, NAN, NAN], None, 0),
    "negative": (False, [0, 1, -0.5], None, 0),
    "minus infinity": (False, [-INF, 1, 1], None, 0),
    "too large a sum": (False, [3e38, 3e38, 0], None, 0),
}
"""Impossible rows: logits flag, row, mask, resulting action."""
POSSIBLE = {
    "unnormalised": (False, [0, 7, 0], None, 1),
    "negative zero": (False, [-0.0, 1, 0], None, 1),
    "forbidden NaN": (False, [NAN, 2, -1], [0, 1, 0], 1),
    "forbidden NaN, logits": (True, [NAN, 2, INF], [0, 1, 0], 1),
    "minus infinity, logits": (True, [-INF, -1e30, -INF], None, 1),
}


ROWS = list(itertools.product((False, True), repeat=3))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of Numba's simulator
@on_every_backend
@pytest.mark.parametrize(("is_masked", "is_logits", "is_argmax"), by_day(ROWS, ROWS[::3]))
def test_impossible_rows_are_alike_on_every_backend(
    backend: str, is_masked: bool, is_logits: bool, is_argmax: bool
) -> None:
    """Impossible rows give the same results on every backend.

    The first allowed action, else 0, no log-probability or entropy, and a count. Other rows are unchanged. Each case
    is the second agent of an environment; another environment comes before them.
    """
    cases = {
        name: case
        for name, case in (IMPOSSIBLE | POSSIBLE).items()
        if case[0] == is_logits and (case[2] is not None) == is_masked
    }
    shape = (1 + len(cases), 3, 3)
    distribution = np.broadcast_to(np.float32([-INF, 1, -INF] if is_logits else [0, 1, 0]), shape).copy()
    masks = np.ones(shape, np.int32) if is_masked else None
    actions, counts = np.ones(shape[:2], np.int32), np.zeros(shape[:2], np.int32)
    for env, (name, (_, row, mask, action)) in enumerate(cases.items(), start=1):
        distribution[env, 1], actions[env, 1], counts[env, 1] = row, action, name in IMPOSSIBLE
        if masks is not None:
            masks[env, 1] = mask
    flags = {"LOGITS": is_logits, "LOG_PROB": True, "ENTROPY": True, "ARGMAX": is_argmax}
    sampler = Sampler(backend, distribution, mask=masks, **flags)
    drawn, names = sampler.draw()[..., 0], ("beside them", *cases)
    for got, want in ((drawn, actions), (sampler.impossible, counts), (sampler.log_prob, 0), (sampler.entropy, 0)):
        assert [name for name, is_right in zip(names, (got == want).all(1), strict=True) if not is_right] == []


@on_every_backend
def test_impossible_types_of_a_row_are_counted_each(backend: str) -> None:
    """Impossible types of a row are each counted.

    Two of three types are impossible: only the other one has a probability.
    """
    distribution = np.tile(np.float32([NAN, 1, 1, 1, 0, 0]), (2, 3, 1))
    sampler = Sampler(backend, distribution, (2, 2, 2), LOG_PROB=True, ENTROPY=True)
    for _ in range(2):
        assert (sampler.draw()[..., [0, 2]] == 0).all()
    assert (sampler.impossible == 4).all()
    np.testing.assert_allclose(sampler.log_prob, np.log(0.5), rtol=1e-6)
    np.testing.assert_allclose(sampler.entropy, np.log(2), rtol=1e-6)


@pytest.mark.parametrize("without_outputs", [False, True])
@on_every_backend
def test_argmax_alone_knows_impossible_rows(backend: str, without_outputs: bool) -> None:
    """Argmax finds impossible rows without other requested outputs."""
    rows = [each for each in IMPOSSIBLE.values() if each[0] and each[2] is None]
    distribution = np.float32([[row for _, row, _, _ in rows]])
    flags = {} if without_outputs else {"LOG_PROB": True}
    sampler = Sampler(backend, distribution, LOGITS=True, ARGMAX=True, **flags)
    assert not sampler.draw().any()
    assert (sampler.impossible == 1).all()


@on_every_backend
@pytest.mark.parametrize("is_logits", [False, True])
def test_statistics_match_double_precision(backend: str, is_logits: bool) -> None:
    """Log-probability and entropy, summed over types, equal the formulas in float64."""
    generator = np.random.default_rng(2)
    distribution = generator.normal(0, 3, (3, 5, 9)) if is_logits else generator.uniform(0, 2, (3, 5, 9))
    flags = {"LOGITS": is_logits, "LOG_PROB": True, "ENTROPY": True}
    sampler = Sampler(backend, distribution, (4, 2, 3), **flags)
    actions = sampler.draw()
    log_prob, entropy = np.zeros((3, 5)), np.zeros((3, 5))
    for action_type, part in enumerate((slice(0, 4), slice(4, 6), slice(6, 9))):
        row = sampler.distribution[..., part].astype(np.float64)
        weight = np.exp(row) if is_logits else row
        probability = weight / weight.sum(axis=-1, keepdims=True)
        log_prob += np.log(np.take_along_axis(probability, actions[..., action_type, None], axis=-1))[..., 0]
        entropy -= (probability * np.log(probability)).sum(axis=-1)
    # float32 rounds logarithms up to 10 in magnitude and some ten sums of them.
    np.testing.assert_allclose(sampler.log_prob, log_prob, rtol=2e-6, atol=5e-6)
    np.testing.assert_allclose(sampler.entropy, entropy, rtol=2e-6, atol=5e-6)


SHAPES = [(7, 4, (6,)), (3, 11, (4, 1, 3, 2, 2)), (2, 1, (300,)), (1, 30, (3, 2))]
FORMS = list(itertools.product(SHAPES, (False, True), (False, True)))


@on_every_other_backend
@pytest.mark.parametrize(("shape", "is_masked", "is_logits"), by_day(FORMS, FORMS[::3]))
def test_draws_are_bit_identical_to_numpy(
    backend: str, is_logits: bool, is_masked: bool, shape: tuple[int, int, tuple[int, ...]]
) -> None:
    """Draws and their statistics are bit-identical to NumPy."""
    n_envs, n_agents, categories = shape
    generator = np.random.default_rng(3)
    size = (n_envs, n_agents, sum(categories))
    distribution = generator.normal(0, 4, size) if is_logits else generator.exponential(1, size) ** 3
    mask = generator.integers(0, 2, size) if is_masked else None
    flags = {"LOGITS": is_logits, "LOG_PROB": True, "ENTROPY": True, "mask": mask}
    here, there = (Sampler(name, distribution, categories, **flags) for name in (backend, "cpu"))
    here.draws[0] = there.draws[0] = 5  # numbers of draws may differ between environments
    for _ in range(3):
        assert (here.draw() == there.draw()).all()
        assert here.log_prob.view(np.int32).tolist() == there.log_prob.view(np.int32).tolist()
        assert here.entropy.view(np.int32).tolist() == there.entropy.view(np.int32).tolist()
    assert here.draws.tolist() == there.draws.tolist() == [8, *[3] * (n_envs - 1)]
