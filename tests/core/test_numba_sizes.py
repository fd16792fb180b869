"""Numba kernels with the sizes of their arrays compiled in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from warpdrive_min.backends.numba_cuda import simulated

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")


class Pair(NamedTuple):
    """Pair of arrays."""

    one: Any
    other: Any


@pytest.mark.skipif(not simulated(), reason="on a GPU every kernel is made so")
def test_sizes_leave_the_arguments_in_place():
    """Fixed sizes change no results, also with named tuples."""
    from warpdrive_min.backends.numba_source import with_sizes

    def add(pair: Pair, factor, out):
        i = cuda.threadIdx.x
        out[i, 0] = pair.one[i] + factor * pair.other[i, 1]

    add.__annotations__["pair"] = Pair
    one, other, out = np.arange(4.0), np.arange(8.0).reshape(4, 2), np.zeros((4, 1))
    function = with_sizes(add, cuda.jit(device=True)(add), [one.shape, other.shape, None, out.shape])
    cuda.jit(function)[1, 4](one, other, 10.0, out)
    np.testing.assert_array_equal(out[:, 0], one + 10 * other[:, 1])
