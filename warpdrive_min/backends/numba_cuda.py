"""Backend `numba`: Numba-CUDA kernels, on the GPU or in Numba's simulator.

Only this module, `numba_cache.py` and `kernels/core_numba.py` use numba-cuda's internal interface. The simulator is
for tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from warpdrive_min.backends import numba_server
from warpdrive_min.backends.base import (
    Argument,
    Availability,
    Constant,
    Kernel,
    Language,
    Launch,
    Parameter,
    PythonSignature,
    Source,
    build_module,
)
from warpdrive_min.backends.cache import excerpt
from warpdrive_min.backends.gpu import GpuBackend, current_stream, gpu_availability
from warpdrive_min.backends.numba_server import Job
from warpdrive_min.collector import collection_paused
from warpdrive_min.errors import CompileError, known, require
from warpdrive_min.lazy import LazyModule
from warpdrive_min.packages import install_command

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = LazyModule("numpy", globals(), "np")
    torch = LazyModule("torch", globals())


LARGE: Final = 256
"""Threads from which a block is large."""
THREADS_AT_ONCE: Final = 1_024
"""Threads of large blocks that a multiprocessor runs at the same time."""


class NumbaBackend(GpuBackend):
    """Numba-CUDA on the GPU, or in its simulator.

    ``NUMBA_ENABLE_CUDASIM=1`` in the environment selects the simulator, which runs on the CPU and is slow.
    """

    name: ClassVar[str] = "numba"
    language: ClassVar[Language] = "numba"

    def availability(self) -> Availability:
        """Check for numba-cuda, and for a GPU or the simulator."""
        if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
            return Availability(False, "numba-cuda is not installed", install_command("numba"))
        if simulated():
            return Availability(True, "simulator")
        state = gpu_availability()
        here = "without one set NUMBA_ENABLE_CUDASIM=1 before Python starts, for Numba's simulator"
        return state if state.available else replace(state, install=f"{state.install}; {here}")

    @property
    def device(self) -> torch.device:
        """Current GPU; the CPU in the simulator."""
        return torch.device("cpu") if simulated() else super().device

    @property
    def captures_graphs(self) -> bool:  # type: ignore[override]
        """True on a GPU."""
        return not simulated()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if not simulated():
            super().synchronize()

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """Make the backend's own torch stream current."""
        if simulated():
            yield None
            return
        own = _own_stream(torch.cuda.current_device())
        with torch.cuda.stream(own):
            yield own

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Build the kernels (`built`); machine code is compiled by the first `prepare`."""
        self.enter()
        exact = bool(constants.get("EXACT"))
        kernels = built(source, constants)
        return {name: NumbaKernel(name, kernel, exact, origin=(source, constants)) for name, kernel in kernels.items()}

    def enter(self) -> None:
        """Make Numba use torch's context, so that kernels can be built.

        Raises:
            BackendUnavailable: The backend cannot run here; names the reason and what to install.
        """
        self.require()
        if simulated():
            _keep_modules_simulated()
        else:
            torch.cuda.init()
            _use_torch_context()


class NumbaKernel:
    """Numba-CUDA kernel, launched on torch's current stream.

    Args:
        name: Name of the kernel.
        kernel: Dispatcher.
        exact: Compile without contraction.
        owns_environments: A block owns its environments, as of `Kernel`.
        origin: Source and constants from which another process can build the kernel, or None.
    """

    def __init__(
        self,
        name: str,
        kernel: Any,
        exact: bool,
        owns_environments: bool = True,
        origin: tuple[Source, Mapping[str, Constant]] | None = None,
    ) -> None:
        self.name = name
        self._origin = origin
        self.owns_environments = owns_environments
        self._is_compiled = bool(getattr(kernel, "signatures", ()))
        """True if its decorator declares the only signatures."""
        self.parameters: tuple[Parameter, ...] = declared_parameters(kernel)
        self._signature = PythonSignature.of(_function(kernel))
        self._kernel = kernel
        self._by_sizes: dict[Any, Callable[[], Any]] = {}
        self._exact = exact

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Wrap the tensors once, compile for their types, and return the launch."""
        if simulated():
            views = [argument.numpy() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
            packed = self._signature.pack(views)
            # The simulator stores one launch shape per kernel: set it at each launch.
            return lambda: self._kernel[blocks, threads](*packed)
        from numba import cuda  # noqa: PLC0415  (optional)

        values = [
            cuda.as_cuda_array(argument.detach())
            if isinstance(argument, torch.Tensor)
            else scalar(argument, parameter.dtype)
            for argument, parameter in zip(arguments, self.parameters, strict=True)
        ]
        compiled_kernel = None
        if self._is_compiled:
            values = self._signature.pack(values)
        else:
            shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else None for each in arguments]
            compiled_kernel = self._compiled(values, shapes, threads)

        @functools.cache
        def launcher() -> Callable[[int], None]:
            kernel = self._kernel if compiled_kernel is None else compiled_kernel()
            return launcher_of(kernel, values, blocks, threads)

        return lambda: launcher()(current_stream())

    def _compiled(
        self, values: Sequence[Any], shapes: Sequence[tuple[int, ...] | None], threads: int
    ) -> Callable[[], Any]:
        """Compile for the types of these values and fixed sizes, or read the cache.

        The first size stays variable; a launch does not pass the others.

        Returns:
            Function that returns the dispatcher. It waits if `numba_server` compiles.
        """
        from numba.cuda.typing.typeof import typeof  # noqa: PLC0415  (optional)

        types = tuple(typeof(value) for value in values)
        key = (types, threads, *(shape and shape[1:] for shape in shapes))
        if key not in self._by_sizes:
            self._by_sizes[key] = self._started(types, shapes, threads)
        return self._by_sizes[key]

    def _started(
        self, types: tuple[Any, ...], shapes: Sequence[tuple[int, ...] | None], threads: int
    ) -> Callable[[], Any]:
        """Start a compilation; without a server, finish it."""
        from numba import cuda  # noqa: PLC0415  (optional)
        from numba.core.errors import NumbaError  # noqa: PLC0415

        kernel, wait = self.of_sizes(shapes, threads), None
        if self._origin is not None and numba_server.is_running():
            capability = tuple(cuda.get_current_device().compute_capability)
            wait = numba_server.submit(Job(*self._origin, self.name, shapes, threads, types, capability))

        @functools.cache
        def finished() -> Any:
            if wait is not None:
                wait()
            try:
                return compiled(kernel, types, self._exact)
            except NumbaError as error:
                raise CompileError(f"kernel {self.name!r}: does not compile (Numba):\n{excerpt(str(error))}") from error

        if wait is None:
            finished()
        return finished

    def of_sizes(self, shapes: Sequence[tuple[int, ...] | None], threads: int) -> Any:
        """Return a new kernel for fixed array sizes, except the first, and ``threads``.

        Its parameters are those of `parameters`, each passed separately; None in ``shapes`` is a scalar.
        """
        from warpdrive_min.backends.numba_source import with_sizes  # noqa: PLC0415  (needs Numba)

        options = dict(self._kernel.targetoptions)
        if options.get("launch_bounds") is None:
            options["launch_bounds"] = threads  # limits registers to those that a block has
        function, dispatcher = _function(self._kernel), type(self._kernel)
        on_device = {**options, "device": True, "forceinline": True, "launch_bounds": None}
        of_sizes = with_sizes(function, dispatcher(function, targetoptions=on_device), shapes)
        return dispatcher(of_sizes, targetoptions=options)


def compiled(kernel: Any, types: tuple[Any, ...], exact: bool) -> Any:
    """Compile a dispatcher for one signature and the current GPU, or read the cache.

    Returns:
        The dispatcher, which from now on takes only these types, as by its `specialize`.
    """
    from numba import cuda  # noqa: PLC0415  (optional)

    from warpdrive_min.backends.numba_cache import kernel_cache  # noqa: PLC0415  (needs Numba)
    from warpdrive_min.kernels.core_numba import contraction_off  # noqa: PLC0415

    capability = cuda.get_current_device().compute_capability
    if (cache := kernel_cache(kernel, types, tuple(capability), exact)) is not None:
        kernel._cache = cache  # noqa: SLF001  (there is no public way)
    # Garbage collection takes a fifth of a compilation.
    with collection_paused(), contraction_off() if exact else contextlib.nullcontext():
        kernel.compile(types)
    kernel.disable_compile()
    kernel._specialized = True  # noqa: SLF001
    return kernel


def launcher_of(kernel: Any, values: Sequence[Any], blocks: int, threads: int) -> Callable[[int], None]:
    """Return a function that launches a compiled kernel on the stream of a handle.

    It packs the arguments once; Numba would unpack every array again in each launch. Numba launches kernels with
    several signatures, among which it chooses, those for debugging, whose errors it raises, and cooperative ones.
    """
    import ctypes  # noqa: PLC0415

    from cuda.bindings import driver  # noqa: PLC0415  (optional)
    from numba import cuda  # noqa: PLC0415
    from numba.cuda.core.errors import NumbaPerformanceWarning  # noqa: PLC0415

    code = next(iter(kernel.overloads.values()))
    if len(kernel.overloads) > 1 or code.debug or code.cooperative:

        def launch_by_numba(handle: int) -> None:
            stream = cuda.external_stream(handle) if handle else cuda.default_stream()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumbaPerformanceWarning)  # small grids are the user's choice
                kernel[blocks, threads, stream](*values)

        return launch_by_numba
    numbers: list[Any] = []
    for kind, value in zip(code.argument_types, values, strict=True):
        code._prepare_args(kind, value, 0, [], numbers)  # noqa: SLF001  (there is no public way)
    words = [each if hasattr(each, "_type_") else ctypes.c_int64(int(each)) for each in numbers]
    addresses = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
    function = driver.CUfunction(int(code._codelibrary.get_cufunc().handle))  # noqa: SLF001
    shape = (blocks, 1, 1, threads, 1, 1, 0)

    def launch(handle: int, keep: object = (values, words)) -> None:
        (error,) = driver.cuLaunchKernel(function, *shape, handle, ctypes.addressof(addresses), 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"kernel {kernel.__name__!r}: the driver cannot launch it ({error.name})")

    return launch


def built(source: Source, constants: Mapping[str, Constant]) -> dict[str, Any]:
    """Build a source's kernels, and ``rollout`` with the constants of a rollout.

    It is generated from ``step`` if the source has none. Large blocks have few registers, so that a multiprocessor runs
    `THREADS_AT_ONCE` threads, as in CUDA C.
    """
    kernels: dict[str, Any] = build_module(source, constants)
    if "RANDOM" in constants and "rollout" not in kernels:
        from warpdrive_min.backends.numba_source import rollout_of  # noqa: PLC0415  (needs Numba)

        kernels["rollout"] = rollout_of(_function(step_of(kernels)), SimpleNamespace(**constants))
    threads = constants.get("THREADS", 0)
    if isinstance(threads, int) and threads >= LARGE and constants.get("BLOCKS_PER_ENV") == 1 and not simulated():
        for kernel in kernels.values():
            if kernel.targetoptions.get("launch_bounds") is None:
                kernel.targetoptions["launch_bounds"] = (threads, THREADS_AT_ONCE // threads)
    return kernels


def step_of(kernels: Mapping[str, Any]) -> Any:
    """Return the step kernel: ``step``, or by WarpDrive's naming convention."""
    names = [name for name in kernels if name == "step" or (name.startswith("Numba") and name.endswith("Step"))]
    require(bool(names), "rollout", "needs a kernel 'step'", known(kernels), error=CompileError)
    return kernels[names[0]]


def scalar(value: float, dtype: str | None) -> Any:
    """Convert a number to its declared dtype, else to 32 bits.

    The data manager stores scalars in 32 bits; Numba would pass Python numbers as 64 bits.
    """
    if dtype is not None:
        return np.dtype(dtype).type(value)
    return np.float32(value) if isinstance(value, float) else np.int32(value)


def declared_parameters(kernel: Any) -> tuple[Parameter, ...]:
    """Read a kernel's parameters.

    Names come from its function, types from its only explicit signature or its annotations.
    """
    parameters = PythonSignature.of(_function(kernel)).parameters
    signatures: Any = getattr(kernel, "signatures", ())
    if len(signatures) != 1:
        return parameters
    return tuple(
        Parameter(parameter.name, str(getattr(declared, "dtype", declared)), getattr(declared, "ndim", 0))
        for parameter, declared in zip(parameters, signatures[0], strict=True)
    )


def _function(kernel: Any) -> Callable[..., Any]:
    """Return a kernel's Python function, named `fn` in the simulator."""
    function: Callable[..., Any] = getattr(kernel, "py_func", None) or kernel.fn
    return function


def simulated() -> bool:
    """True if Numba runs its CUDA simulator in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@functools.cache
def _own_stream(device: int) -> torch.cuda.Stream:
    """Return this backend's only stream on a GPU."""
    return torch.cuda.Stream(device)


def _use_torch_context() -> None:
    """Make Numba use torch's primary context, to share memory and streams."""
    from numba import cuda  # noqa: PLC0415

    cuda.select_device(torch.cuda.current_device())


@functools.cache
def _keep_modules_simulated() -> None:
    """Restore a module's `cuda` when the last simulator thread leaves its functions.

    The simulator replaces `cuda` in the module of a device function while that runs, and would restore it when the
    first thread leaves. This replacement counts all threads and calls.
    """
    from numba import cuda  # noqa: PLC0415  (optional)
    from numba.cuda.simulator import kernel  # noqa: PLC0415

    guard = threading.Lock()
    # A child must not inherit a locked guard.
    os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=guard.release)
    n_inside: dict[int, int] = {}

    @contextlib.contextmanager
    def swapped(function: Any, simulation: Any) -> Iterator[None]:
        space = function.__globals__
        with guard:
            n_inside[id(space)] = n_inside.get(id(space), 0) + 1
            if n_inside[id(space)] == 1:
                space.update({name: simulation for name, value in space.items() if value is cuda})
        try:
            yield
        finally:
            with guard:
                n_inside[id(space)] -= 1
                if n_inside[id(space)] == 0:
                    del n_inside[id(space)]
                    space.update({name: cuda for name, value in space.items() if value is simulation})

    kernel.swapped_cuda_module = swapped
