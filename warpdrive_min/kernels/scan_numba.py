"""Advantages and returns in Numba: the rule of `scan.cu`."""

# ruff: noqa: N806, SIM102  (constants keep their names in all languages; Numba prunes only an `if` on its own)

from __future__ import annotations

from typing import Any

from numba import cuda, float32

from warpdrive_min.kernels.arguments import Scan


def build(c: Any) -> dict[str, Any]:
    """Return the kernel ``scan``.

    Arrays have one axis of rows, which are (environment, agent) pairs.
    """
    AGENTS_PER_ENV, ENVS_PER_BLOCK, THREADS = c.AGENTS_PER_ENV, c.ENVS_PER_BLOCK, c.THREADS
    VALUES, CUTS, COMPAT = c.VALUES, c.CUTS, c.COMPAT
    GENERALISED = VALUES and not COMPAT

    @cuda.jit
    def scan(given: Scan) -> None:
        rate = float32(given.gamma)
        decay = float32(rate * float32(given.lam))
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            row = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if row < given.n_rows:
                env = row // AGENTS_PER_ENV
                slot = 0  # of the next truncation backwards; starts after the last one
                if CUTS:
                    for step in range(given.n_steps):
                        if given.truncated[step, env] != 0:
                            slot += 1
                after = float32(0) if COMPAT else float32(given.last_values[row])  # of the following step
                advantage = float32(0)
                for step in range(given.n_steps - 1, -1, -1):
                    is_terminated, is_truncated = given.terminated[step, env] != 0, given.truncated[step, env] != 0
                    is_over = is_terminated or is_truncated
                    follow = float32(0) if is_over else after
                    if CUTS:
                        if is_truncated:
                            slot -= 1
                            if not is_terminated and slot < given.n_cuts:
                                follow = float32(given.cut_values[slot, row])
                    target = float32(given.rewards[step, row] + rate * follow)
                    value = float32(given.values[step, row]) if VALUES else float32(0)
                    if GENERALISED:
                        advantage = float32((target - value) + decay * (float32(0) if is_over else advantage))
                        after = value
                        given.advantages[step, row] = advantage
                        given.returns[step, row] = advantage + value
                    else:
                        after = value if COMPAT and step == given.n_steps - 1 and not is_over else target
                        given.returns[step, row] = after
                        if VALUES:
                            given.advantages[step, row] = after - value

    return {"scan": scan}
