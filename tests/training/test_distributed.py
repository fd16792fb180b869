"""Several ranks on the CPU: shared state, own state, deaths.

They use Gloo. Run as a program, it is one rank, as started by `launch`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed

from envs import CartPole
from tests.support import by_night
from tests.training.builders import build_quickly, make_trainer, surroundings_of_ranks  # noqa: F401  (a fixture)
from warpdrive_min import backends
from warpdrive_min.backends import pycuda_driver
from warpdrive_min.backends.base import Availability
from warpdrive_min.errors import CheckpointError, ConfigError, TrainingError
from warpdrive_min.processes import is_rank
from warpdrive_min.stopping import NOTHING_SAVED, SIGNALS, Stopped, clean_up_on_signal, stoppable
from warpdrive_min.training.models.normalisation import Moments, RunningMoments
from warpdrive_min.training.paths import captured
from warpdrive_min.training.ranks import World, checksum
from warpdrive_min.training.scale import distributed as distributed_runs
from warpdrive_min.training.scale.distributed import launch, process_group
from warpdrive_min.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.training.test_distributed"
N_ENVS, N_STEPS, EPISODE_LENGTH, N_ITERATIONS = 4, 8, 16, 6
PPO = {"algorithm": "PPO", "n_epochs": 2, "n_minibatches": 2, "target_kl": 3e-4, "lr": 1e-2}
A2C = {"algorithm": "A2C", "clip_grad_norm": False}
NORMALISED = {**A2C, "normalize_rewards": True, "model": {"fc_dims": [8], "normalize_observations": True}}
GRU = {**PPO, "model": {"type": "gru", "fc_dims": [8], "hidden_size": 4}}


@contextlib.contextmanager
def training(folder: Path, name: str, policy: dict, backend: str = "host", **trainer) -> Iterator[Trainer]:
    """Yield a tiny trainer in ``folder/CartPole/test/name``."""
    n_episodes = N_ITERATIONS * N_ENVS * N_STEPS // EPISODE_LENGTH
    made = make_trainer(
        CartPole(episode_length=EPISODE_LENGTH),
        {"shared": {"to_train": True, "model": {"fc_dims": [16]}, **policy}},
        backend,
        n_envs=N_ENVS,
        n_steps=N_STEPS,
        seed=5,
        folder=name,
        basedir=folder,
        trainer={"num_episodes": n_episodes, **trainer},
        name="CartPole",
        tag="test",
        model_params_save_freq=2,
    )
    try:
        yield made
    finally:
        made.graceful_close()


# ------------------------------------------------------------------ tasks of a rank


def main(task: str, folder: Path, backend: str = "host") -> None:
    """Do a task as a rank; write its result to ``folder``."""
    build_quickly()
    n_threads = torch.get_num_threads()
    with process_group(backend) as world:
        found = TASKS[task](world, folder, backend) | {"threads": (n_threads, torch.get_num_threads())}
    torch.save(found | {"left": threads_of_gloo()}, folder / f"{task}_{world.rank}.pt")


def threads_of_gloo() -> list[str]:
    """Return the names of Gloo's threads, where the system reports them."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def work(world: World, folder: Path, backend: str) -> dict:
    """Train, resume a dead rank's run, and drift apart.

    It also stops at a return.
    """
    found: dict = {"world": world, "of": World.of(), "is_rank": is_rank(), "within": threads_of_gloo()}

    with training(folder, "gradient", A2C) as trainer:
        trainer.train(1)
        found["gradient"] = trainer.groups["shared"].algorithm.optimiser.gradient.clone()
    found["has_compiler"] = "torch._dynamo" in sys.modules
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # imports much, as training on a GPU does

    with training(folder, "whole", PPO) as trainer:
        found["folder"] = trainer.folder
        found["row"] = trainer.train(1)
        found["observations"] = trainer.wrapper.cuda_data_manager.pull_data_from_device("observations")
        trainer.train()
        found["weights"] = weights(trainer)
        found["steps"] = float(trainer.groups["shared"].algorithm.state()["optimiser/step"])
        found["env_steps"], found["best_return"] = trainer.env_steps, trainer.best_return

    with training(folder, "killed", PPO) as trainer:
        trainer.load_checkpoint()
        found["resumed_at"] = trainer.iteration
        trainer.train()
        found["resumed"] = weights(trainer)

    for task, n_iterations in (("remembered", 3), ("recalled", 1)):
        with training(folder, "remembers", GRU) as trainer:
            if task == "recalled":
                trainer.load_checkpoint()
            trainer.train(n_iterations)
            found[task] = weights(trainer), trainer.groups["shared"].memory.state.clone()

    with training(folder, "normalised", NORMALISED) as trainer:
        group, found["seen"], found["returns"] = trainer.groups["shared"], [], []
        for _ in range(3):
            trainer.iterate()
            found["seen"].append(group.buffer.observations[:-1].flatten(0, 2).clone())
            found["returns"].append(group.algorithm._reward_scale._returns.flatten().clone())
        found["moments"] = {name: tensor.clone() for name, tensor in group.state().items()}

    with training(folder, "stopped", PPO, stop_return=11.0) as trainer:
        found["judged"] = []
        for ended in (((16, 1), (24, 3)), ((16, 1), (8, 1))):
            trainer.iterate()
            trainer.env_steps += 10**6  # so that each row of metrics has complete episodes
            plant(trainer, *ended[world.rank])
            row = trainer.log_metrics()
            found["judged"].append((row["shared/mean_episodic_return"], trainer.has_reached_return))

    with training(folder, "drifting", A2C) as trainer:
        trainer.train(2)
        if world.rank == 1:
            with torch.no_grad():
                trainer.groups["shared"].algorithm.optimiser.vector[3] += 1e-6
        with pytest.raises(TrainingError) as caught:
            trainer.train(1)
        found["drift"] = str(caught.value)
    return found


def plant(trainer: Trainer, total: float, n_episodes: int) -> None:
    """Make the recorder count ended episodes whose returns sum to ``total``."""
    sums = trainer.recorders[""]._sums
    for name, value in (("finished_return", total), ("finished_episodes", n_episodes)):
        sums[name].zero_()
        sums[name][0] = value


def die(world: World, folder: Path, backend: str) -> dict:
    """Lose a rank while the others continue."""
    with training(folder, "killed", PPO) as trainer:
        trainer.train(3)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.train()
    return {}


def fail(world: World, folder: Path, backend: str) -> dict:
    """Raise an error on one rank while the other waits."""
    if world.rank == 1:
        raise ConfigError("rank 1 has had enough")
    world.wait()
    return {}


def wait(world: World, folder: Path, backend: str) -> dict:
    """Wait for a rank that never comes, in a collective."""
    tell_process()
    if world.is_first:
        time.sleep(60)
    world.wait()
    return {}


def stop(world: World, folder: Path, backend: str) -> dict:
    """Wait for a signal, and clean up."""
    with stoppable(), clean_up_on_signal():
        try:
            tell_process()
            for _ in range(600):  # like a training loop: a sleep may miss a signal just before it
                time.sleep(0.1)
        except Stopped as stopped:
            (folder / f"stopped_{world.rank}").write_text(str(stopped.number))
            raise
    return {}


def tell_process() -> None:
    """Write a line with this process's id in one call.

    ``print`` may split it.
    """
    os.write(1, f"{os.getpid()}\n".encode())


def capture(world: World, folder: Path, backend: str) -> dict:
    """Train eagerly, then by a graph with the all-reduce.

    The graph is alive when the group ends.
    """
    found: dict = {}
    for mode in ("eager", "graph"):
        OPEN.append(training(folder, mode, PPO, backend, mode=mode))
        trainer = OPEN[-1].__enter__()
        trainer.train()
        found[mode] = weights(trainer)
    device = trainer.wrapper.cuda_data_manager.device
    return found | {"device": device.index, "capture_s": trainer._update.capture_s}


OPEN: list = []
"""Trainers that live as long as the process."""


TASKS = {"work": work, "die": die, "fail": fail, "wait": wait, "stop": stop, "capture": capture}


def weights(trainer: Trainer) -> torch.Tensor:
    """Return all weights as one vector, on the CPU."""
    return trainer.groups["shared"].algorithm.optimiser.vector.detach().cpu().clone()


# ------------------------------------------------------------------ tests


def run(task: str, folder: Path, backend: str = "host") -> list[dict]:
    """Run a task on two ranks and return each one's result."""
    launch(2, [task, str(folder), backend], env_backend=backend, module=PROGRAM)
    return [torch.load(folder / f"{task}_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Folder of all runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def killed(folder) -> str:
    """Output of a run whose rank is killed after three iterations."""
    with pytest.raises(TrainingError) as caught:
        run("die", folder)
    return str(caught.value)


@pytest.fixture(scope="module")
def worked(folder, killed) -> list[dict]:
    """Training results of two ranks, from a single start."""
    return run("work", folder)


def test_ranks_know_their_world(worked):
    """Each rank has its number and share of the threads."""
    assert [found["world"] for found in worked] == [found["of"] for found in worked] == [World(0, 2), World(1, 2)]
    assert all(found["is_rank"] for found in worked)
    assert not is_rank()
    for found in worked:
        of_machine, own = found["threads"]
        assert own == max(1, of_machine // 2)


def test_closed_group_leaves_no_thread_that_could_crash_the_end(worked):
    """A closed group leaves no thread of Gloo.

    Such a thread could crash the exit, though optimisers imported much before it.
    """
    for found in worked:
        assert bool(found["within"]) == Path("/proc/self/task").exists()
        assert found["left"] == []


def test_training_on_a_cpu_does_not_import_the_compiler_of_torch(worked):
    """Training on a CPU does not import torch's compiler.

    It would cost a second of each start, and nothing there needs it.
    """
    assert not any(found["has_compiler"] for found in worked)


def test_gradient_of_two_ranks_is_that_of_one_process_which_plays_both(worked, tmp_path, monkeypatch):
    """Two ranks' gradient is the mean of their own gradients.

    One process plays both ranks for the comparison.
    """
    alone = []
    for rank in range(2):
        # One process with the rank's seeds and no group.
        monkeypatch.setattr(World, "of", lambda *given, rank=rank: World(rank, 1))
        with training(tmp_path, f"rank_{rank}", A2C) as trainer:
            trainer.train(1)
            alone.append(trainer.groups["shared"].algorithm.optimiser.gradient)
    assert not torch.allclose(*alone, rtol=0.1), "each has played its own episodes"
    want = (alone[0] + alone[1]) / 2
    for found in worked:
        torch.testing.assert_close(found["gradient"], want, rtol=1e-6, atol=1e-8)


def test_weights_stay_equal_to_the_bit_while_environments_differ(worked):
    """Ranks' weights are bit-identical while their environments differ.

    Six PPO iterations with skipped steps (target_kl).
    """
    first, second = worked
    assert torch.equal(first["weights"], second["weights"])
    assert not (first["observations"] == second["observations"]).all(axis=(1, 2)).any()
    assert first["steps"] == second["steps"]
    assert N_ITERATIONS < first["steps"] < N_ITERATIONS * 4, "target_kl must have ended some updates early"


def test_metrics_are_those_of_all_ranks(worked):
    """Ranks report equal metrics over all steps, in one folder."""
    first, second = (
        {key: value for key, value in found["row"].items() if not key.endswith(("_s", "seconds"))} for found in worked
    )
    assert first == pytest.approx(second, nan_ok=True, rel=0, abs=0)
    assert first["env_steps"] == 2 * N_ENVS * N_STEPS
    for found in worked:
        assert found["env_steps"] == 2 * N_ENVS * N_STEPS * N_ITERATIONS
        assert found["best_return"] == worked[0]["best_return"] is not None
        assert found["folder"] == worked[0]["folder"]


def test_stop_return_stops_all_ranks_together(worked):
    """A stop return is checked against all ranks' episodes."""
    for found in worked:
        assert found["judged"] == [(10.0, False), (12.0, True)]


def test_ranks_that_drift_apart_are_an_error_at_the_next_log(worked):
    """One differing weight raises on all ranks.

    The error names rank and tensor, at the next log.
    """
    for found in worked:
        assert "on rank 1 than on rank 0" in found["drift"]
        assert "policy/shared/model/" in found["drift"]


def test_checksum_sees_one_bit_and_a_swap():
    """The checksum differs for other bits and another order.

    Bytes 1, 2 give 1 * 1 + 2 * 3 = 7.
    """
    assert checksum(torch.tensor([1, 2], dtype=torch.uint8)) == 7
    values = torch.tensor([1.0, 2.0, 3.0])
    others = [values.flip(0), values.nextafter(torch.tensor(torch.inf)), values * torch.tensor([1, 1, -1])]
    assert len({int(checksum(each)) for each in (values, *others)}) == 4
    assert checksum(values[0]) == checksum(values[:1])


def test_checkpoint_of_two_ranks_is_refused_by_one(worked, tmp_path):
    """Another number of ranks cannot resume, but can load weights."""
    saved = worked[0]["folder"] / "checkpoints"
    with training(tmp_path, "alone", PPO) as trainer:
        with pytest.raises(CheckpointError, match=r"'ranks': \(2, 1\)"):
            trainer.load_checkpoint(saved)
        trainer.load_checkpoint(saved, weights_only=True)
        assert torch.equal(weights(trainer), worked[0]["weights"])


def test_run_goes_on_after_a_rank_was_killed(killed, worked):
    """After a rank is killed, both ranks resume without a difference.

    The error names the dead rank.
    """
    assert re.search(r"none of 2 ranks may fail \(got .*rank 1: process \d+, SIGKILL[;']", killed)
    for found in worked:
        assert found["resumed_at"] == 2, "the latest checkpoint"
        assert torch.equal(found["resumed"], found["weights"])


@pytest.mark.parametrize(("rows", "moments"), [("seen", "model/fc.normaliser."), ("returns", "algorithm/rewards/")])
def test_ranks_normalise_by_the_rows_of_all(worked, rows, moments):
    """Ranks' moments equal those of one process with all rows.

    They are bit-identical on both ranks.
    """
    first, second = worked
    alone = RunningMoments(*first[rows][0].shape[1:])
    rollouts = list(zip(first[rows], second[rows], strict=True))
    assert any(not torch.equal(*of_each) for of_each in rollouts)
    for of_each in rollouts:
        alone.merge(Moments.of(torch.cat(of_each)))
    for name in ("mean", "variance", "count"):
        key = f"policy/shared/{moments}{name}"
        assert torch.equal(first["moments"][key], second["moments"][key])
        torch.testing.assert_close(first["moments"][key], getattr(alone, name), rtol=1e-6, atol=1e-8)


def test_ranks_remember_what_is_theirs(worked):
    """Ranks share recurrent weights, and each resumes its own state."""
    first, second = worked
    assert torch.equal(first["remembered"][0], second["remembered"][0])
    assert not torch.equal(first["remembered"][1], second["remembered"][1])
    for found in worked:
        for got, want in zip(found["recalled"], found["remembered"], strict=True):
            assert torch.equal(got, want)


def test_error_of_a_rank_ends_the_run_and_is_told(folder, tmp_path, capfd, monkeypatch):
    """An error of a rank ends all ranks.

    The error names rank and exit code, and no process remains.
    """
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    why = r"none of 2 ranks may fail \(got .*rank 1: process \d+, exit code 1, ConfigError: rank 1 has had enough[;']"
    with pytest.raises(TrainingError, match=why) as caught:
        run("fail", folder)
    assert "rank 0" not in str(caught.value), "it ended because the other one had"
    assert "rank 1 has had enough" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is handler
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def launched(task: str, folder: Path) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """Yield a launcher and its two ranks; kill it afterwards."""
    words = [sys.executable, "-m", PROGRAM, "launch", task, str(folder)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True) as launcher:
        assert launcher.stdout is not None
        try:
            yield launcher, [int(launcher.stdout.readline()) for _ in range(2)]
        finally:
            launcher.kill()


@pytest.mark.nightly
def test_ranks_end_with_the_process_that_launched_them(tmp_path):
    """Ranks end within 10 s after their launcher is killed.

    They may be in a collective.
    """
    with launched("wait", tmp_path) as (launcher, ranks):
        for rank in ranks:
            os.kill(rank, 0)
        launcher.kill()
        began = time.monotonic()
        assert launcher.stdout.read() == "", "the ranks, which share it, have ended"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "number",
    [number if number == signal.SIGTERM else by_night(number) for number in SIGNALS if number != signal.SIGINT],
)
def test_ranks_are_stopped_together(number, tmp_path):
    """A signal stops all ranks, which save; one line is printed.

    The same holds in a shell's background, where Ctrl-C is ignored.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with launched("stop", tmp_path) as (launcher, ranks):
        signal.signal(signal.SIGINT, before)
        launcher.send_signal(number)
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + number
    assert said == f"stopped by {signal.Signals(number).name}: {NOTHING_SAVED}\n"
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"stopped_0": "2", "stopped_1": "2"}


@pytest.mark.nightly
def test_two_groups_of_torchrun_train_as_eight_ranks(tmp_path):
    """Two launchers with four ranks each, as on two hosts, make one run.

    All ranks' environment steps are counted, once.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    group = f"--nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint {endpoint}".split()
    sets = f"--set trainer.num_envs=16 --set saving.basedir={tmp_path}".split()
    train = ["train", "-e", "cartpole", "--backend", "host", "--iterations", "2", *sets]
    command = [sys.executable, "-m", "torch.distributed.run", *group, "-m", "warpdrive_min", *train]
    groups = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    outputs = [each.communicate()[0] for each in groups]
    assert [each.returncode for each in groups] == [0, 0]
    n_steps = int(re.search(r"iterations of ([\d,]+) env steps", "".join(outputs))[1].replace(",", ""))
    assert f"finished after 2 of the run's 2,000 iterations, {2 * n_steps:,} env steps" in "".join(outputs)
    assert len(list(tmp_path.glob("*/*/*/metrics.jsonl"))) == 1


def test_joined_is_alone_without_torchrun():
    """Without torchrun there is one rank, and no group is opened."""
    with process_group("host") as world:
        assert world == World(0, 1)
        assert not distributed.is_initialized()


@pytest.fixture
def two_gpus(monkeypatch) -> list[object]:
    """Simulate two GPUs; return the calls made to torch."""
    asked: list[object] = []
    monkeypatch.setattr(pycuda_driver.PyCudaBackend, "availability", lambda backend: Availability(True))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(
        distributed, "init_process_group", lambda *args, **more: asked.append((*args, more["device_id"]))
    )
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: asked.append("closed"))
    for name, value in {
        "RANK": 5,
        "WORLD_SIZE": 8,
        "LOCAL_WORLD_SIZE": 4,
        "MASTER_ADDR": "a",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return asked


def test_joined_takes_the_gpu_of_its_local_rank_first(two_gpus, monkeypatch):
    """A rank selects its GPU before it opens the group.

    Rank 5, second on its machine, selects GPU 1.
    """
    monkeypatch.setenv("LOCAL_RANK", "1")
    own = torch.device("cuda", 1)
    with process_group("pycuda"):
        assert two_gpus == [own, ("nccl", own)]
    assert two_gpus[2:] == ["closed"]


def test_more_ranks_than_gpus_are_refused(two_gpus, monkeypatch):
    """More ranks than GPUs are refused before any start.

    The rank without a GPU refuses, too.
    """
    with pytest.raises(ConfigError, match=r"each of the 3 processes needs its own GPU \(got 2\)"):
        launch(3, [], env_backend="pycuda")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"needs its own GPU \(got 2\)"), process_group("pycuda"):
        pass
    assert two_gpus == [], "no GPU was touched"


@pytest.mark.parametrize("fails", [False, True])
def test_graphs_are_let_go_of_before_the_group_is_closed(fails, two_gpus, monkeypatch):
    """Graphs are destroyed before the group is closed.

    NCCL would wait for graphs; a failing rank closes nothing.
    """
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(captured, "capture", lambda backend, work: lambda: two_gpus.append("replayed"))
    part = captured.Captured(backends.get("host"), lambda: two_gpus.append("eager"), as_graph=True)
    monkeypatch.setattr(distributed, "destroy_process_group", part)
    with pytest.raises(ConfigError) if fails else contextlib.nullcontext(), process_group("pycuda"):
        part()
        part()
        if fails:
            raise ConfigError("on purpose")
    assert two_gpus[2:] == ["eager", "replayed"] + ["eager"] * (not fails), "eager again: the graph had gone"
    assert part._replay is None


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("backend", ["pycuda", "numba"])
def test_graph_holds_the_all_reduce(backend, tmp_path):
    """A captured update with all-reduce equals an eager one.

    It does on both ranks, and the ranks end.
    """
    first, second = run("capture", tmp_path, backend)
    assert (first["device"], second["device"]) == (0, 1)
    for found in (first, second):
        assert found["capture_s"] > 0
        torch.testing.assert_close(found["graph"], found["eager"], rtol=1e-4, atol=1e-6)
        assert torch.equal(found["graph"], first["graph"])


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        with stoppable(), clean_up_on_signal():
            launch(2, sys.argv[2:], env_backend="host", module=PROGRAM)
    else:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])


def test_joined_is_the_old_name_of_process_group() -> None:
    """The old name `joined` works, with a warning."""
    with pytest.warns(DeprecationWarning, match="joined is now process_group"), distributed_runs.joined("cpu") as world:
        assert world.size == 1
