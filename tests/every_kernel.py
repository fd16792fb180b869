"""Launches every kernel of a backend on small and odd sizes, for compute-sanitizer.

compute-sanitizer --tool memcheck  python -m tests.every_kernel pycuda
compute-sanitizer --tool racecheck python -m tests.every_kernel numba
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from tests.agreement import start
from tests.support import SCENARIOS, TAG_CONFIGS
from warpdrive_min import CUDADataManager, CUDAEnvironmentReset, CUDAFunctionManager, CUDASampler, DataFeed
from warpdrive_min.policies import random_policy

TAG = {**TAG_CONFIGS["partial, exits"], "episode_length": 3}
RUNS = [(name, {**config, "episode_length": 3}, 37) for name, config in SCENARIOS.values()] + [
    ("cartpole", {"episode_length": 3}, 300),
    ("tag_continuous", {**TAG, "use_full_observation": True}, 5),
    ("tag_continuous", {**TAG, "num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10}, 3),
    ("tag_continuous", {**TAG, "num_taggers": 30, "num_runners": 220, "num_other_agents_observed": 20}, 2),
    ("tag_continuous", {**TAG, "num_taggers": 60, "num_runners": 600, "num_other_agents_observed": 20}, 2),
    ("tag_continuous", {**TAG, "num_taggers": 9, "num_runners": 60, "neighbor_search": "grid"}, 3),
    ("tag_continuous", {**TAG, "num_taggers": 99, "num_runners": 999, "neighbor_search": "all_pairs"}, 1),
    ("tag_gridworld", {"num_taggers": 300, "grid_length": 9, "episode_length": 3}, 2),
    ("tag_gridworld", {"num_taggers": 3000, "grid_length": 99, "episode_length": 3, "use_full_observation": False}, 2),
]
"""Environment, config and number of copies."""


def main(backend: str) -> None:
    """Run the environments with and without auto-reset, the sampler in all its forms, and the generic reset."""
    for name, config, n_envs in RUNS:
        for auto_reset in (False, True):
            wrapper = start(name, config, backend, n_envs, auto_reset=auto_reset)
            draw = random_policy(wrapper, 0)
            for _ in range(5):
                draw()
                wrapper.step()
                if not auto_reset:
                    wrapper.reset_only_done_envs()
    sample(backend)
    add_noise(backend)
    reset(backend)
    torch.cuda.synchronize()
    print(f"every kernel of {backend} has run")


def sample(backend: str) -> None:
    """Draw from probabilities and logits, with masks, log-probabilities and entropies, and take the maximum."""
    for n_envs, n_agents, categories in ((33, 1, (2,)), (5, 7, (3, 4)), (2, 200, (10,)), (3, 70, (21, 21))):
        functions = CUDAFunctionManager(n_agents, n_envs, backend=backend)
        data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
        feed = DataFeed()
        feed.add_data("sampled_actions", np.zeros((n_envs, n_agents, len(categories)), np.int32))
        data.push_data_to_device(feed)
        sampler = CUDASampler(functions)
        sampler.register_actions(data, "sampled_actions", categories)
        sampler.init_random(1)
        wide = (n_envs, n_agents, sum(categories))
        values = torch.rand(wide, device=data.device)
        mask = torch.ones(wide, dtype=torch.int32, device=data.device)
        log_prob, entropy = (torch.zeros(wide[:2], device=data.device) for _ in range(2))
        for logits in (False, True):
            sampler.sample(data, values, logits=logits)
            sampler.sample(data, values, logits=logits, mask=mask, log_prob=log_prob, entropy=entropy)
        sampler.sample(data, values, use_argmax=True)


def add_noise(backend: str) -> None:
    """Draw continuous actions around a mean, without noise, and uniformly."""
    for n_envs, n_agents, n_types in ((33, 1, 1), (5, 7, 3), (2, 200, 2)):
        functions = CUDAFunctionManager(n_agents, n_envs, backend=backend)
        data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
        feed = DataFeed()
        feed.add_data("sampled_actions", np.zeros((n_envs, n_agents, n_types), np.float32))
        data.push_data_to_device(feed)
        sampler = CUDASampler(functions)
        sampler.register_actions(data, "sampled_actions", n_types, is_deterministic=True)
        sampler.init_random(1)
        mean = torch.rand((n_envs, n_agents, n_types), device=data.device)
        for _ in range(3):
            sampler.sample(data, mean)
        sampler.sample(data, mean, use_argmax=True)
        sampler.sample_uniform(data, -mean[0], mean[0])


def reset(backend: str) -> None:
    """Restore saved copies and draw from pools, for finished environments and for all."""
    functions = CUDAFunctionManager(3, 131, backend=backend)
    data = CUDADataManager(3, 131, episode_length=1, backend=backend)
    feed = DataFeed()
    feed.add_data("saved", np.ones((131, 3, 5), np.float32), save_copy_and_apply_at_reset=True)
    feed.add_data("refilled", np.ones((131, 3), np.int32))
    feed.add_pool_for_reset("refilled_reset_pool", np.ones((4, 3), np.int32), "refilled")
    data.push_data_to_device(feed)
    data.tensor("_done_")[::2] = 1
    resetter = CUDAEnvironmentReset(functions)
    for mode in ("if_done", "force_reset"):
        resetter.reset_when_done(data, mode)


if __name__ == "__main__":
    main(sys.argv[1])
