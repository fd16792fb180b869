"""Processes end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warpdrive_min import processes

PARENT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
import processes
code = "import time; print('here', flush=True); time.sleep(60)"
words = processes.tied([sys.executable, "-S", "-c", code])
if sys.argv[2] == "watch":  # as on systems that tie no process
    watch = "import os, sys; sys.path.insert(0, sys.argv[1]); sys.platform = 'another'; import processes; "
    words = [sys.executable, "-S", "-c", watch + "processes.end_with_parent(os.getppid()); " + code, sys.argv[1]]
child = subprocess.Popen(words)
print(child.pid, flush=True)
child.wait()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ties a process to its parent")


@pytest.mark.parametrize("how", [pytest.param("tied", marks=linux), "watch"])
def test_program_is_killed_when_its_parent_is(how):
    """It shares its parent's output, which comes to its end; by the system, or by a thread that looks."""
    folder = str(Path(processes.__file__).parent)
    parent = subprocess.Popen([sys.executable, "-S", "-c", PARENT, folder, how], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        said = {parent.stdout.readline().strip() for _ in range(2)}
        (pid,) = said - {"here"}
        os.kill(int(pid), 0)
        parent.kill()
        began = time.monotonic()
        assert parent.stdout.read() == ""
    assert time.monotonic() - began < 10


@linux
def test_program_does_not_start_when_its_parent_has_ended():
    """The parent that it is told of is not the one that it has."""
    words = [sys.executable, "-I", "-S", processes.__file__, "1", sys.executable, "-c", "print('here')"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_tied_program_is_the_same_process_with_its_own_arguments():
    """The words are not changed on the way, and the exit code is the program's."""
    code = "import os, sys; print(os.getpid(), *sys.argv[1:]); sys.exit(7)"
    child = subprocess.Popen(
        processes.tied([sys.executable, "-S", "-c", code, "a b", "-c"]), stdout=subprocess.PIPE, text=True
    )
    said, _ = child.communicate()
    assert (said, child.returncode) == (f"{child.pid} a b -c\n", 7)


@pytest.mark.parametrize(("name", "kind"), [("none-such", FileNotFoundError), ("text", PermissionError)])
def test_program_that_cannot_start_is_refused(name, kind, tmp_path):
    """The error names the file, as `subprocess` does."""
    (tmp_path / "text").write_text("no program")
    with pytest.raises(kind, match=name):
        processes.tied([str(tmp_path / name)])
