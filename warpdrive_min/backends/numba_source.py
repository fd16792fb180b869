"""Generated Numba kernels: with compile-time array sizes, and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from numba import cuda

from warpdrive_min.backends.base import ACTIONS, PythonSignature, rows_of_steps
from warpdrive_min.kernels.core_numba import sized
from warpdrive_min.kernels.rollout_numba import drawing

DRAWN: Final = {"draws": "int32[:]", "seed": "int32[:]", "stream": "int32", "n_envs": "int32"}
"""Parameters of random actions."""


def with_sizes(
    function: Callable[..., Any], on_device: Any, shapes: Sequence[tuple[int, ...] | None]
) -> Callable[..., Any]:
    """Return a kernel's function with compile-time array sizes, except the first.

    Its arrays and scalars are separate parameters. Otherwise Numba would read sizes at each index and multiply in 64
    bits.

    Args:
        function: Function of a kernel.
        on_device: The same function as a device function.
        shapes: Shape of each parameter; None: a scalar.
    """
    names = [f"argument_{index}" for index in range(len(shapes))]
    of_size = [
        f"_sized({name}, _sizes_{name})" if shape and len(shape) > 1 else name
        for name, shape in zip(names, shapes, strict=True)
    ]
    space: dict[str, Any] = {"_sized": sized, "_kernel": on_device}
    space |= {f"_sizes_{name}": tuple(shape[1:]) for name, shape in zip(names, shapes, strict=True) if shape}
    call = _call("_kernel", PythonSignature.of(function), of_size, space)
    return _defined(function.__name__, names, [call], space)


def rollout_of(step: Callable[..., Any], c: Any) -> Any:
    """Return a kernel that takes ``n_steps`` env steps.

    A block owns its environments and synchronises between steps. The parameters are those of ``step``, fields of named
    tuples one by one, and ``n_steps``. With RANDOM the kernel draws the actions and also takes the parameters of
    `DRAWN`. Arrays in `rows_of_steps` have a leading axis of steps.

    Args:
        step: Function of the kernel ``step``.
        c: Constants KEEP_ALL and RANDOM, and those of `drawing`.
    """
    signature = PythonSignature.of(step)
    by_step = rows_of_steps(vars(c))
    row = {each.name: f"{each.name}[_k]" if each.name in by_step else each.name for each in signature.parameters}
    space: dict[str, Any] = {"_cuda": cuda, "_step": cuda.jit(device=True)(step)}
    is_observed = "1" if c.KEEP_ALL else "_k == n_steps - 1"
    call = _call("_step", signature, [row[each.name] for each in signature.parameters], space, is_observed)
    annotations = {"n_steps": "int32"}
    body = ["for _k in range(n_steps):", f"    {call}", "    _cuda.syncthreads()"]
    if c.RANDOM:
        annotations |= DRAWN
        space |= {f"_{name}": function for name, function in drawing(c)._asdict().items()}
        drawn = f"_draw({row.get(ACTIONS, ACTIONS)}, _k, draws, seed, stream, n_envs)"
        body = [body[0], f"    {drawn}", "    _cuda.syncthreads()", *body[1:], "_count(draws, n_steps, n_envs)"]
    for each in signature.parameters:
        rank = None if each.rank is None else each.rank + (each.name in by_step)
        annotations[each.name] = f"{each.dtype}[{', '.join(':' * rank)}]" if rank else str(each.dtype)
    rollout = _defined("rollout", list(annotations), body, space)
    rollout.__annotations__ = annotations
    return cuda.jit(rollout)


def _call(
    name: str, signature: PythonSignature, values: Sequence[str], space: dict[str, Any], is_observed: str = "1"
) -> str:
    """Return the text of a call; adds its named tuples to ``space``."""

    def pack(kind: Any, fields: list[str]) -> str:
        named = f"_tuple_{len(space)}"
        space[named] = kind
        return f"{named}({', '.join(fields)})"

    return f"{name}({', '.join(signature.pack(values, pack, is_observed))})"


def _defined(name: str, parameters: Sequence[str], body: Sequence[str], space: dict[str, Any]) -> Callable[..., Any]:
    """Define a function from its text."""
    text = "\n    ".join([f"def {name}({', '.join(parameters)}):", *body])
    exec(text, space)
    function: Callable[..., Any] = space[name]
    return function
