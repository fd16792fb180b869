"""A training run of PureJaxRL's PPO from a seed, as one program."""

from __future__ import annotations

import time
from typing import Any

from . import gymnax as environments
from . import on_jax
from .gymnasium import IDS
from .on_jax import device
from .purejaxrl import CONFIG, PACKAGES, imported
from .work import TRACED, Point

__all__ = ["PACKAGES", "device", "learn"]

SHIPPED = {"NUM_STEPS": 128, "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "LR": 2.5e-4, "ANNEAL_LR": True}
"""More settings of its script for CartPole."""
LONG_S = 5.0
"""Duration above which first and second run are equally fast, s."""
EPISODE_STEPS = 500
"""Maximum steps of an evaluation episode."""


def learn(point: Point) -> dict[str, Any]:
    """Compile a run, train from the seed, and evaluate the final weights.

    A run shorter than `LONG_S` is repeated, and the second one is timed. Waits.

    Args:
        point: With ``row_steps``, the steps of a row, and ``n_episodes`` of the evaluation.

    Raises:
        RuntimeError: Something compiled while it was timed.
    """
    ppo = imported()
    import jax  # noqa: PLC0415  (theirs)
    import numpy as np  # noqa: PLC0415

    compiled = on_jax.compile_counter()
    n_envs, total_steps, options = point["n_envs"], point["total_steps"], point["options"]
    sizes = {"ENV_NAME": IDS[point["env"]], "NUM_ENVS": n_envs, "TOTAL_TIMESTEPS": total_steps}
    config = {**CONFIG, **SHIPPED, **sizes, **options}
    whole_run = ppo.make_train(dict(config))

    def trained(key: Any) -> Any:
        made = whole_run(key)
        info = made["metrics"]
        return made["runner_state"][0].params, info["returned_episode"], info["returned_episode_returns"]

    key = jax.random.PRNGKey(point["seed"])
    began = time.perf_counter()
    program = jax.jit(trained).lower(key).compile()
    compile_s, programs = time.perf_counter() - began, compiled()
    for _ in range(2):
        began = time.perf_counter()
        weights, ended, returns = jax.block_until_ready(program(key))
        seconds = time.perf_counter() - began
        if seconds >= LONG_S:
            break
    if compiled() > programs:
        raise RuntimeError(f"a timed run must not compile (got {compiled() - programs} programs)")
    update_steps = n_envs * config["NUM_STEPS"]
    rows = summed_up(np.asarray(ended), np.asarray(returns), update_steps, max(1, point["row_steps"] // update_steps))
    return {
        "compile_s": compile_s,
        "programs": programs,
        "seconds": seconds,
        "env_steps": rows[-1][0],
        "rows": rows,
        "played": played(ppo, config, weights, point["n_episodes"]),
        "trace": environments.prepare({**point, "n_envs": TRACED, "options": {"unroll": 0}}).trace(),
        "device": device(),
        "notes": {"config": config},
    }


def summed_up(ended: Any, returns: Any, update_steps: int, updates: int) -> list[tuple[int, int, float | None]]:
    """Return rows of steps, ended episodes and their mean return.

    Args:
        ended: Marks of the steps with which an episode ended, (n_updates, ...).
        returns: Returns of the last episode to end in each environment, alike.
        update_steps: Steps before an update.
        updates: Updates of a row; the last row may have fewer.
    """
    rows: list[tuple[int, int, float | None]] = []
    for first in range(0, len(ended), updates):
        some = returns[first : first + updates][ended[first : first + updates]]
        steps = update_steps * min(first + updates, len(ended))
        rows.append((steps, len(some), float(some.mean()) if len(some) else None))
    return rows


def played(ppo: Any, config: Any, weights: Any, n_episodes: int) -> list[float]:
    """Return the returns of greedy episodes, one per environment."""
    import gymnax  # noqa: PLC0415  (theirs)
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    env, params = gymnax.make(config["ENV_NAME"])
    network = ppo.ActorCritic(env.action_space(params).n, activation=config["ACTIVATION"])

    def step(key: Any, observations: Any, state: Any) -> Any:
        key, of_step = jax.random.split(key)
        actions = network.apply(weights, observations)[0].mode()
        keys = jax.random.split(of_step, n_episodes)
        observations, state, reward, *ends, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        return key, observations, state, reward, ends[0] | ends[-1]

    key = jax.random.PRNGKey(1)
    observations, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, n_episodes), params)
    program = jax.jit(step)
    returns, is_on = np.zeros(n_episodes), np.ones(n_episodes, bool)
    for _ in range(EPISODE_STEPS):
        key, observations, state, reward, ended = program(key, observations, state)
        returns += np.where(is_on, np.asarray(reward), 0.0)
        is_on &= ~np.asarray(ended, bool)
        if not is_on.any():
            break
    return [float(each) for each in returns]
