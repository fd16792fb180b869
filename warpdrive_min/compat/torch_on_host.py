"""Torch's device `cuda` where `host` plays the part of `pycuda`: it is the CPU, whose memory the arrays are in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CudaIsHost(TorchFunctionMode):
    """Lets torch's functions take `cuda` for the CPU.

    `Tensor.cuda` and `Tensor.to` leave a tensor where it is, so it is the same one; `Tensor.cpu` copies, as from a GPU:
    what was read before a step stays as it was. `torch.cuda` finds no GPU; its types of tensors, events and waits are
    the CPU's.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, with the CPU for each device `cuda`."""
        named = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        if func is torch.device:  # only a name yet
            return func(*args, **named)
        result = func(*map(_on_host, args), **{name: _on_host(value) for name, value in named.items()})
        is_copy = func is Tensor.cpu or (func is Tensor.to and _is_on("cpu", named.get("device", (*args, None)[1])))
        return result.clone() if is_copy else result


def _is_on(kind: str, device: object) -> bool:
    """Tell whether something names a device of a kind: a `torch.device`, or its name such as ``cuda:0``."""
    return isinstance(device, (str, torch.device)) and str(device).partition(":")[0] == kind


def _on_host(value: Any) -> Any:
    return "cpu" if _is_on("cuda", value) else value


class Event:
    """A moment by the CPU's clock, with the methods of `torch.cuda.Event`; its arguments are taken and do nothing."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        del enable_timing, blocking, interprocess
        self._seconds = 0.0

    def record(self, stream: object = None) -> None:
        """Take down the moment: all that was called before has ended."""
        del stream
        self._seconds = time.perf_counter()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this moment to a later one."""
        return 1000 * (end_event._seconds - self._seconds)

    def query(self) -> bool:
        """Say that all before it has ended."""
        return True

    def wait(self, stream: object = None) -> None:
        """Do nothing, as there is nothing to wait for."""

    synchronize = wait


def _do_nothing(device: object = None) -> None:
    del device


_KINDS = ("Float", "Double", "Half", "BFloat16", "Bool", "Byte", "Char", "Short", "Int", "Long")
_ON_HOST: dict[str, Any] = {f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in _KINDS}
_ON_HOST |= {"Event": Event, "init": _do_nothing, "synchronize": _do_nothing}
"""Stands in `torch.cuda`, by name; scripts start CUDA by ``torch.cuda.FloatTensor(8)``."""
_ON_GPU = {name: getattr(torch.cuda, name) for name in _ON_HOST}
_entered: list[CudaIsHost] = []


def switch(is_on: bool) -> None:
    """Let `cuda` be the CPU from here on, or not any more: devices in this thread, parts of `torch.cuda` in all."""
    for name, value in (_ON_HOST if is_on else _ON_GPU).items():
        setattr(torch.cuda, name, value)
    if is_on and not _entered:
        _entered.append(CudaIsHost())
        _entered[0].__enter__()  # type: ignore[no-untyped-call]
    elif _entered and not is_on:
        _entered.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]
