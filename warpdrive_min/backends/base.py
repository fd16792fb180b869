"""Interface of backends, which compile one language and launch on one device."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from warpdrive_min.constants import (
    DONE,
    EPISODE,
    FINAL_OBSERVATIONS,
    LOG_MASK,
    RESET_SEED,
    TERMINATED,
    TIMESTEP,
    TRUNCATED,
    Constants,
)
from warpdrive_min.errors import BackendUnavailable, BindingError, CompileError, TypeMismatch, require
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = LazyModule("numpy", globals(), "np")
    torch = LazyModule("torch", globals())

Language = Literal["numpy", "cuda_c", "numba"]
"""Language of a kernel."""

Constant = int | float | bool | Sequence[int] | Sequence[float]
Source = str | Path
"""Path of a ``.cu`` file, or dotted name of a Python module with ``build(c)``."""

Argument: TypeAlias = "torch.Tensor | int | float"
Launch = Callable[[], None]
"""Function that enqueues a launch on the current stream (CPU: runs it).

It does not synchronise.
"""


def in_order(launches: Sequence[Launch]) -> Launch:
    """Return a launch that enqueues several launches in order."""

    def launch_all() -> None:
        for launch in launches:
            launch()

    return launch_all


@dataclass(frozen=True, slots=True)
class Availability:
    """Availability of a backend, or a reason and what to install."""

    available: bool
    reason: str = ""
    install: str = ""

    def __str__(self) -> str:
        if self.available:
            return f"available ({self.reason})" if self.reason else "available"
        return f"not available: {self.reason}" + (f"; {self.install}" if self.install else "")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Declared parameter of a kernel; None where the source declares nothing."""

    name: str
    dtype: str | None = None
    """NumPy name of the element dtype."""
    rank: int | None = None
    """Number of axes; 0 is a scalar passed by value."""
    shape: tuple[int | None, ...] | None = None
    """Declared sizes; None where open, as always for the axis of environments."""

    def check(self, kernel: str, argument: Argument) -> None:
        """Raise `BindingError` unless an argument has the declared dtype, rank and sizes.

        It is a `TypeMismatch` if the argument could be passed, with its bits reinterpreted as the declared type.
        """
        is_array = isinstance(argument, torch.Tensor)
        got_rank = argument.dim() if isinstance(argument, torch.Tensor) else 0
        what = f"kernel {kernel!r}, parameter {self.name!r}"
        if self.rank == 0 and is_array:
            raise BindingError(
                f"{what}: is declared a scalar by value (got an array of rank {got_rank}); declare a pointer"
            )
        if self.rank != 0 and self.rank is not None and not is_array:
            declared = "an array" if self.rank == ANY_RANK else f"an array of rank {self.rank}"
            raise BindingError(f"{what}: is declared {declared} (got a scalar); declare it by value")
        if not isinstance(argument, torch.Tensor):
            if isinstance(argument, float) and self.dtype is not None and not self.dtype.startswith("float"):
                raise TypeMismatch(f"{what}: is declared {self.dtype} (got the float {argument!r}); declare it float")
            return
        if not argument.is_contiguous():
            raise BindingError(f"{what}: must be contiguous (got strides {argument.stride()}); call .contiguous()")
        dtype = dtype_name(argument.dtype)
        if self.dtype is not None and self.dtype != dtype:
            raise TypeMismatch(f"{what}: is declared {self.dtype} (got {dtype}); change the declaration or the data")
        shape = tuple(argument.shape)
        if self.rank not in (None, ANY_RANK, got_rank):
            raise TypeMismatch(f"{what}: is declared with rank {self.rank} (got rank {got_rank}, shape {shape})")
        if self.shape and any(want not in (None, got) for want, got in zip(self.shape, shape, strict=True)):
            declared = ", ".join("?" if size is None else str(size) for size in self.shape)
            raise TypeMismatch(f"{what}: is declared with shape ({declared}) (got {shape})")


ANY_RANK = -1
"""Rank of a plain pointer: an array of any rank."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return NumPy's name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


class Packing:
    """Memory layout of a kernel's arguments for its launcher.

    A launcher in C++ and CUDA's driver take the addresses of the values.

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

    def __call__(self, arguments: Sequence[Argument | None]) -> tuple[Any, object]:
        """Return the addresses of the arguments' values, and objects to keep alive.

        None is a null pointer.
        """
        values = self._values(*(each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments))
        first = ctypes.addressof(values)
        return self._addresses(*(first + offset for offset in self._offsets)), (arguments, values)


class Symbol(NamedTuple):
    """Writable variable of compiled code."""

    n_bytes: int
    write: Callable[[Any], object]
    """Function that copies a contiguous NumPy array to it; synchronises."""


class Kernel(Protocol):
    """Compiled kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    owns_environments: bool
    """True if blocks own environments (`WD_KERNEL`, Numba, NumPy).

    Otherwise the kernel has a thread for each agent.
    """

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Convert the arguments once; return a launch that can be called repeatedly."""
        ...


class Program(Protocol):
    """Kernels of one CUDA C source, compiled and loaded on first use."""

    def build(self, index: int) -> Path:
        """Compile for a GPU into the cache; needs no torch, and any thread may call it.

        Raises:
            CompileError: The source does not compile, or a block needs more shared memory than the GPU has.
        """
        ...

    def load(self) -> None:
        """Compile for torch's current GPU, cached, and load; any thread may call it.

        Raises:
            CompileError: The source does not compile.
        """
        ...

    def launch(self, name: str, grid: tuple[int, int, int], **arguments: torch.Tensor | float | None) -> None:
        """Enqueue a kernel on torch's current stream; None is a null pointer.

        The caller keeps tensors alive until the kernel has run, as torch's allocator does on one stream.
        """
        ...


class Backend(abc.ABC):
    """Compiler and launcher for one language and device; stateless except caches."""

    name: ClassVar[str]
    language: ClassVar[Language]
    captures_graphs: ClassVar[bool] = False
    """True if CUDA graphs can capture its launches."""

    @abc.abstractmethod
    def availability(self) -> Availability:
        """Return this backend's availability on this machine; never raises."""

    @abc.abstractmethod
    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Compile all kernels of a source.

        Compiled code is cached where this saves time. ``constants["EXACT"]`` disables FMA contraction.

        Raises:
            CompileError: The source does not compile; with the compiler's message.
        """

    def build(self, source: Source, constants: Mapping[str, Constant], index: int | None = None) -> Path:
        """Compile for a GPU into the cache; any thread may call it.

        Args:
            source: As of `compile`.
            constants: As of `compile`.
            index: Number of the GPU, which needs no torch; None: torch's current GPU.

        Raises:
            BackendUnavailable: The backend does not run CUDA C on a GPU.
            CompileError: As `compile`.
        """
        raise BackendUnavailable(f"backend {self.name!r}: must run CUDA C on a GPU to compile in a thread; use pycuda")

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return torch.device("cpu")

    @property
    def threads(self) -> int | None:
        """CPU threads that run kernels; None on a GPU."""
        return 1

    def synchronize(self) -> None:  # noqa: B027  (a CPU launch has run when it returns)
        """Wait until everything enqueued has run."""

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """Make a fixed stream current on which CUDA graphs can capture launches."""
        yield None

    @property
    def own_cores(self) -> list[int] | None:
        """Cores used by `pinned`, one per thread; None: no pinning."""
        return None

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Pin kernel threads to the cores of `own_cores`, if any."""
        yield

    @property
    def why_no_program(self) -> str | None:
        """Reason against `program`, or None."""
        return f"backend {self.name!r} does not run on a GPU"

    def program(
        self, source: Path, constants: Mapping[str, Constant], shared_bytes: Mapping[str, int] | None = None
    ) -> Program:
        """Return kernels in CUDA C for torch's current GPU.

        The backend may run another language.

        Args:
            source: File with kernels of THREADS threads.
            constants: Constants by name, with those of `core.cuh`.
            shared_bytes: Dynamic shared memory of a block, by kernel.

        Raises:
            BackendUnavailable: The backend does not run on a GPU.
        """
        raise BackendUnavailable(f"backend {self.name!r}: must run on a GPU to make programs; use pycuda or numba")

    def most_shared_bytes(self, index: int | None = None) -> int:
        """Return the most shared memory of a block, bytes; 0 on a CPU.

        Args:
            index: Number of the GPU, which needs no torch; None: torch's current GPU.
        """
        return 0

    def has_warp_groups(self, index: int | None = None) -> bool:
        """Return True if groups of warps can multiply (``wgmma``).

        Args:
            index: As for `most_shared_bytes`.
        """
        return False

    def require(self) -> Backend:
        """Return self if available.

        Raises:
            BackendUnavailable: The backend cannot run here; names the reason and what to install.
        """
        state = self.availability()
        if not state.available:
            raise BackendUnavailable(f"backend {self.name!r}: {state.reason}; {state.install}")
        return self


ACTIONS: Final = Constants.ACTIONS
IS_OBSERVED: Final = "is_observed"
"""Parameter ``int32`` that tells a Python step if its observations are read.

CUDA C has ``WD_OBSERVED`` for it. It is not bound; in a launch of one step it is 1.
"""
KEPT: Final = (Constants.OBSERVATIONS, FINAL_OBSERVATIONS, Constants.REWARDS, TERMINATED, TRUNCATED, DONE)
"""Arrays that a step writes and a rollout may store."""
LAYERS: Final = ("w1", "b1", "w2", "b2", "w3", "b3")
"""Weights and biases of a network with two hidden layers."""


FLAGS: Final = ("terminated", "truncated", DONE)
"""Arrays of `KEPT` that rollouts store as one-byte flags (`rows_of`)."""


def rows_of(flag: str) -> str:
    """Return a kernel's name for a flag's rows, ``(n_steps * n_envs,)``."""
    return f"{flag.strip('_')}_rows"


def last_of(name: str) -> str:
    """Return a kernel's name for an array's last step.

    Used alongside rows of all steps.
    """
    return f"last_{name}"


def rows_of_steps(constants: Mapping[str, Constant]) -> tuple[str, ...]:
    """Return the arrays with one row per step in a kernel ``rollout``.

    By its constants: given actions, and with KEEP_ALL random actions (RANDOM) and the arrays of `KEPT`.
    """
    actions = (ACTIONS,) if constants["KEEP_ALL"] or not constants["RANDOM"] else ()
    return (*actions, *(KEPT if constants["KEEP_ALL"] else ()))


RESERVED: Final = {name.strip("_"): name for name in (TIMESTEP, DONE, EPISODE, RESET_SEED, LOG_MASK)}
"""Reserved arrays by named tuple field; fields cannot start with an underscore."""


class ArgumentKind(NamedTuple):
    """Kernel argument: an array, a scalar, or a named tuple of arguments."""

    kind: Callable[..., Any] | None = None
    fields: tuple[ArgumentKind, ...] = ()
    is_bound: bool = True
    """False for `IS_OBSERVED`."""

    def packed(self, values: Iterator[Any], pack: Callable[[Any, list[Any]], Any]) -> Any:
        """Return the next value, or for a named tuple ``pack`` of its packed fields."""
        if self.kind is None:
            return next(values)
        return pack(self.kind, [field.packed(values, pack) for field in self.fields])


@dataclass(frozen=True, slots=True)
class PythonSignature:
    """Parameters of a Python kernel, including fields of its named tuples.

    An annotation ``float32[:, :]`` or ``int32`` declares dtype and rank. The name of a named tuple declares a parameter
    for each field: ``state: State`` stands for all arrays of `State`. Fields may be named tuples, too. Any other
    annotation declares nothing.
    """

    parameters: tuple[Parameter, ...]
    """Arrays and scalars that are bound by name."""
    arguments: tuple[ArgumentKind, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> PythonSignature:
        """Read a function's signature.

        A named tuple is looked up in the module of its annotation.
        """
        code, parameters = function.__code__, list[Parameter]()

        def read(name: str, annotation: Any, space: Mapping[str, Any]) -> ArgumentKind:
            text = str(getattr(annotation, "__forward_arg__", annotation))  # `NamedTuple` wraps string annotations
            kind = space.get(text, annotation)
            if not (fields := getattr(kind, "_fields", ())):
                parameters.append(_parameter(name, text))
                return ArgumentKind()
            own, space = kind.__annotations__, vars(sys.modules[kind.__module__])
            return ArgumentKind(kind, tuple(read(RESERVED.get(each, each), own[each], space) for each in fields))

        kinds = []
        for name in code.co_varnames[: code.co_argcount]:
            annotation = function.__annotations__.get(name, "")
            is_bound = (name, str(annotation)) != (IS_OBSERVED, "int32")
            kinds.append(read(name, annotation, function.__globals__) if is_bound else ArgumentKind(is_bound=False))
        return cls(tuple(parameters), tuple(kinds))

    def pack(
        self,
        values: Iterable[Any],
        pack: Callable[[Any, list[Any]], Any] = lambda kind, fields: kind(*fields),
        is_observed: Any = 1,
    ) -> list[Any]:
        """Return the function's arguments for values in the order of parameters.

        Args:
            values: One value for each parameter.
            pack: Function that builds a named tuple, or its replacement, from its fields.
            is_observed: Argument of that name, if the function has it.
        """
        rest = iter(values)
        return [each.packed(rest, pack) if each.is_bound else is_observed for each in self.arguments]


def _parameter(name: str, annotation: str) -> Parameter:
    dtype, _, axes = annotation.partition("[")
    if dtype not in ("float32", "int32", "uint32", "float64", "int64", "bool"):
        return Parameter(name)
    return Parameter(name, dtype, axes.count(",") + 1 if axes else 0)


def build_module(source: Source, constants: Mapping[str, Constant]) -> dict[str, Callable[..., Any]]:
    """Call ``build(c)`` of a Python kernel module.

    It gets floats as float32, so that literals have single precision.

    Raises:
        CompileError: The module cannot be imported, or has no ``build``.
    """
    import importlib  # noqa: PLC0415
    from types import SimpleNamespace  # noqa: PLC0415

    def single(value: Constant) -> Any:
        return np.float32(value) if isinstance(value, float) else value

    try:
        module = importlib.import_module(str(source))
    except ImportError as error:
        raise CompileError.of(f"kernels {source}", "must be a module that can be imported", error) from error
    has_build = callable(getattr(module, "build", None))
    require(has_build, f"kernels {source}", "the module must have a function build(c)", error=CompileError)
    namespace = SimpleNamespace(**{name: single(value) for name, value in constants.items()})
    kernels: dict[str, Callable[..., Any]] = module.build(namespace)
    return kernels
