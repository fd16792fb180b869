"""In which precision matrices are multiplied: fp32, TF32, or bfloat16 by autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def present(device: torch.device) -> Precision:
    """Return the precision that holds now."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """Multiply matrices in a precision within the block; what is captured there keeps it.

    Weights, moments, losses and returns are float32 always.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        # No cache of cast weights: a captured graph must cast them anew in each replay.
        with torch.autocast(device.type, torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
