"""Steps that write observations straight into their row of the batch do what steps and copies do."""

from __future__ import annotations

import pytest
import torch

from envs import ENVS
from tests.support import BACKENDS_HERE, SCENARIOS, is_simulated
from tests.training.builders import everything
from warpdrive_min import EnvWrapper
from warpdrive_min.training.trainer import Trainer


def trained(tmp_path, name, settings, backend, n_envs, n_steps):
    """Return whether the steps were direct, and all tensors of a run after two iterations."""
    wrapper = EnvWrapper(ENVS[name](**settings), num_envs=n_envs, env_backend=backend, auto_reset=True)
    config = {
        "trainer": {"num_envs": n_envs, "train_batch_size": n_envs * n_steps, "env_backend": backend, "seed": 1},
        "policy": {"all": {"to_train": True, "algorithm": "PPO", "n_minibatches": 1}},
        "saving": {"basedir": str(tmp_path), "sinks": []},
    }
    trainer = Trainer(wrapper, config, {"all": list(wrapper.env.action_space)}, verbose=False)
    trainer.train(2)
    return trainer.groups["all"].is_direct, everything(trainer)


@pytest.mark.parametrize("backend", BACKENDS_HERE)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_direct_steps_do_what_copies_do(tmp_path, monkeypatch, scenario, backend):
    """Weights, environments and statistics are the same to the bit, over ends of episodes, for every environment."""
    name, settings = SCENARIOS[scenario]
    n_envs, n_steps = (2, 2) if is_simulated(backend) else (8, 40)
    is_direct, got = trained(tmp_path, name, settings, backend, n_envs, n_steps)
    assert is_direct
    monkeypatch.setattr(EnvWrapper, "bound_step", lambda self, **arrays: None)
    is_direct, want = trained(tmp_path, name, settings, backend, n_envs, n_steps)
    assert not is_direct
    assert is_simulated(backend) or want["env/_episode_"].min() > 1, "episodes must end"
    assert [key for key in want if not torch.equal(got[key], want[key])] == []
