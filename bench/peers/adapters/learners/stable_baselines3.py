"""Stable-Baselines3's PPO from a seed, until its mean return reaches a threshold."""

from __future__ import annotations

import time
from typing import Any

from .. import gymnasium as environments
from ..gymnasium import IDS
from ..work import Point, torch_processor, use_threads
from .returns import Returns, total_steps

PACKAGES = ("stable-baselines3", "gymnasium", "torch", "numpy")


def device() -> str:
    """Return the kind of device: its MLP policies are for the CPU."""
    import stable_baselines3  # noqa: F401, PLC0415  (the peer: whether it is there is found out here)

    return "cpu"


def solve(point: Point) -> Learner:
    """Train until the latest episodes reach the threshold. Waits."""
    learner = Learner(point)
    learner.train()
    return learner


class Learner:
    """A training run that stops at the threshold.

    Args:
        point: As of `Returns`, with ``n_episodes`` of the evaluation. Its ``options`` are arguments of PPO, and
            ``threads``, those of torch (0: its default), and ``decays``: learning rate and clip range fall to 0.
    """

    def __init__(self, point: Point) -> None:
        from stable_baselines3 import PPO  # noqa: PLC0415
        from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

        self._point, options = point, dict(point["options"])
        use_threads(options.pop("threads", 0))
        for name in ("learning_rate", "clip_range") if options.pop("decays", False) else ():
            options[name] = _linear(options[name])
        envs = make_vec_env(IDS[point["env"]], n_envs=point["n_envs"], seed=point["seed"])
        self._model = PPO("MlpPolicy", envs, seed=point["seed"], device=device(), **options)
        self._returns = Returns(point)

    def train(self) -> None:
        """Train; return at the threshold, or after all steps. Waits."""
        began = time.perf_counter()
        self._model.learn(total_steps(self._point), callback=self._continues)
        self._seconds = time.perf_counter() - began

    def _continues(self, seen: dict[str, Any], _: dict[str, Any]) -> bool:
        """Store ended episodes; return False if the threshold is reached."""
        returns = [float(info["episode"]["r"]) for info in seen["infos"] if "episode" in info]
        return not self._returns.add(self._model.num_timesteps, returns)

    def report(self) -> dict[str, Any]:
        """Evaluate the weights, and return everything known of the run."""
        from stable_baselines3.common.evaluation import evaluate_policy  # noqa: PLC0415

        point, model = self._point, self._model
        played, _ = evaluate_policy(model, model.get_env(), point["n_episodes"], return_episode_rewards=True)
        return {
            **self._returns.report(),
            "seconds": self._seconds,
            "played": [float(each) for each in played],
            "trace": environments.traced(point),
            "device": device(),
            "notes": {"config": dict(point["options"]), **torch_processor()},
        }


def _linear(value: float) -> Any:
    """Return a schedule from a value to 0; its argument is the remaining share."""
    return lambda remaining: remaining * value
