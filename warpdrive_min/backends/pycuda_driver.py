"""Backend `pycuda`: CUDA C compiled for the current GPU, launched by PyCUDA."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.backends.base import Argument, Availability, Constant, Kernel, Language, Launch, Source, Symbol
from warpdrive_min.backends.gpu import GpuBackend, current_stream, gpu_availability, properties
from warpdrive_min.errors import BackendUnavailable, BindingError
from warpdrive_min.lazy import LazyModule
from warpdrive_min.packages import install_command

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = LazyModule("numpy", globals(), "np")
    torch = LazyModule("torch", globals())


class PyCudaBackend(GpuBackend):
    """CUDA C on the GPU, in torch's primary context."""

    name: ClassVar[str] = "pycuda"
    language: ClassVar[Language] = "cuda_c"

    def availability(self) -> Availability:
        """Check for PyCUDA, its driver, a GPU and a CUDA compiler."""
        if importlib.util.find_spec("pycuda") is None:
            return Availability(False, "PyCUDA is not installed", install_command("pycuda"))
        state = gpu_availability()
        if not state.available:
            return state
        try:
            import pycuda.driver  # noqa: F401, PLC0415  (optional)
        except ImportError as error:
            return Availability(False, f"PyCUDA cannot load the driver ({error})", "install the NVIDIA driver")
        if cuda_c.gpu_compiler() is None:
            return Availability(False, "found no CUDA compiler", cuda_c.GPU_COMPILER_INSTALL)
        return state

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """Make PyCUDA's own stream current; it cannot launch on other libraries' streams."""
        stream = torch.cuda.ExternalStream(_own_stream().handle)
        with torch.cuda.stream(stream):
            yield stream

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Compile for the current GPU, cached, and load."""
        self.require()
        binary = self.build(source, constants)
        module = LoadedModule(loaded_driver().module_from_buffer(binary.read_bytes()), binary)
        kernels: dict[str, Kernel] = {}
        for name, signature in cuda_c.declared(Path(source), constants).items():
            try:
                kernels[name] = PyCudaKernel(signature, module)
            except loaded_driver().LogicError:
                if signature.owns_environments:
                    raise  # of the others another kernel launches some, and the preprocessor removes some
        return kernels

    def build(self, source: Source, constants: Mapping[str, Constant], index: int | None = None) -> Path:
        """Compile for a GPU into the cache; any thread may call it."""
        index = torch.cuda.current_device() if index is None else index
        return cuda_c.compile_cubin(Path(source), constants, properties(index).architecture)


class LoadedModule:
    """PyCUDA module, unloaded only by a thread that loads another.

    Python's garbage collector may run in an autograd thread, where the context is not current. PyCUDA could not unload
    a module there; it would warn and leak it.
    """

    _held: ClassVar[list[tuple[weakref.ref[LoadedModule], Any]]] = []

    def __init__(self, module: Any, binary: Path) -> None:
        LoadedModule._held[:] = [each for each in LoadedModule._held if each[0]() is not None]
        LoadedModule._held.append((weakref.ref(self), module))
        self.module, self.binary = module, binary

    def symbol(self, name: str) -> Symbol | None:
        """Return the ``__constant__`` symbol of a name, or None."""
        driver = loaded_driver()
        try:
            address, n_bytes = self.module.get_global(name)
        except driver.LogicError:
            return None
        return Symbol(n_bytes, lambda array: driver.memcpy_htod(address, array))


class PyCudaKernel:
    """Kernel of a loaded module."""

    def __init__(self, signature: cuda_source.Signature, loaded: LoadedModule) -> None:
        self.name = signature.name
        self.parameters = signature.parameters
        self.owns_environments = signature.owns_environments
        self.module, self.binary = loaded, loaded.binary
        self._function = loaded.module.get_function(signature.name)

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Pack the arguments once; a launch costs about 2 us of host time."""
        letters, values = "", []
        for argument, parameter in zip(arguments, self.parameters, strict=True):
            is_array = isinstance(argument, torch.Tensor)
            letters += "P" if is_array else np.dtype(parameter.dtype or "int32").char
            values.append(argument.data_ptr() if isinstance(argument, torch.Tensor) else argument)
        packed = struct.pack(letters, *values)  # NumPy's letters are those of `struct`; native alignment is CUDA's
        launch, grid, block = self._function._launch_kernel, (blocks, 1), (threads, 1, 1)  # noqa: SLF001

        def run(keep: object = (arguments, self.module)) -> None:
            launch(grid, block, packed, 0, _current_stream())

        return run


@functools.cache
def _own_stream() -> Any:
    """Return this backend's only stream."""
    return loaded_driver().Stream(1)  # 1: non-blocking, as a graph capture requires


def _current_stream() -> Any:
    """Return PyCUDA's object for torch's current stream; None is the default stream.

    Raises:
        BindingError: torch's current stream is another library's.
    """
    handle = current_stream()
    if handle == 0:
        return None
    own = _own_stream()
    if handle != own.handle:
        raise BindingError(
            f"backend 'pycuda': launches on the default stream or on its own (got torch stream {handle:#x}); "
            "enter its `with backend.stream():`"
        )
    return own


@functools.cache
def loaded_driver() -> Any:
    """Return `pycuda.driver` with torch's primary context, popped at exit."""
    import pycuda.driver as driver  # noqa: PLC0415  (optional)

    torch.cuda.init()
    torch.cuda.synchronize()  # torch makes its primary context here, if it has not yet
    try:
        driver.init()
        context = driver.Device(torch.cuda.current_device()).retain_primary_context()
    except driver.Error as error:
        raise BackendUnavailable(f"backend 'pycuda': the driver reports {error}; check nvidia-smi") from error
    context.push()

    def release() -> None:
        _own_stream.cache_clear()
        context.pop()

    atexit.register(release)
    return driver
