"""Forked processes use one thread: threads end with a fork."""

from __future__ import annotations

import json
import os

import pytest

from tests.support import run_python
from warpdrive_min import BACKENDS

if not hasattr(os, "fork") or not BACKENDS["host"].availability().available:
    pytest.skip("needs fork and a C++ compiler", allow_module_level=True)

WORKS = ("new environments", "old environments", "agents", "more threads", "train", "train exactly", "child of a child")


@pytest.fixture(scope="module")
def found():
    """Reports of one process's children."""
    return json.loads(run_python("-m", "tests.core.forked"))


@pytest.mark.parametrize("work", WORKS)
def test_forked_process_works_on_one_thread_and_says_so_once(found, work):
    """A forked process works on one thread, and warns once.

    Kernels of both styles, prepared before the fork or after it, and training.
    """
    assert (found[work]["status"], found[work]["threads"]) == (0, [1, 1])
    (text,) = found[work]["warnings"]
    assert "uses 1 thread, because threads do not survive a fork (got 2)" in text


def test_operations_of_torch_do_not_wait_either(found):
    """Torch's operations do not hang in a forked child either."""
    assert found["torch"] == {"status": 0, "threads": [1, 1], "warnings": []}


def test_fork_server_that_ran_nothing_gives_all_threads(found):
    """A child of an unused fork server has all threads.

    Benchmarks start their processes so.
    """
    assert found["fork server"]["threads"] == [2, 2]


NOTED = "import os, warpdrive_min, {}\nif os.fork() == 0:\n    print(warpdrive_min.forks.forked, flush=True)\n"
NOTED += "    os._exit(0)\nos.wait()\n"


def test_fork_without_torch_loses_no_threads():
    """A fork is not recorded if torch is not imported."""
    assert run_python("-c", NOTED.format("json")) == "False\n"


@pytest.mark.nightly
def test_process_that_only_forks_gives_its_children_all_threads():
    """Children of a declared fork server have all threads; theirs have one.

    Before, a fork is recorded, as torch is imported; the package need not have been used.
    """
    code = NOTED.format("torch") + (
        "import torch\nfrom warpdrive_min import forks\ntorch.set_num_threads(2)\nforks.serve_forks()\n"
        "for _ in range(2):\n    if os.fork():\n        os.wait()\n        break\n"
        "    print(forks.threads(), flush=True)"
    )
    assert run_python("-c", code) == "True\n2\n1\n"
