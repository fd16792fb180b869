"""Threads of `host`, and the CPU cores that they may use."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import needs_host, run_python
from warpdrive_min import BACKENDS, cores
from warpdrive_min.backends import cuda_c, host

COUNTING = """
#include <chrono>
#include <thread>
struct Counts { int sleep_us; int* of_block; };
extern "C" void count(void** arguments, int first, int end) {
  Counts* counts = reinterpret_cast<Counts*>(arguments);
  for (int block = first; block < end; ++block) {
    std::this_thread::sleep_for(std::chrono::microseconds(counts->sleep_us));
    ++counts->of_block[block];
  }
}
"""


class Counts(ctypes.Structure):
    """Pause of a block in us, and how often each block ran."""

    _fields_ = (("sleep_us", ctypes.c_int), ("of_block", ctypes.POINTER(ctypes.c_int)))


@pytest.fixture(scope="module")
def count(tmp_path_factory):
    """Return a function that launches blocks and returns how often each ran."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "count.cpp").write_text(COUNTING)
    library = folder / "count.so"
    compiler = cuda_c.cpu_compiler()
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, folder / "count.cpp"], check=True)
    function = host.address_of(ctypes.CDLL(str(library)), "count")

    def run(n_blocks: int, n_threads: int, sleep_us: int = 0, launches: int = 1) -> list[int]:
        of_block = (ctypes.c_int * n_blocks)()
        counts = Counts(sleep_us, of_block)
        start = host.launch(function, ctypes.addressof(counts), n_blocks, n_threads, keep=counts)
        for _ in range(launches):
            start()
        return list(of_block)

    return run


@needs_host
@pytest.mark.parametrize(("n_blocks", "n_threads"), [(1, 4), (2, 2), (7, 3), (64, 5), (3, 8), (64, 1)])
def test_each_block_runs_once_in_each_launch(count, n_blocks, n_threads):
    """With more threads than cores, and fewer blocks than threads, too."""
    assert count(n_blocks, n_threads, sleep_us=20, launches=100) == [100] * n_blocks


@needs_host
def test_sleeping_threads_are_woken(count):
    """Blocks of 20 ms outlast the spinning of threads that wait."""
    for _ in range(3):
        time.sleep(0.01)
        assert count(5, 4, sleep_us=20_000) == [1] * 5


@needs_host
def test_launches_of_several_python_threads_do_not_mix(count):
    """The one that finds the threads in use runs its blocks itself."""
    found = [[]] * 4

    def launch(index: int) -> None:
        found[index] = count(32, 3, sleep_us=20, launches=50)

    callers = [threading.Thread(target=launch, args=(index,)) for index in range(len(found))]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert found == [[50] * 32] * 4


AFFINITIES = """
import os, torch
from warpdrive_min.backends import cuda_c, host
host._threads(cuda_c.cpu_compiler())
print(len({frozenset(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}))
"""


@needs_host
@pytest.mark.nightly
@pytest.mark.skipif(cores.n_cores() < 2 or not Path("/proc/self/task").exists(), reason="needs two cores and Linux")
def test_threads_use_the_places_of_openmp():
    """Torch's OpenMP pins the main thread; the other one gets its own core."""
    assert run_python("-c", AFFINITIES, OMP_PROC_BIND="true", OMP_NUM_THREADS="2") == "2\n"


@pytest.mark.parametrize(
    ("limit", "variable", "threads"), [(None, None, 4), (2.5, None, 2), (0.5, None, 1), (2.5, "4", 4), (8.0, None, 4)]
)
def test_threads_fit_the_containers_limit(monkeypatch, limit, variable, threads):
    """Unless the user has set their number."""
    monkeypatch.setattr(host.forks, "threads", lambda: 4)
    monkeypatch.setattr(host.cores, "limit", lambda: limit)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert BACKENDS["host"].threads == threads


VERSION_1 = {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "folder", "files", "limit"),
    [
        ("0::/\n", "", {"cpu.max": "400000 100000\n"}, 4.0),
        ("0::/\n", "", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", "a", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/of/the/host\n", "", {"cpu.max": "400000 100000\n"}, 4.0),
        ("4:memory:/m\n1:cpu,cpuacct:/a\n0::/\n", "cpu/a", VERSION_1, 1.5),
        ("1:cpu:/\n", "cpu", {**VERSION_1, "cpu.cfs_quota_us": "-1\n"}, None),
        ("1:cpu:/\n", "", {}, None),
    ],
)
def test_limit_of_control_groups(tmp_path, groups, folder, files, limit):
    """Versions 1 and 2, of the process's group or of one above it."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(text)
    assert cores.limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("load", "text"), [(None, ""), (1.0, ""), (5.5, "this machine is busy (load 11 on 2 cores): numbers unreliable")]
)
def test_busy_machine_has_a_warning(load, text):
    """One program alone keeps a machine at a load of 1 per core."""
    assert cores.busy(load, 2) == text


@needs_host
def test_forked_process_pins_nothing():
    """A fork during a launch leaves the child a lock that nobody releases."""
    program = """
import os, sys, torch
from warpdrive_min import BACKENDS
child = os.fork()
if child == 0:
    before = os.sched_getaffinity(0)
    with BACKENDS["host"].pinned():
        os._exit(before != os.sched_getaffinity(0))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60, check=False)
    assert done.returncode == 0
