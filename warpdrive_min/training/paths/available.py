"""Compilers that the kernels of training need."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import torch

from warpdrive_min.backends import BACKENDS, Backend, get
from warpdrive_min.backends.cache import why_not_writable
from warpdrive_min.training.paths.facts import Facts, rule

NEEDS_TRITON: Final = "a GPU, Triton and a C compiler"
NEEDS_CUDA_C: Final = "a GPU of compute capability 8.0 or newer, and NVRTC or nvcc"
NEEDS_WARP_GROUPS: Final = "a GPU of compute capability 9.0, and NVRTC or nvcc"


@cache
def why_no_triton(device: str) -> str | None:
    """Return the reason Triton kernels cannot run on a device type, or None."""
    if device == "cuda" and not missing_for_triton():
        return None
    return f"needs {NEEDS_TRITON} (got {triton_status(device)})"


def triton_status(device: str) -> str:
    """Return the device type and the missing requirements of Triton, as text."""
    lacking = missing_for_triton()
    return f"{device}; missing: {lacking}" if lacking else device


@cache
def missing_for_triton() -> str:
    """Return the missing requirements of Triton; "" if nothing is missing."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    wanted = {
        "Triton": importlib.util.find_spec("triton") is not None,
        "a C compiler": any(map(shutil.which, compilers)),
    }
    if all(wanted.values()):
        # Triton's default folder; if not writable, the first launch would fail. No error here if there is no home
        home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
        folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
        name = f"a cache folder that can be written ({folder}; $TRITON_CACHE_DIR or $HOME)"
        wanted[name] = why_not_writable(folder) is None
    return " and ".join(name for name, is_there in wanted.items() if not is_there)


@cache
def why_no_cuda_c(device: str, backend: str) -> str | None:
    """Return the reason a backend's programs cannot learn on a device type, or None."""
    if device != "cuda":
        return f"needs {NEEDS_CUDA_C} (got {device})"
    if (reason := get(backend).why_no_program if backend else "no backend") is not None:
        return f"needs {NEEDS_CUDA_C} (got {reason})"
    capability = torch.cuda.get_device_capability()
    return None if capability >= (8, 0) else f"needs {NEEDS_CUDA_C} (got {capability[0]}.{capability[1]})"


def programs() -> Backend:
    """Return a backend that makes programs in CUDA C; those of a GPU make the same."""
    return BACKENDS["pycuda"]


def why_no_warp_groups(device: str) -> str | None:
    """Return the reason groups of warps cannot multiply on the current GPU, or None."""
    if device != "cuda" or not torch.cuda.is_available():
        return f"needs {NEEDS_WARP_GROUPS} (got {device}, {torch.cuda.device_count()} GPUs)"
    if (reason := programs().why_no_program) is not None:
        return f"needs {NEEDS_WARP_GROUPS} (got {reason})"
    if programs().has_warp_groups():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"needs {NEEDS_WARP_GROUPS} (got {major}.{minor})"


@cache
def why_no_cpp() -> str | None:
    """Return the reason kernels in C++ cannot be built, or None."""
    host = get("host").availability()
    return None if host.available else f"needs a C++ compiler (got none: {host.reason})"


@rule(NEEDS_TRITON)
def triton(facts: Facts) -> str | None:
    """Refuse devices without Triton."""
    return why_no_triton(facts.device)


@rule(NEEDS_CUDA_C)
def cuda_c(facts: Facts) -> str | None:
    """Refuse devices without TF32 or a compiler for them."""
    return why_no_cuda_c(facts.device, facts.backend)


@rule(NEEDS_WARP_GROUPS)
def has_warp_groups(facts: Facts) -> str | None:
    """Refuse devices other than Hopper GPUs with a compiler for them."""
    return why_no_warp_groups(facts.device)


@rule("a CPU and a C++ compiler")
def cpp(facts: Facts) -> str | None:
    """Refuse devices other than a CPU with a compiler."""
    return why_no_cpp() if facts.device == "cpu" else f"needs a CPU (got {facts.device})"
