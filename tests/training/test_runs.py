"""Runs of every algorithm end bit-identical, by every path."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.training.builders import (
    A2C,
    CENTRAL,
    CLASSIC,
    DDPG,
    FAST,
    NORMALISED,
    ON_GPU,
    PPO,
    RUNS,
    TAG,
    differences,
    everything,
    fingerprint,
    make_run,
    rows_of,
    runs_here,
    weights,
)
from warpdrive_min.env_wrapper import EnvWrapper
from warpdrive_min.training.loop import checkpoint

N_ITERATIONS = 5
GRU = {"type": "gru", "fc_dims": [8], "hidden_size": 6, "sequence_length": 3, "shared": False}
ALL_NORMALISED = {**PPO, "normalize_rewards": True, "model": {**GRU, **NORMALISED}}
BOTH_NORMALISED = dict.fromkeys(DDPG["model"], NORMALISED)
WARPDRIVE = {"trainer": {"compat": "warpdrive"}}
ALL_RUNS = {name: (name, {}) for name in RUNS} | {
    "PPO, WarpDrive": (("cartpole", {"episode_length": 9}, {"shared": PPO}), WARPDRIVE),
    "DDPG, WarpDrive": (("pendulum", {"episode_length": 9}, {"shared": DDPG}), WARPDRIVE),
    "PPO, bfloat16": ("PPO", {"trainer": {"precision": "bf16"}}),
    "PPO, GRU": (("tag_continuous", TAG, {"runner": {**PPO, "model": GRU}, "tagger": A2C}), {}),
    "PPO, centralised critic": (("tag_continuous", TAG, {"shared": {**PPO, "centralised_critic": NORMALISED}}), {}),
    "two policies, centralised critics": (
        ("tag_continuous", TAG, {"runner": {**A2C, **CENTRAL}, "tagger": {**PPO, "model": GRU, **CENTRAL}}),
        {"trainer": {"max_rows": 10}},
    ),
    "PPO, normalised": (("tag_continuous", TAG, {"shared": ALL_NORMALISED}), {}),
    "DDPG, normalised": (("pendulum", CLASSIC, {"shared": {**DDPG, "model": BOTH_NORMALISED}}), {}),
    "PPO, some environments": ("PPO", {"trainer": {"neg_pos_env_ratio": 1.0, "max_rows": 5}}),
}
"""Small runs, and the settings that make them."""


def resumed(make, monkeypatch):
    """Stop after three iterations; a new trainer of another seed resumes."""
    first = make()
    first.train(3)
    first.graceful_close()
    second = make(seed=99)
    assert differences(everything(first), everything(second))
    second.load_checkpoint()
    assert (second.iteration, second.env_steps, second.seed) == (3, 72, 7)
    assert not differences(everything(first), everything(second))
    return second


def gone_back(make, monkeypatch):
    """Take a trainer back to its third iteration."""
    trainer = make()
    trainer.train(4)
    trainer.load_checkpoint(trainer.folder / "checkpoints" / "checkpoint_000000003")
    return trainer


def evaluated(make, monkeypatch):
    """Play evaluation episodes between iterations, and with each row."""
    trainer = make(trainer={"evaluator": True})
    trainer.train(2)
    trainer.evaluate(3, greedy=False)
    return trainer


def copied(make, monkeypatch):
    """Copy observations into the buffer, instead of steps that write there."""
    monkeypatch.setattr(EnvWrapper, "bound_step", lambda self, **arrays: None)
    trainer = make()
    assert not any(group.is_direct for group in trainer.groups.values())
    return trainer


WAYS = {way.__name__: way for way in (resumed, gone_back, evaluated, copied)}


def maker(name, backend, folder):
    """Return a function that makes a named run with changes."""
    run, settings = ALL_RUNS[name]

    def make(trainer=None, **given):
        options = {"fused_rollout": False} | settings.get("trainer", {}) | (trainer or {})  # else copies are rounded so
        return make_run(run, backend, trainer=options, basedir=folder, model_params_save_freq=3, **given)

    return make


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Table of uninterrupted runs, made once: state, metric rows, checkpoint header."""
    made = {}

    def end_of(name, backend):
        if (name, backend) not in made:
            trainer = maker(name, backend, tmp_path_factory.mktemp("plain"))()
            before = weights(trainer)
            trainer.train(N_ITERATIONS)
            assert set(differences(before, weights(trainer))) == set(before), "all of it learns"
            header = checkpoint.load(trainer.folder / "checkpoints")[1]
            made[name, backend] = everything(trainer), rows_of(trainer), header
        return made[name, backend]

    return end_of


HOST = [backend for backend in FAST if backend.values == ("host",)]
"""Its other paths have `cpu`'s steps."""
RESUMED = [("resumed", name) for name in ALL_RUNS]
BY_EVERY_WAY = list(itertools.product(WAYS, ALL_RUNS))
BY_DAY = ("PPO", "DDPG", "two policies", "PPO, normalised")
"""Runs that go every way by day; the others are only resumed."""
BY_NIGHT = [(way, name) for way, name in BY_EVERY_WAY if way != "resumed" and name not in BY_DAY]
ON_NUMBA = [*(("resumed", name) for name in ("A2C", "PPO", "DDPG")), *((way, "PPO, normalised") for way in WAYS)]


@pytest.mark.parametrize(
    ("backend", "way", "name"),
    runs_here(*RESUMED, backends=HOST, nightly=[each for each in RESUMED if each[1] not in RUNS])
    + runs_here(
        *BY_EVERY_WAY, backends=[each for each in FAST if each not in HOST], on_numba=ON_NUMBA, nightly=BY_NIGHT
    ),
)
def test_every_way_leads_to_the_same_bits(backend, name, way, plain, tmp_path, monkeypatch):
    """Each way to run gives the same bits.

    All state, metric rows and the checkpoint's header are equal for one seed.
    """
    want, rows, header = plain(name, backend)
    trainer = WAYS[way](maker(name, backend, tmp_path), monkeypatch)
    trainer.train(N_ITERATIONS - trainer.iteration)
    assert not differences(want, everything(trainer))
    got = [{key: row[key] for key in row if not key.endswith("evaluated_return")} for row in rows_of(trainer)]
    assert got == rows
    _, saved = checkpoint.load(trainer.folder / "checkpoints")
    assert (saved.best_return, saved.run_config["policy"]) == (header.best_return, header.run_config["policy"])


@pytest.mark.parametrize(
    ("backend", "name"),
    runs_here(*ALL_RUNS, backends=ON_GPU, on_numba=["A2C", "DDPG"], nightly=[name for name in RUNS if "," in name]),
)
def test_graph_equals_eager_to_the_bit(backend, name, tmp_path):
    """Graph replays equal eager iterations bit by bit.

    Five iterations, four of them replays.
    """
    runs = []
    for mode in ("graph", "eager"):
        runs.append(maker(name, backend, tmp_path / mode)(trainer={"mode": mode}))
        runs[-1].train(5)
    assert (runs[0]._collect._replay is None, runs[1]._collect._replay is None) == (False, True)
    assert not differences(everything(runs[0]), everything(runs[1]))


@pytest.mark.parametrize("name", RUNS)
def test_another_seed_gives_other_bits(name, tmp_path):
    """Another seed gives each policy other initial weights."""
    first, other = (maker(name, "cpu", tmp_path / str(seed))(seed=seed) for seed in (7, 8))
    changed = differences(weights(first), weights(other))
    assert {key.split("/")[1] for key in changed} == set(first.groups)
    assert fingerprint(first) != fingerprint(other)


@pytest.mark.parametrize("name", ["A2C", "PPO", "PPO, continuous", "DDPG"])
def test_bfloat16_trains_with_all_state_in_float32(name, tmp_path):
    """Training in bfloat16 keeps all state in float32.

    After two iterations losses are near float32's.
    """
    rows, dtypes = [], []
    for kind in ("fp32", "bf16"):
        trainer = make_run(name, basedir=tmp_path / kind, trainer={"precision": kind}, n_steps=12)
        rows.append(trainer.train(2))
        dtypes.append({key: tensor.dtype for key, tensor in everything(trainer).items()})
    assert dtypes[0] == dtypes[1]
    assert torch.float32 in dtypes[0].values()
    loss = "critic_loss" if name == "DDPG" else "value_loss"
    got, want = (row[f"shared/{loss}"] for row in reversed(rows))
    assert got == pytest.approx(want, rel=0.1)
    assert got != want, "the precision must have had an effect"
