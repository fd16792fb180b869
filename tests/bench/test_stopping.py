"""Commands that are killed or stopped lose nothing that was finished, say how to go on, and leave nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from bench.stopping import Kept
from tests.bench.attack import ROOT, Attack

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
STOPPED = "stopped by SIGTERM: nothing was finished; `python -m bench run` starts again\n"


@pytest.mark.parametrize(
    ("given", "words", "says"),
    [
        (["run"], ("--resume", "X"), "kept 2 records in FILE; `python -m bench run --resume X` goes on"),
        (["run", "--resume=X"], ("--resume", "X"), "kept 2 records in FILE; `python -m bench run --resume=X` goes on"),
        (["publish", "--out", "a b"], (), "kept 2 records in FILE; `python -m bench publish --out 'a b'` goes on"),
        (["reproduce", "X"], None, "kept 2 records in FILE; `python -m bench reproduce X` starts again"),
        (["list"], "nothing", "nothing was finished; `python -m bench list` starts again"),
    ],
)
def test_line_says_what_is_kept_and_how_to_go_on(given, words, says, tmp_path, monkeypatch):
    """Whole lines are counted; a command that goes on as it is gets no more words."""
    file = tmp_path / "records.jsonl"
    monkeypatch.setattr(sys, "argv", ["bench", *given])
    kept = Kept() if words == "nothing" else Kept([file, tmp_path / "none.jsonl"], words)
    assert "nothing was finished" in kept.line(signal.SIGINT)
    file.write_text('{}\n{}\n{"cut')
    assert kept.line(signal.SIGTERM) == f"stopped by SIGTERM: {says.replace('FILE', str(file))}"


def _stoppable(body: str) -> subprocess.CompletedProcess:
    """Run `body`, lines of Python, in a process as a command that takes at most 0.3 s to unwind."""
    code = (
        "import os, signal, sys, time; from bench import stopping\n"
        "stopping.ENDING_S = 0.3; sys.argv = ['bench', 'run']\n"
        "from types import SimpleNamespace as Module\n"  # the real one would bring torch along
        "sys.modules['warpdrive_min'] = Module()\n"
        "sys.modules['warpdrive_min.stopping'] = Module(Stopped=lambda number: SystemExit(128 + number))\n"
        "with stopping.stoppable():\n"
        "    stopping._on_signals(stopping._unwind)\n"
    )
    code += textwrap.indent(body, "    ")
    return subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)


def test_second_signal_does_not_disturb_the_end_that_a_deadline_bounds():
    """Who catches the first one, or takes too long over it, is ended all the same, after one line."""
    done = _stoppable(
        "try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "except BaseException as stopped: print(type(stopped).__name__, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "SystemExit\n", STOPPED)


@pytest.mark.parametrize(
    ("turned", "code"), [("ValueError('matrix')", 143), ("SystemExit('no figure')", 143), ("SystemExit(0)", 0)]
)
def test_signal_that_a_library_makes_another_error_of_is_still_a_signal(turned, code):
    """Compiled code may replace what a handler raised; a command that ends well all the same has its own code."""
    done = _stoppable(f"try: os.kill(os.getpid(), signal.SIGTERM)\nexcept SystemExit: raise {turned} from None\n")
    assert (done.returncode, done.stderr) == (code, STOPPED if code else "")


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_is_stopped_while_it_imports(number, tmp_path):
    """There is nothing to clean up, and no traceback of an import."""
    attack = Attack(tmp_path, ["list"])
    pid = attack.start()
    attack.wait_for(lambda: b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes())
    os.kill(pid, number)
    assert attack.exit_code(pid) == 128 + number
    says = f"stopped by {signal.Signals(number).name}: nothing was finished; `python -m bench list` starts again\n"
    assert (tmp_path / "errors").read_text() == says


@linux
def test_commands_that_are_killed_and_stopped_lose_and_leave_nothing():
    """Sweeps and a set: each goes on where the attack before left it, and ends with all of its points."""
    signals = ("SIGKILL", "SIGINT", "SIGTERM")
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, for paths of sockets must be short
        attack = [sys.executable, "-m", "tests.bench.attack", "--forked", folder, "3", *signals]
        commands = {"run": 3, "run-at-once": 3, "publish-points": 2}
        done = subprocess.run([*attack, "--", *commands], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    attacked = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["command"]: each["records"] for each in attacked} == commands
