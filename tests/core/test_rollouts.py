"""`rollout` is bit-identical to single draws and steps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from envs import ENVS, CartPole
from tests.support import (
    BACKENDS_HERE,
    SCENARIOS,
    TAG_CONFIGS,
    by_night,
    is_simulated,
    needs_cuda_compiler,
    on_backends,
    on_every_backend,
)
from warpdrive_min import CUDASampler, EnvWrapper
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.cuda_rollouts import generate_rollout
from warpdrive_min.errors import CompileError, ConfigError, DataError
from warpdrive_min.function_manager import CUDAFunctionManager, LaunchShape
from warpdrive_min.policies import random_policy
from warpdrive_min.rollouts import Steps

SEED = 5
FORMS = [form for form, (name, _) in SCENARIOS.items() if name != "covid19_economy"]
FEW = ("cartpole, pool", "pendulum", "tag_gridworld, partial, pool", "tag_continuous", "rice, negotiation")
"""Forms that run without a GPU, one per kind of source."""


def made(form: str, backend: str, n_envs: int, **options: Any) -> EnvWrapper:
    """Return a started wrapper of a scenario with short episodes."""
    name, config = SCENARIOS[form]
    options = {"auto_reset": True, "exact": True, "seed": SEED, **options}
    env = ENVS[name](**{**config, "episode_length": 3})
    wrapper = EnvWrapper(env, num_envs=n_envs, env_backend=backend, **options)
    wrapper.reset()
    return wrapper


def assert_same(got: EnvWrapper, want: EnvWrapper, keep: str = "last") -> None:
    """Assert equal arrays; last observations only where they are defined.

    They are at episode ends, or at each step.
    """
    for name in want.cuda_data_manager.array_names():
        if name == "final_observations" and keep == "all":
            continue
        arrays = [each.cuda_data_manager.tensor(name) for each in (got, want)]
        torch.testing.assert_close(*arrays, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


def assert_kept(steps: Steps, index: int, want: EnvWrapper) -> None:
    """Assert that a stored step is ``want``'s latest."""
    for name, kept in steps.tensors().items():
        array = want.cuda_data_manager.tensor("_done_" if name == "done" else name).to(kept.dtype)
        assert (kept.dtype == torch.bool) == (name in ("done", "terminated", "truncated"))
        ended = steps.done[index] != 0 if name == "final_observations" else slice(None)
        torch.testing.assert_close(
            kept[index][ended], array[ended], rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


@on_backends(
    "form", FORMS if torch.cuda.is_available() else FEW, BACKENDS_HERE, numba=FEW[:3], pycuda=(*FEW, "rice, trade")
)
def test_rollouts_are_single_draws_and_steps(form, backend):
    """Rollouts are bit-identical to single draws and steps.

    Two random, two given rollouts, single steps: over the ends of episodes and of Philox words.
    """
    if form.startswith("rice") and is_simulated(backend):
        pytest.skip("minutes in the simulator")
    n_envs, n_steps = (3, 3) if is_simulated(backend) else (135, 5)
    rollouts, singles = made(form, backend, n_envs), made(form, backend, n_envs)
    draw = random_policy(singles, SEED)
    for keep in ("last", "all"):
        steps = rollouts.rollout(n_steps, keep=keep)
        for index in range(n_steps):
            draw()
            singles.step()
            if keep == "all":
                assert_kept(steps, index, singles)
        assert_same(rollouts, singles, keep)
    assert steps.done.any()
    actions = steps.sampled_actions.flip(0).contiguous()  # others than were taken last
    for keep in ("last", "all"):
        again = rollouts.rollout(n_steps, actions, keep=keep)
        for index in range(n_steps):
            singles.cuda_data_manager.tensor("sampled_actions").copy_(actions[index])
            singles.step()
            if keep == "all":
                assert_kept(again, index, singles)
        assert_same(rollouts, singles, keep)
    for wrapper in (rollouts, singles):
        wrapper.step()
    assert_same(rollouts, singles, "all")


@on_every_backend
def test_mode_says_why_steps_are_taken_one_by_one(backend):
    """The mode has a reason for each step-by-step case.

    NumPy has no launches, shared environments meet, debug checks each action.
    """
    if backend == "cpu":
        assert (
            str(made("cartpole", backend, 2).rollout_mode)
            == "stepwise: backend 'cpu' runs NumPy, which has no launches"
        )
    else:
        assert str(made("cartpole", backend, 2).rollout_mode) == "fused"
        assert "sequence of kernels" in made("tag_continuous, spread", backend, 2).rollout_mode.reason
        assert "checked" in made("cartpole", backend, 2, debug=True).rollout_mode.reason


def test_draws_go_on_from_a_sampler():
    """A rollout continues a sampler's draws, and the sampler continues the rollout's."""
    wrappers = [made("cartpole", "host", 7) for _ in range(2)]
    probabilities = torch.ones(7, 1, 2)
    drawn = []
    for wrapper, parts in zip(wrappers, ((1, 5, 1), (1, 1, 1, 1, 1, 1, 1)), strict=True):
        data, sampler = wrapper.cuda_data_manager, CUDASampler(wrapper.cuda_function_manager)
        sampler.register_actions(data, "sampled_actions", 2)
        sampler.init_random(11)
        for n_steps in parts:
            if n_steps > 1:
                wrapper.rollout(n_steps, sampler=sampler)
            else:
                sampler.sample(data, probabilities)
                wrapper.step()
        drawn.append(data.tensor("sampled_actions").clone())
    assert_same(*wrappers)
    assert torch.equal(*drawn)


def test_rollout_refuses_what_it_cannot_do():
    """A refused rollout's error names the rule and a remedy."""
    wrapper = made("cartpole", "host", 4)
    for match, arguments, kind in (
        (r"n_steps: must be at least 1 .got 0", {"n_steps": 0}, ConfigError),
        (r"keep must be 'last' or 'all' .got 'none'", {"n_steps": 2, "keep": "none"}, ConfigError),
        (
            r"policy must be 'random', a tensor of actions or a model .got 'greedy'",
            {"n_steps": 2, "policy": "greedy"},
            ConfigError,
        ),
        (r"shape \(2, 4, 1, 1\)", {"n_steps": 2, "policy": torch.zeros(2, 4, 1, dtype=torch.int32)}, DataError),
    ):
        with pytest.raises(kind, match=match):
            wrapper.rollout(**arguments)
    with pytest.raises(ConfigError, match="pass auto_reset=True"):
        made("cartpole", "host", 4, auto_reset=False).rollout(2)
    with pytest.raises(ConfigError, match="roles of 'Covid19Economy'"):
        made("covid19_economy", "cpu", 2).rollout(2)
    drawn = made("cartpole", "host", 4)
    draw = random_policy(drawn, SEED)
    with pytest.raises(ConfigError, match=r"pass it as sampler=; a random_policy has it as \.sampler"):
        drawn.rollout(2)
    draw()
    drawn.step()
    drawn.rollout(2, sampler=draw.sampler)
    whole = made("cartpole", "host", 4)
    whole.rollout(3)
    assert_same(drawn, whole)
    with pytest.raises(ConfigError, match="call reset"):
        EnvWrapper(CartPole(), num_envs=2, env_backend="host", auto_reset=True).rollout(2)


FLAGS = {"KEEP_ALL": True, "RANDOM": True, "N_TYPES": 1, "CATEGORIES": (2,), "LOW": (), "HIGH": ()}
SHAPE = {"N_AGENTS": 1, "EXACT": False, **LaunchShape.of(1).constants()}


CLIPPING = """
WD_KERNEL(step)(int (*sampled_actions)[N_AGENTS][1], float (*rewards)[N_AGENTS], int n_envs) {
  WD_EACH_AGENT(local, env, agent) rewards[env][agent] = sampled_actions[env][agent][0] = 1;
}
"""


def test_actions_that_a_step_may_write_are_those_of_the_step():
    """Given actions are those of each step's row.

    Drawn ones are stored as the step leaves them, or at once if it cannot write them.
    """
    entries = {"ENTRIES_sampled_actions": 1, "ENTRIES_rewards": 1, "ENTRIES_draws": 1}
    drawn = generate_rollout(CLIPPING, {**SHAPE, **FLAGS, **entries}, "env.cu")
    assert drawn.index("wd_one_step(") < drawn.index("WD_TAKE_BACK(int, sampled_actions")
    of_two = {"N_TYPES": 2, "CATEGORIES": [3, 3]}
    several = generate_rollout(CLIPPING, {**SHAPE, **FLAGS, **entries, **of_two}, "env.cu")
    assert re.search(r"WD_TAKE_BACK\(int, sampled_actions[^;]*;\s*WD_SYNC\(\);", several), "before the next draw"
    fixed = generate_rollout(CLIPPING.replace("int (*s", "const int (*s"), {**SHAPE, **FLAGS, **entries}, "env.cu")
    row = "reinterpret_cast<wd_action*>(sampled_actions + static_cast<long long>(wd_step) * n_envs)"
    assert fixed.index(row) < fixed.index("wd_one_step(")
    assert "WD_TAKE_BACK(int, sampled_actions" not in fixed
    given = generate_rollout(CLIPPING, {**SHAPE, **FLAGS, **entries, "RANDOM": False}, "env.cu")
    assert "sampled_actions + static_cast<long long>(wd_step) * n_envs" in given
    assert "sampled_actions_near" not in given
    assert "WD_NEAR(sampled_actions" not in given


@pytest.mark.parametrize(
    "text",
    ["WD_KERNEL(reset)(int n_envs) {}", "__global__ void step(int* sampled_actions) {}"],
    ids=["no step", "a thread for each agent"],
)
def test_source_without_a_step_of_its_own_blocks_has_no_rollout(text, tmp_path):
    """A source without a `WD_KERNEL` named step has no rollout.

    The error names the missing part.
    """
    source = tmp_path / "env.cu"
    source.write_text(text)
    with pytest.raises(CompileError, match=r"must be a WD_KERNEL named 'step'.*use single steps"):
        cuda_c.declared(source, {**SHAPE, **FLAGS})


@needs_cuda_compiler
@pytest.mark.parametrize(
    "form", ["cartpole", *map(by_night, ("pendulum", "tag_gridworld", "tag_continuous", "rice, negotiation"))]
)
def test_rollouts_compile_for_the_gpu(form):
    """Rollouts compile for each kind of source, with both actions.

    They are drawn or given.
    """
    rollouts = made(form, "host", 3).prepared_rollouts()
    subject = rollouts._subject
    functions = CUDAFunctionManager(subject.n_agents, backend="cpu")
    source = Path(subject.env.kernel_sources["cuda_c"])
    for keeps_all, is_random in ((True, True), (False, True), (False, False)):
        flags = {"KEEP_ALL": keeps_all, "RANDOM": is_random, **rollouts._actions()}
        own = functions.with_defaults(subject.many_steps(functions, flags, subject.data.entries).constants)
        cubin = cuda_c.compile_cubin(source, own, "sm_90")
        assert b"rollout" in cubin.read_bytes()


def test_tag_with_many_agents_says_how_it_steps():
    """An environment of several blocks steps singly, with the same result."""
    config = {**TAG_CONFIGS["partial, exits"], "num_runners": 1_200, "num_taggers": 20}
    wrapper = EnvWrapper(ENVS["tag_continuous"](**config), num_envs=1, env_backend="host", auto_reset=True)
    wrapper.reset()
    assert wrapper.rollout_mode.name == "stepwise"
    wrapper.rollout(2)
    assert wrapper.cuda_data_manager.tensor("_timestep_").tolist() == [2]
