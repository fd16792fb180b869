"""Process that compiles kernels through the disk cache, without a GPU.

`python -m tests.core.numba_cache_process JOB...` prints how often each job called the compiler, which is a stand-in.
A job is a folder with `kernels.py`, and settings as in ``folder,capability=8.0,exact=1,type=int32,constant=4``.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

from numba import cuda
from numba.cuda import dispatcher, types

from warpdrive_min.backends import numba_cache
from warpdrive_min.backends.numba_cuda import compiled


class Compiled:
    """Machine code of the stand-in compiler."""

    n_made: ClassVar[int] = 0
    launch_config_sensitive = False

    def __init__(self, function: Any, argument_types: Any, **options: Any) -> None:
        Compiled.n_made += 1

    def bind(self) -> None:
        """Nothing is loaded."""

    def _reduce_states(self) -> dict[str, Any]:
        return {"code": b"machine code"}

    @classmethod
    def _rebuild(cls, code: bytes) -> Compiled:
        assert code == b"machine code"
        return cls.__new__(cls)


def run(folder: str, *settings: str) -> int:
    """Compile the kernel of a folder; return the number of compilations."""
    given, n_before = dict(each.split("=") for each in settings), Compiled.n_made
    device = SimpleNamespace(compute_capability=tuple(map(int, given.get("capability", "9.0").split("."))))
    cuda.get_current_device = lambda: device
    numba_cache.metadata = SimpleNamespace(version=lambda name: given.get("package", "1.0"))
    numba_cache._compiler.cache_clear()
    sys.path[0] = folder
    for name in ("kernels", "helpers"):
        sys.modules.pop(name, None)
    kernel = importlib.import_module("kernels").build(SimpleNamespace(N=int(given.get("constant", 3))))["kernel"]
    kernel.targetoptions["fastmath"] = "fastmath" in given
    array = types.Array(getattr(types, given.get("type", "float32")), 1, "C")
    compiled(kernel, (array,), "exact" in given)
    return Compiled.n_made - n_before


if __name__ == "__main__":
    dispatcher._Kernel, numba_cache._libraries = Compiled, list
    sys.path.insert(0, "")
    print(*(run(*job.split(",")) for job in sys.argv[1:]))
