"""Philox and numbers derived from its words, in every language."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core import kernel_runner
from tests.core.kernel_runner import probe
from tests.support import on_every_backend
from warpdrive_min import rng

CONSTANTS = {"THREADS": 8, "ENVS_PER_BLOCK": 8, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1, "EXACT": True}

# Random123 1.14, kat_vectors, philox4x32 10: counter, key, words.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def _int32(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.int32)


def _words(backend: str, counters: np.ndarray, seed: np.ndarray) -> np.ndarray:
    out = np.zeros_like(counters)
    n = len(counters)
    arguments = {"counters": counters, "seed": seed, "out": out, "n_envs": n}
    kernel_runner.run(backend, probe(), "words", CONSTANTS, arguments, -(-n // 8))
    return out.view(np.uint32)


@on_every_backend
@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(backend: str, counter: str, key: str, words: str) -> None:
    """Each backend reproduces Random123's known answers."""
    got = _words(backend, _int32(counter)[None], _int32(key))
    assert got[0].tolist() == _int32(words).view(np.uint32).tolist()


def test_philox_broadcasts_as_each_element_alone() -> None:
    """Broadcasting changes no word, also over several chunks."""
    envs, agents = np.arange(300)[:, None], np.arange(70)
    got = rng.philox(9, envs, agents, 16, 3, -4)
    assert got[0].shape == (300, 70)
    assert got[0].size > 2 * rng._CHUNK
    for env, agent in [(0, 0), (116, 69), (117, 0), (299, 69)]:
        want = rng.philox(9, env, agent, 16, 3, -4)
        assert [int(word[env, agent]) for word in got] == [int(word) for word in want]


def test_philox_accepts_empty_counters() -> None:
    """Empty counters give no words."""
    assert rng.philox(np.zeros(0, np.int32), np.zeros(0, np.int32), 0, 2, 1, 1)[0].shape == (0,)


@on_every_backend
def test_derived_numbers_have_their_closed_form(backend: str) -> None:
    """Derived numbers follow their formulas and ranges.

    `uniform` is below 1, `below` in [0, n); `pool_row` uses word 0.
    """
    words = np.array([0, 255, 256, 0x7FFFFFFF, -(2**31), -1], np.int32)
    uniforms, integers = np.zeros(6, np.float32), np.zeros((6, 2), np.int32)
    seed = np.array([1, -2], np.int32)
    arguments = {"words": words, "seed": seed, "uniforms": uniforms, "integers": integers, "n": 10, "n_envs": 6}
    kernel_runner.run(backend, probe(), "derived", CONSTANTS, arguments, 1)
    assert uniforms.tolist() == [0, 0, 2**-24, 0.5 - 2**-24, 0.5, 1 - 2**-24]
    assert integers[:, 0].tolist() == [0, 0, 0, 4, 5, 9]
    first_words, *_ = rng.philox(words, np.arange(6), 0, rng.STREAM_POOL, *seed)
    assert integers[:, 1].tolist() == [int(word) * 10 >> 32 for word in first_words]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, np.int32(2**31 - 1), np.uint8(255)])
def test_seed_words_lose_no_bit(seed: int) -> None:
    """Two int32 words contain all bits of a seed."""
    low, high = np.array(rng.seed_words(seed), np.int32).view(np.uint32)
    assert int(low) + (int(high) << 32) == int(seed)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_words_refuse_other_seeds(seed: int) -> None:
    """A seed beyond 64 bits or below 0 raises."""
    with pytest.raises(ValueError, match=str(seed)):
        rng.seed_words(seed)
