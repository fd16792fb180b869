"""Kernels, ours and torch's, each with its minimum cost and a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from warpdrive_min import CUDADataManager, CUDAEnvironmentReset, CUDAFunctionManager, CUDASampler, DataFeed, EnvWrapper
from warpdrive_min.agreement.compare import Arrays, errors
from warpdrive_min.agreement.stepping import copy_state, snapshot
from warpdrive_min.backends import Backend
from warpdrive_min.constants import DONE, EPISODE, TERMINATED, TIMESTEP, TRUNCATED, Constants
from warpdrive_min.policies import random_policy
from warpdrive_min.training.algorithms.returns import ReturnScan
from warpdrive_min.training.algorithms.shuffle import Shuffle
from warpdrive_min.training.loop.arrays import SharedLayout
from warpdrive_min.training.loop.rollout import FINISHED, RolloutRecorder

from ...core.measure import Timed
from ...core.point import Check, Point
from ..shared import OURS, SEED, steps_of
from .environments import checked_envs, start_env
from .timing import Repeated, available, repeated, timed


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Kernel ready to be called, with its minimum cost and its check."""

    calls: Repeated
    work: Mapping[str, int]
    """Amount of work of a call."""
    n_bytes: int
    n_ops: int = 0
    trial: Callable[[], tuple[Arrays, Arrays]]
    """Calls it on overwritten arrays; returns the reference's result and its own."""
    oracle: str
    tolerance: float = 0.0
    """Largest allowed difference."""
    n_trials: int = 1
    periods: Mapping[str, Any] | None = None
    """Periods of angle arrays, by name."""

    def check(self) -> Check:
        """Compare with the reference in all trials; the largest error decides."""
        worst: dict[str, float] = {}
        for _ in range(self.n_trials):
            worst |= {name: max(worst.get(name, 0.0), e) for name, e in errors(*self.trial(), self.periods).items()}
        name = max(worst, key=lambda each: worst[each])
        detail = f"largest in {name}: {worst[name]:.3g}, {self.tolerance:.3g} at most"
        return Check.within(worst[name], self.tolerance, self.oracle, detail)


def measured(make: Callable[[Point, Backend], Kernel], point: Point, noun: str) -> Timed:
    """Set up a kernel, and time its calls.

    Args:
        make: Makes the kernel.
        point: The point.
        noun: First word of the note on calls of a run.
    """
    backend = available(point["backend"])
    kernel = make(point, backend)
    return timed(
        backend,
        kernel.calls,
        kernel.check,
        work=kernel.work,
        is_of_torch=str(point["implementation"]).startswith("torch"),
        n_bytes=kernel.n_bytes,
        n_ops=kernel.n_ops,
        notes={f"{noun}_per_run": kernel.calls.n},
    )


def arrays_of(data: CUDADataManager) -> dict[str, torch.Tensor]:
    """Return CPU copies of all arrays except the kernels' workspace."""
    return {name: torch.from_numpy(array) for name, array in snapshot(data).items()}


def mark_done(data: CUDADataManager, generator: torch.Generator) -> torch.Tensor:
    """End the first environment and half of the others; return the flags."""
    flags = torch.randint(0, 2, (data.n_envs,), generator=generator, dtype=torch.int32)
    flags[0] = 1
    data.tensor(DONE).copy_(flags)
    return flags != 0


MOST_DRAWS: Final = 2_000
"""Draws of a check; limits its time with few agents."""

STANDARD_ERRORS: Final = 6.0
"""Largest allowed deviation of a frequency, in standard errors."""

Draw = tuple[Callable[[], None], Callable[[], torch.Tensor]]
"""Function that draws, and one that returns the last actions, (n_envs, n_agents)."""


def sampler(point: Point, backend: Backend) -> Kernel:
    """Draw one action for every agent: our sampler, or torch's."""
    shape = (point["n_envs"], point["n_agents"], point["n_actions"])
    weights = np.random.default_rng(SEED).random(shape, np.float32)
    probabilities = torch.from_numpy(weights / weights.sum(-1, keepdims=True)).to(backend.device)
    draw, actions = SAMPLERS[point["implementation"]](backend, probabilities)
    n_samples = shape[0] * shape[1]
    n_draws = max(1, min(MOST_DRAWS, 200_000 // n_samples))

    def trial() -> tuple[Arrays, Arrays]:
        counts = torch.zeros(shape[2], dtype=torch.float64)
        for _ in range(n_draws):
            draw()
            counts += torch.bincount(actions().flatten().cpu(), minlength=len(counts)).double()
        each = probabilities.double().cpu()
        mean, variance = n_draws * each.sum((0, 1)), n_draws * (each * (1 - each)).sum((0, 1))
        return {"frequencies": torch.zeros_like(mean)}, {"frequencies": (counts - mean) / variance.sqrt()}

    return Kernel(
        calls=repeated(backend, draw, "eager" if point["implementation"] == "torch.Categorical" else None),
        work={"samples": n_samples},
        n_bytes=n_samples * 4 * (shape[2] + 1),
        n_ops=n_samples * 2 * shape[2],
        trial=trial,
        oracle=f"frequencies of {n_draws} draws of every agent, in standard errors",
        tolerance=STANDARD_ERRORS,
    )


def our_sampler(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `CUDASampler`."""
    n_envs, n_agents, n_actions = probabilities.shape
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
    feed = DataFeed()
    feed.add_data(Constants.ACTIONS, np.zeros((n_agents, 1), np.int32), n_copies=n_envs)
    data.push_data_to_device(feed)
    ours = CUDASampler(CUDAFunctionManager(n_agents, n_envs, backend=backend))
    ours.register_actions(data, Constants.ACTIONS, n_actions)
    ours.init_random(SEED)
    return lambda: ours.sample(data, probabilities), lambda: data.tensor(Constants.ACTIONS)[..., 0]


def torch_multinomial(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `torch.multinomial` on the rows of all environments together."""
    rows = probabilities.flatten(0, 1)
    last = torch.zeros((len(rows), 1), dtype=torch.int64, device=backend.device)

    def draw() -> None:
        torch.multinomial(rows, 1, out=last)

    return draw, lambda: last.view(probabilities.shape[:2])


def torch_categorical(backend: Backend, probabilities: torch.Tensor) -> Draw:
    """Set up `torch.distributions.Categorical`, rebuilt for each draw."""
    last: list[torch.Tensor] = []

    def draw() -> None:
        last[:] = [torch.distributions.Categorical(probs=probabilities).sample()]

    return draw, lambda: last[0]


SAMPLERS: Final = {OURS: our_sampler, "torch.multinomial": torch_multinomial, "torch.Categorical": torch_categorical}

SAVED_WORDS: Final = 8
"""Numbers restored for each agent."""


def reset(point: Point, backend: Backend) -> Kernel:
    """Restart every environment, by its own kernel or from saved arrays."""
    return (reset_by_kernel if point["implementation"] == OURS else reset_by_copies)(point, backend)


def reset_by_kernel(point: Point, backend: Backend) -> Kernel:
    """Restart by the environment's kernel; NumPy is the reference."""
    n_checked = checked_envs(point)
    wrapper, oracle = start_env(point, backend.name, point["n_envs"]), start_env(point, "cpu", n_checked)
    data, expected = wrapper.cuda_data_manager, oracle.cuda_data_manager
    observed = [name for name in data.array_names() if name.startswith(Constants.OBSERVATIONS)]
    generator = torch.Generator().manual_seed(SEED)

    def trial() -> tuple[Arrays, Arrays]:
        mark_done(data, generator)
        copy_state(data, expected)
        wrapper.env_resetter.reset_when_done(data)
        oracle.env_resetter.reset_when_done(expected)
        want, got = arrays_of(expected), arrays_of(data)
        return want, {name: got[name][: len(array)] for name, array in want.items()}

    return Kernel(
        calls=repeated(backend, lambda: wrapper.env_resetter.reset_when_done(data, "force_reset")),
        work={"env_resets": point["n_envs"]},
        n_bytes=sum(data.tensor(name).nbytes for name in (*observed, DONE, TIMESTEP, EPISODE)),
        trial=trial,
        oracle=f"NumPy, {n_checked} environments, of which half have ended, from the same state",
        tolerance=wrapper.env.tolerance,
        periods={name: expected.attribute(name, "period", 0.0) for name in expected.array_names()},
    )


def reset_by_copies(point: Point, backend: Backend) -> Kernel:
    """Restart by copying `SAVED_WORDS` numbers per agent."""
    n_envs, n_agents = point["n_envs"], point["n_agents"]
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
    feed = DataFeed()
    start = np.random.default_rng(SEED).random((n_envs, n_agents, SAVED_WORDS), np.float32)
    feed.add_data("state", start, save_copy_and_apply_at_reset=True)
    data.push_data_to_device(feed)
    resetter = CUDAEnvironmentReset(CUDAFunctionManager(n_agents, n_envs, backend=backend))
    generator = torch.Generator().manual_seed(SEED)

    def trial() -> tuple[Arrays, Arrays]:
        data.tensor("state").add_(1)
        is_done = mark_done(data, generator)
        before = arrays_of(data)
        resetter.reset_when_done(data)
        want = {
            "state": torch.where(is_done[:, None, None], torch.from_numpy(start), before["state"]),
            DONE: torch.zeros_like(before[DONE]),
            TIMESTEP: torch.where(is_done, 0, before[TIMESTEP]),
            EPISODE: before[EPISODE] + is_done,
        }
        return want, arrays_of(data)

    return Kernel(
        calls=repeated(backend, lambda: resetter.reset_when_done(data, "force_reset")),
        work={"env_resets": n_envs},
        n_bytes=2 * start.nbytes,
        trial=trial,
        oracle="torch: the saved rows of the environments that have ended, the others as they were",
    )


GAMMA: Final = 0.99

SCANS: Final = 4
"""Scans per run; a torch loop has thousands of launches for each."""

SCAN_TOLERANCE: Final = 1e-4
"""Largest error relative to the largest return.

A cumulative sum in float32 subtracts large, nearly equal sums."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Arrays of a rollout to scan."""

    rewards: torch.Tensor
    """(n_steps, n_envs, n_agents) float32."""
    terminated: torch.Tensor
    """(n_steps, n_envs) int32."""
    truncated: torch.Tensor
    """(n_steps, n_envs) int32."""
    last_values: torch.Tensor
    """(n_envs, n_agents): expected return after the last step."""
    returns: torch.Tensor
    """Output, shaped as `rewards`."""

    @property
    def continues(self) -> torch.Tensor:
        """1 where no episode has ended, else 0; (n_steps, n_envs, 1) float32."""
        return ((self.terminated | self.truncated) == 0)[..., None].float()

    def to(self, device: torch.device | str) -> Rollout:
        """Return a copy on a device."""
        return Rollout(*(getattr(self, name).to(device) for name in self.__slots__))


def return_scan(point: Point, backend: Backend) -> Kernel:
    """Sum discounted rewards: our kernel, a torch loop, or a cumulative sum.

    A trial applies the definition in float64 on the CPU to all rows.
    """
    played = random_rollout((point["n_steps"], point["n_envs"], point["n_agents"])).to(backend.device)
    scan = SCANNERS[point["implementation"]](backend, played)

    def trial() -> tuple[Arrays, Arrays]:
        played.returns.fill_(torch.nan)
        scan()
        want = returns_in_float64(played.to("cpu"))
        scale = want.abs().max()
        return {"returns": want / scale}, {"returns": played.returns.cpu().double() / scale}

    n_returns = played.rewards.numel()
    return Kernel(
        calls=repeated(backend, scan, n=SCANS),
        work={"returns": n_returns},
        n_bytes=2 * played.rewards.nbytes + 2 * played.terminated.nbytes + played.last_values.nbytes,
        n_ops=2 * n_returns,
        trial=trial,
        oracle="torch in float64, on the CPU, step by step, over the largest return",
        tolerance=SCAN_TOLERANCE,
    )


def random_rollout(shape: tuple[int, int, int]) -> Rollout:
    """Return random rewards and episodes; 2 % of steps end one."""
    generator = torch.Generator().manual_seed(SEED)
    ends = torch.rand(shape[:2], generator=generator)
    rewards, last_values = torch.rand(shape, generator=generator), torch.rand(shape[1:], generator=generator)
    terminated, truncated = (ends < 0.01).int(), ((ends >= 0.01) & (ends < 0.02)).int()
    return Rollout(rewards, terminated, truncated, last_values, torch.zeros(shape))


def our_scan(backend: Backend, played: Rollout) -> Callable[[], None]:
    """Set up `ReturnScan` without values."""
    _, n_envs, n_agents = played.rewards.shape
    scan = ReturnScan(backend, n_envs, n_agents, GAMMA)
    tensors = (played.rewards, None, played.terminated, played.truncated, played.last_values, None, None)
    return lambda: scan.scan(*tensors, played.returns)


def loop_scan(played: Rollout) -> None:
    """Loop backwards through the steps, with some torch operations each."""
    after, continues = played.last_values, played.continues
    for step in reversed(range(len(played.rewards))):
        after = torch.addcmul(played.rewards[step], after, continues[step], value=GAMMA)
        played.returns[step] = after


def cumulative_scan(played: Rollout) -> None:
    """Compute cumulative sums of gamma^t r(t) up to each episode's end."""
    n_steps = len(played.rewards)
    steps = torch.arange(n_steps, device=played.rewards.device)
    discount = (GAMMA ** steps.float())[:, None, None]
    weighted = played.rewards * discount
    weighted[-1] += played.continues[-1] * played.last_values * GAMMA**n_steps
    sums = weighted.flip(0).cumsum(0).flip(0)
    ends = torch.where(played.continues[..., 0] != 0, n_steps - 1, steps[:, None])
    last_step = ends.flip(0).cummin(0).values.flip(0)
    beyond = torch.cat([sums[1:], torch.zeros_like(sums[:1])])
    torch.div(sums - beyond.gather(0, last_step[..., None].expand_as(sums)), discount, out=played.returns)


SCANNERS: Final[Mapping[str, Callable[[Backend, Rollout], Callable[[], None]]]] = {
    OURS: our_scan,
    "torch loop": lambda _, played: lambda: loop_scan(played),
    "torch cumsum": lambda _, played: lambda: cumulative_scan(played),
}


def returns_in_float64(played: Rollout) -> torch.Tensor:
    """Return the discounted returns in float64, step by step on the CPU."""
    rewards, after = played.rewards.double(), played.last_values.double()
    returns = torch.empty_like(rewards)
    for step in reversed(range(len(rewards))):
        after = returns[step] = rewards[step] + GAMMA * after * played.continues[step]
    return returns


FEW_INDICES: Final = 20
"""Indices up to which a permutation may repeat by chance."""


def shuffle(point: Point, backend: Backend) -> Kernel:
    """Draw a permutation: ours, or `torch.randperm` on the same device."""
    n, is_ours = point["n_indices"], point["implementation"] == OURS
    ours, oracle = Shuffle(backend, n, SEED), Shuffle("cpu", n, SEED)
    indices = ours.indices if is_ours else torch.zeros(n, dtype=torch.int64, device=backend.device)

    def draw() -> None:
        if is_ours:
            ours.permute()
        else:
            torch.randperm(n, out=indices)

    def trial() -> tuple[Arrays, Arrays]:
        draw()
        before = indices.to("cpu", copy=True)
        oracle.counter.copy_(ours.counter)
        draw()
        got = indices.to("cpu", copy=True)
        is_repeated = torch.tensor(n > FEW_INDICES and bool((got == before).all()))
        drawn = {"sorted indices": got.sort().values, "repeated draw": is_repeated}
        want: dict[str, torch.Tensor] = {"sorted indices": torch.arange(n), "repeated draw": torch.tensor(False)}
        if is_ours:
            oracle.permute()
            want["indices"], drawn["indices"] = oracle.indices, got
        return want, drawn

    return Kernel(
        calls=repeated(backend, draw, None if is_ours else "eager"),
        work={"indices": n},
        n_bytes=indices.nbytes,
        trial=trial,
        oracle="all indices once" + (", and those of NumPy with the same seed" if is_ours else ""),
    )


RECORDED: Final = 4
"""Steps recorded in a check."""


def record(point: Point, backend: Backend) -> Kernel:
    """Record a step of a rollout: rewards, ends, observations, episode sums."""
    wrapper = start_env(point, backend.name, point["n_envs"])
    draw = random_policy(wrapper, SEED)
    arrays = SharedLayout().arrays(wrapper, {"all": list(wrapper.env.action_space)})["all"]
    recorder = RolloutRecorder(wrapper, n_steps=1, arrays=arrays)
    generator = torch.Generator().manual_seed(SEED)

    def keep() -> None:
        recorder.begin()
        recorder.record(0)

    def trial() -> tuple[Arrays, Arrays]:
        draw()
        wrapper.step()
        end_some(wrapper, generator)
        recorder.clear_statistics()
        want = recorded_by_torch(wrapper, recorder)
        keep()
        return want, recorded(recorder)

    return Kernel(
        calls=repeated(backend, keep),
        work=steps_of(point["n_envs"], point["n_agents"]),
        # Rewards and their sum are read and written; flags and a count too.
        n_bytes=4 * recorder.rewards[0].nbytes + 4 * 8 * point["n_envs"],
        trial=trial,
        oracle=f"torch, on the CPU, {RECORDED} steps, to the bit",
        n_trials=RECORDED,
    )


def end_some(wrapper: EnvWrapper, generator: torch.Generator) -> None:
    """End half of the environments, half of these by their time limit."""
    data = wrapper.cuda_data_manager
    is_done = mark_done(data, generator).int()
    is_truncated = torch.randint(0, 2, is_done.shape, generator=generator, dtype=torch.int32) & is_done
    data.tensor(TRUNCATED).copy_(is_truncated)
    data.tensor(TERMINATED).copy_(is_done - is_truncated)


def recorded(recorder: RolloutRecorder) -> dict[str, torch.Tensor]:
    """Return CPU copies of everything a recorder keeps of its first step."""
    rows = {name: getattr(recorder, name)[0] for name in ("rewards", TERMINATED, TRUNCATED, "successes")}
    kept = rows | recorder.state() | {"n_truncated": recorder.n_truncated}
    if recorder.truncated_observations is not None:
        kept["truncated_observations"] = recorder.truncated_observations[0]
    return {name: array.to("cpu", copy=True) for name, array in kept.items()}


def recorded_by_torch(wrapper: EnvWrapper, recorder: RolloutRecorder) -> dict[str, torch.Tensor]:
    """Return the expected recording, by torch on the CPU."""
    data, before = arrays_of(wrapper.cuda_data_manager), recorded(recorder)
    is_done = data[DONE] != 0
    sums, steps = before["running_return"] + data["rewards"], before["running_steps"] + 1
    finished_return, finished_steps, finished_episodes = (before[name] for name in FINISHED)
    want = {
        "rewards": data["rewards"],
        TERMINATED: data[TERMINATED],
        TRUNCATED: data[TRUNCATED],
        "successes": data[TERMINATED],
        "running_return": sums * ~is_done[:, None],
        "running_steps": steps * ~is_done,
        "finished_return": finished_return + sums * is_done[:, None],
        "finished_steps": finished_steps + steps * is_done,
        "finished_episodes": finished_episodes + is_done,
        "n_truncated": data[TRUNCATED],
    }
    if (last := before.get("truncated_observations")) is not None:
        is_truncated = (data[TRUNCATED] != 0).view(-1, *[1] * (last.dim() - 1))
        want["truncated_observations"] = torch.where(is_truncated, data["final_observations"], last)
    return want


LAUNCHES: Final = 100
"""Launches per run."""


def launch(point: Point, backend: Backend) -> Kernel:
    """Launch a minimal kernel, one by one or in a graph."""
    launches = torch.zeros(1, dtype=torch.int32, device=backend.device)
    call = counting_kernel(backend, launches) if point["implementation"] == OURS else lambda: launches.add_(1)
    calls = repeated(backend, call, point["mode"], LAUNCHES)

    def trial() -> tuple[Arrays, Arrays]:
        launches.zero_()
        calls.run()
        return {"launches": torch.tensor([LAUNCHES])}, {"launches": launches.cpu()}

    return Kernel(
        calls=calls, work={"calls": 1}, n_bytes=2 * launches.nbytes, trial=trial, oracle="the number of launches"
    )


COUNT: Final = f"{__package__.removesuffix('.setups')}.count"
"""Package of the kernel that counts."""


def counting_kernel(backend: Backend, launches: torch.Tensor) -> Callable[[], Any]:
    """Set up the kernel of `count/count.cu`."""
    functions = CUDAFunctionManager(1, 1, backend=backend)
    functions.load(
        {
            "cuda_c": Path(__file__).parents[1] / "count" / "count.cu",
            "numba": f"{COUNT}.count_numba",
            "numpy": f"{COUNT}.count_numpy",
        }
    )
    return functions.prepare(functions.kernel("count"), [launches])
