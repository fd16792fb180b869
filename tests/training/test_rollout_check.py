"""Trainers with environments that break their contract or give NaN."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.environments.faulty import AGENT, ENV, Faulty
from tests.support import by_day
from tests.training.builders import A2C, CENTRAL, DDPG, NORMALISED, PPO, SMALL, make_trainer, rows_of, weights
from tests.training.test_population import make_population
from warpdrive_min.errors import ActionError, TrainingError

GRU = {**PPO, "n_minibatches": 1, "model": {"type": "gru", "fc_dims": [8], "hidden_size": 4}}
REPLAY = {**DDPG, "buffer_size": 2000, "learning_starts": 2000}
PATHS = {
    "PPO": ("cpu", PPO, {}),
    "A2C": ("host", A2C, {}),
    "normalised": ("host", {**PPO, "model": NORMALISED, "normalize_rewards": True}, {}),
    "without auto-reset": ("cpu", PPO, {"wrapper": {"auto_reset": False}}),
    "recurrent": ("host", GRU, {}),
    "central": ("cpu", {**PPO, **CENTRAL}, {}),
    "replay": ("host", REPLAY, {}),
    "exact": ("host", PPO, {"wrapper": {"exact": True}, "trainer": {"exact": True}}),
    "at once": ("host", PPO, {"trainer": {"fused_rollout": True}}),
}
"""Backend, policy and arguments of each way to play and learn."""
ON_GPU = {
    "captured": ("pycuda", PPO, {}),
    "captured, step by step": ("pycuda", PPO, {"trainer": {"fused_rollout": False}}),
    "captured, recurrent": ("pycuda", GRU, {}),
    "captured, replay": ("pycuda", REPLAY, {}),
}
WAYS = [*PATHS, *(pytest.param(way, marks=pytest.mark.gpu) for way in ON_GPU)]


def trainer_of(way, tmp_path, *given, n_steps=20, **faulty):
    """Return a trainer of 8 environments in one of the ways."""
    backend, policy, options = {**PATHS, **ON_GPU}[way]
    env = Faulty(*given, is_box=policy["algorithm"] == "DDPG", **faulty)
    return make_trainer(env, {"shared": policy}, backend, n_envs=8, n_steps=n_steps, basedir=tmp_path, **options)


# ------------------------------------------------------------------ truncation


@pytest.mark.parametrize("way", WAYS)
def test_early_truncation_is_told_or_has_room(way, tmp_path):
    """Early truncations fit the buffer, or raise with the number.

    Six episodes end in 20 steps.
    """
    trainer = trainer_of(way, tmp_path)
    trainer.train(2)
    (recorder,) = trainer.recorders.values()
    n_kept = recorder.n_truncated.max().item()
    assert n_kept in (6, 7)
    last = trainer.groups["shared"].buffer.truncated_observations
    assert len(last) >= n_kept
    assert (last[:n_kept, ..., 0] == 3).all(), "the third step was the last one of each"
    with pytest.raises(TrainingError, match=r"'Faulty': must truncate at most 1 episodes in 20 steps.*got 6 in env"):
        trainer_of(way, tmp_path / "other", says_so=False).train(2)


def test_values_of_all_truncated_episodes_are_learned_from(tmp_path):
    """Returns of all truncated episodes include their last values.

    Gamma 1, values 5: each step returns its episode's remaining pay plus 5.
    """
    trainer = trainer_of("A2C", tmp_path)
    algorithm, buffer = trainer.groups["shared"].algorithm, trainer.groups["shared"].buffer
    trainer.collect()
    with torch.no_grad():
        for name, parameter in trainer.groups["shared"].acting.named_parameters():
            if "vf_head" in name:
                parameter.fill_(5.0 if "bias" in name else 0.0)
    algorithm.compute_returns(buffer)
    assert buffer.truncated[:18].sum() == 6 * 8
    gamma = algorithm._scan._gamma
    for step in range(18):
        left = 3 - step % 3
        want = sum(gamma**k for k in range(left)) + 5 * gamma**left
        torch.testing.assert_close(algorithm.returns[step], torch.full((8, 2), want), rtol=1e-5, atol=0)


def test_warpdrives_rule_needs_no_last_observations(tmp_path):
    """WarpDrive's rule needs no last observations.

    To it every end is by the dynamics, so that no value is lost.
    """
    env = Faulty(says_so=False)
    trainer = {"compat": "warpdrive"}
    make_trainer(env, {"shared": A2C}, n_envs=8, n_steps=20, basedir=tmp_path, trainer=trainer).train(2)


# ------------------------------------------------------------------ numbers that are not finite


FAULTS = list(itertools.product((6, 9), ("observations", "rewards", "final_observations")))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("step", "fault"), by_day(FAULTS, [*FAULTS[:3], FAULTS[4]]))
def test_broken_numbers_are_named_and_reach_nothing(way, fault, step, tmp_path):
    """A broken number raises, and reaches no state or checkpoint.

    The error has array, environment, agent and step.
    """
    trainer = trainer_of(way, tmp_path, fault, step, n_steps=6)
    if fault == "final_observations" and not trainer.wrapper.auto_reset:
        pytest.skip("such an environment has none")
    where = rf"policy 'shared': array '{fault}' of environment 'Faulty' must be finite \(got nan"
    where += rf" in environment {ENV}, agent {AGENT}, after step {step}, in iteration {-(-step // 6)}\)"
    with pytest.raises(TrainingError, match=where):
        trainer.train(4)
    with pytest.raises(TrainingError, match=where):
        trainer.save_checkpoint()
    assert not (trainer.folder / "checkpoints").exists()
    broken = [key for key, each in weights(trainer).items() if not each.isfinite().all()]
    assert not broken
    algorithm = trainer.groups["shared"].algorithm
    assert all(each.isfinite().all() for each in algorithm.state().values())


@pytest.mark.parametrize("fault", ["observations not written", "final_observations not written", "infinite"])
@pytest.mark.parametrize("way", ["PPO", "A2C", "at once", "replay"])
def test_what_a_step_leaves_out_is_found(way, fault, tmp_path):
    """Rows that an environment does not write are found.

    They would be old ones.
    """
    trainer = trainer_of(way, tmp_path, fault, 9, n_steps=6)
    name = "observations" if fault == "infinite" else fault.split()[0]
    with pytest.raises(TrainingError, match=f"array '{name}' of environment 'Faulty' must be finite"):
        trainer.train(3)


def test_looking_changes_nothing(tmp_path):
    """The check for unwritten values leaves no marks."""
    trainer = trainer_of("A2C", tmp_path, cut_after=50)
    final = trainer.wrapper.cuda_data_manager.tensor("final_observations")
    final.fill_(7)
    trainer.train(1)
    assert (final == 7).all()


# ------------------------------------------------------------------ flags, clocks, choices


@pytest.mark.parametrize(
    ("way", "fault", "message"),
    [
        ("PPO", "done contradicts", r"_done_ must be set exactly where .*got 6 steps of environment \d"),
        ("A2C", "done contradicts", r"_done_ must be set exactly where .*got 6 steps of environment \d"),
        ("recurrent", "timestep stays", r"_timestep_ must count .*got 1 after \d+ steps in environment 0"),
    ],
)
def test_contradicting_flags_are_told(way, fault, message, tmp_path):
    """Contradicting flags raise an error.

    Returns would end within an episode, and recurrent policies forget too early.
    """
    with pytest.raises(TrainingError, match=message):
        trainer_of(way, tmp_path, fault, cut_after=3).train(1)


@pytest.mark.parametrize("backend", ["cpu", "host", pytest.param("pycuda", marks=pytest.mark.gpu)])
def test_rows_that_allow_nothing_are_a_metric(backend, tmp_path):
    """Rows without an allowed action are counted by policy.

    With `debug` they raise an error with the place.
    """

    def trainer_with(folder, **wrapper):
        env = Faulty()
        env.masks_actions = True
        feed = env.get_tensor_dictionary
        env.get_tensor_dictionary = lambda: masked(feed())
        policies = {"zero": PPO, "one": {**A2C, "to_train": False}}
        agents = {"zero": [0], "one": [1]}
        given = {"n_envs": 4, "n_steps": 6, "basedir": tmp_path / folder, "agents": agents, "wrapper": wrapper}
        trainer = make_trainer(env, policies, backend, **given)
        trainer.wrapper.cuda_data_manager.tensor("action_mask")[2, 1] = 0
        return trainer

    def masked(feed):
        feed.add_data("action_mask", torch.ones(2, 2, dtype=torch.int32).numpy(), per_env=True)
        return feed

    trainer = trainer_with("a")
    trainer.train(3)
    counts = [(row["zero/n_impossible_rows"], row["one/n_impossible_rows"]) for row in rows_of(trainer)]
    assert counts == [(0, 6)] * 3
    message = r"sampled_actions\[2, 1\]: of environment 2, agent 1, no choice can be drawn"
    with pytest.raises(ActionError, match=message):
        trainer_with("b", debug=True).train(1)


def test_member_of_a_population_that_is_broken_is_named(tmp_path, caplog):
    """A population's broken member is named, and others continue.

    The error has its environment's overall number.
    """
    run = (Faulty("observations", 3), {}, {"shared": {**PPO, "model": SMALL}})
    trainer = make_population(2, run, "cpu", basedir=tmp_path)
    trainer.train(2)
    assert trainer.failed == [0]
    assert f"array 'observations' of environment 'Faulty' must be finite (got nan in environment {ENV}" in caplog.text
