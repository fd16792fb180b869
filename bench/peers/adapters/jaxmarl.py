"""JaxMARL: the simple tag of MPE in JAX, similar to Tag Continuous."""

from __future__ import annotations

from typing import Any

from . import on_jax
from .on_jax import device
from .work import Point, Work

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("jaxmarl", "jax", "jaxlib")


def prepare(point: Point) -> Work:
    """Return steps with random actions; environments restart within their step."""
    import jax  # noqa: PLC0415  (theirs)
    import jaxmarl  # noqa: PLC0415  (the peer: whether it is there is found out here)
    import numpy as np  # noqa: PLC0415

    n_taggers = point["n_taggers"]
    env = jaxmarl.make("MPE_simple_tag_v3", num_adversaries=n_taggers, num_good_agents=point["n_agents"] - n_taggers)
    agents = env.agents

    def start(key: Any, n: int) -> Any:
        return jax.vmap(env.reset)(jax.random.split(key, n))[1]

    def draw(key: Any, n: int) -> Any:
        keys = zip(agents, jax.random.split(key, len(agents)), strict=True)
        return {agent: jax.vmap(env.action_space(agent).sample)(jax.random.split(each, n)) for agent, each in keys}

    def step(key: Any, state: Any, actions: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, len(actions[agents[0]]))
        observations, state, rewards, ends, _ = jax.vmap(env.step)(keys, state, actions)
        return state, (observations, rewards, ends)

    def trace() -> dict[str, Any]:
        n = point["n_envs"]
        state = start(jax.random.key(1), n)
        of_draw, of_step = jax.random.split(jax.random.key(2))
        moved, written = step(of_step, state, draw(of_draw, n))
        clocks = np.asarray(moved.step)
        finite = all(np.isfinite(np.asarray(each)).all() for part in written for each in part.values())
        if not (clocks == np.asarray(state.step) + 1).all() or not finite:
            raise ArithmeticError(
                f"of {n} environments {int((clocks == 1).sum())} moved on by a step; finite: {finite}"
            )
        return {"says": f"another game: all {n} environments moved on by a step, and their arrays are finite"}

    counts = "draws + step + restart within it, of MPE's simple tag: another game"
    return on_jax.stepping(point, start, draw, step, trace, counts)
