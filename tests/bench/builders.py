"""Builders of what the benchmark's tests are about: records."""

from __future__ import annotations

from bench.case import Check
from bench.record import Checks, Metric, Record


def record(value: float = 1e6, *, case: str = "env_step", status: str = "ok", passed: bool = True, **changes) -> Record:
    """Return a record of CartPole on NumPy at 100 environments, but for the changes."""
    metrics = {
        name: Metric(value=value, unit="1/s", direction="higher", low=0.9 * value, high=1.1 * value)
        for name in ("env_steps_per_s", "agent_steps_per_s", "samples_per_s")
    }
    check = Check(passed=passed, max_error=0.0, detail="")
    fields = {
        "run_id": "run",
        "preset": "default",
        "case": case,
        "case_version": 1,
        "scope": "env",
        "mode": "eager",
        "point": {"env": "cartpole", "backend": "cpu", "n_envs": 100, "n_agents": 1, "exact": False},
        "threads": 1,
        "status": status,
        "reason": None,
        "samples_ns": [1.0],
        "device_ns": None,
        "runs_per_sample": 1,
        "work_per_run": {"env_steps": 1},
        "n": 1,
        "stop_reason": "",
        "warm_up": {},
        "metrics": metrics,
        "roofline": None,
        "correctness": Checks(passed=passed, max_error=0.0, oracle="by hand", before=check, after=check),
        "telemetry": None,
        "machine": {"gpu": "NVIDIA H200", "cores": 16},
        "git": {"sha": "0123456789", "dirty": False},
        "dependencies_hash": "",
        "command": "",
        "started_at": "2026-01-01T00:00:00",
        "duration_s": 1.0,
        "notes": {},
        "unread": {},
    }
    return Record(**{**fields, **changes})


def point(backend: str, n_envs: int, n_agents: int = 1, env: str = "cartpole", **more) -> dict:
    """Return a point of a case that steps environments."""
    return {"env": env, "backend": backend, "n_envs": n_envs, "n_agents": n_agents, "exact": False, **more}


def two_backends() -> list[Record]:
    """Return CartPole at three sizes, of which the GPU is slower at the first and faster at the last two."""
    rates = {"cpu": (100.0, 1_000.0, 2_000.0), "pycuda": (10.0, 10_000.0, 200_000.0)}
    return [
        record(rate, point=point(backend, n_envs), threads=1 if backend == "cpu" else None)
        for backend, of_backend in rates.items()
        for n_envs, rate in zip((1, 100, 10_000), of_backend, strict=True)
    ]
