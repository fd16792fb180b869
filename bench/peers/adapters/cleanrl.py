"""CleanRL's PPO script, from a checkout on the interpreter's path."""

from __future__ import annotations

import importlib.util
import itertools
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from .gymnasium import IDS
from .work import Point, temporary_folder, torch_processor

PACKAGES = ("cleanrl", "torch", "gymnasium", "numpy")
STEPS = 16
"""Steps of its optimiser in an iteration: 4 epochs of 4 minibatches."""
MOMENTS = ("exp_avg", "exp_avg_sq")
PRECISIONS = {"tf32": "high", "fp32": "highest"}
"""torch's names of the precisions of matrix products."""


def device() -> str:
    """Return the kind of device that the script uses."""
    import torch  # noqa: PLC0415  (theirs)

    return "cuda" if torch.cuda.is_available() else "cpu"


def repeat(point: Point) -> dict[str, Any]:
    """Run the script; return weights and Adam's moments of each iteration. Waits."""
    spec = importlib.util.find_spec("cleanrl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'cleanrl'")
    script = Path(next(iter(spec.submodule_search_locations)), "ppo.py")
    import torch  # noqa: PLC0415  (theirs)

    torch.set_float32_matmul_precision(PRECISIONS[point["precision"]])
    if point["options"]["is_deterministic"]:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    states, ends = list[dict[str, Any]](), list[float]()

    class Recorded(torch.optim.Adam):
        """Adam that stores its state after each iteration."""

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._n_steps = 0
            self._store()

        def step(self, *arguments: Any, **more: Any) -> Any:
            loss = super().step(*arguments, **more)
            self._n_steps += 1
            if self._n_steps % STEPS == 0:
                self._store()
            return loss

        def _store(self) -> None:
            found: dict[str, Any] = {}
            for index, weight in enumerate(each for group in self.param_groups for each in group["params"]):
                found[f"model/{index}"] = weight
                moments = self.state.get(weight, {})
                found |= {f"algorithm/{name}/{index}": moments[name] for name in MOMENTS if name in moments}
            states.append({f"policy/shared/{name}": each.detach().cpu().numpy().copy() for name, each in found.items()})
            ends.append(time.perf_counter())

    torch.optim.Adam = Recorded  # type: ignore[misc]
    n_steps = point["n_envs"] * point["n_steps"] * point["n_iterations"]
    options = {"env-id": IDS[point["env"]], "num-envs": point["n_envs"], "num-steps": point["n_steps"]}
    options |= {"total-timesteps": n_steps, "seed": 1}
    sys.argv = [str(script), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    os.chdir(temporary_folder("cleanrl"))
    runpy.run_path(str(script), run_name="__main__")
    seconds = [end - begin for begin, end in itertools.pairwise(ends)]
    return {"states": states, "seconds": seconds, **torch_processor()}
