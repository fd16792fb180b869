"""Lightning's trainer around ours: learning, checkpoints, callbacks, refused uses."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests import tutorial
from tests.training.builders import differences, everything, make_run, weights
from warpdrive_min.errors import CheckpointError, ConfigError
from warpdrive_min.training.loop import metrics as metrics_module
from warpdrive_min.training.ranks import World

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint  # noqa: E402

from warpdrive_min.training import lightning  # noqa: E402

pytestmark = pytest.mark.filterwarnings(  # of torch, at how Lightning walks through nested containers
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
)

PAGE = Path(__file__).parents[2] / "docs" / "lightning.md"
RETURN = "shared/mean_episodic_return"
EPOCH = 4
"""Iterations of an epoch."""
N_ITERATIONS = 10
"""Iterations of a run config: two epochs and a half."""


@pytest.fixture
def start(tmp_path):
    """Factory of equal runs, by default CartPole with PPO."""
    made = []

    def make(name="PPO", env_backend="host", n_envs=4, **settings):
        config = {"num_episodes": -(-N_ITERATIONS * n_envs * 6 // 9), **settings}  # of 9 steps, in rollouts of 6
        folder = str(len(made))
        run = make_run(
            name, env_backend, n_envs=n_envs, trainer=config, basedir=tmp_path, folder=folder, metrics_log_freq=EPOCH
        )
        assert run.n_iterations == N_ITERATIONS
        made.append(run)
        return run

    return make


def fit(module, *callbacks, ckpt_path=None, **options):
    """Train with a quiet Lightning trainer, and return it.

    By default it trains to the run config's end.
    """
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    trainer = pl.Trainer(
        callbacks=list(callbacks), **{"max_epochs": -1, "enable_checkpointing": saves, **quiet, **options}
    )
    trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def rows(run):
    """Return the rows that a run has written."""
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------ learning


@pytest.mark.parametrize(("name", "env_backend"), [("PPO", "cpu"), ("A2C", "host"), ("DDPG", "host")])
def test_module_learns_what_our_trainer_learns(name, env_backend, start):
    """The module learns what our trainer learns, bit by bit.

    Weights, moments, environments and counters after two epochs.
    """
    ours, theirs = start(name, env_backend), start(name, env_backend)
    before = weights(ours)
    ours.train(2 * EPOCH)
    trainer = fit(lightning.WarpDriveModule(theirs), max_epochs=2)
    assert (theirs.iteration, theirs.env_steps) == (ours.iteration, ours.env_steps) == (8, 8 * 4 * 6)
    assert (trainer.global_step, trainer.current_epoch) == (8, 2)
    assert not differences(everything(theirs), everything(ours))
    assert differences(weights(theirs), before) == sorted(before)


ENDS = {
    "run config, in the middle of an epoch": ({}, None, N_ITERATIONS),
    "return of the run config": ({"stop_return": 0.5}, None, EPOCH),
    "return that is high enough": ({}, {"stopping_threshold": 1.0}, EPOCH),
    "return that gets no better": ({}, {"min_delta": 1000, "patience": 1}, 2 * EPOCH),
}
"""Run config settings, early-stopping options, and the trained iterations."""


@pytest.mark.parametrize("end", ENDS)
def test_training_ends(end, start):
    """The run config or a callback ends training.

    Lightning's limits do not; callbacks act after an epoch.
    """
    settings, early, n_iterations = ENDS[end]
    run = start(**settings)
    callbacks = [EarlyStopping(RETURN, mode="max", **early)] if early else []
    trainer = fit(lightning.WarpDriveModule(run), *callbacks)
    assert run.iteration == trainer.global_step == n_iterations
    assert trainer.current_epoch == -(-n_iterations // EPOCH)
    assert run.is_finished == (early is None)
    assert run.has_reached_return == ("stop_return" in settings)


# ------------------------------------------------------------------ metrics


def test_metrics_are_logged_once_an_epoch(start, monkeypatch):
    """Metrics are logged once an epoch, with one device copy."""
    fetched, seen = [], []
    fetch = metrics_module.fetch
    monkeypatch.setattr(metrics_module, "fetch", lambda metrics: fetched.append(metrics) or fetch(metrics))

    class Seen(EarlyStopping):
        """Callback that reads where metric monitors do."""

        def on_train_epoch_end(self, trainer, pl_module):
            seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    run = start()
    trainer = fit(lightning.WarpDriveModule(run), Seen(RETURN))
    want = rows(run)
    assert [row["iteration"] for row in want] == [4, 8, 10]
    assert len(fetched) == len(seen) == 3
    for got, row in zip(seen, want, strict=True):
        assert got == pytest.approx(row, rel=1e-6)  # Lightning keeps float32
    assert trainer.progress_bar_metrics == {RETURN: pytest.approx(want[-1][RETURN], rel=1e-6)}


# ------------------------------------------------------------------ checkpoints


@pytest.mark.filterwarnings(  # a resumed run needs both
    "ignore:Using ModelCheckpoint with manual optimization:UserWarning",
    "ignore:Checkpoint directory .* exists and is not empty:UserWarning",
)
@pytest.mark.parametrize(("step", "when"), [(4, {"every_n_epochs": 1}), (3, {"every_n_train_steps": 3})])
@pytest.mark.parametrize("name", ["PPO", "DDPG"])
def test_checkpoint_resumes_to_the_bit(name, step, when, start, tmp_path):
    """A run resumes bit by bit from Lightning's checkpoint.

    The checkpoint is at an epoch's end or within one. Rows are compared too.
    """
    straight, resumed = start(name), start(name)
    keep_all = {"dirpath": tmp_path, "filename": "{step}", "save_top_k": -1, **when}
    fit(lightning.WarpDriveModule(straight), ModelCheckpoint(**keep_all))
    before, found = everything(resumed), []

    class Look(Callback):
        """Callback that inspects the run on resumption."""

        def on_train_start(self, trainer, pl_module):
            found.append((pl_module.run.iteration, differences(everything(pl_module.run), before)))

    module, saves = lightning.WarpDriveModule(resumed), ModelCheckpoint(**keep_all)
    trainer = fit(module, saves, Look(), ckpt_path=tmp_path / f"step={step}.ckpt")
    ((iteration, restored),) = found
    assert iteration == step
    assert set(weights(resumed)) <= set(restored)
    assert (resumed.iteration, trainer.global_step, trainer.current_epoch) == (10, 10, 3)
    assert not differences(everything(resumed), everything(straight))
    assert [row["iteration"] for row in rows(resumed)] == [each for each in (4, 8, 10) if each > step]


def test_best_checkpoint_is_that_of_the_best_return(start, tmp_path):
    """ModelCheckpoint saves the best return as plain data."""
    run, other = start(), start()
    saves = ModelCheckpoint(tmp_path / "saved", monitor=RETURN, mode="max", filename="{step}")
    fit(lightning.WarpDriveModule(run), saves)
    best = max(rows(run), key=lambda row: row[RETURN])
    assert saves.best_model_path.endswith(f"step={best['iteration']}.ckpt")
    found = torch.load(saves.best_model_path, weights_only=True)
    lightning.unpack(other, found)
    assert (other.iteration, other.env_steps) == (best["iteration"], best["env_steps"])
    other.train(N_ITERATIONS)
    assert not differences(weights(other), weights(run))


def test_checkpoint_of_something_else_is_refused(start):
    """A checkpoint of another run is refused, without changes.

    No run, another schema or number of environments.
    """
    run = start()
    before, own = everything(run), lightning.pack(run)
    for found, match in (
        ({"state_dict": {}}, r"must have the entry 'warpdrive_min' \(got \['state_dict'\]\)"),
        ({lightning.STATE: own | {"schema": 0}}, r"lightning: schema must be 1 \(got 0\); use the release that"),
        ({lightning.STATE: lightning.pack(start(n_envs=2))}, r"'n_envs': \(2, 4\)"),
    ):
        with pytest.raises(CheckpointError, match=match):
            lightning.unpack(run, found)
    assert not differences(everything(run), before)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
def test_page_runs(tmp_path, monkeypatch, capsys):
    """The page's two examples run.

    One stops early, one resumes from its best checkpoint.
    """
    monkeypatch.chdir(tmp_path)
    page: dict[str, object] = {}
    iterations = [0]
    blocks = [block for block in tutorial.blocks(PAGE) if block.language == "python"]
    assert len(blocks) == 2
    for block in blocks:
        exec(block.compiled(), page)
        run = page["module"].run
        iterations.append(run.iteration)
        assert iterations[-2] < iterations[-1] < run.n_iterations
        run.graceful_close()


# ------------------------------------------------------------------ refusals


def test_other_precision_is_refused(start):
    """Another precision is refused: it would override the run config's."""
    with pytest.raises(ConfigError, match=r"must be '32-true' \(got 'bf16-mixed'\); leave it out"):
        fit(lightning.WarpDriveModule(start()), precision="bf16-mixed")


def test_several_processes_are_refused(start):
    """Several processes are refused by one Lightning trainer."""
    run = start()
    run.world = World(rank=0, size=2)
    with pytest.raises(ConfigError, match=r"must train in one process \(got 2\)"):
        fit(lightning.WarpDriveModule(run))


def test_another_gpu_is_refused(start, monkeypatch):
    """Another GPU is refused.

    Lightning would select its GPU, and the run's kernels would be launched there.
    """
    run = start()
    monkeypatch.setattr(run.wrapper.cuda_data_manager, "device", torch.device("cuda", 1))
    module = lightning.WarpDriveModule(run)
    strategy = SimpleNamespace(root_device=torch.device("cuda", 0))
    module.trainer = SimpleNamespace(world_size=1, strategy=strategy, precision="32-true")
    with pytest.raises(ConfigError, match=r"environments, cuda:1 \(got cuda:0\); give Trainer\(devices=\[1\]\)"):
        module.setup("fit")
    strategy.root_device = torch.device("cuda", 1)
    module.setup("fit")


def test_missing_package_is_an_error_that_names_the_install_line(monkeypatch):
    """A missing package raises with the install line."""
    for name in ("lightning", *lightning.PACKAGES):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, lightning.__name__)
    with pytest.raises(ConfigError, match=r'pip install -e ".*\[lightning\]"'):
        importlib.import_module(lightning.__name__)


def test_package_is_that_of_the_program(monkeypatch):
    """A program with Lightning's old package gets matching classes."""
    old = ModuleType("pytorch_lightning")
    monkeypatch.setitem(sys.modules, old.__name__, old)
    assert lightning.package() is pl
    monkeypatch.delitem(sys.modules, pl.__name__)
    assert lightning.package() is old
