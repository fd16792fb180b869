"""gymnax: environments in JAX, stepped in one compiled scan."""

from __future__ import annotations

from typing import Any

from .gymnasium import IDS
from .work import RUN_STEPS, TRACED, Point, Work, jax_device, jax_work, shown

PACKAGES = ("gymnax", "jax", "jaxlib")


device = jax_device
"""Returns the kind of device that it runs on."""


def prepare(point: Point) -> Work:
    """Return a jitted scan of steps with uniform random actions; environments restart within their step."""
    import gymnax  # noqa: PLC0415  (the peer: whether it is there is found out here)
    import jax  # noqa: PLC0415

    env, params = gymnax.make(IDS[point["env"]])
    space = env.action_space(params)
    n_envs = point["n_envs"]

    def start(key: Any, n: int) -> Any:
        return jax.vmap(env.reset, (0, None))(jax.random.split(key, n), params)

    def draw(key: Any, n: int) -> Any:
        return jax.vmap(space.sample)(jax.random.split(key, n))

    def step(key: Any, state: Any, actions: Any) -> Any:
        keys = jax.random.split(key, len(actions))
        return jax.vmap(env.step, (0, 0, 0, None))(keys, state, actions, params)

    def advance(carried: Any, _: None) -> Any:
        key, state, *_ = carried
        key, of_draw, of_step = jax.random.split(key, 3)
        # All that ours writes is carried, or the compiler would leave out what nobody reads.
        observations, state, reward, *ends, _ = step(of_step, state, draw(of_draw, n_envs))
        return (key, state, observations, reward, ends[0]), None

    @jax.jit
    def many(carried: Any) -> Any:
        return jax.lax.scan(advance, carried, None, RUN_STEPS)[0]

    def first(key: Any) -> Any:
        observations, state = start(key, n_envs)
        shown = step(key, state, draw(key, n_envs))
        return key, state, observations, shown[2], shown[3]

    carried = jax.jit(first)(jax.random.key(0))

    def run() -> None:
        nonlocal carried
        carried = many(carried)

    def trace() -> dict[str, Any]:
        rows = min(TRACED, n_envs)
        before, state = start(jax.random.key(1), rows)
        actions = draw(jax.random.key(2), rows)
        after, _, rewards, *_ = step(jax.random.key(3), state, actions)
        return shown(rows, before=before, actions=actions, after=after, rewards=rewards)

    return jax_work(
        lambda: carried,
        {"steps_per_run": RUN_STEPS},
        run=run,
        env_steps=RUN_STEPS * n_envs,
        trace=trace,
        counts="draws + step + restart within it",
    )
