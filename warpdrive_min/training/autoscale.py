"""How many environments to train with: what fits into memory, and from when on more of them gain little.

The number of environments varies. The steps of a rollout stay, and so does every other key of the run config:
schedules, discounts, numbers of epochs and minibatches, the size of a replay buffer. A batch is steps times
environments, so it grows with them, and with it the minibatches of PPO; a run of as many steps has fewer updates.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.errors import ConfigError, DeviceMemoryError
from warpdrive_min.training.config import ActorCriticConfig, PolicyConfig, RunConfig, TrainerConfig
from warpdrive_min.training.learners import Learner, make_learners
from warpdrive_min.training.placeholders import create_and_push_data_placeholders
from warpdrive_min.training.recorder import TERMINATED, TRUNCATED, last_observations
from warpdrive_min.training.seats import Seat, seats
from warpdrive_min.training.trainer import Trainer, policy_map

log = logging.getLogger(__name__)

PolicyMap = Mapping[str, Sequence[Hashable]]
MakeWrapper = Callable[[int], EnvWrapper]
"""Returns a wrapper of so many environments, not started."""

WORD: Final = 4
"""Bytes of a float32 or an int32, which all buffers are made of."""
MAX_ENVS: Final = 2**24
"""More are not tried."""
USABLE: Final = 0.9
"""Share of the free memory that is planned with: the rest is for compiled kernels, workspaces and gaps."""
ENOUGH: Final = 0.9
"""Share of the best throughput that the recommended number of environments has."""
GAIN: Final = 1.05
"""A point that is not faster by this than the best before it gains little."""
PATIENCE: Final = 2
"""Points in a row that gain little, after which no more are tried."""
WARM_UP: Final = 2
"""Iterations before the clock starts: an eager one, and one in which graphs are captured."""
PROBE_ROWS: Final = 64
"""Rows of the pass that shows what a model keeps."""
ROWS_OF_LOSS: Final = 40
"""Numbers that losses and their gradients keep of a row, besides several of each choice."""
ROWS_OF_CHOICE: Final = 8
"""Numbers that they keep of each choice of a row."""
ROWS_OF_RETURNS: Final = 6
"""Arrays of the size of the rewards that come and go with returns, advantages and metrics."""


# ------------------------------------------------------------------ memory


class MemoryModel:
    """Bytes that training allocates on the device, as a function of the environments and the steps of a rollout.

    Sizes of buffers follow from their specs, those of an environment's arrays from probes of 1 and 2 environments, and
    what a model keeps of a row for its gradient from a pass of a few rows. What comes and goes, ``passing``, is bounded
    from above; the other parts are what is allocated, but for single numbers.

    Args:
        config: Run config.
        make_wrapper: Makes the probes.
        policies: Agents of each policy; None: as the trainer finds them.

    Raises:
        ConfigError: The run config does not fit the environment.
    """

    def __init__(self, config: RunConfig, make_wrapper: MakeWrapper, policies: PolicyMap | None = None) -> None:
        self._config = config
        probe, wider = (_started(make_wrapper(n), config, policies) for n in (1, 2))
        of_one, of_two = _array_bytes(probe), _array_bytes(wider)
        self._arrays_fixed, self._arrays_per_env = 2 * of_one - of_two, of_two - of_one
        data = probe.cuda_data_manager
        self._episode_length, self._n_all = probe.episode_length, probe.n_agents
        taken = seats(probe, policy_map(config, probe, policies))
        self._space = next(iter(taken.values())).space
        self._is_masked = any(seat.mask is not None for seat in taken.values())
        keys = next(iter(taken.values())).keys
        has_flags = data.is_data_on_device(TERMINATED) and data.is_data_on_device(TRUNCATED)
        last = last_observations(probe, "", keys) if has_flags else []
        self._words_of_cut = sum(array[0].numel() for array in last)
        self._words_gathered = self._words_of_cut if len(last) > 1 else 0
        self.free_bytes = data.free_bytes()
        """Free on the device when this was made."""
        learners = make_learners(config, taken, 0, data.device)
        self._policies = [_Policy.of(learner, config) for learner in learners.values()]

    def parts(self, n_envs: int, n_steps: int) -> dict[str, int]:
        """Return the bytes of each part of a run."""
        learning = [policy for policy in self._policies if policy.config.to_train]
        n_cuts = (n_steps - 1) // self._episode_length + 1
        on_policy = [policy for policy in learning if not policy.is_off_policy]
        off_policy = [policy for policy in learning if policy.is_off_policy]
        words = {
            "environments": (self._arrays_fixed + self._arrays_per_env * n_envs) // WORD,
            "acting": self._acting(n_envs),
            "recorder": self._recorder(n_envs, n_steps, n_cuts),
            "batches": sum(policy.batch(n_envs, n_steps, n_cuts) for policy in learning),
            "models": sum(policy.n_weights for policy in self._policies),
            "optimisers": sum(policy.n_learned * (4 if policy.is_off_policy else 3) for policy in learning),
            "returns": sum(policy.returns(n_envs, n_steps, n_cuts) for policy in on_policy),
            "replay": sum(policy.replay(n_envs, n_steps) for policy in off_policy),
            "passing": self._passing(n_envs, n_steps, n_cuts),
        }
        return {name: WORD * count for name, count in words.items()}

    def total(self, n_envs: int, n_steps: int) -> int:
        """Return the bytes of a run."""
        return sum(self.parts(n_envs, n_steps).values())

    def largest(self, free_bytes: int, n_steps: int) -> int:
        """Return the largest number of environments that fits, at most `MAX_ENVS`; 0: not even one does."""
        room = [
            policy.config.buffer_size // (n_steps * policy.n_agents)
            for policy in self._policies
            if policy.config.to_train and policy.is_off_policy and self._config.trainer.compat is None
        ]
        low, high = 0, min([MAX_ENVS, *room])
        while low < high:
            middle = (low + high + 1) // 2
            if self.total(middle, n_steps) <= free_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def _acting(self, n_envs: int) -> int:
        """Heads of all agents, their masks, what was drawn, and what each policy looks at."""
        rows = n_envs * self._n_all
        table = rows * (self._space.n_outputs * (1 + self._is_masked) + 1)
        counted = n_envs + (rows * self._space.n_types if self._space.is_continuous else 0)
        return table + counted + sum(policy.sight(n_envs) for policy in self._policies)

    def _recorder(self, n_envs: int, n_steps: int, n_cuts: int) -> int:
        """Rewards and flags of each step, last observations, and sums over episodes."""
        of_steps = n_steps * n_envs * (self._n_all + 3)
        of_cuts = n_envs * (n_cuts * self._words_of_cut + self._words_gathered)
        return of_steps + of_cuts + n_envs * (2 * self._n_all + 4)

    def _passing(self, n_envs: int, n_steps: int, n_cuts: int) -> int:
        """What comes and goes: a pass of the rollout, and the largest one of an update."""
        acting = max(policy.n_agents * policy.words_of_row for policy in self._policies) * n_envs
        learning = [policy.passing(n_envs, n_steps, n_cuts) for policy in self._policies if policy.config.to_train]
        return acting + max(learning, default=0)


@dataclass(frozen=True, slots=True)
class _Policy:
    """Sizes of one policy, in words."""

    config: PolicyConfig
    trainer: TrainerConfig
    seat: Seat
    n_weights: int
    """All numbers of its models."""
    n_learned: int
    """Those of them that are learned."""
    words_of_row: int
    """What its models keep of a row for the gradient."""

    @classmethod
    def of(cls, learner: Learner, config: RunConfig) -> _Policy:
        seat = learner.player.seat
        return cls(
            config=learner.config,
            trainer=config.trainer,
            seat=seat,
            n_weights=sum(each.numel() for model in learner.models.values() for each in model.state_dict().values()),
            n_learned=sum(each.numel() for model in learner.models.values() for each in model.parameters()),
            words_of_row=sum(_words_of_row(part, model, seat) for part, model in learner.models.items()),
        )

    @property
    def n_agents(self) -> int:
        return self.seat.n_agents

    @property
    def is_off_policy(self) -> bool:
        return isinstance(self.config.model, ActorCriticConfig)

    @property
    def _is_masked(self) -> bool:
        return self.seat.mask is not None

    def sight(self, n_envs: int) -> int:
        """Observations and masks of one step."""
        return n_envs * self.n_agents * (self.seat.n_features + self._is_masked * self.seat.space.n_outputs)

    def batch(self, n_envs: int, n_steps: int, n_cuts: int) -> int:
        """The batch, without what the recorder shares with it."""
        rows = n_envs * self.n_agents
        copied = 0 if self.seat.rows is None else rows * (n_steps + n_cuts * self.seat.n_features)
        return (n_steps + 1) * self.sight(n_envs) + n_steps * rows * (self.seat.space.n_types + 1) + copied

    def returns(self, n_envs: int, n_steps: int, n_cuts: int) -> int:
        """Values, returns and advantages, weights of environments and their order, and that of minibatches."""
        rows = n_envs * self.n_agents
        shuffled = n_steps * n_envs if self._n_minibatches > 1 else 0
        weighed = (n_steps + 1) * n_envs if self._is_weighed else 0
        return (3 * n_steps + 1 + n_cuts) * rows + shuffled + weighed

    def replay(self, n_envs: int, n_steps: int) -> int:
        """The replay buffer, and what is drawn from it; by WarpDrive's rule the latest rows."""
        row = n_envs * self.n_agents
        if self._is_compat:
            return self._latest(n_steps) * (row * (self.seat.n_features + self.seat.space.n_types + 1) + n_envs)
        capacity = self.config.buffer_size // row * row
        return (capacity + self.config.batch_size) * self._transition + self.config.batch_size

    def passing(self, n_envs: int, n_steps: int, n_cuts: int) -> int:
        """What comes and goes in an update, at most."""
        of_step = n_envs * self.n_agents
        rows = n_steps * of_step
        # In a forward pass a layer's input, sum and output are there at once, in a backward pass gradients as well.
        row = 2 * self.words_of_row + ROWS_OF_LOSS
        gradients = 2 * self.n_learned
        if self.is_off_policy and self._is_compat:
            return self._latest(n_steps) * of_step * row + gradients
        if self.is_off_policy:
            sources = (n_steps + 1 + n_cuts) * of_step * self.seat.n_features
            taken_in = sources + rows * (self._transition + ROWS_OF_RETURNS * self.trainer.n_step)
            return max(taken_in, self.config.batch_size * row + gradients)
        most = self.trainer.max_rows or rows + of_step
        # Values of the whole rollout come first, of as many steps at once as `max_rows` lets pass, but of one at least.
        evaluated = min(rows + of_step, max(most, max(1, n_cuts) * of_step))
        learned = min(rows // self._n_minibatches, max(most, self.n_agents))
        of_loss = self.seat.n_features + ROWS_OF_CHOICE * self.seat.space.n_outputs
        return max(evaluated * row, learned * (row + of_loss)) + gradients + ROWS_OF_RETURNS * rows

    @property
    def _is_compat(self) -> bool:
        return self.trainer.compat == "warpdrive"

    @property
    def _is_weighed(self) -> bool:
        return self.trainer.neg_pos_env_ratio > 0

    @property
    def _n_minibatches(self) -> int:
        return self.config.n_minibatches if self.config.algorithm == "PPO" and not self._is_compat else 1

    def _latest(self, n_steps: int) -> int:
        """Steps that DDPG keeps by WarpDrive's rule."""
        return n_steps + self.trainer.n_step - 1

    @property
    def _transition(self) -> int:
        return 2 * self.seat.n_features + self.seat.space.n_types + 2


def _started(wrapper: EnvWrapper, config: RunConfig, policies: PolicyMap | None) -> EnvWrapper:
    wrapper.reset()
    create_and_push_data_placeholders(
        wrapper,
        policy_tag_to_agent_id_map=policy_map(config, wrapper, policies),
        push_data_batch_placeholders=False,
    )
    return wrapper


def _array_bytes(wrapper: EnvWrapper) -> int:
    """Return the bytes of all arrays of a wrapper, copies for resets and logs included."""
    data = wrapper.cuda_data_manager
    found = (data.find(name) for name in data.names())
    return sum(array.nbytes for array in found if isinstance(array, torch.Tensor))


def _words_of_row(part: str, model: torch.nn.Module, seat: Seat) -> int:
    """Return how many numbers a model keeps of a row for its gradient, its input and output among them."""
    weights = {each.untyped_storage().data_ptr() for each in model.state_dict().values()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    n_rows, device = PROBE_ROWS, next(model.parameters()).device
    seen = [torch.zeros(n_rows, seat.n_features, device=device)]
    if part == "critic":
        seen.append(torch.zeros(n_rows, seat.space.n_types, device=device))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(*seen)  # held until all is counted, so that no two tensors share an address
    del outputs
    inputs = sum(each.nbytes for each in seen if each.untyped_storage().data_ptr() not in kept)
    return -(-(sum(kept.values()) + inputs) // (WORD * n_rows))


# ------------------------------------------------------------------ throughput


@dataclass(frozen=True, slots=True)
class Point:
    """One number of environments that was tried."""

    num_envs: int
    train_batch_size: int
    predicted_bytes: int
    steps_per_s: float
    """Steps of all environments together."""
    peak_bytes: int | None
    """Highest that torch has allocated; None: not on a GPU."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What `auto_scale` found out."""

    points: tuple[Point, ...]
    """By number of environments."""
    largest: int
    """Environments that fit, by the memory model."""
    free_bytes: int
    """That were free before."""

    @property
    def best(self) -> Point:
        """The fastest point."""
        return max(self.points, key=lambda point: point.steps_per_s)

    @property
    def knee(self) -> Point:
        """The point of the fewest environments that has `ENOUGH` of the best throughput."""
        return next(point for point in self.points if point.steps_per_s >= ENOUGH * self.best.steps_per_s)

    @property
    def recommended(self) -> dict[str, int]:
        """The settings of the run config that make it the knee."""
        return {
            "trainer.num_envs": self.knee.num_envs,
            "trainer.train_batch_size": self.knee.train_batch_size,
        }


def auto_scale(
    config: RunConfig,
    make_wrapper: MakeWrapper,
    policies: PolicyMap | None = None,
    *,
    start: int = 16,
    n_iterations: int = 3,
    free_bytes: int | None = None,
    on_point: Callable[[Point], None] = lambda point: None,
) -> Scaling:
    """Measure how fast training is with more and more environments, twice as many each time; changes nothing.

    The steps of a rollout, ``train_batch_size / num_envs``, stay as they are, and so does the rest of the run config.
    It ends where memory does, or once `PATIENCE` points in a row have not been faster by a factor of `GAIN`. Each point
    is a trainer of its own, which leaves no file. Synchronises.

    Args:
        config: Run config.
        make_wrapper: Makes the environments of a point.
        policies: Agents of each policy; None: as the trainer finds them.
        start: Environments of the first point, if as many fit.
        n_iterations: Iterations that are timed.
        free_bytes: Memory to fill; None: what the device has free.
        on_point: Called with each point.

    Raises:
        ConfigError: Not one environment fits, or a number is not positive.
        DeviceMemoryError: Memory runs out at the first point.
    """
    for name, number in (("start", start), ("n_iterations", n_iterations)):
        if number < 1:
            raise ConfigError(f"auto_scale.{name}: must be at least 1 (got {number})")
    n_steps = config.trainer.train_batch_size // config.trainer.num_envs
    model = MemoryModel(config, make_wrapper, policies)
    free = model.free_bytes if free_bytes is None else free_bytes
    largest = model.largest(int(USABLE * free), n_steps)
    if largest < 1:
        raise ConfigError(
            f"auto_scale: one environment with rollouts of {n_steps:,} steps must fit into memory (needs "
            f"{model.total(1, n_steps):,} bytes, {free:,} are free); lower train_batch_size, buffer_size or max_rows"
        )
    points: list[Point] = []
    for num_envs in _doubled(min(start, largest), largest):
        try:
            point = _measure(_sized(config, num_envs, n_steps), make_wrapper, policies, n_iterations, model)
        except (torch.OutOfMemoryError, DeviceMemoryError) as error:
            if not points:
                raise DeviceMemoryError(f"auto_scale: {num_envs:,} environments must fit (got {error})") from error
            log.warning("%s environments do not fit, against the memory model: %s", f"{num_envs:,}", error)
            break
        finally:
            _free_memory()
        points.append(point)
        on_point(point)
        if _has_levelled(points):
            break
    return Scaling(tuple(points), largest, free)


def _doubled(start: int, largest: int) -> Iterator[int]:
    n = start
    while n <= largest:
        yield n
        n *= 2


def _has_levelled(points: Sequence[Point]) -> bool:
    """Tell whether the last points gained little over the best before them."""
    rates = [point.steps_per_s for point in points]
    return len(rates) > PATIENCE and max(rates[-PATIENCE:]) < GAIN * max(rates[:-PATIENCE])


def _sized(config: RunConfig, num_envs: int, n_steps: int) -> RunConfig:
    """Return the run config with so many environments; it has a batch to play however long an episode is."""
    batch = num_envs * n_steps
    n_episodes = max(config.trainer.num_episodes, batch)
    trainer = replace(config.trainer, num_envs=num_envs, train_batch_size=batch, num_episodes=n_episodes)
    return replace(config, trainer=trainer)


def _measure(
    config: RunConfig, make_wrapper: MakeWrapper, policies: PolicyMap | None, n_iterations: int, model: MemoryModel
) -> Point:
    num_envs, batch = config.trainer.num_envs, config.trainer.train_batch_size
    wrapper = make_wrapper(num_envs)
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
    return Point(
        num_envs=num_envs,
        train_batch_size=batch,
        predicted_bytes=model.total(num_envs, batch // num_envs),
        steps_per_s=n_iterations * batch / seconds,
        peak_bytes=torch.cuda.max_memory_allocated() if is_gpu else None,
    )


def _free_memory() -> None:
    """Give back what a trainer has left: it has cycles, and torch keeps what it frees."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
