"""Use `host`, then fork; each child reports its work.

`test_forks` runs it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from envs import ENVS
from tests.training.builders import PPO, make_trainer
from warpdrive_min import BACKENDS, EnvWrapper, forks
from warpdrive_min.backends import host

SIZES = {"THREADS": 32, "ENVS_PER_BLOCK": 1, "BLOCKS_PER_ENV": 1, "N_AGENTS": 1, "EXACT": False}
LARGE = 1_000_000
"""Size that torch sums on several threads."""


def wrapper() -> EnvWrapper:
    """Return started environments on several blocks."""
    made = EnvWrapper(ENVS["cartpole"](), num_envs=1000, env_backend="host")
    made.reset_all_envs()
    return made


def agents(folder: Path) -> Callable[[], None]:
    """Return a launch of a kernel with threads for agents."""
    source = folder / "kernel.cu"
    source.write_text('extern "C" __global__ void f(int* x) { atomicAdd(x, 1); }\n')
    kernel = BACKENDS["host"].compile(source, SIZES)["f"]
    x = torch.zeros(1, dtype=torch.int32)
    return kernel.prepare([x], 8, 32)


def in_grandchild(work: Callable[[], object]) -> dict[str, object]:
    """Fork a child that only forks, and return its child's report."""
    ours, theirs = os.pipe()
    if child := os.fork():
        os.close(theirs)
        os.waitpid(child, 0)
        with os.fdopen(ours) as report:
            said: dict[str, object] = json.loads(report.read())
        return said
    os.write(theirs, json.dumps(in_child(work)).encode())
    os._exit(0)


def in_child(work: Callable[[], object]) -> dict[str, object]:
    """Fork; do work in the child and return its report.

    It has 20 s. The report has exit code, threads and warnings.
    """
    ours, theirs = os.pipe()
    if child := os.fork():
        os.close(theirs)
        with os.fdopen(ours) as report:
            said = report.read()
        return {"status": os.waitpid(child, 0)[1], **(json.loads(said) if said else {})}
    signal.alarm(20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
        work()
    texts = [str(each.message) for each in caught if "forked" in str(each.message)]
    reply = {"threads": [forks.threads(), torch.get_num_threads()], "warnings": texts}
    os.write(theirs, json.dumps(reply).encode())
    os._exit(0)


def of_a_server(connection) -> None:
    """Report the threads of a process from the fork server."""
    torch.set_num_threads(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapper().step()
        connection.send([BACKENDS["host"].threads, forks.threads()])


def main() -> None:
    """Fork for each kind of work."""
    torch.set_num_threads(2)
    host.OPTIMISATION = "-Og"
    started = wrapper()
    started.step()
    with tempfile.TemporaryDirectory() as folder:
        launch = agents(Path(folder))
        launch()
        trainers = {
            name: make_trainer(
                ENVS["cartpole"](),
                {"shared": PPO},
                "host",
                n_envs=500,
                folder=f"{folder}/{name}",
                basedir=folder,
                **given,
            )
            for name, given in (
                ("train", {}),
                ("train exactly", {"trainer": {"exact": True}, "wrapper": {"exact": True}}),
            )
        }
        for trainer in trainers.values():
            trainer.iterate()
        works: dict[str, Callable[[], object]] = {
            "new environments": lambda: wrapper().step(),
            "old environments": started.step,
            "agents": launch,
            "torch": lambda: torch.ones(LARGE).sum(),
            "more threads": lambda: (torch.set_num_threads(2), started.step()),
            **{name: trainer.iterate for name, trainer in trainers.items()},
        }
        found = {name: in_child(work) for name, work in works.items()}
        found["child of a child"] = in_grandchild(started.step)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warpdrive_min.backends.host"])
    ours, theirs = context.Pipe()
    process = context.Process(target=of_a_server, args=(theirs,))
    process.start()
    found["fork server"] = {"threads": ours.recv() if ours.poll(60) else None}
    process.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
