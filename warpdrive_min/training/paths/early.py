"""Preparations in threads, while `train` imports torch or builds a trainer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warpdrive_min.constants import Constants
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.config import ModelConfig, RunConfig
from warpdrive_min.training.paths import constants
from warpdrive_min.training.paths.facts import Facts, Layers, first_reason, two_layers

if TYPE_CHECKING:
    from warpdrive_min.backends.base import Backend, Program
    from warpdrive_min.environment import Environment

_threads: Final[list[Thread]] = []
_starts: Final[list[Thread]] = []
"""Those that start the GPU."""
_releases: Final[list[Callable[[], None]]] = []
"""Functions that release the GPU."""


def run(prepare: Callable[[], object]) -> Thread:
    """Call a function in a thread; a later use reports its error."""

    def attempt() -> None:
        with suppress(Exception):
            prepare()

    thread = Thread(target=attempt, daemon=True)
    _threads.append(thread)
    thread.start()
    return thread


def start_gpu(backend: Any, index: int) -> None:
    """Create the context of a GPU, in a thread."""
    _starts.append(run(lambda: _releases.append(backend.start(index))))


def release() -> None:
    """Release the GPU, which this process will not use."""
    for thread in _starts:
        thread.join()
    while _releases:
        _releases.pop()()


def wait() -> None:
    """Wait for the end of the preparations."""
    for thread in _threads:
        thread.join()


def learning_program(config: RunConfig, env: Environment, backend: Backend) -> Program | None:
    """Return the kernel that a run will learn with; imports no torch.

    It takes longest to compile. None if it is another one than that of "one pass, in CUDA C", if the run has several
    policies, or if agents could share a row of observations.
    """
    trainer = config.trainer
    if trainer.exact or trainer.precision == "bf16" or len(config.policy) > 1:
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
    is_clipped = policy.algorithm == "PPO"
    clipping = constants.Clipping(is_clipped, policy.value_clip if is_clipped else None)
    given = {
        "is_tanh": model.activation == "tanh",
        "is_tf32": trainer.precision == "tf32",
        "is_masked": env.masks_actions,
    }
    sizes = constants.Sizes.of(layers, space.n_types)
    of_kernel = constants.learning_constants(sizes, space, clipping, n_agents=len(agents), **given)
    return constants.learning_program(backend, sizes, of_kernel)


@functools.cache
def prepare_triton() -> None:
    """Start preparations of Triton in a thread, once.

    Only runs that learn by Triton need them; during torch's import they would delay it.
    """
    run(_prepare_triton)


def _prepare_triton() -> None:
    """Import Triton, hash its files and build its launcher."""
    from triton.runtime.cache import triton_key

    key = Thread(target=triton_key, daemon=True)
    key.start()
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()  # compiled by a C compiler
    key.join()
