"""WarpDrive user's script. Arguments: folder of results, backend."""

import json
import sys
from pathlib import Path

from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv
from example_envs.tag_continuous.tag_continuous import TagContinuous
from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.training.trainers.trainer_a2c import TrainerA2C

TAG = {"num_taggers": 2, "num_runners": 3, "grid_length": 10.0, "episode_length": 8, "seed": 3}


def policy(algorithm):
    return {
        "to_train": True,
        "algorithm": algorithm,
        "vf_loss_coeff": 1,
        "entropy_coeff": [[0, 0.5], [200, 0.05]],
        "clip_grad_norm": True,
        "max_grad_norm": 0.5,
        "normalize_advantage": False,
        "normalize_return": False,
        "gamma": 0.98,
        "lr": 0.005,
        "model": {"type": "fully_connected", "fc_dims": [16, 16], "model_ckpt_filepath": ""},
    }


def train(name, env, policies, backend, policy_map):
    run_config = {
        "name": name,
        "env": {"episode_length": env.episode_length},
        "trainer": {"num_envs": 4, "num_episodes": 30, "train_batch_size": 80, "env_backend": "numba", "seed": 1},
        "policy": policies,
        "saving": {
            "metrics_log_freq": 2,
            "model_params_save_freq": 5000,
            "basedir": sys.argv[1],
            "name": name,
            "tag": backend,
        },
    }
    env_wrapper = EnvWrapper(env, num_envs=4, env_backend=backend)
    trainer = TrainerA2C(
        env_wrapper=env_wrapper,
        config=run_config,
        policy_tag_to_agent_id_map=policy_map,
        results_dir="run",
        verbose=False,
    )
    trainer.train()
    trainer.graceful_close()
    lines = [json.loads(line) for line in Path(trainer.save_dir, "results.json").read_text().splitlines()]
    assert lines[-1]["Iterations Completed"] == trainer.num_iters == trainer.perf_stats.iters
    assert trainer.perf_stats.steps == 80 * trainer.num_iters
    print(name, trainer.num_iters, *sorted(path.name for path in Path(trainer.save_dir).glob("*.state_dict")))


BACKEND = sys.argv[2]
env = TagContinuous(**TAG)
tag_policies = {"tagger": list(env.taggers), "runner": list(env.runners)}
train("tag_continuous", env, {"runner": policy("A2C"), "tagger": policy("PPO")}, BACKEND, tag_policies)
env = CUDATagGridWorld(num_taggers=4, grid_length=5, episode_length=8)
train("tag_gridworld", env, {"shared": policy("A2C")}, BACKEND, {"shared": list(range(5))})
env = CUDAClassicControlCartPoleEnv(episode_length=8)
train("single_cartpole", env, {"shared": policy("PPO")}, BACKEND, {"shared": [0]})
