"""Kill small runs at random moments, and resume them.

``python -m tests.training.killed_run FOLDER N_ITERATIONS N_KILLS RUN...`` prints the progress of each process. With
``--ranks 2`` each run has two ranks, and their launcher is killed; with ``--fresh`` processes are not forked but start
as programs do, and ranks by `launch`. After each kill no process may be left for more than `ENDING_S`, and the newest
checkpoint must load. In the end all equals an undisturbed run, and no temporary file is left. With ``--fresh --ranks 2
FOLDER 200 50 PPO`` it takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.training.builders import differences, make_run, rows_in
from warpdrive_min.processes import RANK_VARIABLES, end_with_parent
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.scale.distributed import launch, process_group

PROGRAM = "tests.training.killed_run"
ENDING_S = 10.0
"""Longest life of any process after its parent was killed, s."""
AS_ONE_PROCESS = "go-on"
"""First argument of a process that resumes a run."""

Start = Callable[[int, bool], int]
"""Function that starts a process and returns its id."""


def go_on(folder: Path, name: str, n_iterations: int, waits: bool = False) -> None:
    """Train from the latest checkpoint to an iteration.

    With ``waits`` it then waits for a kill.
    """
    with process_group("cpu") as world:
        trainer = make_run(name, basedir=folder, model_params_save_freq=1)
        if world.agreed(checkpoint.latest(trainer.folder / "checkpoints") is not None):
            trainer.load_checkpoint()
        elif world.is_first:
            shutil.rmtree(trainer.folder, ignore_errors=True)  # runs killed before their first checkpoint
        trainer.train(n_iterations - trainer.iteration)
        trainer.graceful_close()
        while waits:  # enough iterations remain after a late kill on a busy machine
            signal.pause()


# ------------------------------------------------------------------ how processes start


def forked(folder: Path, name: str, n_ranks: int, n_iterations: int, waits: bool) -> int:
    """Continue in a forked copy, or in several that it starts."""
    child = os.fork()
    if child == 0:
        if n_ranks > 1:
            fork_ranks(n_ranks, lambda: go_on(folder, name, n_iterations, waits))
        else:
            go_on(folder, name, n_iterations, waits)
        os._exit(0)
    return child


def fork_ranks(n: int, work: Callable[[], None]) -> None:
    """Work in forked ranks, and end with their exit code."""
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    ranks, parent = [], os.getpid()
    for rank in range(n):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            end_with_parent(parent)
            os.environ.update(zip(RANK_VARIABLES, map(str, (rank, rank, n, n, "localhost", port)), strict=True))
            work()
            os._exit(0)
    ends = [os.waitpid(rank, 0)[1] for rank in ranks]
    if any(ends):
        os._exit(1)


def fresh(folder: Path, name: str, n_ranks: int, n_iterations: int, waits: bool) -> int:
    """Continue in a new process."""
    words = [AS_ONE_PROCESS, str(folder), name, str(n_iterations), str(int(waits)), str(n_ranks)]
    return subprocess.Popen([sys.executable, "-m", PROGRAM, *words]).pid


def as_one_process(folder: str, name: str, n_iterations: str, waits: str, n_ranks: str = "1") -> None:
    """Run as a process from `fresh`, or one of its ranks."""
    if int(n_ranks) > 1:
        launch(int(n_ranks), [AS_ONE_PROCESS, folder, name, n_iterations, waits], "cpu", PROGRAM)
    else:
        torch.set_num_threads(1)
        go_on(Path(folder), name, int(n_iterations), bool(int(waits)))


# ------------------------------------------------------------------ the attack


def kill_and_go_on(folder: Path, start: Start, n_iterations: int, n_kills: int, most_s: float) -> list[int]:
    """Return the saved iterations at each kill.

    A kill comes ``most_s`` after a checkpoint at most.
    """
    chance = random.Random(0)
    killed_at: list[int] = []
    for part in range(1, n_kills + 2):
        is_killed = part <= n_kills
        process, ended = start_with_pipe(start, n_iterations * part // (n_kills + 1), is_killed)
        if is_killed:
            if part % 2:  # sometimes at once, during the start
                wait_for_more_than(n_saved(folder), folder)
            time.sleep(chance.uniform(0.0, most_s))
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if status != (signal.SIGKILL if is_killed else 0):
            raise SystemExit(f"{folder.name}: process {part} ended with status {status}")
        if not select.select([ended], [], [], ENDING_S)[0]:
            raise SystemExit(f"{folder.name}: process {part} left processes that live for {ENDING_S} s and more")
        os.close(ended)
        if is_killed:
            killed_at.append(n_saved(folder))
        if n_saved(folder):
            checkpoint.load(next(folder.glob("**/checkpoints")))
    return killed_at


def start_with_pipe(start: Start, n_iterations: int, waits: bool) -> tuple[int, int]:
    """Return a process, and a pipe that closes with it.

    The pipe stays open while the process or a child lives.
    """
    ended, held = os.pipe()
    own = os.dup(1)
    os.dup2(held, 1)  # all inherit the standard output
    os.close(held)
    try:
        return start(n_iterations, waits), ended
    finally:
        os.dup2(own, 1)
        os.close(own)


def n_saved(folder: Path) -> int:
    """Return the iteration of a folder's latest checkpoint.

    A child may write there at the same time.
    """
    walk = os.walk(folder)  # unlike a glob, it skips a folder that disappears
    names = [checkpoint.NAME.fullmatch(name) for _, subfolders, _ in walk for name in subfolders]
    return max((int(name[1]) for name in names if name), default=0)


def wait_for_more_than(n_before: int, folder: Path, limit_s: float = 60.0) -> None:
    """Wait for a later checkpoint, up to the longest possible time."""
    end_s = time.monotonic() + limit_s
    while n_saved(folder) <= n_before and time.monotonic() < end_s:
        time.sleep(0.005)


def check_equal(folder: Path, want_folder: Path, n_iterations: int) -> None:
    """Check that two runs are bit-identical, without temporary files."""
    runs = [next(each.glob("**/checkpoints")).parent for each in (folder, want_folder)]
    (got, header), (want, _) = (checkpoint.load(run / "checkpoints") for run in runs)
    rows, want_rows = map(rows_in, runs)
    assert header.iteration == n_iterations
    assert not differences(got, want)
    assert [row["iteration"] for row in rows] == list(range(1, n_iterations + 1))
    assert rows == want_rows
    left = [path for path in folder.rglob(".*") if path.is_dir()]
    left += Path(tempfile.gettempdir()).glob("warpdrive*")
    assert not left, left


def main() -> None:
    """Train the named runs with kills, and again without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("n_iterations", type=int)
    parser.add_argument("n_kills", type=int)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    how, most_s = (fresh, 5.0 * given.ranks) if given.fresh else (forked, 0.1 * given.ranks)
    os.environ["TMPDIR"] = tempfile.tempdir = str(given.folder / "temporary")
    Path(tempfile.tempdir).mkdir(parents=True)
    if not given.fresh:
        with tempfile.TemporaryDirectory() as warm:  # load late imports before the forks
            for name in given.runs:
                go_on(Path(warm, name), name, 2)
    killed_at = {}
    for name in given.runs:
        killed, whole = (given.folder / kind / name for kind in ("killed", "whole"))
        starts = [functools.partial(how, folder, name, given.ranks) for folder in (killed, whole)]
        killed_at[name] = kill_and_go_on(killed, starts[0], given.n_iterations, given.n_kills, most_s)
        kill_and_go_on(whole, starts[1], given.n_iterations, 0, most_s)
        check_equal(killed, whole, given.n_iterations)
    print(json.dumps(killed_at))


if __name__ == "__main__":
    if sys.argv[1] == AS_ONE_PROCESS:
        as_one_process(*sys.argv[2:])
    else:
        torch.set_num_threads(1)  # threads do not live through a fork
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nor does a GPU
        main()
