"""Agreement of backends with the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from envs import ENVS, TagContinuous
from warpdrive_min import EnvWrapper
from warpdrive_min.agreement import Agreement, step_by_step
from warpdrive_min.agreement.compare import differing
from warpdrive_min.agreement.report import first_difference
from warpdrive_min.agreement.stepping import snapshot
from warpdrive_min.environment import agent_sets
from warpdrive_min.policies import random_policy
from warpdrive_min.spaces import action_bounds


def start(name: str, config: Mapping[str, Any], backend: str, n_envs: int, **options: Any) -> EnvWrapper:
    """Build and start a wrapper of a shipped environment."""
    wrapper = EnvWrapper(ENVS[name](**config), num_envs=n_envs, env_backend=backend, **options)
    wrapper.reset_all_envs()
    return wrapper


def random_actions(wrapper: EnvWrapper, seed: int) -> Callable[[], None]:
    """Return a function that draws actions on the host."""
    generator, arrays = np.random.default_rng(seed), []
    for suffix, agents in agent_sets(wrapper.env).items():
        spaces = [wrapper.env.action_space[agent] for agent in agents]
        tensor = wrapper.cuda_data_manager.tensor(f"sampled_actions{suffix}")
        arrays.append((tensor, hasattr(spaces[0], "low"), *action_bounds(spaces)))

    def draw() -> None:
        for tensor, is_box, low, high in arrays:
            shape = tuple(tensor.shape)
            actions = generator.uniform(low, high, shape) if is_box else generator.integers(low, high + 1, shape)
            tensor.copy_(torch.from_numpy(actions))

    return draw


def shown(wrapper: EnvWrapper) -> list[str]:
    """Return the names of observations and rewards without roles and Dicts."""
    names = wrapper.cuda_data_manager.array_names()
    return sorted(name for name in names if name.startswith(("observations", "rewards")))


def step_from_same_state(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, **options: Any
) -> tuple[Agreement, int]:
    """Step backend and reference from the backend's state.

    Both use the same random actions.

    Returns:
        What was seen, and how often a runner was tagged in Tag.
    """
    tested, reference = (start(name, config, each, n_envs, seed=seed, **options) for each in (backend, "cpu"))
    draw, result, n_tagged = random_actions(tested, seed), Agreement(), 0
    for _ in range(n_steps):
        result.add(step_by_step(tested, reference, draw, 1))
        n_tagged += n_tags(reference)
    return result, n_tagged


def n_tags(wrapper: EnvWrapper) -> int:
    """Return the number of tags in the last step."""
    data = wrapper.cuda_data_manager
    if isinstance(wrapper.env, TagContinuous):
        return int((data.tensor("rewards").numpy()[:, wrapper.env.agent_types == 1] > 0).sum())
    return int(data.tensor("terminated").sum())


def free_run(
    name: str, config: Mapping[str, Any], backend: str, *, n_envs: int, n_steps: int, seed: int = 0, **options: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run with auto-reset and actions of the random policy.

    Returns:
        Every array at the end but the kernels' workspace, with ``n_terminated`` of each environment; and after each
        step the sums of the bits of observations and rewards, ``(n_steps, n_arrays)``.
    """
    wrapper = start(name, config, backend, n_envs, seed=seed, auto_reset=True, **options)
    draw = random_policy(wrapper, seed)
    data = wrapper.cuda_data_manager
    names = shown(wrapper)
    sums = torch.zeros((n_steps, len(names)), dtype=torch.int64, device=data.device)
    n_terminated = torch.zeros_like(data.tensor("terminated"))
    for step in range(n_steps):
        draw()
        wrapper.step()
        n_terminated += data.tensor("terminated")
        for column, key in enumerate(names):
            sums[step, column] = data.tensor(key).view(torch.int32).sum(dtype=torch.int64)
    return snapshot(data) | {"n_terminated": n_terminated.cpu().numpy()}, sums.cpu().numpy()


def assert_same_bits(got: Any, want: Any) -> None:
    """Fail unless arrays have equal bits; name the first difference."""
    if not isinstance(want, Mapping):
        got, want = {"array": got}, {"array": want}
    assert set(got) == set(want)
    names = differing(want, got)
    assert not names, first_difference(want, got, names)
