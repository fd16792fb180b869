"""The fingerprint of machine, code and packages."""

from __future__ import annotations

import getpass
import json
import os
import platform

import numpy as np
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


def test_git_state_sees_changes_of_the_code(tmp_path, monkeypatch):
    """A change of the code adds a hash to the commit."""
    monkeypatch.delenv("BENCH_GIT_SHA", raising=False)
    assert machine.git_state(tmp_path)["sha"] is None
    assert "not a git repository" in machine.git_state(tmp_path)["unread"]
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.py").write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = machine.git_state(tmp_path)
    assert len(clean["sha"]) == 40
    assert (clean["dirty"], clean["diff_hash"]) == (False, None)
    (tmp_path / "notes.txt").write_text("no code\n")
    assert machine.git_state(tmp_path) == clean
    (tmp_path / "bench" / "a.py").write_text("2\n")
    first = machine.git_state(tmp_path)
    assert first["dirty"] is True
    (tmp_path / "bench" / "a.py").write_text("3\n")
    assert machine.git_state(tmp_path)["diff_hash"] != first["diff_hash"]


def test_git_state_takes_no_lock(tmp_path):
    """Reading the Git state does not write the index.

    A kill during the write would leave a lock.
    """
    (tmp_path / "bench").mkdir()
    (file := tmp_path / "bench" / "a.py").write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    os.utime(file, (1, 1))
    index = (tmp_path / ".git" / "index").read_bytes()
    assert machine.git_state(tmp_path)["dirty"] is False
    assert (tmp_path / ".git" / "index").read_bytes() == index
    git(tmp_path, "status")
    assert (tmp_path / ".git" / "index").read_bytes() != index, "otherwise it would have"


def test_copy_without_git_may_name_its_commit(tmp_path, monkeypatch):
    """$BENCH_GIT_SHA names the commit of a copy without Git."""
    monkeypatch.setenv("BENCH_GIT_SHA", "abc")
    got = machine.git_state(tmp_path)
    assert got["sha"] == "abc"
    assert got["dirty"] is None
    assert "$BENCH_GIT_SHA" in got["unread"]


def test_named_commit_goes_before_that_of_another_checkout(tmp_path, monkeypatch):
    """$BENCH_GIT_SHA precedes the commit of an outer checkout.

    The copy may lie in another project.
    """
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.py").touch()
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "other")
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


def ticks(proc, idle, **processes):
    """Write fake /proc files with CPU ticks.

    One core has 100 ticks, ``idle`` of them unused; ``processes`` are parent and ticks.
    """
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {100 - idle} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1\n")
    for name, (parent, used) in processes.items():
        folder = proc / name.removeprefix("p")
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{folder.name} (a) b) S {parent} {'0 ' * 9}{used} 0 0 0 20 0\n")


def test_bystanders_are_who_descends_from_another_process(tmp_path, monkeypatch):
    """Load of processes that do not descend from ours is foreign.

    90 ticks are used: 30 by us, 10 by our new grandchild.
    """
    proc = tmp_path / "proc"
    ticks(proc, 100, p1=(0, 0), p7=(1, 0), p8=(1, 0))
    (proc / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr(machine, "pinned_cores", lambda: None)
    others = machine.OtherProcesses(7, proc)
    (proc / "8" / "stat").unlink()
    ticks(proc, 10, p7=(1, 30), p9=(7, 0), p10=(9, 10), p11=(1, 50))
    np.testing.assert_allclose(others.busy(), 0.5)


def test_bystanders_on_other_cores_do_not_count(tmp_path):
    """Foreign load on other cores is ignored.

    On our cores 10 of 20 used ticks are foreign.
    """
    proc = tmp_path / "proc"
    ticks(proc, 0, p7=(1, 0))
    row = "cpu{} {} 0 0 {} 0 0 0 0 0 0\n"
    (proc / "stat").write_text("".join(row.format(core, 0, 0) for core in ("", 0, 1, 2, 3)))
    others = machine.OtherProcesses(7, proc, [0, 1])
    ticks(proc, 0, p7=(1, 10))
    used = {"": 60, 0: 15, 1: 5, 2: 20, 3: 20}
    (proc / "stat").write_text(
        "".join(row.format(core, n, 80 - n if core == "" else 20 - n) for core, n in used.items())
    )
    np.testing.assert_allclose(others.busy(), 0.25)


def test_bystanders_of_a_system_that_does_not_tell_are_unknown(tmp_path):
    """Without /proc the foreign load is unknown."""
    assert machine.OtherProcesses(7, tmp_path).busy() is None
