"""Device, stream and CUDA C programs of torch's GPU, for both GPU backends."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from warpdrive_min.backends import cache, cuda_c
from warpdrive_min.backends.base import Availability, Backend, Constant, Packing
from warpdrive_min.backends.cuda_source import Signature
from warpdrive_min.errors import CompileError, WarpDriveError, require
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())


class GpuBackend(Backend):
    """Backend on torch's current GPU."""

    captures_graphs: ClassVar[bool] = True

    @property
    def device(self) -> torch.device:
        """Current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    @property
    def threads(self) -> int | None:
        """None: a GPU."""
        return None

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def start(self, index: int) -> Callable[[], None]:
        """Create the context of a GPU, which torch will use.

        Imports no torch; any thread may call it. Returns a function that releases the context.

        Raises:
            OSError: There is no driver.
            WarpDriveError: The driver's error; there may be no such GPU.
        """
        device, context = ctypes.c_int(), ctypes.c_void_p()
        _call("cuInit", 0)
        _call("cuDeviceGet", ctypes.byref(device), index)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return functools.partial(_call, "cuDevicePrimaryCtxRelease_v2", device)

    def prepare_compiler(self, index: int) -> None:
        """Prepare compilations for a GPU in forks of this process; imports no torch.

        They then know the GPU's properties, and if nothing is cached, they have a compiler that is loaded.
        """
        properties(index)
        is_cold = not any(cache.folder().glob(f"*{cuda_c.SUFFIX}"))
        if is_cold and (cuda_c.gpu_compiler() or "").startswith("nvrtc"):
            cuda_c.prepare_nvrtc()

    @property
    def why_no_program(self) -> str | None:
        """Reason against `program`: the missing compiler, or None."""
        return None if cuda_c.gpu_compiler() else f"no compiler: {cuda_c.GPU_COMPILER_INSTALL}"

    def program(
        self, source: Path, constants: Mapping[str, Constant], shared_bytes: Mapping[str, int] | None = None
    ) -> CudaProgram:
        """Return kernels in CUDA C for torch's current GPU, launched by the driver alone."""
        return CudaProgram(source, constants, shared_bytes)

    def most_shared_bytes(self, index: int | None = None) -> int:
        """Return the most shared memory of a block, bytes."""
        return _properties_of(index).most_shared_bytes

    def has_warp_groups(self, index: int | None = None) -> bool:
        """Return True for GPUs of compute capability 9.0."""
        return _properties_of(index).architecture == "sm_90"


def _properties_of(index: int | None) -> Properties:
    return properties(torch.cuda.current_device() if index is None else index)


def gpu_availability() -> Availability:
    """Return the availability of a GPU in torch.

    A CPU-only build is detected without importing torch, which takes seconds.
    """
    is_for_cpus = _is_for_cpus()
    if not is_for_cpus and torch.cuda.is_available():
        return Availability(True, torch.cuda.get_device_name())
    if is_for_cpus or torch.version.cuda is None:
        return Availability(
            False, "torch is a build without CUDA", "install a CUDA build of torch on a machine with an NVIDIA GPU"
        )
    return Availability(False, "torch finds no NVIDIA GPU", "run on a machine with an NVIDIA GPU and its driver")


def _is_for_cpus() -> bool:
    """True if torch is not imported and its version file is CPU-only.

    The file then names neither CUDA nor ROCm.
    """
    found = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        versions = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    except OSError:
        return False
    return "cuda" in versions and versions["cuda"] is None and versions.get("hip") is None


def current_stream() -> int:
    """Return the handle of torch's current stream; 0 is the default stream."""
    return int(torch.cuda.current_stream().cuda_stream)


# ------------------------------------------------------------------ programs in CUDA C

MAX_DYNAMIC_SHARED_BYTES: Final = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the driver."""
MAX_SHARED_BYTES_OPTIN: Final = 97
"""CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN of the driver."""
CAPABILITY: Final = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver."""
Grid = tuple[int, int, int]


class CudaProgram:
    """Kernels of one CUDA C source, compiled and loaded on first use.

    Args:
        source: File with kernels of THREADS threads.
        constants: Constants by name, with those of `core.cuh`.
        shared_bytes: Dynamic shared memory of a block, by kernel.
    """

    def __init__(
        self, source: Path, constants: Mapping[str, Constant], shared_bytes: Mapping[str, int] | None = None
    ) -> None:
        self.source, self._constants, self._shared_bytes = source, constants, shared_bytes or {}
        self._kernels: dict[str, _Kernel] = {}
        self._lock = threading.Lock()

    def build(self, index: int) -> Path:
        """Compile for a GPU into the cache; needs no torch, and any thread may call it.

        Raises:
            CompileError: The source does not compile, or a block needs more shared memory than the GPU has.
        """
        needed, most = max(self._shared_bytes.values(), default=0), properties(index).most_shared_bytes
        rule = "a block must need at most the GPU's shared memory"
        require(needed <= most, str(self.source), f"{rule}, {most:,} bytes", needed, error=CompileError)
        return cuda_c.compile_cubin(self.source, self._constants, properties(index).architecture)

    def load(self) -> None:
        """Compile for torch's current GPU, cached, and load; any thread may call it.

        Raises:
            CompileError: The source does not compile.
        """
        with self._lock:
            if self._kernels:
                return
            _enter_context()
            library = _library(self.build(torch.cuda.current_device()))
            for name, signature in cuda_c.declared(self.source, self._constants).items():
                self._kernels[name] = _Kernel(library, signature, self._shared_bytes.get(name, 0))

    def launch(self, name: str, grid: Grid, **arguments: torch.Tensor | float | None) -> None:
        """Enqueue a kernel on torch's current stream; None is a null pointer.

        The caller keeps tensors alive until the kernel has run, as torch's allocator does on one stream.
        """
        if not self._kernels:
            self.load()
        self._kernels[name].launch(grid, self._constants["THREADS"], arguments)


class Properties(NamedTuple):
    """Properties of a GPU that compilation needs."""

    architecture: str
    """For example ``"sm_90"``."""
    most_shared_bytes: int
    """Most shared memory of a block, bytes."""


@functools.cache
def properties(index: int) -> Properties:
    """Return a GPU's properties; needs no torch.

    A fork of a process that has asked knows them, but can ask no more: the driver works in one process.
    """
    major, minor = (_attribute(each, index) for each in CAPABILITY)
    return Properties(f"sm_{major}{minor}", _attribute(MAX_SHARED_BYTES_OPTIN, index))


def _attribute(number: int, index: int) -> int:
    """Return an attribute of a GPU, by the driver's number."""
    value = ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGetAttribute", ctypes.byref(value), number, index)
    return value.value


class _Kernel:
    def __init__(self, library: Any, signature: Signature, shared_bytes: int) -> None:
        kernel = ctypes.c_void_p()
        _call("cuLibraryGetKernel", ctypes.byref(kernel), library, signature.name.encode())
        _call("cuKernelSetAttribute", MAX_DYNAMIC_SHARED_BYTES, shared_bytes, kernel, torch.cuda.current_device())
        self._kernel, self._shared_bytes = kernel, shared_bytes
        self._names, self._packing = [each.name for each in signature.parameters], Packing(signature.parameters)

    def launch(self, grid: Grid, threads: Any, arguments: Mapping[str, Any]) -> None:
        assert arguments.keys() == {*self._names}, arguments.keys() ^ {*self._names}
        for name, each in arguments.items():
            assert not isinstance(each, torch.Tensor) or each.is_contiguous(), name
        addresses, _kept = self._packing([arguments[name] for name in self._names])
        stream = ctypes.c_void_p(current_stream())
        _call("cuLaunchKernel", self._kernel, *grid, threads, 1, 1, self._shared_bytes, stream, addresses, None)


@functools.cache
def _library(binary: Path) -> Any:
    """Load a cubin, for the rest of the process: captured graphs may hold its kernels."""
    library, none = ctypes.c_void_p(), None
    _call("cuLibraryLoadData", ctypes.byref(library), binary.read_bytes(), none, none, 0, none, none, 0)
    return library


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _enter_context() -> None:
    """Make torch's context current in this thread, if none is."""
    context = ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if not context:
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), torch.cuda.current_device())
        _call("cuCtxSetCurrent", context)


def _call(name: str, *arguments: Any) -> None:
    if code := getattr(_driver(), name)(*arguments):
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise WarpDriveError(f"CUDA driver: {name} reports error {code} ({(text.value or b'unknown').decode()})")
