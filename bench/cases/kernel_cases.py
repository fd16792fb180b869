"""The cases of single kernels: reset, return_scan, shuffle, record and launch; `env_case` has the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bench.case import Correctness, Point, Prepared, Preset
from bench.cases.env_case import start_env
from bench.cases.environments import ON_CPU, SEED, available
from bench.cases.repeats import Mode, repeated, torch_threads
from warpdrive_min import BACKENDS, CUDADataManager, CUDAEnvironmentReset, CUDAFunctionManager, DataFeed, EnvWrapper
from warpdrive_min.backends import Backend
from warpdrive_min.consistency import copy_state, difference
from warpdrive_min.constants import DONE, EPISODE, TIMESTEP
from warpdrive_min.policies import random_policy
from warpdrive_min.training.recorder import FINISHED, TERMINATED, TRUNCATED, Recorder
from warpdrive_min.training.returns import ReturnScan
from warpdrive_min.training.shuffle import Shuffle

OURS: Final = "ours"
"""Implementation of which there is one for each backend; what is named after torch runs once on each device."""


def prepared(
    point: Point,
    backend: Backend,
    work: Callable[[], None],
    check: Callable[[], Correctness],
    *,
    units: Mapping[str, int],
    least_bytes: int,
    least_ops: int = 0,
    mode: Mode | None = None,
    n: int | None = None,
) -> Prepared:
    """Return a point whose run does some work several times.

    Args:
        point: The point.
        backend: That it runs on.
        work: Enqueues it once.
        check: Holds it against its oracle.
        units: How much work once is.
        least_bytes: That must be moved for it once.
        least_ops: Operations that must be done for it once.
        mode: As a graph or eagerly; None: as a graph where there are graphs.
        n: How many times it is done in a run, if not as often as a step.
    """
    each = repeated(backend, work, mode, n)
    is_torch = str(point["implementation"]).startswith("torch")
    return Prepared(
        run=each.run,
        synchronize=backend.synchronize,
        work={kind: amount * each.n for kind, amount in units.items()},
        check=check,
        mode=each.mode,
        device=backend.device,
        threads=torch_threads(backend) if is_torch else backend.threads,
        bytes_per_run=least_bytes * each.n,
        ops_per_run=least_ops * each.n,
        notes={"launched_per_run": each.n},
    )


def worst(errors: Mapping[str, float], oracle: str, allowed: float = 0.0) -> Correctness:
    """Judge a point by the array that is furthest off."""
    name = max(errors, key=lambda each: errors[each])
    return Correctness(
        passed=errors[name] <= allowed,
        max_error=errors[name],
        oracle=oracle,
        detail=f"largest in {name}: {errors[name]:.3g}, {allowed:.3g} at most",
    )


def arrays_of(data: CUDADataManager) -> dict[str, torch.Tensor]:
    """Return copies on the CPU of all arrays but the kernels' workspace."""
    names = (name for name in data.array_names() if not data.attribute(name, "scratch", False))
    return {name: data.tensor(name).to("cpu", copy=True) for name in names}


def mark_done(data: CUDADataManager, generator: torch.Generator) -> torch.Tensor:
    """Let each environment have ended with a chance of one half, the first one surely; returns the flags."""
    flags = torch.randint(0, 2, (data.n_envs,), generator=generator, dtype=torch.int32)
    flags[0] = 1
    data.tensor(DONE).copy_(flags)
    return flags != 0


# ------------------------------------------------------------------ reset


def reset(point: Point) -> Prepared:
    """Restart every environment: by its own kernel, or by copying saved arrays, as those without one are restarted."""
    backend = available(point["backend"])
    return (own_reset if point["implementation"] == OURS else saved_reset)(point, backend)


def own_reset(point: Point, backend: Backend) -> Prepared:
    """Restart by the kernel `reset` of the environment; the check restarts some on NumPy too, from the same state."""
    n_checked = max(1, min(point["n_envs"], CHECKED_AGENTS // point["n_agents"]))
    wrapper = start_env(point, point["backend"], point["n_envs"])
    oracle = start_env(point, "cpu", n_checked)
    data, expected = wrapper.cuda_data_manager, oracle.cuda_data_manager
    generator = torch.Generator().manual_seed(SEED)

    def check() -> Correctness:
        mark_done(data, generator)
        copy_state(data, expected)
        wrapper.env_resetter.reset_when_done(data)
        oracle.env_resetter.reset_when_done(expected)
        want, got = arrays_of(expected), arrays_of(data)
        errors = {
            name: difference(
                array.numpy(), got[name][: len(array)].numpy(), expected.attribute(name, "period", 0.0)
            ).error
            for name, array in want.items()
        }
        oracle_name = f"NumPy, {n_checked} environments, of which half have ended, from the same state"
        return worst(errors, oracle_name, wrapper.env.tolerance)

    written = (data.tensor(name) for name in ("observations", DONE, TIMESTEP, EPISODE))
    return prepared(
        point,
        backend,
        lambda: wrapper.env_resetter.reset_when_done(data, "force_reset"),
        check,
        units={"env_resets": point["n_envs"]},
        least_bytes=sum(array.nbytes for array in written),
    )


def saved_reset(point: Point, backend: Backend) -> Prepared:
    """Restart by copying `SAVED_WORDS` numbers for each agent; the check spoils all and restarts half of them."""
    n_envs, n_agents = point["n_envs"], point["n_agents"]
    data = CUDADataManager(n_agents, n_envs, episode_length=1, backend=backend)
    feed = DataFeed()
    start = np.random.default_rng(SEED).random((n_envs, n_agents, SAVED_WORDS), np.float32)
    feed.add_data("state", start, save_copy_and_apply_at_reset=True)
    data.push_data_to_device(feed)
    resetter = CUDAEnvironmentReset(CUDAFunctionManager(n_agents, n_envs, backend=backend))
    generator = torch.Generator().manual_seed(SEED)

    def check() -> Correctness:
        state = data.tensor("state")
        state.add_(1)
        is_done = mark_done(data, generator)
        before = arrays_of(data)
        resetter.reset_when_done(data)
        got = arrays_of(data)
        saved = torch.from_numpy(start)
        want = {
            "state": torch.where(is_done[:, None, None], saved, before["state"]),
            DONE: torch.zeros_like(before[DONE]),
            TIMESTEP: torch.where(is_done, 0, before[TIMESTEP]),
            EPISODE: before[EPISODE] + is_done,
        }
        errors = {name: float((got[name] - array).abs().max()) for name, array in want.items()}
        return worst(errors, "torch: the saved rows of the environments that have ended, the others as they were")

    return prepared(
        point,
        backend,
        lambda: resetter.reset_when_done(data, "force_reset"),
        check,
        units={"env_resets": n_envs},
        least_bytes=2 * start.nbytes,
    )


CHECKED_AGENTS: Final = 2_000
"""Agents of the environments that are reset beside the oracle."""
SAVED_WORDS: Final = 8
"""Numbers that are restored for each agent."""


# ------------------------------------------------------------------ return scan

GAMMA: Final = 0.99
SCANS: Final = 4
"""In a run; a loop of torch has thousands of launches for each."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a rollout leaves to be scanned."""

    rewards: torch.Tensor
    """(n_steps, n_envs, n_agents) float32."""
    terminated: torch.Tensor
    """(n_steps, n_envs) int32."""
    truncated: torch.Tensor
    """Likewise."""
    last_values: torch.Tensor
    """(n_envs, n_agents): what is expected after the last step."""
    returns: torch.Tensor
    """As `rewards`; filled."""

    @property
    def goes_on(self) -> torch.Tensor:
        """1 where no episode has ended, else 0, (n_steps, n_envs, 1) float32."""
        return ((self.terminated | self.truncated) == 0)[..., None].float()


def return_scan(point: Point) -> Prepared:
    """Sum up discounted rewards backwards in time: our kernel, a loop over the steps in torch, or its cumulative sum.

    The check takes the definition in float64, on the CPU, for all rows.
    """
    backend = available(point["backend"])
    shape = (point["n_steps"], point["n_envs"], point["n_agents"])
    played = random_rollout(shape, backend.device)
    scans: Mapping[str, Callable[[], None]] = {
        OURS: our_scan(backend, played),
        "torch loop": lambda: loop_scan(played),
        "torch cumsum": lambda: cumulative_scan(played),
    }

    def check() -> Correctness:
        played.returns.fill_(torch.nan)
        scans[point["implementation"]]()
        want = returns_in_float64(played)
        error = (played.returns.cpu().double() - want).abs().max() / want.abs().max()
        # A comparison with NaN is false, so what is not filled in does not pass.
        return Correctness(
            passed=bool(error <= SCAN_TOLERANCE),
            max_error=float(error.nan_to_num(nan=float("inf"), posinf=float("inf"))),
            oracle="torch in float64, on the CPU, step by step",
            detail=f"over the largest return; {SCAN_TOLERANCE:g} at most",
        )

    n_returns = played.rewards.numel()
    return prepared(
        point,
        backend,
        scans[point["implementation"]],
        check,
        units={"returns": n_returns},
        least_bytes=2 * played.rewards.nbytes + 2 * played.terminated.nbytes + played.last_values.nbytes,
        least_ops=2 * n_returns,
        n=SCANS,
    )


SCAN_TOLERANCE: Final = 1e-4
"""Largest error as a share of the largest return: a cumulative sum in float32 takes small differences of large sums."""


def random_rollout(shape: tuple[int, int, int], device: torch.device) -> Played:
    """Return rewards from 0 to 1 and episodes that end with a chance of one in fifty a step, half of them cut off."""
    generator = torch.Generator().manual_seed(SEED)
    ends = torch.rand(shape[:2], generator=generator)
    rewards, last_values = torch.rand(shape, generator=generator), torch.rand(shape[1:], generator=generator)
    return Played(
        rewards=rewards.to(device),
        terminated=(ends < 0.01).int().to(device),
        truncated=((ends >= 0.01) & (ends < 0.02)).int().to(device),
        last_values=last_values.to(device),
        returns=torch.zeros(shape, device=device),
    )


def our_scan(backend: Backend, played: Played) -> Callable[[], None]:
    """Set up `ReturnScan` without values."""
    _, n_envs, n_agents = played.rewards.shape
    scan = ReturnScan(backend, n_envs, n_agents, GAMMA)
    tensors = (played.rewards, None, played.terminated, played.truncated, played.last_values, None, None)
    return lambda: scan.scan(*tensors, played.returns)


def loop_scan(played: Played) -> None:
    """Go back through the steps, some torch operations each."""
    after, goes_on = played.last_values, played.goes_on
    for step in reversed(range(len(played.rewards))):
        after = torch.addcmul(played.rewards[step], after, goes_on[step], value=GAMMA)
        played.returns[step] = after


def cumulative_scan(played: Played) -> None:
    """Take sums of gamma^t r(t) from each step on, less the one from the next episode on, over gamma^t."""
    n_steps = len(played.rewards)
    steps = torch.arange(n_steps, device=played.rewards.device)
    discount = (GAMMA ** steps.float())[:, None, None]
    weighted = played.rewards * discount
    weighted[-1] += played.goes_on[-1] * played.last_values * GAMMA**n_steps
    sums = weighted.flip(0).cumsum(0).flip(0)
    ends = torch.where(played.goes_on[..., 0] != 0, n_steps - 1, steps[:, None])
    last_step = ends.flip(0).cummin(0).values.flip(0)
    beyond = torch.cat([sums[1:], torch.zeros_like(sums[:1])])
    torch.div(sums - beyond.gather(0, last_step[..., None].expand_as(sums)), discount, out=played.returns)


def returns_in_float64(played: Played) -> torch.Tensor:
    """Return the definition, (n_steps, n_envs, n_agents) float64, on the CPU."""
    rewards, after = played.rewards.cpu().double(), played.last_values.cpu().double()
    goes_on = played.goes_on.cpu()
    found = torch.empty_like(rewards)
    for step in reversed(range(len(rewards))):
        after = found[step] = rewards[step] + GAMMA * after * goes_on[step]
    return found


# ------------------------------------------------------------------ shuffle


def shuffle(point: Point) -> Prepared:
    """Draw a permutation: ours, or `torch.randperm` on the same device, which is called eagerly."""
    backend = available(point["backend"])
    n = point["n_indices"]
    draw, indices, oracle = (our_shuffle if point["implementation"] == OURS else torch_randperm)(backend, n)

    def check() -> Correctness:
        draw()
        before = indices.to("cpu", copy=True)
        draw()
        got = indices.to("cpu", copy=True)
        errors = {"missing indices": float((got.sort().values != torch.arange(n)).sum())}
        errors["repeated draws"] = float(n > FEW_INDICES and bool((got == before).all()))
        if oracle is not None:
            errors["other indices than NumPy's"] = float((oracle() != got).sum())
        return worst(errors, "all indices once" + (", and those of NumPy with the same seed" if oracle else ""))

    return prepared(
        point,
        backend,
        draw,
        check,
        units={"indices": n},
        least_bytes=indices.nbytes,
        mode=None if point["implementation"] == OURS else "eager",
    )


FEW_INDICES: Final = 20
"""Up to which the same permutation may come twice by chance."""

Permuting = tuple[Callable[[], None], torch.Tensor, Callable[[], torch.Tensor] | None]
"""What draws, where to, and what returns the draw that an oracle makes of the same seed and counter."""


def our_shuffle(backend: Backend, n: int) -> Permuting:
    """Set up `Shuffle`."""
    ours, oracle = Shuffle(backend, n, SEED), Shuffle("cpu", n, SEED)

    def same() -> torch.Tensor:
        oracle.counter.copy_(ours.counter - 1)
        oracle.permute()
        return oracle.indices

    return ours.permute, ours.indices, same


def torch_randperm(backend: Backend, n: int) -> Permuting:
    """Set up `torch.randperm` into a tensor that is kept."""
    indices = torch.zeros(n, dtype=torch.int64, device=backend.device)

    def draw() -> None:
        torch.randperm(n, out=indices)

    return draw, indices, None


# ------------------------------------------------------------------ record


def record(point: Point) -> Prepared:
    """Keep a step of a rollout: rewards, ends and last observations, and the sums over episodes."""
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    draw = random_policy(wrapper, SEED)
    recorder = Recorder(wrapper, n_steps=1)

    def keep() -> None:
        recorder.begin()
        recorder.record(0)

    def check() -> Correctness:
        errors: dict[str, float] = {}
        generator = torch.Generator().manual_seed(SEED)
        for _ in range(RECORDED):
            draw()
            wrapper.step()
            end_some(wrapper, generator)
            recorder.clear_statistics()
            want = recorded_by_torch(wrapper, recorder)
            keep()
            got = recorded(recorder)
            for name, array in want.items():
                errors[name] = max(errors.get(name, 0.0), float((got[name] - array).abs().max()))
        return worst(errors, f"torch, on the CPU, {RECORDED} steps, to the bit")

    rewards = recorder.rewards[0]
    return prepared(
        point,
        backend,
        keep,
        check,
        units={"env_steps": point["n_envs"], "agent_steps": point["n_envs"] * point["n_agents"]},
        # Rewards in and out, with their sum in and out; flags in and out, and a count in and out.
        least_bytes=4 * rewards.nbytes + 4 * 8 * point["n_envs"],
    )


RECORDED: Final = 4
"""Steps of a check."""


def end_some(wrapper: EnvWrapper, generator: torch.Generator) -> None:
    """Let half of the environments have ended, half of these by their time limit: what `record` reads, no step sees."""
    data = wrapper.cuda_data_manager
    is_done = mark_done(data, generator).int()
    is_cut = torch.randint(0, 2, is_done.shape, generator=generator, dtype=torch.int32) & is_done
    data.tensor(TRUNCATED).copy_(is_cut)
    data.tensor(TERMINATED).copy_(is_done - is_cut)


def recorded(recorder: Recorder) -> dict[str, torch.Tensor]:
    """Return copies on the CPU of all that a recorder keeps of its first step."""
    rows = {name: getattr(recorder, name)[0] for name in ("rewards", TERMINATED, TRUNCATED, "successes")}
    kept = rows | recorder.state() | {"n_cut": recorder.n_cut}
    if recorder.cuts is not None:
        kept["cuts"] = recorder.cuts[0]
    return {name: array.to("cpu", copy=True) for name, array in kept.items()}


def recorded_by_torch(wrapper: EnvWrapper, recorder: Recorder) -> dict[str, torch.Tensor]:
    """Return what a recorder must keep of the present arrays, in torch on the CPU."""
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
        "n_cut": data[TRUNCATED],
    }
    if recorder.cuts is not None:
        is_cut = (data[TRUNCATED] != 0).view(-1, *[1] * (before["cuts"].dim() - 1))
        want["cuts"] = torch.where(is_cut, data["final_observations"], before["cuts"])
    return want


# ------------------------------------------------------------------ launch


def launch(point: Point) -> Prepared:
    """Launch next to nothing, one by one or in a graph: a kernel of one block, or torch's addition of one number."""
    backend = available(point["backend"])
    launches = torch.zeros(1, dtype=torch.int32, device=backend.device)
    work = counting_kernel(backend, launches) if point["implementation"] == OURS else lambda: launches.add_(1)
    made = prepared(
        point,
        backend,
        work,
        lambda: counted(made, launches),
        units={"calls": 1},
        least_bytes=2 * launches.nbytes,
        mode=point["mode"],
        n=LAUNCHES,
    )
    return made


LAUNCHES: Final = 100
"""In a run."""


def counting_kernel(backend: Backend, launches: torch.Tensor) -> Callable[[], Any]:
    """Set up the kernel of `kernels/count.cu`."""
    functions = CUDAFunctionManager(1, 1, backend=backend)
    kernels = Path(__file__).parent / "count"
    functions.load(
        {
            "cuda_c": kernels / "count.cu",
            "numba": "bench.cases.count.count_numba",
            "numpy": "bench.cases.count.count_numpy",
        }
    )
    return functions.prepare(functions.kernel("count"), [launches])


def counted(made: Prepared, launches: torch.Tensor) -> Correctness:
    """Hold what one run has counted against the launches that it declares."""
    launches.zero_()
    made.run()
    made.synchronize()
    error = abs(int(launches) - made.work["calls"])
    return Correctness(error == 0, error, "the number of launches", f"{int(launches)} have run")


# ------------------------------------------------------------------ points


def on_gpu_too(preset: Preset) -> bool:
    """Tell whether sizes are listed that fill a GPU."""
    return preset == "full" or (preset != "smoke" and torch.cuda.is_available())


def implementations(point: Point, names: tuple[str, ...]) -> list[Point]:
    """Return a point with every implementation; torch's own do not depend on the backend, only on its device."""
    return [
        {"implementation": name, "backend": backend, **point}
        for backend in BACKENDS
        for name in names
        if not name.startswith("torch") or backend in ("cpu", "pycuda")
    ]


def reset_points(preset: Preset) -> list[Point]:
    """Return CartPole and Tag Continuous, by their own kernels and by saved arrays."""
    sizes: list[dict[str, Any]] = [{"env": "cartpole", "n_envs": 64, "n_agents": 1}]
    if preset != "smoke":
        sizes = [
            {"env": "cartpole", "n_envs": 10_000, "n_agents": 1},
            {"env": "tag_continuous", "n_envs": 100, "n_agents": 110},
        ]
    if on_gpu_too(preset):
        sizes += [
            {"env": "cartpole", "n_envs": 1_000_000, "n_agents": 1},
            {"env": "tag_continuous", "n_envs": 2_000, "n_agents": 110},
        ]
    own = [point for size in sizes for point in implementations(size, (OURS,))]
    saved = [{name: value for name, value in size.items() if name != "env"} for size in sizes]
    return own + [point for size in saved for point in implementations(size, ("saved arrays",))]


def scan_points(preset: Preset) -> list[Point]:
    """Return rollouts of few and of many rows."""
    sizes = [(8, 16, 1)] if preset == "smoke" else [(100, 100, 1), (100, 100, 110)]
    sizes += [(100, 10_000, 1), (50, 2_000, 110)] if on_gpu_too(preset) else []
    return [
        point
        for n_steps, n_envs, n_agents in sizes
        for point in implementations(
            {"n_steps": n_steps, "n_envs": n_envs, "n_agents": n_agents}, (OURS, "torch loop", "torch cumsum")
        )
    ]


def shuffle_points(preset: Preset) -> list[Point]:
    """Return numbers of indices up to those of a rollout of 100,000 environments."""
    sizes = [1_000] if preset == "smoke" else [10_000, 1_000_000]
    sizes += [10_000_000] if on_gpu_too(preset) else []
    return [point for n in sizes for point in implementations({"n_indices": n}, (OURS, "torch.randperm"))]


def record_points(preset: Preset) -> list[Point]:
    """Return the sizes of `reset_points`, by our kernel: nothing else keeps it all in one pass."""
    return [point for point in reset_points(preset) if point["implementation"] == OURS]


def launch_points(preset: Preset) -> list[Point]:
    """Return every backend and torch, eagerly and, where there are graphs, as one."""
    return [
        {**point, "mode": mode}
        for point in implementations({}, (OURS, "torch"))
        for mode in (("eager",) if point["backend"] in ON_CPU else ("eager", "graph"))
    ]
