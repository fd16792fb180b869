"""Run one kernel once, on one backend, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support import BACKENDS_HERE, OTHER_BACKENDS, is_simulated
from warpdrive_min import BACKENDS
from warpdrive_min.backends.base import Language, Source
from warpdrive_min.function_manager import core_sources

__all__ = ["BACKENDS_HERE", "OTHER_BACKENDS", "is_simulated", "n_blocks", "probe", "run"]


def run(
    backend: str,
    sources: str | Mapping[Language, Source],
    kernel: str,
    constants: Mapping[str, Any],
    arguments: Mapping[str, np.ndarray | int],
    n_blocks: int,
) -> None:
    """Run a kernel over ``n_blocks`` blocks, and wait for it.

    It is built exactly unless ``constants`` differ. Arrays are changed in place. ``sources`` is the stem of a file of
    the core, or the source of each language; ``arguments`` are in the order of the kernel's parameters.
    """
    here = BACKENDS[backend]
    paths = core_sources(sources) if isinstance(sources, str) else sources
    built = here.compile(paths[here.language], {"EXACT": True, **constants})[kernel]
    tensors = {name: torch.from_numpy(value).to(here.device) for name, value in arguments.items() if _is_array(value)}
    built.prepare([tensors.get(name, value) for name, value in arguments.items()], n_blocks, constants["THREADS"])()
    here.synchronize()
    for name, tensor in tensors.items():
        arguments[name][...] = tensor.cpu().numpy()


def _is_array(value: np.ndarray | int) -> bool:
    return isinstance(value, np.ndarray)


def probe() -> dict[Language, Source]:
    """Return the kernels that call single device functions."""
    return {
        "numpy": "tests.core.probe_numpy",
        "cuda_c": Path(__file__).with_name("probe_kernels.cu"),
        "numba": "tests.core.probe_numba",
    }


def n_blocks(constants: Mapping[str, Any], n_envs: int) -> int:
    """Return the number of blocks that own ``n_envs`` environments."""
    return -(-n_envs // int(constants["ENVS_PER_BLOCK"]))
