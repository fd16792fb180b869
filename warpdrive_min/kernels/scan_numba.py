"""Advantages and returns in Numba: the rule of `scan.cu`."""

# ruff: noqa: N806, SIM102  (constants keep their names in all languages; Numba prunes only an `if` on its own)

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32


def build(c: Any) -> dict[str, Any]:
    """Return the kernel ``scan``; arrays arrive with one axis for the rows, which are (environment, agent) pairs."""
    AGENTS_PER_ENV, ENVS_PER_BLOCK, THREADS = c.AGENTS_PER_ENV, c.ENVS_PER_BLOCK, c.THREADS
    VALUES, CUTS, COMPAT = c.VALUES, c.CUTS, c.COMPAT
    GENERALISED = VALUES and not COMPAT

    @cuda.jit
    def scan(
        rewards: float32[:, :],
        values: float32[:, :],
        terminated: int32[:, :],
        truncated: int32[:, :],
        last_values: float32[:],
        cut_values: float32[:, :],
        advantages: float32[:, :],
        returns: float32[:, :],
        gamma: float32,
        lam: float32,
        n_steps: int32,
        n_cuts: int32,
        n_rows: int32,
    ) -> None:
        rate = float32(gamma)
        decay = float32(rate * float32(lam))
        for local in range(cuda.threadIdx.x, ENVS_PER_BLOCK, THREADS):
            row = cuda.blockIdx.x * ENVS_PER_BLOCK + local
            if row < n_rows:
                env = row // AGENTS_PER_ENV
                slot = 0  # of the next truncation, going back: first of that after the last
                if CUTS:
                    for step in range(n_steps):
                        if truncated[step, env] != 0:
                            slot += 1
                after = float32(0) if COMPAT else float32(last_values[row])  # what the step that follows has
                advantage = float32(0)
                for step in range(n_steps - 1, -1, -1):
                    is_terminated, is_truncated = terminated[step, env] != 0, truncated[step, env] != 0
                    is_over = is_terminated or is_truncated
                    follow = float32(0) if is_over else after
                    if CUTS:
                        if is_truncated:
                            slot -= 1
                            if not is_terminated and slot < n_cuts:
                                follow = float32(cut_values[slot, row])
                    target = float32(rewards[step, row] + rate * follow)
                    value = float32(values[step, row]) if VALUES else float32(0)
                    if GENERALISED:
                        advantage = float32((target - value) + decay * (float32(0) if is_over else advantage))
                        after = value
                        advantages[step, row] = advantage
                        returns[step, row] = advantage + value
                    else:
                        after = value if COMPAT and step == n_steps - 1 and not is_over else target
                        returns[step, row] = after
                        if VALUES:
                            advantages[step, row] = after - value

    return {"scan": scan}
