"""Backend `numba`: Numba-CUDA kernels, on the GPU or, for tests, in Numba's simulator.

Everything that touches numba-cuda's own interface is here and in `kernels/core_numba.py`.
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
from typing import TYPE_CHECKING, Any, ClassVar

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
from warpdrive_min.errors import CompileError, known, require
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = LazyModule("numpy", globals(), "np")
    torch = LazyModule("torch", globals())


class NumbaBackend(GpuBackend):
    """Numba-CUDA. With ``NUMBA_ENABLE_CUDASIM=1`` in the environment: its simulator, on the CPU and slow."""

    name: ClassVar[str] = "numba"
    language: ClassVar[Language] = "numba"

    def availability(self) -> Availability:
        """Say whether numba-cuda is there, and a GPU or the simulator."""
        if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None:
            return Availability(False, "numba-cuda is not installed", 'pip install "warpdrive-min[numba]"')
        if simulated():
            return Availability(True, "simulator")
        state = gpu_availability()
        here = "without one set NUMBA_ENABLE_CUDASIM=1 before Python starts, for Numba's simulator"
        return state if state.available else replace(state, install=f"{state.install}; {here}")

    @property
    def device(self) -> torch.device:
        """The current GPU; the CPU in the simulator."""
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
        """Make current the stream that torch made for it."""
        if simulated():
            yield None
            return
        own = _own_stream(torch.cuda.current_device())
        with torch.cuda.stream(own):
            yield own

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Build the kernels (`built`); machine code is made at the first `prepare`."""
        self.enter()
        exact = bool(constants.get("EXACT"))
        kernels = built(source, constants)
        return {name: NumbaKernel(name, kernel, exact) for name, kernel in kernels.items()}

    def enter(self) -> None:
        """Make torch's context Numba's, so that kernels can be built.

        Raises:
            BackendUnavailable: With the reason and what to install.
        """
        self.require()
        if simulated():
            _keep_modules_simulated()
        else:
            torch.cuda.init()
            _use_torch_context()


class NumbaKernel:
    """A Numba-CUDA kernel, bound to torch's current stream at each launch."""

    def __init__(self, name: str, kernel: Any, exact: bool, owns_environments: bool = True) -> None:
        self.name = name
        self.owns_environments = owns_environments
        self._is_compiled = bool(getattr(kernel, "signatures", ()))
        """Declared with explicit signatures, for which its decorator compiled it; it then compiles for no others."""
        self.parameters: tuple[Parameter, ...] = declared_parameters(kernel)
        self._signature = PythonSignature.of(_function(kernel))
        self._kernel = kernel
        self._by_sizes: dict[Any, Any] = {}
        self._exact = exact

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Wrap the tensors once, compile for their types, and return the launch."""
        if simulated():
            views = [argument.numpy() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
            packed = self._signature.pack(views)
            # The simulator keeps one launch shape for each kernel: set it at each launch.
            return lambda: self._kernel[blocks, threads](*packed)
        from numba import cuda  # noqa: PLC0415  (optional)
        from numba.cuda.core.errors import NumbaPerformanceWarning  # noqa: PLC0415

        values = [
            cuda.as_cuda_array(argument.detach())
            if isinstance(argument, torch.Tensor)
            else scalar(argument, parameter.dtype)
            for argument, parameter in zip(arguments, self.parameters, strict=True)
        ]
        if self._is_compiled:
            kernel, values = self._kernel, self._signature.pack(values)
        else:
            shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else None for each in arguments]
            kernel = self._specialised(values, shapes, threads)
        launchers: dict[int, Any] = {}

        def launch() -> None:
            handle = current_stream()
            if handle not in launchers:
                stream = cuda.external_stream(handle) if handle else cuda.default_stream()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NumbaPerformanceWarning)  # small grids are the user's choice
                    launchers[handle] = kernel[blocks, threads, stream]
            launchers[handle](*values)

        return launch

    def _specialised(self, values: Sequence[Any], shapes: Sequence[tuple[int, ...] | None], threads: int) -> Any:
        """Compile for the types of these values, and for all sizes of arrays but the first; a launch asks for none."""
        from numba.core.errors import NumbaError  # noqa: PLC0415  (optional)

        from warpdrive_min.kernels.core_numba import contraction_off  # noqa: PLC0415

        try:
            with contraction_off() if self._exact else contextlib.nullcontext():
                return self.of_sizes(shapes, threads).specialize(*values)
        except NumbaError as error:
            raise CompileError(f"kernel {self.name!r}: does not compile (Numba):\n{excerpt(str(error))}") from error

    def of_sizes(self, shapes: Sequence[tuple[int, ...] | None], threads: int) -> Any:
        """Return the kernel for arrays of all these sizes but the first, and for blocks of so many threads.

        Its parameters are those of `parameters`, one by one; None in ``shapes`` is a scalar. It is kept.
        """
        from warpdrive_min.backends.numba_source import with_sizes  # noqa: PLC0415  (needs Numba)

        key = (threads, *(shape and shape[1:] for shape in shapes))
        if key not in self._by_sizes:
            options = dict(self._kernel.targetoptions)
            if options.get("launch_bounds") is None:
                options["launch_bounds"] = threads  # else it may take more registers than a block has
            function, dispatcher = _function(self._kernel), type(self._kernel)
            on_device = {**options, "device": True, "forceinline": True, "launch_bounds": None}
            of_sizes = with_sizes(function, dispatcher(function, targetoptions=on_device), shapes)
            self._by_sizes[key] = dispatcher(of_sizes, targetoptions=options)
        return self._by_sizes[key]


def built(source: Source, constants: Mapping[str, Constant]) -> dict[str, Any]:
    """Build the kernels of a source; with the constants of a rollout also ``rollout``, made of ``step`` if need be."""
    kernels = build_module(source, constants)
    if "RANDOM" in constants and "rollout" not in kernels:
        from warpdrive_min.backends.numba_source import rollout_of  # noqa: PLC0415  (needs Numba)

        kernels["rollout"] = rollout_of(_function(step_of(kernels)), SimpleNamespace(**constants))
    return kernels


def step_of(kernels: Mapping[str, Any]) -> Any:
    """Return the kernel of a step: ``step``, or the one that is named so by WarpDrive's convention."""
    names = [name for name in kernels if name == "step" or (name.startswith("Numba") and name.endswith("Step"))]
    require(bool(names), "rollout", "needs a kernel 'step'", known(kernels), error=CompileError)
    return kernels[names[0]]


def scalar(value: float, dtype: str | None) -> Any:
    """Return a number as it is declared, else 32 bits wide, as the data manager keeps scalars.

    Numba would take a Python number for 64 bits wide.
    """
    if dtype is not None:
        return np.dtype(dtype).type(value)
    return np.float32(value) if isinstance(value, float) else np.int32(value)


def declared_parameters(kernel: Any) -> tuple[Parameter, ...]:
    """Read a kernel's parameters: names from its function, types from its one explicit signature or its annotations."""
    parameters = PythonSignature.of(_function(kernel)).parameters
    signatures: Any = getattr(kernel, "signatures", ())
    if len(signatures) != 1:
        return parameters
    return tuple(
        Parameter(parameter.name, str(getattr(declared, "dtype", declared)), getattr(declared, "ndim", 0))
        for parameter, declared in zip(parameters, signatures[0], strict=True)
    )


def _function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function of a kernel, which the simulator calls `fn`."""
    function: Callable[..., Any] = getattr(kernel, "py_func", None) or kernel.fn
    return function


def simulated() -> bool:
    """Tell whether Numba runs its CUDA simulator in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@functools.cache
def _own_stream(device: int) -> torch.cuda.Stream:
    """Return the one stream of this backend on a GPU."""
    return torch.cuda.Stream(device)


def _use_torch_context() -> None:
    """Make numba use the primary context that torch made; both then see each other's memory and streams."""
    from numba import cuda  # noqa: PLC0415

    cuda.select_device(torch.cuda.current_device())


@functools.cache
def _keep_modules_simulated() -> None:
    """Let the simulator take `cuda` back from a module when the last thread leaves its functions, not the first one.

    It puts its own `cuda` into the module of a device function while that runs: here once for all threads and calls.
    """
    from numba import cuda  # noqa: PLC0415  (optional)
    from numba.cuda.simulator import kernel  # noqa: PLC0415

    guard = threading.Lock()
    if hasattr(os, "register_at_fork"):  # a child must not inherit it locked
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
