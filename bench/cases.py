"""All benchmarks: a new one is a file in `workloads` and a line here."""

from __future__ import annotations

from typing import Final

from .case import Case
from .record import Record
from .workloads import env_step, kernels, learn, many_steps, memory, scaling, startup, train

CASES: Final[dict[str, Case]] = {
    case.name: case
    for case in (
        env_step.ENV_STEP,
        env_step.GRAPH,
        many_steps.MANY_STEPS,
        env_step.NEIGHBOR_SEARCH,
        env_step.PUBLISHED,
        kernels.SAMPLER,
        env_step.STEP,
        kernels.RESET,
        kernels.RETURN_SCAN,
        kernels.SHUFFLE,
        kernels.RECORD,
        kernels.LAUNCH,
        train.ROLLOUT,
        train.TRAIN,
        scaling.SCALING,
        learn.LEARN,
        startup.STARTUP,
        memory.MEMORY,
    )
}
"""Benchmarks by name; whatever measures, judges or shows reads them here."""


def is_present(record: Record) -> bool:
    """Return whether a record is of the present version of a case."""
    return record.case in CASES and record.case_version == CASES[record.case].version
