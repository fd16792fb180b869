"""CleanRL's PPO script, from a checkout on the interpreter's path."""

from __future__ import annotations

import importlib.util
import itertools
import os
import runpy
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from .. import gymnasium as environments
from ..gymnasium import IDS
from ..work import Point, temporary_folder, torch_processor, use_threads
from .returns import Returns, total_steps

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
    _script()
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
    _run(point, {"num-steps": point["n_steps"], "total-timesteps": n_steps, "seed": 1})
    seconds = [end - begin for begin, end in itertools.pairwise(ends)]
    return {"states": states, "seconds": seconds, **torch_processor()}


class Solved(Exception):  # noqa: N818  (an outcome, not a mistake)
    """The mean return reached the threshold."""


class Learner:
    """A run of the script that stops at the threshold.

    Args:
        point: As of `Returns`, with ``n_episodes`` of the evaluation. Its ``options`` are arguments of the script, and
            ``threads``, those of torch (0: its default).
    """

    def __init__(self, point: Point) -> None:
        self._point, self._returns, self._shims = point, Returns(point), _shims()
        self._agent: Any = None

    def train(self) -> None:
        """Train; return at the threshold, or after all steps. Waits."""
        import gymnasium  # noqa: PLC0415  (theirs)

        ended, counted = list[float](), self._returns

        class Recorded(gymnasium.wrappers.RecordEpisodeStatistics):
            """Environment that stores its episodes' returns."""

            def step(self, action: Any) -> Any:
                found = super().step(action)
                if "episode" in found[-1]:
                    ended.append(float(found[-1]["episode"]["r"]))
                return found

        class Counted(gymnasium.vector.SyncVectorEnv):
            """Environments that end the script at the threshold."""

            def step(self, actions: Any) -> Any:
                found = super().step(actions)
                if counted.add(counted.env_steps + self.num_envs, ended):
                    raise Solved
                ended.clear()
                return found

        began = time.perf_counter()
        options = {**self._point["options"], "total-timesteps": total_steps(self._point), "seed": self._point["seed"]}
        use_threads(options.pop("threads", 0))
        try:
            with (
                patch.object(gymnasium.wrappers, "RecordEpisodeStatistics", Recorded),
                patch.object(gymnasium.vector, "SyncVectorEnv", Counted),
            ):
                found = _run(self._point, options)
        except Solved as error:
            frames = traceback.walk_tb(error.__traceback__)
            found = next(each.f_globals for each, _ in frames if "agent" in each.f_globals)
        self._seconds, self._agent = time.perf_counter() - began, found["agent"]

    def report(self) -> dict[str, Any]:
        """Evaluate the weights, and return everything known of the run."""
        point = self._point
        return {
            **self._returns.report(),
            "seconds": self._seconds,
            "played": self._played(point["n_episodes"]),
            "trace": environments.traced(point),
            "device": next(self._agent.parameters()).device.type,
            "notes": {"config": dict(point["options"]), "shims": self._shims, **torch_processor()},
        }

    def _played(self, n_episodes: int) -> list[float]:
        """Return the returns of greedy episodes, played at once."""
        import gymnasium  # noqa: PLC0415  (theirs)
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

        envs = [gymnasium.make(IDS[self._point["env"]]) for _ in range(n_episodes)]
        observations = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
        returns, playing = [0.0] * n_episodes, list(range(n_episodes))
        device = next(self._agent.parameters()).device
        while playing:
            logits = self._agent.actor(torch.as_tensor(np.stack([observations[k] for k in playing]), device=device))
            still = list[int]()
            for k, action in zip(playing, logits.argmax(1).tolist(), strict=True):
                observations[k], reward, *ends, _ = envs[k].step(action)
                returns[k] += float(reward)
                still += [] if any(ends) else [k]
            playing = still
        return returns


def solve(point: Point) -> Learner:
    """Train until the latest episodes reach the threshold. Waits."""
    learner = Learner(point)
    learner.train()
    return learner


def _shims() -> list[str]:
    """Replace TensorBoard's writer, if it is missing, by one that writes nothing."""
    if importlib.util.find_spec("tensorboard"):
        return []
    nothing = SimpleNamespace(add_text=_nothing, add_scalar=_nothing, close=_nothing)
    sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=lambda folder: nothing)  # type: ignore[assignment]
    return ["tensorboard"]


def _nothing(*_: Any) -> None:
    """Write nothing."""


def _script() -> Path:
    """Return the path of its script."""
    spec = importlib.util.find_spec("cleanrl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'cleanrl'")
    return Path(next(iter(spec.submodule_search_locations)), "ppo.py")


def _run(point: Point, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the script in a temporary folder; return its globals. Waits."""
    script = _script()
    options = {"env-id": IDS[point["env"]], "num-envs": point["n_envs"], **options}
    sys.argv = [str(script), *(f"--{name}={value}".removesuffix("=") for name, value in options.items())]
    os.chdir(temporary_folder("cleanrl"))
    return runpy.run_path(str(script), run_name="__main__")
