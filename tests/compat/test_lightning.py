"""WarpDrive's names for Lightning: calls, an epoch per iteration, callbacks."""

from __future__ import annotations

import json

import pytest
import torch

from envs import CartPole
from tests.compat.builders import policy, settings
from tests.training.builders import differences, everything, weights
from warpdrive_min import EnvWrapper
from warpdrive_min.compat.trainers import TrainerA2C
from warpdrive_min.constants import EPISODE
from warpdrive_min.errors import ConfigError

pytest.importorskip("lightning.pytorch")

from warpdrive_min.compat.lightning import CUDACallback, PerfStatsCallback, WarpDriveDataset, WarpDriveModule
from warpdrive_min.training.lightning import LIGHTNING

pytestmark = [
    pytest.mark.filterwarnings(  # of torch, at how Lightning walks through nested containers
        r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"
    ),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
]

N_ENVS, BATCH, LENGTH, N_EPISODES = 4, 24, 6, 20
N_ITERATIONS = N_EPISODES * LENGTH // BATCH


@pytest.fixture
def make(tmp_path):
    """Factory of equal modules or trainers, each with a folder."""
    made = []

    def make(kind):
        env = EnvWrapper(CartPole(episode_length=LENGTH), num_envs=N_ENVS, env_backend="host")
        sizes = {"num_envs": N_ENVS, "train_batch_size": BATCH, "num_episodes": N_EPISODES, "seed": 3}
        config = settings(tmp_path, {"shared": policy()}, **sizes)
        config["saving"]["model_params_save_freq"] = 4
        agents = {"shared": list(env.env.action_space)}
        made.append(kind(env, config, policy_tag_to_agent_id_map=agents, results_dir=str(len(made)), verbose=False))
        return made[-1]

    yield make
    for each in made:
        each.graceful_close()


def fit(module, *callbacks):
    """Train as WarpDrive's tutorial does, but quietly."""
    trainer = LIGHTNING.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=list(callbacks),
        max_epochs=N_EPISODES * LENGTH // BATCH,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
    return trainer


def test_module_learns_what_the_trainer_learns(make):
    """An epoch is an iteration, and weights equal the trainer's."""
    module, plain = make(WarpDriveModule), make(TrainerA2C)
    before = weights(plain)
    plain.train()
    trainer = fit(module)
    assert trainer.current_epoch == module.num_iters == N_ITERATIONS == 5
    assert not differences(weights(module.run), weights(plain))
    assert differences(weights(plain), before) == sorted(before)
    lines = (module.run.folder / "results.json").read_text().splitlines()
    assert [json.loads(line)["Iterations Completed"] for line in lines] == [2, 4, 5]
    files = {path.name for path in module.run.folder.glob("*.state_dict")}
    assert files == {f"shared_{4 * BATCH}.state_dict", f"shared_{5 * BATCH}.state_dict"}


def test_module_offers_what_scripts_ask_for(make):
    """Attributes are the run's; a missing one raises AttributeError."""
    module = make(WarpDriveModule)
    assert (module.training_batch_size, module.num_envs, module.policies_to_train) == (BATCH, N_ENVS, ["shared"])
    assert module.cuda_envs is module.run.wrapper
    assert module.current_timestep == {"shared": 0}
    states = module.fetch_episode_states(["state"])
    assert states["state"].shape == (LENGTH + 1, 1, 4)
    with pytest.raises(AttributeError, match="num_gpus"):
        _ = module.num_gpus


def test_cuda_callback_restarts_a_new_run_only(make):
    """The callback restarts environments in a new run only."""
    module = make(WarpDriveModule)
    callback = CUDACallback(module=module)
    episodes = module.cuda_envs.cuda_data_manager.tensor(EPISODE)
    before = episodes.clone()
    callback.on_train_start(None, module)
    assert torch.equal(episodes, before + 1)
    fit(module, callback)
    after = everything(module.run)
    callback.on_train_start(None, module)
    assert not differences(everything(module.run), after)


def test_perf_stats_callback_measures_and_prints(make, capsys):
    """The callback prints consistent times and rates at its interval."""
    module = make(WarpDriveModule)
    stats = PerfStatsCallback(batch_size=module.training_batch_size, num_iters=module.num_iters, log_freq=2)
    fit(module, stats)
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Speed")]
    assert titles == [f"Speed after iteration {n} of 5" for n in (2, 4, 5, 5)]
    assert (stats.iters, stats.steps) == (5, 5 * BATCH)
    assert 0 < stats.training_time < stats.total_time
    got = stats.get_perf_stats(with_fit=True)
    assert list(got) == [
        "Mean training time per iter (ms)",
        "Mean steps per sec (training)",
        "Mean total time per iter (ms)",
        "Mean steps per sec (total)",
    ]
    ms, per_s = list(got.values())[:2]
    assert ms / 1e3 * per_s == pytest.approx(BATCH)


@pytest.mark.parametrize("given", [{}, {"batch_size": 1}, {"batch_size": 1, "num_iters": 1, "log_freq": 0}])
def test_perf_stats_callback_needs_its_numbers(given):
    """A missing or non-positive number raises with its value."""
    with pytest.raises(ConfigError, match="needs batch_size, num_iters and log_freq of at least 1"):
        PerfStatsCallback(**given)


def test_dataset_makes_its_items():
    """The dataset makes items by index, as many as the batch size."""
    data = WarpDriveDataset(lambda batch_index: 10 * batch_index, batch_size=3)
    assert len(data) == 3
    assert list(data) == [0, 10, 20]
