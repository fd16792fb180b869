"""Training through the fused kernels against training through torch's, and the small parts of the former."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.builders import A2C, CENTRAL, CLASSIC, PPO, RUNS, TAG, make_run, refused, weights
from tests.training.fused_support import DEVICE, interpret
from tests.training.test_population import make_population
from warpdrive_min.errors import ConfigError
from warpdrive_min.training.algorithms import actor_critic
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.fused import learning
from warpdrive_min.training.paths.fused.rows import can_move, move, take
from warpdrive_min.training.paths.triton import columns

CENTRALISED = ("tag_continuous", TAG, {"shared": {**PPO, **CENTRAL}})


def trained(name, backend, folder, mode="eager", n_iterations=2, **model):
    """Return the weights of one of `RUNS`, with two hidden layers, after some iterations."""
    env, config, policies = (RUNS | {"centralised critic": CENTRALISED})[name]
    layers = {"fc_dims": [8, 8], "activation": "tanh", **model}
    two = {
        policy: {**keys, "model": {"actor": layers, "critic": layers} if keys["algorithm"] == "DDPG" else layers}
        | ({"centralised_critic": layers} if CENTRAL.keys() <= keys.keys() else {})
        for policy, keys in policies.items()
    }
    trainer = make_run((env, config, two), backend, trainer={"mode": mode}, basedir=folder)
    trainer.train(n_iterations)
    return weights(trainer)


NETWORKS = [
    *((name, {}) for name in ("A2C", "PPO", "PPO, continuous", "DDPG", "two policies", "centralised critic")),
    ("PPO", {"type": "gru", "hidden_size": 4, "sequence_length": 3}),
    ("A2C", {"normalize_observations": True}),
    ("A2C", {"shared": False}),
    ("PPO", {"shared": False, "activation": "relu"}),
]
"""Names of runs, and what differs in their networks."""


def interpreted(monkeypatch):
    """Let Triton's interpreter pass for a GPU; returns a list that grows with each pass that finds all gradients."""
    passes, find = [], learning.Learning.find
    monkeypatch.setattr(
        learning.Learning, "find", lambda self, *rows, **given: (passes.append(1), find(self, *rows, **given))
    )
    interpret(monkeypatch)
    return passes


@pytest.mark.parametrize(("name", "model"), NETWORKS)
def test_fused_training_is_that_of_torch(name, model, tmp_path, monkeypatch):
    """Every algorithm, kind of action and row of a minibatch goes through the kernels to the weights of torch.

    Small networks of discrete actions write no output on the way to the gradients; others go another way.
    """
    want = trained(name, "host", tmp_path / "torch", fused=False, **model)
    found = interpreted(monkeypatch)
    got = trained(name, "host", tmp_path / "fused", **model)
    assert bool(found) == (
        name in ("A2C", "PPO", "two policies") and not model.keys() & {"type", "normalize_observations"}
    )
    assert got.keys() == want.keys()
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 1e-6
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


POPULATIONS = {
    "A2C": ("cartpole", {**A2C, "clip_grad_norm": True}, {"lr": [1e-2, 1e-3]}),
    "PPO": ("cartpole", PPO, {"clip_param": [0.1, 0.3], "entropy_coeff": [0.0, 0.1], "max_grad_norm": [0.1, 9.0]}),
    "PPO, normalised": ("cartpole", {**PPO, "normalize_advantage": True, "value_clip": 0.1, "target_kl": 1e-3}, {}),
    "PPO, several agents": ("tag_gridworld", {**PPO, "model": {"shared": False}}, {}),
    "PPO, continuous": ("pendulum", PPO, {}),
}


def learned(name, backend, folder, **model):
    """Return the weights of one of `POPULATIONS` after two iterations."""
    env, policy, table = POPULATIONS[name]
    config = RUNS["shared, grid"][1] if env == "tag_gridworld" else CLASSIC
    layers = {**policy["model"], "fc_dims": [8, 8], "activation": "tanh", **model}
    run = (env, config, {"shared": {**policy, "model": layers}})
    population = make_population(4, run, backend, population=table, basedir=folder)
    population.train(2)
    return weights(population)


@pytest.mark.parametrize("name", POPULATIONS)
def test_populations_through_kernels_learn_as_through_torch(name, tmp_path, monkeypatch):
    """A minibatch of all members is one pass over their rows; of continuous actions rows are gathered by a kernel."""
    want = learned(name, "host", tmp_path / "torch", fused=False)
    found, taken = interpreted(monkeypatch), []
    monkeypatch.setattr(actor_critic, "take", lambda *given: (taken.append(1), take(*given))[1])
    got = learned(name, "host", tmp_path / "kernels")
    assert bool(found) == (name != "PPO, continuous")
    assert bool(taken) == (name in ("PPO, normalised", "PPO, continuous"))
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 2e-6
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


@pytest.mark.gpu
@pytest.mark.parametrize("name", POPULATIONS)
def test_populations_through_kernels_learn_as_through_torch_on_a_gpu(name, tmp_path):
    """Replayed from a graph, they end close to each other."""
    want, got = (learned(name, "pycuda", tmp_path / str(fused), fused=fused) for fused in (False, None))
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 1e-4
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


def test_wide_networks_do_not_learn_in_one_pass(tmp_path, monkeypatch):
    """Their layers are fused one by one."""
    found = interpreted(monkeypatch)
    trained("PPO", "host", tmp_path, fc_dims=[8, 65])
    assert not found


ON_CPU = [*((name, {}) for name in ("A2C", "PPO", "PPO, continuous", "two policies", "centralised critic"))]
ON_CPU += [("PPO", {"shared": False, "activation": "relu"}), ("PPO, continuous", {"learn_log_std": False})]


@pytest.mark.parametrize(("name", "model"), ON_CPU)
def test_training_in_kernels_of_a_cpu_is_that_of_torch(name, model, tmp_path):
    """With two hidden layers all goes through the kernels to the weights of torch."""
    want = trained(name, "host", tmp_path / "torch", fused=False, **model)
    got = trained(name, "host", tmp_path / "fused", **model)
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 2e-6
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


def test_kernels_that_must_be_need_a_gpu(tmp_path):
    """``fused: true`` is an error on a CPU that says what to do."""
    with refused("run config policy.shared.model.fused", f"cpu; missing: {available.missing() or 'none'}"):
        trained("A2C", "host", tmp_path, fused=True)


def test_what_is_missing_is_named(monkeypatch):
    """Without a C compiler Triton cannot launch: nothing is fused, and who asks is told."""
    monkeypatch.setenv("CC", "no-such-compiler")
    available.missing.cache_clear()
    available.why_no_triton.cache_clear()
    try:
        assert available.missing() == "a C compiler"
        assert "missing: a C compiler" in available.why_no_triton("cuda")
    finally:
        monkeypatch.undo()
        available.missing.cache_clear()
        available.why_no_triton.cache_clear()


@pytest.mark.gpu
def test_kernels_that_must_be_are_or_say_why_not(tmp_path):
    """``fused: true`` trains where there is a kernel, and is an error with the reason where there is none."""
    trained("A2C", "pycuda", tmp_path / "fits", fused=True)
    with pytest.raises(ConfigError, match=r"model\.fused: knows the activations relu and tanh"):
        trained("A2C", "pycuda", tmp_path / "does not", fused=True, activation="gelu")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "model"), NETWORKS)
def test_fused_training_is_that_of_torch_on_a_gpu(name, model, tmp_path):
    """Replayed from a graph, the kernels end close to torch's layers."""
    want = trained(name, "pycuda", tmp_path / "torch", mode="graph", fused=False, **model)
    got = trained(name, "pycuda", tmp_path / "fused", mode="graph", **model)
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3), (50, 2, 5), (50, 200)])
def test_take_gathers_rows(shape, dtype):
    """Rows of any width, in any order, more than once, and fewer than fill a block."""
    array = torch.arange(torch.Size(shape).numel(), dtype=dtype, device=DEVICE).view(shape)
    for indices in (torch.tensor([49, 0, 7, 7], device=DEVICE), torch.arange(49, -1, -1, device=DEVICE).int()):
        assert torch.equal(take(array, indices), array[indices.long()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (71,), (3, 4)])
def test_rows_of_agents_are_picked_and_placed(shape, dtype):
    """As torch does it, also where rows of the agents are a part of longer ones; what does not fit says so."""
    n_envs, agents = 37, torch.tensor([6, 0, 3], device=DEVICE)
    whole = torch.arange(n_envs * 8 * math.prod(shape), device=DEVICE).view(n_envs, 8, *shape).to(dtype)
    some = torch.zeros(n_envs, 3, *shape, dtype=dtype, device=DEVICE)
    assert can_move(some, whole)
    move(some, whole, agents, is_placing=False)
    assert torch.equal(some, whole.index_select(1, agents))
    placed = torch.zeros_like(whole)
    move(some, placed, agents, is_placing=True)
    assert torch.equal(placed, torch.zeros_like(whole).index_copy_(1, agents, some))
    if len(shape) == 1:
        part = torch.cat([some + 1, some], -1)[..., : shape[0]]
        move(part, placed, agents, is_placing=True)
        assert torch.equal(placed, torch.zeros_like(whole).index_copy_(1, agents, part))
    assert not can_move(some.double(), whole)
    assert not can_move(some.transpose(0, 1), whole)


def test_columns_are_joined_where_they_lie_and_copied_elsewhere():
    """Gradients of a head and values of one array come back as it is; of others they are put side by side."""
    outputs = torch.randn(4, 3, 6, requires_grad=True)
    head, values = columns.split(outputs)
    assert torch.equal(columns.joined(head, values), outputs)
    assert columns.joined(head, values.clone()) is None
    assert columns.joined(head[1:], values[:-1]) is None
    assert columns.joined(outputs[..., :-2], outputs[..., -2]) is None
    d_head, d_values = torch.randn(4, 3, 5), torch.randn(4, 3)
    (gradient,) = torch.autograd.grad([head, values], outputs, [d_head, d_values])
    assert torch.equal(gradient, torch.cat([d_head, d_values[..., None]], -1))
