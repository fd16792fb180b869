"""Time from the command to a solved environment: `time_to_solution`."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..core.measure import ColdStart, median_metric
from ..core.point import Check, Facts, Measurement, Point
from .points import point_of
from .shared import default_mode, run_config_file

WARM: Final = "warm"
"""Each process finds the caches of an earlier, untimed run; "cold": they are empty."""
THRESHOLD: Final = 475.0
"""Return that solves CartPole-v1, from Gymnasium."""
REACHED: Final = "target return reached"
"""Words that the command ends with at the threshold."""
CONTEXT: Final = "import torch; torch.zeros(1, device={device!r}).cpu()"
"""Program that imports torch and creates the device's context."""


def solution_point(backend: str, caches: str, threshold: float = THRESHOLD) -> Point:
    """Return the point of the shipped run with PPO on CartPole."""
    return point_of(env="cartpole", algorithm="PPO", backend=backend, threshold=threshold, caches=caches)


# ------------------------------------------------------------------ set-up


class Solver:
    """Runs a point's command in new processes, and checks their run folders.

    Args:
        point: The point.
        device: Type of its device.
    """

    def __init__(self, point: Point, device: str) -> None:
        from .setups.starts import scratch_folder

        self._point, self._device = point, device
        self._folder = scratch_folder(self, "solution")
        self._unchecked: list[Path] = []
        self.n_runs = 0
        self.env_steps: list[int] = []
        """Env steps of each sample."""
        self.cache_files: list[tuple[int, int]] = []
        """Files in the caches of each sample, before and after."""

    def sample(self, index: int) -> dict[str, float]:
        """Time a run from seed ``index + 1``, after a process that imports torch.

        Raises:
            StartError: A process failed, or the run missed the threshold.
        """
        from .setups.starts import import_share, run_process

        caches = self._caches()
        began = time.perf_counter()
        program = [sys.executable, "-c", CONTEXT.format(device=self._device)]
        run_process("time_to_solution", program, self._folder / "none", self._folder)
        context_s = time.perf_counter() - began
        before = _n_files(caches)
        seconds, env_steps = self.train(index + 1, caches)
        self.env_steps.append(env_steps)
        self.cache_files.append((before, _n_files(caches)))
        context_s = import_share(context_s, seconds)
        return {"import_torch_s": context_s, "ours_s": seconds - context_s}

    def train(self, seed: int, caches: Path) -> tuple[float, int]:
        """Run the command; return its seconds and env steps.

        Raises:
            StartError: It failed, or missed the threshold.
        """
        from warpdrive_min.training.loop import checkpoint
        from warpdrive_min.training.record.trained import find_checkpoint

        from .setups.starts import StartError, run_process

        runs = self._folder / f"runs-{self.n_runs}"
        self.n_runs += 1
        wanted = {"stop_return": self._point["threshold"], "env_backend": self._point["backend"], "seed": seed}
        config = run_config_file(self._point["env"], f"_{self._point['algorithm'].lower()}")
        command = [sys.executable, "-m", "warpdrive_min", "train", "-e", self._point["env"], "--config", str(config)]
        for key, value in {**{f"trainer.{key}": each for key, each in wanted.items()}, "saving.basedir": runs}.items():
            command += ["--set", f"{key}={value}"]
        began = time.perf_counter()
        output = run_process("time_to_solution", command, caches, self._folder)
        seconds = time.perf_counter() - began
        if REACHED not in output:
            last = [line for line in output.splitlines() if line][-1:]
            rule = f"the run from seed {seed} must reach a return of {self._point['threshold']:g}"
            raise StartError(f"time_to_solution: {rule} (got {' '.join(last)!r}); train it to the end and look")
        (folder,) = (each.parent for each in runs.rglob(checkpoint.FOLDER))
        _, header = checkpoint.load(find_checkpoint(folder))
        got = {key: getattr(header.config.trainer, key) for key in wanted}
        if got != wanted:
            raise StartError(f"time_to_solution: the checkpoint must have the run's settings {wanted} (got {got})")
        self._unchecked.append(folder)
        return seconds, header.env_steps

    def check(self) -> Check:
        """Evaluate the runs since the last check, as `evaluate` does.

        If there was none, run once, which also fills the caches of compiled code and bytecode.
        """
        from warpdrive_min.envs import ENVS
        from warpdrive_min.training.loop import evaluation
        from warpdrive_min.training.record.trained import load_policies

        from .setups.learning import EVALUATED
        from .setups.timing import counterpart

        if not self._unchecked:
            self.train(0, self._caches())
        returns, other = [], counterpart(self._point["backend"])
        for folder in self._unchecked:
            trained = load_policies(folder, ENVS[self._point["env"]]())
            given = (trained.wrapper(other), trained.models, trained.policies, trained.layout, EVALUATED)
            returns += [score.mean_return for score in evaluation.evaluate(*given).values()]
        self._unchecked = []
        missing = max(0.0, self._point["threshold"] - min(returns))
        oracle = f"{EVALUATED} greedy episodes of each run on {other}"
        return Check.within(missing, 0.0, oracle, f"mean returns {', '.join(f'{each:.4g}' for each in returns)}")

    def finish(self, seen: Measurement) -> Measurement:
        """Add the env steps, and the numbers of cached files."""
        steps = median_metric(self.env_steps, "env_steps")
        before, after = zip(*self.cache_files, strict=True)
        notes = {"cache_files_before": before, "cache_files_after": after}
        metrics = {**seen.metrics, "env_steps_to_solution": steps}
        return replace(seen, metrics=metrics, notes=seen.notes | notes)

    def _caches(self) -> Path:
        """Return the folder of the next run's caches: a new one, or one for all."""
        return self._folder / (WARM if self._point["caches"] == WARM else f"caches-{self.n_runs}")


def _n_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def time_to_solution(point: Point) -> ColdStart:
    """Time the documented command until its run folder has a solution.

    Each sample is the command in a new process, from its own seed.
    """
    from .setups.timing import available, torch_threads

    backend = available(point["backend"])
    solver = Solver(point, backend.device.type)
    return ColdStart(
        run=solver.sample,
        is_long=True,
        check=solver.check,
        finish=solver.finish,
        facts=Facts(
            mode=default_mode(backend.name),
            device=backend.device,
            threads=torch_threads(backend),
            work={"starts": 1},
        ),
    )
