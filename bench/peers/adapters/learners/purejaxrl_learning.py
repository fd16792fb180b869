"""A training run of PureJaxRL's PPO from a seed, as one program."""

from __future__ import annotations

import time
from typing import Any

from .. import gymnax as environments
from .. import on_jax
from ..gymnasium import IDS
from ..on_jax import device
from ..purejaxrl import CONFIG, PACKAGES, add_flags, imported
from ..work import TRACED, Point

__all__ = ["PACKAGES", "device", "learn", "solve"]

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
    run = CompiledRun(point)
    for _ in range(2):
        if run.train() >= LONG_S:
            break
    return run.report()


def solve(point: Point) -> CompiledRun:
    """Compile a run and train once, as its script does; the weights stay. Waits."""
    run = CompiledRun(point)
    run.train()
    return run


class CompiledRun:
    """A training run as one program.

    Args:
        point: As of `learn`. Its ``options`` are settings of the script, and ``random``, a generator of JAX, and
            ``flags`` of XLA.
    """

    def __init__(self, point: Point) -> None:
        options = dict(point["options"])
        add_flags(options.pop("flags", ""))
        self._ppo, self._point = imported(), point
        import jax  # noqa: PLC0415  (theirs)

        if random := options.pop("random", ""):
            jax.config.update("jax_default_prng_impl", random)
        self._compiled = on_jax.compile_counter()
        n_envs, total_steps = point["n_envs"], point["total_steps"]
        sizes = {"ENV_NAME": IDS[point["env"]], "NUM_ENVS": n_envs, "TOTAL_TIMESTEPS": total_steps}
        self._config = {**CONFIG, **SHIPPED, **sizes, **options}
        whole_run = self._ppo.make_train(dict(self._config))

        def trained(key: Any) -> Any:
            made = whole_run(key)
            info = made["metrics"]
            return made["runner_state"][0].params, info["returned_episode"], info["returned_episode_returns"]

        self._key = jax.random.PRNGKey(point["seed"])
        began = time.perf_counter()
        self._program = jax.jit(trained).lower(self._key).compile()
        self._compile_s, self._programs = time.perf_counter() - began, self._compiled()

    def train(self) -> float:
        """Train from the seed; return the seconds. Waits."""
        import jax  # noqa: PLC0415  (theirs)

        began = time.perf_counter()
        self._weights, self._ended, self._returns = jax.block_until_ready(self._program(self._key))
        self._seconds = time.perf_counter() - began
        return self._seconds

    def report(self) -> dict[str, Any]:
        """Evaluate the weights, and return everything known of the run.

        Raises:
            RuntimeError: Something compiled while it was timed.
        """
        import numpy as np  # noqa: PLC0415

        point, config = self._point, self._config
        if self._compiled() > self._programs:
            raise RuntimeError(f"a timed run must not compile (got {self._compiled() - self._programs} programs)")
        update_steps = point["n_envs"] * config["NUM_STEPS"]
        updates = max(1, point["row_steps"] // update_steps)
        rows = summed_up(np.asarray(self._ended), np.asarray(self._returns), update_steps, updates)
        return {
            "compile_s": self._compile_s,
            "programs": self._programs,
            "seconds": self._seconds,
            "env_steps": rows[-1][0],
            "rows": rows,
            "played": played(self._ppo, config, self._weights, point["n_episodes"]),
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
