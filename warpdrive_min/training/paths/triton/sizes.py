"""Sizes of Triton's blocks."""

from __future__ import annotations


def power_of_two(size: int, least: int = 1) -> int:
    """Return the least power of two that is no less than either; ``least`` is one itself."""
    return max(least, 1 << (size - 1).bit_length())
