"""Salesforce's WarpDrive: stepping, and its trainers with their run configs."""

from __future__ import annotations

import importlib
import importlib.util
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from .work import TRACED, Point, Unavailable, Work, as_lists, temporary_folder, torch_processor

PACKAGES = ("rl-warp-drive", "torch", "numba", "numba-cuda", "pycuda", "numpy", "gym", "gymnasium")
CLASSES = {
    "cartpole": "single_agent.classic_control.cartpole.cartpole:CUDAClassicControlCartPoleEnv",
    "acrobot": "single_agent.classic_control.acrobot.acrobot:CUDAClassicControlAcrobotEnv",
    "pendulum": "single_agent.classic_control.pendulum.pendulum:CUDAClassicControlPendulumEnv",
    "tag_gridworld": "tag_gridworld.tag_gridworld:CUDATagGridWorld",
    "tag_continuous": "tag_continuous.tag_continuous:TagContinuous",
}
RUN_CONFIGS = {"cartpole": "single_cartpole", "acrobot": "single_acrobot", "pendulum": "single_pendulum"}
"""Names of the run configs that differ from their environments' names."""
CONTROL = ("cartpole", "acrobot", "pendulum", "mountain_car", "continuous_mountain_car")
GYM_MODULES = ("", ".spaces", ".envs", ".envs.classic_control", *(f".envs.classic_control.{each}" for each in CONTROL))
"""Names that WarpDrive imports from gym."""
ENDLESS = 10**12
"""Number of episodes of a trainer that never ends."""
FEWEST_STEPS = 2
"""Minimum steps of a rollout.

With a single step its trainers lack the arrays for acting."""


def device() -> str:
    """Return the kind of device."""
    return "cuda"


def prepare(point: Point) -> Work:
    """Return stepping with random actions, or iterations of training, on a GPU."""
    import torch  # noqa: PLC0415  (theirs)

    trainer, notes = _started(point)
    make = _simulating if point["work"] == "simulate" else _training
    return make(point, trainer, notes | {"device": torch.cuda.get_device_name()})


def repeat(point: Point) -> dict[str, Any]:
    """Train; return weights, optimisers and results of each iteration. Waits."""
    import torch  # noqa: PLC0415  (theirs)

    trainer, _ = _started(point)
    data = trainer.cuda_envs.cuda_data_manager

    def state() -> dict[str, Any]:
        found = {f"env/{name}": data.pull_data_from_device(name) for name in ("observations", "rewards", "_timestep_")}
        for policy, model in trainer.models.items():
            moments = trainer.optimizers[policy].state
            for name, weight in model.named_parameters():
                found[f"policy/{policy}/model/{name}"] = weight.detach().cpu().numpy().copy()
                for moment in ("exp_avg", "exp_avg_sq"):
                    if (each := moments.get(weight, {}).get(moment)) is not None:
                        found[f"policy/{policy}/algorithm/{moment}/{name}"] = each.cpu().numpy().copy()
        return found

    states, seconds = [state()], list[float]()
    for iteration in range(point["n_iterations"]):
        began = time.perf_counter()
        trainer._generate_rollout_batch()  # noqa: SLF001  (its `train` is a loop of these two)
        trainer._update_model_params(iteration)  # noqa: SLF001
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        states.append(state())
    return {"states": states, "seconds": seconds, **torch_processor()}


def _started(point: Point) -> tuple[Any, dict[str, Any]]:
    """Return its trainer from a copy of its packages, and notes."""
    import torch  # noqa: PLC0415  (theirs)

    notes = _gym()
    packages = [_folder_of(name) for name in ("warp_drive", "example_envs")]
    if not torch.cuda.is_available():
        raise Unavailable("it needs an NVIDIA GPU, and its torch finds none")
    _copy(packages)
    return _trainer(point), notes


def _gym() -> dict[str, Any]:
    """Import gymnasium as gym if gym is missing (NumPy 2 breaks gym)."""
    if importlib.util.find_spec("gym") is not None:
        return {}
    for name in GYM_MODULES:
        sys.modules[f"gym{name}"] = importlib.import_module(f"gymnasium{name}")
    return {"shims": "gymnasium is imported as gym"}


def _folder_of(package: str) -> Path:
    """Return the folder of a package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}")
    return Path(spec.submodule_search_locations[0])


def _copy(packages: list[Path]) -> None:
    """Put copies of its packages first on the path.

    It writes the sizes of a run into its package before it compiles, where other processes would read them.
    """
    folder = temporary_folder("warp-drive")
    for package in packages:
        shutil.copytree(package, Path(folder, package.name))
    sys.path.insert(0, folder)


def _trainer(point: Point) -> Any:
    """Return its trainer: the shipped run config in the point's sizes."""
    import yaml  # noqa: PLC0415

    root = Path(importlib.import_module("warp_drive").__file__ or "").parent
    name = RUN_CONFIGS.get(point["env"], point["env"])
    config = yaml.safe_load((root / "training" / "run_configs" / f"{name}.yaml").read_text())
    n_steps = point.get("n_steps", FEWEST_STEPS)
    config["env"] |= _sizes(point)
    config["trainer"] |= {
        "num_envs": point["n_envs"],
        "num_episodes": ENDLESS,
        "train_batch_size": point["n_envs"] * n_steps,
        "env_backend": point["options"]["env_backend"],
        "seed": 1,
    }
    config["saving"]["basedir"] = temporary_folder("warp-drive")
    for policy in config["policy"].values():
        policy["algorithm"] = point.get("algorithm", policy["algorithm"])

    path, _, cls = CLASSES[point["env"]].partition(":")
    env = getattr(importlib.import_module(f"example_envs.{path}"), cls)(**config["env"])
    wrapper = importlib.import_module("warp_drive.env_wrapper").EnvWrapper(
        env, num_envs=point["n_envs"], env_backend=point["options"]["env_backend"]
    )
    kind = "ddpg" if next(iter(config["policy"].values()))["algorithm"] == "DDPG" else "a2c"
    trainers = importlib.import_module(f"warp_drive.training.trainers.trainer_{kind}")
    make = getattr(trainers, f"Trainer{kind.upper()}")
    trainer = make(wrapper, config, _agents(env, list(config["policy"])), verbose=False)
    wrapper.reset_all_envs()
    return trainer


def _sizes(point: Point) -> dict[str, Any]:
    """Return the numbers of agents in the environment's config."""
    n_agents = point["n_agents"]
    if point["env"] == "tag_gridworld":
        return {"num_taggers": n_agents - 1, "use_full_observation": point["full_observation"]}
    if point["env"] == "tag_continuous":
        return {"num_taggers": point["n_taggers"], "num_runners": n_agents - point["n_taggers"]}
    return {}


def _agents(env: Any, policies: list[str]) -> dict[str, list[int]]:
    """Return the agents of each policy."""
    if len(policies) > 1:
        return {"tagger": list(env.taggers), "runner": list(env.runners)}
    if hasattr(env, "taggers"):
        return {policies[0]: [*env.taggers, *env.runners]}
    return {policies[0]: list(env.agents)}


def _simulating(point: Point, trainer: Any, notes: dict[str, Any]) -> Work:
    """Return random actions, a step and the restart of ended environments."""
    import torch  # noqa: PLC0415

    envs = trainer.cuda_envs
    given = trainer._evaluate_policies(batch_index=0)  # noqa: SLF001  (its sampler takes arrays of these shapes)
    policy = next(iter(given))
    even = [torch.full_like(each, 0.0 if each.shape[-1] == 1 else 1 / each.shape[-1]) for each in given[policy]]
    of_sampler = {} if even[0].shape[-1] > 1 else {"damping": 0.15, "stddev": 0.2, "scale": 1.0}

    def run() -> None:
        trainer._sample_actions({policy: even}, batch_index=-1, **of_sampler)  # noqa: SLF001
        envs.step_all_envs()
        envs.reset_only_done_envs()

    def trace() -> dict[str, Any]:
        return _step_of_one_agent(point, envs, run) if point["n_agents"] == 1 else _clocks(envs, run)

    draws = "draws" if even[0].shape[-1] > 1 else "noise for actions"
    return _work(run, point["n_envs"], trace, f"{draws} + step + restart of what ended", notes)


def _training(point: Point, trainer: Any, notes: dict[str, Any]) -> Work:
    """Return its training iterations without logging, a lap per step."""
    iteration, laps, step = 0, list[int](), trainer.cuda_envs.step_all_envs

    def timed_step(*arguments: Any, **keywords: Any) -> Any:
        laps.append(time.perf_counter_ns())
        return step(*arguments, **keywords)

    trainer.cuda_envs.step_all_envs = timed_step

    def run() -> None:
        nonlocal iteration
        trainer._generate_rollout_batch()  # noqa: SLF001  (its `train` is a loop of these two)
        trainer._update_model_params(iteration)  # noqa: SLF001
        iteration += 1

    def trace() -> dict[str, Any]:
        run()
        weights = [
            weight
            for name in ("models", "actor_models", "critic_models")
            for model in getattr(trainer, name, {}).values()
            for weight in model.parameters()
        ]
        if not weights or not all(bool(weight.isfinite().all()) for weight in weights):
            raise ArithmeticError("its weights are not finite")
        return {"says": f"its {len(weights)} arrays of weights are finite after {iteration} iterations"}

    return _work(run, point["n_envs"] * point["n_steps"], trace, "rollout + update, without logging", notes, laps)


def _work(
    run: Any, env_steps: int, trace: Any, counts: str, notes: dict[str, Any], laps: list[int] | None = None
) -> Work:
    import torch  # noqa: PLC0415

    return Work(
        run=run,
        wait=torch.cuda.synchronize,
        env_steps=env_steps,
        trace=trace,
        counts=counts,
        device="cuda",
        threads=None,
        laps=laps,
        notes=notes,
    )


def _step_of_one_agent(point: Point, envs: Any, run: Any) -> dict[str, Any]:
    """Return a step of the first environments without restarts."""
    data = envs.cuda_data_manager

    def pull(name: str) -> Any:
        return data.pull_data_from_device(name)[:TRACED]

    for _ in range(100):
        run()
        began = pull("_timestep_")
        before = pull("observations")
        run()
        if (began > 0).all() and (pull("_timestep_") == began + 1).all():
            after, actions, rewards = (pull(name) for name in ("observations", "sampled_actions", "rewards"))
            config = {"gravity": 9.81} if point["env"] == "pendulum" else {}
            traced = as_lists(len(before), before=before, actions=actions, after=after, rewards=rewards)
            return traced | {"config": config}
    raise ArithmeticError("some of its first environments had just restarted in each of 100 attempts")


def _clocks(envs: Any, run: Any) -> dict[str, Any]:
    """Check that every environment steps or restarts, with finite arrays."""
    data = envs.cuda_data_manager
    before = data.pull_data_from_device("_timestep_")
    run()
    after = data.pull_data_from_device("_timestep_")
    moved = (after == before + 1) | ((after == 0) & (before > 0))
    sums = [float(abs(data.pull_data_from_device(name)).sum()) for name in ("observations", "rewards")]
    if not moved.all() or not all(math.isfinite(each) for each in sums):
        raise ArithmeticError(f"{int(moved.sum())} of {moved.size} environments stepped; sums of its arrays: {sums}")
    return {"says": f"all {moved.size} environments moved on by a step, and their arrays are finite"}
