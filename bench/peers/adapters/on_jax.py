"""Work compiled by JAX: one program per step or per many steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .work import RUN_STEPS, Point, Work

COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event for a compiled program."""


def device() -> str:
    """Return the kind of device that JAX uses."""
    import jax  # noqa: PLC0415  (theirs)

    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def processor() -> dict[str, str]:
    """Return the name and architecture of the device that JAX uses."""
    import jax  # noqa: PLC0415  (theirs)

    used = jax.devices()[0]
    capability = str(getattr(used, "compute_capability", "")).replace(".", "")
    return {"processor": str(used.device_kind), "architecture": f"sm_{capability}" if capability else "CPU"}


def compile_counter() -> Callable[[], int]:
    """Return a counter of programs that JAX compiles from now on."""
    import jax  # noqa: PLC0415  (theirs)

    programs = 0

    def count(event: str, *_: Any, **__: Any) -> None:
        nonlocal programs
        programs += event == COMPILED

    jax.monitoring.register_event_duration_secs_listener(count)
    return lambda: programs


def work(arrays: Callable[[], Any], notes: Mapping[str, Any], *, mode: str = "fused", **fields: Any) -> Work:
    """Return work compiled by JAX, with its results and a program counter."""
    import jax  # noqa: PLC0415  (theirs)

    kind = device()
    return Work(
        wait=lambda: (jax.block_until_ready(arrays()), None)[1],
        mode=mode,
        device=kind,
        threads=None if kind == "cuda" else len(os.sched_getaffinity(0)),
        compiled=compile_counter(),
        notes={"device": str(jax.devices()[0].device_kind), **notes},
        **fields,
    )


def stepping(
    point: Point,
    start: Callable[[Any, int], Any],
    draw: Callable[[Any, int], Any],
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    trace: Callable[[], dict[str, Any]],
    counts: str,
) -> Work:
    """Return the stepping of environments that restart within their step.

    A run is `RUN_STEPS` steps: a scan with the option ``unroll``, or, if that is 0, calls of one compiled step.
    With the option ``carries`` "state" the compiler may remove whatever the next state does not need.

    Args:
        point: The point.
        start: Returns the start state from a key and the number of environments.
        draw: Returns random actions from a key and the number of environments.
        step: Returns the next state and outputs from a key, a state and actions.
        trace: As in `Work`.
        counts: As in `Work`.
    """
    import jax  # noqa: PLC0415  (theirs)

    n_envs, unroll = point["n_envs"], point["options"]["unroll"]
    has_outputs = point["options"].get("carries", "results") == "results"

    def advance(carried: Any) -> Any:
        key, state = carried[:2]
        key, of_draw, of_step = jax.random.split(key, 3)
        state, outputs = step(of_step, state, draw(of_draw, n_envs))
        return (key, state, outputs) if has_outputs else (key, state)

    def scanned(carried: Any) -> Any:
        return jax.lax.scan(lambda each, _: (advance(each), None), carried, None, RUN_STEPS, unroll=unroll)[0]

    def first(key: Any) -> Any:
        return advance((key, start(key, n_envs)))

    program = jax.jit(scanned if unroll else advance)
    carried = jax.jit(first)(jax.random.key(0))

    def run() -> None:
        nonlocal carried
        for _ in range(1 if unroll else RUN_STEPS):
            carried = program(carried)

    return work(
        lambda: carried,
        {"steps_per_run": RUN_STEPS, "carried": "results" if has_outputs else "state"},
        mode="fused" if unroll else "eager",
        run=run,
        env_steps=RUN_STEPS * n_envs,
        trace=trace,
        counts=counts,
    )
