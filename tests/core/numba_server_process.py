"""Process that compiles kernels through the fork server, without a GPU.

`python -m tests.core.numba_server_process FOLDER CONSTANT...` submits a job for each value of a constant of the kernel
in ``kernels.py``, waits, and prints the number of cached kernels. The compiler of the server is a stand-in.
"""

from __future__ import annotations

import os
import sys

from warpdrive_min.backends import cache, numba_server


def submit(number: int) -> None:
    """Compile the kernel for a number."""
    from numba.cuda import types

    array = types.Array(types.float32, 1, "C")
    job = numba_server.Job("package.kernels", {"N": number}, "kernel", [(8,)], 32, (array,), (9, 0))
    numba_server.submit(job)()


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    numba_server.start()
    assert numba_server.is_running()
    for each in sys.argv[2:]:
        submit(int(each))
    numba_server.stop()
    assert not numba_server.is_running()
    print(len(os.listdir(cache.folder())))
    numba_server.start()  # kernels are cached now
    print(numba_server.is_running())
