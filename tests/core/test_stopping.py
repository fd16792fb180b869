"""Signals that stop commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import by_day
from warpdrive_min.stopping import NOTHING_SAVED, SIGNALS, is_starting

ROOT = Path(__file__).parents[2]
# Simulate a slow import, then a slow command, without imports that take seconds.
LIGHT = """
import os, pathlib, sys, tempfile, time, types
root = pathlib.Path(sys.argv[1])
sys.modules["warpdrive_min"] = package = types.ModuleType("warpdrive_min")
package.__path__ = [str(root / "warpdrive_min")]
from warpdrive_min import processes, stopping
"""
PROGRAM = f"""{LIGHT}
def wait():
    print(stage, flush=True)
    for _ in range(600):  # as work does: one long sleep may miss a signal just before it
        time.sleep(0.1)

stage = sys.argv[2]
tempfile.tempdir = "."
stopping.end_at_once()
if stage == "importing":
    wait()
with stopping.stoppable(), stopping.clean_up_on_signal():
    try:
        tempfile.mkdtemp()
        if stage == "in a child":
            stage = "running"
            processes.run(["sh", "-c", "echo in a child; sleep 60"], stdout=None)
        wait()
    except stopping.Stopped as stop:
        if stage == "in a library":  # in C, which may make another error of what is raised within it
            raise ValueError("matrix")
        os.kill(os.getpid(), stop.number)  # impatient people
        stopping.set_saved_work_report(lambda: "this much is saved")
        if stage == "too late":
            stopping.threading.Timer(0.1, stopping._end_late, (stop.number,)).start()
            wait()
        if stage == "done all the same":
            raise SystemExit(0)
        raise
"""
STAGES = ["importing", "running", "in a library", "in a child", "too late", "done all the same", "rank"]


def _started(stage: str, folder: Path, **options: object) -> subprocess.Popen:
    words = [sys.executable, "-S", "-c", PROGRAM, str(ROOT), stage]
    command = subprocess.Popen(words, cwd=folder, stdout=-1, stderr=-1, text=True, **options)
    assert command.stdout is not None
    assert command.stdout.readline() == f"{stage}\n"
    return command


ENDED = [(stage, number) for stage in STAGES for number in SIGNALS]
BY_DAY = [(stage, number) for stage, number in ENDED if stage == "running" or number == signal.SIGTERM]


@pytest.mark.parametrize(("stage", "number"), by_day(ENDED, BY_DAY))
def test_signal_ends_a_command_with_a_line(stage, number, tmp_path):
    """A signal ends a command with clean-up and one line.

    The exit code is a shell's; a rank leaves the line to its launcher.
    """
    rank = dict.fromkeys(["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"], "1")
    with _started(stage, tmp_path, env={**os.environ, **(rank if stage == "rank" else {})}) as command:
        command.send_signal(number)
        _, said = command.communicate(timeout=30)
    is_killed = stage == "rank" and number == signal.SIGTERM
    is_done = stage == "done all the same"
    assert command.returncode == (-number if is_killed else 0 if is_done else 128 + number)
    saved = NOTHING_SAVED if stage in ("importing", "in a library") else "this much is saved"
    says_nothing = stage == "rank" or is_done
    assert said == ("" if says_nothing else f"stopped by {signal.Signals(number).name}: {saved}\n")
    assert is_killed or list(tmp_path.iterdir()) == []


def test_command_without_a_temporary_folder_ends_with_a_line(tmp_path):
    """Without a temporary folder, a command ends with one line.

    No file may have a byte, as on a full disk; the exit code is the command's.
    """
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    begin = "with stopping.stoppable(), stopping.clean_up_on_signal(5):\n    print('reached')"
    words = [sys.executable, "-S", "-c", f"{LIGHT}{limit}\n{begin}", str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("temporary files: must have a folder that can be written (got No usable temporary directory")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_ignored_signal_stays_ignored(number, tmp_path):
    """A signal that was ignored at start stays ignored.

    Examples are `nohup`, and Ctrl-C in a script's background.
    """
    before = signal.signal(number, signal.SIG_IGN)
    try:
        command = _started("running", tmp_path)
    finally:
        signal.signal(number, before)
    with command:
        command.send_signal(number)
        command.terminate()
        _, said = command.communicate(timeout=30)
    assert said == "stopped by SIGTERM: this much is saved\n"


@pytest.mark.parametrize(
    ("words", "is_ours"),
    [
        (["-m", "warpdrive_min", "train"], True),
        (["-X", "dev", "-Im", "bench", "run"], True),
        (["-m", "mine", "bench"], False),
        (["-m", "warpdrive_min.compat", "script.py"], False),
    ],
)
def test_other_programs_keep_their_handlers(words, is_ours, monkeypatch):
    """Only our own commands set signal handlers on import."""
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words])
    monkeypatch.setattr(sys, "argv", ["-m", *words[2:]])
    assert is_starting() is is_ours
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert not is_starting()


@pytest.mark.parametrize("code", ["None", "3", "'message'"])
def test_quick_exit_skips_only_the_shutdown_of_libraries(code, tmp_path):
    """Threads, functions of `atexit` and buffers end; the exit code stays."""
    program = f"""{LIGHT}
import atexit, threading

class Library:
    def __del__(self):
        os.write(1, b"shut down")

library = Library()
with stopping.quick_exit():
    atexit.register(print, "atexit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    sys.exit({code})
"""
    words = [sys.executable, "-S", "-c", program, str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    is_message = code == "'message'"  # the interpreter prints it
    assert done.stdout == "thread\natexit\n"
    assert (done.returncode, done.stderr) == ((1, "message\n") if is_message else (int(eval(code) or 0), ""))


def test_quick_exit_prints_an_error_once(tmp_path):
    """An error is printed before the end, while threads of libraries may still run."""
    program = f"""{LIGHT}
import threading

with stopping.quick_exit():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    raise ValueError("planted")
"""
    words = [sys.executable, "-S", "-c", program, str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("ValueError: planted")) == (1, 1)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_quick_exit_without_streams(closed, tmp_path):
    """A stream that the shell has closed is not flushed; the exit code stays."""
    program = f"{LIGHT}\nwith stopping.quick_exit():\n    sys.exit(3)"
    words = ["sh", "-c", f'"$0" "$@" {closed}', sys.executable, "-S", "-c", program, str(ROOT)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
