"""PureJaxRL's PPO, which is no package: its checkout is put on the path of the interpreter by whoever has it."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from typing import Any

from .gymnasium import IDS
from .work import Point, Work, jax_device, jax_work

PACKAGES = ("purejaxrl", "gymnax", "jax", "jaxlib", "flax", "optax", "distrax")
UPDATES = 10
"""Iterations of a run, which is a whole training run from fresh weights."""
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest"}
"""JAX's names for how matrices are multiplied on a GPU."""


device = jax_device
"""Returns the kind of device that it runs on."""


def prepare(point: Point) -> Work:
    """Return training runs of `UPDATES` iterations, compiled into one program."""
    spec = importlib.util.find_spec("purejaxrl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'purejaxrl'")
    sys.path.append(spec.submodule_search_locations[0])  # its files import each other as scripts do
    make_train = importlib.import_module("purejaxrl.ppo").make_train
    import jax  # noqa: PLC0415  (theirs)

    jax.config.update("jax_default_matmul_precision", PRECISIONS[point["precision"]])
    env_steps = UPDATES * point["n_envs"] * point["n_steps"]
    passes = 4 if point["algorithm"] == "PPO" else 1
    config = {
        "ENV_NAME": IDS[point["env"]],
        "NUM_ENVS": point["n_envs"],
        "NUM_STEPS": point["n_steps"],
        "TOTAL_TIMESTEPS": env_steps,
        "UPDATE_EPOCHS": passes,
        "NUM_MINIBATCHES": passes,
        "LR": 2.5e-3,
        "ANNEAL_LR": False,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "DEBUG": False,
    }
    train = jax.jit(make_train(config))
    made: Any = None
    runs = 0

    def run() -> None:
        nonlocal made, runs
        made = train(jax.random.PRNGKey(runs))
        runs += 1

    def trace() -> dict[str, Any]:
        run()
        mean = float(made["metrics"]["returned_episode_returns"].mean())
        if not math.isfinite(mean):
            raise ArithmeticError(f"its mean return is {mean}")
        return {"says": f"its mean return is finite, {mean:.4g}"}

    return jax_work(
        lambda: made,
        {"updates_per_run": UPDATES, "config": config},
        run=run,
        env_steps=env_steps,
        trace=trace,
        counts="rollout + update, and 1/10 of a start",
    )
