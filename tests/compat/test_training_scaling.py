"""WarpDrive's searches for the largest number, and several ranks."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from pathlib import Path

import pytest
import torch
from warp_drive.training.utils.distributed_train.distributed_trainer_numba import perform_distributed_training
from warp_drive.training.utils.vertical_scaler import perform_auto_vertical_scaling

from tests.compat.builders import policy, settings
from warpdrive_min.compat import scaling, scripts
from warpdrive_min.errors import ConfigError

CARTPOLE = functools.partial(scripts.setup_trainer_and_train, env_backend="cpu")


def run_config(folder: Path) -> dict:
    sizes = {"num_envs": 2, "num_episodes": 8, "train_batch_size": 10, "num_gpus": 2}
    own = {"name": "single_cartpole", "env": {"episode_length": 5}}
    return own | settings(folder, {"shared": policy()}, **sizes)


def test_vertical_scaling_takes_what_the_script_would_train(tmp_path, monkeypatch):
    """Scaling finds the number of environments without building a trainer.

    Steps per environment stay 5.
    """
    points = []
    with_little_memory = functools.partial(scaling.auto_scale, free_bytes=100_000, start=2, on_point=points.append)
    monkeypatch.setattr(scaling, "auto_scale", with_little_memory)
    config = run_config(tmp_path)
    given = copy.deepcopy(config)
    scaled = perform_auto_vertical_scaling(CARTPOLE, config, num_iters=1)
    assert config == given
    assert not list(tmp_path.iterdir())
    assert [point.num_envs for point in points][:2] == [2, 4]
    best = scaled["trainer"]["num_envs"]
    assert best in [point.num_envs for point in points]
    assert scaled["trainer"]["train_batch_size"] == 5 * best
    for key in ("num_envs", "train_batch_size"):
        scaled["trainer"][key] = config["trainer"][key]
    assert scaled == config


def test_vertical_scaling_needs_a_trainer():
    """A script that builds no trainer is an error."""
    with pytest.raises(ConfigError, match="must make a trainer of warp_drive"):
        perform_auto_vertical_scaling(lambda run_configuration, verbose: None, {})


@pytest.mark.nightly
def test_distributed_training_trains_in_processes_of_its_own(tmp_path):
    """Two ranks train in processes, and one of them writes."""
    scaling.perform_distributed_training(CARTPOLE, run_config(tmp_path), "run", env_backend="cpu")
    folder = tmp_path / "default/experiment/run"
    assert [path.name for path in folder.glob("results*")] == ["results_device_0.json"]
    lines = (folder / "results_device_0.json").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["Iterations Completed"] == 4
    assert last["shared"]["Current timestep"] == 80
    assert torch.load(folder / "shared_80.state_dict", weights_only=True)["vf_head.bias"].shape == (1,)
    assert pickle.loads(pickle.dumps(perform_distributed_training)).keywords == {"env_backend": "numba"}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_distributed_training_gives_each_process_a_gpu(backend, tmp_path):
    """Two ranks on two GPUs count their steps together."""
    on_gpu = functools.partial(scripts.setup_trainer_and_train, env_backend=backend)
    scaling.perform_distributed_training(on_gpu, run_config(tmp_path), "run", env_backend=backend)
    folder = tmp_path / "default/experiment/run"
    last = json.loads((folder / "results_device_0.json").read_text().splitlines()[-1])
    assert last["shared"]["Current timestep"] == 80


@pytest.mark.nightly
def test_distributed_training_raises_what_a_process_raised(tmp_path):
    """A rank's error ends the call with its message.

    WarpDrive prints it and continues.
    """
    config = run_config(tmp_path) | {"name": "chess"}
    config["trainer"]["num_gpus"] = 1
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="unknown environment"):
        scaling.perform_distributed_training(CARTPOLE, config, "run", env_backend="cpu")
