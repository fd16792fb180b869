"""Many steps a launch in Numba: a kernel `rollout` against single draws and steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from envs import ENVS
from tests.support import BACKENDS_HERE, SCENARIOS
from warpdrive_min import EnvWrapper
from warpdrive_min.backends.numba_cuda import simulated
from warpdrive_min.constants import Constants
from warpdrive_min.environment import environment_constants
from warpdrive_min.function_manager import CUDAFunctionManager
from warpdrive_min.policies import random_policy
from warpdrive_min.rng import STREAM_ACTIONS
from warpdrive_min.spaces import action_bounds

cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")

ACTIONS = Constants.ACTIONS
KEPT = ("observations", "final_observations", "rewards", "terminated", "truncated", "_done_")
N_ENVS, N_STEPS = 3, 3


def start(scenario: str) -> EnvWrapper:
    name, config = SCENARIOS[scenario]
    wrapper = EnvWrapper(
        ENVS[name](**{**config, "episode_length": 2}), num_envs=N_ENVS, env_backend="numba", auto_reset=True, exact=True
    )
    wrapper.reset()
    return wrapper


def rollout(wrapper: EnvWrapper, draws: dict[str, Any], rows: dict[str, torch.Tensor], keep_all: bool) -> Any:
    """Return the launch of N_STEPS steps."""
    data, env = wrapper.cuda_data_manager, wrapper.env
    space = next(iter(env.action_space.values()))
    low, high = action_bounds(list(env.action_space.values()))
    is_discrete = data.tensor(ACTIONS).dtype == torch.int32
    flags = {
        "KEEP_ALL": keep_all,
        "RANDOM": bool(draws),
        "N_TYPES": low.shape[1],
        "CATEGORIES": tuple(int(n) for n in getattr(space, "nvec", [getattr(space, "n", 0)])) if is_discrete else (),
        "LOW": [] if is_discrete else low.ravel().tolist(),
        "HIGH": [] if is_discrete else high.ravel().tolist(),
    }
    manager = CUDAFunctionManager(wrapper.n_agents, wrapper.n_envs, backend="numba")
    manager.load(env.kernel_sources, {**environment_constants(env, auto_reset=True, exact=True), **flags})
    return manager.bind("rollout", data, **rows, **draws, n_steps=N_STEPS)


@pytest.mark.parametrize("backend", [each for each in BACKENDS_HERE if each.values == ("numba",)])
@pytest.mark.parametrize("scenario", ["cartpole", "pendulum", "tag_gridworld"])
@pytest.mark.parametrize(("keep_all", "is_random"), [(True, True), (False, False)])
def test_rollout_is_steps_one_by_one(backend, scenario, keep_all, is_random):
    """Launches of several steps leave and keep what draws and steps one by one do, to the bit."""
    single, fused = start(scenario), start(scenario)
    draw = random_policy(single, 3)
    data, ours = single.cuda_data_manager, fused.cuda_data_manager
    counters: dict[str, Any] = {}
    if is_random:
        counters = {"draws": torch.zeros(N_ENVS, dtype=torch.int32, device=ours.device), "stream": STREAM_ACTIONS}
        counters["seed"] = data.tensor("_sampler_seed_")
    n_ended = 0
    for _ in range(2):
        want: dict[str, list[torch.Tensor]] = {name: [] for name in (*KEPT, ACTIONS)}
        for _ in range(N_STEPS):
            draw()
            single.step()
            for name, steps in want.items():
                steps.append(data.tensor(name).clone())
        stacked = {name: torch.stack(steps) for name, steps in want.items()}
        by_step = (*(KEPT if keep_all else ()), *((ACTIONS,) if keep_all or not is_random else ()))
        rows = {name: torch.zeros_like(stacked[name]) for name in by_step}
        if not is_random:
            rows[ACTIONS].copy_(stacked[ACTIONS])
        rollout(fused, counters, rows, keep_all)()
        ended = stacked["_done_"] != 0
        n_ended += int(ended.sum())
        for name in (*KEPT, ACTIONS):
            got, kept = (rows[name], stacked[name]) if name in rows else (ours.tensor(name), want[name][-1])
            if name == "final_observations" and name in rows:
                got, kept = got[ended], kept[ended]
            assert torch.equal(got, kept), name
    assert n_ended > 0, "episodes must end"
    for name in {*data.array_names()} & {*ours.array_names()} - {*KEPT, ACTIONS}:
        assert torch.equal(ours.tensor(name), data.tensor(name)), name
    if is_random:
        assert torch.equal(counters["draws"], data.tensor(f"{ACTIONS}_draws"))


class Pair(NamedTuple):
    """Two arrays."""

    one: Any
    other: Any


@pytest.mark.skipif(not simulated(), reason="on a GPU every kernel is made so")
def test_sizes_leave_the_arguments_in_place():
    """A kernel whose sizes are fixed does the same on its arrays one by one as on named tuples of them."""
    from warpdrive_min.backends.numba_source import with_sizes

    def add(pair: Pair, factor, out):
        i = cuda.threadIdx.x
        out[i, 0] = pair.one[i] + factor * pair.other[i, 1]

    add.__annotations__["pair"] = Pair
    one, other, out = np.arange(4.0), np.arange(8.0).reshape(4, 2), np.zeros((4, 1))
    function = with_sizes(add, cuda.jit(device=True)(add), [one.shape, other.shape, None, out.shape])
    cuda.jit(function)[1, 4](one, other, 10.0, out)
    np.testing.assert_array_equal(out[:, 0], one + 10 * other[:, 1])
