"""Torch's device `cuda` where `host` plays the part of `pycuda`: it is the CPU, whose memory the arrays are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CudaIsHost(TorchFunctionMode):
    """Lets torch's functions take `cuda` for the CPU.

    `Tensor.cuda` and `Tensor.to` leave a tensor where it is, so it is the same one; `Tensor.cpu` copies, as from a GPU:
    what was read before a step stays as it was. `torch.cuda` finds no GPU; its types of tensors are the CPU's.
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


_KINDS = ("Float", "Double", "Half", "BFloat16", "Bool", "Byte", "Char", "Short", "Int", "Long")
_GPU_TENSORS = {f"{kind}Tensor": getattr(torch.cuda, f"{kind}Tensor") for kind in _KINDS}
"""Types that scripts make one tensor of to start CUDA, as ``torch.cuda.FloatTensor(8)``, by their names."""
_entered: list[CudaIsHost] = []


def switch(is_on: bool) -> None:
    """Let `cuda` be the CPU from here on, or not any more: devices in this thread, types of tensors in all."""
    for name, of_gpu in _GPU_TENSORS.items():
        setattr(torch.cuda, name, getattr(torch, name) if is_on else of_gpu)
    if is_on and not _entered:
        _entered.append(CudaIsHost())
        _entered[0].__enter__()  # type: ignore[no-untyped-call]
    elif _entered and not is_on:
        _entered.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]
