"""Stable-Baselines3's PPO from a seed, until its mean return reaches a threshold."""

from __future__ import annotations

import time
from typing import Any

from . import gymnasium as environments
from .gymnasium import IDS
from .work import TRACED, Point, torch_processor

PACKAGES = ("stable-baselines3", "gymnasium", "torch", "numpy")


def device() -> str:
    """Return the kind of device: its MLP policies are for the CPU."""
    import stable_baselines3  # noqa: F401, PLC0415  (the peer: whether it is there is found out here)

    return "cpu"


def solve(point: Point) -> Learner:
    """Train until our mean return over the latest rows reaches the threshold. Waits."""
    learner = Learner(point)
    learner.train()
    return learner


class Learner:
    """A training run that stops at the threshold.

    Args:
        point: With ``row_steps``, the steps of a row, ``window_rows`` of a mean return, and ``n_episodes`` of the
            evaluation. Its ``options`` are arguments of PPO; those in ``decays`` fall linearly to 0.
    """

    def __init__(self, point: Point) -> None:
        from stable_baselines3 import PPO  # noqa: PLC0415
        from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

        self._point, options = point, dict(point["options"])
        for name in options.pop("decays", ()):
            options[name] = _linear(options[name])
        envs = make_vec_env(IDS[point["env"]], n_envs=point["n_envs"], seed=point["seed"])
        self._model = PPO("MlpPolicy", envs, seed=point["seed"], device=device(), **options)
        self._episodes: list[tuple[int, float]] = []

    def train(self) -> None:
        """Train; return at the threshold, or after all steps. Waits."""
        began = time.perf_counter()
        self._model.learn(self._point["total_steps"], callback=self._continues)
        self._seconds = time.perf_counter() - began

    def _continues(self, seen: dict[str, Any], _: dict[str, Any]) -> bool:
        """Store ended episodes; return False if the threshold is reached at a row's end."""
        point, steps = self._point, self._model.num_timesteps
        self._episodes += [(steps, float(info["episode"]["r"])) for info in seen["infos"] if "episode" in info]
        window = point["window_rows"] * point["row_steps"]
        if steps % point["row_steps"] >= point["n_envs"] or steps < window:
            return True
        latest = [found for ended, found in self._episodes if ended > steps - window]
        return bool(sum(latest) < point["threshold"] * len(latest))

    def report(self) -> dict[str, Any]:
        """Evaluate the weights, and return everything known of the run."""
        from stable_baselines3.common.evaluation import evaluate_policy  # noqa: PLC0415

        point, model = self._point, self._model
        played, _ = evaluate_policy(model, model.get_env(), point["n_episodes"], return_episode_rewards=True)
        few = {**point, "n_envs": TRACED, "options": {"vectorization_mode": "sync"}}
        return {
            "compile_s": 0.0,
            "programs": 0,
            "seconds": self._seconds,
            "env_steps": model.num_timesteps,
            "rows": self._rows(),
            "played": [float(each) for each in played],
            "trace": environments.prepare(few).trace(),
            "device": device(),
            "mode": "eager",
            "notes": {"config": dict(point["options"]), **torch_processor()},
        }

    def _rows(self) -> list[tuple[int, int, float | None]]:
        """Return rows of steps, ended episodes and their mean return."""
        last, size = self._model.num_timesteps, self._point["row_steps"]
        rows = list[tuple[int, int, float | None]]()
        for end in [*range(size, last, size), last]:
            start = rows[-1][0] if rows else 0
            returns = [found for steps, found in self._episodes if start < steps <= end]
            rows.append((end, len(returns), sum(returns) / len(returns) if returns else None))
        return rows


def _linear(value: float) -> Any:
    """Return a schedule from a value to 0; its argument is the remaining share."""
    return lambda remaining: remaining * value
