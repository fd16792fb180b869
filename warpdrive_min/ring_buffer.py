"""Ring buffer over the first axis of an array on the device."""

from __future__ import annotations

import torch

from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import DataError, known, require, require_int


class RingBuffer:
    """Ring buffer of the last ``size`` rows, in the array's own memory.

    Args:
        name: Name of the array; its first axis holds the rows.
        size: Number of rows; None: the whole axis.
        data_manager: Manager that holds the array.

    Raises:
        DataError: ``size`` is not between 1 and the length of the axis.
    """

    def __init__(self, name: str, size: int | None = None, data_manager: CUDADataManager | None = None) -> None:
        if data_manager is None:
            raise DataError(f"ring buffer {name!r}: needs the data manager that holds the array")
        container = data_manager.tensor(name)
        length = container.shape[0]
        given, do = length if size is None else size, f"its array has {length} rows"
        self.size = rows = require_int(f"ring buffer {name!r}: size", given, 1, length, do, DataError)
        self._rows = container[:rows]
        self._front = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def isfull(self) -> bool:
        """True if the next row replaces the oldest."""
        return self._count == self.size

    def enqueue(self, row: torch.Tensor) -> None:
        """Copy a row in, over the oldest if full; does not synchronise."""
        self._rows[(self._front + self._count) % self.size].copy_(row)
        if self.isfull():
            self._front = (self._front + 1) % self.size
        else:
            self._count += 1

    def unroll(self) -> torch.Tensor | None:
        """Return the rows, oldest first, or None if empty.

        A view if they are in order in memory, else a copy.
        """
        if self._count == 0:
            return None
        if self._front == 0:
            return self._rows[: self._count]
        return torch.roll(self._rows, -self._front, dims=0)


class RingBufferManager(dict[str, RingBuffer]):
    """Ring buffers by the name of their array."""

    def add(self, name: str, size: int | None = None, data_manager: CUDADataManager | None = None) -> None:
        """Add a ring buffer over an array."""
        self[name] = RingBuffer(name, size, data_manager)

    def get(self, name: str) -> RingBuffer:  # type: ignore[override]
        """Return the ring buffer over an array.

        Raises:
            DataError: The array has no ring buffer.
        """
        do = f"known are {known(self)}"
        require(name in self, f"ring buffer {name!r}", "does not exist", do=do, error=DataError)
        return self[name]

    def has(self, name: str) -> bool:
        """True if an array has a ring buffer."""
        return name in self
