"""Process of `startup`, run as ``python -P bench/workloads/fresh.py JSON FOLDER``.

Before the clock starts only the standard library may be imported, which is checked. JSON is the point. FOLDER receives
``parts.json``, the seconds of each part, and ``arrays.npz``, the resulting arrays.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

if __name__ == "__main__":  # run by path: the path tells if the package lies in another one
    _outer = "warpdrive_min." if (Path(__file__).resolve().parents[2] / "__init__.py").exists() else ""
    __package__ = f"{_outer}bench.workloads"


Result = TypeVar("Result")
FIRST_UPDATE = "first update"


class PartTimes:
    """Seconds of each part of a start, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], Result]) -> Result:
        """Run one part, wait for it, and record its time."""
        start = time.perf_counter()
        result = work()
        self.seconds[name] = time.perf_counter() - start
        return result


def start(point: dict[str, Any], parts: PartTimes) -> dict[str, Any]:
    """Start up to the first step or update, and return the arrays."""
    backend = parts.time("import_s", lambda: _import(point["backend"]))
    parts.time("context_s", lambda: _allocate(backend))
    return (_first_update if point["until"] == FIRST_UPDATE else _first_step)(point, backend, parts)


def _import(name: str) -> Any:
    """Import the package, and find out if a backend is available."""
    import warpdrive_min

    for each in warpdrive_min.__all__:  # a name is imported on first use
        getattr(warpdrive_min, each)
    return warpdrive_min.BACKENDS[name].require()


def _allocate(backend: Any) -> None:
    import torch

    torch.zeros(1, device=backend.device)
    backend.synchronize()


def _first_step(point: dict[str, Any], backend: Any, parts: PartTimes) -> dict[str, Any]:
    """Build and start the environments, build the sampler, and step once."""
    from warpdrive_min.policies import random_policy

    from .setups.environments import build_env
    from .shared import SEED

    def done(work: Callable[[], Any]) -> Callable[[], Any]:
        def waited() -> Any:
            result = work()
            backend.synchronize()
            return result

        return waited

    exact = {**point, "exact": True}
    wrapper = parts.time("build_s", done(lambda: build_env(exact, point["backend"], point["n_envs"])))
    parts.time("first_reset_s", done(wrapper.reset))
    draw = parts.time("sampler_s", done(lambda: random_policy(wrapper, SEED)))
    parts.time("first_draw_s", done(draw))
    parts.time("first_step_s", done(wrapper.step))
    return compared_arrays(wrapper)


def _first_update(point: dict[str, Any], backend: Any, parts: PartTimes) -> dict[str, Any]:
    """Build a trainer and iterate twice; on a GPU the second in graphs."""
    parts.time("import_training_s", lambda: importlib.import_module("warpdrive_min.training.trainer"))
    from .setups.trainers import fixed_policy_trainer

    def iterate() -> None:
        trainer.iterate()
        backend.synchronize()

    trainer = parts.time("trainer_s", lambda: fixed_policy_trainer(point, exact=True))
    parts.time("first_iteration_s", iterate)
    parts.time("second_iteration_s", iterate)
    if trainer.capture_s:
        parts.seconds["second_iteration_s"] -= trainer.capture_s
        parts.seconds["capture_s"] = trainer.capture_s
    return compared_arrays(trainer.wrapper) | {"weights": trainer.weights().numpy()}


def compared_arrays(wrapper: Any) -> dict[str, Any]:
    """Return the arrays that are compared."""
    data = wrapper.cuda_data_manager
    return {name: data.pull_data_from_device(name) for name in ("observations", "rewards", "_timestep_")}


def main(text: str, folder: str) -> None:
    """Run the start of a point and write both files."""
    if early := sorted({"torch", "numpy", "warpdrive_min", "bench"} & sys.modules.keys()):
        raise RuntimeError(f"fresh: must start with nothing imported (got {', '.join(early)}); run it by its path")
    parts = PartTimes()
    point = json.loads(text)
    arrays = start(point, parts)
    import numpy as np

    np.savez(Path(folder) / "arrays.npz", **arrays)
    Path(folder, "parts.json").write_text(json.dumps(parts.seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
