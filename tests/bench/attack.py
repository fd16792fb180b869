"""Kills and stops commands of the bench at random moments, each going on where the last one got to.

``python -m tests.bench.attack FOLDER N SIGNAL... -- COMMAND...`` attacks each command N times, with the signals in
turn, lets it go on each time and in the end finish, and prints at how many records each attack came; what is wrong ends
it. With ``--forked`` commands are copies of one process that has imported everything, which costs less.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.stopping import tidy
from warpdrive_min.files import UNFINISHED
from warpdrive_min.stopping import PREFIX, stoppable

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ("--preset", "smoke", "--case", "env_step", "--where", "env=cartpole")
COMMANDS = {
    "run": ["run", *CARTPOLE, "--out", "{out}"],
    "run-at-once": ["run", *CARTPOLE, "--at-once", "2", "--out", "{out}", "--no-plot"],
    "publish": ["publish", "--preset", "smoke", "--out", "{out}"],
    "publish-points": ["publish", "--preset", "smoke", "--skip", "pairs", "--out", "{out}"],
    "compare": ["compare", "--axis", "backend=cpu,host", *CARTPOLE, "--out", "{out}"],
    "revisions": ["compare", "HEAD", ".", *CARTPOLE, "--where", "backend=cpu", "--out", "{out}"],
    "calibrate": ["calibrate", *CARTPOLE, "--rounds", "2", "--out", "{out}", "--records", "{out}"],
    "peers": ["peers", "--preset", "smoke", "--peer", "gymnasium", "--out", "{out}"],
    "startup": ["run", "--preset", "smoke", "--case", "startup", "--out", "{out}"],
    "scaling": ["run", "--preset", "smoke", "--case", "scaling", "--out", "{out}"],
    "learn": ["run", "--preset", "smoke", "--case", "learn", "--out", "{out}"],
}
"""Commands with few small points, by a name."""
MARK = "ATTACKED_IN"
"""Variable of the environment by which all processes of a command are known."""
GONE_S = 10.0
"""Longest time that a process may outlive the command that started it, s."""


# ------------------------------------------------------------------ the command


def bench(words: Sequence[str]) -> None:
    """Be ``python -m bench WORDS``, where the doctor is content and a set has few points and no peers.

    Of points at once the CPU passes for a GPU, so that they get processes of their own.
    """
    sys.argv = ["bench", *words]
    with stoppable():
        from bench import cli, doctor, publish, sweep, worker

        doctor.examine = list
        publish.chosen = lambda *_: []
        publish.is_claimed = lambda *_: True
        jobs = sweep.jobs("smoke", ["case=env_step", "env=cartpole", "backend=cpu", "backend=host"])
        case, pairs = jobs[0].case, [(jobs[0].point, jobs[-1].point), (jobs[1].point, jobs[-1].point)]
        if "--at-once" in words:
            worker.is_on_gpu = lambda job: True
        if words[0] == "publish":
            sweep.jobs = lambda *_: jobs
            publish.CASES = {case.name: replace(case, pairs=lambda preset: pairs)}
        with tidy():
            cli.app()


# ------------------------------------------------------------------ the attack


@dataclass
class Attack:
    """A command that is attacked, in a folder of its own."""

    folder: Path
    words: list[str]
    forked: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(os.environ.get("SEED", 0)))
    ends: list[set[tuple[str, str]]] = field(default_factory=list)
    """Points of each time that it came to its end, after which it begins anew."""
    work_s: float = 3.0
    """Time from the first temporary file to the end, s; a guess, until a command has come to its end."""

    def __post_init__(self) -> None:
        self.out, self.temporary = self.folder / "out", self.folder / "tmp"
        for each in (self.out, self.temporary / f"{PREFIX}abcdefgh" / "of a killed one"):
            each.mkdir(parents=True)
        self.words = [word.format(out=self.out) for word in self.words]

    def start(self) -> int:
        """Start the command, going on where the last one was; returns the process."""
        run_ids = {re.sub(r"(-again)?(-[ab])?$", "", file.stem) for file in self.out.glob("20*.jsonl")}
        run_ids -= {each for each in run_ids if each.endswith("-comparisons")}
        resume = ["--resume", *run_ids] if run_ids and self.words[0] != "publish" else []
        words = [*self.words, *resume]
        self.left = set(self.temporary.iterdir())
        own = {MARK: str(self.folder), "TMPDIR": str(self.temporary), "BENCH_GIT_SHA": "0" * 40}
        with (self.folder / "said").open("w") as said, (self.folder / "errors").open("w") as errors:
            if not self.forked:
                is_changed = self.words[0] == "publish" or "--at-once" in self.words
                start = ["-m", "tests.bench.attack", "bench"] if is_changed else ["-m", "bench"]
                self.process = subprocess.Popen(
                    [sys.executable, *start, *words],
                    cwd=ROOT,
                    env=os.environ | own,
                    stdout=said,
                    stderr=errors,
                    start_new_session=True,
                )
                return self.process.pid
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.dup2(said.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.environ.update(own)
                run_forked(lambda: bench(words))
            return pid

    def attack(self, number: int, moment: str = "") -> int:
        """Start the command, send a signal at a moment, and look at what is left; returns how many records there are.

        SIGINT goes to the whole group, as a terminal sends it, and now and then to the process alone.
        """
        before, unfinished = self.records(), self.unfinished()
        pid = self.start()
        moment = moment or self.chance.choice(["start", "work", "work", "work"])
        if moment == "start":
            time.sleep(self.chance.uniform(0.3, 3.0) if not self.forked else self.chance.uniform(0.02, 0.1))
        else:
            self.wait_for(lambda: self.has_begun() or ended(pid))
            time.sleep(self.chance.uniform(0.0, self.work_s))
        to_all = number == signal.SIGINT and self.chance.random() < 0.7
        was_done = ended(pid)
        if not was_done:
            (os.killpg if to_all else os.kill)(pid, number)
        began = time.monotonic()
        code, errors = self.exit_code(pid), (self.folder / "errors").read_text()
        took = time.monotonic() - began
        which = f"{signal.Signals(number).name}{' to all' * to_all} {'at the ' + moment} of {self.words}, {took:.1f} s"
        self.wait_for(lambda: not self.processes(), which)
        said = (self.folder / "said").read_text()
        if number == signal.SIGKILL and code == -number:
            assert "Traceback" not in errors, f"{which}: {errors}"
        elif code != 0:
            assert code == 128 + number, f"{which}: exit code {code}; {errors} {said[-300:]}"
            assert re.fullmatch(r"stopped by SIG[A-Z]+: .*\n", errors), f"{which}: {errors}"
            if moment != "start":
                assert not list(self.temporary.rglob("*")), f"{which}: left {list(self.temporary.rglob('*'))}"
            assert self.unfinished() <= unfinished, f"{which}: left {self.unfinished() - unfinished}"
            told = sum(map(int, re.findall(r"(\d+) records? in ", errors)))
            assert told in (0, self.records()), f"{which}: {self.records()} records; {errors}"
        if code == 0:  # it was faster, and has come to its end
            self.ends.append(self.points())
            shutil.rmtree(self.out)
            return 0
        records = self.records()
        assert records >= before + announced(said), f"{which}: {records} records, {before} before; it said {said}"
        return records

    def finish(self) -> int:
        """Let the command go on to its end; returns how many records there are."""
        pid = self.start()
        self.wait_for(lambda: self.has_begun() or ended(pid))
        began = time.monotonic()
        code = self.exit_code(pid)
        self.work_s = max(0.5, time.monotonic() - began)
        said, errors = ((self.folder / each).read_text() for each in ("said", "errors"))
        assert code == 0, f"{self.words}: exit code {code}; {said[-2000:]} {errors}"
        assert not errors, errors
        self.wait_for(lambda: not self.processes(), "end")
        left = [*self.temporary.rglob("*"), *self.unfinished()]
        assert not left, f"{self.words}: left {left}"
        worktrees = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
        assert str(self.folder) not in worktrees, worktrees
        return self.records()

    def has_begun(self) -> bool:
        """Return whether the command is past its imports, and has a folder for temporary files."""
        return bool(set(self.temporary.iterdir()) - self.left)

    def exit_code(self, pid: int) -> int:
        """Wait for the end of a process; returns its exit code, of a signal the negative number."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not self.forked:
            self.process.returncode = code
        return code

    def records(self) -> int:
        """Return the number of records, each of which is whole or the last one of its file."""
        return sum(
            file.read_bytes().count(b"\n") for file in self.out.rglob("*.jsonl") if "comparisons" not in file.name
        )

    def points(self) -> set[tuple[str, str]]:
        """Return the side, if any, and the point of each record, all of which must be right and whole."""
        from bench.record import read_all

        files = [file for file in self.out.rglob("*.jsonl") if "comparisons" not in file.name]
        records = read_all(files)
        assert all(record.status == "ok" for record in records), [record.reason for record in records]
        sides = (re.search("(-[0-9])?-[ab]$", record.run_id) for record in records)
        return {
            (side[0] if side else "", json.dumps(record.point)) for side, record in zip(sides, records, strict=True)
        }

    def unfinished(self) -> set[Path]:
        """Return what was being written."""
        return set(self.out.rglob(f"{UNFINISHED}*"))

    def processes(self) -> list[str]:
        """Return the processes of the command that there are."""
        mark, found = f"{MARK}={self.folder}\0".encode(), []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (each / "environ").read_bytes():
                    found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
        return found

    def wait_for(self, condition: Callable[[], bool], of: str = "", limit_s: float = 120.0) -> None:
        """Wait for a condition; for one of what is left only as long as that may take."""
        end_s = time.monotonic() + (GONE_S if of else limit_s)
        while not condition():
            assert time.monotonic() < end_s, f"{of}: {self.processes()}"
            time.sleep(0.01)


def announced(said: str) -> int:
    """Return how many records a command has said to have kept."""
    points = re.findall(r"^(?:.*sweep: )?\d+/\d+ .*: ok", said, re.MULTILINE)
    pairs = re.findall(r"pairs: \d+/\d+ .*: \d", said)
    begun = re.findall(r"^\d+/\d+ [^:]*$", said, re.MULTILINE)  # a pair is kept when the next one begins
    return len(points) + 2 * len(pairs) + 2 * max(0, len(begun) - 1)


def ended(pid: int) -> bool:
    """Return whether a child has ended, and leave its exit code to be asked for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def run_forked(work: Callable[[], None]) -> None:
    """Do something as a process would, and end it."""
    code = 1
    try:
        work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def main(folder: Path, n: int, numbers: Sequence[int], names: Sequence[str], *, forked: bool = False) -> None:
    """Attack the named commands one after the other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and hands that on
    if forked:
        import torch

        import bench.cli  # noqa: F401

        torch.set_num_threads(1)  # threads do not live through a fork
    for name in names:
        whole = Attack(folder / f"{name}-whole", COMMANDS[name], forked)
        whole.finish()
        attacked = Attack(folder / name, COMMANDS[name], forked, work_s=whole.work_s)
        kept = [attacked.attack(numbers[index % len(numbers)]) for index in range(n)]
        attacked.finish()
        ends = [*attacked.ends, attacked.points()]
        assert all(end == whole.points() for end in ends), f"{name}: {ends} {whole.points()}"
        said = {"command": name, "records_at_each_attack": kept, "records": attacked.records(), "ends": len(ends)}
        print(json.dumps(said), flush=True)
        shutil.rmtree(folder / name)
        shutil.rmtree(folder / f"{name}-whole")


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        bench(sys.argv[2:])
    else:
        arguments = [word for word in sys.argv[1:] if word != "--forked"]
        cut = arguments.index("--")
        kinds = [int(signal.Signals[each]) for each in arguments[2:cut]]
        main(Path(arguments[0]), int(arguments[1]), kinds, arguments[cut + 1 :], forked="--forked" in sys.argv)
