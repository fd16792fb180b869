"""Backend `host`: CUDA C kernels, compiled for CPU threads.

It is the compiled CPU baseline, and tests CUDA C without a GPU. Threads share the blocks. A block of a `WD_KERNEL` is
one call. Kernels with a thread for each agent run as fibres (`kernels/fibres.cuh`), which are correct but slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from warpdrive_min import forks
from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.backends.base import (
    Argument,
    Availability,
    Backend,
    Constant,
    Kernel,
    Language,
    Launch,
    Parameter,
    Source,
    Symbol,
)
from warpdrive_min.backends.cache import cached
from warpdrive_min.errors import BindingError, CompileError, ConfigError, KernelError, WriteError, require, shortened
from warpdrive_min.files import UNFINISHED, own_folder
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = LazyModule("numpy", globals(), "np")
    torch = LazyModule("torch", globals())

OPTIMISATION = "-O3"
"""Optimisation flag of the C++ compiler; tests with many compilations lower it."""

TARGET = "-march=native"
"""Target processor of the C++ compiler; emulators may lack instructions."""

BRANCHLESS: Final = ("-fno-math-errno", "-fno-trapping-math", "-fno-thread-jumps", "-fno-tree-pre")
"""g++ flags that keep selects branch-free, so that loops use SIMD."""

SIGNED_ZEROS: Final = ("-frounding-math",)
"""g++ flag for signed zeros.

Without it, ``0 - x`` becomes ``-x``, which is -0 for 0.
"""

NOT_CLANG: Final = "#if defined(__clang__)\n#error\n#endif\n"
"""Program that clang cannot build."""

THROWS: Final = 'extern "C" int wd_throws() { try { throw 1; } catch (int number) { return number; } }\n'
"""Program that needs the C++ library, not linked by C compilers."""

UNVECTORISED: Final = ("-Wno-pass-failed",)
"""clang++ flag against warnings about loops that it does not vectorise."""

CLANG: Final = "#if !defined(__clang__)\n#error\n#endif\n"
"""Program that only clang can build."""

COPIES: Final = ("-fno-tree-loop-distribute-patterns",)
"""g++ flag that keeps copy loops; ``rep movs`` would wait for all earlier stores."""

AS_NVCC: Final = ("-fno-reciprocal-math", "-fvisibility=hidden", "-Wno-narrowing")
"""Flags for sources with a thread for each agent.

Quotients are nvcc's, names stay local to a library, and `{gridDim.x}` may narrow to an int.
"""

FRAMES: Final = ("-Wframe-larger-than=131072", "-Werror=frame-larger-than")
FRAMES_OF_GCC: Final = ("-Werror=frame-larger-than=131072",)
"""Flags for these sources: frames must fit a fibre's stack."""

SHOW_WRITES: Final = "-fsanitize=thread"
"""Flag that makes the compiler report each write to `fibres.cuh`.

The sanitiser's library is not linked.
"""

FEWER_CALLS: Final = ("--param=tsan-instrument-func-entry-exit=0",)
"""g++ flag without which function entries are reported, too."""

MAX_FIBRES: Final = 16384
"""Most fibres of all threads; each needs two of Linux's 65,530 memory mappings."""

TIMEOUT_S = 10.0
"""Timeout of threads, s.

It limits the wait for a lock, and a thread's CPU time without a barrier.
"""


class HostBackend(Backend):
    """CUDA C on the CPU, with torch's number of threads (`torch.set_num_threads`)."""

    name: ClassVar[str] = "host"
    language: ClassVar[Language] = "cuda_c"

    def availability(self) -> Availability:
        """Check for a C++ compiler, and for OpenMP."""
        compiler = cuda_c.cpu_compiler()
        if compiler is None:
            return Availability(False, cuda_c.no_cpu_compiler(), "install g++ or clang++, or name one in $CXX")
        try:
            if reason := _why_unusable(compiler):
                return Availability(False, f"{shortened(compiler)} {reason}", "name another C++ compiler in $CXX")
            threads = "OpenMP" if openmp_flags(compiler) else "without OpenMP: one thread"
        except WriteError as error:
            return Availability(False, f"{error}")
        return Availability(True, f"{shortened(cuda_c.compiler_version(compiler))}, {threads}")

    @property
    def threads(self) -> int | None:
        """Threads that share the blocks; 1 in a forked process."""
        return forks.threads() if _has_openmp(os.environ.get("CXX"), os.environ.get("PATH")) else 1

    @property
    def own_cores(self) -> list[int] | None:
        """Cores used by `pinned`: physical cores first, then their hyperthreads.

        None if there are fewer cores than threads, or if the system or compiler cannot pin.
        """
        compiler, n = cuda_c.cpu_compiler(), self.threads or 1
        if compiler is None or not openmp_flags(compiler) or not hasattr(os, "sched_getaffinity"):
            return None
        cores = sorted(os.sched_getaffinity(0), key=lambda core: (_hyperthread(core), core))
        return cores[:n] if n <= len(cores) else None

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Pin each thread that runs kernels, including the caller's, to one core."""
        cores, compiler = self.own_cores, cuda_c.cpu_compiler()
        if cores is None or compiler is None:
            yield
            return
        allowed = sorted(os.sched_getaffinity(0))
        _pin(compiler, [[core] for core in cores])
        try:
            yield
        finally:
            _pin(compiler, [allowed] * len(cores))

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Compile a source and its kernels' launchers to a cached shared library."""
        self.require()
        compiler = cuda_c.cpu_compiler()
        assert compiler is not None
        path = Path(source)
        whole = cuda_source.whole_text(path)
        declared = cuda_c.declared(path, constants)
        rule, do = "uses dynamic shared memory, which launches do not provide", "give the array a size"
        require(not _DYNAMIC.search(whole), str(path), rule, do=do, error=CompileError)
        contraction = "off" if constants.get("EXACT") else "fast"
        flags = ["-std=c++17", OPTIMISATION, TARGET, f"-ffp-contract={contraction}", "-Wno-unknown-pragmas"]
        flags += [
            *supported_flags(compiler, BRANCHLESS),
            *supported_flags(compiler, SIGNED_ZEROS, NOT_CLANG),
            *supported_flags(compiler, COPIES),
            *supported_flags(compiler, UNVECTORISED, CLANG),
            *openmp_flags(compiler),
            f"-I{path.parent}",
            f"-I{cuda_source.HEADERS}",
            f"-idirafter{cuda_source.ROOT}",
        ]
        is_for_nvcc = cuda_source.is_for_nvcc(whole)
        if is_for_nvcc:
            flags += [*AS_NVCC, *(supported_flags(compiler, FRAMES) or FRAMES_OF_GCC), f"-I{cuda_source.CURAND}"]
            if _CONDITION.search(whole):
                left = cuda_c.preprocessed(cuda_c.unit(path, constants), path, compiler, flags)
                declared = {name: each for name, each in declared.items() if re.search(rf"\b{name}\s*\(", left)}
        text = cuda_c.unit(path, constants, "".join(_launcher(signature) for signature in declared.values()))
        # Code built with -march=native must not run on another CPU that shares the home folder.
        key = cuda_c.key(
            text, path, flags=flags, compiler=cuda_c.compiler_version(compiler), cpu=processor("flags", "Features")
        )

        def make(target: Path) -> None:
            with cuda_c.empty_headers(cuda_source.CUDA_HEADERS) as folder:
                more = (
                    [f"-I{folder}", SHOW_WRITES, *supported_flags(compiler, FEWER_CALLS, NOT_CLANG)]
                    if is_for_nvcc
                    else []
                )
                cuda_c.compile_shared_library(text, target, compiler, flags, str(path), more)

        library = cached(key, ".so", make)
        import torch  # noqa: F401, PLC0415  (loads its OpenMP before the kernels load theirs)

        if not is_for_nvcc:
            loaded = ctypes.CDLL(str(library))
            return {name: HostKernel(signature, loaded, self, library) for name, signature in declared.items()}
        module = HostModule(
            library, cuda_source.blocks_per_env(constants) if cuda_source.uses_warp_drive_names(whole) else 1
        )
        return {
            name: HostKernel(signature, module.library, self, library)
            if signature.owns_environments
            else AgentKernel(signature, module, self)
            for name, signature in declared.items()
        }


class HostKernel:
    """Kernel of a shared library; a launch is complete when it returns."""

    owns_environments = True

    def __init__(
        self, signature: cuda_source.Signature, library: ctypes.CDLL, backend: HostBackend, binary: Path
    ) -> None:
        self.name = signature.name
        self.parameters = signature.parameters
        self.binary = binary
        self._backend = backend
        self._packing = Packing(signature.parameters)
        self._launch = getattr(library, f"wd_launch_{signature.name}")
        self._launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._launch.restype = None

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the arguments' addresses once; ``threads`` of a block become loops."""
        addresses, kept = self._packing(arguments)
        launch, pointer, workers = self._launch, ctypes.addressof(addresses), self._backend.threads or 1
        forks.used |= workers > 1

        def run(keep: object = (addresses, kept)) -> None:
            launch(blocks, min(workers, forks.threads()) if forks.forked else workers, pointer)

        return run


class HostModule:
    """Newly loaded shared library with separate variables, like a GPU module.

    Args:
        path: Path of the library; a copy is loaded.
        blocks_per_env: Blocks that share an environment in its kernels.
    """

    def __init__(self, path: Path, blocks_per_env: int) -> None:
        with own_folder(path.parent, UNFINISHED) as folder:
            self.library = ctypes.CDLL(str(shutil.copy(path, folder)))
        self.binary = path
        self.blocks_per_env = blocks_per_env
        self._size_of = self.library.wd_size_of
        self._size_of.argtypes = [ctypes.c_void_p]
        self._size_of.restype = ctypes.c_size_t

    def symbol(self, name: str) -> Symbol | None:
        """Return the ``__constant__`` symbol of a name, or None."""
        try:
            address = ctypes.addressof(ctypes.c_char.in_dll(self.library, name))
        except ValueError:
            return None
        return Symbol(self._size_of(address), lambda array: ctypes.memmove(address, array.ctypes.data, array.nbytes))


class AgentKernel:
    """Kernel with a thread for each agent, run as fibres.

    A launch is complete when it returns. It raises `KernelError` if its threads deadlock or an `assert` fails.
    """

    owns_environments = False

    def __init__(self, signature: cuda_source.Signature, module: HostModule, backend: HostBackend) -> None:
        self.name = signature.name
        self.parameters = signature.parameters
        self.module, self.binary = module, module.binary
        self._backend = backend
        self._packing = Packing(signature.parameters)
        self._launch = getattr(module.library, f"wd_launch_{signature.name}")
        sizes = [ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._launch.argtypes = [*sizes, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        self._launch.restype = ctypes.c_int

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the arguments' addresses once.

        Raises:
            BindingError: The number of blocks is not a multiple of an environment's blocks.
        """
        n = self.module.blocks_per_env
        rule, do = f"must get blocks by {n}, which share an environment", "launch it on the manager's grid"
        require(blocks % n == 0, f"kernel {self.name!r}", rule, blocks, do, BindingError)
        addresses, kept = self._packing(arguments)
        launch, pointer = self._launch, ctypes.addressof(addresses)
        workers = min(self._backend.threads or 1, max(1, MAX_FIBRES // (threads * n)))
        forks.used |= workers > 1
        error = ctypes.create_string_buffer(2000)

        def run(keep: object = (addresses, kept)) -> None:
            n = min(workers, forks.threads()) if forks.forked else workers
            if launch(blocks, threads, n, TIMEOUT_S, pointer, error, len(error)):
                raise KernelError(error.value.decode(errors="replace"))

        return run


class Packing:
    """Memory layout of a kernel's arguments for its launcher.

    The launcher takes the addresses of the values, as CUDA does.

    Args:
        parameters: Parameters of the kernel; an array is passed by address, a scalar in its declared size.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        types = [
            np.ctypeslib.as_ctypes_type(np.dtype(each.dtype or "int32")) if each.rank == 0 else ctypes.c_void_p
            for each in parameters
        ]
        fields = [(f"_{index}", each) for index, each in enumerate(types)]
        self._values: Any = type("Values", (ctypes.Structure,), {"_fields_": fields})
        self._offsets = [getattr(self._values, name).offset for name, _ in fields]
        self._addresses: Any = ctypes.c_void_p * len(fields)

    def __call__(self, arguments: Sequence[Argument]) -> tuple[Any, object]:
        """Return the addresses of the arguments' values, and objects to keep alive."""
        values = self._values(*(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments))
        first = ctypes.addressof(values)
        return self._addresses(*(first + offset for offset in self._offsets)), (arguments, values)


_DYNAMIC: Final = re.compile(r"\bextern\s+__shared__|\b__shared__\s+extern\b")
_CONDITION: Final = re.compile(r"^[ \t]*#[ \t]*if", re.MULTILINE)
_ARGUMENTS: Final = """
#ifndef WD_LAUNCHER
#define WD_LAUNCHER
template <int N, class Kernel> struct wd_parameter;
template <class First, class... Rest> struct wd_parameter<0, void(First, Rest...)> { using type = First; };
template <int N, class First, class... Rest>
struct wd_parameter<N, void(First, Rest...)> : wd_parameter<N - 1, void(Rest...)> {};
template <class T> static T wd_argument(void* address) { return *static_cast<T*>(address); }
#endif
"""


def _launcher(signature: cuda_source.Signature) -> str:
    """Return a C++ function that runs a kernel's blocks.

    It takes the addresses of the arguments, as CUDA does.
    """
    arguments = ", ".join(
        f"wd_argument<wd_parameter<{index}, decltype({signature.name})>::type>(arguments[{index}])"
        for index in range(len(signature.parameters))
    )
    if not signature.owns_environments:
        return f"""{_ARGUMENTS}
extern "C" WD_EXPORTED int wd_launch_{signature.name}(int blocks, int threads, int workers, double patience,
                                                      void** arguments, char* error, size_t error_bytes) {{
  const wd_fibres::Kernel kernel = {{"{signature.name}", [](void** arguments) {{ {signature.name}({arguments}); }}}};
  return wd_fibres::launch(kernel, blocks, threads, workers, patience, arguments, error, error_bytes);
}}
"""
    return f"""{_ARGUMENTS}
extern "C" void wd_launch_{signature.name}(int blocks, int workers, void** arguments) {{
  (void)workers;
#pragma omp parallel for schedule(static) num_threads(workers) if (blocks > 1 && workers > 1)
  for (int block = 0; block < blocks; ++block) {{
    wd_block = block;
    {signature.name}({arguments});
  }}
}}
"""


_PIN: Final = """
#include <omp.h>
#include <sched.h>
extern "C" void wd_pin(int threads, int n_each, const int* cores) {
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int i = 0; i < n_each; ++i) CPU_SET(cores[omp_get_thread_num() * n_each + i], &own);
    sched_setaffinity(0, sizeof own, &own);
  }
}
"""


def _pin(compiler: str, cores: Sequence[Sequence[int]]) -> None:
    """Pin kernel threads to their entries' cores, equally many each."""
    flat = [core for each in cores for core in each]
    _pinning(compiler).wd_pin(len(cores), len(cores[0]), (ctypes.c_int * len(flat))(*flat))


@functools.cache
def _pinning(compiler: str) -> ctypes.CDLL:
    flags = ["-O1", *openmp_flags(compiler)]
    key = {"text": _PIN, "flags": flags, "compiler": cuda_c.compiler_version(compiler)}
    library = cached(key, ".so", lambda to: cuda_c.compile_shared_library(_PIN, to, compiler, flags, "pinning"))
    return ctypes.CDLL(str(library))


def _hyperthread(core: int) -> int:
    """Return a logical core's index on its physical core; 0 if unknown."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        return [int(number) for number in re.findall(r"\d+", text)].index(core)
    except (OSError, ValueError):
        return 0


@functools.cache
def _has_openmp(*environment: str | None) -> bool:
    """True if the environment's compiler supports OpenMP; cached by environment."""
    compiler = cuda_c.cpu_compiler()
    return compiler is not None and bool(openmp_flags(compiler))


@functools.cache
def openmp_flags(compiler: str) -> tuple[str, ...]:
    """Return ``("-fopenmp",)`` if the compiler supports it, else ()."""
    program = '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n'
    return supported_flags(compiler, ("-fopenmp",), program)


@functools.cache
def supported_flags(compiler: str, flags: tuple[str, ...], program: str = "") -> tuple[str, ...]:
    """Return the flags if the compiler can build with them, else ()."""
    try:
        _probe(compiler, flags, program, lambda path: None)
    except CompileError:
        return ()
    return flags


@functools.cache
def _why_unusable(compiler: str) -> str:
    """Return the reason why a compiler's libraries cannot be used, or "".

    Raises:
        WriteError: The disk has no space to build one.
    """
    try:
        _probe(compiler, ("-std=c++17",), THROWS, lambda path: ctypes.CDLL(str(path)))
    except CompileError:
        return "builds no C++17 library"
    except OSError as error:
        if isinstance(error, WriteError):
            raise
        return f"builds libraries that cannot be loaded ({str(error).partition(': ')[2]})"
    return ""


def _probe(compiler: str, flags: tuple[str, ...], program: str, use: Callable[[Path], object]) -> None:
    """Build a cached shared library, and use it.

    Raises:
        CompileError: It cannot be built.
        WriteError: The disk has no space for it.
    """
    key = {"text": program, "flags": flags, "compiler": cuda_c.compiler_version(compiler)}

    def make(path: Path) -> None:
        cuda_c.compile_shared_library(program, path, compiler, flags, "probe")

    try:
        use(cached(key, ".so", make))
    except ConfigError:  # no cache folder; compiling kernels reports it
        with tempfile.TemporaryDirectory(prefix="warpdrive-probe-") as folder:
            make(path := Path(folder, "probe.so"))
            use(path)


def processor(*fields: str) -> str:
    """Return the first CPU info line with one of the words.

    Falls back to the processor's name.
    """
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(fields):
                return line
    except OSError:
        pass
    return platform.processor() or platform.machine()
