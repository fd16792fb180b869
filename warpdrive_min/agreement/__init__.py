"""Agreement of an environment's kernels with a reference, and with their contract.

From small to large: `Tolerance` and `difference` compare two arrays, `step_by_step` two wrappers from the same state,
`EnvironmentCPUvsGPU` whole scenarios, and `run_checks` all that `python -m warpdrive_min validate PATH` runs.
`docs/consistency.md` and `docs/authoring.md` are the guides.
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
