"""Populations: each member learns as a separate run."""

from __future__ import annotations

import csv
import json
import logging
import math
import re

import numpy as np
import pytest
import torch

from envs import ENVS
from tests.support import run
from tests.training.builders import (
    A2C,
    CLASSIC,
    MADE,
    NORMALISED,
    ON_GPU,
    PPO,
    RUNS,
    SMALL,
    differences,
    everything,
    make_run,
    refused,
    rows_of,
    run_config,
    weights,
)
from warpdrive_min import EnvWrapper
from warpdrive_min.errors import TrainingError
from warpdrive_min.training.config import PopulationConfig, RunConfig
from warpdrive_min.training.models.members import weights_of
from warpdrive_min.training.models.parts import by_member
from warpdrive_min.training.record.trained import load_policies, load_population
from warpdrive_min.training.scale.population import MEMBERS_FILE, PopulationTrainer, replay_trainer

ROUNDING = 2e-5
"""Tolerance for other orders of sums.

Batched products, and sums over a member's rows, differ by some ulps. Adam's first steps divide by a root as small as
the gradient, and keep the difference.
"""
ALL = {
    **PPO,
    "lr": 1e-2,
    "normalize_advantage": True,
    "normalize_return": True,
    "normalize_rewards": True,
    "value_clip": 0.5,
    "target_kl": 0.5,
    "model": {**NORMALISED, "shared": False, "fused": False},
}
"""PPO with every setting that can differ between members."""


def make_population(size, run="PPO", backend="host", *, n_envs=4, seed=7, folder="run", population=None, **given):
    """Return a population's trainer for a run in `RUNS`, or a similar one."""
    env, env_config, policies = RUNS[run] if isinstance(run, str) else run
    given["trainer"] = {"seed": seed} | (given.get("trainer") or {})
    config = run_config(policies, n_envs, backend=backend, **given) | {
        "population": {"size": size, **(population or {})}
    }
    flags = {"auto_reset": True, "exact": given["trainer"].get("exact", False)}
    env = ENVS[env](**env_config) if isinstance(env, str) else env
    wrapper = EnvWrapper(env, num_envs=n_envs * size, env_backend=backend, **flags)
    MADE.append(PopulationTrainer(wrapper, config, folder=folder, verbose=False))
    return MADE[-1]


def of_member(trainer, member) -> dict[str, torch.Tensor]:
    """Return a copy of a member's weights, under ordinary names."""
    part = "policy/shared/model/"
    found = {name.removeprefix(part): tensor for name, tensor in weights(trainer).items()}
    return {part + name: tensor for name, tensor in weights_of(found, member).items()}


def rows_of_members(folder) -> list[dict[str, str]]:
    with (folder / MEMBERS_FILE).open() as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------ as a separate run


ALL_RUN = ("cartpole", CLASSIC, {"shared": ALL})


@pytest.mark.parametrize(
    ("run", "backend"),
    [
        *((run, "host") for run in ("A2C", "PPO, continuous", "shared, grid", ALL_RUN)),
        *(pytest.param(ALL_RUN, *backend.values, marks=backend.marks) for backend in ON_GPU),
    ],
    ids=lambda each: each if isinstance(each, str) else "all",
)
def test_first_member_is_the_ordinary_run(run, backend, tmp_path):
    """The first member equals the ordinary run within rounding.

    Alone or with others.
    """
    alone = make_run(run, backend, basedir=tmp_path / "alone")
    alone.train(4)
    want = weights(alone)
    for size in (1, 3) if run == "A2C" else (3,):
        population = make_population(size, run, backend, basedir=tmp_path / str(size))
        population.train(4)
        got = of_member(population, 0)
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            torch.testing.assert_close(got[name], tensor, rtol=ROUNDING, atol=ROUNDING, msg=f"{size}: {name}")
        rows = [row for row in rows_of_members(population.folder) if row["member"] == "0"]
        for got_row, want_row in zip(rows, rows_of(alone), strict=True):
            for name in ("mean_episodic_return", "episodes", "loss", "entropy", "explained_variance", "gradient_norm"):
                number = want_row[f"shared/{name}"]
                number = math.nan if number is None else number
                np.testing.assert_allclose(float(got_row[name]), number, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("run", "changed"),
    [
        ("A2C", {"lr": [0.01, 0.01, 0.3]}),
        (ALL_RUN, {"seeds": [7, 8, 100]}),
        (("pendulum", CLASSIC, {"shared": ALL}), {"clip_param": [0.2, 0.2, 0.9]}),
        (ALL_RUN, {"max_grad_norm": [0.5, 0.5, 1e-3]}),
        (ALL_RUN, {"entropy_coeff": [0.0, 0.0, 0.5], "vf_loss_coeff": [0.5, 0.5, 2.0]}),
        ("PPO", {"lr": [0.01, 0.01, 1e30]}),
    ],
    ids=["rate", "seed", "clip", "norm", "loss", "diverged"],
)
def test_members_do_not_know_each_other(run, changed, tmp_path):
    """Members are independent bit by bit.

    A member's rate, seed or infinite weights change no other.
    """
    population = {key: [values[0]] * 3 for key, values in changed.items() if key != "seeds"}
    seeds = {"seeds": [7, 8, 9]} if "seeds" in changed else {"seeds": [7]}
    first = make_population(3, run, population={**population, **seeds}, basedir=tmp_path / "first")
    second = make_population(3, run, population={**population, **seeds, **changed}, basedir=tmp_path / "second")
    for trainer in (first, second):
        for _ in range(3):
            trainer.iterate()
    for member in (0, 1):
        assert not differences(of_member(first, member), of_member(second, member))
    assert differences(of_member(first, 2), of_member(second, 2))


def test_parts_of_a_minibatch_add_up(tmp_path):
    """Parts of a minibatch sum to its gradient."""
    whole, parts = (
        make_population(2, "PPO", trainer={"max_rows": rows}, basedir=tmp_path / str(rows)) for rows in (None, 6)
    )
    for trainer in (whole, parts):
        trainer.iterate()
    for name, want in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], want, rtol=ROUNDING, atol=ROUNDING, msg=name)


TWO_LAYERS = {"fc_dims": [16, 8], "activation": "tanh", "shared": False}
KERNELS = ("cartpole", CLASSIC, {"shared": {**PPO, "model": TWO_LAYERS}})
"""A run whose networks are Triton kernels on a GPU."""


@pytest.mark.parametrize("backend", ON_GPU)
def test_kernels_have_the_gradients_of_batched_products(backend, tmp_path):
    """A kernel's gradients equal those of batched products.

    The first step is compared.
    """
    gradients = []
    for is_fused in (None, False):
        policy = {**A2C, "model": {**TWO_LAYERS, "fused": is_fused}}
        run = ("cartpole", CLASSIC, {"shared": policy})
        population = make_population(3, run, backend, basedir=tmp_path / str(is_fused))
        population.iterate()
        gradients.append(population.group.algorithm.optimiser.gradient)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "run", [ALL_RUN, "A2C", "PPO, continuous", KERNELS], ids=["all", "A2C", "continuous", "kernels"]
)
@pytest.mark.parametrize("backend", ["numba", "pycuda"])
def test_graph_trains_as_single_launches_do(backend, run, tmp_path):
    """Graph replays equal single launches bit by bit.

    They follow each schedule, and never synchronise.
    """
    table = {"lr": [0.01, [[0, 0.02], [200, 0.0]]]}
    runs = [
        make_population(
            4, run, backend, population=table, trainer={"mode": mode}, basedir=tmp_path / mode, metrics_log_freq=100
        )
        for mode in ("graph", "eager")
    ]
    for trainer in runs:
        trainer.train(3)
        try:
            torch.cuda.set_sync_debug_mode("error")
            trainer.train(3)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not differences(*map(everything, runs))


# ------------------------------------------------------------------ the table


def test_every_setting_has_every_seed():
    """Each setting is trained with each seed.

    Members of a setting are adjacent; schedules are entries like numbers.
    """
    config = PopulationConfig(size=6, lr=[0.1, [[0, 0.1], [10, 0.0]]], entropy_coeff=[0.0, 0.5])
    members = config.members(first_seed=40)
    assert [member.seed for member in members] == [40, 41, 42] * 2
    assert [member.setting["entropy_coeff"] for member in members] == [0.0] * 3 + [0.5] * 3
    assert members[5].setting["lr"] == [[0, 0.1], [10, 0.0]]
    assert [member.seed for member in PopulationConfig(size=2, seeds=[9, 4]).members(0)] == [9, 4]


def test_rates_follow_their_schedules(tmp_path):
    """Each member's schedule counts the member's own steps."""
    table = {"lr": [0.5, [[0, 1.0], [48, 0.0]]], "seeds": [3]}
    population = make_population(2, "A2C", population=table, basedir=tmp_path)
    population.train(2)
    rates = [
        (row["env_steps"], row["member"], row["setting"], float(row["lr"]))
        for row in rows_of_members(population.folder)
    ]
    assert rates == [("24", "0", "0", 0.5), ("24", "1", "1", 0.5), ("48", "0", "0", 0.5), ("48", "1", "1", 0.0)]


@pytest.mark.parametrize("size", [None, 2])
def test_a_replay_writes_no_files(size, tmp_path):
    """A run and a population train, log and save without a file."""
    config = run_config({"shared": PPO}, basedir=tmp_path / "runs") | {"population": {"size": size}}
    trainer = replay_trainer(ENVS["cartpole"](**CLASSIC), RunConfig.of(config))
    MADE.append(trainer)
    assert trainer.train(1)["iteration"] == 1
    assert trainer.save_checkpoint() is None
    assert isinstance(trainer, PopulationTrainer) == (size is not None)
    assert not list(tmp_path.iterdir())


def test_recurrent_models_and_other_trainers_are_refused():
    """Populations refuse recurrent models and other trainers.

    A model is known when it is built; a trainer of one agent does not take many.
    """
    with refused("run config population.size", 2):
        make_population(2, ("cartpole", CLASSIC, {"shared": {**PPO, "model": {**SMALL, "type": "gru"}}}))
    wrapper = EnvWrapper(ENVS["cartpole"](**CLASSIC), num_envs=4, env_backend="cpu", auto_reset=True)
    with refused("run config population.size", None):
        PopulationTrainer(wrapper, run_config({"shared": PPO}))
    with refused("run config trainer.num_envs", 4):
        PopulationTrainer(wrapper, run_config({"shared": PPO}) | {"population": {"size": 2}})


# ------------------------------------------------------------------ stopping


def test_members_that_reach_the_return_stop_one_by_one(tmp_path):
    """Members that reach the return stop one by one.

    A member's weights and moments stay, its rows end; the last one ends the run.
    """
    run = ("cartpole", {"episode_length": 30}, {"shared": {**ALL, "lr": 0.02}})
    population = make_population(4, run, n_steps=32, trainer={"stop_return": 25.0}, basedir=tmp_path)
    kept: dict[int, dict[str, torch.Tensor]] = {}
    while not population.is_finished and population.iteration < 60:
        population.train(1)
        for member in population.reached_at:
            kept.setdefault(member, of_member(population, member))
    assert population.has_reached_return
    assert len(set(population.reached_at.values())) > 1, "they stop at different times"
    for member, before in kept.items():
        assert not differences(before, of_member(population, member))
    rows = rows_of_members(population.folder)
    for member, steps in population.reached_at.items():
        assert max(int(row["env_steps"]) for row in rows if row["member"] == str(member)) == steps


def test_member_that_diverges_leaves_the_others(tmp_path, caplog):
    """A diverging member stops alone, with a warning.

    If all diverge, the run fails.
    """
    population = make_population(2, "PPO", population={"lr": [0.01, 1e38], "seeds": [1]}, basedir=tmp_path)
    with caplog.at_level(logging.WARNING):
        population.train(4)
    assert population.failed == [1]
    assert "shared/member 1" in caplog.text
    assert {row["member"] for row in rows_of_members(population.folder) if row["iteration"] == "4"} == {"0"}
    assert all(tensor.isfinite().all() for tensor in of_member(population, 0).values())
    both = make_population(2, "PPO", population={"lr": [1e38, 1e38], "seeds": [1]}, basedir=tmp_path / "both")
    with pytest.raises(TrainingError, match="all other members have failed"):
        both.train(4)


# ------------------------------------------------------------------ checkpoints, evaluation, commands


def test_population_is_resumed_to_the_bit(tmp_path):
    """A population resumes bit by bit, with unique rows.

    Stopped and best members and next draws are saved.
    """
    given = {"population": {"lr": [0.01, 1e38, 0.02], "seeds": [5]}, "model_params_save_freq": 2}
    whole = make_population(3, ALL_RUN, basedir=tmp_path / "whole", **given)
    whole.train(6)
    first = make_population(3, ALL_RUN, basedir=tmp_path / "parts", **given)
    first.train(5)
    first.graceful_close()
    second = make_population(3, ALL_RUN, basedir=tmp_path / "parts", seed=99, **given)
    second.load_checkpoint(first.folder / "checkpoints" / "checkpoint_000000004")
    assert second.failed == [1]
    second.train(2)
    assert not differences(everything(whole), everything(second))
    untimed = [
        [{key: value for key, value in row.items() if key != "seconds"} for row in rows_of_members(each.folder)]
        for each in (whole, second)
    ]
    assert untimed[0] == untimed[1]


def test_best_weights_of_each_member_are_kept(tmp_path):
    """Each member's best weights are saved and can be loaded.

    `load_policies` loads one member, by default the best; `load_population` all.
    """
    population = make_population(3, "PPO", basedir=tmp_path, model_params_save_freq=1)
    population.train(1)
    first = [of_member(population, member) for member in range(3)]
    population._best_returns[:] = torch.tensor([1e6, 0.0, 1e5])  # no later weights of two of them will be better
    population.train(2)
    last = of_member(population, 1)
    for member, want in ((None, first[0]), (2, first[2]), (1, last)):
        trained = load_policies(population.folder, ENVS["cartpole"](**CLASSIC), member)
        got = {f"policy/shared/model/{name}": tensor for name, tensor in trained.models["shared"].state_dict().items()}
        assert not differences(got, want)
    everyone = load_population(population.folder, ENVS["cartpole"](**CLASSIC))
    assert not differences(weights_of(everyone.models["shared"].state_dict(), 1), trained.models["shared"].state_dict())
    with refused("member", 3):
        load_policies(population.folder, ENVS["cartpole"](**CLASSIC), 3)


@pytest.mark.parametrize("run", ["PPO", KERNELS], ids=["one layer", "as kernels know it"])
def test_members_play_with_their_own_weights(run, tmp_path):
    """Members play with their own weights, in their environments."""
    population = make_population(2, run, basedir=tmp_path)
    with torch.no_grad():
        for bias, value in ((0, 0.0), (1, 100.0)):
            population.network.members.policy_head.bias[bias, 1] = value  # member 1 always pushes to one side
        population.network.members.policy_head.weight.zero_()
    observations = torch.randn(8, 1, 4)
    heads = by_member(population.network.act(observations), 2, 0)
    assert (heads[1, ..., 1] - heads[0, ..., 1] == 100.0 - 0.0).all()
    scores = population.evaluate(20)
    assert scores["0"].mean_return != scores["1"].mean_return
    assert list(scores) == ["0", "1"]
    assert all(score.n_episodes == 20 for score in scores.values())


def test_commands_train_and_evaluate_a_population(tmp_path):
    """The commands train, resume and evaluate a population.

    `train --population` writes the run; `evaluate` lists all and the best.
    """
    values = {
        "env.episode_length": 20,
        "trainer.num_envs": 4,
        "trainer.train_batch_size": 32,
        "trainer.num_episodes": 5,
        "trainer.stop_return": 1e6,
        "saving.metrics_log_freq": 1,
        "saving.basedir": str(tmp_path),
        "population.lr": [0.01, 0.001],
    }
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    arguments = ["--backend", "host", "--population", "4", "--seed", "3", "--results-dir", "run", "--iterations", "2"]
    told = run("train", "-e", "cartpole", *arguments, *settings)
    assert "4 members of 4 environments, 3 iterations of 32 env steps a member, seed 3\n" in told.output
    assert re.search(r"after 2 of .*3 iterations, 64 env steps a member; checkpoint saved", told.output)
    assert "0 of 4 members reached the target return" in told.output
    folder = tmp_path / "single_cartpole" / "experiments" / "run"
    run("train", "--resume", folder, "-q")
    rows = rows_of_members(folder)
    assert [row["member"] for row in rows] == [*"0123"] * 3
    assert [row["seed"] for row in rows[:4]] == ["3", "4", "3", "4"]
    played = ["evaluate", folder, "--episodes", "5", "--backend", "host"]
    found = json.loads(run(*played, "--json").output)
    assert [(row["member"], row["seed"], row["lr"]) for row in found["members"]] == [
        (0, 3, 0.01), (1, 4, 0.01), (2, 3, 0.001), (3, 4, 0.001)
    ]  # fmt: skip
    best = max(found["members"], key=lambda row: row["mean_return"])
    assert found["members"][found["best_member"]]["mean_return"] == best["mean_return"]
    text = run(*played).output
    assert f"best: member {found['best_member']}" in text
    assert "5 episodes for each member of at most " in text
    one = json.loads(run(*played, "--member", "2", "--json").output)
    assert one["member"] == 2
    assert one["policies"]["shared"]["n_episodes"] == 5
    episode = tmp_path / "episode.npz"
    run("render", "--policy", folder, "--member", "1", "--out", str(episode))
    assert episode.exists()
    refusal = run("train", "--resume", folder, "--auto-scale", exits=1)
    assert "population.size" in refusal.output


def test_population_learns_cartpole(tmp_path):
    """Eight seeds learn CartPole well above random play.

    Random play has about 22 steps.
    """
    policy = {**PPO, "n_epochs": 4, "lr": 0.02, "normalize_advantage": True, "gae_lambda": 0.8, "vf_loss_coeff": 0.5,
              "entropy_coeff": 0.0, "model": {"fc_dims": [32], "activation": "tanh"}}  # fmt: skip
    run = ("cartpole", {"episode_length": 200}, {"shared": policy})
    population = make_population(8, run, n_envs=8, n_steps=32, basedir=tmp_path, metrics_log_freq=20, keep_best=False)
    population.train(20)
    returns = [score.mean_return for score in population.evaluate(4).values()]
    assert sum(returns) / len(returns) > 60
    assert len(set(returns)) > 1, "each is another agent"
