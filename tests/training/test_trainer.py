"""Trainer: schedules, seeds, stops, refused settings, and CUDA graphs."""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from unittest.mock import Mock

import pytest
import torch

from envs import ENVS
from envs.classic_control.cartpole import CartPole
from tests.environments.clock import Clock
from tests.environments.counter import PythonCounter
from tests.support import is_simulated
from tests.training.builders import (
    A2C,
    CLASSIC,
    DDPG,
    FAST_OR_ON_GPU,
    MADE,
    PPO,
    RUNS,
    TAG,
    differences,
    everything,
    make_run,
    make_trainer,
    refused,
    rows_of,
    run_config,
    runs_here,
    weights,
)
from warpdrive_min import EnvWrapper
from warpdrive_min.dialect.layout import WarpDriveLayout
from warpdrive_min.errors import CheckpointError, ConfigError, DiskFullError, TrainingError
from warpdrive_min.training.build import BEST_SEED, derived_seed
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.loop.evaluation import Score, evaluate
from warpdrive_min.training.record.trained import find_policies, load_policies
from warpdrive_min.training.trainer import Trainer

# ------------------------------------------------------------------ schedules


def test_schedules_follow_the_steps_that_the_iteration_ends_at(tmp_path):
    """A schedule's value is that at the iteration's last step.

    Iteration k of 24 steps uses step 24 k: from 1 to 0 over 96 steps.
    """
    points = [[0, 1.0], [96, 0.0]]
    policy = {**A2C, "lr": points, "entropy_coeff": points, "vf_loss_coeff": 0.3}
    trainer = make_trainer(CartPole(**CLASSIC), {"shared": policy}, basedir=tmp_path)
    trainer.train(5)
    assert [row["env_steps"] for row in rows_of(trainer)] == [24, 48, 72, 96, 120]
    for name in ("lr", "entropy_coeff"):
        assert [row[f"shared/{name}"] for row in rows_of(trainer)] == [0.75, 0.5, 0.25, 0, 0]
        assert trainer.groups["shared"].algorithm.scheduled[name].item() == 0
    assert {row["shared/vf_loss_coeff"] for row in rows_of(trainer)} == {0.3}


def test_noise_follows_its_schedule(tmp_path):
    """DDPG's noise follows its schedule.

    It is large until step 24, then zero: actions are the actor's own.
    """
    sampler = {"params": {"scale": [[0, 3.0], [24, 3.0], [24, 3.0], [48, 0.0]]}}
    env, config, policies = RUNS["DDPG"]
    wrapper = EnvWrapper(ENVS[env](**config), num_envs=4, auto_reset=True)
    settings = run_config(policies, basedir=tmp_path) | {"sampler": sampler}
    trainer = Trainer(wrapper, settings, folder="run", verbose=False)
    group = trainer.groups["shared"]
    batch = group.buffer
    distances = []
    for _ in range(2):
        trainer.schedules.write(trainer.env_steps + trainer.steps_per_iteration)
        trainer.collect()
        with torch.no_grad():
            own = group.acting.act(batch.observations[:-1])
        distances.append((batch.actions - own).abs().max().item())
        trainer.env_steps += 24
    assert distances[0] > 0.1
    assert distances[1] < 1e-6, "but for how products of one step and of all are rounded"


# ------------------------------------------------------------------ the same seed


@pytest.mark.parametrize(
    ("backend", "name"), runs_here("PPO", "PPO, continuous", "shared", on_numba=["PPO", "PPO, continuous"])
)
def test_every_backend_learns_the_same(backend, name, tmp_path):
    """Each backend's first iteration has `cpu`'s losses.

    Numba's simulator has them too.
    """
    rows, n_steps = [], 2 if is_simulated(backend) else 12
    for where in ("cpu", backend):
        wrapper = {"exact": True, "auto_reset": True}
        trainer = make_run(name, where, wrapper=wrapper, n_envs=2, n_steps=n_steps, basedir=tmp_path / f"{len(rows)}")
        rows.append(trainer.train(1))
    for key in ("loss", "value_loss", "entropy", "gradient_norm", "mean_discounted_return"):
        assert rows[1][f"shared/{key}"] == pytest.approx(rows[0][f"shared/{key}"], rel=1e-4), key


# ------------------------------------------------------------------ the end of training


def test_training_ends_with_the_run_config(tmp_path):
    """Training ends with the run config, with a last checkpoint.

    16 episodes of 9 steps are 6 batches of 24.
    """
    trainer = make_trainer(
        CartPole(**CLASSIC), {"shared": A2C}, basedir=tmp_path, trainer={"num_episodes": 16}, metrics_log_freq=4
    )
    row = trainer.train()
    assert trainer.iteration == trainer.n_iterations == 6
    assert row["env_steps"] == 144
    assert [row["iteration"] for row in rows_of(trainer)] == [1, 4, 6]
    assert checkpoint.latest(trainer.folder / "checkpoints").name == "checkpoint_000000006"
    assert trainer.train() == {}, "there is nothing left"


@pytest.mark.parametrize("stop_return", [30.0, {"shared": 30.0}])
def test_training_stops_at_the_return_asked_for(stop_return, tmp_path):
    """Training stops at the stop return.

    Clock pays agent 1 10 and an action at 3 steps: above 30 from the start.
    """
    trainer = make_trainer(
        Clock(), {"shared": A2C}, basedir=tmp_path, trainer={"stop_return": stop_return}, model_params_save_freq=50
    )
    trainer.train()
    assert trainer.has_reached_return
    assert trainer.iteration == 1
    assert trainer.train() == {}
    assert checkpoint.latest(trainer.folder / "checkpoints").name == "checkpoint_000000001"
    trainer.load_checkpoint()
    trainer.train()
    assert trainer.iteration == 2, "taken from a checkpoint it goes on, until the next row"


def test_training_goes_on_below_the_return_asked_for(tmp_path):
    """Training continues until all policies reach their returns.

    One return is out of reach here.
    """
    agents = {"even": [0], "odd": [1]}
    trainer = make_trainer(
        Clock(),
        {"even": A2C, "odd": A2C},
        agents=agents,
        basedir=tmp_path,
        trainer={"stop_return": {"even": 99.0, "odd": 1.0}},
    )
    trainer.train(3)
    assert trainer.iteration == 3
    assert not trainer.has_reached_return


def scored(mean_return):
    return Score(mean_return, 0.0, mean_return, 1.0, 1)


def test_best_checkpoint_is_that_of_the_highest_evaluation(tmp_path, monkeypatch):
    """The best checkpoint has the highest evaluation.

    After a worse evaluation it stays; ties go to the later.
    """
    trainer = make_trainer(Clock(), {"shared": A2C}, basedir=tmp_path, model_params_save_freq=1)
    returns = [5.0, 8.0, 6.0, math.nan, 9.0, 9.0, 8.5]
    evaluated, best = [], []

    def evaluate(n_episodes, *, seed):
        evaluated.append((n_episodes, seed))
        return {"shared": scored(returns[trainer.iteration - 1])}

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    for _ in returns:
        trainer.iteration += 1
        trainer.save_checkpoint()
        _, header = checkpoint.load(trainer.folder / "checkpoints" / "best")
        best.append((header.iteration, header.best_return))
    assert best == [(1, 5), (2, 8), (2, 8), (2, 8), (5, 9), (6, 9), (6, 9)]
    assert [path.name for path in sorted((trainer.folder / "checkpoints").iterdir())] == [
        "best",
        *(f"checkpoint_00000000{number}" for number in (5, 6, 7)),
    ]
    assert len(set(evaluated)) == 1, "every checkpoint plays the same episodes"
    assert evaluated[0][0] == trainer.wrapper.n_envs


@pytest.mark.parametrize("name", ["A2C", "DDPG"])
def test_best_return_is_what_its_weights_evaluate_to(name, tmp_path):
    """`best` evaluates to the return in its header.

    A run's folder stands for its `best`.
    """
    trainer = make_run(name, basedir=tmp_path)
    trainer.train(2)
    trainer.save_checkpoint()
    trained = load_policies(trainer.folder, trainer.wrapper.env)
    assert (trained.path.name, trained.header.iteration) == ("best", 2)
    seed = derived_seed(trainer.seed, BEST_SEED)
    scores = evaluate(trained.wrapper("cpu"), trained.models, trained.policies, n_episodes=4, seed=seed)
    assert scores["shared"].mean_return == trained.header.best_return


@pytest.fixture
def slow_writes(monkeypatch):
    """Delay the end of each write, so that what does not wait is found out."""
    put = checkpoint._rename_into_place
    monkeypatch.setattr(checkpoint, "_rename_into_place", lambda *paths: (time.sleep(0.2), put(*paths)))


CALLS = {
    "train": lambda trainer: trainer.train(1),
    "save": Trainer.save_checkpoint,
    "load": Trainer.load_checkpoint,
    "wait": Trainer.wait_for_checkpoints,
    "close": Trainer.graceful_close,
}


@pytest.mark.parametrize("ends", [*CALLS, "error"])
def test_last_checkpoint_is_awaited(ends, tmp_path, monkeypatch, slow_writes):
    """Training, saving, loading, closing and errors wait; single iterations need not."""
    trainer = make_run("A2C", basedir=tmp_path, model_params_save_freq=1)
    folder = trainer.folder / "checkpoints"
    trainer.train(1, wait=False)
    assert not (folder / "checkpoint_000000001").exists()
    if ends != "error":
        CALLS[ends](trainer)
    else:
        monkeypatch.setattr(trainer, "iterate", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.train(1)
    assert checkpoint.latest(folder).name == f"checkpoint_{1 + (ends == 'train'):09d}"


@pytest.mark.parametrize("ends", ["train", "save", "wait", "close"])
def test_full_disk_in_the_thread_reaches_the_caller(ends, tmp_path, monkeypatch):
    """The error names the checkpoint; the trainer is closed all the same."""
    trainer = make_run("A2C", basedir=tmp_path, model_params_save_freq=1)
    trainer.train(1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copymode", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        if ends != "train":
            trainer.train(1, wait=False)
        with pytest.raises(DiskFullError, match="checkpoint_000000002: needs"):
            CALLS[ends](trainer)
    trainer.graceful_close()
    assert trainer._files._lock is None
    assert checkpoint.latest(trainer.folder / "checkpoints").name == "checkpoint_000000001"


@pytest.mark.parametrize("keeps_none", ["keep_best", "two learners"])
def test_run_without_a_best_checkpoint_stands_for_its_latest(keeps_none, tmp_path, monkeypatch):
    """Without a best checkpoint, the latest one represents the run.

    With keep_best false or several learners nothing is evaluated.
    """
    monkeypatch.setattr(Trainer, "evaluate", lambda *_, **__: pytest.fail("nothing is to be judged"))
    if keeps_none == "keep_best":
        trainer = make_trainer(Clock(), {"shared": A2C}, basedir=tmp_path, keep_best=False)
    else:
        agents = {"even": [0], "odd": [1]}
        trainer = make_trainer(Clock(), {"even": A2C, "odd": A2C}, agents=agents, basedir=tmp_path)
    trainer.iteration = 3
    trainer.save_checkpoint()
    assert [path.name for path in (trainer.folder / "checkpoints").iterdir()] == ["checkpoint_000000003"]
    assert find_policies(trainer.folder).name == "checkpoint_000000003"


def test_episode_metrics_are_those_of_the_episodes_that_ended(tmp_path):
    """Episode metrics are those of episodes that ended.

    Clock pays three times 10 plus actions: the row sums two rollouts' rewards.
    """
    trainer = make_trainer(Clock(), {"shared": A2C}, basedir=tmp_path, n_steps=4, metrics_log_freq=2)
    rewards = []
    for _ in range(2):
        trainer.train(1)
        rewards.append(trainer.groups["shared"].buffer.rewards.clone())
    first, second = rows_of(trainer)
    whole = torch.cat(rewards)
    assert first["shared/episodes"] == 4
    assert first["shared/mean_episodic_return"] == pytest.approx(whole[:3].sum((0, 2)).mean().item())
    assert second["shared/episodes"] == 4
    assert second["shared/mean_episodic_return"] == pytest.approx(whole[3:6].sum((0, 2)).mean().item())
    assert second["shared/mean_episodic_steps"] == 3
    assert second["shared/mean_agent_return"] == pytest.approx(second["shared/mean_episodic_return"] / 2)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("kind", [A2C, PPO])
def test_broken_rewards_stop_training(kind, every, tmp_path):
    """NaN rewards stop training, and the error has their place.

    The logging interval does not matter.
    """
    agents = {"fine": [0], "broken": [1]}
    trainer = make_trainer(
        Clock(episode_length=9, breaks_at=8),
        {"fine": {**A2C, "to_train": False}, "broken": kind},
        agents=agents,
        n_steps=4,
        basedir=tmp_path,
        metrics_log_freq=every,
    )
    where = "array 'rewards' of environment 'Clock' .*nan in environment 0, agent 1, after step 8, in iteration 2"
    with pytest.raises(TrainingError, match=f"policy 'broken': {where}"):
        trainer.train(5)
    for tensor in weights(trainer).values():
        assert torch.isfinite(tensor).all(), "the weights must be those before"


POLICIES = {"even": A2C, "odd": A2C}
ONE = {"shared": A2C}
TWO_ENVS = {"num_envs": 2, "train_batch_size": 24}
WRONG = {
    "agent missing": (Clock(num_agents=3), POLICIES, {"agents": {"even": [0], "odd": [1]}}, "policies", [0, 1]),
    "agent twice": (Clock(), POLICIES, {"agents": {"even": [0, 1], "odd": [1]}}, "policies", [0, 1, 1]),
    "unknown policy": (Clock(), POLICIES, {"agents": {"even": [0], "third": [1]}}, "policies", ["even", "third"]),
    "no map": (Clock(), POLICIES, {}, "policies", None),
    "number of environments": (Clock(), ONE, {"trainer": TWO_ENVS}, "run config trainer.num_envs", 2),
    "DDPG on choices": (Clock(), {"shared": DDPG}, {}, "run config policy.shared.algorithm", (3,)),
    "graph without a GPU": (Clock(), ONE, {"trainer": {"mode": "graph"}}, "run config trainer.mode", "graph"),
    "too few episodes": (Clock(), ONE, {"trainer": {"num_episodes": 7}}, "trainer.num_episodes", 21),
    "separate arrays": (Clock(), ONE, {"layout": WarpDriveLayout(separate=True)}, "placeholders", ["shared"]),
}
"""Environment, policies, arguments; the subject and value in the error."""


@pytest.mark.parametrize("case", WRONG)
def test_trainer_refuses(case, tmp_path):
    """Bad settings fail in the constructor, and leave no files.

    The error has key and value.
    """
    env, policies, given, what, got = WRONG[case]
    with refused(what, got):
        make_trainer(env, policies, basedir=tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_warpdrives_keywords_are_deprecated(tmp_path):
    """WarpDrive's keywords warn, and equal our own arguments."""
    policies = {"even": A2C, "odd": A2C}
    agents = {"even": [0, 2], "odd": [1]}
    config, layout = run_config(policies, basedir=tmp_path), WarpDriveLayout(separate=True)
    ours = make_trainer(Clock(num_agents=3, policies=agents), policies, agents=agents, layout=layout, basedir=tmp_path)
    with pytest.warns(DeprecationWarning, match="policy_tag_to_agent_id_map.*; use policies, layout and folder"):
        theirs = Trainer(
            EnvWrapper(Clock(num_agents=3, policies=agents), num_envs=4, auto_reset=True),
            config,
            policy_tag_to_agent_id_map=agents,
            create_separate_placeholders_for_each_policy=True,
            results_dir="theirs",
            verbose=False,
        )
    MADE.append(theirs)
    assert theirs.folder.name == "theirs"
    for run in (ours, theirs):
        run.train(2)
    assert not differences(everything(ours), everything(theirs))
    with pytest.raises(ConfigError, match="num_devices: must be that of the process group"):
        Trainer(EnvWrapper(Clock(), num_envs=4), run_config(ONE), num_devices=2)


def test_trainer_refuses_an_environment_without_kernels(tmp_path):
    """The trainer refuses an environment with only Python."""
    wrapper = EnvWrapper(PythonCounter(), num_envs=4)
    with refused("trainer"):
        Trainer(wrapper, run_config({"shared": A2C}, basedir=tmp_path), verbose=False)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("bonus", [3e38, -3e38])
def test_returns_beyond_float32_are_an_error(bonus, tmp_path):
    """Returns beyond float32 raise; normalised rewards can be learned from.

    The rewards themselves are finite.
    """
    trainer = make_trainer(Clock(bonus=bonus), {"shared": A2C | {"normalize_rewards": True}}, basedir=tmp_path)
    rule = r"policy 'shared': the return of an episode must be finite"
    with pytest.raises(TrainingError, match=rf"{rule} at iteration 1 \(got -?inf\); scale down the rewards"):
        trainer.train(1)
    with pytest.raises(TrainingError, match=rule):
        trainer.evaluate(4)


def test_new_run_does_not_write_into_another_ones_folder(tmp_path):
    """A new run does not extend another run's metrics."""
    make_run("A2C", basedir=tmp_path).train(1)
    other = make_run("A2C", basedir=tmp_path, trainer={"seed": 8})
    before = {path: path.read_bytes() for path in other.folder.iterdir()}
    with refused("metrics", f"{other.folder / 'metrics.jsonl'}, which already has rows"):
        other.train(1)
    assert {path: path.read_bytes() for path in other.folder.iterdir()} == before


@pytest.mark.parametrize("sinks", [(), ("csv",)], ids=str)
@pytest.mark.parametrize("starts", ["new", "from a checkpoint of another folder"])
def test_run_does_not_share_the_folder_of_another_one(starts, sinks, tmp_path):
    """A folder with checkpoints or rows is refused and unchanged."""
    first = make_run("A2C", basedir=tmp_path)
    first.train(1)
    first.save_checkpoint()
    other = make_run("A2C", basedir=tmp_path, sinks=sinks)
    if starts != "new":
        shutil.copytree(first.folder, tmp_path / "elsewhere")
        other.load_checkpoint(tmp_path / "elsewhere" / "checkpoints")
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    for write in (lambda: other.train(1), other.save_checkpoint):
        with refused(f"run {first.folder}", "its checkpoints"):
            write()
    assert {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()} == before


def test_runs_without_a_name_get_a_folder_each(tmp_path, monkeypatch):
    """Runs without a name get their own folders.

    They do even if started in the same second. A folder without output is removed.
    """
    monkeypatch.setattr(time, "time", lambda: 12.5)
    runs = [make_run("A2C", basedir=tmp_path, folder=None) for _ in range(3)]
    assert [run.folder.name for run in runs] == ["12", "13", "14"]
    runs[0].train(1)
    for run in runs:
        run.graceful_close()
    assert [path.name for path in runs[0].folder.parent.iterdir()] == ["12"]


@pytest.mark.parametrize(
    ("env", "policies", "more", "message"),
    [
        (Clock(num_agents=3), {"shared": A2C}, {}, r"must be of this run's environment and sizes.*'n_agents': .2, 3."),
        (CartPole(**CLASSIC), {"shared": A2C}, {}, r"must be of this run's environment.*'Clock'.*'.*CartPole'"),
        (Clock(), {"shared": A2C}, {"n_envs": 2}, r"n_envs.: .4, 2."),
        (Clock(), {"other": A2C}, {}, r"policies.*shared.*other"),
        (Clock(), {"shared": PPO}, {}, r"only in the run: policy/shared/own/shuffle"),
        (Clock(), {"shared": {**A2C, "model": {"fc_dims": [9]}}}, {}, r"of another shape or dtype: policy/shared/algo"),
    ],
    ids=["agents", "environment", "environments", "policies", "algorithm", "model"],
)
def test_trainer_refuses_a_checkpoint_of_another_run(env, policies, more, message, tmp_path):
    """Another run's checkpoint is refused, and changes nothing.

    The error names the mismatch.
    """
    saved = make_trainer(Clock(), {"shared": A2C}, basedir=tmp_path / "saved")
    saved.train(1)
    path = saved.save_checkpoint()
    trainer = make_trainer(env, policies, basedir=tmp_path / "new", **more)
    before = everything(trainer)
    with pytest.raises(CheckpointError, match=message):
        trainer.load_checkpoint(path)
    assert not differences(before, everything(trainer))


# ------------------------------------------------------------------ CUDA graphs


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_iterations_do_not_synchronise(mode, backend, name, tmp_path):
    """Captured iterations do not synchronise between metric rows."""
    trainer = make_run(
        name, backend, trainer={"mode": mode}, basedir=tmp_path, metrics_log_freq=100, model_params_save_freq=100
    )
    trainer.train(3)
    try:
        torch.cuda.set_sync_debug_mode("error")
        trainer.train(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.iteration == 6


@pytest.mark.parametrize("backend", FAST_OR_ON_GPU)
def test_a_rate_of_0_learns_nothing(backend, tmp_path):
    """A rate of 0 learns nothing, in a graph too.

    Each step reads the rate.
    """
    policy = {**A2C, "lr": [[0, 1e-2], [73, 1e-2], [73, 0.0]]}
    trainer = make_trainer(CartPole(**CLASSIC), {"shared": policy}, backend, basedir=tmp_path)
    trainer.train(2)
    start = weights(trainer)
    trainer.train(1)
    moved = weights(trainer)
    assert differences(start, moved)
    trainer.train(2)
    assert not differences(moved, weights(trainer))


@pytest.mark.gpu
def test_backends_on_a_gpu_train_the_same(tmp_path):
    """With exact kernels, both GPU backends train the same.

    `numba` and `pycuda` have equal weights after 3 iterations.
    """
    states = []
    for backend in ("numba", "pycuda"):
        trainer = make_trainer(
            ENVS["tag_continuous"](**TAG),
            {"shared": A2C},  # its gradient does not depend on the sampler's logarithms
            backend,
            wrapper={"exact": True, "auto_reset": True},
            basedir=tmp_path / backend,
        )
        trainer.train(3)
        states.append(weights(trainer))
    assert not differences(*states)
