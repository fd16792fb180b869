"""Runs one kernel in one language without the backends, so that a kernel's test fails for the kernel's faults only."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

KERNELS = Path(__file__).parents[1] / "warpdrive_min" / "kernels"
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
UNUSED = ("-Wno-unused-parameter", "-Wno-unused-function")  # one launch uses one kernel of the file
COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)

LANGUAGES = (
    "numpy",
    pytest.param("cuda_c", marks=pytest.mark.skipif(COMPILER is None, reason="found no C++ compiler")),
    pytest.param(
        "numba",
        marks=pytest.mark.skipif(
            not SIMULATED and not torch.cuda.is_available(), reason="needs NUMBA_ENABLE_CUDASIM=1 or an NVIDIA GPU"
        ),
    ),
)


def run(
    language: str,
    kernel_file: str | Path,
    kernel: str,
    constants: Mapping[str, Any],
    arguments: Mapping[str, np.ndarray | int],
    n_blocks: int,
) -> None:
    """Run a kernel once, over ``n_blocks`` blocks, on NumPy arrays in place.

    ``kernel_file`` is the stem of a file of the core, or (``cuda_c``) the path of a source, or (else) a module's name.
    ``arguments`` are in the order of the kernel's parameters.
    """
    if language == "cuda_c":
        path = kernel_file if isinstance(kernel_file, Path) else KERNELS / f"{kernel_file}.cu"
        library = _library(path.read_text(), _prelude(constants), _launcher(kernel, arguments))
        library.launch(n_blocks, *(_c_value(value) for value in arguments.values()))
        return
    name = str(kernel_file)
    module = importlib.import_module(name if "." in name else f"warpdrive_min.kernels.{name}_{language}")
    function = module.build(SimpleNamespace(**constants))[kernel]
    if language == "numpy":
        function(*arguments.values())
        return
    from warpdrive_min.kernels.core_numba import contraction_off  # optional

    with contraction_off(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a GPU: few blocks, and arrays copied to it and back
        function[n_blocks, constants["THREADS"]](*arguments.values())


def probe(language: str) -> str | Path:
    """Return the kernels that call single device functions."""
    return Path(__file__).with_name("probe_kernels.cu") if language == "cuda_c" else f"tests.probe_{language}"


def n_blocks(constants: Mapping[str, Any], n_envs: int) -> int:
    """Return how many blocks own ``n_envs`` environments."""
    return -(-n_envs // int(constants["ENVS_PER_BLOCK"]))


def _prelude(constants: Mapping[str, Any]) -> str:
    scalars, tables = [], []
    for name, value in constants.items():
        if isinstance(value, bool):
            scalars.append(f"constexpr bool {name} = {str(value).lower()};")
        elif isinstance(value, int):
            scalars.append(f"constexpr int {name} = {value};")
        else:
            entries = ", ".join(str(int(entry)) for entry in value)
            tables.append(f"WD_TABLE int {name}[{len(value)}] = {{{entries}}};")
    return "\n".join([*scalars, '#include "core.cuh"', *tables])


def _launcher(kernel: str, arguments: Mapping[str, np.ndarray | int]) -> str:
    parameters = "".join(
        f", void* {name}" if isinstance(value, np.ndarray) else f", int {name}" for name, value in arguments.items()
    )
    values = ", ".join(f"Any{{{name}}}" if isinstance(value, np.ndarray) else name for name, value in arguments.items())
    return f"""
struct Any {{ void* address; template <class T> operator T*() const {{ return static_cast<T*>(address); }} }};
extern "C" void launch(int n_blocks{parameters}) {{
  for (wd_block = 0; wd_block < n_blocks; ++wd_block) {kernel}({values});
}}
"""


@functools.cache
def _library(source: str, prelude: str, launcher: str) -> ctypes.CDLL:
    assert COMPILER is not None
    with tempfile.TemporaryDirectory() as folder:
        unit, library = Path(folder) / "unit.cpp", Path(folder) / "unit.so"
        unit.write_text(f"{prelude}\n{source}\n{launcher}")
        command = [COMPILER, "-std=c++17", "-O2", "-march=native", "-ffp-contract=off", f"-I{KERNELS}"]
        result = subprocess.run(
            [*command, "-Wall", "-Wextra", "-Werror", *UNUSED, "-shared", "-fPIC", "-o", library, unit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return ctypes.CDLL(str(library))


def _c_value(value: np.ndarray | int) -> ctypes.c_void_p | ctypes.c_int:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int(value)
