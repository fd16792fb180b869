"""Minimal kernel in NumPy: the rule of `count.cu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def build(c: Any) -> dict[str, Callable[..., None]]:
    """Return the kernel ``count``."""

    def count(launches: NDArray[np.int32]) -> None:
        launches[0] += 1

    return {"count": count}
