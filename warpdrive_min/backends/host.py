"""Backend `host`: CUDA C kernels, compiled for CPU threads.

It is the compiled CPU baseline, and tests CUDA C without a GPU. Threads share the blocks. A block of a `WD_KERNEL` is
one call. Kernels with a thread for each agent run as fibres (`kernels/fibres.cuh`), which are correct but slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from warpdrive_min import cores, forks
from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.backends.base import (
    Argument,
    Availability,
    Backend,
    Constant,
    Kernel,
    Language,
    Launch,
    Packing,
    Source,
    Symbol,
)
from warpdrive_min.backends.cache import cached, report
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

EXTRA: tuple[str, ...] = ()
"""More flags of the C++ compiler, if it has them; `debug` sets them."""

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
        """Check for a C++ compiler."""
        compiler = cuda_c.cpu_compiler()
        if compiler is None:
            return Availability(False, cuda_c.no_cpu_compiler(), "install g++ or clang++, or name one in $CXX")
        try:
            if reason := _why_unusable(compiler):
                return Availability(False, f"{shortened(compiler)} {reason}", "name another C++ compiler in $CXX")
        except WriteError as error:
            return Availability(False, f"{error}")
        return Availability(True, shortened(cuda_c.compiler_version(compiler)))

    @property
    def threads(self) -> int | None:
        """Most threads that share the blocks; 1 in a forked process.

        They are torch's, but not more than the cores of the container's limit, unless `OMP_NUM_THREADS` is set.
        """
        limit = None if "OMP_NUM_THREADS" in os.environ else cores.limit()
        return min(forks.threads(), max(1, int(limit))) if limit else forks.threads()

    @property
    def own_cores(self) -> list[int] | None:
        """Cores used by `pinned`: physical cores first, then their hyperthreads.

        None if there are fewer cores than threads, or if the system cannot pin.
        """
        if not hasattr(os, "sched_getaffinity"):
            return None
        n, own = self.threads or 1, sorted(os.sched_getaffinity(0), key=lambda core: (_hyperthread(core), core))
        return own[:n] if n <= len(own) else None

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Pin each thread that runs kernels, including the caller's, to one core.

        Does nothing in a forked process whose threads are gone.
        """
        own, compiler = self.own_cores, cuda_c.cpu_compiler()
        if own is None or compiler is None or forks.has_lost_threads():
            yield
            return
        allowed = sorted(os.sched_getaffinity(0))
        _pin(compiler, [[core] for core in own])
        try:
            yield
        finally:
            _pin(compiler, [allowed] * len(own))

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
            *supported_flags(compiler, EXTRA),
            *supported_flags(compiler, BRANCHLESS),
            *supported_flags(compiler, SIGNED_ZEROS, NOT_CLANG),
            *supported_flags(compiler, COPIES),
            *supported_flags(compiler, UNVECTORISED, CLANG),
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
            report(f"kernels for this CPU with {shortened(compiler)}, some seconds each")
            with cuda_c.empty_headers(cuda_source.CUDA_HEADERS) as folder:
                more = (
                    [f"-I{folder}", SHOW_WRITES, *supported_flags(compiler, FEWER_CALLS, NOT_CLANG)]
                    if is_for_nvcc
                    else []
                )
                cuda_c.compile_shared_library(text, target, compiler, flags, str(path), more)

        library = cached(key, ".so", make)
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
        self._blocks = address_of(library, f"wd_launch_{signature.name}")

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the arguments' addresses once; ``threads`` of a block become loops."""
        addresses, kept = self._packing(arguments)
        workers = self._backend.threads or 1
        return launch(self._blocks, ctypes.addressof(addresses), blocks, workers, keep=(addresses, kept))


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


class AgentKernel(HostKernel):
    """Kernel with a thread for each agent, run as fibres.

    A launch is complete when it returns. It raises `KernelError` if its threads deadlock or an `assert` fails.
    """

    owns_environments = False

    def __init__(self, signature: cuda_source.Signature, module: HostModule, backend: HostBackend) -> None:
        super().__init__(signature, module.library, backend, module.binary)
        self.module = module

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the arguments' addresses once.

        Raises:
            BindingError: The number of blocks is not a multiple of an environment's blocks.
        """
        n = self.module.blocks_per_env
        rule, do = f"must get blocks by {n}, which share an environment", "launch it on the manager's grid"
        require(blocks % n == 0, f"kernel {self.name!r}", rule, blocks, do, BindingError)
        addresses, kept = self._packing(arguments)
        workers = max(1, min(self._backend.threads or 1, MAX_FIBRES // (threads * n), blocks // n))
        error = ctypes.create_string_buffer(2000)
        fibres = Fibres(
            ctypes.addressof(addresses), blocks, threads, workers, TIMEOUT_S, ctypes.addressof(error), len(error)
        )
        start = launch(self._blocks, ctypes.addressof(fibres), workers, workers, keep=(addresses, kept, fibres))

        def run() -> None:
            start()
            if fibres.failed:
                fibres.failed = 0
                raise KernelError(error.value.decode(errors="replace"))

        return run


class Fibres(ctypes.Structure):
    """Launch of a kernel with a thread for each agent, as `kernels/fibres.cuh` has it."""

    _fields_ = (
        ("arguments", ctypes.c_void_p),
        ("blocks", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("parts", ctypes.c_int),
        ("patience", ctypes.c_double),
        ("error", ctypes.c_void_p),
        ("error_bytes", ctypes.c_size_t),
        ("failed", ctypes.c_int),
    )


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
extern "C" WD_EXPORTED void wd_launch_{signature.name}(void** launch, int first, int end) {{
  const wd_fibres::Kernel kernel = {{"{signature.name}", [](void** arguments) {{ {signature.name}({arguments}); }}}};
  wd_fibres::run(kernel, *reinterpret_cast<wd_fibres::Launch*>(launch), first, end);
}}
"""
    return f"""{_ARGUMENTS}
extern "C" void wd_launch_{signature.name}(void** arguments, int first, int end) {{
  for (int block = first; block < end; ++block) {{
    wd_block = WD_IN_ORDER(block, first, end);
    {signature.name}({arguments});
  }}
}}
"""


# ------------------------------------------------------------------ threads

THREADS: Final = cuda_source.HEADERS / "threads.cpp"
"""Source of the threads that all kernels share."""

SPIN_NS: Final = {"passive": 0.0, "active": math.inf}
"""Time that a thread waits busily before it sleeps, ns, by `OMP_WAIT_POLICY`."""
DEFAULT_SPIN_NS: Final = 100_000.0
"""The same without `OMP_WAIT_POLICY`."""


class Blocks(ctypes.Structure):
    """Blocks of a launch, as `kernels/threads.cpp` has them."""

    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("n_blocks", ctypes.c_int),
        ("n_threads", ctypes.c_int),
        ("block_ns", ctypes.c_double),
    )


def address_of(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a library's function."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def launch(function: int, arguments: int, n_blocks: int, n_threads: int, keep: object) -> Launch:
    """Prepare a launch of blocks on several threads; it synchronises.

    Args:
        function: Address of a function that runs a range of blocks.
        arguments: Address of its arguments.
        n_blocks: Number of blocks.
        n_threads: Most threads; short launches use fewer.
        keep: Objects that own the arguments' memory.
    """
    compiler = cuda_c.cpu_compiler()
    assert compiler is not None
    blocks = Blocks(function, arguments, n_blocks, n_threads)
    run_blocks, pointer = _threads(compiler).wd_run, ctypes.addressof(blocks)
    forks.used |= n_threads > 1

    def run(keep: object = (blocks, keep)) -> None:
        if forks.forked:
            blocks.n_threads = min(n_threads, forks.threads())
        run_blocks(pointer)

    return run


def _pin(compiler: str, cores: Sequence[Sequence[int]]) -> None:
    """Pin kernel threads to their entries' cores, equally many each."""
    flat = [core for each in cores for core in each]
    _threads(compiler).wd_pin(len(cores), len(cores[0]), (ctypes.c_int * len(flat))(*flat))


@functools.cache
def _threads(compiler: str) -> ctypes.CDLL:
    """Compile and load the threads, once in a process."""
    # Callgrind needs calls instead of jumps to kernels.
    text, flags = THREADS.read_text(), ["-std=c++17", "-O2", "-pthread", "-fno-optimize-sibling-calls"]
    key = {"text": text, "flags": flags, "compiler": cuda_c.compiler_version(compiler)}
    path = cached(key, ".so", lambda to: cuda_c.compile_shared_library(text, to, compiler, flags, str(THREADS)))
    library = ctypes.CDLL(str(path))
    library.wd_run.argtypes, library.wd_run.restype = [ctypes.c_void_p], None
    library.wd_spin.argtypes = [ctypes.c_double]
    library.wd_spin(SPIN_NS.get(os.environ.get("OMP_WAIT_POLICY", "").lower(), DEFAULT_SPIN_NS))
    _bind(library)
    return library


def _bind(threads: ctypes.CDLL) -> None:
    """Pin the threads to OpenMP's places, if any.

    `OMP_PROC_BIND` and `OMP_PLACES` define them. torch's OpenMP has pinned the main thread; others would
    share its place.
    """
    import torch  # noqa: PLC0415  (loads OpenMP)

    openmp = ctypes.CDLL(None)
    n_places, n = getattr(openmp, "omp_get_num_places", int)(), torch.get_num_threads()
    if n_places < 1:
        return
    places = []
    for index in range(n):
        place = index * n_places // n
        ids = (ctypes.c_int * openmp.omp_get_place_num_procs(place))()
        openmp.omp_get_place_proc_ids(place, ids)
        places.append(list(ids))
    size = max(map(len, places))
    flat = [core for each in places for core in each + each[-1:] * (size - len(each))]
    threads.wd_pin(n, size, (ctypes.c_int * len(flat))(*flat))


def _hyperthread(core: int) -> int:
    """Return a logical core's index on its physical core; 0 if unknown."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        return [int(number) for number in re.findall(r"\d+", text)].index(core)
    except (OSError, ValueError):
        return 0


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
