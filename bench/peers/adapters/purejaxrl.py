"""PureJaxRL's PPO, from a checkout on the interpreter's path."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import Any

from . import on_jax
from .gymnasium import IDS
from .on_jax import device
from .work import Point, Work

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("purejaxrl", "gymnax", "jax", "jaxlib", "flax", "optax", "distrax")
UPDATES = 10
"""Iterations of a run, which trains from new weights."""
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest"}
"""JAX's names of the precisions of matrix products."""
CONFIG = {
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "DEBUG": False,
}
"""Settings of its script for CartPole, shared by all runs."""


def imported() -> Any:
    """Import its PPO, whose files import each other as scripts."""
    spec = importlib.util.find_spec("purejaxrl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'purejaxrl'")
    sys.path.append(spec.submodule_search_locations[0])
    return importlib.import_module("purejaxrl.ppo")


def prepare(point: Point) -> Work:
    """Return training runs of `UPDATES` iterations, compiled into one program.

    Without logging, environments lack the wrapper for episode sums, and the program returns no metrics.
    """
    ppo = imported()
    import jax  # noqa: PLC0415  (theirs)

    jax.config.update("jax_default_matmul_precision", PRECISIONS[point["precision"]])
    env_steps = UPDATES * point["n_envs"] * point["n_steps"]
    passes = 4 if point["algorithm"] == "PPO" else 1
    config = {
        **CONFIG,
        "ENV_NAME": IDS[point["env"]],
        "NUM_ENVS": point["n_envs"],
        "NUM_STEPS": point["n_steps"],
        "TOTAL_TIMESTEPS": env_steps,
        "UPDATE_EPOCHS": passes,
        "NUM_MINIBATCHES": passes,
        "LR": 2.5e-3,
        "ANNEAL_LR": False,
    }
    is_logged = point["options"]["is_logged"]
    if not is_logged:
        ppo.LogWrapper = lambda env: env
    learn = ppo.make_train(config)
    train = jax.jit(learn if is_logged else lambda key: {"runner_state": learn(key)["runner_state"]})
    made: Any = None
    runs = 0

    def run() -> None:
        nonlocal made, runs
        made = train(jax.random.PRNGKey(runs))
        runs += 1

    def trace() -> dict[str, Any]:
        run()
        name, found = "largest weight", max(float(abs(each).max()) for each in jax.tree.leaves(_weights(made)))
        if is_logged:
            name, found = "mean return", float(made["metrics"]["returned_episode_returns"].mean())
        if not math.isfinite(found):
            raise ArithmeticError(f"its {name} is {found}")
        return {"says": f"its {name} is finite, {found:.4g}"}

    return on_jax.work(
        lambda: made,
        {"updates_per_run": UPDATES, "config": config},
        run=run,
        env_steps=env_steps,
        trace=trace,
        counts="rollout + update, and 1/10 of a start",
    )


def _weights(made: Any) -> Any:
    return made["runner_state"][0].params
