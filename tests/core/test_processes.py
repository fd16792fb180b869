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
from warpdrive_min.backends import numba_server

ROOT = Path(processes.__file__).parents[1]

PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
import processes, subprocess
watch = "import os, sys; sys.path.insert(0, sys.argv[1]); sys.platform = 'another'; import processes; "
code = "import time; print('here', flush=True); time.sleep(60)"
# As compilers do, and daemons.
tree = "sleep 60 & setsid sh -c 'sleep 60 & echo here; sleep 60' & sleep 60"
if sys.argv[2] == "tied":
    child = subprocess.Popen(processes.tied_to_parent([sys.executable, "-S", "-c", code]))
elif sys.argv[2] == "watch":  # as on systems that tie no process
    watch += "processes.end_with_parent(os.getppid()); " + code
    child = subprocess.Popen([sys.executable, "-S", "-c", watch, sys.argv[1]])
else:
    child = processes.Child(["sh", "-c", tree])
try:
    child.wait(60)
finally:
    processes.kill_all()
    processes.end_children()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ties a process to its parent")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
@pytest.mark.parametrize("how", [pytest.param("tied", marks=linux), "watch", pytest.param("child", marks=linux)])
def test_program_ends_with_its_parent(how, number):
    """A program ends with its parent, and a `Child` with its descendants."""
    folder = str(Path(processes.__file__).parent)
    words = [sys.executable, "-S", "-c", PARENT, folder, how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "here\n"
        parent.send_signal(number)
        began = time.monotonic()
        assert parent.stdout.read() == ""
    assert time.monotonic() - began < 10


@linux
@pytest.mark.parametrize("mode", ["guard", "tie"])
def test_program_does_not_start_when_its_parent_has_ended(mode):
    """A program does not start after its parent has ended."""
    words = [sys.executable, "-I", "-S", processes.__file__, mode, "1", sys.executable, "-c", "print('here')"]
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_signal_to_a_tied_program_waits_until_that_is_ready():
    """A signal waits until a tied program is ready.

    An interpreter that gets SIGINT while it starts would end with a traceback.
    """
    code = "import signal; signal.signal(2, signal.SIG_DFL); signal.pthread_sigmask(signal.SIG_UNBLOCK, [2]); input()"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = subprocess.Popen(
        processes.tied_to_parent([sys.executable, "-S", "-c", code]), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (-signal.SIGINT, b"")


def test_tied_program_is_the_same_process_with_its_own_arguments():
    """A tied program keeps its process, arguments and exit code."""
    code = "import os, sys; print(os.getpid(), *sys.argv[1:]); sys.exit(7)"
    child = subprocess.Popen(
        processes.tied_to_parent([sys.executable, "-S", "-c", code, "a b", "-c"]), stdout=subprocess.PIPE, text=True
    )
    said, _ = child.communicate()
    assert (said, child.returncode) == (f"{child.pid} a b -c\n", 7)


@pytest.mark.parametrize(
    ("script", "code", "output", "errors"),
    [
        ("echo out; echo err >&2; exit 7", 7, "out\n", "err\n"),
        ("kill -SEGV $$", -signal.SIGSEGV, "", ""),
        ("kill -KILL $$", -signal.SIGKILL, "", ""),
        ("printf '\\351'", 0, "\ufffd", ""),
        ("sleep 60 & exit 3", 3, "", ""),
    ],
    ids=["code", "signal", "killed", "not UTF-8", "a child that is left"],
)
def test_run_returns_how_a_program_ended_and_what_it_said(script, code, output, errors):
    """`run` returns exit code and output, and kills leftover processes."""
    done = processes.run(["sh", "-c", script])
    assert (done.returncode, done.stdout, done.stderr) == (code, output, errors)
    if code:
        with pytest.raises(subprocess.CalledProcessError):
            processes.run(["sh", "-c", script], check=True)


@linux
def test_run_that_takes_too_long_leaves_nothing(tmp_path):
    """A timeout kills all descendants, and the error names the program."""
    with pytest.raises(subprocess.TimeoutExpired, match=r"Command '\['sh'"):
        processes.run(["sh", "-c", f"sleep 60 & setsid sleep 60 & echo $! > {tmp_path}/pid; wait"], timeout=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(("name", "kind"), [("none-such", FileNotFoundError), ("text", PermissionError)])
@pytest.mark.parametrize("start", [processes.tied_to_parent, processes.run])
def test_program_that_cannot_start_is_refused(start, name, kind, tmp_path):
    """The error of a program that cannot start names the file."""
    (tmp_path / "text").write_text("no program")
    with pytest.raises(kind, match=name):
        start([str(tmp_path / name)])


def test_all_programs_are_started_by_one_module():
    """Only one module of the project starts processes.

    A kill would leave the processes of others. The fork server of Numba is such a process, and ends its own. Adapters
    of peers have no package of ours; the program of rl-tools takes a second.
    """
    allowed = {
        Path(processes.__file__),
        Path(numba_server.__file__).with_name("numba_worker.py"),
        ROOT / "bench/peers/adapters/rl_tools.py",
    }
    others = [
        f"{path.relative_to(ROOT)}: {word}"
        for folder in ("warpdrive_min", "envs", "bench")
        for path in (ROOT / folder).rglob("*.py")
        for word in ("subprocess.run(", "Popen(", "check_output(", "check_call(", "os.system(", "os.fork(", "os.spawn")
        if word in path.read_text() and path not in allowed
    ]
    assert others == []
