"""A peer's training run from our seed: its measurement, and our speed-up."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import torch

from warpdrive_min.training.loop.metrics import EPISODIC_RETURN, RecentReturns

from ..core.point import Check, Curve, Facts, Measurement, Metric, Point
from ..core.record import Record
from ..workloads.setups.learning import EVALUATED, NOT_REACHED, figures, return_metric
from ..workloads.setups.trainers import shipped
from .check import correctness

if TYPE_CHECKING:
    from .catalogue import PeerJob

POLICY: Final = "shared"
"""Name of a single policy."""
OWN_ACCOUNT: Final = "none: the peer's own account"
"""Reference of what only the peer itself reports."""
METRICS: Final = ("seconds_to_threshold", "env_steps_to_threshold", "return_after")
"""Metrics of our record that the peer's record repeats."""


def peer_point(job: PeerJob) -> Point:
    """Return the peer process's point, with our logging and evaluation sizes."""
    config = _ours(job)
    row_steps = config.trainer.train_batch_size * config.saving.metrics_log_freq
    return {**job.given, "row_steps": row_steps, "n_episodes": EVALUATED}


def peer_facts(job: PeerJob, reply: Mapping[str, Any]) -> Facts:
    """Return the facts of a peer's run."""
    device, versions = torch.device(reply["device"]), reply["versions"]
    return Facts(
        mode=reply.get("mode", "fused"),
        device=device,
        threads=None if device.type == "cuda" else len(os.sched_getaffinity(0)),
        notes={
            **reply["notes"],
            "version": versions.get(job.peer.package),
            "versions": versions,
            "compiling": {"programs": reply["programs"]},
            "clock": "its program is timed as a whole, and its steps share the time",
            "evaluation": f"{EVALUATED} episodes, greedy, at the end of its program",
        },
    )


def peer_measurement(job: PeerJob, reply: Mapping[str, Any]) -> Measurement:
    """Return a peer's measurement, with returns averaged over our number of steps.

    Its single program cannot stop at the threshold. It is timed as a whole, and its steps share the time equally.
    """
    config = _ours(job)
    recent = RecentReturns(config.trainer.num_envs * config.env["episode_length"])
    logged = [
        {"env_steps": steps, f"{POLICY}/episodes": n, f"{POLICY}/{EPISODIC_RETURN}": mean}
        for steps, n, mean in reply["rows"]
    ]
    curve = Curve(
        env_steps=[row["env_steps"] for row in logged],
        seconds=[reply["seconds"] * row["env_steps"] / reply["env_steps"] for row in logged],
        mean_return={POLICY: [recent.add(row, [POLICY])[POLICY] for row in logged]},
    )
    reached = figures(curve, POLICY, job.axes["threshold"])
    played = reply["played"]
    after = return_metric(fmean(played), stdev(played) / math.sqrt(len(played)))
    return Measurement(
        curve=curve,
        metrics={
            **reached,
            "return_after": after,
            "compile_s": Metric.exact(reply["compile_s"], "s", "lower"),
            "whole_run_s": Metric.exact(reply["seconds"], "s", "lower"),
        },
        before=correctness(job.axes["env"], reply["trace"]),
        after=Check(passed=math.isfinite(after.value), max_error=0.0, oracle=OWN_ACCOUNT, detail="finite returns"),
        unread={} if "seconds_to_threshold" in reached else NOT_REACHED,
    )


def speed_up(ours: Record, theirs: Record) -> Metric | None:
    """Return the ratio of times to the threshold, peer over ours; None if missed."""
    mine, other = (each.figure("seconds_to_threshold") for each in (ours, theirs))
    return Metric.exact(other.value / mine.value, "x", "higher") if mine and other else None


def _ours(job: PeerJob) -> Any:
    return shipped(job.axes["env"], f"_{job.axes['algorithm'].lower()}")
