"""PufferLib: CartPole in C, or Gymnasium's environments, serial or parallel."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial
from typing import Any

from .gymnasium import COUNTS, IDS, device, stepping
from .work import Point, Work, temporary_folder

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("pufferlib", "pufferlib-core", "gymnasium", "numpy")
REPORTED_EVERY = 1_000
"""Steps between two summaries of episodes in C."""


def prepare(point: Point) -> Work:
    """Return the stepping of its environments with uniform random actions."""
    os.chdir(temporary_folder("pufferlib"))  # its import creates a symlink in the working directory
    backend = point["options"].get("backend")
    if backend is None:
        from pufferlib.ocean.cartpole.cartpole import Cartpole  # noqa: PLC0415  (the peer)

        counts = "NumPy draws + step + restart within it"
        return stepping(partial(_native, Cartpole), point["n_envs"], threads=1, counts=counts)
    n_workers = _workers(point["n_envs"]) if backend == "Multiprocessing" else 1
    make = partial(_emulated, IDS[point["env"]], backend)
    work = stepping(make, point["n_envs"], threads=n_workers, counts=COUNTS, notes={"workers": n_workers})
    return _stopping(work) if backend == "Multiprocessing" else work


def _stopping(work: Work) -> Work:
    """Stop worker processes between blocks: idle, they spin for half a second."""
    workers = multiprocessing.active_children()

    def send(number: int) -> None:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)

    def run() -> None:
        send(signal.SIGCONT)
        work.run()

    atexit.register(send, signal.SIGCONT)  # before they are closed
    return replace(work, run=run, wait=partial(send, signal.SIGSTOP))


def _native(cls: Any, n_envs: int) -> Any:
    return cls(num_envs=n_envs, report_interval=REPORTED_EVERY)


def _emulated(name: str, backend: str, n_envs: int) -> Any:
    """Create Gymnasium's environments; processes end with this one."""
    import gymnasium  # noqa: PLC0415
    import pufferlib.emulation  # noqa: PLC0415  (the peer: whether it is there is found out here)
    import pufferlib.vector  # noqa: PLC0415

    def create(**given: Any) -> Any:
        env = gymnasium.make(name, disable_env_checker=True)
        return pufferlib.emulation.GymnasiumPufferEnv(env=env, **given)

    more = {"num_workers": _workers(n_envs)} if backend == "Multiprocessing" else {}
    envs = pufferlib.vector.make(create, backend=backend, num_envs=n_envs, **more)
    atexit.register(envs.close)
    return envs


def _workers(n_envs: int) -> int:
    """Return the largest process count with a core each and equal shares."""
    import psutil  # noqa: PLC0415  (theirs)

    most = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or 1)
    return max(n for n in range(1, most + 1) if n_envs % n == 0)
