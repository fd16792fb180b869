"""Names of activations in the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision


def in_kernels(activation: str, precision: Precision, device: torch.device) -> str:
    """Return an activation as kernels know it; on a GPU tanh is by its own instructions.

    In fp32 within a few ulp. Where products are rounded, so is tanh: that has the error of an operand of TF32, 2^-11 of
    the number.
    """
    if activation != "tanh" or device.type != "cuda":
        return activation
    return "tanh.ptx" if precision == "fp32" else "tanh.approx"
