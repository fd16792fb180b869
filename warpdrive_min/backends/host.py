"""Backend `host`: the CUDA C kernels, built by the machine's C++ compiler; threads share out the blocks.

The compiled CPU baseline, and the way CUDA C is tested without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.base import Argument, Availability, Backend, Constant, Kernel, Language, Launch, Source
from warpdrive_min.backends.cache import cached
from warpdrive_min.errors import CompileError, require

OPTIMISATION = "-O3"
"""Flag of the C++ compiler; tests that compile much take less."""

BRANCHLESS: Final = ("-fno-math-errno", "-fno-trapping-math", "-fno-thread-jumps", "-fno-tree-pre")
"""Flags of g++ that keep selects selects, so that loops over environments run in SIMD; no result depends on them."""


class HostBackend(Backend):
    """CUDA C on the CPU, on as many threads as torch uses (`torch.set_num_threads`)."""

    name: ClassVar[str] = "host"
    language: ClassVar[Language] = "cuda_c"

    def availability(self) -> Availability:
        """Say whether there is a C++ compiler, and whether it knows OpenMP."""
        compiler = cuda_c.cpu_compiler()
        if compiler is None:
            return Availability(False, "found no C++ compiler", "install g++ or clang++, or name one in $CXX")
        threads = "OpenMP" if openmp_flags(compiler) else "without OpenMP: one thread"
        return Availability(True, f"{cuda_c.compiler_version(compiler)}, {threads}")

    @property
    def threads(self) -> int | None:
        """Threads that share out the blocks."""
        compiler = cuda_c.cpu_compiler()
        return torch.get_num_threads() if compiler and openmp_flags(compiler) else 1

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Compile the source and a launcher for each of its kernels to a shared library; cached."""
        self.require()
        compiler = cuda_c.cpu_compiler()
        assert compiler is not None
        path = Path(source)
        declared = cuda_c.signatures(cuda_c.whole_text(path), constants, str(path))
        for signature in declared.values():
            rule = f"kernel {signature.name!r} is declared __global__, with a thread for each agent"
            do = "backend 'host' runs kernels declared WD_KERNEL(name), whose loops stride over the agents"
            require(signature.owns_environments, str(path), rule, do=do, error=CompileError)
        text = cuda_c.unit(path, constants, "".join(_launcher(signature) for signature in declared.values()))
        contraction = "off" if constants.get("EXACT") else "fast"
        flags = ["-std=c++17", OPTIMISATION, "-march=native", f"-ffp-contract={contraction}", "-Wno-unknown-pragmas"]
        flags += [*accepted(compiler, BRANCHLESS), *openmp_flags(compiler), f"-I{path.parent}", f"-I{cuda_c.HEADERS}"]
        key = cuda_c.key(text, path, flags=flags, compiler=cuda_c.compiler_version(compiler), cpu=_processor())
        library = cached(
            key, ".so", lambda target: cuda_c.compile_shared_library(text, target, compiler, flags, str(path))
        )
        loaded = ctypes.CDLL(str(library))
        return {name: HostKernel(signature, loaded, self) for name, signature in declared.items()}


class HostKernel:
    """One kernel of a shared library; a launch has run when it returns."""

    owns_environments = True

    def __init__(self, signature: cuda_c.Signature, library: ctypes.CDLL, backend: HostBackend) -> None:
        self.name = signature.name
        self.parameters = signature.parameters
        self._backend = backend
        self._launch = getattr(library, f"wd_launch_{signature.name}")
        self._launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._launch.restype = None

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the addresses of the arguments once; ``threads`` of a block become loops."""
        values = [
            _c_value(argument, parameter.dtype) for argument, parameter in zip(arguments, self.parameters, strict=True)
        ]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        launch, pointer, workers = self._launch, ctypes.addressof(addresses), self._backend.threads or 1

        def run(keep: object = (arguments, values, addresses)) -> None:
            launch(blocks, workers, pointer)

        return run


def _c_value(argument: Argument, dtype: str | None) -> Any:
    """Return what the launcher reads: an address, or a scalar of as many bytes as the parameter has."""
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return np.ctypeslib.as_ctypes_type(np.dtype(dtype or "int32"))(argument)


def _launcher(signature: cuda_c.Signature) -> str:
    """Return the C++ function that runs a kernel's blocks; it takes the addresses of the arguments, as CUDA does."""
    arguments = ", ".join(
        f"wd_argument<decltype(wd_nth<{index}>({signature.name}))>(arguments[{index}])"
        for index in range(len(signature.parameters))
    )
    return f"""
#ifndef WD_LAUNCHER
#define WD_LAUNCHER
#include <tuple>
template <int N, class... P> std::tuple_element_t<N, std::tuple<P...>> wd_nth(void (*)(P...));
template <class T> static T wd_argument(void* address) {{ return *static_cast<T*>(address); }}
#endif
extern "C" void wd_launch_{signature.name}(int blocks, int workers, void** arguments) {{
  (void)workers;
#pragma omp parallel for schedule(static) num_threads(workers) if (blocks > 1 && workers > 1)
  for (int block = 0; block < blocks; ++block) {{
    wd_block = block;
    {signature.name}({arguments});
  }}
}}
"""


@functools.cache
def openmp_flags(compiler: str) -> tuple[str, ...]:
    """Return ``("-fopenmp",)`` if the compiler can build with it, else nothing."""
    program = '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n'
    return accepted(compiler, ("-fopenmp",), program)


@functools.cache
def accepted(compiler: str, flags: tuple[str, ...], program: str = "") -> tuple[str, ...]:
    """Return the flags if the compiler can build a program with them, else nothing."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            cuda_c.compile_shared_library(program, Path(folder) / "probe.so", compiler, flags, "probe")
        except CompileError:
            return ()
    return flags


def _processor() -> str:
    """Name the CPU: code built with -march=native must not meet another one in a shared home folder."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):  # x86, Arm
                return line
    except OSError:
        pass
    return platform.processor() or platform.machine()
