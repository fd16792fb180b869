"""Kill and stop commands at random moments, then resume them.

``python -m tests.bench.attack FOLDER N SIGNAL... -- COMMAND...`` ends each command N times, with the signals by
rotation, and resumes it each time. Then it lets the command finish. The records, or the trained bits, must be those of
an undisturbed command. It prints a line for each signal and one for each command; the first fault ends it. The same
words resume an existing folder. With ``--forked`` commands are copies of one process that has imported everything,
which costs less.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from bench.process.stopping import tidy
from tests.training.builders import rows_in
from warpdrive_min.files import UNFINISHED
from warpdrive_min.processes import end_with_parent
from warpdrive_min.stopping import PREFIX, stoppable
from warpdrive_min.stopping import clean_up_on_signal as tidy_command
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.ranks import as_bytes

ROOT = Path(__file__).resolve().parents[2]
CARTPOLE = ("--preset", "smoke", "--case", "env_step", "--where", "env=cartpole")
TRAINED = (
    *("--backend", "cpu", "--seed", "1", "--results-dir", "trained", "--quiet"),
    *("--set", "trainer.num_envs=4", "--set", "trainer.train_batch_size=64", "--set", "trainer.num_episodes=96"),
    *("--set", "env.episode_length=20", "--set", "saving.basedir={out}"),
    *("--set", "saving.metrics_log_freq=1", "--set", "saving.model_params_save_freq=1"),
)
"""30 iterations, with a checkpoint and a row of metrics after each."""
DDPG = (
    *("-e", "pendulum", "--config", "ddpg", "--set", "policy.shared.buffer_size=512"),
    *("--set", "policy.shared.batch_size=16", "--set", "policy.shared.learning_starts=64"),
)
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
    "train": ["train", "-e", "cartpole", *TRAINED],
    "train-ddpg": ["train", *DDPG, *TRAINED],
    "train-ranks": ["train", "-e", "cartpole", *TRAINED, "--set", "trainer.num_gpus=2"],
}
"""Commands with few small points, by a name."""
MARK = "ATTACKED_IN"
"""Environment variable that marks all processes of a command."""
GONE_S = 10.0
"""Longest time that a process may outlive the command that started it, s."""


# ------------------------------------------------------------------ the command


def bench(words: Sequence[str]) -> None:
    """Run ``python -m bench WORDS`` with few points and no peers.

    The doctor always passes. For concurrent points the CPU passes for a GPU, so that each gets its own process.
    """
    sys.argv = ["bench", *words]
    with stoppable():
        from bench import cli, doctor, publish
        from bench.process import local
        from bench.workloads import cases

        doctor.examine = list
        publish.chosen = lambda *_: []
        publish.is_claimed = lambda *_: True
        jobs = cases.jobs("smoke", ["case=env_step", "env=cartpole", "backend=cpu", "backend=host"])
        case, pairs = jobs[0].case, [(jobs[0].point, jobs[-1].point), (jobs[1].point, jobs[-1].point)]
        if "--at-once" in words:
            local.is_on_gpu = lambda job: True
        if words[0] == "publish":
            publish.jobs = lambda *_: jobs
            publish.CASES = {case.name: replace(case, pairs=lambda preset: pairs)}
        with tidy():
            cli.app()


# ------------------------------------------------------------------ the attack


@dataclass
class Attack:
    """Attacked command, in its own folder."""

    folder: Path
    words: list[str]
    forked: bool = False
    package: ClassVar[str] = "bench"
    chance: random.Random = field(default_factory=lambda: random.Random(os.environ.get("SEED", 0)))
    want: set[tuple[str, str]] | None = None
    """Points that it must have at its end."""
    work_s: float = 3.0
    """Time from the first temporary file to the end, s; at first a guess."""

    def __post_init__(self) -> None:
        self.out, self.temporary = self.folder / "out", self.folder / "tmp"
        for each in (self.out, self.temporary / f"{PREFIX}abcdefgh" / "of a killed one"):
            each.mkdir(parents=True, exist_ok=True)
        self.words = [word.format(out=self.out) for word in self.words]

    def resumed(self) -> list[str]:
        """Return the words that resume the command."""
        run_ids = {re.sub(r"(-again)?(-[ab])?$", "", file.stem) for file in self.out.glob("20*.jsonl")}
        run_ids -= {each for each in run_ids if each.endswith("-comparisons")}
        return [*self.words, *(["--resume", *run_ids] if run_ids and self.words[0] != "publish" else [])]

    def run(self, words: Sequence[str]) -> None:
        """Run the command in a new process."""
        bench(words)

    def start(self) -> int:
        """Start or resume the command; return the process."""
        words = self.resumed()
        self.left = set(self.temporary.iterdir())
        own = {MARK: str(self.folder), "TMPDIR": str(self.temporary), "BENCH_GIT_SHA": "0" * 40}
        with (self.folder / "said").open("w") as said, (self.folder / "errors").open("w") as errors:
            if not self.forked:
                is_changed = self.words[0] == "publish" or "--at-once" in self.words
                start = ["-m", "tests.bench.attack", "bench"] if is_changed else ["-m", self.package]
                self.process = subprocess.Popen(
                    [sys.executable, *start, *words],
                    cwd=ROOT,
                    env=os.environ | own,
                    stdout=said,
                    stderr=errors,
                    start_new_session=True,
                )
                return self.process.pid
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                os.setsid()
                end_with_parent(parent)
                os.dup2(said.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.environ.update(own)
                run_forked(lambda: self.run(words))
            return pid

    def attack(self, number: int, moment: str = "") -> dict[str, Any]:
        """Start the command, signal it and check its files.

        SIGINT is sent to the whole group, as a terminal does, and sometimes to the process alone. Returns the outcome.
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
            assert self.told(errors) in (0, self.records()), f"{which}: {self.records()} records; {errors}"
        seen = {"signal": signal.Signals(number).name, "moment": moment, "resumed": bool(before), "ended": code != 0}
        if code == 0:  # it finished before the signal: earlier runs had to compile, so aim earlier
            self.check()
            self.work_s = max(0.5, self.work_s / 2)
            shutil.rmtree(self.out)
            return seen | {"records": 0}
        records = self.records()
        assert records >= before + announced(said), f"{which}: {records} records, {before} before; it said {said}"
        return seen | {"records": records}

    def finish(self) -> int:
        """Let the command finish; return its number of records."""
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
        self.check()
        return self.records()

    def check(self) -> None:
        """Check that a finished command has each point once."""
        points = self.points()
        assert self.want in (None, points), f"{self.words}: {points ^ (self.want or points)}"

    def has_begun(self) -> bool:
        """Return true once the command has made a temporary folder."""
        return bool(set(self.temporary.iterdir()) - self.left)

    def exit_code(self, pid: int) -> int:
        """Wait for a process; return its exit code or negative signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not self.forked:
            self.process.returncode = code
        return code

    def records(self) -> int:
        """Return the number of complete records."""
        return sum(
            file.read_bytes().count(b"\n") for file in self.out.rglob("*.jsonl") if "comparisons" not in file.name
        )

    def told(self, line: str) -> int:
        """Return the number of records that a stopped command reports."""
        return sum(map(int, re.findall(r"(\d+) records? in ", line)))

    def points(self) -> set[tuple[str, str]]:
        """Return side (if any) and point of each record."""
        from bench.core.record import read_all

        files = [file for file in self.out.rglob("*.jsonl") if "comparisons" not in file.name]
        records = read_all(files)
        assert all(record.status == "ok" for record in records), [record.reason for record in records]
        sides = (re.search("(-[0-9])?-[ab]$", record.run_id) for record in records)
        return {
            (side[0] if side else "", json.dumps(record.point)) for side, record in zip(sides, records, strict=True)
        }

    def unfinished(self) -> set[Path]:
        """Return the files in progress."""
        return set(self.out.rglob(f"{UNFINISHED}*"))

    def processes(self) -> list[str]:
        """Return the running processes of the command."""
        mark, found = f"{MARK}={self.folder}\0".encode(), []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (each / "environ").read_bytes():
                    found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
            except OSError:
                continue
        return found

    def wait_for(self, condition: Callable[[], bool], of: str = "", limit_s: float = 120.0) -> None:
        """Wait for a condition.

        For leftovers, which ``of`` names, the limit is shorter.
        """
        end_s = time.monotonic() + (GONE_S if of else limit_s)
        while not condition():
            assert time.monotonic() < end_s, f"{of}: {self.processes()}"
            time.sleep(0.01)


class TrainingAttack(Attack):
    """Attacked training run; its records are saved iterations."""

    package = "warpdrive_min"

    def resumed(self) -> list[str]:
        folder = self.run_folder()
        if self.records():
            return ["train", "--resume", str(folder), "--quiet"]
        shutil.rmtree(folder, ignore_errors=True)  # it was ended before its first checkpoint
        return self.words

    def run(self, words: Sequence[str]) -> None:
        sys.argv = ["warpdrive_min", *words]
        with stoppable():
            from warpdrive_min import cli

            with tidy_command():
                cli.app()

    def run_folder(self) -> Path:
        """Return the folder of the run."""
        return next(self.out.glob("*/*/trained"), self.out / "trained")

    def records(self) -> int:
        names = (checkpoint.NAME.fullmatch(name) for _, folders, _ in os.walk(self.out) for name in folders)
        return max((int(name[1]) for name in names if name), default=0)

    def told(self, line: str) -> int:
        return int(found[1]) if (found := re.search(r"checkpoint_(\d+) is kept", line)) else 0

    def points(self) -> set[tuple[str, str]]:
        """Return the hashes of the last checkpoint, and the metric rows."""
        tensors, _ = checkpoint.load(self.run_folder() / "checkpoints")
        hashes = {(name, hashlib.sha256(as_bytes(each).numpy()).hexdigest()) for name, each in tensors.items()}
        return hashes | {(str(number), json.dumps(row)) for number, row in enumerate(rows_in(self.run_folder()))}


def announced(said: str) -> int:
    """Return the number of records that a command reports as kept."""
    points = re.findall(r"^(?:.*sweep: )?\d+/\d+ .*: ok", said, re.MULTILINE)
    pairs = re.findall(r"pairs: \d+/\d+ .*: \d", said)
    begun = re.findall(r"^\d+/\d+ [^:]*$", said, re.MULTILINE)  # a pair is written when the next one begins
    return len(points) + 2 * len(pairs) + 2 * max(0, len(begun) - 1)


def ended(pid: int) -> bool:
    """Return true if a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def run_forked(work: Callable[[], None]) -> None:
    """Run a function as a process would, and end it."""
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, as do child processes
    if forked:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU is usable after a fork
        import torch

        import warpdrive_min.cli  # noqa: F401
        from bench import publish  # noqa: F401
        from bench.core import machine

        torch.set_num_threads(1)  # threads do not live through a fork
        machine.dependencies_hash = functools.cache(machine.dependencies_hash)
        machine.dependencies_hash()  # read here once, not by each command
        gc.freeze()  # commands do not search what they share
    for name in names:
        kind = TrainingAttack if name.startswith("train") else Attack
        shutil.rmtree(folder / f"{name}-whole", ignore_errors=True)
        whole = kind(folder / f"{name}-whole", COMMANDS[name], forked)
        whole.finish()
        log = folder / f"{name}.jsonl"
        seen = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        chance = random.Random(len(seen))
        attacked = kind(folder / name, COMMANDS[name], forked, chance, whole.points(), whole.work_s)
        while (n_ended := sum(each["ended"] for each in seen)) < n:
            seen.append(attacked.attack(numbers[n_ended % len(numbers)]))
            with log.open("a") as file:
                file.write(json.dumps(seen[-1]) + "\n")
            print(f"{name} {n_ended}/{n}: {seen[-1]}", file=sys.stderr, flush=True)
        attacked.finish()
        by_signal = Counter(each["signal"] for each in seen if each["ended"])
        resumed, n_whole = sum(each["resumed"] for each in seen), 1 + sum(not each["ended"] for each in seen)
        said = {"command": name, "ended_by": by_signal, "resumed": resumed, "finished_and_equal": n_whole}
        print(json.dumps(said | {"records": attacked.records()}), flush=True)
        shutil.rmtree(folder / name)
        shutil.rmtree(folder / f"{name}-whole")


if __name__ == "__main__":
    if sys.argv[1] == "bench":
        bench(sys.argv[2:])
    else:
        parser = argparse.ArgumentParser("python -m tests.bench.attack", description=__doc__.partition("\n")[0])
        parser.add_argument("folder", type=Path)
        parser.add_argument("n", type=int, help="kills per command")
        parser.add_argument("signals", nargs="+", type=lambda name: signal.Signals[name], metavar="SIGNAL")
        parser.add_argument("--forked", action="store_true", help="fork commands from one process")
        cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
        given, commands = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
        if not commands or not set(commands) <= set(COMMANDS):
            parser.error(f"COMMAND must be of {', '.join(COMMANDS)} (got {' '.join(commands) or 'none'})")
        main(given.folder, given.n, given.signals, commands, forked=given.forked)
