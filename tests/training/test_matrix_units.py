"""Learning in CUDA C, by fibres and on a GPU, against torch in float64."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
import torch

from tests.support import BACKENDS, by_day, by_night, needs_cuda_compiler, needs_nvcc
from tests.training.learning_cases import CLIP, ENTROPY_WEIGHT, VALUE_WEIGHT, WITHIN, Case, Data, find_twice
from tests.training.models_support import in_torch
from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.training import config
from warpdrive_min.training.actions import ActionSpace
from warpdrive_min.training.paths import available
from warpdrive_min.training.paths.constants import (
    N_TERMS,
    WARPS,
    Clipping,
    Sizes,
    fits,
    group_constants,
    learning_constants,
    learning_program,
)
from warpdrive_min.training.paths.cuda_c import matrix_units, warp_groups
from warpdrive_min.training.paths.facts import Facts, Layers
from warpdrive_min.training.paths.fused.loss import Learned, Rows

CASES = [
    Case((4, 64, 64)),
    Case((4, 16, 32), is_shared=True, precision="tf32", is_weighted=True, is_dealt=False),
    Case((7, 24, 50), (3, 5, 2), activation="relu", advantages="values", is_masked=True, n_agents=3, n_rows=25),
    Case((12, 16, 16), (11,), is_shared=True, value_clip=0.3, is_clipped=False, advantages="taken"),
]
EMULATED = [CASES[0]._replace(sizes=(4, 32, 64), n_rows=40), *CASES[1:]]
"""The same with fewer products."""
LONG_ROWS = Case((149, 32, 32), (10, 10), is_shared=True, n_agents=27, advantages="taken", precision="tf32")
"""Rows as of RICE."""
MOST_BYTES = Facts().shared_bytes


@pytest.mark.parametrize("shared_bytes", [by_night(0), MOST_BYTES])
@pytest.mark.parametrize("case", [EMULATED[2], *map(by_night, EMULATED[:2]), by_night(EMULATED[3])], ids=str)
def test_warps_of_fibres_find_the_gradients_of_float64(case, shared_bytes, monkeypatch):
    """Lanes simulated by fibres, with products in words, find the gradients."""
    check_fibres(case, monkeypatch, n_warps=2, shared_bytes=shared_bytes)


@pytest.mark.parametrize(
    ("case", "n_sharing"),
    [
        (LONG_ROWS._replace(n_rows=10), 2),
        by_night(Case((40, 16, 16), (3, 2), is_shared=True, n_agents=3, n_rows=50), 2),
        by_night(Case((20, 24, 40), activation="relu", n_rows=270, is_dealt=False, is_weighted=True), 4),
    ],
    ids=str,
)
def test_warps_of_fibres_share_sums_of_many_features(case, n_sharing, monkeypatch):
    """Warps that share the first layer's sums find the gradients."""
    monkeypatch.setattr("warpdrive_min.training.paths.constants.SHARING", (n_sharing,))
    check_fibres(case, monkeypatch, n_warps=2 * n_sharing)


def check_fibres(case, monkeypatch, *, n_warps, shared_bytes=MOST_BYTES):
    """Compare the gradients of simulated warps with float64's."""
    n_blocks = 2
    monkeypatch.setattr("warpdrive_min.training.paths.constants.WARPS", n_warps)
    data = Data(case, torch.device("cpu"))
    sizes = Sizes(*case.sizes, sum(case.choices), len(case.choices), case.is_shared)
    given = {"is_tanh": case.activation == "tanh", "is_tf32": case.precision == "tf32", "is_masked": case.is_masked}
    of_agents = {"shared_bytes": shared_bytes, "n_agents": case.n_agents}
    constants = learning_constants(sizes, data.space, data.rule().clipping, **of_agents, **given)
    assert constants["IN_PARTS"] is (shared_bytes > 0 and case.precision == "fp32")
    kernels = BACKENDS["host"].compile(Path(__file__).with_name("learn.cu"), constants)
    n, rollout = data.vector.numel(), data.rollout
    partial, room = (
        torch.zeros(n_blocks, n + N_TERMS),
        torch.full((n_blocks, constants["SHARED_BYTES"] // 4), torch.nan),
    )
    gradient, terms, values = torch.zeros(n), torch.zeros(N_TERMS), rollout["old_values"].clone()
    optional = {
        "advantages": data.taken if rollout["advantages"] is None else rollout["advantages"],
        "weights": data.weights,
        "indices": data.indices,
        "masks": rollout["masks"],
    }
    has = [optional[name] is not None for name in ("advantages", "weights", "indices")] + [True, data.taken is not None]
    given = {
        **rollout,
        **{name: torch.zeros(1, dtype=torch.int32) if each is None else each for name, each in optional.items()},
        "room": room,
        "parameters": data.vector,
        "places": torch.tensor(matrix_units.places(data.network(), data.vector), dtype=torch.int32),
        "old_values": values if case.advantages == "values" else rollout["old_values"],
        "coefficients": torch.tensor([VALUE_WEIGHT, ENTROPY_WEIGHT, CLIP]),
        "values": values,
        "partial": partial,
        "n_rows": case.n_rows * case.n_agents,
        "n_parameters": n,
        "has": sum(1 << k for k, it in enumerate(has) if it),
    }
    arguments = [given[each.name] for each in kernels["learn"].parameters]
    kernels["learn"].prepare(arguments, n_blocks, 32 * n_warps)()
    n_adding = -(-(n + N_TERMS) // 32)
    adding = [torch.zeros(n_adding, n_warps, 32), partial, data.total.view(1), gradient, terms, n_blocks, n]
    kernels["add_up"].prepare(adding, n_adding, 32 * n_warps)()
    data.check(gradient, terms, values)


@pytest.mark.parametrize(("is_tf32", "n_features"), [(False, 9), by_night(True, 9), by_night(False, 41)])
def test_warps_of_fibres_evaluate_the_network(is_tf32, n_features):
    """Lanes simulated by fibres pass rows forward."""
    n_warps, n_blocks, n_rows = WARPS, 2, 300
    sizes = Sizes(n_features, 20, 32, 11, 1, False)
    data = Data(Case(sizes[:3], (11,), n_rows=n_rows), torch.device("cpu"))
    constants = sizes.constants(learns=False, is_tanh=True, is_tf32=is_tf32)
    kernel = BACKENDS["host"].compile(Path(__file__).with_name("evaluate.cu"), constants)["evaluate"]
    room = torch.full((n_blocks, sizes.n_bytes(learns=False) // 4), torch.nan)
    layers, x, out = data.layers(data.vector)[:6], data.rollout["observations"][:n_rows, 0], torch.zeros(n_rows, 11)
    kernel.prepare([room, *layers, x, out, n_rows], n_blocks, 32 * n_warps)()
    want = in_torch(x.double(), layers, data.case.activation)
    torch.testing.assert_close(out.double(), want, rtol=0, atol=WITHIN["tf32" if is_tf32 else "fp32"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("of_value", [False, True])
@pytest.mark.parametrize("case", [CASES[0]._replace(n_rows=30_001), *CASES[1:], LONG_ROWS], ids=str)
def test_a_gpu_evaluates_the_network(case, of_value, precision):
    """Logits and values equal float64's."""
    data = Data(case)
    x = data.rollout["observations"]
    layers = data.layers(data.vector)
    layers = data.value_layers(layers) if of_value else layers[:6]
    out = torch.zeros(*x.shape[:-1], len(layers[4]), device=data.device)
    with config.precision(precision, data.device):
        matrix_units.Evaluation(BACKENDS["pycuda"], data.network(), of_value=of_value)(x, out)
    want = in_torch(x.double(), layers, data.case.activation)
    torch.testing.assert_close(out.double(), want, rtol=WITHIN[precision], atol=WITHIN[precision])


@needs_cuda_compiler
def test_kernels_compile_for_a_gpu():
    """The kernels compile without a GPU, for one with matrix units."""
    space, sizes = ActionSpace((2,), 1), Sizes(4, 64, 64, 2, 1, False)
    forward = sizes.constants(learns=False, is_tanh=True, is_tf32=False)
    sources = [("evaluate.cu", forward)]
    for is_tf32 in (True, False):
        given = {"is_tanh": True, "is_tf32": is_tf32, "is_masked": False, "shared_bytes": MOST_BYTES}
        constants = learning_constants(sizes, space, Clipping(True, None), n_agents=1, **given)
        assert constants["IN_PARTS"] is not is_tf32
        sources.append(("learn.cu", constants))
        if is_tf32:
            sources.append(("group_learn.cu", group_constants(constants, sizes)))
    check_compiles(*sources)


@needs_cuda_compiler
@pytest.mark.nightly
def test_kernels_of_long_rows_compile_for_a_gpu():
    """The kernels compile for rows of RICE, whose first layer's sums two warps share."""
    space, sizes = ActionSpace(LONG_ROWS.choices, 2), Sizes(*LONG_ROWS.sizes, 20, 2, True)
    given = {"is_tanh": True, "is_tf32": True}
    rest = {"n_agents": LONG_ROWS.n_agents, "is_masked": False, "shared_bytes": MOST_BYTES}
    constants = learning_constants(sizes, space, Clipping(True, None), **given, **rest)
    assert constants["SHARING"] == 2
    check_compiles(("evaluate.cu", sizes.constants(learns=False, **given)), ("learn.cu", constants))


@needs_cuda_compiler
@pytest.mark.parametrize("of", [
    warp_groups.Pass(72, 256, 200, 48, is_bf16=False, is_tanh=True),
    by_night(warp_groups.Pass(48, 200, 256, 0, is_bf16=False, is_tanh=True)),
    by_night(warp_groups.Pass(128, 129, 256, 48, is_bf16=True, is_tanh=False)),
    by_night(warp_groups.Pass(1, 256, 129, 0, is_bf16=True, is_tanh=False)),
], ids=str)  # fmt: skip
def test_passes_by_groups_of_warps_compile_for_a_gpu(of):
    """The passes of wide networks compile for sm_90a, within its shared memory."""
    check_compiles((f"wide_{of.kernel}.cu", of.constants(MOST_BYTES)))


def check_compiles(*sources):
    """Compile sources with constants to code of a GPU."""
    for name, constants in sources:
        assert cuda_c.compile_cubin(KERNELS / name, constants, "sm_90").read_bytes()[:4] == b"\x7fELF"


def found(data: Data) -> tuple[torch.Tensor, ...]:
    """Return a GPU's gradient, terms and values."""
    case, rollout = data.case, data.rollout
    gradient, values = torch.zeros_like(data.vector), rollout["old_values"].clone()
    learned = Learned(data.vector, gradient, data.space, rollout, data.rule(), case.n_rows)
    if case.advantages == "values":
        learned.rollout["old_values"] = values
    learning = matrix_units.Learning(BACKENDS["pycuda"], data.network(), learned, precision=case.precision)
    indices, taken = data.indices, data.taken
    if not case.n_members:
        indices, taken = (None if each is None else each[0] for each in (indices, taken))
    rows = Rows(indices, values, taken, data.weights, data.total)
    find_twice(learning, rows, gradient)
    return gradient, learning.terms, values


MORE_CASES = [
    CASES[0]._replace(n_rows=30_001),
    CASES[0]._replace(n_rows=100_003, is_clipped=False, is_weighted=True),
    CASES[2]._replace(n_rows=9_000, activation="tanh", advantages="rollout", value_clip=0.1),
    Case((5, 64, 32), n_rows=500, advantages="taken", n_members=3, value_clip=0.3),
    Case((21, 32, 32), (20,), activation="relu", n_rows=1_000, is_masked=True),
    LONG_ROWS._replace(n_rows=1_500),
    Case((40, 64, 64), (7,), n_rows=9_001, is_weighted=True, n_members=2),
    Case((100, 64, 32), (11, 5), activation="relu", n_rows=5_000, is_masked=True, advantages="values"),
]
ON_GPU = list(itertools.product([*CASES, *MORE_CASES], (False, True), ("fp32", "tf32")))


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "is_shared", "precision"), by_day(ON_GPU, ON_GPU[::3]), ids=str)
def test_a_gpu_finds_the_gradients_of_float64(case, is_shared, precision):
    """Gradients, terms and values equal float64's.

    Both runs have the same bits; the second is a CUDA graph's.
    """
    data = Data(case._replace(is_shared=is_shared, precision=precision))
    data.check(*found(data))


BY_GROUPS = [
    Case((4, 64, 64), n_rows=4_133),
    Case((4, 64, 64), n_rows=64, is_dealt=False),
    Case((4, 64, 64), n_rows=100_003, is_clipped=False, is_weighted=True),
    Case((7, 40, 50), (3,), activation="relu", advantages="values", is_masked=True, n_agents=3, n_rows=25),
    Case((5, 64, 48), n_rows=500, advantages="taken", n_members=3, value_clip=0.3),
    Case((12, 56, 64), is_shared=True, value_clip=0.3, is_clipped=False, advantages="taken"),
    Case((3, 64, 33), n_agents=2),
    Case((8, 64, 64), n_rows=1_001, is_masked=True),
    Case((6, 64, 64), (2,), is_shared=True, n_rows=2_001, activation="relu", value_clip=0.3),
    Case((4, 64, 64), (1, 2), n_rows=777, is_weighted=True, advantages="taken"),
    Case((15, 64, 64), (3,), n_rows=30_001, is_masked=True, value_clip=0.2),
    Case((1, 33, 33), (1, 1, 1), n_rows=999),
    Case((9, 64, 64), advantages="values", is_clipped=False, n_rows=100_003),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", BY_GROUPS, ids=str)
def test_groups_of_warps_find_the_gradients_of_float64(case, monkeypatch):
    """Gradients, terms and values of groups equal float64's, for any number of rows."""
    if (reason := available.why_no_warp_groups("cuda")) is not None:
        pytest.skip(reason)

    def by_groups(*given):
        program = learning_program(*given)
        assert program.source.name == "group_learn.cu"
        return program

    monkeypatch.setattr("warpdrive_min.training.paths.constants.ROWS_APART", 0)
    monkeypatch.setattr(matrix_units, "ROWS_APART", 0)
    monkeypatch.setattr(matrix_units, "learning_program", by_groups)
    data = Data(case._replace(precision="tf32"))
    data.check(*found(data))


@pytest.mark.parametrize(
    ("sizes", "suits"),
    [
        (Sizes(4, 64, 64, 2, 1, False), True),
        (Sizes(15, 33, 64, 3, 3, False), True),
        (Sizes(15, 64, 64, 2, 2, True), True),
        (Sizes(16, 64, 64, 2, 1, False), False),
        (Sizes(4, 64, 32, 2, 1, False), False),
        (Sizes(4, 64, 64, 3, 1, True), False),
    ],
    ids=str,
)
def test_groups_suit_layers_of_about_64_units_with_few_outputs(sizes, suits):
    """Layers of 33 to 64 units suit groups, with up to 15 features and 3 outputs."""
    assert sizes.suits_groups is suits
    n_bytes = [sizes.n_group_bytes(sizes.n_groups(is_plain=is_plain)) for is_plain in (False, True)]
    assert max(n_bytes) <= MOST_BYTES or not suits


@needs_nvcc
@pytest.mark.parametrize(
    ("sizes", "given", "n_groups"),
    [
        (Sizes(4, 64, 64, 2, 1, False), {}, 3),
        by_night(Sizes(6, 64, 64, 2, 1, False), {"is_tanh": False}, 3),
        by_night(Sizes(1, 33, 33, 1, 1, False), {}, 3),
        by_night(Sizes(7, 64, 64, 2, 1, False), {}, 2),
        by_night(Sizes(4, 64, 64, 2, 1, False), {"is_masked": True}, 2),
        by_night(Sizes(4, 64, 64, 2, 1, False), {"n_agents": 5}, 2),
        by_night(Sizes(4, 64, 64, 2, 1, True), {}, 2),
        by_night(Sizes(15, 64, 64, 3, 1, False), {"is_masked": True, "n_agents": 2, "is_tanh": False}, 2),
    ],
    ids=str,
)
def test_products_of_groups_run_side_by_side(sizes, given, n_groups, tmp_path):
    """Nothing spills, and ptxas computes no products one after the other.

    It would only tell with -v.
    """
    space = ActionSpace((sizes.n_outputs,), 1)
    rest = {"n_agents": 1, "is_masked": False, "is_tanh": True} | given
    of_kernel = learning_constants(sizes, space, Clipping(True, 0.2), shared_bytes=MOST_BYTES, is_tf32=True, **rest)
    constants = group_constants(of_kernel, sizes)
    assert constants["WARPS"] == 4 * n_groups
    assert constants["SHARED_BYTES"] <= MOST_BYTES
    source = KERNELS / "group_learn.cu"
    (tmp_path / "unit.cu").write_text(cuda_c.unit(source, constants))
    folders = [f"-I{cuda_source.ROOT}", f"-I{source.parent}"]
    words = ["nvcc", "-cubin", "-arch=sm_90a", "-std=c++17", "-Xptxas", "-v", *folders, "unit.cu"]
    told = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert spills == [("0", "0")] * 2  # of two kernels
    assert "C75" not in told


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (Layers(4, (64, 64), 2), None),
        (Layers(40, (32, 32), 20), None),
        (Layers(4, (64, 65), 2), "needs up to 64 units"),
        (Layers(63, (64, 64), 7, is_shared=True), None),
        (Layers(64, (64, 64), 2), "needs at most 192 sums .* 207"),
        (Layers(175, (32, 32), 23, is_shared=True), None),
        (Layers(176, (32, 32), 23, is_shared=True), "needs .* bytes"),
    ],
    ids=str,
)
def test_networks_whose_sums_exceed_the_registers_are_refused(layers, reason):
    """A network fits if its gradients fit into the registers of up to four warps."""
    why = fits.why_not(Facts(network=layers))
    assert why == reason if reason is None else re.match(reason, why)
