"""Sizes of Triton's blocks and grids, and kinds of products."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision

PRODUCTS: Final[dict[Precision, str]] = {"fp32": "bf16x6", "tf32": "tf32", "bf16": "bf16"}
"""Kind of product by precision, where layers are resident. Six products of bfloat16, "bf16x6", have the errors of
float32; so have three of TF32, "tf32x3", whose operands take more of the chip.
"""


def power_of_two(size: int, least: int = 1) -> int:
    """Return the least power of two that is no less than either; ``least`` is one itself."""
    return max(least, 1 << (size - 1).bit_length())


def block_of(size: int) -> int:
    """Return the size of a block that holds a size; matrix units take 16 at least."""
    return power_of_two(size, 16)


def n_programs(n_rows: int, rows_of_block: int, per_processor: float, device: torch.device, n_networks: int = 1) -> int:
    """Return how many programs share the blocks of the rows of a network."""
    at_once = int(per_processor * _processors(device))
    return max(1, min(-(-n_rows // rows_of_block), -(-at_once // n_networks)))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
