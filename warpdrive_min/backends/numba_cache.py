"""Disk cache of Numba's machine code, in the folder of compiled CUDA C.

Numba's own cache notices no changed device function or constant, and needs a source file.
"""

from __future__ import annotations

import dis
import enum
import functools
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
from numba.cuda.serialize import dumps

from warpdrive_min.backends.cache import NUMBA_SUFFIX, cached, entry

LIBRARIES: Final = ("builtins", "cmath", "cuda", "llvmlite", "math", "numba", "numba_cuda", "numpy", "operator")
"""Packages whose objects a key holds by name; it holds their versions, too."""
NOT_CACHED: Final = ("debug", "lineinfo", "link")
"""Options of kernels that depend on line numbers or other files."""


class KernelCache:
    """Cache of one kernel and signature, called by Numba's dispatcher.

    Args:
        key: All inputs of the compilation.
    """

    def __init__(self, key: Mapping[str, object]) -> None:
        self._key = key

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the cached kernel; None if there is none or its file is damaged."""
        from numba.cuda.dispatcher import _Kernel  # noqa: PLC0415  (not in the simulator)

        path = entry(self._key, NUMBA_SUFFIX)
        try:
            return _Kernel._rebuild(**pickle.loads(zlib.decompress(path.read_bytes())))  # noqa: SLF001
        except FileNotFoundError:
            return None
        except Exception:  # noqa: BLE001  (a damaged pickle raises anything)
            path.unlink(missing_ok=True)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled kernel, unless it needs other files or its launch shape.

        Raises:
            ConfigError: The cache folder cannot be created or written.
        """
        if data.launch_config_sensitive:
            return
        with suppress(pickle.PicklingError, RuntimeError):  # Numba's answers for linked files and for device arrays
            content = zlib.compress(dumps(data._reduce_states()), 1)  # noqa: SLF001  (mostly LLVM's text)
            cached(self._key, NUMBA_SUFFIX, lambda path: path.write_bytes(content))


def kernel_cache(kernel: Any, types: tuple[Any, ...], capability: tuple[int, int], exact: bool) -> KernelCache | None:
    """Return the cache of a kernel; None if its inputs have no description.

    Args:
        kernel: Dispatcher of the kernel.
        types: Numba's types of its arguments.
        capability: Compute capability of the GPU.
        exact: Compiled without contraction.
    """
    if any(kernel.targetoptions.get(option) for option in NOT_CACHED):
        return None
    try:
        text = described(kernel)
    except Unnamed:
        return None
    signature = [repr(each) for each in types]
    return KernelCache(
        {"kernel": text, "types": signature, "capability": capability, "exact": exact, "compiler": _compiler()}
    )


@functools.cache
def _compiler() -> dict[str, object]:
    """Return versions and settings of the compilers."""
    names = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-core")
    return {
        "libraries": _libraries(),
        "packages": {name: metadata.version(name) for name in names},
        "python": sys.version,
        "settings": {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")},
    }


def _libraries() -> list[tuple[str, int, int]]:
    """Return path, size and time of NVVM and nvJitLink.

    NVVM reports no full version.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415  (optional)

    paths = [load_nvidia_dynamic_lib(name).abs_path for name in ("nvvm", "nvJitLink")]
    return [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths if path]


# ------------------------------------------------------------------ description of a kernel


class Unnamed(Exception):  # noqa: N818  (never leaves this module)
    """An object that a kernel uses and that has no description."""


def described(kernel: Any) -> object:
    """Describe the inputs of a kernel's machine code, for JSON.

    It follows device functions, closures, globals and attributes of modules to their code and values. Line numbers and
    comments are left out, and what `numba.cuda.extending` registers for other functions.

    Raises:
        Unnamed: It uses an object of another kind, such as a device array.
    """
    return _Describer().value(kernel)


class _Describer:
    """Descriptions of values; of a function that is met again, its number."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def value(self, value: Any, names: frozenset[str] = frozenset()) -> object:
        """Describe a value; of a module, the attributes with one of these names."""
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, type(...)):
            return [kind.__name__, repr(value)]
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise Unnamed(value)
            return ["array", kind.__name__, array.dtype.descr, array.shape, array.strides, array.tobytes().hex()]
        if isinstance(value, enum.Enum):
            return ["enum", _name(kind), value.name, self.value(value.value)]
        if isinstance(value, tuple | list):
            return [kind.__name__, getattr(value, "_fields", ()), [self.value(each, names) for each in value]]
        if isinstance(value, frozenset):
            return ["frozenset", sorted(repr(self.value(each)) for each in value)]
        if isinstance(value, SimpleNamespace):
            return ["namespace", [[name, self.value(each)] for name, each in sorted(vars(value).items())]]
        if isinstance(value, ModuleType):
            if _is_library(value.__name__):
                return ["module", value.__name__]
            used = [(name, vars(value)[name]) for name in sorted(names & vars(value).keys())]
            return self._once((id(value), names), lambda: [[name, self.value(each, names)] for name, each in used])
        return self._named(value) if isinstance(value, type) else self._callable(value)

    def _named(self, value: type) -> object:
        """Describe a class."""
        if issubclass(value, enum.Enum):
            return ["enum", _name(value), [[each.name, self.value(each.value)] for each in value]]
        if issubclass(value, tuple) and hasattr(value, "_fields"):
            return ["named tuple", _name(value), value._fields]
        if not _is_library(value.__module__):
            raise Unnamed(value)
        return ["class", _name(value)]

    def _callable(self, value: Any) -> object:
        """Describe a function, or an object of a library."""
        function = getattr(value, "py_func", None) or getattr(value, "_defn", None)
        if isinstance(function, FunctionType):  # a dispatcher, or an intrinsic
            options = [[name, _text(option)] for name, option in sorted(getattr(value, "targetoptions", {}).items())]
            return [type(value).__name__, options, self.value(function)]
        if not isinstance(value, FunctionType):
            if not _is_library(getattr(value, "__module__", None) or type(value).__module__):
                raise Unnamed(value)
            return ["library", _name(value) if hasattr(value, "__qualname__") else _text(value)]
        if _is_library(value.__globals__.get("__name__", "")):
            return ["library", _name(value)]
        return self._once(id(value), lambda: list(self._function(value)))

    def _function(self, function: FunctionType) -> Iterator[object]:
        code, space = function.__code__, function.__globals__
        codes = list(_codes(code))
        names = frozenset(name for each in codes for name in each.co_names)
        for each in codes:
            yield [getattr(each, field) for field in _FIELDS], each.co_code.hex(), each.co_exceptiontable.hex()
            yield [self.value(constant) for constant in each.co_consts if not isinstance(constant, CodeType)]
        yield self.value(function.__defaults__), sorted((function.__kwdefaults__ or {}).items())
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name, self.value(_content(cell), names)
        for name in sorted({name for each in codes for name in _globals(each)}):
            if name in space:
                yield name, self.value(space[name], names)

    def _once(self, key: object, describe: Callable[[], object]) -> object:
        """Return a description the first time, then its number."""
        if key in self._numbers:
            return ["again", self._numbers[key]]
        self._numbers[key] = len(self._numbers)
        return describe()


_FIELDS: Final = (
    "co_name", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags",
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount",
)  # fmt: skip


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and the code of functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


@functools.cache
def _globals(code: CodeType) -> frozenset[str]:
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        raise Unnamed(cell) from None


def _text(value: object) -> str:
    """Return the text of an object, if it is the same in every process."""
    if " at 0x" in (text := repr(value)):
        raise Unnamed(value)
    return text


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES
