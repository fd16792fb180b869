"""Exact training by several ranks: the bits of one process with all environments.

They use Gloo, or NCCL on GPUs. Run as a program, it is one rank, as started by `launch`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from envs import ENVS
from tests.support import by_night, needs_host
from tests.training import builders
from tests.training.builders import make_trainer, surroundings_of_ranks  # noqa: F401  (a fixture)
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.paths.exact.layers import share_of
from warpdrive_min.training.paths.exact.learning import ExactLearning
from warpdrive_min.training.ranks import World
from warpdrive_min.training.record import certificate
from warpdrive_min.training.scale.distributed import launch, process_group

pytestmark = needs_host
PROGRAM = "tests.training.test_exact_ranks"
N_ENVS, N_STEPS, N_ITERATIONS = 8, 24, 3
"""Environments of all ranks, steps of a rollout, iterations."""
MODEL = {"fc_dims": [12, 9], "activation": "tanh"}
NORMALISED = {"normalize_observations": True}
DEEP = {"fc_dims": [12, 9, 7], "activation": "relu"}
A2C = {**builders.A2C, "model": MODEL}
PPO = {**builders.PPO, "normalize_advantage": True, "target_kl": 0.05, "model": {**MODEL, "shared": False}}
RUNS = {
    "one pass": ("cartpole", A2C),
    "minibatches": ("cartpole", {**PPO, "normalize_rewards": True}),
    "layers": ("pendulum", {**A2C, "model": DEEP, "normalize_return": True}),
    "several agents": ("tag_continuous", {**PPO, "model": DEEP}),
    "normalised": ("cartpole", {**PPO, "normalize_rewards": True, "model": {**MODEL, **NORMALISED}}),
    "memory": (
        "cartpole",
        {**PPO, "model": {**MODEL, **NORMALISED, "type": "gru", "hidden_size": 5, "sequence_length": 6}},
    ),
    "critic": ("tag_continuous", {**A2C, "centralised_critic": MODEL}),
    "successes": ("tag_gridworld", {**PPO, "model": DEEP}),
    "replay": ("pendulum", {**builders.DDPG, "buffer_size": 500, "model": {"actor": MODEL, "critic": MODEL}}),
}
"""Environment and policy by what differs: each has its own way to share rows."""
CONFIGS = {
    "tag_continuous": {**builders.TAG, "episode_length": 9},
    "tag_gridworld": {"num_taggers": 2, "grid_length": 3, "episode_length": 40},
}
TRAINERS = {"successes": {"neg_pos_env_ratio": 0.1}}
LATE = ("one pass", "layers", "several agents", "normalised")
"""Nightly: other runs share rows of such updates, networks, agents and moments, too."""


def trained(name: str, backend: str, folder: Path, world: World) -> dict:
    """Train a run's part of one rank; return its state without the rank's own copies."""
    env, policy = RUNS[name]
    n_envs = N_ENVS // world.size
    trainer = make_trainer(
        ENVS[env](**CONFIGS.get(env, builders.CLASSIC)),
        {"shared": policy},
        backend,
        n_envs=n_envs,
        n_steps=N_STEPS,
        trainer={"exact": True, "max_rows": 300, **TRAINERS.get(name, {})},
        wrapper={"exact": True, "envs_before": world.rank * n_envs},
        basedir=folder,
        folder=name,
    )
    row = trainer.train(N_ITERATIONS)
    trainer.save_checkpoint()
    algorithm = trainer.groups["shared"].algorithm
    learning, weights = (getattr(algorithm, name, None) for name in ("_learning", "weights"))
    data = trainer.wrapper.cuda_data_manager
    found = {
        "shared": {name: tensor.detach().cpu().clone() for name, tensor in trainer._shared_state().items()},
        "environments": {name: data.tensor(name).cpu().clone() for name in ("observations", "rewards")},
        "hashes": certificate.point(trainer).tensors,
        "best": trainer.best_return,
        "explained": row.get("shared/explained_variance"),
        "share": 1.0 if weights is None else float(weights.mean()),
        "is_one_pass": isinstance(learning, ExactLearning),
    }
    trainer.graceful_close()
    return found


def main(folder: Path, backend: str, *names: str) -> None:
    """Train runs as a rank; write its results to ``folder``."""
    builders.build_quickly()
    with process_group(backend) as world:
        found = {name: trained(name, backend, folder, world) for name in names}
    torch.save(found, folder / f"{world.rank}.pt")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Callable[[str], dict]:
    """Return a function that trains a run in one process, on the CPU."""
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(lambda name: trained(name, "host", folder, World()))


@pytest.mark.parametrize(
    ("n_ranks", "backend", "names"),
    [
        (2, "host", [name for name in RUNS if name not in LATE]),
        by_night(2, "host", LATE),
        by_night(4, "host", RUNS),
        *(pytest.param(n, "pycuda", RUNS, marks=pytest.mark.gpu) for n in (2, 4)),
    ],
)
def test_any_number_of_ranks_gives_the_same_bits(n_ranks, backend, names, alone, tmp_path):
    """Two ranks and four (at night) have the bits of one rank.

    In each run some ranks have fewer rows of a sum than others, or none.
    """
    if backend == "pycuda" and torch.cuda.device_count() < n_ranks:
        pytest.skip(f"needs {n_ranks} GPUs")
    launch(n_ranks, [str(tmp_path), backend, *names], env_backend=backend, module=PROGRAM)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(n_ranks)]
    for name in names:
        want = alone(name)
        assert want["is_one_pass"] == (name in ("one pass", "minibatches"))
        assert (want["share"] < 1) == (name == "successes"), "some environments count"
        for found in (each[name] for each in ranks):
            assert not builders.differences(found["shared"], want["shared"]), name
            assert found["best"] == want["best"]
            assert found["explained"] == pytest.approx(want["explained"], abs=1e-5, nan_ok=True)
        assert ranks[0][name]["hashes"] == want["hashes"], "a certificate is that of one process"
        together = {key: torch.cat([each[name]["environments"][key] for each in ranks]) for key in want["environments"]}
        assert not builders.differences(together, want["environments"]), name


@pytest.mark.parametrize(("n_rows", "n_ranks", "together"), [(1, 4, 1), (192, 4, 1), (500, 2, 5), (200_000, 3, 7)])
def test_shares_divide_the_parts_of_one_rank(n_rows, n_ranks, together):
    """Ranks' shares are the rows in order, cut between parts of a sum."""
    alone = share_of(n_rows)
    shares = [share_of(n_rows, rank, n_ranks, together) for rank in range(n_ranks)]
    assert [row for share in shares for row in range(share.start, share.stop)] == list(range(n_rows))
    assert sum(share.n_parts for share in shares) == alone.n_parts == alone.all_parts
    assert {share.rows_of_a_part for share in shares} == {alone.rows_of_a_part}
    assert all(share.start % alone.rows_of_a_part == share.start % together == 0 or share.start == n_rows
               for share in shares)  # fmt: skip


def test_environments_must_be_numbered_over_ranks(tmp_path, monkeypatch):
    """A rank's wrapper must continue the numbers of the ranks before.

    Its random draws are then those of one process; other languages cannot do it.
    """
    run = {"trainer": {"exact": True}, "wrapper": {"exact": True}, "n_envs": 4, "basedir": tmp_path}
    monkeypatch.setattr(World, "of", lambda *given: World(1, 1))
    with builders.refused("run config trainer.exact", 0):
        make_trainer(ENVS["cartpole"](), {"shared": A2C}, "host", **run)
    with pytest.raises(ConfigError, match="envs_before: needs kernels in CUDA C"):
        make_trainer(ENVS["cartpole"](), {"shared": A2C}, "cpu", **{**run, "wrapper": {"envs_before": 4}})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
