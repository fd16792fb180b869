"""Torch's device `cuda` as the CPU, if `host` replaces `pycuda`.

The CPU's memory holds the arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CudaIsHost(TorchFunctionMode):
    """Context that makes torch's functions treat `cuda` as the CPU.

    `Tensor.cuda` and `Tensor.to` return the same tensor. `Tensor.cpu` copies, as from a GPU: values read before a step
    do not change. `torch.cuda` finds no GPU; its tensor types, events and waits are the CPU's.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch with the CPU for each device `cuda`."""
        named = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        if func is torch.device:  # only a name yet
            return func(*args, **named)
        result = func(*map(_on_host, args), **{name: _on_host(value) for name, value in named.items()})
        is_copy = func is Tensor.cpu or (func is Tensor.to and _is_on("cpu", named.get("device", (*args, None)[1])))
        return result.clone() if is_copy else result


def _is_on(kind: str, device: object) -> bool:
    """True if an object is a device, or the name of one such as ``cuda:0``, of a kind."""
    return isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == kind


def _on_host(value: Any) -> Any:
    return "cpu" if _is_on("cuda", value) else value


class Event:
    """Time by the CPU's clock, as `torch.cuda.Event`; arguments have no effect."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        del enable_timing, blocking, interprocess
        self._seconds = 0.0

    def record(self, stream: object = None) -> None:
        """Record the current time: all earlier calls have finished."""
        del stream
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to a later one."""
        return 1000 * (end_event._seconds - self._seconds)

    def query(self) -> bool:
        """Return True: all earlier work has finished."""
        return True

    def wait(self, stream: object = None) -> None:
        """Do nothing: all earlier work has finished."""

    synchronize = wait


def _do_nothing(device: object = None) -> None:
    del device


_KINDS = ("Float", "Double", "Half", "BFloat16", "Bool", "Byte", "Char", "Short", "Int", "Long")
_ON_HOST: dict[str, Any] = {f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in _KINDS}
_ON_HOST |= {"Event": Event, "init": _do_nothing, "synchronize": _do_nothing}
"""Replacements in `torch.cuda` by name.

Scripts start CUDA by ``torch.cuda.FloatTensor(8)``.
"""
_ON_GPU = {name: getattr(torch.cuda, name) for name in _ON_HOST}
_entered: list[CudaIsHost] = []


def switch(is_on: bool) -> None:
    """Treat `cuda` as the CPU, or stop doing so.

    Devices change in this thread, parts of `torch.cuda` in all threads.
    """
    for name, value in (_ON_HOST if is_on else _ON_GPU).items():
        setattr(torch.cuda, name, value)
    if is_on and not _entered:
        _entered.append(CudaIsHost())
        _entered[0].__enter__()  # type: ignore[no-untyped-call]
    elif _entered and not is_on:
        _entered.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]
