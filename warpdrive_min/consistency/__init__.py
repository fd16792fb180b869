"""The consistency checker: an environment's kernels against its NumPy or Python reference.

From small to large: `difference` and `Tolerance` compare two arrays, `step_by_step` two wrappers from the same state,
`EnvironmentCPUvsGPU` whole scenarios, of which it reports the first disagreement. `docs/consistency.md` is the guide.
"""

from __future__ import annotations

from warpdrive_min.consistency.arrays import Comparison, Difference, Tolerance, difference
from warpdrive_min.consistency.checker import EnvironmentCPUvsGPU, generate_random_actions
from warpdrive_min.consistency.steps import Agreement, copy_state, step_by_step
from warpdrive_min.constants import FINAL_OBSERVATIONS

__all__ = [
    "FINAL_OBSERVATIONS",
    "Agreement",
    "Comparison",
    "Difference",
    "EnvironmentCPUvsGPU",
    "Tolerance",
    "copy_state",
    "difference",
    "generate_random_actions",
    "step_by_step",
]
