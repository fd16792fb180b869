"""Ctrl-C and SIGTERM in commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# As in a package whose import takes long, and then a command that does; without what takes seconds to import.
PROGRAM = """
import os, pathlib, sys, tempfile, time, types
root = pathlib.Path(sys.argv[1])
sys.modules["warpdrive_min"] = package = types.ModuleType("warpdrive_min")
package.__path__ = [str(root / "warpdrive_min")]
from warpdrive_min import stopping

def wait():
    print(stage, flush=True)
    for _ in range(600):  # as work does: one long sleep may miss a signal just before it
        time.sleep(0.1)

stage = sys.argv[2]
stopping.end_at_once()
if stage == "importing":
    wait()
with stopping.stoppable():
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            wait()
    except stopping.Stopped as stop:
        if stage == "in a library":  # in C, which may make another error of what is raised within it
            raise ValueError("matrix")
        os.kill(os.getpid(), stop.number)  # impatient people
        stop.kept = "this much is kept"
        raise
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stage", ["importing", "running", "in a library", "rank"])
def test_signal_ends_a_command_with_a_line(stage, number, tmp_path):
    """It exits as a shell has it, and cleans up; a rank leaves the line to its launcher, and is killed by SIGTERM."""
    rank = dict.fromkeys(["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"], "1")
    environment = {**os.environ, **(rank if stage == "rank" else {})}
    words = [sys.executable, "-S", "-c", PROGRAM, str(ROOT), stage]
    with subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=-1, stderr=-1, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == f"{stage}\n"
        command.send_signal(number)
        _, said = command.communicate(timeout=30)
    is_killed = stage == "rank" and number == signal.SIGTERM
    assert command.returncode == (-number if is_killed else 128 + number)
    kept = "this much is kept" if stage == "running" else "nothing is kept of this command; the same one starts again"
    assert said == ("" if stage == "rank" else f"stopped by {signal.Signals(number).name}: {kept}\n")
    assert is_killed or list(tmp_path.iterdir()) == []
