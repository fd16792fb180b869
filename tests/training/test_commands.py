"""The commands `train`, `evaluate` and `render --policy`, and their foundations."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import torch

from envs import ENVS, CartPole
from tests.support import run
from tests.training.builders import limited
from warpdrive_min import EnvWrapper
from warpdrive_min.cli import app
from warpdrive_min.commands import train as train_command
from warpdrive_min.commands.environments import run_config_path
from warpdrive_min.errors import known
from warpdrive_min.rendering import Episode
from warpdrive_min.stopping import SIGNALS, Stopped, saved
from warpdrive_min.training.config import RunConfig
from warpdrive_min.training.loop import checkpoint, progress
from warpdrive_min.training.record.trained import find_checkpoint, find_policies, load_policies
from warpdrive_min.training.scale import autoscale
from warpdrive_min.training.trainer import Trainer

N_ITERATIONS = 10
TINY = {
    "env.episode_length": 20,
    "trainer.num_envs": 8,
    "trainer.train_batch_size": 64,
    "trainer.num_episodes": N_ITERATIONS * 64 // 20,
    "saving.metrics_log_freq": 5,
}
"""CartPole for some iterations of 8 steps in 8 environments."""


def settings(values: dict[str, Any]) -> list[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def train(
    basedir: Path, *arguments: object, env: str = "cartpole", values: dict[str, Any] | None = None, exits: int = 0
) -> Any:
    """Train a small run on `cpu` in a folder."""
    over = {**(TINY if values is None else values), "saving.basedir": str(basedir)}
    return run("train", "-e", env, "--backend", "cpu", *settings(over), *arguments, exits=exits)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Finished run of CartPole, with the command's output."""
    basedir = tmp_path_factory.mktemp("runs")
    result = train(basedir, "--seed", "3", "--results-dir", "whole", "--certify")
    return basedir / "single_cartpole" / "experiments" / "whole", result.output


# ------------------------------------------------------------------ train


@pytest.mark.parametrize(("load", "more", "n"), [(3.0, (), 1), (0.5, (), 0), (3.0, ("--quiet",), 0)])
def test_busy_machine_is_named_once(tmp_path, monkeypatch, load, more, n):
    """A run on the CPU begins with the warning, unless it is quiet."""
    monkeypatch.setattr(train_command.cores, "load", lambda: load)
    monkeypatch.setattr(train_command.cores, "n_cores", lambda: 4)
    done = train(tmp_path, *more)
    assert done.output.count("this machine is busy (load 12 on 4 cores): numbers unreliable") == n


@pytest.mark.parametrize(("n_ranks", "n"), [(8, 1), (2, 0)])
def test_ranks_that_share_cores_are_named(tmp_path, monkeypatch, n_ranks, n):
    """The command that starts the ranks says it, once."""
    monkeypatch.setattr(train_command, "launch", lambda *arguments: None)
    monkeypatch.setattr(train_command.cores, "n_cores", lambda: 2)
    assert train(tmp_path, "-n", str(n_ranks)).output.count("8 ranks share 2 CPU cores; with 2 each has its own\n") == n


@pytest.mark.parametrize(("end", "n"), [(320, 1), (640, 0)])
def test_rate_that_becomes_zero_early_is_named(end, n, tmp_path):
    """The warning names the key, both steps and what to do."""
    output = train(tmp_path, values=TINY | {"policy.shared.lr": [[0, 0.001], [end, 0.0]]}).output
    what = "policy.shared.lr is 0 from env step 320 to the run's last, 640"
    assert output.count(f"\n{what}; stretch its points, or lower trainer.num_episodes\n") == n
    assert output.count(" is 0 from ") == n


@pytest.mark.parametrize(
    ("every", "n_rows", "said"),
    [
        (1, 3, "192 env steps: shared {:.4g}; that of the line above is over 64 steps"),
        (5, 1, "256 env steps: shared {:.4g}"),
    ],
)
def test_return_that_stops_a_run_has_its_steps(every, n_rows, said, tmp_path):
    """The target counts 160 env steps or more, a line those since the last one."""
    values = TINY | {"trainer.stop_return": 0.0, "saving.metrics_log_freq": every}
    output = train(tmp_path, "--seed", "1", values=values).output
    (file,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()][-n_rows:]
    episodes = [row["shared/episodes"] for row in rows]
    total = sum(n * row["shared/mean_episodic_return"] for n, row in zip(episodes, rows, strict=True) if n)
    assert f"target return reached (mean return over the last {said.format(total / sum(episodes))}) after" in output


def test_long_run_on_a_cpu_names_the_setting_that_shortens_it(tmp_path, monkeypatch):
    """The advice comes once, after the time left."""
    monkeypatch.setattr(progress, "EARLY_S", 0.0)
    monkeypatch.setattr(progress, "LONG_S", -1.0)
    (line,) = (line for line in train(tmp_path).output.splitlines() if "on this CPU" in line)
    assert line.endswith("left on this CPU; Ctrl-C saves, and --set trainer.num_episodes=N trains for fewer than 32")


def test_train_saves_the_run_and_says_what_to_do_with_it(trained, tmp_path):
    """A run's folder is complete, and each printed command works."""
    folder, output = trained
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 5, N_ITERATIONS]
    assert (folder / "checkpoints" / f"checkpoint_{N_ITERATIONS:09d}").is_dir()
    assert "cartpole: backend cpu, 8 environments, 10 iterations of 64 env steps, seed 3" in output
    assert f"run folder: {folder}" in output
    assert f"finished after 10 of 10 iterations, {N_ITERATIONS * 64} env steps; checkpoint saved" in output
    told = [line.split(":", 1)[1] for line in output.splitlines() if line.startswith(("  evaluate:", "  resume:"))]
    assert len(told) == 2
    for command in told:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "warpdrive_min"]
        more = ["--iterations", "1", "--results-dir", tmp_path / "more"] if "train" in words else []
        run(*words[3:], *more)


def test_train_resumes_the_latest_run(tmp_path):
    """`latest` resumes the last saved run of the run config.

    With `--results-dir` it is that run.
    """
    for name in ("first", "second"):
        train(tmp_path, "--results-dir", name, "--iterations", "2")
    for more, name in (([], "second"), (["--results-dir", "first"], "first")):
        result = train(tmp_path, "--resume", "latest", "--iterations", "1", "--quiet", *more)
        folder = tmp_path / "single_cartpole" / "experiments" / name
        assert result.output == f"{folder}\n", "quiet: nothing else"
        assert (folder / "checkpoints" / "checkpoint_000000003").is_dir()


def test_train_counts_the_iterations_of_this_call(tmp_path):
    """With `--iterations`, progress counts to the end of this call, not of the run."""
    result = train(tmp_path, "--iterations", "2")
    assert "iteration 1/2 " in result.output
    assert f"finished after 2 of the run's {N_ITERATIONS} iterations" in result.output


@pytest.mark.parametrize("by", ["latest", "its folder"])
def test_run_that_is_resumed_with_a_run_config_keeps_its_backend(by, tmp_path):
    """A run resumed with its run config keeps its backend.

    The file names `numba`; the run began on `cpu`.
    """
    file = run_config_path("cartpole")
    over = settings({**TINY, "saving.basedir": str(tmp_path)})
    first = run("train", "--config", file, "--backend", "cpu", *over, "--iterations", "1", "--quiet")
    where = "latest" if by == "latest" else first.output.strip()
    result = run("train", "--config", file, "--resume", where, *over, "--iterations", "1")
    assert "cartpole: backend cpu" in result.output


def test_train_writes_a_resumed_run_elsewhere_if_asked(trained, tmp_path):
    """A resumed run can write to another folder.

    The first one stays unchanged.
    """
    folder, _ = trained
    before = sorted((folder / "checkpoints").iterdir())
    run("train", "--resume", folder, "--results-dir", tmp_path / "other", "--iterations", "2", "-q",
                 "--set", "trainer.num_episodes=100")  # fmt: skip
    assert find_checkpoint(tmp_path / "other").name == "checkpoint_000000012"
    assert sorted((folder / "checkpoints").iterdir()) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_train_stops_between_iterations_on_a_signal(number, tmp_path, monkeypatch, capfd):
    """A signal is acknowledged; training ends after the iteration, saved."""
    update = Trainer.update

    def interrupted(trainer: Trainer) -> None:
        if trainer.iteration == 2:
            signal.raise_signal(number)
            assert "stopping and saving after this iteration" in capfd.readouterr().err
        update(trainer)

    handler = signal.getsignal(number)
    monkeypatch.setattr(Trainer, "update", interrupted)
    result = train(tmp_path, "--results-dir", "r", exits=128 + number)
    assert "stopped after 3 of 10 iterations" in result.output
    assert signal.getsignal(number) is handler
    folder = tmp_path / "single_cartpole" / "experiments" / "r"
    last = find_checkpoint(folder)
    assert last.name == "checkpoint_000000003"
    assert isinstance(result.exception, Stopped)
    assert saved() == f"last checkpoint: {last}; resume with `python -m warpdrive_min train --resume {folder}`"
    monkeypatch.undo()
    resumed = run("train", "--resume", folder)
    assert "resuming from" in resumed.output
    assert find_checkpoint(folder).name == "checkpoint_000000010"


def test_train_that_saved_nothing_says_how_to_start_again(tmp_path):
    """A run without checkpoints advises to start again.

    Neither output nor a taken name's error suggests resuming.
    """
    folder = tmp_path / "single_cartpole" / "experiments" / "r"
    how = f"start again after removing {folder}, or in another folder, as it has no checkpoint"
    with limited(2_500):
        result = train(tmp_path, "--results-dir", "r", values=TINY | {"saving.metrics_log_freq": 1}, exits=1)
    assert f"raise the limit and {how}" in result.output
    assert saved() == f"nothing was saved; {how}"
    result = train(tmp_path, "--results-dir", "r", exits=1)
    assert how in result.output
    shutil.rmtree(folder)
    train(tmp_path, "--results-dir", "r")


def test_train_takes_a_file_and_finds_its_environment(tmp_path):
    """`train` reads a run config, and finds its environment.

    The name in the file is the environment's, in WarpDrive's form too.
    """
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"name: single_cartpole\nenv: {{episode_length: 20}}\npolicy: {{mine: {{to_train: true}}}}\n"
        f"trainer: {{num_envs: 4, train_batch_size: 16, num_episodes: 2, env_backend: cpu}}\n"
        f"saving: {{basedir: {tmp_path}}}\n"
    )
    result = run("train", "--config", file, "--results-dir", "r", "--set", "trainer.env_backend=cpu")
    assert "cartpole: backend cpu, 4 environments, 2 iterations of 16 env steps" in result.output
    assert list(load_policies(tmp_path / "default" / "experiment" / "r").models) == ["mine"]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Enter a folder with an environment's module, and its run config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dim_pole", raising=False)
    (tmp_path / "dim_pole.py").write_text(
        "from warpdrive_min.envs import CartPole as _CartPole\n\n"
        "class DimPole(_CartPole):\n"
        "    name = 'DimPole'\n\n"
        "    def __init__(self, **config):\n"
        "        if config.pop('breaks', False):\n"
        "            raise RuntimeError('no pole')\n"
        "        super().__init__(**config)\n"
    )
    (tmp_path / "run_config.yaml").write_text(run_config_path("cartpole").read_text().replace("single_cartpole", "dim"))


@pytest.mark.parametrize("package", ["bench", "warpdrive_min.bench"])
def test_train_names_the_plot_command_of_the_installation(package, tmp_path, monkeypatch):
    """It needs no console script, which a checkout may lack."""
    monkeypatch.setattr(train_command, "bench_package", lambda: package)
    assert f"  plot:     python -m {package} plot {tmp_path}" in train(tmp_path, "--iterations", "2").output


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("target", ["dim_pole.py", "dim_pole:DimPole"])
def test_train_takes_an_environment_by_path_or_class(target):
    """It uses the run config next to the class; every printed command works."""
    over = settings(TINY)
    result = run("train", "-e", target, "--backend", "cpu", "--results-dir", "r", *over)
    assert f"{target}: backend cpu, 8 environments, 10 iterations of 64 env steps" in result.output
    folder = Path("runs", "dim", "experiments", "r")
    assert f"run folder: {folder}" in result.output
    assert f"  plot:     python -m bench plot {folder}\n" in result.output
    told = [
        line.split(":", 1)[1] for line in result.output.splitlines() if line.startswith("  ") and "plot:" not in line
    ]
    assert len(told) == 3
    for command in told:
        words = shlex.split(command)[3:]
        more = ["--steps", "2"] if "render" in words else []
        result = run(*(word.replace(".html", ".npz") for word in words), *more)
    for words in (
        ["evaluate", folder],
        ["train", "--resume", folder],
        ["render", "--policy", folder, "--out", "e.npz"],
    ):
        result = run(*words, exits=1)
        assert "unknown environment (got 'DimPole')" in result.output
        assert "give others as a path or module:Class" in result.output


@pytest.mark.usefixtures("outside")
def test_names_in_files_import_no_class():
    """A run config names shipped environments only; its module would run here."""
    file = Path("mine.yaml")
    file.write_text(run_config_path("cartpole").read_text().replace("single_cartpole", "dim_pole.py"))
    result = run("train", "--config", file, exits=1)
    assert "train.config: unknown environment (got 'dim_pole.py')" in result.output
    assert "dim_pole" not in sys.modules


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dim_pole.py", "--certify"],
            "train.certify: is for an environment that `verify` knows by name (got 'dim_pole",
        ),
        (["dim_pole.py", "--set", "env.breaks=true"], "dim_pole.py must accept the arguments {'episode_length': 500, "),
        (["dim_pole:Pole"], "dim_pole:Pole has no environment 'Pole' (known: CartPole, DimPole)"),
        (["missing.py:Pole"], "environment: "),
        (["empty"], "must be a package (got a folder without __init__.py)"),
    ],
)
def test_train_refuses_other_environments_in_a_line(arguments, message):
    """A missing class, a failing constructor, and certificates nobody could verify."""
    Path("empty").mkdir()
    result = run("train", "--backend", "cpu", "-e", *arguments, exits=1)
    assert message in result.output
    assert not Path("runs").exists()


@pytest.mark.usefixtures("outside")
def test_train_without_a_run_config_asks_for_one():
    """The message names the expected file and the option."""
    sys.path.remove(str(Path.cwd()))  # of the fixture: the file's folder joins the path
    file = Path("run_config.yaml").resolve()
    file.unlink()
    result = run("train", "-e", "dim_pole.py", exits=1)
    assert f"has no run config {file}; give one with --config FILE" in result.output


def test_train_takes_a_run_config_of_the_environment_by_name(tmp_path):
    """`--config ppo` is the file `run_config_ppo.yaml` of the environment."""
    words = ["--backend", "cpu", *settings({**TINY, "saving.basedir": str(tmp_path)}), "--iterations", "1", "--quiet"]
    result = run("train", "-e", "cartpole", "--config", "ppo", *words)
    assert Path(result.output.strip()).parent == tmp_path / "single_cartpole" / "ppo"
    result = run("train", "-e", "cartpole", "--config", "dqn", *words, exits=1)
    assert "cartpole has no run config" in result.output
    assert "(known: a2c, ppo)" in result.output


def test_train_starts_a_process_for_each_gpu(tmp_path, monkeypatch):
    """`train` starts one process per GPU, in one named folder."""
    started = []
    monkeypatch.setattr(train_command, "launch", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(time, "time", lambda: 12.5)
    monkeypatch.setattr(sys, "argv", ["warpdrive_min", "train", "-n", "2"])
    train(tmp_path, "-n", "2")
    assert started == [(2, ["train", "-n", "2", "--results-dir", "12"], "cpu")]
    assert not [path for path in tmp_path.rglob("*") if path.name == "12"], "the folder that was not used is gone"


def test_train_recommends_a_number_of_environments(tmp_path, monkeypatch):
    """`--auto-scale` prints recommended settings, and does not train."""
    monkeypatch.setattr(autoscale, "MAX_ENVS", 40)
    result = train(tmp_path, "--auto-scale")
    assert "40 environments fit into" in result.output
    chosen = result.output.split("recommended: ")[1].split()
    n_envs = int(chosen[1].removeprefix("trainer.num_envs="))
    assert n_envs in (16, 32)
    assert chosen == ["--set", f"trainer.num_envs={n_envs}", "--set", f"trainer.train_batch_size={8 * n_envs}"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "must say what"),
        ("--resume latest", 2, "must say what"),
        ("-e chess", 1, f"unknown environment (got 'chess'); known are {known(ENVS)}"),
        ("-e cartpol", 1, f"unknown environment (got 'cartpol'); did you mean cartpole? known are {known(ENVS)}"),
        ("-e cartpole --backend tpu", 1, "must be one of cpu, host, numba, pycuda"),
        ("-e cartpole --set seed", 1, "train.set: must be KEY=VALUE (got 'seed')"),
        ("-e cartpole --set trainer.sed=1", 1, "run config trainer.sed: is not a key"),
        ("-e cartpole --set policy.shared.lr.actor=1", 1, "(got 'policy.shared.lr'); its keys are in"),
        ("-e cartpole --set env.wind=1", 1, "cartpole.wind: is not a key (known are cart_mass"),
        ("-e cartpole --set env.cart_mass=-1", 1, "cartpole.cart_mass: must be greater than 0 (got -1"),
        ("--config missing.yaml", 1, "must be a file that can be read"),
        ("--resume missing", 1, "nothing there"),
        (f"--resume {'x' * 300}", 1, "x/checkpoints: cannot be read or written (File name too long); name another"),
        ("-e cartpole --auto-scale --iterations 3", 1, "train.iterations: cannot be used with --auto-scale"),
        ("-e cartpole --auto-scale --explain", 1, "train.explain: cannot be used with --auto-scale"),
        (f"-e cartpole --set trainer.seed={'1' * 5000}", 1, "trainer.seed: must be a valid integer"),
        (f"-e cartpole --set trainer.seed={'[' * 20000}", 1, "trainer.seed: must be a valid integer"),
        ("-e cartpole --set saving.basedir=/proc/none --iterations 1", 1, "saving.basedir: must be a folder in which"),
        ("-e cartpole --gpus 1000 --backend cpu", 1, "must have at most"),
        ("-e cartpole --iterations 0", 2, "must be greater than or equal to 1 (got 0)"),
        ("-e cartpole --iterations 1.5", 2, "must be a valid integer (got 1.5)"),
        ("-e cartpole --unfused", 1, "train.unfused: needs --trace FILE; leave --unfused out"),
        ("-e cartpole --trace a --explain", 1, "train.trace: needs a training run of one process"),
        ("-e cartpole --trace a --certify", 1, "train.certify: cannot be used with --trace"),
        ("-e cartpole --trace a --results-dir b", 1, "train.results-dir: cannot be used with"),
        ("-e cartpole --trace /proc/none/a", 1, "--trace: must be a file that can be written"),
        (f"-e cartpole --trace a --iterations {'9' * 20}", 1, "must be at most 1,000 with --trace"),
        ("-e cartpole --seed 1 --set trainer.seed=2", 1, "trainer.seed must be that of --seed, 1 (got 2)"),
        ("-e cartpole --backend cpu --set trainer.env_backend=host", 1, "of --backend, cpu (got 'host'); give one of"),
        ("-e cartpole -n 2 --backend cpu --set trainer.exact=true", 1, "has kernels in CUDA C"),
        ("-e cartpole --set saving.basedir=missing --resume latest", 1, "a run with a checkpoint in"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_train_errors_are_messages(words, code, message, tmp_path, monkeypatch):
    """Errors are one line: exit code 2 for usage, else 1."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "1000")
    result = run("train", *words.split(), exits=code)
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("backend", "member"), [("cpu", ()), ("host", ()), ("cpu", ("--population", "2"))])
def test_train_explains_its_paths(backend, member, tmp_path, monkeypatch):
    """`--explain` prints each policy's paths and reasons, without files."""
    monkeypatch.setattr(Trainer, "iterate", lambda self: pytest.fail("it trains"))
    values = settings({**TINY, "saving.basedir": str(tmp_path)})
    result = run("train", "-e", "cartpole", "--backend", backend, *values, *member, "--explain")
    lines = [line for line in result.output.splitlines() if not line.startswith("compiling ")]
    assert lines[0] == "policy shared:"
    assert {"  rollout: step by step", "  iteration: launch by launch"} <= set(lines)
    reason = f"trainer.fused_rollout is null, and backend {backend!r} does not run on a GPU"
    assert lines[lines.index("  rollout: step by step") + 1] == f"    one launch not used: {reason}"
    assert all(line.startswith(("  ", "policy ")) for line in lines)
    assert not list(tmp_path.iterdir())


def trace(
    folder: Path, backend: str, *more: str, name: str = "trace.json"
) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """Trace a small run; return the file and the names of its events by category."""
    values = settings({**TINY, "saving.basedir": str(folder / "runs")})
    run("train", "-e", "cartpole", "--backend", backend, *values, "--trace", folder / name, *more)
    assert [path.name for path in folder.iterdir()] == [name], "it saves nothing else"
    content = (folder / name).read_bytes()
    found = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    names: dict[str, set[str]] = {}
    for event in found["traceEvents"]:
        names.setdefault(event.get("cat", ""), set()).add(event["name"])
    return found, names


def test_train_traces_what_a_run_fuses(tmp_path):
    """A trace names iterations, phases and launches by what they fuse.

    A name that ends in .gz compresses it.
    """
    found, names = trace(tmp_path, "host", "--iterations", "2", name="trace.json.gz")
    ranges = names["user_annotation"]
    assert {name for name in ranges if name.startswith("iteration")} == {"iteration 3", "iteration 4"}
    update = "update (learning: one pass, in C++; Adam: kernel in C++)"
    phases = {"rollout: step by step", "act of shared", update, "forward + loss + backward: one pass, in C++"}
    launches = {"step: env step + reset", "draw", "record", "scan", "learn", "Adam: kernel in C++"}
    assert phases | launches <= ranges
    facts = found["warpdrive_min"]
    assert (facts["environment"], facts["kernels"]) == ("cartpole", "as in training")
    assert "learning: one pass, in C++" in facts["paths"]["shared"]


def test_unfused_trace_shows_phases_and_says_so(tmp_path):
    """`--unfused` runs forward, loss and backward separately; names and file say so."""
    found, names = trace(tmp_path, "host", "--unfused", "--iterations", "1")
    ranges = names["user_annotation"]
    assert {"iteration by separate kernels 3", "forward", "loss", "backward"} <= ranges
    assert not any("one pass" in name for name in ranges)
    facts = found["warpdrive_min"]
    assert facts["kernels"].startswith("separate (--unfused)")
    assert facts["config"]["policy"]["shared"]["model"]["fused"] is False


@pytest.mark.gpu
def test_trace_of_a_gpu_shows_graphs_and_their_kernels(tmp_path):
    """A graph is one range with its kernels; unfused, phases are ranges."""
    (tmp_path / "fused").mkdir()
    (tmp_path / "unfused").mkdir()
    _, names = trace(tmp_path / "fused", "pycuda")
    on_host = "rollout: one launch, CUDA graph"
    assert on_host in names["user_annotation"]
    assert on_host in names["gpu_user_annotation"], "the range is on the GPU's rows too"
    assert any(name.startswith("rollout_with_policy") for name in names["kernel"])
    _, names = trace(tmp_path / "unfused", "pycuda", "--unfused")
    assert {"rollout: step by step", "step: env step + reset", "record", "forward"} <= names["user_annotation"]
    assert {"step", "record"} <= names["kernel"]
    assert "rollout_with_policy" not in names["kernel"]


@pytest.mark.parametrize("explain", [(), ("--explain",)])
def test_train_keeps_what_a_resumed_run_is_of(trained, explain):
    """A resumed run keeps its seed, environment, sizes and GPUs.

    `--explain` refuses what the run would.
    """
    folder, _ = trained
    if explain:
        run("train", "--resume", folder, *explain)
    for more, message in (
        (["--seed", "4"], "a resumed run keeps its seed (got 4)"),
        (["-e", "acrobot"], "was trained in CartPole (got 'acrobot')"),
        (["--set", "trainer.num_envs=4"], "must be of this run's environment and sizes"),
        (["--set", "policy.shared.model.fc_dims=[4]"], f"checkpoint_{N_ITERATIONS:09d}"),
        (["--gpus", "2"], "train.gpus: a resumed run keeps its number of processes, 1 (got 2)"),
    ):
        result = run("train", "--resume", folder, *more, *explain, exits=1)
        assert message in result.output


# ------------------------------------------------------------------ standard output


def _full() -> TextIO:
    return Path("/dev/full").open("w")


def _without_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


OUTPUTS = {
    "full": (_full, "standard output: must be writable (got No space left on device); redirect it to another place\n"),
    "closed": (lambda: None, "standard output: must not be closed; redirect it to a file or to /dev/null\n"),
    "without reader": (_without_reader, ""),
}
COMMANDS = {
    "--help": 1,
    "evaluate {run} --backend cpu --episodes 2": 1,
    "evaluate {run} --backend cpu --episodes 2 --json": 1,
    "train --resume {run} --results-dir {out} --quiet": 1,
    "validate warpdrive_min.envs:CartPole --no-card --backend cpu --check flags": 2,
    "verify {run} --iterations 0": 5,
    "verify {run} --iterations 0 --json": 5,
    "new-env ring_walk {out}": 2,
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("state", OUTPUTS)
def test_standard_output_that_takes_nothing_is_a_line(state, words, trained, tmp_path, monkeypatch, capfd):
    """Unwritable standard output gives one line and the exit code.

    It is that of the command's other errors; no traceback follows at the exit.
    """
    make, said = OUTPUTS[state]
    output = make()
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(SystemExit) as caught:
        app(words.format(run=trained[0], out=tmp_path).split())
    monkeypatch.undo()
    if output is not None:
        output.close()  # as at exit: no unwritable text remains
    is_typers = state == "without reader" and "--help" in words
    assert caught.value.code == (1 if is_typers else COMMANDS[words])
    assert capfd.readouterr().err == said
    if state == "closed":
        assert not list(tmp_path.iterdir()), "nothing was done"


# ------------------------------------------------------------------ checkpoints of others

OLD = Path(__file__).with_name("checkpoints")
"""Checkpoints of an earlier release, without hashes in their headers."""
READERS = {
    "resume": lambda path, out: ("train", "--resume", path, "--results-dir", out / "run", "--iterations", "1"),
    "evaluate": lambda path, out: ("evaluate", path, "--backend", "cpu", "--episodes", "4"),
    "render": lambda path, out: ("render", "--policy", path, "--backend", "cpu", "--out", out / "episode.npz"),
}


@pytest.mark.parametrize("kind", ["run", "population"])
@pytest.mark.parametrize("reader", READERS)
def test_checkpoint_of_an_earlier_release_loads(reader, kind, tmp_path):
    """A checkpoint of an earlier release resumes and plays."""
    path = OLD / kind / "checkpoint_000000004"
    more = ("--set", "trainer.num_episodes=20") if reader == "resume" else ()
    run(*READERS[reader](path, tmp_path), *more)
    if reader == "resume":
        _, header = checkpoint.load(tmp_path / "run" / "checkpoints")
        assert (header.iteration, header.seed) == (5, 3)


# ------------------------------------------------------------------ evaluate


@pytest.mark.parametrize("backend", ["cpu", "host"])
def test_evaluate_scores_as_the_trainer_does(backend, trained):
    """`evaluate` gives the scores of the trainer's own evaluation."""
    folder, _ = trained
    result = run("evaluate", folder, "--backend", backend, "--episodes", "12", "--seed", "5", "--json")
    told = json.loads(result.output)
    found = find_policies(folder)
    assert told["checkpoint"] == str(found)
    _, header = checkpoint.load(found)
    config = RunConfig.from_dict(header.run_config)
    config = RunConfig.from_dict(
        {**header.run_config, "trainer": {**header.run_config["trainer"], "env_backend": backend}}
    )
    wrapper = EnvWrapper(CartPole(**config.env), num_envs=8, env_backend=backend, auto_reset=True)
    trainer = Trainer(wrapper, config, verbose=False)
    unlike = asdict(trainer.evaluate(12, seed=5)["shared"])
    trainer.load_checkpoint(found)
    assert told["policies"] == {"shared": asdict(trainer.evaluate(12, seed=5)["shared"])}
    assert told["policies"] != {"shared": unlike}, "the weights must make a difference"
    assert told["policies"]["shared"]["mean_return"] == told["policies"]["shared"]["mean_steps"] <= 20


def test_run_stands_for_its_best_checkpoint_but_goes_on_from_its_latest(trained, tmp_path):
    """`evaluate` and `render` use `best`; `train` resumes the latest."""
    folder = shutil.copytree(trained[0], tmp_path / "run")
    more = ("--set", "trainer.num_episodes=100", "--set", "saving.keep_best=false", "--iterations", "1")
    for latest in (N_ITERATIONS + 1, N_ITERATIONS + 2):
        run("train", "--resume", folder, *more)
        assert find_checkpoint(folder).name == f"checkpoint_{latest:09d}"
    told = json.loads(run("evaluate", folder, "--backend", "cpu", "--episodes", "2", "--json").output)
    assert (Path(told["checkpoint"]).name, told["iteration"]) == ("best", N_ITERATIONS)
    wanted, _ = checkpoint.load(folder / "checkpoints" / "best")
    assert torch.equal(
        load_policies(folder / "checkpoints").models["shared"].state_dict()["policy_head.weight"],
        wanted["policy/shared/model/policy_head.weight"],
    )


def test_evaluate_needs_a_checkpoint(tmp_path):
    """A folder without a checkpoint gives a one-line error.

    Standard output is empty.
    """
    result = run("evaluate", tmp_path, "--json", exits=1)
    assert result.stdout == ""
    assert result.stderr.startswith(f"checkpoint {tmp_path}: must be a folder with")
    assert result.stderr.count("\n") == 1


def test_evaluate_shows_a_table(trained):
    """By default, `evaluate` prints a table.

    With `--sampled` actions are drawn.
    """
    folder, _ = trained
    result = run("evaluate", folder / "checkpoints" / "best", "--episodes", "4", "--sampled", "--backend", "cpu")
    assert "environment CartPole" in result.output
    assert "greedy False" in result.output
    assert "4 episodes of at most 20 steps, sampled actions" in result.output
    assert "standard error" in result.output
    assert "shared" in result.output


# ------------------------------------------------------------------ render


def test_render_plays_the_trained_policy(trained, tmp_path):
    """`render` records the trained policy's likeliest actions."""
    folder, _ = trained
    out = tmp_path / "episode.npz"
    run("render", "--policy", folder, "--out", out, "--backend", "cpu", "--seed", "2", "--n-envs", "3")
    episode, model = Episode.load(out), load_policies(folder).models["shared"]
    assert episode.episode_length == 20, "the environment is that of the run"
    with torch.no_grad():
        likeliest = model.act(torch.from_numpy(episode["observations"])).argmax(-1)
    np.testing.assert_array_equal(episode["sampled_actions"][1:, :, 0], likeliest[:-1])
    assert episode.n_frames > 5


def test_render_draws_and_writes_a_page(trained, tmp_path):
    """`render --sampled` draws actions, and writes a page.

    Config changes and environment names work.
    """
    folder, _ = trained
    result = run("render", "cartpole", "--policy", folder, "--out", tmp_path / "episode.html", "--backend", "cpu",
                 "--sampled", "--config", "episode_length=6")  # fmt: skip
    assert "CartPole, 6 steps, truncated" in result.output
    assert (tmp_path / "episode.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "render.env: is required without a checkpoint"),
        (["cartpole", "--sampled"], "render.sampled: is for a trained policy"),
        (["--policy", "missing"], "unknown policy (got 'missing'); known are random, and paths"),
        (["acrobot", "--policy", "RUN"], "must be of the environment 'Acrobot'"),
        (
            ["--policy", "RUN", "--config", "wind=1"],
            "cartpole.wind: is not a key (known are cart_mass",
        ),
    ],
)
def test_render_errors_are_messages(arguments, message, trained, tmp_path):
    """Conflicting options give a one-line error."""
    words = [str(trained[0]) if word == "RUN" else word for word in arguments]
    result = run("render", *words, "--out", tmp_path / "episode.npz", "--backend", "cpu", exits=1)
    assert message in result.output
    assert not list(tmp_path.iterdir())
