"""Changes of a run that must leave all its bits equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from warpdrive_min.agreement.compare import Array
from warpdrive_min.backends import cuda_c, host
from warpdrive_min.backends.base import Backend, Launch
from warpdrive_min.function_manager import KERNELS, LaunchShape

N_DELAYS: Final = 3
"""Seeds of random delays of a GPU's warps."""
FILLING: Final = 1000
"""First number in fresh memory, of types with more than one byte; a small index does least harm."""
N_FILLINGS: Final = 8
"""Pairs of numbers for fresh memory; allocations take turns, so that a copy is seen."""
AUTOMATIC: Final = "-ftrivial-auto-var-init="
"""Flag of g++ 12 and clang that fills local variables of kernels on `host`."""
RACE: Final = "a race: a barrier is missing between two phases, or several threads write one element"
HOST_ORDERS: Final = (
    ("order", "WD_REVERSED", "threads and blocks run in reverse order"),
    ("serial", "WD_SERIAL", "each thread of an agent runs alone up to its next barrier"),
)
"""Orders of threads on `host`: name of the change, macro, and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Conditions of a run, which must not change its results."""

    filling: int = 0
    """Contents of fresh memory: 0 for finite numbers, 1 for NaN and other integers."""
    macros: Mapping[str, str] = field(default_factory=dict)
    """Macros of CUDA C kernels."""
    flags: tuple[str, ...] = ()
    """Flags of the C++ compiler."""
    other_blocks: bool = False
    """Half as many threads and environments in a block."""
    threads: int | None = None
    """Threads of a CPU; None: torch's."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the conditions to what is built, and to what runs, in the block."""
        threads = torch.get_num_threads()
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)
            torch.set_num_threads(self.threads or threads)
            stack.enter_context(_replaced(cuda_c, "MACROS", {**cuda_c.MACROS, **self.macros}))
            stack.enter_context(_replaced(host, "EXTRA", (*host.EXTRA, *self.flags)))
            if self.other_blocks:
                stack.enter_context(other_blocks())
            stack.enter_context(_fresh_memory(self.filling))
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of the second run, and what a difference then means."""

    name: str
    what: str
    hint: str
    first: Setting = field(default_factory=Setting)
    second: Setting = field(default_factory=Setting)


def changes(backend: Backend, *, exact: bool) -> list[Change]:
    """Return the changes that must leave all bits of a run equal.

    Args:
        backend: Backend of the run.
        exact: The run is exact. If not, other builds and block sizes may round differently, and are left out.
    """
    build = [Setting(), Setting()]
    if backend.name == "host" and exact:
        build = [
            Setting(macros={"WD_FRESH": byte}, flags=(AUTOMATIC + how,))
            for byte, how in (("0x00", "zero"), ("0x7F", "pattern"))
        ]
    first, second = (replace(each, filling=index) for index, each in enumerate(build))
    again = Change(
        name="again",
        what="nothing is changed",
        hint="a race, an order of atomics, memory that nothing wrote, unseeded random numbers, or the time",
    )
    memory = Change(
        name="memory",
        what="fresh memory has other contents",
        hint="memory that is read before anything wrote it",
        first=first,
        second=second,
    )
    found = [again, memory]
    for name, macro, what in HOST_ORDERS if exact and backend.name == "host" else ():
        found.append(Change(name=name, what=what, hint=RACE, second=Setting(macros={macro: "1"})))
    if exact and backend.device.type == "cpu":
        n = 1 if torch.get_num_threads() > 1 else 2
        hint = "blocks that depend on each other, or a sum over threads"
        found.append(Change(name="threads", what=f"{n} CPU threads", hint=hint, second=Setting(threads=n)))
    if exact and backend.language != "numpy":
        hint = "an environment that depends on others of its block, or on the number of threads"
        changed = Setting(other_blocks=True)
        found.append(Change(name="blocks", what="blocks have half the threads", hint=hint, second=changed))
    if exact and backend.name == "pycuda":
        for seed in range(1, N_DELAYS + 1):
            delayed, what = Setting(macros={cuda_c.DELAY: f"{seed}u"}), f"warps wait at random, seed {seed}"
            found.append(Change(name=f"delays-{seed}", what=what, hint=RACE, second=delayed))
    return found


@contextlib.contextmanager
def other_blocks() -> Iterator[None]:
    """Halve the blocks of kernels; one of a single warp becomes two."""
    of = LaunchShape.of

    def other(cls: type[LaunchShape], *sizes: Any, **more: Any) -> LaunchShape:
        shape = of(*sizes, **more)
        threads = shape.threads // 64 * 32 if shape.threads > 32 else 64  # whole warps
        return replace(shape, threads=threads, envs_per_block=max(1, shape.envs_per_block * threads // shape.threads))

    with _replaced(LaunchShape, "of", classmethod(other)):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# ------------------------------------------------------------------ fresh memory


class _Fresh(TorchDispatchMode):
    """Fills tensors that torch allocates without values."""

    names: Final = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")

    def __init__(self, fill: Callable[[Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fill = fill

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        if call.overloadpacket in [getattr(torch.ops.aten, name) for name in self.names]:
            self._fill(result)
        return result


@contextlib.contextmanager
def _fresh_memory(filling: int) -> Iterator[None]:
    """Fill arrays that NumPy and torch allocate without values."""
    numbers = iter(range(2**62))

    def fill(array: Any) -> None:
        is_float = array.dtype.is_floating_point if isinstance(array, torch.Tensor) else array.dtype.kind == "f"
        is_bool = array.dtype in (torch.bool, np.bool_)
        if is_bool or not (is_float or "int" in str(array.dtype)):
            return
        number = 2 * (next(numbers) % N_FILLINGS) + filling
        value = float("nan") if is_float and filling else FILLING + number if array.itemsize > 1 else number
        array.fill_(value) if isinstance(array, torch.Tensor) else array.fill(value)

    def filled(allocate: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(allocate)
        def call(*given: Any, **named: Any) -> Any:
            array = allocate(*given, **named)
            fill(array)
            return array

        return call

    with _replaced(np, "empty", filled(np.empty)), _replaced(np, "empty_like", filled(np.empty_like)), _Fresh(fill):
        yield


def is_fresh(one: Array, other: Array) -> Array:
    """True where two runs both have fresh memory, which nothing wrote."""
    return _is_filling(one) & _is_filling(other)


def _is_filling(array: Array) -> Array:
    low = FILLING if array.dtype.itemsize > 1 else 0
    found: Array = (array >= low) & (array < low + 2 * N_FILLINGS) & (array % 1 == 0)
    return found | np.isnan(array) if array.dtype.kind == "f" else found & (array.dtype.kind in "iu")


def shared_memory_filler(backend: Backend, filling: int) -> Launch:
    """Return a launch that fills the shared memory of a GPU."""
    constants = {**LaunchShape.of(1).constants(), "N_AGENTS": 1, "EXACT": False}
    kernel = backend.compile(KERNELS / "fill_shared.cu", constants)["fill_shared"]
    n_blocks = 16 * torch.cuda.get_device_properties(backend.device).multi_processor_count
    return kernel.prepare([(0, 0x7FC0A5A5)[filling]], n_blocks, 256)
