"""Check of a peer's step against our reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import difference
from warpdrive_min.agreement.stepping import write
from warpdrive_min.envs import ENVS

from ..core.point import Check
from ..workloads.shared import SEED, env_config

Floats = NDArray[np.float64]
LOOSER: Final = 10
"""Factor on our tolerance.

A peer may sum in another order, or in float64."""


STATES: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "acrobot": lambda seen: np.concatenate([np.arctan2(seen[:, [1, 3]], seen[:, [0, 2]]), seen[:, 4:]], axis=1),
    "pendulum": lambda seen: np.stack([np.arctan2(seen[:, 1], seen[:, 0]), seen[:, 2]], axis=1),
}
"""Functions from observations (n_envs, n_features) to states (n_envs, n_state).

Other environments observe their state."""


def correctness(env: str, trace: Mapping[str, Any]) -> Check:
    """Compare a peer's step with our reference.

    Without a state, report the peer's own check.

    Args:
        env: Name of the environment.
        trace: Result of ``Work.trace`` in ``adapters/work.py``.
    """
    if "says" in trace:
        return Check(passed=True, max_error=0.0, oracle="none: the peer's own account", detail=trace["says"])
    seen = {name: np.asarray(trace[name], np.float64) for name in ("before", "actions", "after", "rewards")}
    rows = len(seen["before"])
    oracle = EnvWrapper(
        ENVS[env](**env_config(env, 1), **trace.get("config", {})), num_envs=rows, env_backend="cpu", seed=SEED
    )
    oracle.reset()
    state = STATES[env](seen["before"]) if env in STATES else seen["before"]
    write(oracle.cuda_data_manager, {"state": state, "sampled_actions": seen["actions"]})
    oracle.step()
    errors = {
        theirs: difference(oracle.cuda_data_manager.pull_data_from_device(ours).reshape(rows, -1), seen[theirs])
        for ours, theirs in (("observations", "after"), ("rewards", "rewards"))
    }
    worst = max(each.error for each in errors.values())
    against = f"NumPy, a step of {rows} environments from the peer's state"
    detail = "; ".join(f"{name} {each}" for name, each in errors.items())
    return Check.within(worst, LOOSER * oracle.env.tolerance, against, detail)
