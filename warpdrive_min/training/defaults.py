"""Defaults of torch and NumPy that trainers use, whatever the caller's are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

ERRORS: Final[dict[str, Any]] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""NumPy's default responses to floating-point errors."""
DEVICES: Final = ("cpu", "cuda")


@contextlib.contextmanager
def own_defaults() -> Iterator[None]:
    """Use torch's and NumPy's defaults in the block, then the caller's again.

    These are dtype, device, deterministic algorithms, gradients, inference mode, autocast, precision of matrix
    products, and NumPy's responses to floating-point errors. The number of threads stays.
    """
    with contextlib.ExitStack() as stack:
        if (dtype := torch.get_default_dtype()) != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        if torch.are_deterministic_algorithms_enabled():
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            torch.use_deterministic_algorithms(False)
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warns)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if (products := torch.get_float32_matmul_precision()) != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, products)
        if np.geterr() != ERRORS:
            stack.enter_context(np.errstate(**ERRORS))
        yield


@contextlib.contextmanager
def seeded_cpu_draws(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator in the block, then restore it.

    Unlike `torch.manual_seed` it leaves the generators of GPUs alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
