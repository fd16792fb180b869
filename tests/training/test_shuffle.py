"""Random indices: permutations and rows of a buffer, in every language."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from tests.training.builders import refused
from warpdrive_min import BACKENDS
from warpdrive_min.training.algorithms.shuffle import RowDraw, Shuffle

SIZES = [1, 2, 3, 7, 1000, 4096, 100_003]
SMALL = 16
"""Size that the simulator manages in time."""


def _permutation(shuffle: Shuffle) -> np.ndarray:
    shuffle.permute()
    return shuffle.indices.cpu().numpy().copy()


def _permutations(n: int, n_draws: int) -> np.ndarray:
    """Return the first permutations of a seed, (n_draws, n)."""
    shuffle = Shuffle("host", n, seed=1)
    return np.stack([_permutation(shuffle) for _ in range(n_draws)])


def _rows(draw: RowDraw, size: int) -> np.ndarray:
    draw.draw(torch.tensor([size], dtype=torch.int32, device=draw.counter.device))
    return draw.indices.cpu().numpy().copy()


def _chi_square(counts: np.ndarray) -> float:
    want = counts.sum() / counts.size
    return float(((counts - want) ** 2 / want).sum())


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("n", SIZES)
def test_permute_gives_each_index_once(backend: str, n: int) -> None:
    """A permutation contains each index once, and draws differ."""
    if is_simulated(backend) and n > SMALL:
        pytest.skip("too large for the simulator")
    shuffle = Shuffle(backend, n, seed=3)
    draws = [_permutation(shuffle) for _ in range(4)]
    for permutation in draws:
        assert (np.sort(permutation) == np.arange(n)).all()
    assert int(shuffle.counter) == 4
    if n >= 7:
        assert len({permutation.tobytes() for permutation in draws}) == 4


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
@pytest.mark.parametrize("n", SIZES)
def test_languages_permute_alike_to_the_bit(backend: str, n: int) -> None:
    """Permutations are bit-identical in every language.

    This holds after the counter wraps too.
    """
    if is_simulated(backend) and n > SMALL:
        pytest.skip("too large for the simulator")
    here, there = (Shuffle(name, n, seed=2**63 + 5) for name in (backend, "cpu"))
    for counter in (0, 1, -1):
        for shuffle in (here, there):
            shuffle.counter.fill_(counter)
        assert (_permutation(here) == _permutation(there)).all()


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_several_seeds_permute_side_by_side(backend: str) -> None:
    """Each seed, as of a population's members, has the permutation of it alone."""
    seeds = (3, 2**63 + 5)
    got = _permutation(Shuffle(backend, 7, seeds)).reshape(2, 7)
    assert (got == [_permutation(Shuffle("cpu", 7, seed)) for seed in seeds]).all()


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
@pytest.mark.parametrize(
    ("n", "seeds"), [(1, [1]), (9, [1]), (16, [2, 2**40]), (5, [1, 2, 3]), (70_001, [1]), (999, [1, 2])]
)
def test_threads_with_several_indices_permute_alike(backend: str, n: int, seeds: list[int], monkeypatch) -> None:
    """Permutations do not depend on the number of threads."""
    if is_simulated(backend) and n > SMALL:
        pytest.skip("too large for the simulator")
    monkeypatch.setattr("warpdrive_min.training.algorithms.shuffle.MANY", 1)
    here = Shuffle(backend, n, seeds)
    assert here._n_threads < len(here.indices) or n == 1
    assert (_permutation(here) == _permutation(Shuffle("cpu", n, seeds))).all()


@pytest.mark.parametrize(("n", "limit"), [(4, 27.9), (5, 39.3), (7, 68.0)])
def test_every_index_is_as_likely_at_every_position(n: int, limit: float) -> None:
    """Each index is equally likely at each position.

    Chi-square of all positions is below its 99.9 % quantile, (n - 1)^2 degrees.
    """
    draws = _permutations(n, 4000)
    counts = np.stack([np.bincount(draws[:, position], minlength=n) for position in range(n)])
    assert (counts.sum(axis=0) == 4000).all()
    assert _chi_square(counts) < limit


def test_every_pair_is_as_likely_next_to_each_other() -> None:
    """Each adjacent pair is equally likely.

    Chi-square of 20 adjacent pairs of five is below its 99.9 % quantile.
    """
    draws = _permutations(5, 4000)
    for first, second in zip(draws.T[:-1], draws.T[1:], strict=True):
        counts = np.bincount(5 * first + second, minlength=25).reshape(5, 5)
        assert _chi_square(counts[~np.eye(5, dtype=bool)]) < 43.8  # 19 degrees of freedom


def test_large_permutations_look_random() -> None:
    """Large permutations look random.

    Neighbours of 0 to 99,999 move far apart; about one index stays.
    """
    permutation = _permutation(Shuffle("host", 100_000, seed=0)).astype(np.int64)
    distance = np.abs(np.diff(permutation))
    assert abs(distance.mean() - 100_000 / 3) < 500  # standard deviation of the mean: 75
    assert (permutation == np.arange(100_000)).sum() < 8
    correlation = np.corrcoef(permutation, np.arange(100_000))[0, 1]
    assert abs(correlation) < 0.013  # four standard deviations


@pytest.mark.parametrize("backend", BACKENDS_HERE)
def test_drawn_rows_lie_below_the_size_that_the_device_knows(backend: str) -> None:
    """Drawn rows cover the current size, and none beyond.

    This holds after the size has grown too.
    """
    draw = RowDraw(backend, 5 if is_simulated(backend) else 200, seed=4)
    size = torch.ones(1, dtype=torch.int32, device=BACKENDS[backend].device)
    draw.draw(size)
    assert not draw.indices.any()
    size.fill_(3)
    seen = set()
    for _ in range(6):
        draw.draw(size)
        seen |= set(draw.indices.tolist())
    assert seen == {0, 1, 2}
    assert int(draw.counter) == 7


@pytest.mark.parametrize("backend", OTHER_BACKENDS)
def test_languages_draw_the_same_rows(backend: str) -> None:
    """Seed, counter and size give the same rows everywhere."""
    n = SMALL if is_simulated(backend) else 1000
    here, there = (RowDraw(name, n, seed=9) for name in (backend, "cpu"))
    for size in (1, 7, 1_000_003, 2**31 - 1):
        assert (_rows(here, size) == _rows(there, size)).all()


def test_drawn_rows_are_uniform() -> None:
    """Drawn rows are uniform.

    Chi-square of 100,000 draws over 10 rows, and of pairs: below 99.9 %.
    """
    draw = RowDraw("cpu", 10_000, seed=5)
    draws = np.stack([_rows(draw, 10) for _ in range(10)])
    assert _chi_square(np.bincount(draws.ravel(), minlength=10)) < 27.9  # 9 degrees of freedom
    assert _chi_square(np.bincount((10 * draws[:-1] + draws[1:]).ravel(), minlength=100)) < 148.2  # 99


def test_random_indices_need_a_positive_number() -> None:
    """Zero indices or a too long seed are refused."""
    with refused("random indices.n", 0):
        Shuffle("cpu", 0, seed=0)
    with pytest.raises(ValueError, match="seed"):
        RowDraw("cpu", 1, seed=2**64)
