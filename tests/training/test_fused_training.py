"""Training through fused kernels against torch's, and its small parts."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support import by_night
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
GRID = (*RUNS["shared, grid"][:2], {"shared": {**PPO, "model": {"shared": False}}})
POPULATIONS = {
    "A2C, members": ({**A2C, "clip_grad_norm": True}, {"lr": [1e-2, 1e-3]}),
    "PPO, members": (PPO, {"clip_param": [0.1, 0.3], "entropy_coeff": [0.0, 0.1], "max_grad_norm": [0.1, 9.0]}),
    "PPO, normalised members": ({**PPO, "normalize_advantage": True, "value_clip": 0.1, "target_kl": 1e-3}, {}),
    "PPO, members of several agents": (GRID, {}),
    "PPO, continuous members": (("pendulum", CLASSIC, {"shared": PPO}), {}),
}
"""Runs, or policies of CartPole, and what differs between members."""


def trained(name, backend, folder, mode="eager", n_members=4, **model):
    """Return weights of a two-layer run or population after two iterations."""
    run, table = POPULATIONS.get(name, ((RUNS | {"centralised critic": CENTRALISED}).get(name), None))
    env, config, policies = ("cartpole", CLASSIC, {"shared": run}) if isinstance(run, dict) else run
    layers = {"fc_dims": [8, 8], "activation": "tanh", **model}
    two = {}
    for policy, keys in policies.items():
        models = dict.fromkeys(keys["model"], layers) if keys["algorithm"] == "DDPG" else {**keys["model"], **layers}
        critic = {"centralised_critic": layers} if "centralised_critic" in keys else {}
        two[policy] = {**keys, "model": models, **critic}
    if table is not None:
        trainer = make_population(n_members, (env, config, two), backend, population=table, basedir=folder)
    else:
        trainer = make_run((env, config, two), backend, trainer={"mode": mode}, basedir=folder)
    trainer.train(2)
    return weights(trainer)


ALGORITHMS = [(name, {}) for name in ("PPO, continuous", "DDPG", "centralised critic", "PPO", "A2C", "two policies")]
MODELS = [
    ("PPO", {"type": "gru", "hidden_size": 4, "sequence_length": 3}),
    ("A2C", {"normalize_observations": True}),
    ("A2C", {"shared": False}),
    ("PPO", {"shared": False, "activation": "relu"}),
]
BY_TRITON = [*ALGORITHMS, *MODELS, *((name, {}) for name in POPULATIONS)]
BY_CPU = [(name, {}) for name, _ in ALGORITHMS if name != "DDPG"]
BY_CPU += [("PPO", {"shared": False, "activation": "relu"}), ("PPO, continuous", {"learn_log_std": False})]
ON_GPU = [*ALGORITHMS[:3], ("PPO, normalised members", {}), ("PPO, members of several agents", {})]
"""The others are nightly on a GPU: each compiles for seconds."""
SLOW = (
    "two policies",
    "centralised critic",
    "A2C, members",
    "PPO, members",
    "PPO, continuous members",
    "PPO, members of several agents",
    "PPO, normalised members",
)
"""Nightly in Triton's interpreter; the first two train by C++ by day."""
IN_ONE_PASS = {"A2C", "PPO", "two policies", *POPULATIONS} - {"PPO, continuous members"}
"""Small networks of discrete actions, with no stored outputs before gradients."""
GATHERED = {"PPO, normalised members", "PPO, continuous members"}
"""Populations whose rows are gathered by a kernel."""


def interpreted(monkeypatch):
    """Let Triton's interpreter replace a GPU; return lists of calls."""
    passes, taken, find = [], [], learning.Learning.find
    monkeypatch.setattr(
        learning.Learning, "find", lambda self, *rows, **given: (passes.append(1), find(self, *rows, **given))
    )
    monkeypatch.setattr(actor_critic, "take", lambda *given: (taken.append(1), take(*given))[1])
    interpret(monkeypatch)
    return passes, taken


@pytest.mark.parametrize(
    ("way", "name", "model"),
    [
        *(
            by_night("Triton", *case) if case[0] in SLOW or "activation" in case[1] else ("Triton", *case)
            for case in BY_TRITON
        ),
        *(("C++", *case) for case in BY_CPU),
        *(
            pytest.param("GPU", *case, marks=[pytest.mark.gpu, *([pytest.mark.nightly] * (case not in ON_GPU))])
            for case in BY_TRITON
        ),
    ],
)
def test_training_by_kernels_is_that_of_torch(way, name, model, tmp_path, monkeypatch):
    """Training with fused kernels gives torch's weights."""
    backend, mode, n_members = ("pycuda", "graph", 4) if way == "GPU" else ("host", "eager", 2)
    want = trained(name, backend, tmp_path / "torch", mode, n_members, fused=False, **model)
    if way == "Triton":
        passes, taken = interpreted(monkeypatch)
    got = trained(name, backend, tmp_path / "fused", mode, n_members, **model)
    if way == "Triton":
        assert bool(passes) == (name in IN_ONE_PASS and not model.keys() & {"type", "normalize_observations"})
        assert bool(taken) == (name in GATHERED) or name not in POPULATIONS
    assert got.keys() == want.keys()
    within = 1e-4 if way == "GPU" else 1e-6 if way == "Triton" and name not in POPULATIONS else 2e-6
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < within
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


def test_kernels_that_must_be_need_a_gpu(tmp_path):
    """``fused: true`` on a CPU raises with a remedy."""
    with refused("run config policy.shared.model.fused", available.triton_status("cpu")):
        trained("A2C", "host", tmp_path, fused=True)


def test_what_is_missing_is_named(monkeypatch):
    """The error names a missing C compiler.

    Without one Triton cannot launch, and nothing is fused.
    """
    monkeypatch.setenv("CC", "no-such-compiler")
    available.missing_for_triton.cache_clear()
    available.why_no_triton.cache_clear()
    try:
        assert available.missing_for_triton() == "a C compiler"
        assert "missing: a C compiler" in available.why_no_triton("cuda")
    finally:
        monkeypatch.undo()
        available.missing_for_triton.cache_clear()
        available.why_no_triton.cache_clear()


@pytest.mark.gpu
def test_kernels_that_must_be_are_or_say_why_not(tmp_path):
    """``fused: true`` trains with a kernel, or raises the reason."""
    trained("A2C", "pycuda", tmp_path / "fits", fused=True)
    with pytest.raises(ConfigError, match=r"model\.fused: the activation must be relu or tanh"):
        trained("A2C", "pycuda", tmp_path / "does not", fused=True, activation="gelu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3), (50, 2, 5), (50, 200), (50, 41, 30)])
def test_take_gathers_rows(shape, dtype):
    """`take` gathers rows of any width, order and number."""
    array = torch.arange(torch.Size(shape).numel(), dtype=dtype, device=DEVICE).view(shape)
    for indices in (torch.tensor([49, 0, 7, 7], device=DEVICE), torch.arange(49, -1, -1, device=DEVICE).int()):
        assert torch.equal(take(array, indices), array[indices.long()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (71,), (3, 4)])
@pytest.mark.parametrize("chosen", [[6, 0, 3], [5], [*range(8)]], ids=len)
def test_rows_of_agents_are_picked_and_placed(chosen, shape, dtype):
    """Agents' rows are picked and placed as in torch.

    Agents' rows may be part of longer ones. Misfits raise.
    """
    n_envs, agents = 37, torch.tensor(chosen, device=DEVICE)
    whole = torch.arange(n_envs * 8 * math.prod(shape), device=DEVICE).view(n_envs, 8, *shape).to(dtype)
    some = torch.zeros(n_envs, len(chosen), *shape, dtype=dtype, device=DEVICE)
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
    assert len(chosen) == 1 or not can_move(some.transpose(0, 1), whole)


def test_columns_are_joined_where_they_lie_and_copied_elsewhere():
    """Adjacent columns are joined in place; others are copied."""
    outputs = torch.randn(4, 3, 6, requires_grad=True)
    head, values = columns.split(outputs)
    assert torch.equal(columns.parent_array(head, values), outputs)
    assert columns.parent_array(head, values.clone()) is None
    assert columns.parent_array(head[1:], values[:-1]) is None
    assert columns.parent_array(outputs[..., :-2], outputs[..., -2]) is None
    d_head, d_values = torch.randn(4, 3, 5), torch.randn(4, 3)
    (gradient,) = torch.autograd.grad([head, values], outputs, [d_head, d_values])
    assert torch.equal(gradient, torch.cat([d_head, d_values[..., None]], -1))
