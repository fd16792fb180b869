"""The fingerprint of machine, code and packages."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from bench.core import machine
from bench.core.machine import dependencies_hash
from tests.bench.builders import git


def test_fingerprint_reads_this_machine():
    """The fingerprint has this machine's versions and cores.

    Values that cannot be read are null with a reason.
    """
    got = machine.fingerprint(torch.device("cpu"))
    assert got["numpy"] == np.__version__
    assert got["torch"] == str(torch.__version__)
    assert got["python"] == platform.python_version()
    assert got["cores"] >= 1
    assert got["memory_bytes"] > 2**28
    assert got["gpu"] is None
    assert got["unread"]["gpu"] == "RuntimeError: torch finds no NVIDIA GPU"
    assert all(got[field] is None for field in got["unread"])


def test_fingerprint_names_no_host_user_or_folder():
    """It does not identify the machine's owner."""
    text = json.dumps(machine.fingerprint(torch.device("cpu")))
    for private in (platform.node(), f"/{getpass.getuser()}", str(machine.__file__)):
        assert private not in text


def test_settings_are_those_that_decide_a_figure(monkeypatch):
    """Only known environment variables are recorded, in fixed order."""
    for name in machine.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert machine.settings() is None
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    monkeypatch.setenv("SOMEBODYS_PASSWORD", "secret")
    assert machine.settings() == "CUDA_DEVICE_MAX_CONNECTIONS=1 OMP_NUM_THREADS=2"
    assert machine.fingerprint(torch.device("cpu"))["settings"] == machine.settings()


@pytest.fixture
def file(tmp_path):
    """Committed file of code in a new repository."""
    (file := tmp_path / "bench" / "a.py").parent.mkdir()
    file.write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return file


def test_git_state_sees_changes_of_the_code(file, tmp_path, monkeypatch):
    """A change of the code adds a hash to the commit."""
    monkeypatch.delenv("BENCH_GIT_SHA", raising=False)
    clean = machine.git_state(tmp_path)
    assert len(clean["sha"]) == 40
    assert (clean["dirty"], clean["diff_hash"]) == (False, None)
    (tmp_path / "notes.txt").write_text("no code\n")
    assert machine.git_state(tmp_path) == clean
    file.write_text("2\n")
    first = machine.git_state(tmp_path)
    assert first["dirty"] is True
    file.write_text("3\n")
    assert machine.git_state(tmp_path)["diff_hash"] != first["diff_hash"]


def test_git_state_takes_no_lock(file, tmp_path):
    """Reading the Git state does not write the index.

    A kill during the write would leave a lock.
    """
    os.utime(file, (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    assert machine.git_state(tmp_path)["dirty"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == index
    git(tmp_path, "status")
    assert (tmp_path / ".git" / "index").read_bytes() != index, "otherwise it would have"


def test_copy_without_git_may_name_its_commit(tmp_path, monkeypatch):
    """$BENCH_GIT_SHA names the commit of a copy without Git."""
    monkeypatch.delenv("BENCH_GIT_SHA", raising=False)
    unnamed = machine.git_state(tmp_path)
    assert (unnamed["sha"], "not a git repository" in unnamed["unread"]) == (None, True)
    monkeypatch.setenv("BENCH_GIT_SHA", "abc")
    got = machine.git_state(tmp_path)
    assert got["sha"] == "abc"
    assert got["dirty"] is None
    assert "$BENCH_GIT_SHA" in got["unread"]


@pytest.mark.usefixtures("file")
def test_named_commit_goes_before_that_of_another_checkout(tmp_path, monkeypatch):
    """$BENCH_GIT_SHA precedes the commit of an outer checkout.

    The copy may lie in another project.
    """
    own = machine.git_state(tmp_path)["sha"]
    monkeypatch.setenv("BENCH_GIT_SHA", "abc")
    got = machine.git_state(tmp_path)
    assert (got["sha"], got["dirty"]) == ("abc", None)
    assert own in got["unread"]
    monkeypatch.setenv("BENCH_GIT_SHA", own)
    assert machine.git_state(tmp_path)["dirty"] is False


def test_dependencies_hash_depends_on_what_is_installed(monkeypatch):
    """The dependencies' hash changes with installed packages."""
    everything = dependencies_hash()
    assert everything == dependencies_hash()
    installed = list(machine.metadata.distributions())
    monkeypatch.setattr(machine.metadata, "distributions", lambda: installed[1:])
    assert dependencies_hash() != everything


CpuTimes = namedtuple("CpuTimes", "user nice system idle iowait irq softirq steal guest guest_nice")


def process(used):
    """Return a fake process; None: it has ended."""

    def cpu_times():
        if used is None:
            raise psutil.NoSuchProcess(7)
        return (used, 0.0, 0.0, 0.0, 0.0)

    return SimpleNamespace(cpu_times=cpu_times)


@pytest.fixture
def system(monkeypatch):
    """Return a function that sets used and idle seconds per core, and ours."""

    def at(cores, ours):
        times = [CpuTimes(used, 0, 0, idle, 0, 0, 0, 0, used, 0) for used, idle in cores]
        root, *others = map(process, ours)
        root.children = lambda recursive: others if recursive else []
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
        monkeypatch.setattr(psutil, "Process", lambda root_id: root)

    return at


def test_bystanders_are_who_descends_from_another_process(system, monkeypatch):
    """Load of processes that do not descend from ours is foreign.

    90 s are used: 30 by us, 10 by our new grandchild. Virtual machines of ours do not count twice.
    """
    monkeypatch.setattr(machine, "pinned_cores", lambda: None)
    system([(0, 0)], [0, 0])
    others = machine.OtherProcesses(7)
    system([(90, 10)], [30, None, 10])
    np.testing.assert_allclose(others.busy(), 0.5)


def test_bystanders_on_other_cores_do_not_count(system):
    """Foreign load on other cores is ignored.

    On our cores 10 of 20 used seconds are foreign.
    """
    system([(0, 0)] * 4, [0])
    others = machine.OtherProcesses(7, [0, 1])
    system([(15, 5), (5, 15), (20, 0), (20, 0)], [10])
    np.testing.assert_allclose(others.busy(), 0.25)


def test_bystanders_of_a_system_that_does_not_tell_are_unknown(monkeypatch):
    """Without figures of the system the foreign load is unknown."""

    def cpu_times(percpu):
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    assert machine.OtherProcesses(os.getpid()).busy() is None


def test_own_child_is_no_bystander():
    """A busy child of ours is not foreign, even after it has ended."""
    busy = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    before = machine.OtherProcesses()._read()
    subprocess.run([sys.executable, "-c", busy], check=True)
    after = machine.OtherProcesses()._read()
    assert after[2] - before[2] >= 0.2
