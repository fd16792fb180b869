"""A peer's training run beside ours from the same seed: its record, judged as ours is, and how much sooner ours is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import torch

from warpdrive_min.training.metrics import EPISODIC_RETURN, RecentReturns

from ..core.measure import Curve, Measurement, Metric
from ..core.point import Check, Facts, Point
from ..core.record import Record
from ..show.records import metric
from ..workloads.learn import EVALUATED, NOT_REACHED, figures, return_metric
from ..workloads.train import shipped
from .check import correctness

if TYPE_CHECKING:
    from .catalogue import PeerJob

POLICY: Final = "shared"
"""Name of a policy that is the only one."""
BESIDE: Final = ("seconds_to_threshold", "env_steps_to_threshold", "return_after")
"""Figures of ours that the record of a peer has too."""


def asked(job: PeerJob) -> Point:
    """Return the point for the peer's process, with the steps of a row of ours, and the episodes played at the end."""
    config = _ours(job)
    row_steps = config.trainer.train_batch_size * config.saving.metrics_log_freq
    return {**job.given, "row_steps": row_steps, "n_episodes": EVALUATED}


def facts_of(job: PeerJob, said: Mapping[str, Any]) -> Facts:
    """Return where a peer's run was done, and how."""
    device, versions = torch.device(said["device"]), said["versions"]
    return Facts(
        mode="fused",
        device=device,
        threads=None if device.type == "cuda" else len(os.sched_getaffinity(0)),
        notes={
            **said["notes"],
            "version": versions.get(job.peer.package),
            "versions": versions,
            "compiling": {"programs": said["programs"]},
            "clock": "its program is timed as a whole, and its steps share the time",
            "evaluation": f"{EVALUATED} episodes, greedy, at the end of its program",
        },
    )


def measured(job: PeerJob, said: Mapping[str, Any]) -> Measurement:
    """Return what a peer's run came to, whose returns are averaged over as many steps as ours are.

    Its program is one, and cannot stop at the threshold: it is timed as a whole, and its steps share the time.
    """
    config = _ours(job)
    recent = RecentReturns(config.trainer.num_envs * config.env["episode_length"])
    logged = [
        {"env_steps": steps, f"{POLICY}/episodes": n, f"{POLICY}/{EPISODIC_RETURN}": mean}
        for steps, n, mean in said["rows"]
    ]
    curve = Curve(
        env_steps=[row["env_steps"] for row in logged],
        seconds=[said["seconds"] * row["env_steps"] / said["env_steps"] for row in logged],
        mean_return={POLICY: [recent.add(row, [POLICY])[POLICY] for row in logged]},
    )
    reached = figures(curve, POLICY, job.axes["threshold"])
    played = said["played"]
    after = return_metric(fmean(played), stdev(played) / math.sqrt(len(played)))
    own_account = "none: the peer's own account"
    return Measurement(
        curve=curve,
        metrics={
            **reached,
            "return_after": after,
            "compile_s": Metric.exactly(said["compile_s"], "s", "lower"),
            "whole_run_s": Metric.exactly(said["seconds"], "s", "lower"),
        },
        before=correctness(job.axes["env"], said["trace"]),
        after=Check(passed=math.isfinite(after.value), max_error=0.0, oracle=own_account, detail="finite returns"),
        unread={} if "seconds_to_threshold" in reached else NOT_REACHED,
    )


def beside_ours(ours: Record, theirs: Record) -> Record:
    """Return the peer's record with our figures, and how many times as soon ours is, if both reached the threshold."""
    own = {f"ours_{name}": found for name in BESIDE if (found := metric(ours, name))}
    mine, other = (metric(each, "seconds_to_threshold") for each in (ours, theirs))
    times = {"ours_over_peer": Metric.exactly(other.value / mine.value, "x", "higher")} if mine and other else {}
    notes = theirs.notes | {"ours": {"case": ours.case, "point": ours.point}}
    return theirs.model_copy(update={"metrics": {**(theirs.metrics or {}), **own, **times}, "notes": notes})


def _ours(job: PeerJob) -> Any:
    return shipped(job.axes["env"], f"_{job.axes['algorithm'].lower()}")
