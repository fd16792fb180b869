"""Many steps in one launch beside the same steps one by one: `many_steps`."""

from __future__ import annotations

from typing import Any, Final

import torch

from warpdrive_min import BACKENDS, EnvWrapper
from warpdrive_min.consistency import difference
from warpdrive_min.constants import FINAL_OBSERVATIONS
from warpdrive_min.envs import ENVS
from warpdrive_min.rollouts import Steps

from ..case import Skip
from ..measure import Timed
from ..point import Check, Mode, Point, Preset
from .env_step import CARTPOLE, CHECKED_STEPS, TAG_CONTINUOUS, TAG_GRIDWORLD, checked_envs, env_step, place
from .shared import EPISODE_LENGTHS, ON_GPU, SEED, Repeated, available, compared, env_config, snapshot_of, timed

STEPS_OF_A_LAUNCH: Final = 100


def many_steps(point: Point) -> Timed:
    """Take random steps, restart what ended: so many in a launch, or, as in `env_step`, a draw and a step at a time."""
    if point["mode"] != "fused":
        return env_step(point)
    backend = available(point["backend"])
    n_envs, n_agents = point["n_envs"], point["n_agents"]
    wrapper = started(point, point["backend"], n_envs)
    if wrapper.rollout_mode.name != "fused":
        raise Skip(f"{point['env']} on {point['backend']} steps one by one: {wrapper.rollout_mode.reason}")
    launch, steps = wrapper.bound_rollout(STEPS_OF_A_LAUNCH, keep=point["kept"])
    launch()
    per_step = wrapper.env.bytes_per_step
    state = 8 * getattr(wrapper.env, "n_state", 0) + 8  # and the step counter: in registers, or once a launch
    return timed(
        backend,
        Repeated(launch, STEPS_OF_A_LAUNCH, "fused"),
        lambda: twin_agrees(point, steps),
        is_pinned=True,
        work={"env_steps": n_envs, "agent_steps": n_envs * n_agents},
        threads=backend.threads,
        n_bytes=n_envs * (per_step - state if point["kept"] == "all" else 0),
        n_ops=n_envs * wrapper.env.ops_per_step,
        notes={"steps_per_run": STEPS_OF_A_LAUNCH},
        snapshot=lambda: snapshot_of(wrapper.cuda_data_manager),
    )


def twin_agrees(point: Point, steps: Steps) -> Check:
    """Hold a twin of few environments and exact floats against NumPy; the point's own numbers must be finite."""
    n_envs = checked_envs(point)
    pair = [started(point, backend, n_envs, exact=True) for backend in (point["backend"], "cpu")]
    for wrapper in pair:
        wrapper.rollout(CHECKED_STEPS, keep=point["kept"])
    arrays = [
        {name: each.tensor(name).cpu().numpy() for name in each.array_names() if name != FINAL_OBSERVATIONS}
        for each in (wrapper.cuda_data_manager for wrapper in pair)
    ]
    errors = {name: difference(arrays[1][name], arrays[0][name]).error for name in arrays[1]}
    largest = max(errors, key=lambda name: errors[name])
    is_finite = bool(torch.isfinite(steps.observations).all() and torch.isfinite(steps.rewards).all())
    return Check(
        passed=is_finite and errors[largest] == 0,
        max_error=errors[largest],
        oracle=f"NumPy, {n_envs} environments, {CHECKED_STEPS} steps at once, to the bit",
        detail=f"largest difference of a twin with exact floats: {errors[largest]:g} ({largest}); "
        f"numbers of the point are {'finite' if is_finite else 'not finite'}",
    )


def started(point: Point, backend: str, n_envs: int, *, exact: bool = False) -> EnvWrapper:
    """Build and start the environment of a point."""
    env = ENVS[point["env"]](**env_config(point["env"], point["n_agents"]))
    wrapper = EnvWrapper(env, num_envs=n_envs, env_backend=backend, seed=SEED, auto_reset=True, exact=exact)
    wrapper.reset()
    return wrapper


def many_steps_points(preset: Preset) -> list[Point]:
    """Return environments of one agent, and both Tags, by mode; all steps are kept where those of one agent fit."""
    on_gpu = torch.cuda.is_available() or preset == "full"
    few = {CARTPOLE: [64], TAG_GRIDWORLD: [4]}
    sizes: dict[tuple[str, int], list[int]] = few
    if preset != "smoke":
        of_one = [10_000, *([100_000, 1_000_000] if on_gpu else [])]
        sizes = {(env, 1): of_one[:: len(of_one) - 1 or 1] for env in EPISODE_LENGTHS}
        sizes[CARTPOLE] = of_one
        sizes[TAG_GRIDWORLD] = sizes[TAG_CONTINUOUS] = [100, *([2_000] if on_gpu else [])]
    return [
        place(env, backend, n_envs, n_agents, mode=mode, kept=kept)
        for (env, n_agents), counts in sizes.items()
        for n_envs in counts
        for backend in BACKENDS
        if backend != "cpu"
        for mode, kept in modes(backend, n_agents)
    ]


def modes(backend: str, n_agents: int) -> list[tuple[Mode, str]]:
    """Return today's launches, and many steps in one, whose last step is kept, or all."""
    single: Mode = "graph" if backend in ON_GPU else "eager"
    kept: list[Any] = ["last", "all"] if n_agents == 1 else ["last"]
    return [(single, "last"), *(("fused", each) for each in kept)]


MANY_STEPS: Final = compared(
    name="many_steps",
    title="random steps, many in a launch, or a draw and a step at a time",
    scope="env",
    points=many_steps_points,
    setup=many_steps,
    over=("mode", "graph", "eager"),
)
