"""The case `scaling`: iterations of a trainer in several ranks of one host, with as much work for each of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import TypeAdapter

from bench.case import Facts, Point, Preset, Skip
from bench.cases.environments import ON_GPU, available
from bench.measure import Plan, Ranks
from bench.record import Measurement, Record
from warpdrive_min.training.distributed import launch

PROGRAM: Final = "bench.cases.rank"
REPORT: Final = "report.json"
ON_GPUS: Final = (1, 2, 4, 8)
"""Ranks, each with a GPU of its own."""
ON_THREADS: Final = (1, 2)
"""Ranks on a CPU, each with the same share of its threads, however many there are."""


def scaling(point: Point) -> Ranks:
    """Train in as many processes as the point says, each with environments of its own and all of the weights.

    Raises:
        Skip: The backend is not there, or there are too few GPUs, or one alone, which has nothing to be compared with.
    """
    backend = available(point["backend"])
    n_ranks, on_gpu = point["n_ranks"], backend.captures_graphs
    n_gpus = torch.cuda.device_count() if on_gpu else 0
    if on_gpu and n_gpus < max(2, n_ranks):
        why = "one for each rank" if n_ranks > 1 else "to compare one with; `train` has the point of one alone"
        raise Skip(f"scaling: needs {max(2, n_ranks)} GPUs, {why} (got {n_gpus}); run it on a host with more")
    threads = 1 if on_gpu else max(1, torch.get_num_threads() // max(ON_THREADS))
    env_steps = point["n_envs"] * point["n_steps"] * n_ranks
    return Ranks(
        run=lambda plan: start(point, plan, threads),
        facts=Facts(
            mode=point["mode"],
            device=torch.device("cuda" if on_gpu else "cpu"),  # the ranks have them; this process touches none
            threads=None if on_gpu else threads * n_ranks,
            work={"env_steps": env_steps, "agent_steps": env_steps * point["n_agents"]},
        ),
    )


def start(point: Point, plan: Plan, threads: int) -> Measurement:
    """Start the ranks of a point, wait for them, and return what the first one has written.

    Args:
        point: The point.
        plan: How much is measured.
        threads: CPU threads of torch in each rank.

    Raises:
        TrainingError: A rank has failed; what it said is on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="warpdrive-scaling-") as folder:
        report = Path(folder, REPORT)
        task = {"point": dict(point), "plan": asdict(plan), "threads": threads}
        launch(point["n_ranks"], [json.dumps(task), str(report)], point["backend"], module=PROGRAM)
        return TypeAdapter(Measurement).validate_json(report.read_text())


def efficiencies(records: Iterable[Record]) -> dict[int, float]:
    """Return rate(n) / (n * rate(1)) of each record, by its `id`; of those with one rank in the same run."""
    found = list(records)
    alone = {_place(record): _rate(record) for record in found if record.point["n_ranks"] == 1}
    return {
        id(record): _rate(record) / (int(record.point["n_ranks"]) * alone[_place(record)])
        for record in found
        if _place(record) in alone
    }


def _place(record: Record) -> tuple[Any, ...]:
    axes = sorted((axis, value) for axis, value in record.point.items() if axis != "n_ranks")
    return (record.run_id, *axes)


def _rate(record: Record) -> float:
    return (record.metrics or {})["env_steps_per_s"].value


# ------------------------------------------------------------------ points


def scaling_points(preset: Preset) -> list[Point]:
    """Return CartPole in one and two ranks on the CPU; beyond smoke also both tags on 1, 2, 4 and 8 GPUs."""
    if preset == "smoke":
        return [_point("cartpole", "cpu", n, n_envs=16, n_agents=1, n_steps=16) for n in ON_THREADS]
    points: list[Point] = [_point("cartpole", "host", n, n_envs=1_000, n_agents=1, n_steps=100) for n in ON_THREADS]
    for backend in ON_GPU:
        for n in ON_GPUS:
            points.append(_point("tag_gridworld", backend, n, n_envs=2_000, n_agents=5, n_steps=100))
            tag = _point("tag_continuous", backend, n, n_envs=2_000, n_agents=110, n_steps=50)
            points.append({**tag, "network": "256-256", "precision": "tf32"})
    return points


def _point(env: str, backend: str, n_ranks: int, **sizes: int) -> dict[str, Any]:
    return {
        "env": env,
        "backend": backend,
        "n_ranks": n_ranks,
        **sizes,
        "algorithm": "A2C",
        "network": "32-32",
        "precision": "fp32",
        "mode": "graph" if backend in ON_GPU else "eager",
    }
