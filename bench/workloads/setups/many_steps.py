"""Many steps per launch or one at a time: set-up and checks."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import numpy as np
import torch

from warpdrive_min import BACKENDS, EnvWrapper, capture
from warpdrive_min.agreement.compare import errors
from warpdrive_min.constants import FINAL_OBSERVATIONS, Constants
from warpdrive_min.rng import STREAM_ACTIONS, philox, seed_words, uniform
from warpdrive_min.rollouts import Policy, Steps
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig, precision
from warpdrive_min.training.models.fully_connected import FullyConnected

from ...core.errors import Skip
from ...core.measure import Timed
from ...core.point import ORACLE, Check, Point
from ..shared import FP32, SEED
from .environments import CHECKED_STEPS, checked_envs, start_env
from .timing import EAGER_STEPS, Repeated, are_finite, available, snapshot_of, timed_steps
from .trainers import n_weights

STEPS_OF_A_LAUNCH: Final = 100
WIDE: Final = 32_768
"""Maximum environments of one agent in a reference run with a policy.

With many environments per CPU thread, blocks are wider."""
ROUNDING: Final = {FP32: 1e-5, "tf32": 5e-3}
"""Rounding differences in log-probabilities and values, by precision.

They are for a policy with 64 units per layer."""


def random_steps(point: Point) -> Timed:
    """Step environments with random actions, many steps per launch."""
    available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    if wrapper.rollout_mode.name != "fused":
        raise Skip(f"{point['env']} on {point['backend']} has one step per launch: {wrapper.rollout_mode.reason}")
    if point["kept"] == "all":
        require_room(wrapper)
    launch, steps = wrapper.bound_rollout(STEPS_OF_A_LAUNCH, keep=point["kept"])
    launch()
    n_bytes, n_ops = 0, wrapper.env.ops_per_step  # the state does not move through memory
    if point["kept"] == "all":
        n_bytes = sum(each[0][0].nbytes for name, each in steps.tensors().items() if name != FINAL_OBSERVATIONS)
    elif point["n_agents"] > 1:
        n_ops = 0  # agents may not see each other, and the cost of that part of a step is undeclared
    return timed_steps(
        point,
        Repeated(launch, STEPS_OF_A_LAUNCH, "fused"),
        lambda: small_run_agrees(point, steps),
        episode_length=wrapper.episode_length,
        n_bytes=n_bytes,
        n_ops=n_ops,
        snapshot=partial(snapshot_of, wrapper.cuda_data_manager),
    )


def require_room(wrapper: EnvWrapper) -> None:
    """Check that a GPU can hold all observations of a launch.

    Raises:
        Skip: The GPU's memory is too small.
    """
    data = wrapper.cuda_data_manager
    if data.device.type != "cuda":
        return
    kept = (Constants.OBSERVATIONS, FINAL_OBSERVATIONS)
    needs = STEPS_OF_A_LAUNCH * sum(data.tensor(name).nbytes for name in kept)
    has = torch.cuda.get_device_properties(data.device).total_memory
    if needs > has:
        n, got = STEPS_OF_A_LAUNCH, f"{has / 1e9:.0f} GB"
        raise Skip(
            f"all observations of {n} steps must fit the GPU, {needs / 1e9:.0f} GB (got {got}); use a larger GPU"
        )


def steps_of_policy(point: Point) -> Timed:
    """Step environments with a policy, in a kernel or in torch."""
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    model, is_fused = network(point, wrapper), point["mode"] == "fused"
    acting: Policy = model if is_fused else lambda seen: model(seen)  # hides the layers from the kernels
    n_steps = STEPS_OF_A_LAUNCH if is_fused or backend.captures_graphs else EAGER_STEPS
    with precision_of(point):
        form = wrapper.rollout_mode_of(model)
        if is_fused and form.name != "fused":
            raise Skip(f"{point['env']} on {point['backend']} has one step per launch: {form.reason}")
        launch, steps = wrapper.bound_rollout(n_steps, acting, keep=point["kept"])
        launch()
        run = capture(backend, launch) if point["mode"] == "graph" else launch
    # Products on matrix units do not count as float32 operations, whose rate is the limit.
    n_products = 0 if (is_fused and backend.captures_graphs) or "precision" in point else n_weights(model)
    return timed_steps(
        point,
        Repeated(run, n_steps, point["mode"]),
        lambda: policy_agrees(point, steps),
        episode_length=wrapper.episode_length,
        n_bytes=wrapper.env.bytes_per_step,
        n_ops=wrapper.env.ops_per_step + n_products,
        snapshot=partial(snapshot_of, wrapper.cuda_data_manager),
    )


def precision_of(point: Point) -> AbstractContextManager[None]:
    """Return the context of the point's matrix precision."""
    return precision(point.get("precision", FP32), BACKENDS[point["backend"]].device)


def network(point: Point, wrapper: EnvWrapper) -> FullyConnected:
    """Return the policy of a point; its weights are always the same."""
    space = ActionSpace.of(next(iter(wrapper.env.action_space.values())))
    n_features = math.prod(wrapper.cuda_data_manager.tensor("observations").shape[2:])
    config = ModelConfig(fc_dims=tuple(map(int, point["policy"].split("-"))), activation="tanh", init_method="xavier")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return FullyConnected(n_features, space, config).to(wrapper.cuda_data_manager.device)


# ------------------------------------------------------------------ check


def policy_agrees(point: Point, steps: Steps) -> Check:
    """Check a policy's steps against torch and NumPy, in a smaller run.

    The results of its actions must be bit-identical. Log-probabilities and values may differ by `ROUNDING`, and actions
    only where `ROUNDING` decides.
    """
    n_envs = min(point["n_envs"], WIDE) if point["n_agents"] == 1 else checked_envs(point)
    twin, oracle = exact_pair(point, n_envs)
    model = network(point, twin)
    acting: Policy = model if point["mode"] == "fused" else lambda seen: model(seen)
    with torch.no_grad(), precision_of(point):
        of_twin = twin.rollout(CHECKED_STEPS, acting, keep="all")
    got = {name: tensor.cpu() for name, tensor in of_twin.tensors().items()}
    first = oracle.cuda_data_manager.tensor("observations")[None].clone()
    want = oracle.rollout(CHECKED_STEPS, got["sampled_actions"], keep="all").tensors()
    with torch.no_grad():
        logits, values = network(point, oracle)(torch.cat([first, want["observations"][:-1]]))
    log_probs = torch.log_softmax(logits, -1)
    want["values"], want["log_probs"] = values, log_probs.gather(-1, got["sampled_actions"].long()).squeeze(-1)
    apart = errors({name: tensor for name, tensor in want.items() if name != FINAL_OBSERVATIONS}, got)
    moved = max(error for name, error in apart.items() if name not in ("values", "log_probs"))
    said = max(apart["values"], apart["log_probs"])
    rounding = ROUNDING[point.get("precision", FP32)]
    probabilities = log_probs[:, :, 0].double().exp().numpy()
    n_wrong = count_wrong_draws(got["sampled_actions"][:, :, 0, 0].numpy(), probabilities, rounding)
    is_finite = are_finite(steps.observations, steps.tensors()["log_probs"])
    return Check(
        passed=is_finite and moved == 0 and said <= rounding and n_wrong == 0,
        max_error=max(moved, said),
        oracle=f"NumPy and torch, {n_envs} environments, {CHECKED_STEPS} steps at once",
        detail=f"largest difference of a twin with exact floats: {moved:g} in what steps lead to, {said:g} in "
        f"log-probabilities and values, {n_wrong} wrong draws; numbers of the point are "
        f"{'finite' if is_finite else 'not finite'}",
    )


def count_wrong_draws(actions: np.ndarray, probabilities: np.ndarray, rounding: float) -> int:
    """Count actions that the sampler would not draw, except where rounding decides."""
    ends, n_wrong = probabilities.cumsum(-1), 0
    for step, (taken, until) in enumerate(zip(actions, ends, strict=True)):
        words = philox(step // 4, np.arange(len(taken)), 0, STREAM_ACTIONS, *seed_words(SEED))
        drawn = uniform(words[step % 4])[:, None]
        is_clear = (np.abs(until - drawn) > rounding).all(-1)
        n_wrong += int((is_clear & (taken != (until > drawn).argmax(-1))).sum())
    return n_wrong


def small_run_agrees(point: Point, steps: Steps) -> Check:
    """Check a smaller run with exact floats against NumPy."""
    n_envs = checked_envs(point)
    pair = exact_pair(point, n_envs)
    for wrapper in pair:
        wrapper.rollout(CHECKED_STEPS, keep=point["kept"])
    got, want = (
        {name: each.tensor(name).cpu() for name in each.array_names() if name != FINAL_OBSERVATIONS}
        for each in (wrapper.cuda_data_manager for wrapper in pair)
    )
    apart = errors(want, got)
    largest = max(apart, key=lambda name: apart[name])
    is_finite = are_finite(steps.observations, steps.rewards)
    return Check(
        passed=is_finite and apart[largest] == 0,
        max_error=apart[largest],
        oracle=f"NumPy, {n_envs} environments, {CHECKED_STEPS} steps at once, to the bit",
        detail=f"largest difference of a twin with exact floats: {apart[largest]:g} ({largest}); "
        f"numbers of the point are {'finite' if is_finite else 'not finite'}",
    )


def exact_pair(point: Point, n_envs: int) -> tuple[EnvWrapper, EnvWrapper]:
    """Start environments with exact floats on the backend and on NumPy."""
    exact = {**point, "exact": True}
    return start_env(exact, point["backend"], n_envs), start_env(exact, ORACLE, n_envs)
