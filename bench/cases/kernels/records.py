"""The case `record`: a step of a rollout is kept, and summed over its episodes."""

from __future__ import annotations

from typing import Final

import torch

from bench.case import Check, Point, Preset
from bench.cases.env_case import start_env
from bench.cases.environments import SEED, available
from bench.cases.kernels.resets import reset_points
from bench.cases.kernels.shared import OURS, arrays_of, mark_done, prepared, worst
from bench.measure import Timed
from warpdrive_min import EnvWrapper
from warpdrive_min.constants import DONE
from warpdrive_min.policies import random_policy
from warpdrive_min.training.arrays import TERMINATED, TRUNCATED, SharedLayout
from warpdrive_min.training.rollout import FINISHED, RolloutRecorder


def record(point: Point) -> Timed:
    """Keep a step of a rollout: rewards, ends and last observations, and the sums over episodes."""
    backend = available(point["backend"])
    wrapper = start_env(point, point["backend"], point["n_envs"])
    draw = random_policy(wrapper, SEED)
    arrays = SharedLayout().arrays(wrapper, {"all": list(wrapper.env.action_space)})["all"]
    recorder = RolloutRecorder(wrapper, n_steps=1, arrays=arrays)

    def keep() -> None:
        recorder.begin()
        recorder.record(0)

    def check() -> Check:
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


def recorded(recorder: RolloutRecorder) -> dict[str, torch.Tensor]:
    """Return copies on the CPU of all that a recorder keeps of its first step."""
    rows = {name: getattr(recorder, name)[0] for name in ("rewards", TERMINATED, TRUNCATED, "successes")}
    kept = rows | recorder.state() | {"n_cut": recorder.n_truncated}
    if recorder.truncated_observations is not None:
        kept["cuts"] = recorder.truncated_observations[0]
    return {name: array.to("cpu", copy=True) for name, array in kept.items()}


def recorded_by_torch(wrapper: EnvWrapper, recorder: RolloutRecorder) -> dict[str, torch.Tensor]:
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
    if recorder.truncated_observations is not None:
        is_cut = (data[TRUNCATED] != 0).view(-1, *[1] * (before["cuts"].dim() - 1))
        want["cuts"] = torch.where(is_cut, data["final_observations"], before["cuts"])
    return want


def record_points(preset: Preset) -> list[Point]:
    """Return the sizes of `reset_points`, by our kernel: nothing else keeps it all in one pass."""
    return [point for point in reset_points(preset) if point["implementation"] == OURS]
