"""Kernels of a run that are known before torch is imported."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from warpdrive_min.constants import Constants
from warpdrive_min.env_wrapper import step_functions
from warpdrive_min.environment import environment_constants, planned_entries
from warpdrive_min.function_manager import KernelPlan
from warpdrive_min.perceptron import Perceptron
from warpdrive_min.rollouts import Copies
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import BEST_EPISODES, ModelConfig, RunConfig
from warpdrive_min.training.paths import constants
from warpdrive_min.training.paths.facts import Facts, Layers, first_reason, two_layers

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Program
    from warpdrive_min.environment import Environment

Build = Callable[[int], object]
"""Function that compiles kernels for a GPU, by its number."""


def builds(config: RunConfig, env: Environment, backend: Backend) -> list[Build]:
    """Return functions that compile a run's kernels in CUDA C.

    It imports no torch. They are those of the environment, of rollouts and evaluation, and of learning, as far as they
    are known without a trainer. Those that take longest come first. Exact runs have other kernels.
    """
    if config.trainer.exact:
        return []
    network = _network(config, env)
    of_network = [] if network is None else network.builds(config, env, backend)
    return [*of_network, *(each.build for each in _plans(config, env, backend, network))]


class _Network(NamedTuple):
    """Small network of the only policy, whose kernels are in CUDA C."""

    layers: Layers
    space: ActionSpace
    is_tanh: bool
    is_tf32: bool

    def builds(self, config: RunConfig, env: Environment, backend: Backend) -> list[Build]:
        """Return functions that compile the kernels of learning and of values."""
        return [
            lambda index: self.learning(config, env, backend, index).build(index),
            lambda index: self.values(backend).build(index),
        ]

    def learning(self, config: RunConfig, env: Environment, backend: Backend, index: int) -> Program:
        """Return the kernels of learning, for a GPU by its number."""
        (policy,) = config.policy.values()
        is_clipped, n_agents = policy.algorithm == "PPO", len(env.action_space)
        n_parts = policy.n_minibatches if is_clipped and config.trainer.compat is None else 1
        of_kernel = constants.learning_constants(
            self._sizes,
            self.space,
            constants.Clipping(is_clipped, policy.value_clip if is_clipped else None),
            shared_bytes=backend.most_shared_bytes(index),
            n_agents=n_agents,
            is_masked=env.masks_actions,
            is_tanh=self.is_tanh,
            is_tf32=self.is_tf32,
        )
        n_rows = config.trainer.train_batch_size // n_parts * n_agents
        return constants.learning_program(backend, self._sizes, of_kernel, n_rows, index)

    def values(self, backend: Backend) -> Program:
        """Return the kernel that evaluates the value network."""
        sizes = self._sizes._replace(n_outputs=1, n_types=1, is_shared=False)
        return constants.evaluation_program(backend, sizes, is_tanh=self.is_tanh, is_tf32=self.is_tf32)

    @property
    def _sizes(self) -> constants.Sizes:
        return constants.Sizes.of(self.layers, self.space.n_types)

    @property
    def policy(self) -> Perceptron:
        """Layers that choose actions, by shapes."""
        sizes = self.layers.n_features, *self.layers.hidden, self.layers.n_outputs
        shapes = [shape for n_in, n_out in itertools.pairwise(sizes) for shape in ((n_out, n_in), (n_out,))]
        return Perceptron(cast("Any", list(map(np.empty, shapes))), (), self.layers.activation)


def _network(config: RunConfig, env: Environment) -> _Network | None:
    """Return the network that "one pass, in CUDA C" learns; None if it is another one.

    None also if the run has several policies, or if agents could share a row of observations.
    """
    trainer = config.trainer
    if trainer.precision == "bf16" or len(config.policy) > 1:
        return None
    (policy,) = config.policy.values()
    model, agents = policy.model, list(env.action_space)
    space = ActionSpace.of(env.action_space[agents[0]])
    is_special = policy.centralised_critic is not None or env.own_columns is not None
    if not policy.to_train or not isinstance(model, ModelConfig) or is_special or space.is_continuous:
        return None
    observed = env.get_tensor_dictionary().get(Constants.OBSERVATIONS)
    if model.type != "fully_connected" or model.fused is False or model.normalize_observations or observed is None:
        return None
    n_features = math.prod(np.shape(observed["data"])[1:])
    layers = Layers(n_features, model.fc_dims, space.n_outputs, model.activation, model.shared)
    if first_reason((two_layers, constants.fits), Facts(network=layers, n_types=space.n_types)) is not None:
        return None
    return _Network(layers, space, model.activation == "tanh", trainer.precision == "tf32")


def _plans(config: RunConfig, env: Environment, backend: Backend, network: _Network | None) -> Iterator[KernelPlan]:
    """Yield the environment's kernels in CUDA C, if it has them."""
    if backend.language not in env.kernel_sources or backend.language != "cuda_c":
        return
    trainer, n_members = config.trainer, config.population.size
    n_blocks, entries = env.settle_blocks(None, backend.language), planned_entries(env)
    counts = {True: trainer.num_envs * (n_members or 1)}
    learners = [policy for policy in config.policy.values() if policy.to_train]
    if config.saving.keep_best and n_members is None and len(learners) == 1:
        counts[False] = min(trainer.num_envs, BEST_EPISODES)
    copies = {}
    for restarts, n_envs in counts.items():
        functions = step_functions(env, n_envs, n_blocks, backend, auto_reset=restarts)
        of_step = environment_constants(env, auto_reset=restarts)
        yield KernelPlan(functions, env.kernel_sources, of_step)
        copies[restarts] = Copies(env, n_envs, backend, env.kernel_sources, of_step)
    if network is None or copies[True].why_no_policy or env.kernel_sequences(True):
        return
    if False in copies:
        of_layers = constants.Sizes.of(network.layers, 1).layers(is_tanh=network.is_tanh, is_tf32=False)
        yield copies[False].episodes(of_layers, entries)
    if n_members is None and trainer.fused_rollout is not False:
        yield copies[True].with_policy(network.policy, entries, keeps_all=True, records=True, is_tf32=network.is_tf32)
