"""Ring buffer: order, wrapping, and shared memory of its array."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

from tests.support import managers, on_every_backend, push
from warpdrive_min import RingBuffer, RingBufferManager
from warpdrive_min.errors import DataError


def rows(buffer: RingBuffer) -> list[float]:
    """Return the first element of each row, oldest first."""
    unrolled = buffer.unroll()
    return [] if unrolled is None else unrolled[:, 0].tolist()


@on_every_backend
@pytest.mark.parametrize("size", [1, 2, 5, None])
def test_unroll_returns_the_last_rows_oldest_first(backend, size):
    """`unroll` returns the last rows, oldest first, like a deque."""
    data, _ = managers(backend)
    push(data, "x", np.zeros((5, 2), np.float32))
    buffer, want = RingBuffer("x", size, data), deque(maxlen=size or 5)
    assert buffer.unroll() is None
    for value in range(1, 14):
        buffer.enqueue(torch.full((2,), float(value), device=data.device))
        want.append(value)
        assert rows(buffer) == list(want)
        assert len(buffer) == len(want)
        assert buffer.isfull() == (len(want) == buffer.size)
    assert not data.tensor("x")[buffer.size :].any()


def test_rows_are_copied_into_the_arrays_own_memory():
    """A new row is copied into the array's own memory.

    The array is the buffer: no allocation before it wraps.
    """
    data, _ = managers("cpu")
    push(data, "x", np.zeros((3, 1), np.float32))
    buffer, row = RingBuffer("x", data_manager=data), torch.ones(1)
    buffer.enqueue(row)
    row.fill_(9)
    assert data.tensor("x").flatten().tolist() == [1, 0, 0]
    assert buffer.unroll().data_ptr() == data.tensor("x").data_ptr()


@pytest.mark.parametrize("size", [0, -1, 4])
def test_size_must_fit_the_array(size):
    """A buffer larger than its array is refused."""
    data, _ = managers("cpu")
    push(data, "x", np.zeros((3, 1), np.float32))
    with pytest.raises(DataError, match=rf"'x': size: must be at (least 1|most 3) .got {size}.; its array has 3 rows"):
        RingBuffer("x", size, data)


def test_array_must_be_there():
    """The error names the missing data manager or array."""
    with pytest.raises(DataError, match="ring buffer 'x': needs the data manager"):
        RingBuffer("x")
    with pytest.raises(DataError, match="data 'x': does not exist"):
        RingBuffer("x", data_manager=managers("cpu")[0])


def test_manager_keeps_buffers_by_name():
    """A buffer is found by array name; unknown ones list the known."""
    data, _ = managers("cpu")
    push(data, "x", np.zeros((3, 1), np.float32))
    buffers = RingBufferManager()
    buffers.add("x", 2, data)
    assert buffers.get("x").size == 2
    assert (buffers.has("x"), buffers.has("y")) == (True, False)
    with pytest.raises(DataError, match="ring buffer 'y': does not exist; known are x"):
        buffers.get("y")
