"""A peer's training in several processes, compared to the bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import torch

from ..core.case import Case, Job
from ..core.measure import Once
from ..core.point import Facts, Point
from ..core.record import Context, Record
from ..workloads.determinism import CARD, Play, Runs, second_card

if TYPE_CHECKING:
    from .catalogue import PeerJob

USUAL: Final = "usual"
"""Variant whose speed is the base."""


def record_of(job: PeerJob, context: Context, reply: Mapping[str, Any], play: Play) -> Record:
    """Measure a point; its failure is in the record.

    Args:
        job: The point.
        context: Facts that records share.
        reply: Kind of device and versions of the peer's packages.
        play: Trains in a new process.
    """
    device, versions = torch.device(reply["device"]), reply["versions"]
    usual = {"variant": USUAL} if USUAL in job.peer.variants else {}

    def setup(point: Point) -> Once:
        if point["variation"] == CARD:
            second_card()
        runs = Runs(job.axes, device.type, play, {**job.axes, **usual})
        return Once(
            run=runs.measure,
            check=runs.check,
            facts=Facts(
                mode="eager",
                device=device,
                threads=None if device.type == "cuda" else len(os.sched_getaffinity(0)),
                notes={"version": versions.get(job.peer.package), "versions": versions},
            ),
        )

    case = Case(
        **asdict(job.version),
        title="the same training of other software in another process",
        workload=Once,
        points=job.peer.points,
        setup=setup,
    )
    return Job(case, job.point).run(context)
