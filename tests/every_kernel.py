"""Launches every kernel of a backend on small and odd sizes, for compute-sanitizer.

compute-sanitizer --tool memcheck  python -m tests.every_kernel pycuda
compute-sanitizer --tool racecheck python -m tests.every_kernel numba
compute-sanitizer --tool racecheck python -m tests.every_kernel numba rice covid19_economy

With names of environments it launches theirs alone.
"""

from __future__ import annotations

import itertools
import sys
import tempfile

import numpy as np
import torch

from tests.agreement import start
from tests.support import SCENARIOS, TAG_CONFIGS, managers, push
from tests.training.builders import RUNS as TRAINING_RUNS
from tests.training.builders import make_run
from warpdrive_min import BACKENDS, CUDAEnvironmentReset, CUDASampler, DataFeed, EnvWrapper
from warpdrive_min.policies import random_policy
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.algorithms.shuffle import RowDraw, Shuffle
from warpdrive_min.training.config import ModelConfig
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.rollout import RolloutRecorder
from warpdrive_min.training.models.fully_connected import FullyConnected
from warpdrive_min.training.paths.fused.narrow import narrow
from warpdrive_min.training.paths.fused.wide import wide

TAG = {**TAG_CONFIGS["partial, exits"], "episode_length": 3}
GRID = {"num_taggers": 300, "grid_length": 9, "episode_length": 3}
GRID_3001 = {**GRID, "num_taggers": 3000, "grid_length": 99, "use_full_observation": False}
RUNS = [(name, {**config, "episode_length": 3}, 37, None) for name, config in SCENARIOS.values()] + [
    ("cartpole", {"episode_length": 3}, 300, None),
    ("tag_continuous", {**TAG, "use_full_observation": True}, 5, None),
    ("tag_continuous", {**TAG, "num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10}, 3, None),
    ("tag_continuous", {**TAG, "num_taggers": 30, "num_runners": 220, "num_other_agents_observed": 20}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 60, "num_runners": 600, "num_other_agents_observed": 20}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 60, "num_runners": 600, "num_other_agents_observed": 10}, 2, None),
    ("tag_continuous", {**TAG, "num_taggers": 9, "num_runners": 60, "neighbor_search": "grid"}, 3, None),
    ("tag_continuous", {**TAG, "num_taggers": 9, "num_runners": 60, "neighbor_search": "grid"}, 3, 2),
    ("tag_continuous", {**TAG, "num_taggers": 99, "num_runners": 999, "neighbor_search": "all_pairs"}, 1, None),
    ("tag_gridworld", GRID, 2, None),
    ("tag_gridworld", GRID_3001, 2, None),
    ("tag_gridworld", GRID, 2, 7),
    ("tag_gridworld", GRID_3001, 2, 5),
]
"""Environment, config, number of copies, and of blocks for each unless it chooses."""


def main(backend: str, *names: str) -> None:
    """Run environments with and without auto-reset, rollouts, the sampler's forms, the generic reset, and training."""
    if unknown := sorted({*names} - {run[0] for run in RUNS}):
        raise SystemExit(f"every_kernel: no environment is named {', '.join(unknown)}")
    runs = [run for run in RUNS if not names or run[0] in names]
    for name, config, n_envs, blocks in runs:
        print(f"{n_envs} x {name}", flush=True)
        for auto_reset in (False, True):
            wrapper = start(name, config, backend, n_envs, auto_reset=auto_reset, blocks_per_env=blocks)
            draw = random_policy(wrapper, 0)
            for _ in range(5):
                draw()
                wrapper.step()
                if not auto_reset:
                    wrapper.reset_only_done_envs()
            if auto_reset and not getattr(wrapper.env, "roles", {}):
                roll(start(name, config, backend, n_envs, auto_reset=True, blocks_per_env=blocks))
    for part in () if names else (sample, add_noise, reset, record, scan, shuffle, fused, exact):
        print(part.__name__, flush=True)
        part(backend)
    BACKENDS[backend].synchronize()
    print(f"{len(runs)} environments of {backend} have run" if names else f"every kernel of {backend} has run")


def roll(wrapper: EnvWrapper) -> None:
    """Take many steps in a launch: random ones, of which the last is kept, and all, and ones with given actions."""
    for keep in ("last", "all"):
        steps = wrapper.rollout(5, keep=keep)
    wrapper.rollout(5, steps.sampled_actions.clone())
    space = next(iter(wrapper.env.action_space.values()))
    if not hasattr(space, "low"):
        data = wrapper.cuda_data_manager
        n_features = data.tensor("observations").flatten(2).shape[2]
        for config in ({"fc_dims": (72, 9), "shared": False}, {"fc_dims": (20,), "activation": "tanh"}):
            model = FullyConnected(n_features, ActionSpace.of(space), ModelConfig(**config)).to(data.device)
            for keep in ("last", "all"):
                wrapper.rollout(5, model, keep=keep)


def sample(backend: str) -> None:
    """Draw from probabilities and logits, with masks, log-probabilities and entropies, and take the maximum."""
    for n_envs, n_agents, categories in ((33, 1, (2,)), (5, 7, (3, 4)), (2, 200, (10,)), (3, 70, (21, 21))):
        data, functions = managers(backend, n_agents, n_envs, episode_length=1)
        push(data, "sampled_actions", np.zeros((n_envs, n_agents, len(categories)), np.int32))
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
    """Draw continuous actions around a mean, without noise, from Gaussians, and uniformly."""
    for n_envs, n_agents, n_types in ((33, 1, 1), (5, 7, 3), (2, 200, 2)):
        data, functions = managers(backend, n_agents, n_envs, episode_length=1)
        push(data, "sampled_actions", np.zeros((n_envs, n_agents, n_types), np.float32))
        sampler = CUDASampler(functions)
        sampler.register_actions(data, "sampled_actions", n_types, is_deterministic=True)
        sampler.init_random(1)
        mean = torch.rand((n_envs, n_agents, n_types), device=data.device)
        for _ in range(3):
            sampler.sample(data, mean)
        sampler.sample(data, mean, use_argmax=True)
        sampler.sample(data, mean, scale=torch.ones((), device=data.device))
        sampler.sample_gaussian(data, mean, mean[0])
        log_prob, entropy = (torch.zeros((n_envs, n_agents), device=data.device) for _ in range(2))
        for use_argmax in (False, True):
            sampler.sample_gaussian(data, mean, mean[0], use_argmax=use_argmax, log_prob=log_prob, entropy=entropy)
        sampler.sample_uniform(data, -mean[0], mean[0])


def reset(backend: str) -> None:
    """Restore saved copies and draw from pools, for finished environments and for all."""
    data, functions = managers(backend, 3, 131, episode_length=1)
    feed = DataFeed()
    feed.add_data("saved", np.ones((131, 3, 5), np.float32), save_copy_and_apply_at_reset=True)
    feed.add_data("refilled", np.ones((131, 3), np.int32))
    feed.add_pool_for_reset("refilled_reset_pool", np.ones((4, 3), np.int32), "refilled")
    data.push_data_to_device(feed)
    data.tensor("_done_")[::2] = 1
    resetter = CUDAEnvironmentReset(functions)
    for mode in ("if_done", "force_reset"):
        resetter.reset_when_done(data, mode)


def record(backend: str) -> None:
    """Record steps of environments that are packed into a block, and that have one each, with what is cut off."""
    for name, config, n_envs in (("pendulum", {"episode_length": 3}, 300), ("tag_gridworld", GRID, 5)):
        wrapper = start(name, config, backend, n_envs, auto_reset=True)
        arrays = SharedLayout().arrays(wrapper, {"all": list(wrapper.env.action_space)})["all"]
        draw, recorder = random_policy(wrapper, 0), RolloutRecorder(wrapper, 4, arrays)
        recorder.begin()
        for step in range(4):
            draw()
            wrapper.step()
            recorder.record(step)


def scan(backend: str) -> None:
    """Scan rollouts with and without values and those of cuts, and by WarpDrive's rule."""
    device = BACKENDS[backend].device
    rewards, values, advantages, returns = torch.rand(4, 7, 37, 5, device=device)
    terminated, truncated = torch.randint(2, (2, 7, 37), dtype=torch.int32, device=device)
    cut_values = torch.rand(7, 37, 5, device=device)
    for compat in (False, True):
        returns_of = ReturnScan(backend, 37, 5, 0.9, compat=compat)
        for cuts in (None, cut_values):
            returns_of.scan(rewards, values, terminated, truncated, values[0], cuts, advantages, returns)
            if not compat:
                returns_of.scan(rewards, None, terminated, truncated, values[0], cuts, None, returns)


def shuffle(backend: str) -> None:
    """Draw permutations of one and of several blocks, and rows of a buffer."""
    for n in (1, 5, 1000):
        Shuffle(backend, n, 0).permute()
        RowDraw(backend, n, 0).draw(torch.full((1,), 9, dtype=torch.int32, device=BACKENDS[backend].device))


def fused(backend: str) -> None:
    """Go through small and large networks in each precision, and learn from rollouts of every kind of action."""
    device = BACKENDS[backend].device
    if device.type != "cuda":
        return
    for sizes, precisions, evaluate in (
        ((4, 64, 64, 3), ("fp32", "tf32", "bf16"), narrow),
        ((40, 24, 50, 7), ("fp32", "tf32", "bf16"), narrow),
        ((401, 32, 32, 6), ("fp32", "tf32", "bf16"), narrow),
        ((71, 256, 256, 43), ("tf32", "bf16"), wide),
    ):
        for precision, activation in itertools.product(precisions, ("relu", "tanh")):
            weights = [
                torch.rand(shape, device=device, requires_grad=True)
                for before, after in itertools.pairwise(sizes)
                for shape in ((after, before), (after,))
            ]
            x = torch.rand(200, sizes[0], device=device, requires_grad=True)
            with torch.no_grad():
                evaluate(x, tuple(weights), activation, precision)
            evaluate(x, tuple(weights), activation, precision).sum().backward()
    for name in TRAINING_RUNS:
        with tempfile.TemporaryDirectory() as folder:
            make_run(name, backend, trainer={"mode": "eager"}, basedir=folder).train(2)


def exact(backend: str) -> None:
    """Train networks, with one part of their rows and with several, by the kernels that have one order."""
    for name in () if backend == "numba" else ("A2C", "PPO", "PPO, continuous", "DDPG"):
        with tempfile.TemporaryDirectory() as folder:
            exact = {"mode": "eager", "exact": True, "max_rows": 300}
            n_envs = 8 if name == "DDPG" else 70
            make_run(name, backend, n_envs=n_envs, trainer=exact, wrapper={"exact": True}, basedir=folder).train(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
