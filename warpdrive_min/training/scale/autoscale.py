"""Search for the best number of environments, by memory and throughput.

It finds how many environments fit into memory, and from which number more gain little. Only the number of environments
varies. The steps of a rollout stay, like all other keys of the run config: schedules, discounts, numbers of epochs and
minibatches, the size of a replay buffer. A batch is steps times environments. So batches and PPO's minibatches grow
with the environments, and a run of equally many env steps has fewer updates.
"""

from __future__ import annotations

import bisect
import gc
import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import DeviceMemoryError, require, require_int
from warpdrive_min.training.build import algorithm_class
from warpdrive_min.training.config import ActorCriticConfig, PolicyConfig, RunConfig
from warpdrive_min.training.loop.arrays import PolicyMap
from warpdrive_min.training.models.gru import sequence_steps
from warpdrive_min.training.trainer import Trainer, policy_map

log = logging.getLogger(__name__)

MakeWrapper = Callable[[int], EnvWrapper]
"""Function from a number of environments to a wrapper that is not started."""

MAX_ENVS: Final = 2**24
"""Largest number of environments to try."""
USABLE_SHARE: Final = 0.9
"""Share of the free memory to plan with.

The rest is for compiled kernels, workspaces and fragmentation.
"""
SATURATION_SHARE: Final = 0.9
"""Share of the best throughput that the recommended trial must reach."""
MIN_SPEEDUP: Final = 1.05
"""Smallest speed-up over the best earlier trial that counts as a gain."""
TRIALS_WITHOUT_GAIN: Final = 2
"""Number of consecutive trials without a gain that ends the search."""
WARM_UP: Final = 2
"""Warm-up iterations: an eager one, and one that captures graphs."""
PROBE_ENVS: Final = 16
"""Environments of the smaller probe, if memory and the replay buffer allow."""


# ------------------------------------------------------------------ memory


@dataclass(frozen=True, slots=True)
class Probe:
    """Memory of one small trainer, bytes."""

    persistent: int
    """Bytes of all persistent tensors of the trainer and its environments."""
    temporary: int
    """Peak of temporary bytes in an iteration."""


class MemoryModel:
    """Predicted device memory of training, by number of environments.

    Small trainers with n and 2 n environments are built and stepped. A line through their bytes is the prediction.
    Passes through a model have at most ``trainer.max_rows`` rows, so the line of temporary memory bends there. A third
    trainer, which reaches that limit early, gives the slope beyond it. Synchronises.

    Args:
        config: Run config.
        make_wrapper: Builds the environments of the probes.
        policies: Agents of each policy; None uses the trainer's default.

    Raises:
        ConfigError: The run config does not fit the environment.
    """

    def __init__(self, config: RunConfig, make_wrapper: MakeWrapper, policies: PolicyMap | None = None) -> None:
        wrapper = make_wrapper(1)
        self.free_bytes = wrapper.cuda_data_manager.free_bytes()
        """Free bytes on the device at construction."""
        self.n_steps = config.trainer.train_batch_size // config.trainer.num_envs
        """Steps of a rollout."""
        agents = policy_map(config, wrapper, policies)
        rows_per_env = self.n_steps * max(len(each) for each in agents.values())
        self._room = _max_envs_for_replay(config, {name: len(each) for name, each in agents.items()}, self.n_steps)
        max_rows = config.trainer.max_rows
        bend = MAX_ENVS if max_rows is None else max_rows // rows_per_env
        self._n = n = _probe_size(config, self.n_steps, min(self._room, bend))
        self._bend = max(n, bend)

        def probed(num_envs: int, **trainer: Any) -> Probe:
            return probe(sized(config, num_envs, self.n_steps, mode="eager", **trainer), make_wrapper, policies)

        self._small, large = probed(n), probed(2 * n)
        limited = probed(2 * n, max_rows=n * rows_per_env) if n < bend < MAX_ENVS else large
        self._persistent_per_env = (large.persistent - self._small.persistent) / n
        self._temporary_per_env, self._temporary_behind = (
            max(0.0, (each.temporary - self._small.temporary) / n) for each in (large, limited)
        )

    def parts(self, n_envs: int) -> dict[str, int]:
        """Return persistent bytes, ``kept``, and peak temporary bytes, ``passing``."""
        kept = self._small.persistent + self._persistent_per_env * (n_envs - self._n)
        before, behind = min(n_envs, self._bend) - self._n, max(0, n_envs - self._bend)
        passing = self._small.temporary + self._temporary_per_env * before + self._temporary_behind * behind
        return {"kept": math.ceil(kept), "passing": math.ceil(max(0.0, passing))}

    def total(self, n_envs: int) -> int:
        """Return the total bytes of a run."""
        return sum(self.parts(n_envs).values())

    def largest(self, free_bytes: int) -> int:
        """Return the largest number of environments that fits; 0 if none does.

        It is at most `MAX_ENVS`.
        """
        return bisect.bisect_right(range(1, min(MAX_ENVS, self._room) + 1), free_bytes, key=self.total)


def probe(config: RunConfig, make_wrapper: MakeWrapper, policies: PolicyMap | None) -> Probe:
    """Measure the memory of a trainer in two iterations without graphs; synchronises."""
    before = live_storages()  # keep them alive, so that no address is reused
    trainer = Trainer(make_wrapper(config.trainer.num_envs), config, policies, verbose=False)
    kept = sum(storage.nbytes() for address, storage in live_storages().items() if address not in before)
    trainer.iterate()  # compiles kernels and allocates the tensors of lazy parts
    passing = peak_bytes(trainer.iterate, trainer.wrapper.backend.device)
    trainer.graceful_close()
    return Probe(kept, passing)


def live_storages() -> dict[tuple[torch.device, int], torch.UntypedStorage]:
    """Return the storages of all live tensors, by device and address."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some modules warn when their attributes are read
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.device.type in ("cpu", "cuda")]
    return {(storage.device, storage.data_ptr()): storage for storage in storages if storage.nbytes()}


def peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    """Return the peak of torch's additional memory during work, bytes; synchronises."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    present = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        present += event.nbytes()
        peak = max(peak, present)
    return peak


def sized(config: RunConfig, num_envs: int, n_steps: int, **trainer: Any) -> RunConfig:
    """Return the run config with another number of environments.

    ``num_episodes`` is raised to at least the batch, so that the run has one batch even if each episode has one step.
    """
    batch = num_envs * n_steps
    sizes = {"num_envs": num_envs, "train_batch_size": batch, "num_episodes": max(config.trainer.num_episodes, batch)}
    return config.replace(trainer=config.trainer.replace(**sizes, **trainer))


def _max_envs_for_replay(config: RunConfig, n_agents: Mapping[str, int], n_steps: int) -> int:
    """Return the most environments whose batch fits into every replay buffer."""
    room = [
        policy.buffer_size // (n_steps * n_agents[name])
        for name, policy in config.policy.items()
        if policy.to_train and algorithm_class(config, name).has_replay
    ]
    return min([MAX_ENVS, *room])


def _probe_size(config: RunConfig, n_steps: int, most: int) -> int:
    """Return the smaller probe's number of environments.

    The larger probe has twice as many. Its batches divide into minibatches.
    """
    unit = math.lcm(*(_min_envs(name, policy, n_steps) for name, policy in config.policy.items()))
    return unit * max(1, min(PROBE_ENVS, most // 2) // unit)


def _min_envs(name: str, policy: PolicyConfig, n_steps: int) -> int:
    """Return the fewest environments that fill the policy's minibatches evenly.

    Minibatches consist of rows, or of sequences for a recurrent model.
    """
    together = (
        1 if isinstance(policy.model, ActorCriticConfig) else sequence_steps(policy.model, n_steps, f"policy.{name}")
    )
    return policy.n_minibatches // math.gcd(policy.n_minibatches, n_steps // together)


# ------------------------------------------------------------------ throughput


@dataclass(frozen=True, slots=True)
class ScalingTrial:
    """Trial with one number of environments."""

    num_envs: int
    train_batch_size: int
    predicted_bytes: int
    steps_per_s: float
    """Env steps per second, summed over all environments."""
    peak_bytes: int | None
    """Peak memory allocated by torch, bytes; None on a CPU."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Result of `auto_scale`."""

    points: tuple[ScalingTrial, ...]
    """Trials, by increasing number of environments."""
    largest: int
    """Largest number of environments that fits, by the memory model."""
    free_bytes: int
    """Free bytes before the first trial."""

    @property
    def best(self) -> ScalingTrial:
        """Fastest trial."""
        return max(self.points, key=lambda point: point.steps_per_s)

    @property
    def saturation(self) -> ScalingTrial:
        """Smallest trial that reaches `SATURATION_SHARE` of the best throughput."""
        return next(point for point in self.points if point.steps_per_s >= SATURATION_SHARE * self.best.steps_per_s)

    @property
    def recommended(self) -> dict[str, int]:
        """Settings of the run config at saturation."""
        return {
            "trainer.num_envs": self.saturation.num_envs,
            "trainer.train_batch_size": self.saturation.train_batch_size,
        }


def auto_scale(
    config: RunConfig,
    make_wrapper: MakeWrapper,
    policies: PolicyMap | None = None,
    *,
    start: int = 16,
    n_iterations: int = 3,
    free_bytes: int | None = None,
    on_point: Callable[[ScalingTrial], None] = lambda point: None,
) -> Scaling:
    """Measure training throughput while doubling the number of environments.

    The steps of a rollout, ``train_batch_size / num_envs``, and the rest of the run config stay. The search ends when
    memory is full, or when `TRIALS_WITHOUT_GAIN` consecutive trials were not faster by a factor of `MIN_SPEEDUP`. Each
    trial has a new trainer, which leaves no files. Changes no argument. Synchronises.

    Args:
        config: Run config.
        make_wrapper: Builds the environments of a trial.
        policies: Agents of each policy; None uses the trainer's default.
        start: Environments of the first trial, if they fit.
        n_iterations: Timed iterations.
        free_bytes: Memory to fill; None uses the device's free memory.
        on_point: Callback for each trial.

    Raises:
        ConfigError: Not even one environment fits, or a number is not positive.
        DeviceMemoryError: Memory runs out in the first trial or in a probe.
    """
    for name, number in (("start", start), ("n_iterations", n_iterations)):
        require_int(f"auto_scale.{name}", number)
    try:
        model = MemoryModel(config, make_wrapper, policies)
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(f"auto_scale: a few environments must fit (got {error})") from error
    finally:
        _free_memory()
    free = model.free_bytes if free_bytes is None else free_bytes
    largest = model.largest(int(USABLE_SHARE * free))
    rule = f"one environment with rollouts of {model.n_steps:,} steps must fit into {free:,} free bytes"
    do = "lower train_batch_size, buffer_size or max_rows"
    require(largest >= 1, "auto_scale", rule, model.total(1), do)
    points: list[ScalingTrial] = []
    num_envs = min(start, largest)
    while num_envs <= largest and not _is_saturated(points):
        try:
            point = _measure(sized(config, num_envs, model.n_steps), make_wrapper, policies, n_iterations, model)
        except (torch.OutOfMemoryError, DeviceMemoryError) as error:
            if not points:
                raise DeviceMemoryError(f"auto_scale: {num_envs:,} environments must fit (got {error})") from error
            log.warning("%s environments do not fit, contrary to the memory model: %s", f"{num_envs:,}", error)
            break
        finally:
            _free_memory()
        points.append(point)
        on_point(point)
        num_envs *= 2
    return Scaling(tuple(points), largest, free)


def _is_saturated(points: Sequence[ScalingTrial]) -> bool:
    """Return True if the last trials gained little."""
    rates = [point.steps_per_s for point in points]
    return len(rates) > TRIALS_WITHOUT_GAIN and max(rates[-TRIALS_WITHOUT_GAIN:]) < MIN_SPEEDUP * max(
        rates[:-TRIALS_WITHOUT_GAIN]
    )


def _measure(
    config: RunConfig, make_wrapper: MakeWrapper, policies: PolicyMap | None, n_iterations: int, model: MemoryModel
) -> ScalingTrial:
    wrapper, batch = make_wrapper(config.trainer.num_envs), config.trainer.train_batch_size
    is_gpu = wrapper.backend.device.type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(wrapper, config, policies, verbose=False)
    for _ in range(WARM_UP):
        trainer.iterate()
    wrapper.backend.synchronize()
    start = time.perf_counter()
    for _ in range(n_iterations):
        trainer.iterate()
    wrapper.backend.synchronize()
    seconds = time.perf_counter() - start
    trainer.graceful_close()
    return ScalingTrial(
        num_envs=wrapper.n_envs,
        train_batch_size=batch,
        predicted_bytes=model.total(wrapper.n_envs),
        steps_per_s=n_iterations * batch / seconds,
        peak_bytes=torch.cuda.max_memory_allocated() if is_gpu else None,
    )


def _free_memory() -> None:
    """Free a trainer's memory: trainers have reference cycles, and torch caches."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
