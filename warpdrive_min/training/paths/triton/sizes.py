"""Sizes of Triton blocks and grids, and kinds of products."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision

PRODUCTS: Final[dict[Precision, str]] = {"fp32": "bf16x6", "tf32": "tf32", "bf16": "bf16"}
"""Kind of product by precision, for layers that stay on the chip.

Six products of bfloat16, "bf16x6", have the errors of float32. So have three of TF32, "tf32x3", but their operands take
more of the chip.
"""


def power_of_two(size: int, least: int = 1) -> int:
    """Return the smallest power of two of at least ``size`` and ``least``.

    ``least`` must be a power of two.
    """
    return max(least, 1 << (size - 1).bit_length())


def block_of(size: int) -> int:
    """Return the block size for a size; matrix units need at least 16."""
    return power_of_two(size, 16)


def n_programs(n_rows: int, rows_of_block: int, per_processor: float, device: torch.device, n_networks: int = 1) -> int:
    """Return the number of programs that share a network's blocks of rows."""
    at_once = int(per_processor * _processors(device))
    return max(1, min(-(-n_rows // rows_of_block), -(-at_once // n_networks)))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
