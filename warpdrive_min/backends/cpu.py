"""Backend `cpu`: the NumPy reference, over all environments at once.

It is the correctness reference and a fair CPU baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from warpdrive_min.backends.base import (
    Argument,
    Availability,
    Backend,
    Constant,
    Kernel,
    Language,
    Launch,
    PythonSignature,
    Source,
    build_module,
)
from warpdrive_min.lazy import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())


class CpuBackend(Backend):
    """NumPy on one thread; a launch is complete when it returns."""

    name: ClassVar[str] = "cpu"
    language: ClassVar[Language] = "numpy"

    def availability(self) -> Availability:
        """Return that it is available: NumPy is a dependency."""
        return Availability(True, "NumPy")

    def compile(self, source: Source, constants: Mapping[str, Constant]) -> dict[str, Kernel]:
        """Import the module and build its kernels with the constants."""
        return {name: NumPyKernel(name, function) for name, function in build_module(source, constants).items()}


class NumPyKernel:
    """Kernel as a Python function on NumPy views of the arrays."""

    owns_environments = True

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._signature = PythonSignature.of(function)
        self.parameters = self._signature.parameters
        self._function = function

    def prepare(self, arguments: Sequence[Argument], blocks: int, threads: int) -> Launch:
        """Bind NumPy views of the tensors; ignores blocks and threads."""
        views = [argument.numpy() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        values = self._signature.pack(views)
        return lambda: self._function(*values)
