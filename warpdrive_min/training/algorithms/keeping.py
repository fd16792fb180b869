"""Choice of the policies that keep the forward passes of their rollouts, so that learning has only a backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from warpdrive_min.errors import require
from warpdrive_min.perceptron import ACTIVATIONS
from warpdrive_min.training.algorithms.actor_critic import ActorCriticAlgorithm
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop.policies import PolicyGroup
from warpdrive_min.training.models.fully_connected import FullyConnected
from warpdrive_min.training.paths.fused import is_supported, missing, narrow, wide
from warpdrive_min.training.paths.fused.kept import KeptPasses, KernelPasses, TorchPasses

MOST_MEMORY: Final = 0.5
"""Share of a GPU's memory that kept passes, and the observations they are of, may take where
``trainer.kept_passes`` is null."""


def keep_passes(config: RunConfig, groups: Mapping[str, PolicyGroup], *, is_at_once: bool) -> dict[str, str]:
    """Let rollouts keep the forward passes of policies where that can be; returns why not, by policy, empty if so.

    Args:
        config: Of the run.
        groups: Policies with their algorithms, by name.
        is_at_once: Rollouts are played in one launch.

    Raises:
        ConfigError: They must be kept, and cannot be.
        torch.cuda.OutOfMemoryError: They do not fit.
    """
    reasons, n_bytes = dict[str, str](), 0
    for name, group in groups.items():
        passes = _passes(config, group, n_bytes, is_at_once=is_at_once)
        reasons[name] = passes if isinstance(passes, str) else ""
        if isinstance(passes, KeptPasses) and group.buffer is not None:
            group.buffer.passes = passes
            n_bytes += passes.n_bytes + group.buffer.observations.nbytes
        what, rule = "run config trainer.kept_passes", f"passes of policy {name!r} cannot be kept: {reasons[name]}"
        is_fine = not (reasons[name] and config.trainer.kept_passes)
        require(is_fine, what, rule, True, "leave the key out, or set it to false")
    return reasons


def _passes(config: RunConfig, group: PolicyGroup, n_taken: int, *, is_at_once: bool) -> KeptPasses | str:
    """Return where the passes of a policy's rollouts are kept, beside some bytes for others, or why they are not."""
    trainer, algorithm, buffer = config.trainer, group.algorithm, group.buffer
    if buffer is None or not isinstance(algorithm, ActorCriticAlgorithm):
        return "it does not learn by the rule of A2C or PPO"
    model, device = group.models["model"], buffer.rewards.device
    layers = model.as_perceptron() if isinstance(model, FullyConnected) else f"it is a {type(model).__name__}"
    obstacles: dict[str, Any] = {
        "trainer.kept_passes is false": trainer.kept_passes is False,
        f"needs a GPU, Triton and a C compiler (missing: {missing() or 'none'})": not is_supported(device),
        "it learns from a rollout more than once": algorithm.n_epochs * algorithm.n_minibatches > 1,
        "its algorithm evaluates rows in its own way": type(algorithm).evaluate is not ActorCriticAlgorithm.evaluate,
        "it acts in one launch a rollout": is_at_once,
        "it has a centralised critic": "critic" in group.models,
        "it is of a population": group.members,
        "it trains exactly": group.exact,
        "agents share its observations": buffer.own_columns is not None,
        f"of its layers, {layers}": isinstance(layers, str),
    }
    if obstacle := next((reason for reason, holds in obstacles.items() if holds), ""):
        return obstacle
    assert not isinstance(layers, str)
    if len(layers.policy) != 6 or layers.activation not in ACTIVATIONS or model.value_fc is not None:
        return f"needs two hidden layers of {' or '.join(ACTIVATIONS)} that actions and values share"
    sizes = group.arrays.n_features, len(layers.policy[0]), len(layers.policy[2])
    n_outputs, precision = len(layers.policy[4]) + len(layers.value[4]), trainer.precision
    if narrow.fits(sizes[0], sizes[1:], n_outputs):
        return "its network is narrow, so that another pass costs less than keeping one"
    is_wide = wide.fits(sizes[0], sizes[1:], n_outputs, precision)
    if not (wide.keeps_by_row(sizes, precision) if is_wide else precision == "fp32"):
        return f"layers of its network cannot be kept in {precision}"
    shape = buffer.rewards.shape
    n_bytes = 4 * n_outputs + (wide.bytes_of_row(sizes, precision) if is_wide else 4 * sum(sizes[1:]))
    if trainer.kept_passes is None and device.type == "cuda":
        n_all = n_taken + shape.numel() * n_bytes + buffer.observations.nbytes
        n_most = MOST_MEMORY * torch.cuda.get_device_properties(device).total_memory
        if n_all > n_most:
            much = f"{n_all / 1e9:.1f} GB with the observations, more than {n_most / 1e9:.1f}"
            return f"trainer.kept_passes is null, and they take {much}"
    if is_wide:
        return KernelPasses((shape[0], shape[1], shape[2]), sizes, n_outputs, precision, device)
    return TorchPasses(buffer.observations[:-1], sizes[1:], n_outputs)
