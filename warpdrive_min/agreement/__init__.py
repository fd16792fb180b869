"""Checks of an environment's kernels against a reference and a contract.

`Tolerance` and `difference` compare two arrays. `step_by_step` compares two wrappers from the same state.
`EnvironmentCPUvsGPU` compares whole scenarios. `run_checks` runs the checks of `python -m warpdrive_min validate PATH`.
See `docs/consistency.md` and `docs/authoring.md`.
"""

from __future__ import annotations

from warpdrive_min.agreement.checker import EnvironmentCPUvsGPU, generate_random_actions
from warpdrive_min.agreement.checks import CHECKS, Result, run_checks
from warpdrive_min.agreement.compare import Comparison, Difference, Tolerance, difference
from warpdrive_min.agreement.stepping import Agreement, copy_state, step_by_step
from warpdrive_min.agreement.subject import Subject
from warpdrive_min.constants import FINAL_OBSERVATIONS
from warpdrive_min.registrar import load_class

__all__ = [
    "CHECKS",
    "FINAL_OBSERVATIONS",
    "Agreement",
    "Comparison",
    "Difference",
    "EnvironmentCPUvsGPU",
    "Result",
    "Subject",
    "Tolerance",
    "copy_state",
    "difference",
    "generate_random_actions",
    "load_class",
    "run_checks",
    "step_by_step",
]
