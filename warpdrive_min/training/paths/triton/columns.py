"""Split and join of heads and values without copies.

Both are columns of one array, as are their gradients.
"""

from __future__ import annotations

from typing import Any

import torch


def split(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all columns but the last, and the last, as views.

    If their gradients are such views of one array, the backward pass copies nothing.
    """
    head, values = _Split.apply(outputs)  # type: ignore[no-untyped-call]
    return head, values


def parent_array(head: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """Return the array that contains both as columns, or None.

    The array is (..., n + 1): ``head`` (..., n) and, as the last column, ``values`` (...).
    """
    n_columns = head.shape[-1] + 1
    is_next = values.data_ptr() == head.data_ptr() + (n_columns - 1) * head.element_size()
    whole = torch.empty((*values.shape, n_columns), device="meta", dtype=torch.float32)
    if not is_next or head.stride() != whole.stride() or values.stride() != whole.stride()[:-1]:
        return None
    return head.as_strided(whole.shape, whole.stride())


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs[..., :-1], outputs[..., -1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], outputs: torch.Tensor) -> tuple[Any, tuple[int, int]]:
        """Split outputs with an axis of networks, which is not the last, by views."""
        return (outputs[..., :-1], outputs[..., -1]), (in_dims[0], in_dims[0])

    @staticmethod
    def backward(ctx: Any, d_head: torch.Tensor, d_values: torch.Tensor) -> torch.Tensor:
        whole = parent_array(d_head, d_values)
        return torch.cat([d_head, d_values[..., None]], -1) if whole is None else whole
