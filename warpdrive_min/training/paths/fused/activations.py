"""Names of activations in the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from warpdrive_min.training.config import Precision


def in_kernels(activation: str, precision: Precision, device: torch.device) -> str:
    """Return the kernels' name of an activation.

    On a GPU tanh uses GPU instructions: in fp32 within a few ulp. In the other precisions tanh is rounded like
    products: its relative error is that of a TF32 operand, 2^-11.
    """
    if activation != "tanh" or device.type != "cuda":
        return activation
    return "tanh.ptx" if precision == "fp32" else "tanh.approx"
