"""Gated units in CUDA C, by fibres and on a GPU, against torch in float64."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from tests.support import BACKENDS, by_day, by_night, needs_cuda_compiler
from tests.training.builders import CLASSIC, PPO, make_run
from tests.training.gated_cases import Case, Data
from tests.training.learning_cases import CLIP, ENTROPY_WEIGHT, VALUE_WEIGHT, WITHIN, find_twice
from tests.training.test_fused_training import trained
from tests.training.test_recurrent import replay_agrees
from warpdrive_min.backends import cuda_c
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training import config
from warpdrive_min.training.paths.constants import N_TERMS, constants_of_loss
from warpdrive_min.training.paths.cuda_c import gated
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused.loss import Learned, Rows

EMULATED = [
    Case((4, 16, 16)),
    Case((9, 20, 11), (3, 5, 2), activation="relu", is_masked=True, n_agents=3, n_envs=7, n_sequences=13),
    Case((5, 7, 16), (11,), is_shared=False, value_clip=0.3, is_clipped=False, is_taken=True, precision="tf32"),
    Case((16, 16, 9), is_weighted=True, n_envs=40, n_sequences=70, length=2),
    Case((4, 64, 64), length=2, n_sequences=33),
]
CASES = [
    *EMULATED,
    Case((4, 64, 64), n_envs=5_000, n_sequences=9_000, length=7),
    Case((4, 64, 64), is_shared=False, activation="relu", n_envs=2_000, n_sequences=3_999, length=16, is_taken=True),
    Case((31, 48, 64), (8, 7), n_envs=100, n_sequences=150, n_agents=5, is_masked=True, is_weighted=True),
]


@pytest.mark.parametrize("case", [EMULATED[1], *map(by_night, [EMULATED[0], *EMULATED[2:]])], ids=str)
def test_warps_of_fibres_find_the_gradients_of_float64(case):
    """Lanes simulated by fibres, with products in words, find the gradients."""
    n_blocks, data = 2, Data(case, torch.device("cpu"))
    sizes, rollout = data.kernel_sizes, data.rollout
    given = {"is_tanh": case.activation == "tanh", "is_tf32": case.precision == "tf32", "n_agents": case.n_agents}
    of_loss = constants_of_loss(data.space, data.rule().clipping, is_masked=case.is_masked)
    constants = sizes.constants(learns=True, **given) | of_loss
    kernel = BACKENDS["host"].compile(Path(__file__).with_name("gated_learn.cu"), constants)["learn"]
    n, n_sequences = data.vector.numel(), case.n_sequences * case.n_agents
    n_blocks = min(n_blocks, -(-n_sequences // gated.SEQUENCES))
    partial, values = torch.zeros(n_blocks, n + N_TERMS), torch.zeros_like(rollout["old_values"])
    none = torch.zeros(1, dtype=torch.int32)
    arguments = {
        **rollout,
        "room": torch.full((n_blocks, sizes.n_bytes(learns=True) // 4), torch.nan),
        "parameters": data.vector,
        "places": torch.tensor(gated.places(data.network(), data.vector), dtype=torch.int32),
        "advantages": rollout["advantages"] if data.taken is None else data.taken,
        "masks": none if rollout["masks"] is None else rollout["masks"],
        "weights": torch.zeros(1) if data.weights is None else data.weights,
        "indices": data.rows,
        "coefficients": torch.tensor([VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP]),
        "values": values,
        "kept": torch.full((n_blocks, case.length, sizes.n_kept), torch.nan),
        "partial": partial,
        "n": n_sequences,
        "length": case.length,
        "n_envs": case.n_envs,
        "state_size": rollout["states"].shape[-1],
        "n_parameters": n,
        "has": (data.weights is not None) + 2 * (data.taken is not None),
    }
    for network in [1] if case.is_shared else [0, 1]:
        arguments["network"] = network
        given = [arguments[each.name] for each in kernel.parameters]
        kernel.prepare(given, n_blocks, 32 * sizes.n_warps)()
    sums = partial.double().sum(0).float() / data.total
    data.check(sums[:n], sums[n:], values)


@pytest.mark.parametrize("of_value", [False, by_night(True)])
@pytest.mark.parametrize("has_rows", [True, by_night(False)])
def test_warps_of_fibres_pass_sequences_forward(has_rows, of_value):
    """Lanes simulated by fibres find states and outputs of sequences, or of a step."""
    case = Case((9, 20, 11), (3,), is_shared=False, n_agents=2, n_sequences=40, **({} if has_rows else {"length": 1}))
    data = Data(case, torch.device("cpu"))
    layers = data.network().value if of_value else data.network().policy
    sizes, offset, n_units = gated.Sizes.of(layers), case.sizes[2] * of_value, case.sizes[2]
    constants = sizes.constants(learns=False, is_tanh=True, is_tf32=False, n_agents=2)
    kernel = BACKENDS["host"].compile(Path(__file__).with_name("gated_evaluate.cu"), constants)["evaluate"]
    n = (case.n_sequences if has_rows else case.n_envs) * 2
    states, outputs = (
        torch.zeros(n // 2, case.length, 2, 22),
        torch.zeros(*data.rollout["returns"].shape, len(layers[-1])),
    )
    if not has_rows:  # a step of the first part's environments
        data.sequences, data.rows = torch.arange(20), torch.arange(20, dtype=torch.int32)
        data.rollout["begins"].zero_()
    arguments = {
        **data.rollout,
        **dict(zip(gated.LAYERS, layers, strict=True)),
        "room": torch.full((2, sizes.n_bytes(learns=False) // 4), torch.nan),
        "indices": data.rows,
        "next_states": states,
        "outputs": outputs,
        **{"n": n, "length": case.length, "n_envs": case.n_envs, "state_size": 22, "offset": offset},
        "has_rows": has_rows,
    }
    kernel.prepare([arguments[each.name] for each in kernel.parameters], 2, 32 * sizes.n_warps)()
    want_states, want = data.unrolled([each.double() for each in layers], of_value=of_value)
    near = {"rtol": 0, "atol": WITHIN["fp32"]}
    torch.testing.assert_close(states[..., offset : offset + n_units].double(), want_states, **near)
    got = outputs.flatten(0, 1)[data.rows.long()].unflatten(0, (-1, case.length))
    torch.testing.assert_close(got.double(), want, **near)


@needs_cuda_compiler
def test_kernels_compile_for_a_gpu():
    """The kernels compile without a GPU, for one with matrix units."""
    data = Data(Case((4, 64, 64)), torch.device("cpu"))
    given = {"is_tanh": True, "is_tf32": True, "n_agents": 1}
    of_loss = constants_of_loss(data.space, data.rule().clipping, is_masked=False)
    learning = data.kernel_sizes.constants(learns=True, **given) | of_loss
    forward = gated.Sizes.of(data.network().policy).constants(learns=False, **given)
    for name, of in {"gated_learn.cu": learning, "gated_evaluate.cu": forward}.items():
        assert cuda_c.compile_cubin(KERNELS / name, of, "sm_90").read_bytes()[:4] == b"\x7fELF"


def found(data: Data, backend: str) -> tuple[torch.Tensor, ...]:
    """Return a GPU's gradient, terms and values."""
    case, gradient, values = data.case, torch.zeros_like(data.vector), torch.zeros_like(data.rollout["old_values"])
    learned = Learned(data.vector, gradient, data.space, data.rollout, data.rule(), len(data.rows))
    how = {"precision": case.precision, "length": case.length}
    learning = gated.Learning(BACKENDS[backend], data.network(), learned, **how)
    rows = Rows(data.rows, values, data.taken, data.weights, data.total)
    find_twice(learning, rows, gradient)
    return gradient, learning.terms, values


FORMS = list(itertools.product(CASES, ("fp32", "tf32")))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["pycuda", "numba"])
@pytest.mark.parametrize(("case", "precision"), by_day(FORMS, FORMS[::4] + FORMS[3::4]), ids=str)
def test_a_gpu_finds_the_gradients_of_float64(case, precision, backend):
    """Gradients, terms and values equal float64's.

    Both runs have the same bits; the second is a CUDA graph's.
    """
    data = Data(case._replace(precision=precision))
    data.check(*found(data, backend))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("of_value", [False, True])
def test_a_gpu_passes_sequences_forward(of_value, precision):
    """States and outputs of sequences equal float64's."""
    data = Data(Case((4, 64, 64), n_envs=5_000, n_sequences=9_000, length=7, is_shared=False))
    layers, offset = (data.network().value, 64) if of_value else (data.network().policy, 0)
    evaluation = gated.Evaluation(BACKENDS["pycuda"], data.network(), of_value=of_value)
    outputs = torch.zeros(*data.rollout["returns"].shape, len(layers[-1]), device=data.device)
    states = torch.zeros(9_000, 7, 1, 128, device=data.device)
    rollout = data.rollout
    given = {"begins": rollout["begins"], "rows": data.rows, "length": 7, "next_states": states, "outputs": outputs}
    with config.precision(precision, data.device):
        evaluation(rollout["observations"], rollout["states"], **given)
    want_states, want = data.unrolled([each.double() for each in layers], of_value=of_value)
    near = {"rtol": WITHIN[precision], "atol": WITHIN[precision]}
    torch.testing.assert_close(states[..., offset : offset + 64].double(), want_states, **near)
    got = outputs.flatten(0, 1)[data.rows.long()].unflatten(0, (-1, 7))
    torch.testing.assert_close(got.double(), want, **near)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["pycuda", "numba"])
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("PPO", {"fc_dims": [8], "hidden_size": 6, "sequence_length": 3}),
        ("A2C", {"fc_dims": [64], "hidden_size": 64, "shared": False}),
        ("two policies", {"fc_dims": [16], "hidden_size": 12}),
    ],
)
def test_training_by_kernels_is_that_of_torch(name, model, backend, tmp_path):
    """Two iterations by kernels give torch's weights."""
    given = {"type": "gru", **model}
    want = trained(name, backend, tmp_path / "torch", "graph", fused=False, **given)
    got = trained(name, backend, tmp_path / "kernels", "graph", **given)
    assert max(float((got[key] - want[key]).abs().max()) for key in want) < 1e-4
    assert any(not torch.equal(got[key], want[key]) for key in want), "both went the same way"


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False])
def test_a_run_takes_the_kernels_and_truncates(shared, tmp_path):
    """A run acts and learns by the kernels; a replay has the values of the steps.

    Truncated episodes' values are those of torch, too.
    """
    model = {"type": "gru", "fc_dims": [16], "hidden_size": 12, "sequence_length": 8, "shared": shared}
    run = "cartpole", CLASSIC, {"shared": {**PPO, "model": model}}
    trainer = make_run(run, "pycuda", n_steps=24, basedir=tmp_path)
    trainer.train(2)
    trainer.collect()
    (group,) = trainer.groups.values()
    assert group.choices["acting"].path.name == "kernel of gated units, in CUDA C"
    assert group.choices["learning"].path.name == "one pass over sequences, in CUDA C"
    algorithm, buffer = group.algorithm, group.buffer
    algorithm.compute_returns(buffer)
    values, last = algorithm.values.clone(), algorithm._truncated_values.clone()
    algorithm._evaluation = None
    algorithm.compute_returns(buffer)
    torch.testing.assert_close(values, algorithm.values, rtol=1e-4, atol=1e-5)
    n_cuts = buffer.truncated.sum(0)
    assert n_cuts.any(), "an episode must be cut"
    for cut in range(len(last)):
        torch.testing.assert_close(
            last[cut][n_cuts > cut], algorithm._truncated_values[cut][n_cuts > cut], rtol=1e-4, atol=1e-5
        )
    replay_agrees(group)


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (Layers(4, (64, 64), 2, is_shared=True), None),
        (Layers(31, (64, 48), 15, is_shared=True), None),
        (Layers(4, (64, 128), 2), "needs up to 64 units"),
        (Layers(32, (64, 64), 2), "needs up to 64 units, 31 features"),
    ],
    ids=str,
)
def test_layers_that_exceed_the_chip_are_refused(layers, reason):
    """Gated units fit if weights and gradients stay on the chip."""
    why = gated.fits.why_not(Facts(gated=layers))
    assert why == reason if reason is None else re.match(reason, why)


def test_only_one_layer_may_lie_below():
    """Kernels need one hidden layer below the units."""
    assert "needs one hidden layer" in gated.one_layer.why_not(Facts(gated=Layers(4, (64, 64, 64), 2)))
    assert "no gated units" in gated.one_layer.why_not(Facts())
