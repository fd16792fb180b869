"""Resuming is bit-identical to an uninterrupted run.

`tests.bench.attack` kills runs.
"""

from __future__ import annotations

import numpy as np
import pytest

from envs import ENVS
from tests.environments.counter import Counter
from tests.training import builders
from tests.training.builders import A2C, CLASSIC, TAG, differences, everything, make_run, make_trainer, rows_of, weights
from warpdrive_min import DataFeed
from warpdrive_min.training.loop import checkpoint
from warpdrive_min.training.trainer import Trainer

ENVIRONMENTS = {
    "crowd": lambda: ENVS["tag_continuous"](**{**TAG, "neighbor_search": "grid"}),
    "pool": lambda: ENVS["cartpole"](**CLASSIC, reset_pool_size=4),
    "core's pool": lambda: Counter(pool_size=5),
    "core's reset, drawn at the start": lambda: Counter(random_start=True),
}


@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_any_environment_is_resumed(kind, auto_reset, tmp_path):
    """Environments of every kind resume bit by bit."""

    def make(**given):
        return make_trainer(ENVIRONMENTS[kind](), {"shared": A2C}, wrapper={"auto_reset": auto_reset}, **given)

    builders.require_that_it_goes_on(make, tmp_path)


class Drawn(Counter):
    """Counter with starts that depend on its creation.

    Environments without a seed do so.
    """

    n_made = 0

    def get_reset_pool_dictionary(self):
        feed = DataFeed()
        Drawn.n_made += 1
        starts = np.random.default_rng(Drawn.n_made).random((self.pool_size, self.num_agents), np.float32)
        feed.add_pool_for_reset("place_reset_pool", starts, reset_target="place")
        feed.add_pool_for_reset("label_reset_pool", np.zeros((self.pool_size, 1), np.int32), reset_target="label")
        return feed


def test_starts_that_were_drawn_are_in_the_checkpoint(tmp_path):
    """A resumed run keeps the starts of its first pool.

    Its new environments draw another one.
    """
    whole = make_trainer(Drawn(pool_size=5), {"shared": A2C}, basedir=tmp_path, model_params_save_freq=2)
    whole.train(4)
    second = make_trainer(Drawn(pool_size=5), {"shared": A2C}, basedir=tmp_path / "second")
    assert "env/place_reset_pool" in differences(everything(whole), everything(second))
    second.load_checkpoint(whole.folder / "checkpoints" / "checkpoint_000000002")
    second.train(2)
    assert not differences(everything(whole), everything(second))


def test_checkpoints_that_are_gone_back_behind_are_removed(tmp_path, monkeypatch):
    """Going back removes later checkpoints, by any path.

    The latest checkpoint is the restored one.
    """
    monkeypatch.chdir(tmp_path)
    trainer = make_run("A2C", basedir="runs", model_params_save_freq=1, keep_last=9)
    trainer.train(4)
    folder = tmp_path / trainer.folder / "checkpoints"
    trainer.load_checkpoint(folder / "checkpoint_000000002")
    assert checkpoint.latest(folder).name == "checkpoint_000000002"


def test_trainer_that_writes_no_files_removes_none(tmp_path, monkeypatch):
    """Going back keeps later checkpoints, and makes no folder."""
    monkeypatch.chdir(tmp_path)
    first = make_run("A2C", basedir=tmp_path, model_params_save_freq=1, keep_last=9)
    first.train(3)
    first.graceful_close()
    files = sorted(tmp_path.rglob("*"))
    for folder in (first.folder, None):
        reader = Trainer(first.wrapper, first.config, folder=folder, verbose=False, saves=False)
        reader.load_checkpoint(first.folder / "checkpoints" / "checkpoint_000000001")
        reader.train(1)
        assert reader.iteration == 2
        assert sorted(tmp_path.rglob("*")) == files


def test_run_that_is_taken_from_another_folder_leaves_that_alone(tmp_path):
    """A run resumed in another folder leaves the first unchanged.

    The new folder has the rows from there on.
    """
    first = make_run("A2C", basedir=tmp_path / "old", model_params_save_freq=1, keep_last=9)
    first.train(4)
    second = make_run("A2C", basedir=tmp_path / "new", model_params_save_freq=1)
    second.load_checkpoint(first.folder / "checkpoints" / "checkpoint_000000002")
    second.train(2)
    assert not differences(everything(first), everything(second))
    assert [row["iteration"] for row in rows_of(first)] == [1, 2, 3, 4]
    assert [row["iteration"] for row in rows_of(second)] == [3, 4]
    assert checkpoint.latest(first.folder / "checkpoints").name == "checkpoint_000000004"


@pytest.mark.parametrize("name", ["PPO", "DDPG"])
def test_weights_alone_can_be_loaded(name, tmp_path):
    """Weights alone load into a run of other sizes."""
    first = make_run(name, basedir=tmp_path / "first")
    first.train(3)
    path = first.save_checkpoint()
    second = make_run(name, basedir=tmp_path / "second", n_envs=2, n_steps=8)
    before = everything(second)
    second.load_checkpoint(path, weights_only=True)
    assert not differences(weights(first), weights(second))
    changed = differences(before, everything(second))
    assert changed
    assert all(key in weights(second) or key.endswith("/parameters") for key in changed), "one vector, two names"
    assert second.iteration == 0
    assert second.evaluate(3) == first.evaluate(3)
    second.train(2)
    assert differences(weights(first), weights(second))


def test_resumed_time_goes_on(tmp_path):
    """A resumed run's time continues from its checkpoint."""
    first = make_run("A2C", basedir=tmp_path)
    first._started -= 1000.0
    first.train(1)
    first.save_checkpoint()
    first.graceful_close()
    second = make_run("A2C", basedir=tmp_path)
    second.load_checkpoint()
    row = second.train(1)
    assert 1000 < row["seconds"] < 1300
    assert row["steps_per_s"] > 0
