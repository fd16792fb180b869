"""Names of activations in the kernels."""

from __future__ import annotations

import torch

from warpdrive_min.training.config import Precision


def in_kernels(activation: str, precision: Precision, device: torch.device) -> str:
    """Return an activation as kernels know it; where products are rounded, so is tanh, by a GPU's own instruction.

    That has the error of an operand of TF32, 2^-11 of the number.
    """
    return "tanh.approx" if activation == "tanh" and precision != "fp32" and device.type == "cuda" else activation
