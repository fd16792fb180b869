"""rl-tools' benchmark of its quadrotor, as a program that the user built."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .work import Point, Unavailable, Work, do_not_wait, gpu_uuid

PROGRAM = "l2f-benchmark-{}"
"""Name of the program, by the threads of a block; on PATH."""
REPORT = re.compile(r"\(GPU\):\s+(\S+) ms \((\S+) Msteps/s")
TOLERANCE = 1e-4
"""Relative error of the reported time and rate, which have six digits."""


def device() -> str:
    """Return the kind of device: its loop is for GPUs."""
    if gpu_uuid() is None:
        raise Unavailable("it needs an NVIDIA GPU")
    return "cuda"


def versions() -> dict[str, str]:
    """Return the hash of all programs on PATH."""
    paths = [found for n in range(32, 1025, 32) if (found := shutil.which(PROGRAM.format(n)))]
    if not paths:
        raise Unavailable(f"no {PROGRAM.format('THREADS')} on PATH")
    digest = hashlib.sha256(b"".join(Path(each).read_bytes() for each in paths))
    return {"rl-tools": f"programs {digest.hexdigest()[:12]}"}


def prepare(point: Point) -> Work:
    """Return runs of the program, which times its one launch itself."""
    program = shutil.which(PROGRAM.format(point["options"]["threads"]))
    if program is None:
        raise Unavailable(f"no {PROGRAM.format(point['options']['threads'])} on PATH")
    env_steps = point["n_envs"] * point["options"]["n_steps"]
    took_ns = 0

    def run() -> None:
        nonlocal took_ns
        env = {**os.environ, "CUDA_MODULE_LOADING": "EAGER"}  # its clock would include the loading of its kernel
        said = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
        found = REPORT.search(said.stdout)
        if found is None or said.stderr:
            raise ValueError(f"{program} must print its time on the GPU (got {(said.stderr or said.stdout)[-100:]!r})")
        ms, rate = map(float, found.groups())
        if abs(ms * rate * 1e3 / env_steps - 1) > TOLERANCE:
            raise ValueError(f"{program} must take {env_steps:,} steps (got {ms * rate * 1e3:,.0f}): build it so")
        took_ns = round(ms * 1e6)

    return Work(
        run=run,
        wait=do_not_wait,
        own_ns=lambda: took_ns,
        env_steps=env_steps,
        trace=lambda: {"says": f"another task, which prints no state: {env_steps:,} steps took {took_ns / 1e6:g} ms"},
        counts="RK4 step of a quadrotor, without actions, observations and restarts: another task",
        mode="fused",
        device="cuda",
        threads=None,
    )
