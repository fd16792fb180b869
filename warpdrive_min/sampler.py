"""Sampler: draws discrete and continuous actions on the device.

One kernel draws all action types of an array.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from warpdrive_min.backends.base import Argument, Constant, Launch
from warpdrive_min.constants import Constants
from warpdrive_min.conversion import as_tensor
from warpdrive_min.data_feed import DataFeed
from warpdrive_min.data_manager import CUDADataManager
from warpdrive_min.errors import ActionError, ConfigError, DataError, known, require
from warpdrive_min.function_manager import CUDAFunctionManager, KernelCall, core_sources
from warpdrive_min.lazy import LazyModule
from warpdrive_min.rng import STREAM_ACTIONS, seed_words
from warpdrive_min.spaces import action_bounds

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch", globals())

SEED: Final = "_sampler_seed_"
"""Low and high word of the sampler's seed, (2,) int32."""
ONE: Final = "_sampler_one_"
"""The number 1, (1,) float32, for parameters given as floats.

If it is a tensor on the device, they read that.
"""
SPREAD_FROM: Final = 256
"""Most agents whose draws one block computes; with more, blocks share them."""
ROWS_OF_A_BLOCK: Final = 128
"""Agents per block in that case; up to 64 choices fit shared memory."""
MIN_NOISE_SCALE: Final = 1e-8
"""Scale below which noise is off."""


class Choice(NamedTuple):
    """Options of a draw of discrete actions."""

    logits: bool = False
    mask: torch.Tensor | None = None
    log_prob: torch.Tensor | None = None
    entropy: torch.Tensor | None = None


class Noise(NamedTuple):
    """Options of a draw of continuous actions."""

    damping: float | torch.Tensor = 0.15
    stddev: float | torch.Tensor = 0.2
    scale: float | torch.Tensor = 1.0


@dataclass(frozen=True, slots=True)
class ActionArray:
    """Registered array of actions."""

    name: str
    stream: int
    n_agents: int
    n_types: int
    categories: tuple[int, ...]
    """Number of choices of each type; empty for continuous actions."""

    @property
    def draws(self) -> str:
        """Name of the draw counters, (n_envs,) int32."""
        return f"{self.name}_draws"

    @property
    def impossible(self) -> str:
        """Name of the counts of impossible draws, (n_envs, n_agents) int32."""
        return f"{self.name}_impossible"

    @property
    def ou_state(self) -> str:
        """Name of the noise state, (n_envs, n_agents, n_types) float32."""
        return f"{self.name}_ou_state"


class Flags(NamedTuple):
    """Compile-time options of the kernel for discrete actions."""

    logits: bool = False
    masked: bool = False
    argmax: bool = False
    log_prob: bool = False
    entropy: bool = False


class NoiseFlags(NamedTuple):
    """Compile-time options of the continuous kernels; used by `sample_gaussian`."""

    argmax: bool = False
    log_prob: bool = False
    entropy: bool = False


Key = tuple[Any, ...]
Keywords = TypeVar("Keywords", Choice, Noise)


class CUDASampler:
    """Sampler of discrete actions, from probabilities or logits, and continuous ones.

    Draw ``d`` of agent ``a`` in environment ``e`` depends only on the seed and ``(array, e, a, d)``. So every backend
    draws the same actions, for any number of environments. The counters are on the device, so each replay of a CUDA
    graph draws new actions.

    Args:
        function_manager: Manager of the backend that draws.
    """

    def __init__(self, function_manager: CUDAFunctionManager) -> None:
        self._functions = function_manager
        self._arrays: dict[str, ActionArray] = {}
        self._managers: dict[Key, CUDAFunctionManager] = {}
        self._prepared: dict[Key, tuple[Key, Launch]] = {}
        self._seeds: list[torch.Tensor] = []
        self._draws: list[torch.Tensor] = []
        self._seed: tuple[int, int] | None = None

    def init_random(self, seed: int | None = None) -> None:
        """Set the seed and restart the count of draws from 0; synchronises.

        None takes the seed from the clock. The noise of continuous actions is not changed: see `reset_noise`.

        Raises:
            ConfigError: The seed is not an integer, is negative, or has more than 64 bits.
        """
        if seed is None:
            seed = time.time_ns()
        self._seed = seed_words(seed)
        for seeds in self._seeds:
            seeds.copy_(torch.tensor(self._seed, dtype=torch.int32, device="cpu"))
        for draws in self._draws:
            draws.zero_()

    # -------------------------------------------------------------- registration

    def register_actions(
        self,
        data_manager: CUDADataManager,
        action_name: str,
        num_actions: int | Sequence[int],
        is_deterministic: bool = False,
    ) -> None:
        """Register an array of actions for `sample`.

        Its shape is ``(n_envs, n_agents, n_types)``, or with one type also ``(n_envs, n_agents)``. Pushes
        ``<action_name>_draws``, and ``<action_name>_impossible`` for choices or ``<action_name>_ou_state`` for
        continuous actions, all 0. Samplers of one array share them.

        Args:
            data_manager: Manager that holds the array.
            action_name: Name of the array.
            num_actions: For an int32 array, choices of its type or of each type; for a continuous one, ``n_types``.
            is_deterministic: True for continuous actions in a float32 array: a policy returns the actions themselves,
                not probabilities of choices.

        Raises:
            ConfigError: The array has another dtype or shape, or is registered already.
        """
        require(action_name not in self._arrays, "sampler", f"{action_name!r} is registered already")
        counts = tuple(int(n) for n in ([num_actions] if isinstance(num_actions, int | np.integer) else num_actions))
        n_types, want = (sum(counts), "float32") if is_deterministic else (len(counts), "int32")
        shape, dtype = tuple(by_type(data_manager.tensor(action_name)).shape), data_manager.get_dtype(action_name)
        is_fine = dtype == want and len(shape) == 3 and shape[::2] == (data_manager.n_envs, n_types)
        rule = f"{action_name!r} must be {want} of shape ({data_manager.n_envs}, n_agents, {n_types})"
        do = "is_deterministic=True is for float32 arrays, False for int32 ones"
        require(is_fine, "sampler", rule, f"{dtype} {shape}", do)
        require(min(counts) >= 1, "sampler", f"every type of {action_name!r} needs at least one choice", counts)
        stream = STREAM_ACTIONS + len(self._arrays)
        array = ActionArray(action_name, stream, shape[1], n_types, () if is_deterministic else counts)
        feed = DataFeed()
        feed.add_data(array.draws, np.zeros(data_manager.n_envs, np.int32), per_env=True)
        if is_deterministic:
            feed.add_data(array.ou_state, np.zeros(shape, np.float32), per_env=True)
            feed.add_data(ONE, np.ones(1, np.float32))
        else:
            feed.add_data(array.impossible, np.zeros(shape[:2], np.int32), scratch=True)
        feed.add_data(SEED, np.zeros(2, np.int32))
        for name in [name for name in feed if data_manager.is_data_on_device(name)]:
            del feed[name]  # pushed by another sampler
        data_manager.push_data_to_device(feed)
        if self._seed is not None:
            data_manager.tensor(SEED).copy_(torch.tensor(self._seed, dtype=torch.int32, device="cpu"))
        for name in (array.draws, array.ou_state if is_deterministic else array.impossible):
            data_manager.tensor(name).zero_()
        self._seeds.append(data_manager.tensor(SEED))
        self._draws.append(data_manager.tensor(array.draws))
        self._arrays[action_name] = array

    # -------------------------------------------------------------- draws

    def sample(
        self,
        data_manager: CUDADataManager,
        distribution: torch.Tensor,
        action_name: str = Constants.ACTIONS,
        use_argmax: bool = False,
        **params: Any,
    ) -> None:
        """Enqueue one draw for every agent; does not synchronise.

        Discrete actions: ``distribution`` is ``(n_envs, n_agents, sum of choices)`` float32. It holds probabilities,
        which are divided by their sum, or logits. A choice of probability 0 is never drawn. A draw is impossible if the
        mask allows no choice, all allowed choices have probability 0, or an allowed entry is NaN, infinite or a
        negative probability. Its action is then the first allowed choice, or 0, with log-probability and entropy 0, on
        every backend. ``<action_name>_impossible`` counts such draws.

        Continuous actions: ``distribution`` is the mean, shaped as the actions, float32. Ornstein-Uhlenbeck noise is
        added: ``ou_state = (1 - damping) * ou_state + stddev * normal``, ``action = mean + scale * ou_state``. With
        ``damping=1`` it is Gaussian noise. The actions are not clipped to their space. Each of the three parameters is
        a float or a 0-d float32 tensor on the device. A float is passed by value, so a captured graph always replays
        it. A tensor is read when the kernel runs, so a graph uses its current content. Its content is not checked; a
        scale of 0 in a tensor still consumes a draw and changes the noise.

        Args:
            data_manager: Manager that holds the array of actions.
            distribution: Probabilities, logits or mean, as above.
            action_name: Name of a registered array.
            use_argmax: Take the first choice of the largest value, or the mean itself; consumes no draw.
            params: For discrete actions
                ``logits`` (False): ``distribution`` holds logits;
                ``mask``: as ``distribution``, int32; 0 forbids a choice;
                ``log_prob``: output for the log-probability of the actions, summed over types, ``(n_envs, n_agents)``
                float32;
                ``entropy``: output for the entropy, summed over types, ``(n_envs, n_agents)`` float32.
                For continuous actions ``damping`` (0.15), ``stddev`` (0.2), ``scale`` (1.0; for a float below 1e-8 the
                action is the mean, no draw is consumed and the noise stays).

        Raises:
            ConfigError: Not seeded, the array is not registered, a keyword is unknown, or a float is not finite.
            DataError: A tensor has another shape, dtype or device.
            ActionError: A draw is impossible (in debug mode, which synchronises).
        """
        self.bound(data_manager, distribution, action_name, use_argmax, **params)()

    def bound(
        self,
        data_manager: CUDADataManager,
        distribution: torch.Tensor,
        action_name: str = Constants.ACTIONS,
        use_argmax: bool = False,
        **params: Any,
    ) -> Launch:
        """Return a launch of `sample`'s draw, for tensors that stay in place.

        Arguments are checked and prepared once.

        Raises:
            ConfigError: As `sample`.
            DataError: As `sample`.
        """
        array = self._seeded(action_name)
        if array.categories:
            return self._choose(data_manager, array, distribution, use_argmax, _keywords(Choice, params, action_name))
        return self._add_noise(data_manager, array, distribution, use_argmax, _keywords(Noise, params, action_name))

    def sample_gaussian(
        self,
        data_manager: CUDADataManager,
        mean: torch.Tensor,
        log_std: torch.Tensor,
        action_name: str = Constants.ACTIONS,
        use_argmax: bool = False,
        log_prob: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
    ) -> None:
        """Draw from independent Gaussians for every agent; enqueues.

        ``action = mean + exp(log_std) * normal``, not clipped to the action space. The normals are the same as
        `sample`'s. The kernel reads and writes all tensors when it runs, so a captured graph uses their current
        content.

        Args:
            data_manager: Manager that holds the array of actions.
            mean: Means, shaped as the actions, ``(n_envs, n_agents, n_types)`` float32.
            log_std: Logarithm of the standard deviation, ``(n_agents, n_types)`` float32; agents of one policy have
                equal rows. Below -87 the deviation is 0, above 88 it is infinite.
            action_name: Name of a registered array of continuous actions; its noise state is not changed.
            use_argmax: Take the mean itself; consumes no draw.
            log_prob: Output for the log density at the actions (before their rounding to float32), summed over types,
                ``(n_envs, n_agents)`` float32.
            entropy: Output for the differential entropy, summed over types, ``(n_envs, n_agents)`` float32.

        Raises:
            ConfigError: Not seeded, the array is not registered, or is discrete.
            DataError: A tensor has another shape, dtype or device.
        """
        array = _continuous(self._seeded(action_name), "sample_gaussian")
        rows, types = (data_manager.n_envs, array.n_agents), (array.n_types,)
        arguments = {"mean": mean, "log_std": log_std, "log_prob": log_prob, "entropy": entropy}
        shapes = {"mean": rows + types, "log_std": rows[1:] + types, "log_prob": rows, "entropy": rows}
        _check(arguments, shapes, data_manager.device)
        flags = NoiseFlags(use_argmax, log_prob is not None, entropy is not None)
        self._prepare(data_manager, array, "gaussian", flags, arguments)()

    def sample_uniform(
        self,
        data_manager: CUDADataManager,
        low: torch.Tensor,
        high: torch.Tensor,
        action_name: str = Constants.ACTIONS,
    ) -> None:
        """Draw uniform continuous actions for every agent; enqueues.

        Args:
            data_manager: Manager that holds the array of actions.
            low: Smallest values, finite, ``(n_agents, n_types)`` float32.
            high: Largest values, finite, ``(n_agents, n_types)`` float32.
            action_name: Name of a registered array of continuous actions; its noise state is not changed.

        Raises:
            ConfigError: Not seeded, the array is not registered, or is discrete.
            DataError: A tensor has another shape, dtype or device.
        """
        self.bound_uniform(data_manager, low, high, action_name)()

    def bound_uniform(
        self,
        data_manager: CUDADataManager,
        low: torch.Tensor,
        high: torch.Tensor,
        action_name: str = Constants.ACTIONS,
    ) -> Launch:
        """Return a launch of `sample_uniform`'s draw; see `bound`.

        Raises:
            ConfigError: As `sample_uniform`.
            DataError: As `sample_uniform`.
        """
        array = _continuous(self._seeded(action_name), "sample_uniform")
        arguments, shape = {"low": low, "high": high}, (array.n_agents, array.n_types)
        _check(arguments, dict.fromkeys(arguments, shape), data_manager.device)
        return self._prepare(data_manager, array, "uniform_actions", NoiseFlags(), arguments)

    def bound_random(
        self, data_manager: CUDADataManager, spaces: Sequence[Any], action_name: str = Constants.ACTIONS
    ) -> Launch:
        """Return a launch of uniform draws, over choices or between bounds.

        Args:
            data_manager: Manager that holds the array of actions.
            spaces: Spaces of the array's agents: equal discrete ones, or boxes of one shape with finite bounds.
            action_name: Name of a registered array.

        Raises:
            ConfigError: Not seeded, the array is not registered, or a box has no finite bounds.
        """
        array = self._seeded(action_name)
        if array.categories:
            return self._prepare(data_manager, array, "draw_uniform", Flags(), {})
        low, high = torch.from_numpy(finite_bounds(spaces)).to(data_manager.device)
        return self.bound_uniform(data_manager, low, high, action_name)

    def counters(self, data_manager: CUDADataManager, action_name: str = Constants.ACTIONS) -> dict[str, Argument]:
        """Return the counters that determine the next draw.

        ``draws`` (n_envs,), ``seed`` (2,) and ``stream``. A kernel that draws the same actions takes them, adds the
        number of its draws to ``draws``, and counts impossible draws in ``impossible`` (n_envs, n_agents).

        Raises:
            ConfigError: Not seeded, or the array is not registered.
        """
        array = self._seeded(action_name)
        counters = {"draws": data_manager.tensor(array.draws), "seed": data_manager.tensor(SEED)}
        if array.categories:
            counters["impossible"] = data_manager.tensor(array.impossible)
        return {**counters, "stream": array.stream}

    def reset_noise(self, data_manager: CUDADataManager, action_name: str = Constants.ACTIONS) -> None:
        """Set the noise of continuous actions to 0; enqueues, does not synchronise.

        Only this resets it: noise continues across episodes, as in WarpDrive.

        Raises:
            ConfigError: The array is not registered, or is discrete.
        """
        data_manager.tensor(_continuous(self._registered(action_name), "reset_noise").ou_state).zero_()

    def assign(self, data_manager: CUDADataManager, actions: np.ndarray | torch.Tensor, action_name: str) -> None:
        """Write actions to an array in place of a draw.

        Raises:
            DataError: Shape or dtype differ from the array's.
        """
        target = data_manager.tensor(action_name)
        given = as_tensor(actions)
        got, want = ((each.dtype, tuple(each.shape)) for each in (given, target))
        require(got == want, "assign", f"actions must be {want[0]} of shape {want[1]}", got, error=DataError)
        target.copy_(given)

    # -------------------------------------------------------------- launches

    def _seeded(self, action_name: str) -> ActionArray:
        if self._seed is None:
            raise ConfigError("sampler: has no seed; call init_random(seed) before sample()")
        return self._registered(action_name)

    def _registered(self, action_name: str) -> ActionArray:
        if action_name not in self._arrays:
            raise ConfigError(f"sampler: {action_name!r} is not registered; known are {known(self._arrays)}")
        return self._arrays[action_name]

    def _choose(
        self, data: CUDADataManager, array: ActionArray, distribution: torch.Tensor, use_argmax: bool, choice: Choice
    ) -> Launch:
        outputs = {"log_prob": choice.log_prob, "entropy": choice.entropy}
        arguments = {"distribution": distribution, "mask": choice.mask, **outputs}
        rows = (data.n_envs, array.n_agents)
        wide = (*rows, sum(array.categories))
        _check(arguments, {"distribution": wide, "mask": wide, "log_prob": rows, "entropy": rows}, data.device)
        flags = Flags(
            logits=choice.logits,
            masked=choice.mask is not None,
            argmax=use_argmax,
            log_prob=choice.log_prob is not None,
            entropy=choice.entropy is not None,
        )
        launch = self._prepare(data, array, "draw", flags, arguments)
        return self._checked(data, array, launch) if self._functions.debug else launch

    def _checked(self, data: CUDADataManager, array: ActionArray, draw: Launch) -> Launch:
        """Return a draw that raises an error if it is impossible."""
        counts = data.tensor(array.impossible)

        def draw_and_check() -> None:
            before = counts.clone()
            draw()
            wrong = (counts != before).nonzero()
            if len(wrong):
                env, agent = wrong[0].tolist()
                raise ActionError(
                    f"{array.name}[{env}, {agent}]: of environment {env}, agent {agent}, no choice can be drawn: "
                    "probabilities must be finite and not negative, and one that the mask allows must be positive "
                    f"({len(wrong)} of {counts.numel()} rows are impossible); fix the mask or the probabilities"
                )

        return draw_and_check

    def _add_noise(
        self, data: CUDADataManager, array: ActionArray, mean: torch.Tensor, use_argmax: bool, noise: Noise
    ) -> Launch:
        actions = by_type(data.tensor(array.name))
        _check({"distribution": mean}, {"distribution": tuple(actions.shape)}, data.device)
        arguments: dict[str, torch.Tensor | float | None] = {"mean": mean, "ou_state": data.tensor(array.ou_state)}
        for name, number in noise._asdict().items():
            if isinstance(number, torch.Tensor):
                _check({name: number}, {name: ()}, data.device)
                arguments |= {name: 1.0, f"{name}_factor": number.view(1)}
            elif math.isfinite(number):
                arguments |= {name: number, f"{name}_factor": data.tensor(ONE)}
            else:
                raise ConfigError(f"sample: {name} of {array.name!r} must be finite (got {number})")
        if use_argmax or (not isinstance(noise.scale, torch.Tensor) and noise.scale < MIN_NOISE_SCALE):
            mean = mean.detach()

            def copy_mean() -> None:
                actions.copy_(mean)

            return copy_mean
        return self._prepare(data, array, "noise", NoiseFlags(), arguments)

    def _prepare(
        self,
        data: CUDADataManager,
        array: ActionArray,
        kernel: str,
        flags: Flags | NoiseFlags,
        arguments: Mapping[str, torch.Tensor | float | None],
    ) -> Launch:
        """Return a launch of an array's kernel, cached for equal tensors."""
        given = tuple(value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments.values())
        key = (data, array.name, kernel, flags)
        if key not in self._prepared or self._prepared[key][0] != given:
            counts = {"impossible": data.tensor(array.impossible)} if array.categories else {}
            launch = self._manager(array, flags).bind(
                kernel,
                data,
                actions=by_type(data.tensor(array.name)),
                draws=data.tensor(array.draws),
                seed=data.tensor(SEED),
                stream=array.stream,
                **counts,
                **{name: _argument(name, value, data.device) for name, value in arguments.items()},
            )
            self._prepared[key] = (given, launch)
        return self._prepared[key][1]

    def _manager(self, array: ActionArray, flags: Flags | NoiseFlags) -> CUDAFunctionManager:
        key = (array.name, flags)
        if key not in self._managers:
            backend, n_envs, n_agents = self._functions.backend, self._functions.n_envs, array.n_agents
            is_spread = isinstance(flags, Flags) and n_agents > SPREAD_FROM and backend.language != "numpy"
            n_blocks = -(-n_agents // ROWS_OF_A_BLOCK) if is_spread else 1
            manager = CUDAFunctionManager(n_agents, n_envs, n_blocks, backend=backend, spread=is_spread)
            manager.envs_before = self._functions.envs_before
            # EXACT: never contracted, so that every backend draws the same.
            constants: dict[str, Constant] = {"N_TYPES": array.n_types, "EXACT": True}
            constants |= {name.upper(): value for name, value in flags._asdict().items()}
            if isinstance(flags, Flags):
                constants |= {"CATEGORIES": array.categories, "N_CATEGORIES": sum(array.categories)}
                manager.load(core_sources("sample"), constants)
                counts: list[KernelCall] = [("count", {})] if is_spread and not flags.argmax else []
                manager.define_sequence("draw", [("sample", {}), *counts])
                manager.define_sequence("draw_uniform", [("uniform_choices", {}), *counts])
            else:
                manager.load(core_sources("noise"), constants)
            self._managers[key] = manager
        return self._managers[key]


def finite_bounds(spaces: Sequence[Any]) -> np.ndarray:
    """Return all agents' action bounds, ``(2, n_agents, n_types)`` float32.

    Raises:
        ConfigError: One is infinite, or the agents' actions differ in shape.
    """
    bounds = action_bounds(spaces)
    is_bounded = np.isfinite(bounds).all()
    require(is_bounded, "random policy", "needs finite bounds of the actions", spaces, "use a bounded Box")
    return bounds


def by_type(actions: torch.Tensor) -> torch.Tensor:
    """View actions of one type (n_envs, n_agents) as (n_envs, n_agents, 1).

    Others are returned unchanged.
    """
    return actions[..., None] if actions.dim() == 2 else actions


def _keywords(kind: type[Keywords], params: Mapping[str, Any], action_name: str) -> Keywords:
    for name in params:
        if name not in kind._fields:
            raise ConfigError(f"sample: {action_name!r} has no keyword {name!r}; known are {known(kind._fields)}")
    return kind(**params)


def _continuous(array: ActionArray, who: str) -> ActionArray:
    if array.categories:
        raise ConfigError(
            f"{who}: {array.name!r} must be continuous (got discrete actions of {array.categories} choices); "
            "register a float32 array with is_deterministic=True"
        )
    return array


def _check(
    tensors: Mapping[str, torch.Tensor | None], shapes: Mapping[str, tuple[int, ...]], device: torch.device
) -> None:
    """Raise `DataError` unless tensors are float32, and masks int32, as kernels need."""
    for name, tensor in tensors.items():
        want = (shapes[name], torch.int32 if name == "mask" else torch.float32, device)
        if tensor is None or ((tuple(tensor.shape), tensor.dtype, tensor.device) == want and tensor.is_contiguous()):
            continue
        raise DataError(
            f"sample: {name} must be contiguous {want[1]} of shape {want[0]} on {device} "
            f"(got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device})"
        )


def _argument(name: str, value: torch.Tensor | float | None, device: torch.device) -> torch.Tensor | float:
    """Return an argument; None becomes an unused tensor of its kind."""
    if value is not None:
        return value
    if name == "mask":
        return torch.zeros((1, 1, 1), dtype=torch.int32, device=device)
    return torch.zeros((1, 1), device=device, dtype=torch.float32)
