"""Stopped commands keep finished work and can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.process.stopping import saved_text
from tests.bench.attack import ROOT, Attack
from tests.support import by_night
from warpdrive_min.stopping import NOTHING_SAVED, SIGNALS

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.parametrize(
    ("given", "words", "says"),
    [
        (["run"], ("--resume", "X"), "saved 2 records in FILE; `python -m bench run --resume X` continues"),
        (
            ["run", "--resume=X"],
            ("--resume", "X"),
            "saved 2 records in FILE; `python -m bench run --resume=X` continues",
        ),
        (["publish", "--out", "a b"], (), "saved 2 records in FILE; `python -m bench publish --out 'a b'` continues"),
        (["reproduce", "X"], None, "saved 2 records in FILE; `python -m bench reproduce X` starts again"),
        (["list"], "nothing", "nothing was saved; `python -m bench list` starts again"),
    ],
)
def test_line_says_what_is_kept_and_how_to_go_on(given, words, says, tmp_path, monkeypatch):
    """The last message counts saved lines and explains resuming."""
    file = tmp_path / "records.jsonl"
    monkeypatch.setattr(sys, "argv", ["bench", *given])
    outputs = () if words == "nothing" else ([file, tmp_path / "none.jsonl"], words)
    assert "nothing was saved" in saved_text(*outputs)
    file.write_text('{}\n{}\n{"cut')
    assert saved_text(*outputs) == says.replace("FILE", str(file))


@linux
@pytest.mark.parametrize("number", [SIGNALS[0], *map(by_night, SIGNALS[1:])])
def test_command_is_stopped_while_it_imports(number, tmp_path):
    """A command that is stopped during imports prints no traceback."""
    attack = Attack(tmp_path, ["run", "--help"])
    pid = attack.start()
    attack.wait_for(lambda: b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes())
    os.kill(pid, number)
    assert attack.exit_code(pid) == 128 + number
    assert (tmp_path / "errors").read_text() == f"stopped by {signal.Signals(number).name}: {NOTHING_SAVED}\n"


@linux
def test_commands_that_are_killed_and_stopped_lose_and_leave_nothing():
    """Stopped sweeps and trainings resume and finish all points."""
    commands = {"run": 3, "train": 30}
    assert {each["command"]: each["records"] for each in _attacked(2, *commands)} == commands


@linux
@pytest.mark.nightly
@pytest.mark.parametrize(
    "command", ["run", "run-at-once", "publish", "publish-points", "train", "train-ddpg", "train-ranks"]
)
def test_commands_that_are_killed_fifty_times_lose_nothing(command):
    """Commands that are killed fifty times lose nothing.

    Training ends with an undisturbed run's bits.
    """
    (attacked,) = _attacked(50, command)
    assert sum(attacked["ended_by"].values()) == 50


def _attacked(n: int, *commands: str) -> list[dict]:
    signals = ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP")
    with tempfile.TemporaryDirectory() as folder:  # not pytest's: paths of sockets must be short
        attack = [sys.executable, "-m", "tests.bench.attack", "--forked", folder, str(n), *signals]
        done = subprocess.run([*attack, "--", *commands], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
