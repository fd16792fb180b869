"""PureJaxRL's PPO, from a checkout on the interpreter's path."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
import time
from typing import Any

from . import on_jax
from .gymnasium import IDS
from .on_jax import device
from .work import Point, Work

__all__ = ["PACKAGES", "device", "prepare", "repeat"]

PACKAGES = ("purejaxrl", "gymnax", "jax", "jaxlib", "flax", "optax", "distrax")
UPDATES = 10
"""Iterations of a run, which trains from new weights."""
PRECISIONS = {"tf32": "tensorfloat32", "fp32": "highest"}
"""JAX's names of the precisions of matrix products."""
LOOPS_IN_GRAPHS = "--xla_gpu_enable_command_buffer=+WHILE"
"""XLA's flag that makes its loops parts of CUDA graphs."""
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
    options = point["options"]
    add_flags(LOOPS_IN_GRAPHS if options["is_in_graph"] else "")
    ppo = imported()
    import jax  # noqa: PLC0415  (theirs)

    jax.config.update("jax_default_matmul_precision", PRECISIONS[point["precision"]])
    jax.config.update("jax_default_prng_impl", options["random"])
    config = _config(point, UPDATES)
    env_steps = config["TOTAL_TIMESTEPS"]
    is_logged = options["is_logged"]
    if not is_logged:
        ppo.LogWrapper = lambda env: env
    if options["unroll"] > 1:
        jax.lax.scan = _unrolling(jax.lax.scan, options["unroll"])
    if options["sorts"] == 1:
        jax.random.permutation = _sorted_once
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


def repeat(point: Point) -> dict[str, Any]:
    """Train twice in this process; return the states of the second run. Waits.

    The states are the carry of its outer loop, before and after each iteration.
    """
    add_flags(point["options"].get("flags", ""))
    ppo = imported()
    import jax  # noqa: PLC0415  (theirs)
    import numpy as np  # noqa: PLC0415

    jax.config.update("jax_default_matmul_precision", PRECISIONS[point["precision"]])
    n, scan = point["n_iterations"], jax.lax.scan

    def outer_scan(step: Any, first: Any, xs: Any, length: Any) -> Any:
        jax.lax.scan = scan  # the outer loop is the first one

        def recorded(carry: Any, x: Any) -> Any:
            carry, _ = step(carry, x)
            return carry, carry

        last, later = scan(recorded, first, xs, length)
        return last, (first, later)

    jax.lax.scan = outer_scan
    train = jax.jit(ppo.make_train(_config(point, n)))
    key = jax.random.PRNGKey(0)
    jax.block_until_ready(train(key))
    began = time.perf_counter()
    first, later = jax.block_until_ready(train(key))["metrics"]
    seconds = (time.perf_counter() - began) / n
    before, after = (
        {_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(each)}
        for each in (first, later)
    )
    states = [before, *({name: array[i] for name, array in after.items()} for i in range(n))]
    return {"states": states, "seconds": [seconds] * n, **on_jax.processor()}


def add_flags(flags: str) -> None:
    """Add flags of XLA to the environment, before JAX starts."""
    if flags:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


def _unrolling(scan: Any, unroll: int) -> Any:
    """Return JAX's scan, which unrolls the steps of a rollout."""

    def unrolling(body: Any, *arguments: Any, **more: Any) -> Any:
        own = {"unroll": unroll} if body.__name__ == "_env_step" else {}
        return scan(body, *arguments, **own, **more)

    return unrolling


def _sorted_once(key: Any, n: int) -> Any:
    """Draw a permutation by sorting 32 random bits for each row; JAX sorts twice."""
    import jax  # noqa: PLC0415  (theirs)

    return jax.numpy.argsort(jax.random.bits(key, (n,)))


def _config(point: Point, n_updates: int) -> dict[str, Any]:
    passes = 4 if point["algorithm"] == "PPO" else 1
    return {
        **CONFIG,
        "ENV_NAME": IDS[point["env"]],
        "NUM_ENVS": point["n_envs"],
        "NUM_STEPS": point["n_steps"],
        "TOTAL_TIMESTEPS": n_updates * point["n_envs"] * point["n_steps"],
        "UPDATE_EPOCHS": passes,
        "NUM_MINIBATCHES": passes,
        "LR": 2.5e-3,
        "ANNEAL_LR": False,
    }


def _name(path: Any) -> str:
    """Name a leaf of its carry: training state, environments, observations, key."""
    import jax  # noqa: PLC0415  (theirs)

    name = jax.tree_util.keystr(path)
    part, key = path[0].idx, name.replace("/", "_")
    if part == 0:
        return f"policy/shared/{'model' if '.params' in name else 'algorithm'}/{key}"
    return "env/observations" if part == 2 else f"env/{key}"


def _weights(made: Any) -> Any:
    return made["runner_state"][0].params
