"""Trains small runs in processes that are killed at random moments, each going on where the last one got to.

``python -m tests.training.killed_run FOLDER N_ITERATIONS N_KILLS RUN...`` prints how far each of them had come.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.training.builders import make_run
from warpdrive_min.training import checkpoint


def go_on(folder: Path, name: str, n_iterations: int) -> None:
    """Train to the end, from the latest checkpoint if there is one."""
    trainer = make_run(name, basedir=folder, model_params_save_freq=1)
    if checkpoint.latest(trainer.folder / "checkpoints") is not None:
        trainer.load_checkpoint()
    else:
        shutil.rmtree(trainer.folder, ignore_errors=True)  # what was killed before its first checkpoint
    trainer.train(n_iterations - trainer.iteration)
    trainer.graceful_close()


def kill_and_go_on(folder: Path, name: str, n_iterations: int, n_kills: int) -> list[int]:
    """Return how many iterations were saved when each process was killed."""
    chance = random.Random(0)
    killed_at: list[int] = []
    for part in range(1, n_kills + 2):
        is_killed = part <= n_kills
        child = os.fork()
        if child == 0:
            go_on(folder, name, n_iterations * part // (n_kills + 1))
            while is_killed:  # however late the kill comes on a busy machine, some of the run is left to go on with
                signal.pause()
            os._exit(0)
        if is_killed:
            if part % 2:  # now and then at once, while it starts
                wait_for_more_than(n_saved(folder), folder)
            time.sleep(chance.uniform(0.0, 0.1))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status != (signal.SIGKILL if is_killed else 0):
            raise SystemExit(f"{name}: process {part} ended with status {status}")
        if is_killed:
            killed_at.append(n_saved(folder))
    return killed_at


def n_saved(folder: Path) -> int:
    """Return the iterations of the latest checkpoint below a folder, which a child may be changing."""
    walk = os.walk(folder)  # unlike a glob, passes over a folder that goes while it looks
    names = [checkpoint.NAME.fullmatch(name) for _, subfolders, _ in walk for name in subfolders]
    return max((int(name[1]) for name in names if name), default=0)


def wait_for_more_than(n_before: int, folder: Path, limit_s: float = 20.0) -> None:
    """Wait until there is a later checkpoint, or for as long as one could ever take."""
    end_s = time.monotonic() + limit_s
    while n_saved(folder) <= n_before and time.monotonic() < end_s:
        time.sleep(0.005)


def main(folder: Path, n_iterations: int, n_kills: int, names: list[str]) -> dict[str, list[int]]:
    """Train the named runs, each in a folder of its own."""
    with tempfile.TemporaryDirectory() as warm:  # what loads late is loaded before the forks
        for name in names:
            go_on(Path(warm, name), name, 2)
    return {name: kill_and_go_on(folder / name, name, n_iterations, n_kills) for name in names}


if __name__ == "__main__":
    torch.set_num_threads(1)  # threads do not live through a fork
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])))
