"""A small performance card: how fast an environment steps here. `bench` is the tool for numbers to publish."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from warpdrive_min.policies import random_policy
from warpdrive_min.validation.subject import Subject

LEAST_S = 0.2
"""A measurement goes on for so long at least."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Rate at which a backend steps so many environments."""

    backend: str
    n_envs: int
    env_steps_per_s: float
    bytes_per_s: float | None
    """Bytes that the environment says a step must move, per second; None if it does not say."""


def measure(subject: Subject, n_envs: int) -> Speed:
    """Time steps with auto-reset and the same random actions throughout; synchronises."""
    wrapper = subject.start(num_envs=n_envs, auto_reset=True)
    random_policy(wrapper, subject.seed)()
    backend, n_steps = wrapper.backend, 1
    wrapper.step()
    backend.synchronize()
    while True:
        start = time.perf_counter()
        for _ in range(n_steps):
            wrapper.step()
        backend.synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= LEAST_S:
            break
        n_steps *= 2
    rate = n_envs * n_steps / elapsed
    env: Any = wrapper.env
    size = getattr(env, "bytes_per_step", 0)
    return Speed(subject.backend, n_envs, rate, rate * size if size else None)
