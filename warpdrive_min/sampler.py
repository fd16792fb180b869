"""The sampler: draws discrete actions on the device, all action types of an array in one kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from warpdrive_min.backends.base import Constant, Launch
from warpdrive_min.constants import Constants
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import ConfigError, DataError, known
from warpdrive_min.function_manager import CUDAFunctionManager, core_sources
from warpdrive_min.rng import STREAM_ACTIONS, seed_words

SEED: Final = "_sampler_seed_"
"""Low and high word of the sampler's seed, (2,) int32."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the sample kernel is compiled for."""

    logits: bool
    masked: bool
    argmax: bool
    log_prob: bool
    entropy: bool


@dataclass(slots=True)
class ActionArray:
    """One registered array of actions."""

    name: str
    stream: int
    n_agents: int
    categories: tuple[int, ...]
    draws: str
    """Name of the draw counters, (n_envs,) int32."""


class CUDASampler:
    """Draws actions from probabilities or logits.

    Draw ``d`` of agent ``a`` in environment ``e`` depends on the seed and ``(array, e, a, d)`` alone: every
    backend draws the same actions, for any number of environments. The counters live on the device, so a
    replayed CUDA graph goes on drawing.

    Args:
        function_manager: Of the backend that draws.
    """

    def __init__(self, function_manager: CUDAFunctionManager) -> None:
        self._functions = function_manager
        self._arrays: dict[str, ActionArray] = {}
        self._managers: dict[tuple[str, Flags], CUDAFunctionManager] = {}
        self._prepared: dict[tuple[CUDADataManager, str, Flags], tuple[tuple[int, ...], Launch]] = {}
        self._seeds: list[torch.Tensor] = []
        self._draws: list[torch.Tensor] = []
        self._seed: tuple[int, int] | None = None

    def init_random(self, seed: int | None = None) -> None:
        """Set the seed, from the clock if None, and count draws from 0 again; synchronises.

        Raises:
            ValueError: The seed is negative or has more than 64 bits.
        """
        if seed is None:
            seed = time.time_ns()
        self._seed = seed_words(seed)
        for seeds in self._seeds:
            seeds.copy_(torch.tensor(self._seed, dtype=torch.int32))
        for draws in self._draws:
            draws.zero_()

    def register_actions(
        self,
        data_manager: CUDADataManager,
        action_name: str,
        num_actions: int | Sequence[int],
        is_deterministic: bool = False,
    ) -> None:
        """Prepare an array of actions ``(n_envs, n_agents, n_types)`` int32 for `sample`.

        Args:
            data_manager: That holds the array.
            action_name: Its name.
            num_actions: Choices of its one type, or of each.
            is_deterministic: Continuous actions, which this sampler does not draw.

        Raises:
            ConfigError: The array is no int32 array of that shape, is registered already, or is continuous.
        """
        if is_deterministic:
            raise ConfigError(f"sampler: {action_name!r} is continuous; this sampler draws discrete ones, use assign()")
        if action_name in self._arrays:
            raise ConfigError(f"sampler: {action_name!r} is registered already")
        counts = [num_actions] if isinstance(num_actions, int | np.integer) else num_actions
        categories = tuple(int(n) for n in counts)
        shape, dtype = data_manager.get_shape(action_name), data_manager.get_dtype(action_name)
        if dtype != "int32" or len(shape) != 3 or shape[0] != data_manager.n_envs or shape[2] != len(categories):
            raise ConfigError(
                f"sampler: {action_name!r} must be int32 of shape ({data_manager.n_envs}, n_agents, {len(categories)}) "
                f"(got {dtype} {shape})"
            )
        if min(categories) < 1:
            raise ConfigError(f"sampler: every type of {action_name!r} needs at least one choice (got {categories})")
        array = ActionArray(
            action_name, STREAM_ACTIONS + len(self._arrays), shape[1], categories, f"{action_name}_draws"
        )
        feed = DataFeed()
        feed.add_data(array.draws, np.zeros(data_manager.n_envs, np.int32))
        if not data_manager.is_data_on_device(SEED):
            feed.add_data(SEED, np.zeros(2, np.int32))
        data_manager.push_data_to_device(feed)
        if self._seed is not None:
            data_manager.tensor(SEED).copy_(torch.tensor(self._seed, dtype=torch.int32))
        self._seeds.append(data_manager.tensor(SEED))
        self._draws.append(data_manager.tensor(array.draws))
        self._arrays[action_name] = array

    def sample(
        self,
        data_manager: CUDADataManager,
        distribution: torch.Tensor,
        action_name: str = Constants.ACTIONS,
        use_argmax: bool = False,
        *,
        logits: bool = False,
        mask: torch.Tensor | None = None,
        log_prob: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
    ) -> None:
        """Enqueue one draw for every agent; does not synchronise.

        Args:
            data_manager: That holds the array of actions.
            distribution: ``(n_envs, n_agents, sum of choices)`` float32: probabilities, which need not sum to
                one, or logits. A choice of probability 0 is never drawn.
            action_name: A registered array.
            use_argmax: Take the first choice of the largest value instead; consumes no draw.
            logits: ``distribution`` holds logits.
            mask: As ``distribution``, int32; 0 forbids a choice.
            log_prob: Filled with the log-probability of the actions, summed over types, ``(n_envs, n_agents)`` float32.
            entropy: Filled with the entropy, summed over types, ``(n_envs, n_agents)`` float32.

        Raises:
            ConfigError: Not seeded, or the array is not registered.
            DataError: A tensor has another shape, dtype or device.
        """
        if self._seed is None:
            raise ConfigError("sampler: has no seed; call init_random(seed) before sample()")
        if action_name not in self._arrays:
            raise ConfigError(f"sampler: {action_name!r} is not registered; known are {known(self._arrays)}")
        array = self._arrays[action_name]
        flags = Flags(logits, mask is not None, use_argmax, log_prob is not None, entropy is not None)
        rows = (data_manager.n_envs, array.n_agents)
        wide = (*rows, sum(array.categories))
        addresses = tuple(
            _address(name, tensor, shape, dtype, data_manager.device)
            for name, tensor, shape, dtype in (
                ("distribution", distribution, wide, torch.float32),
                ("mask", mask, wide, torch.int32),
                ("log_prob", log_prob, rows, torch.float32),
                ("entropy", entropy, rows, torch.float32),
            )
            if tensor is not None
        )
        key = (data_manager, action_name, flags)
        if key not in self._prepared or self._prepared[key][0] != addresses:
            launch = self._prepare(data_manager, array, flags, distribution, mask, log_prob, entropy)
            self._prepared[key] = (addresses, launch)
        self._prepared[key][1]()

    def _prepare(
        self,
        data: CUDADataManager,
        array: ActionArray,
        flags: Flags,
        distribution: torch.Tensor,
        mask: torch.Tensor | None,
        log_prob: torch.Tensor | None,
        entropy: torch.Tensor | None,
    ) -> Launch:
        # What the flags switch off is never touched: anything of the right rank and type stands in for it.
        unused = torch.zeros((1, 1), device=data.device)
        return self._manager(array, flags).bind(
            "sample",
            data,
            distribution=distribution,
            mask=torch.zeros((1, 1, 1), dtype=torch.int32, device=data.device) if mask is None else mask,
            actions=data.tensor(array.name),
            draws=data.tensor(array.draws),
            seed=data.tensor(SEED),
            log_prob=unused if log_prob is None else log_prob,
            entropy=unused.clone() if entropy is None else entropy,
            stream=array.stream,
        )

    def _manager(self, array: ActionArray, flags: Flags) -> CUDAFunctionManager:
        key = (array.name, flags)
        if key not in self._managers:
            manager = CUDAFunctionManager(array.n_agents, self._functions.n_envs, backend=self._functions.backend)
            constants: dict[str, Constant] = {
                "CATEGORIES": array.categories,
                "N_TYPES": len(array.categories),
                "N_CATEGORIES": sum(array.categories),
                "LOGITS": flags.logits,
                "MASKED": flags.masked,
                "ARGMAX": flags.argmax,
                "LOG_PROB": flags.log_prob,
                "ENTROPY": flags.entropy,
                "EXACT": True,  # never contracted, so that every backend draws the same
            }
            manager.load(core_sources("sample"), constants)
            self._managers[key] = manager
        return self._managers[key]

    def assign(self, data_manager: CUDADataManager, actions: np.ndarray | torch.Tensor, action_name: str) -> None:
        """Write actions into an array instead of drawing them.

        Raises:
            DataError: Shape or dtype differ from the array's.
        """
        target = data_manager.tensor(action_name)
        given = torch.as_tensor(actions)
        if given.shape != target.shape or given.dtype != target.dtype:
            raise DataError(
                f"assign: actions must be {target.dtype} of shape {tuple(target.shape)} "
                f"(got {given.dtype} {tuple(given.shape)})"
            )
        target.copy_(given)


def _address(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> int:
    """Return the address of a tensor that is as the kernel takes it."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous():
        raise DataError(
            f"sample: {name} must be contiguous {dtype} of shape {shape} on {device} "
            f"(got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device})"
        )
    return tensor.data_ptr()
