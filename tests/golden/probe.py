"""Runs inside one tree and writes what its public surface gives: `python -P probe.py PART INPUTS OUT [CHECKPOINTS]`.

Modules move, so it asks for nothing but commands, documented imports and files. Every file below OUT is an item.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib
import inspect
import io
import itertools
import json
import re
import runpy
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RUN_ID = re.compile(r"20\d{6}T\d{6}-[0-9a-f]{7}-[0-9a-f]{4}")
SVG_ID = re.compile(r"\b[pm][0-9a-f]{10}\b")
"""What matplotlib names a path by, which depends on where it lay in memory."""
TIMES = re.compile(r"(seconds|steps_per_s|_s)$")
"""Keys of metrics and headers that are never the same twice."""
OF_A_RUN = ("seconds", "created", "versions", "sha256", "best_return")
"""Keys of a checkpoint's header that differ from run to run, or by the rule that says which checkpoint is best."""
NEW_SETTINGS = {
    "hidden_size": 64,
    "sequence_length": None,
    "normalize_observations": False,
    "normalize_rewards": False,
    "centralised_critic": None,
}
"""Keys of run configs that the tag has not, with the values that leave a run as it was there."""
IMPORT = re.compile(r"^\s*from ((?:warpdrive_min|envs)[\w.]*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
COMMAND = re.compile(r"^│ ([a-z][a-z-]*) ", re.MULTILINE)
"""A command in the help of a group of them."""

ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("cartpole", {"episode_length": 15}),
    "cartpole, pool": ("cartpole", {"episode_length": 15, "reset_pool_size": 4}),
    "mountain_car": ("mountain_car", {"episode_length": 15}),
    "continuous_mountain_car": ("continuous_mountain_car", {"episode_length": 15, "reset_pool_size": 4}),
    "acrobot": ("acrobot", {"episode_length": 15}),
    "pendulum": ("pendulum", {"episode_length": 15}),
    "tag_gridworld": ("tag_gridworld", {"num_taggers": 4, "grid_length": 6, "episode_length": 15}),
    "tag_gridworld, partial, pool": (
        "tag_gridworld",
        {"num_taggers": 4, "grid_length": 6, "episode_length": 15, "use_full_observation": False, "reset_pool_size": 5},
    ),
    **{
        f"tag_continuous, {name}": (
            "tag_continuous",
            {
                "num_taggers": 2,
                "num_runners": 3,
                "grid_length": 2.0,
                "episode_length": 25,
                "max_acceleration": 0.1,
                "min_acceleration": -0.1,
                "max_turn": 2.356,
                "min_turn": -2.356,
                "num_acceleration_levels": 5,
                "num_turn_levels": 5,
                "edge_hit_penalty": -0.1,
                "num_other_agents_observed": 2,
                "tagging_distance": 0.1,
                "tag_reward_for_tagger": 10.0,
                "step_penalty_for_tagger": -0.01,
                "tag_penalty_for_runner": -10.0,
                "step_reward_for_runner": 0.01,
                "end_of_game_reward_for_runner": 1.0,
                "seed": 274880,
                "use_full_observation": False,
                "runner_exits_game_after_tagged": True,
                **config,
            },
        )
        for name, config in {
            "full, exits": {"use_full_observation": True},
            "full, stays": {"use_full_observation": True, "runner_exits_game_after_tagged": False},
            "partial, exits": {},
            "partial, stays": {"runner_exits_game_after_tagged": False},
            "grid": {"neighbor_search": "grid"},
        }.items()
    },
}
"""Every environment in the forms that its kernels have: its name and config."""


# ------------------------------------------------------------------ commands


def run(*words: str) -> str:
    """Run ``python -m words...`` in this process and return what it printed, with its exit code."""
    module, *arguments = words
    printed = io.StringIO()
    argv, sys.argv = sys.argv, [module, *arguments]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as end:
                code = end.code or 0
            except Exception:  # noqa: BLE001  a traceback is what the command printed
                code = traceback.format_exc()
    finally:
        sys.argv = argv
    return f"{printed.getvalue()}exit code: {code}\n"


def write(path: Path, text: str) -> None:
    """Write an item, the places of this run and this tree replaced."""
    tree = str(Path(next(each for each in sys.path if Path(each, "warpdrive_min").is_dir())).resolve())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(tree, "TREE").replace(str(Path.cwd()), "HERE"), encoding="utf-8")


def file_name(name: str) -> str:
    """Return a name without what a path may not have."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def record_files() -> list[Path]:
    """Return the files of records, those of sweeps and of peers."""
    return sorted(file for folder in ("sweeps", "peers") for file in Path("results", folder).glob("*.jsonl"))


# ------------------------------------------------------------------ documents made of records


def tables(inputs: Path, out: Path) -> None:
    """Print the tables of each file of records, and again those in the documents."""
    for file in record_files():
        write(out / f"{file.stem}.md", run("bench", "table", str(file)))
    for document in sorted([*inputs.glob("*.md"), *inputs.glob("docs/**/*.md"), *inputs.glob("results/*.md")]):
        if "`python -m bench table " in (text := document.read_text(encoding="utf-8")):
            copy = out / "documents" / document.relative_to(inputs)
            write(copy, text)
            write(copy.with_suffix(".txt"), run("bench", "refresh", str(copy)))


def plots(inputs: Path, out: Path) -> None:
    """Draw all figures as SVG alone, for `paper` has them as PDF; the numbers that stand for objects start at 0."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def save_svg(figure: Figure, *where: Any, **options: Any) -> None:
        if options["format"] == "svg":
            save(figure, *where, **options)
        else:
            Path(where[0]).touch()  # a program may look for what it has written

    Figure.savefig = save_svg  # type: ignore[method-assign]
    write(out / "printed.txt", run("bench", "plot", "--out", str(out)))
    for file in out.iterdir():
        if file.suffix in (".png", ".pdf"):
            file.unlink()
        elif file.suffix == ".svg":
            text = file.read_text(encoding="utf-8")
            for number, name in enumerate(dict.fromkeys(SVG_ID.findall(text))):
                text = text.replace(name, f"id-{number}")
            file.write_text(text, encoding="utf-8")


def report(inputs: Path, out: Path) -> None:
    """Make the report."""
    write(out / "printed.txt", run("bench", "report", "--out", str(out / "report.html")))


def paper(inputs: Path, out: Path) -> None:
    """Make what a paper needs, without PGF, which needs a TeX; the copies of records are left out."""
    write(out / "printed.txt", run("bench", "paper", "--out", str(out / "paper")))
    shutil.rmtree(out / "paper" / "records")


def export(inputs: Path, out: Path) -> None:
    """Write all records in the formats of other tools."""
    for form in ("github-action-benchmark", "bencher", "asv"):
        place = out / (form if form == "asv" else f"{form}.json")
        words = ("bench", "export", form, "results/sweeps", "results/peers", "--out", str(place))
        write(out / f"{form}.txt", run(*words))


def claims(inputs: Path, out: Path) -> None:
    """Judge all claims."""
    for form in ("json", "markdown"):
        write(out / f"claims.{form}", run("bench", "claims", f"--{form}"))
    write(out / "claims.txt", run("bench", "claims"))


def records(inputs: Path, out: Path) -> None:
    """Read records of schema 1 as two sides of a comparison and of a gate, and as that which is reproduced."""
    files = record_files()
    known = {file.stem for file in files}

    def steady(text: str) -> str:
        return RUN_ID.sub(lambda found: found[0] if found[0] in known else "RUN", text)

    for a, b in itertools.pairwise(file for file in files if file.parent.name == "sweeps"):
        place = out / f"{a.stem}-{b.stem}"
        words = ("bench", "compare", str(a), str(b), "--out", str(place))
        write(place / "printed.txt", steady(run(*words)))
        for file in place.glob("20*"):
            text = file.read_text(encoding="utf-8")
            file.unlink()
            write(place / RUN_ID.sub("written", file.name), steady(text))
        gate = ("bench", "gate", "--baseline", str(a), "--records", str(b), "--annotations")
        places = ("--summary", str(place / "summary.md"), "--junit", str(place / "junit.xml"))
        write(place / "gate.txt", steady(run(*gate, *places)))


def points(inputs: Path, out: Path) -> None:
    """Write the points of each preset of each case, as they are beside a GPU and without one."""
    import torch

    from bench.cases import CASES

    for place, has_gpu in (("gpu", True), ("cpu", False)):
        torch.cuda.is_available = lambda has_gpu=has_gpu: has_gpu
        for case in CASES.values():
            write(out / f"{case.name}.txt", f"{case.name}, scope {case.scope}, version {case.version}\n")
            for preset in ("smoke", "default", "full", "paper"):
                lines = [json.dumps(dict(point)) for point in case.points(preset)]
                write(out / place / preset / f"{case.name}.jsonl", "\n".join(lines) + "\n")


def help_(inputs: Path, out: Path) -> None:
    """Print the help of every command."""
    for module in ("bench", "warpdrive_min"):
        write(out / f"{module}.txt", shown := run(module, "--help"))
        for name in COMMAND.findall(shown):
            write(out / f"{module}-{name}.txt", run(module, name, "--help"))
    write(out / "bench-list.txt", run("bench", "list"))


# ------------------------------------------------------------------ public names


def names(inputs: Path, out: Path) -> None:
    """Describe what may be imported: what packages export, what documents import, and WarpDrive's names."""
    for package in ("warpdrive_min", "envs", "warpdrive_min.compat"):
        exported = sorted(importlib.import_module(package).__all__)
        write(out / f"{package}.txt", "\n".join(exported) + "\n")
        for name in exported:
            write(out / f"{package}.{name}.txt", described(package, name))
    for document in (*inputs.glob("*.md"), *inputs.glob("docs/**/*.md")):
        for package, inside, line in IMPORT.findall(document.read_text(encoding="utf-8")):
            for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", inside or line)):
                write(out / f"{package}.{name}.txt", described(package, name))
    for module in importlib.import_module("warpdrive_min.compat").NAMES:
        if module == NEEDS_A_GPU:
            continue
        found = [name for name in sorted(vars(importlib.import_module(module))) if not name.startswith("_")]
        parts = [f"{name}\n{described(module, name)}" for name in found]
        write(out / "compat" / f"{module}.txt", "\n".join(parts) + "\n")


NEEDS_A_GPU = "warp_drive.utils.autoinit_pycuda"
"""Module that makes a context when it is imported."""


def described(module: str, name: str) -> str:
    """Return kind, parameters and public attributes of a name, or the error of its import."""
    try:
        place = importlib.import_module(module)
        value = getattr(place, name, None) or importlib.import_module(f"{module}.{name}")
    except ImportError as error:
        return f"cannot be imported: {error}\n"
    lines = [type(value).__name__ if isinstance(value, int | float | str | tuple) else "", parameters(value)]
    if isinstance(value, int | float | str):
        lines.append(repr(value))
    if isinstance(value, type):
        ours = [cls for cls in value.__mro__ if cls.__module__.startswith(("warpdrive_min", "envs"))]
        lines.append("class")
        for attribute in sorted({each for cls in ours for each in vars(cls) if not each.startswith("_")}):
            found = inspect.getattr_static(value, attribute)
            lines.append(f"  {attribute}{parameters(found) if inspect.isfunction(found) else ''}")
    return "\n".join(line for line in lines if line) + "\n"


def parameters(value: Any) -> str:
    """Return the parameters of what can be called: names, kinds, and which of them may be left out."""
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    only = inspect.Parameter.KEYWORD_ONLY
    return (
        "("
        + ", ".join(
            f"{marks.get(each.kind, '')}{'*, ' if each.kind is only and i == first(found, only) else ''}{each.name}"
            + ("" if each.default is each.empty else "=")
            for i, each in enumerate(found)
        )
        + ")"
    )


def first(found: Any, kind: Any) -> int:
    """Return the place of the first parameter of a kind."""
    return next(i for i, each in enumerate(found) if each.kind is kind)


# ------------------------------------------------------------------ what is computed


def backends() -> dict[str, bool]:
    """Return the backends that run here, and whether each is Numba's simulator."""
    from warpdrive_min import availability

    return {name: state.reason == "simulator" for name, state in availability().items() if state.available}


def digest(array: Any) -> str:
    """Return dtype, shape and a hash of the bytes of an array."""
    import numpy as np

    array = np.ascontiguousarray(array)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def trajectories(inputs: Path, out: Path) -> None:
    """Step every environment on every backend, exactly, and hash all arrays over all steps and after each of them."""
    for backend, is_simulated in backends().items():
        for name, (env, config) in ENVIRONMENTS.items():
            lines = trajectory(env, config, backend, 2 if is_simulated else 5, 8 if is_simulated else 40)
            write(out / backend / f"{file_name(name)}.txt", "\n".join(lines) + "\n")


def trajectory(env: str, config: dict[str, Any], backend: str, n_envs: int, n_steps: int) -> list[str]:
    """Return a line for each array, and one for each step."""
    from envs import ENVS
    from warpdrive_min import EnvWrapper
    from warpdrive_min.policies import random_policy

    wrapper = EnvWrapper(ENVS[env](**config), num_envs=n_envs, env_backend=backend, seed=5, auto_reset=True, exact=True)
    wrapper.reset()
    data = wrapper.cuda_data_manager
    act = random_policy(wrapper, seed=11)
    kept: dict[str, bytes] = {}
    lines = []
    for step in range(n_steps + 1):
        if step:
            act()
            wrapper.step_all_envs()
        now = {name: digest(data.pull_data_from_device(name)) for name in sorted(data.array_names())}
        kept = {name: kept.get(name, b"") + each.encode() for name, each in now.items()}
        lines.append(f"step {step}: {hashlib.sha256(''.join(now.values()).encode()).hexdigest()[:16]}")
    return [*(f"{name}: {hashlib.sha256(all_).hexdigest()[:16]}" for name, all_ in kept.items()), *lines]


def draws(inputs: Path, out: Path) -> None:
    """Draw actions of every kind."""
    for backend in backends():
        write(out / f"{backend}.txt", "\n".join(drawn(backend)) + "\n")


def drawn(backend: str) -> Iterator[str]:
    """Give a line for each draw."""
    import numpy as np
    import torch

    from warpdrive_min import CUDADataManager, CUDAFunctionManager, CUDASampler, DataFeed

    n_envs, n_agents, choices = 4, 3, (5, 3)
    data = CUDADataManager(n_agents, n_envs, episode_length=4, backend=backend)
    functions = CUDAFunctionManager(n_agents, n_envs, backend=backend)
    feed = DataFeed()
    feed.add_data("one", np.zeros((n_envs, n_agents, 1), np.int32))
    feed.add_data("two", np.zeros((n_envs, n_agents, len(choices)), np.int32))
    feed.add_data("real", np.zeros((n_envs, n_agents, 2), np.float32))
    data.push_data_to_device(feed)
    sampler = CUDASampler(functions)
    sampler.init_random(17)
    sampler.register_actions(data, "one", 7)
    sampler.register_actions(data, "two", choices)
    sampler.register_actions(data, "real", 2, is_deterministic=True)
    generator = np.random.default_rng(3)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.random(shape, np.float32)).to(data.device)

    log_prob, entropy = tensor(n_envs, n_agents), tensor(n_envs, n_agents)
    both = {"log_prob": log_prob, "entropy": entropy}
    mask = (tensor(n_envs, n_agents, sum(choices)) < 0.6).int()
    mask[..., 0] = mask[..., choices[0]] = 1
    ways: list[tuple[str, Callable[[], None]]] = [
        ("one", lambda: sampler.sample(data, tensor(n_envs, n_agents, 7), "one")),
        ("two", lambda: sampler.sample(data, tensor(n_envs, n_agents, sum(choices)), "two", **both)),
        ("two", lambda: sampler.sample(data, tensor(n_envs, n_agents, sum(choices)), "two", logits=True, **both)),
        ("two", lambda: sampler.sample(data, tensor(n_envs, n_agents, sum(choices)), "two", mask=mask, **both)),
        ("two", lambda: sampler.sample(data, tensor(n_envs, n_agents, sum(choices)), "two", True)),
        ("real", lambda: sampler.sample(data, tensor(n_envs, n_agents, 2), "real")),
        ("real", lambda: sampler.sample(data, tensor(n_envs, n_agents, 2), "real", damping=1.0, scale=0.5)),
        ("real", lambda: sampler.sample(data, tensor(n_envs, n_agents, 2), "real", scale=0.0)),
        (
            "real",
            lambda: sampler.sample_gaussian(
                data, tensor(n_envs, n_agents, 2), tensor(n_agents, 2), "real", log_prob=log_prob, entropy=entropy
            ),
        ),
        (
            "real",
            lambda: sampler.sample_uniform(
                data, -torch.ones((n_agents, 2)).to(data.device), tensor(n_agents, 2), "real"
            ),
        ),
    ]
    for number, (name, draw) in enumerate(ways):
        for again in range(2):
            draw()
            hashes = [digest(data.pull_data_from_device(name)), digest(log_prob.cpu()), digest(entropy.cpu())]
            yield f"{number} {name} {again}: {', '.join(hashes)}"


# ------------------------------------------------------------------ training


def run_configs(inputs: Path) -> dict[str, tuple[str, Path]]:
    """Return environment and file of each shipped run config, by its name."""
    return {
        f"{file.parent.name}{file.stem.removeprefix('run_config')}": (file.parent.name, file)
        for file in sorted(inputs.glob("envs/**/run_config*.yaml"))
    }


def settings(file: Path, *, is_simulated: bool) -> list[str]:
    """Return the options that make a run config small."""
    import yaml

    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    n_envs, n_steps = (2, 2) if is_simulated else (4, 8)
    values = {
        "trainer.num_envs": n_envs,
        "trainer.train_batch_size": n_envs * n_steps,
        "trainer.num_episodes": 10**6,
        "env.episode_length": 5,
        "saving.basedir": "runs",
        "saving.metrics_log_freq": 1,
        "saving.model_params_save_freq": 2,
    }
    for key, value in {
        "reset_pool_size": 5,
        "num_taggers": 2,
        "num_runners": 3,
        "num_other_agents_observed": 2,
        "tagging_distance": 0.2,
    }.items():
        if key in config["env"]:
            values[f"env.{key}"] = value
    if "tagging_distance" not in config["env"] and "grid_length" in config["env"]:
        values["env.grid_length"] = 4
    for name, policy in config["policy"].items():
        small = {"buffer_size": 64, "batch_size": 8, "learning_starts": 8, "updates_per_iteration": 2}
        small["n_minibatches"] = 2
        values |= {f"policy.{name}.{key}": value for key, value in small.items() if key in policy}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def train(name: str, env: str, file: Path, backend: str, *more: str, is_simulated: bool = False) -> tuple[Path, str]:
    """Train for some iterations; returns the folder of the run, and what was printed."""
    words = ["warpdrive_min", "train", "--env", env, "--config", str(file), "--backend", backend, "--seed", "7"]
    options = settings(file, is_simulated=is_simulated)
    printed = run(*words, *options, "--results-dir", name, "--quiet", *more)
    folders = list(Path("runs").glob(f"*/*/{name}"))
    return (folders[0] if folders else Path("runs")), printed


def of_run(folder: Path) -> Iterator[str]:
    """Give lines for all that a run has left: metrics, and the header and every tensor of its last checkpoints."""
    from safetensors.numpy import load_file

    for file in sorted(each for each in folder.rglob("*") if each.is_file() and each.parent.name != "best"):
        yield str(file.relative_to(folder))
        if file.suffix == ".jsonl":
            for row in map(json.loads, file.read_text().splitlines()):
                yield from (f"  {key}: {value!r}" for key, value in row.items() if not TIMES.search(key))
        elif file.suffix == ".csv":
            for line in csv.DictReader(file.read_text().splitlines()):
                yield from (f"  {key}: {value}" for key, value in line.items() if not TIMES.search(key))
        elif file.suffix == ".json":
            found = json.loads(file.read_text(), object_pairs_hook=old_settings)
            yield json.dumps({key: found[key] for key in found if key not in OF_A_RUN}, indent=1)
        elif file.suffix == ".safetensors":
            yield from (f"  {name}: {digest(array)}" for name, array in sorted(load_file(file).items()))


def old_settings(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping without what is new in it and changes nothing."""
    return {key: value for key, value in pairs if key not in NEW_SETTINGS or value != NEW_SETTINGS[key]}


def weights(inputs: Path, out: Path) -> None:
    """Train by every shipped run config for 3 iterations on every backend."""
    for backend, is_simulated in backends().items():
        for name, (env, file) in run_configs(inputs).items():
            folder, printed = train(
                f"{name}-{backend}", env, file, backend, "--iterations", "3", is_simulated=is_simulated
            )
            write(out / backend / f"{name}.txt", "\n".join([printed, *of_run(folder)]) + "\n")
    variants = {
        "compat": ("tag_continuous", ["trainer.compat=warpdrive"]),
        "compat-ppo": ("cartpole_ppo", ["trainer.compat=warpdrive"]),
        "compat-ddpg": ("pendulum_ddpg", ["trainer.compat=warpdrive"]),
        "bf16": ("cartpole_ppo", ["trainer.precision=bf16"]),
        "max_rows": ("tag_continuous_ppo", ["trainer.max_rows=8"]),
        "balanced": ("cartpole_ppo", ["trainer.neg_pos_env_ratio=2"]),
        "n_step": ("pendulum_ddpg", ["trainer.n_step=3"]),
        "evaluator": ("cartpole_ppo", ["trainer.evaluator=true"]),
    }
    for variant, (name, keys) in variants.items():
        env, file = run_configs(inputs)[name]
        more = [word for key in keys for word in ("--set", key)]
        folder, printed = train(f"{name}-{variant}", env, file, "cpu", "--iterations", "3", *more)
        write(out / "variants" / f"{name}-{variant}.txt", "\n".join([printed, *of_run(folder)]) + "\n")


RESUMED = (("cartpole", "cpu"), ("cartpole_ppo", "host"), ("pendulum_ddpg", "cpu"), ("tag_continuous_ppo", "cpu"))


def write_checkpoints(inputs: Path, out: Path) -> None:
    """Train some runs halfway, and keep their folders."""
    configs = run_configs(inputs)
    for name, backend in RESUMED:
        folder, printed = train(name, *configs[name], backend, "--iterations", "2")
        shutil.copytree(folder, out / name)
        write(out / f"{name}.txt", printed)


def checkpoints(inputs: Path, out: Path, written: Path) -> None:
    """Go on from checkpoints, look at them, and hash what comes of it."""
    configs = run_configs(inputs)
    for name, backend in RESUMED:
        copy = Path("resumed", name)
        shutil.copytree(written / name, copy)
        words = ("warpdrive_min", "train", "--resume", str(copy), "--backend", backend, "--iterations", "2", "--quiet")
        lines = [run(*words), *of_run(copy)]
        policy = ("--env", configs[name][0], "--backend", backend)
        (last,) = (written / name / "checkpoints").glob("checkpoint_*")
        lines.append(run("warpdrive_min", "evaluate", str(last), *policy[2:], "--episodes", "4"))
        write(out / f"{name}.txt", "\n".join(lines).replace(str(written), "WRITTEN") + "\n")


PARTS: dict[str, Callable[..., None]] = {
    "tables": tables,
    "plots": plots,
    "report": report,
    "paper": paper,
    "export": export,
    "claims": claims,
    "records": records,
    "points": points,
    "help": help_,
    "names": names,
    "weights": weights,
    "trajectories": trajectories,
    "draws": draws,
    "write_checkpoints": write_checkpoints,
    "checkpoints": checkpoints,
}

if __name__ == "__main__":
    part, *places = sys.argv[1:]
    PARTS[part](*map(Path, places))
