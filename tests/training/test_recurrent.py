"""Recurrent policies: units against torch, learning on sequences, and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.environments.clock import Clock
from tests.environments.recall import Recall
from tests.training import builders
from tests.training.builders import (
    A2C,
    CLASSIC,
    DDPG,
    PPO,
    TAG,
    log_prob_and_entropy,
    make_buffer,
    make_run,
    make_trainer,
    refused,
    run_config,
    runs_here,
)
from tests.training.models_support import BOX, DISCRETE, N_FEATURES, config, observations
from warpdrive_min import EnvWrapper
from warpdrive_min.training.algorithms.sequences import RecurrentA2C, RecurrentPPO
from warpdrive_min.training.config import PolicyConfig, RunConfig
from warpdrive_min.training.loop.evaluation import EvaluationEnvs
from warpdrive_min.training.models.gru import GRU, create_recurrent
from warpdrive_min.training.models.normalisation import normalisers
from warpdrive_min.training.record.trained import load_policies
from warpdrive_min.training.scale.autoscale import MemoryModel

SIZE = 7
GRU_MODEL = {"type": "gru", "fc_dims": [8], "hidden_size": 6}
REMEMBERS = {**PPO, "model": GRU_MODEL}
NORMALISED = {**GRU_MODEL, "normalize_observations": True}
N, L, AGENTS = 3, 5, 2


def gru(space=DISCRETE, seed=0, **given) -> GRU:
    """Return a small recurrent model."""
    torch.manual_seed(seed)
    return create_recurrent(N_FEATURES, space, config(type="gru", hidden_size=SIZE, activation="tanh", **given))


def gradients_of(outputs, weights, tensors) -> list[torch.Tensor]:
    """Return the gradients of weighted outputs."""
    return torch.autograd.grad((outputs * weights).sum(), tensors)


# ------------------------------------------------------------------ units


def test_units_are_those_of_torch():
    """Units equal `torch.nn.GRU` in states and gradients.

    Gradients by weights, inputs and first state.
    """
    units = gru().units
    theirs = nn.GRU(units.fc.width, SIZE, batch_first=True)
    ours = [units.inputs.weight, units.hidden.weight, units.inputs.bias, units.hidden.bias]
    for parameter, value in zip(theirs.parameters(), ours, strict=True):
        parameter.data.copy_(value.data)
    seen = observations(N, L, AGENTS).requires_grad_()
    state, weights = torch.randn(N, AGENTS, SIZE, requires_grad=True), torch.randn(N, L, AGENTS, SIZE)
    got = units(seen, state)
    below = units.fc(seen).transpose(1, 2).flatten(0, 1)
    want, _ = theirs(below, state.flatten(0, 1)[None])
    want = want.unflatten(0, (N, AGENTS)).transpose(1, 2)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    below = [seen, state, *units.fc.parameters()]
    for a, b in zip(
        gradients_of(got, weights, [*below, *ours]),
        gradients_of(want, weights, [*below, *theirs.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_units_start_as_those_of_torch():
    """Initial weights are uniform like those of torch's GRU.

    The bound is 1 / sqrt(units).
    """
    units = gru(fc_dims=(200,)).units
    for parameter in (*units.inputs.parameters(), *units.hidden.parameters()):
        assert 0.8 * SIZE**-0.5 < parameter.abs().max().item() <= SIZE**-0.5


@pytest.mark.parametrize("method", ["xavier", "orthogonal"])
def test_each_gate_is_initialised_by_itself(method):
    """Each gate's recurrent weights are initialised separately.

    They are a square matrix, orthogonal or Xavier-bounded.
    """
    for gate in gru(init_method=method).units.hidden.weight.detach().split(SIZE):
        if method == "orthogonal":
            torch.testing.assert_close(gate @ gate.T, torch.eye(SIZE), rtol=0, atol=1e-5)
        else:
            assert 0.7 * (3 / SIZE) ** 0.5 < gate.abs().max().item() <= (3 / SIZE) ** 0.5


def test_a_sequence_that_begins_an_episode_forgets():
    """A sequence at an episode's start ignores its earlier state."""
    model, seen, begins = gru(), observations(N, L, AGENTS), (torch.arange(L) == 0).expand(N, L)
    zero = torch.zeros(N, AGENTS, SIZE)
    assert torch.equal(model.unroll(seen, torch.ones_like(zero), begins), model.unroll(seen, zero))


def test_actor_and_critic_may_remember_apart():
    """Actor and critic may have separate halves of the state.

    This is ``shared=False``.
    """
    model = gru(shared=False)
    states = torch.randn(4, 2 * SIZE, requires_grad=True)
    of_value, of_head = (
        torch.autograd.grad(output.sum(), states)[0] for output in (model.value(states), model.head(states))
    )
    assert not of_value[:, :SIZE].any()
    assert not of_head[:, SIZE:].any()
    assert of_value[:, SIZE:].all()
    assert of_head[:, :SIZE].all()


# ------------------------------------------------------------------ learning


STEPS, ENVS = 12, 6


def make_rollout(space, seed=0):
    """Return a random rollout with several ends of both kinds."""
    generator = torch.Generator().manual_seed(seed)
    buffer = make_buffer(STEPS, ENVS, AGENTS, n_truncated=3, n_features=N_FEATURES)
    noisy = ("observations", "actions", "log_probs", "rewards", "truncated_observations")
    noise = {name: torch.randn(getattr(buffer, name).shape, generator=generator) for name in noisy}
    if not space.is_continuous:
        noise["actions"] = torch.randint(3, buffer.actions.shape, generator=generator, dtype=torch.int32)
    buffer = replace(buffer, **noise | {"log_probs": 0.1 * noise["log_probs"] - 2})
    for env, step in ((0, 1), (0, 4), (0, 11), (1, 3), (2, 8)):
        buffer.truncated[step, env] = 1
    for env, step in ((1, 4), (3, 0), (3, 11)):
        buffer.terminated[step, env] = 1
    return buffer


def make_algorithm(kind, model, buffer, space, *, trainer=None, sequence_length=None, **policy):
    """Return an algorithm whose buffer has a rollout's states."""
    network = config(type="gru", hidden_size=SIZE, sequence_length=sequence_length)
    settings = PolicyConfig(to_train=True, algorithm=kind, clip_grad_norm=False, gamma=0.9, model=network, **policy)
    kind = {"A2C": RecurrentA2C, "PPO": RecurrentPPO}[kind]
    return builders.make_algorithm(kind, settings, {"model": model}, space, buffer, **(trainer or {}))


def played(model, buffer, start, *, cut_gradients=0):
    """Return heads, values and states, computed step by step."""
    heads, values, states = [], [], []
    last = torch.zeros(buffer.truncated_observations.shape[:3])
    state, n_cut = start, [0] * ENVS
    for t in range(STEPS + 1):
        if t:
            ended = (buffer.terminated | buffer.truncated)[t - 1] > 0
            for env in range(ENVS):
                if buffer.truncated[t - 1, env]:
                    seen = buffer.truncated_observations[n_cut[env], env][None]
                    last[n_cut[env], env] = model.value(model.step(seen, state[env][None]))[0].detach()
                    n_cut[env] += 1
            state = torch.where(ended[:, None, None], 0.0, state)
        if cut_gradients and t % cut_gradients == 0:
            state = state.detach()
        states.append(state)
        state = model.step(buffer.observations[t], state)
        heads.append(model.head(state))
        values.append(model.value(state))
    assert n_cut[0] == 3, "several episodes of one environment must be cut"
    return torch.stack(heads[:-1]), torch.stack(values), last, torch.stack(states)


@pytest.mark.parametrize(("length", "max_rows", "shared"), [(None, None, True), (4, None, False), (4, 30, True)])
@pytest.mark.parametrize(("kind", "space"), [("A2C", DISCRETE), ("PPO", BOX)])
def test_update_equals_steps_one_by_one(kind, space, length, max_rows, shared):
    """An update equals single steps: values and gradient.

    Parts may have any length; final values are compared too.
    """
    model, buffer = gru(space, shared=shared), make_rollout(space)
    whole = {"n_epochs": 1, "n_minibatches": 1}
    algorithm = make_algorithm(
        kind, model, buffer, space, trainer={"max_rows": max_rows}, sequence_length=length, **whole
    )
    start = torch.randn(ENVS, AGENTS, model.state_size)
    head, values, last, states = played(model, buffer, start, cut_gradients=length or STEPS)
    for t in range(STEPS + 1):
        buffer.store_state(t, states[t].detach())
    assert len(buffer.states) == 1 + STEPS // (length or STEPS)
    algorithm.compute_returns(buffer)
    torch.testing.assert_close(algorithm.values, values.detach(), rtol=1e-4, atol=1e-5)
    n_cuts = buffer.truncated.sum(0)
    for env in range(ENVS):
        got, want = (each[: n_cuts[env], env] for each in (algorithm._truncated_values, last))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    log_prob, entropy = log_prob_and_entropy(space, head, buffer.actions, log_std=model.log_std)
    if kind == "A2C":
        policy = -(log_prob * algorithm.advantages).mean()
    else:
        ratio = (log_prob - buffer.log_probs).exp()
        both = [each * algorithm.advantages for each in (ratio, ratio.clamp(0.8, 1.2))]
        policy = -torch.minimum(*both).mean()
    loss = policy + 0.3 * ((values[:-1] - algorithm.returns) ** 2).mean() - 0.05 * entropy.mean()
    want = torch.autograd.grad(loss, list(model.parameters()))
    algorithm.update(buffer)
    want = torch.cat([each.flatten() for each in want])
    torch.testing.assert_close(algorithm.optimiser.gradient, want, rtol=1e-3, atol=1e-5)


def test_minibatches_are_dealt_whole_sequences(monkeypatch):
    """Minibatches consist of complete sequences, shuffled every epoch.

    Every epoch has each sequence of four steps once.
    """
    model, buffer = gru(), make_rollout(DISCRETE)
    algorithm = make_algorithm("PPO", model, buffer, DISCRETE, sequence_length=4, n_epochs=2, n_minibatches=3)
    dealt = []
    parts = RecurrentPPO._parts
    monkeypatch.setattr(RecurrentPPO, "_parts", lambda self, rows: dealt.append(rows) or parts(self, rows))
    algorithm.compute_returns(buffer)
    dealt.clear()
    algorithm.update(buffer)
    assert [len(rows) for rows in dealt] == [STEPS * ENVS // 3] * 6
    epochs = [torch.cat(dealt[first : first + 3]).view(-1, 4) for first in (0, 3)]
    for epoch in epochs:
        steps, envs = epoch // ENVS, epoch % ENVS
        assert ((envs == envs[:, :1]) & (steps == steps[:, :1] + torch.arange(4)) & (steps[:, :1] % 4 == 0)).all()
        assert sorted(epoch.flatten().tolist()) == list(range(STEPS * ENVS))
    assert not torch.equal(*epochs)


RUNS = {
    "choices": ("cartpole", CLASSIC, {"shared": REMEMBERS}),
    "continuous": ("pendulum", CLASSIC, {"shared": {**REMEMBERS, "model": {**GRU_MODEL, "sequence_length": 2}}}),
    "normalised": ("pendulum", CLASSIC, {"shared": {**REMEMBERS, "normalize_rewards": True, "model": NORMALISED}}),
    "two policies": ("tag_continuous", TAG, {"runner": {**A2C, "model": GRU_MODEL}, "tagger": REMEMBERS}),
}


@pytest.mark.parametrize(("backend", "name"), runs_here(*RUNS, on_numba=["normalised", "two policies"]))
def test_replay_says_what_was_said(backend, name, tmp_path):
    """A replayed rollout has the probabilities of the first play.

    The second rollout's ratio is 1 to rounding.
    """
    said_again(make_run(RUNS[name], backend, n_steps=12, basedir=tmp_path))


@pytest.mark.parametrize("name", RUNS)
def test_replay_says_what_was_said_where_the_trainer_resets(name, tmp_path):
    """A replay does not depend on the component that resets."""
    said_again(make_run(RUNS[name], wrapper={"auto_reset": False}, n_steps=12, basedir=tmp_path))


def said_again(trainer):
    """Compare a trainer's second rollout with its replay."""
    trainer.train(1)
    trainer.collect()
    for group in trainer.groups.values():
        replay_agrees(group)
        assert all(layer.count > 1 for layer in normalisers(group.acting)), "moments must have been taken"
        assert group.buffer.states[0].any(), "the rollout before must be remembered"
        assert (group.buffer.terminated | group.buffer.truncated)[:-1].any(), "an episode must end on the way"


def test_replay_says_what_was_said_with_masks(tmp_path):
    """A replay with masks has the probabilities of the first play."""
    trainer = make_trainer(Clock(is_masked=True), {"shared": REMEMBERS}, n_steps=8, basedir=tmp_path)
    trainer.train(1)
    trainer.collect()
    replay_agrees(trainer.groups["shared"])


def replay_agrees(group):
    """Compare log-probabilities of a replayed rollout with the stored ones."""
    algorithm, buffer = group.algorithm, group.buffer
    algorithm.compute_returns(buffer)
    rows = algorithm._rows.flatten()
    with torch.no_grad():
        head, _ = algorithm.evaluate(buffer, rows)
    pick = rows.long()
    masks = None if buffer.masks is None else buffer.masks[:-1].flatten(0, 1)[pick]
    actions = buffer.actions.flatten(0, 1)[pick]
    got, _ = log_prob_and_entropy(group.arrays.space, head, actions, masks, group.acting.log_std)
    torch.testing.assert_close(got, buffer.log_probs.flatten(0, 1)[pick], rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ memory


def test_policy_that_remembers_learns_what_another_cannot(tmp_path):
    """A recurrent policy learns Recall, which others cannot.

    Recall pays 3 with a memory of step one, half without; rollouts cut episodes.
    """
    returns = {}
    for kind in ("gru", "fully_connected"):
        model = {"type": kind, "fc_dims": [16], "hidden_size": 16}
        policy = {**PPO, "lr": 2e-2, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "gamma": 0.9, "model": model}
        trainer = make_trainer(Recall(), {"shared": policy}, n_envs=16, basedir=tmp_path / kind, metrics_log_freq=100)
        trainer.train(25)
        returns[kind] = trainer.evaluate(50)["shared"].mean_agent_return
    assert returns["gru"] > 2.9
    assert returns["fully_connected"] < 2


def test_state_begins_at_zero(tmp_path, monkeypatch):
    """A state is zero before an episode's first step only."""
    trainer = make_trainer(Recall(), {"shared": REMEMBERS}, basedir=tmp_path)
    envs = EvaluationEnvs(trainer.wrapper, trainer.acting_models, trainer.policy_map, n_envs=3)
    model, seen = envs.groups["shared"].acting, []
    monkeypatch.setattr(model, "unroll", lambda *given: seen.append(given[1].any().item()) or GRU.unroll(model, *given))
    for t in range(9):
        envs.act()
        envs.wrapper.step()
        if t % 4 == 3:
            envs.wrapper.reset_only_done_envs()
    envs.wrapper.reset()
    envs.act()
    assert seen == [t % 4 != 0 for t in range(9)] + [False]


@pytest.mark.parametrize(("n_steps", "is_zero"), [(4, True), (6, False)])
def test_what_follows_a_rollout_is_valued_from_its_own_state(n_steps, is_zero, tmp_path):
    """The state after a rollout is zero after an end.

    Its value follows from that state.
    """
    trainer = make_trainer(Recall(), {"shared": REMEMBERS}, n_steps=n_steps, basedir=tmp_path)
    trainer.collect()
    state = trainer.groups["shared"].buffer.states[-1]
    assert state.any() != is_zero


def test_saved_policies_remember(tmp_path):
    """Saved policies remember, like their trainer's."""
    trainer = make_trainer(Recall(), {"shared": REMEMBERS}, basedir=tmp_path)
    trainer.train(2)
    trainer.save_checkpoint()
    saved = load_policies(trainer.folder, Recall())
    envs = saved.envs("cpu", n_envs=20)
    returns, _ = envs.play()
    assert returns["shared"].mean().item() == pytest.approx(trainer.evaluate(20)["shared"].mean_agent_return)


def test_frozen_policy_remembers(tmp_path):
    """A frozen policy updates and saves its state too."""
    frozen = {**REMEMBERS, "to_train": False}
    policies = {"frozen": frozen, "learns": A2C}
    trainer = make_trainer(Recall(), policies, agents={"frozen": [0], "learns": [1]}, basedir=tmp_path)
    trainer.train(2)
    state, _ = trainer.state()
    assert state["policy/frozen/own/memory"].any()


# ------------------------------------------------------------------ errors and predictions


class Forgetful(GRU):
    """A user's model whose states have the wrong size."""

    def unroll(self, observations, state, begins=None):
        return observations


def test_a_model_of_another_shape_is_refused(factory):
    """A user's recurrent model is checked at construction."""
    factory.add("forgetful", Forgetful)
    with refused("model 'forgetful'", (2, 3, N_FEATURES)):
        create_recurrent(N_FEATURES, DISCRETE, config(type="forgetful"))


def with_model(policy, **model):
    """Return a policy with other keys of its network."""
    return {"shared": {**policy, "model": {**policy["model"], **model}}}


WRONG = {
    "sequences in a rollout": (with_model(REMEMBERS, sequence_length=4), {}, "policy.shared.model.sequence_length", 4),
    "minibatches": ({"shared": {**REMEMBERS, "n_minibatches": 3}}, {}, "policy.shared.n_minibatches", 3),
    "WarpDrive's rule": ({"shared": REMEMBERS}, {"compat": "warpdrive"}, "run config trainer.compat", "warpdrive"),
}
"""Policies, trainer settings; the subject and value in the error."""


@pytest.mark.parametrize("case", WRONG)
def test_trainer_refuses(case, tmp_path):
    """Unsupported settings fail in the constructor, by key and value."""
    policies, trainer, what, got = WRONG[case]
    with refused(what, got):
        make_trainer(Clock(), policies, basedir=tmp_path, trainer=trainer)


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_ddpg_refuses(part, tmp_path):
    """DDPG refuses recurrent networks."""
    networks = {**DDPG["model"], part: {**DDPG["model"][part], "type": "gru"}}
    with refused(f"run config policy.shared.model.{part}.type", "gru"):
        make_run(("pendulum", CLASSIC, {"shared": {**DDPG, "model": networks}}), basedir=tmp_path)


@pytest.mark.nightly
def test_memory_model_knows_sequences():
    """The memory model's probes have enough environments for sequences.

    Minibatches consist of sequences; states count.
    """
    policies = {"shared": {**REMEMBERS, "n_minibatches": 3}}
    run = RunConfig.from_dict(run_config(policies, n_envs=3))
    model = MemoryModel(run, lambda n_envs: EnvWrapper(Clock(), num_envs=n_envs, auto_reset=True))
    state = 2 * 6 * 4  # bytes of a state in each environment: two agents, six float32
    assert model.parts(n_envs=800)["kept"] - model.parts(n_envs=400)["kept"] >= 400 * 3 * state
