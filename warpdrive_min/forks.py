"""Thread counts of forked processes.

Threads of torch (OpenMP) and of `host` do not survive a fork. A parallel region in the child would wait for those of
the parent forever.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings

forked = False
"""True in a forked process and in its descendants."""
used = False
"""True once `host` has used more than one thread."""
_was_used = False
_had_parent = False
_only_forks = False
_of_server = False
_threads_before = 1


def _note() -> None:
    """Record the fork; give torch one thread if `host` had used several."""
    global forked, _was_used, _had_parent, _only_forks, _of_server, _threads_before
    _of_server, _only_forks = _only_forks, False
    torch = sys.modules.get("torch")
    if torch is None:  # no pool yet
        return
    forked, _was_used, _threads_before = True, used, max(_threads_before, torch.get_num_threads())
    _had_parent = multiprocessing.parent_process() is not None
    if used:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_note)


def serve_forks() -> None:
    """Declare that this process only imports and forks, so its children have threads."""
    global _only_forks
    _only_forks = True


def _is_of_a_server() -> bool:
    """True if an unused fork server started this process."""
    parent = multiprocessing.parent_process()
    is_of_python = not _had_parent and parent is not None and parent.pid != os.getppid()
    return not _was_used and (_of_server or is_of_python)


def has_lost_threads() -> bool:
    """True in a fork of a process that may have had threads; not in a fork server's."""
    return forked and not _is_of_a_server()


def threads() -> int:
    """Return the number of compute threads, 1 in a forked process.

    Otherwise it is torch's. The first call in a forked process warns and gives torch one thread.
    """
    global _threads_before
    import torch  # noqa: PLC0415  (takes seconds)

    n = torch.get_num_threads()
    if not has_lost_threads() or (n == 1 and _threads_before == 1):
        return n
    if _threads_before > 1:
        rule = f"uses 1 thread, because threads do not survive a fork (got {_threads_before})"
        text = f"forked process {os.getpid()}: {rule}; start it with 'spawn' or 'forkserver' for more threads"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    _threads_before = 1
    torch.set_num_threads(1)
    return 1
