"""Kernels in Triton that do in one pass what torch does in many: small networks, and the loss on top of them.

Triton comes with torch where that runs on a GPU, and is imported when the first kernel is launched.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from warpdrive_min.backends.cache import obstacle as obstacle_of_folder
from warpdrive_min.errors import ConfigError
from warpdrive_min.perceptron import ACTIVATIONS
from warpdrive_min.training.config import present
from warpdrive_min.training.paths.fused import narrow, wide
from warpdrive_min.training.paths.fused.activations import in_kernels


def perceptron(
    inputs: torch.Tensor, weights: Sequence[torch.Tensor], activation: str, *, is_forced: bool
) -> torch.Tensor | None:
    """Return the outputs of a perceptron in one kernel, ``(..., n_outputs)`` float32, or None if there is none for it.

    Args:
        inputs: ``(..., n_features)``.
        weights: Of each layer, (outputs, inputs) and (outputs,), float32.
        activation: After each hidden layer.
        is_forced: There must be a kernel.

    Raises:
        ConfigError: There must be one and is not; says why.
    """
    reason = obstacle(inputs, weights, activation)
    if reason is not None:
        if is_forced:
            raise ConfigError(f"model.fused: {reason}; leave the key out, or set it to false")
        return None
    evaluate = narrow.narrow if narrow.fits(*_sizes(inputs, weights)) else wide.wide
    rows = inputs.reshape(-1, inputs.shape[-1]).float()
    w1, b1, w2, b2, w3, b3 = weights
    precision = present(inputs.device)
    name = in_kernels(activation, precision, inputs.device)
    outputs = evaluate(rows, (w1, b1, w2, b2, w3, b3), name, precision)
    return outputs.view(*inputs.shape[:-1], len(w3))


def obstacle(inputs: torch.Tensor, weights: Sequence[torch.Tensor], activation: str) -> str | None:
    """Return why a perceptron cannot be one kernel; None: it can."""
    if not is_supported(inputs.device):
        return f"needs a GPU, Triton and a C compiler (got inputs on {inputs.device}; missing: {missing() or 'none'})"
    if activation not in ACTIVATIONS:
        return f"knows the activations {' and '.join(ACTIVATIONS)} (got {activation!r})"
    if len(weights) != 6:
        return f"needs two hidden layers (got {len(weights) // 2 - 1})"
    sizes, precision = _sizes(inputs, weights), present(inputs.device)
    if not (narrow.fits(*sizes) or wide.fits(*sizes, precision)):
        n_features, hidden, n_outputs = sizes
        return (
            f"layers must fit on the chip: up to {narrow.WIDEST} units over {narrow.MOST_FEATURES} features, and up to "
            f"{wide.MOST_UNITS} over {wide.MOST_FEATURES} in {' or '.join(wide.PLANS)} "
            f"(got {n_features} features, {hidden[0]} and {hidden[1]} units, {n_outputs} outputs, in {precision})"
        )
    return None


def _sizes(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[int, tuple[int, int], int]:
    """Return the features, the units of both hidden layers, and the outputs."""
    return inputs.shape[-1], (len(weights[0]), len(weights[2])), len(weights[4])


def is_supported(device: torch.device) -> bool:
    """Return whether kernels can be launched on a device."""
    return device.type == "cuda" and not missing()


@cache
def missing() -> str:
    """Return what is not installed of what the kernels are compiled with; "" if all is."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    wanted = {
        "Triton": importlib.util.find_spec("triton") is not None,
        "a C compiler": any(map(shutil.which, compilers)),
    }
    if all(wanted.values()):
        # Triton's own default, which would fail at the first launch; without a home there is no error here
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
        name = f"a cache folder that can be written ({folder}; $TRITON_CACHE_DIR or $HOME)"
        wanted[name] = obstacle_of_folder(folder) is None
    return " and ".join(name for name, is_there in wanted.items() if not is_there)
