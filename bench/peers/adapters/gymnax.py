"""gymnax: environments in JAX."""

from __future__ import annotations

from typing import Any

from . import on_jax
from .gymnasium import IDS
from .on_jax import device
from .work import TRACED, Point, Work, as_lists

__all__ = ["PACKAGES", "device", "prepare"]

PACKAGES = ("gymnax", "jax", "jaxlib")


def prepare(point: Point) -> Work:
    """Return steps with random actions; environments restart within their step."""
    import gymnax  # noqa: PLC0415  (the peer: whether it is there is found out here)
    import jax  # noqa: PLC0415

    env, params = gymnax.make(IDS[point["env"]])
    space = env.action_space(params)

    def reset(key: Any, n: int) -> Any:
        return jax.vmap(env.reset, (0, None))(jax.random.split(key, n), params)

    def draw(key: Any, n: int) -> Any:
        return jax.vmap(space.sample)(jax.random.split(key, n))

    def step(key: Any, state: Any, actions: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, len(actions))
        observations, state, reward, *ends, _ = jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)
        return state, (observations, reward, ends[0])

    def trace() -> dict[str, Any]:
        rows = min(TRACED, point["n_envs"])
        before, state = reset(jax.random.key(1), rows)
        actions = draw(jax.random.key(2), rows)
        after, rewards, _ = step(jax.random.key(3), state, actions)[1]
        return as_lists(rows, before=before, actions=actions, after=after, rewards=rewards)

    def start(key: Any, n: int) -> Any:
        return reset(key, n)[1]

    return on_jax.stepping(point, start, draw, step, trace, "draws + step + restart within it")
