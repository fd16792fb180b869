"""`debug`: planted faults are found, with their kernel, array and element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.environments import fragile
from tests.environments.fragile import Fragile
from tests.support import needs_cuda_compiler
from warpdrive_min import EnvWrapper, backends
from warpdrive_min.agreement import Subject
from warpdrive_min.agreement.bisect import Run, environment_run, first_fault
from warpdrive_min.agreement.changes import Change, Setting, changes, is_fresh
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.cuda_source import warp_drive_sizes, whole_text, with_starts
from warpdrive_min.cli import app
from warpdrive_min.function_manager import KERNELS, LaunchShape
from warpdrive_min.tracing import named

FRAGILE = f"{Path(fragile.__file__)}"
FOUND = {
    "no barrier": {"order": "observations"},
    "sum in any order": {"order": "rewards"},
    "shared memory": {"memory": "rewards"},
    "array": {"memory": "place"},
    "last writer": {"order": "leader"},
}
"""Change that shows a fault on `host`, and the array that differs first."""
FOUND_OF_THREADS = {**FOUND, "last writer": {"serial": "leader"}}


def fault_of(fault, change, backend="host", *, is_located=True, **config):
    """Return the first difference of Fragile under a change."""
    config = {"fault": fault, **config}
    subject = Subject(target="", cls=Fragile, backend=backend, config=config, n_envs=3)
    table = {each.name: each for each in changes(backends.get(backend), exact=True)}
    return first_fault(lambda: environment_run(subject), table[change], 2, is_located=is_located)


@pytest.mark.parametrize("threads", [False, True])
def test_planted_fault_is_located(threads):
    """Each fault is found in the step, at its first array.

    Without a fault all changes are equal.
    """
    found = FOUND_OF_THREADS if threads else FOUND
    for fault, (change, array) in {name: next(iter(each.items())) for name, each in found.items()}.items():
        got = fault_of(fault, change, threads=threads)
        assert got is not None, fault
        assert (got.kernel, got.array, got.index[0]) == ("step", array, 0), fault
        assert got.where.startswith("step 1, launch 2, kernel 'step'"), got
        assert got.is_rounding == (fault == "sum in any order"), fault
    for change in {name for each in found.values() for name in each}:
        assert fault_of("none", change, threads=threads) is None


def test_element_and_both_values_are_named():
    """A fault's text has the element and both runs' values.

    An agent sees its neighbour's old place in one order, the new one in the other.
    """
    fault = fault_of("no barrier", "order")
    first = EnvWrapper(Fragile("no barrier"), num_envs=3, env_backend="host", exact=True)
    first.reset()
    first.cuda_data_manager.tensor("sampled_actions").zero_()
    first.step()
    assert first.cuda_data_manager.tensor("observations")[0, 0, 0] == 0  # its neighbour had not moved
    assert "observations of environment 0, agent 0, component 0: 0 in the first run, " in fault.values
    assert "elements differ" in fault.values


def test_without_location_no_kernel_is_named():
    """Arrays are compared after each step only."""
    fault = fault_of("no barrier", "order", is_located=False)
    assert (fault.where, fault.kernel, fault.array) == ("step 1", "", "observations")


def wrapper():
    made = EnvWrapper(Fragile(), num_envs=3, env_backend="host")
    made.reset()
    return made


def run_of(advance):
    """Return a function that starts a run of torch, whose result is one array."""

    def start():
        result = torch.zeros(4)
        return Run(advance=advance(result), arrays=lambda: {"result": result}, wrapper=wrapper())

    return start


MEMORY = Change(name="memory", what="", hint="", second=Setting(filling=1))


def test_uninitialised_tensor_of_torch_is_found():
    """The part of a run that reads unwritten memory is named."""

    def advance(result):
        def both():
            named("fine", lambda: result.add_(torch.zeros_like(result)))()
            named("faulty", lambda: result[2:].add_(torch.empty(2)))()

        return both

    fault = first_fault(run_of(advance), MEMORY, 1, is_located=True)
    assert (fault.kernel, fault.array, fault.index) == ("faulty", "result", (2,))
    assert fault.where == "step 1, 'faulty'"


def test_memory_that_nothing_reads_is_no_fault():
    """Fresh arguments of a launch may differ until something writes them."""

    def advance(result):
        out = torch.empty(4)

        def write():
            out[:2] = 1.0

        return lambda: named("write", write, {"out": out}.items())()

    assert first_fault(run_of(advance), MEMORY, 1, is_located=True) is None


def test_difference_outside_of_kernels_is_told_from_a_kernels():
    """Arguments that differ before a launch are not its fault."""
    draws = np.random.default_rng(0)

    def advance(result):
        given = torch.zeros(4)

        def both():
            given.fill_(draws.random())
            named("copy", lambda: result.copy_(given), {"given": given, "result": result}.items())()

        return both

    fault = first_fault(run_of(advance), Change(name="again", what="", hint=""), 1, is_located=True)
    assert (fault.kernel, fault.array) == ("", "given")
    assert fault.where == "step 1, before its first kernel, outside of kernels"


def test_failure_of_one_run_is_a_fault_and_of_both_an_error():
    """Fresh memory may make one run fail, such as by a NaN."""

    def advance(result):
        def check():
            if torch.isnan(torch.empty(1)).any():
                raise RuntimeError("not a number")

        return check

    assert (
        "only the second run failed: RuntimeError: not a number"
        in f"{first_fault(run_of(advance), MEMORY, 1, is_located=True)}"
    )
    both = Change(name="both", what="", hint="", first=Setting(filling=1), second=Setting(filling=1))
    with pytest.raises(RuntimeError, match="not a number"):
        first_fault(run_of(advance), both, 1, is_located=True)


def test_setting_is_undone():
    """After a setting, fresh memory, macros, threads and blocks are as before."""
    before = np.empty, np.empty_like, cuda_c.MACROS, torch.get_num_threads(), vars(LaunchShape)["of"]
    with Setting(filling=1, macros={"WD_X": "1"}, threads=before[3] + 1, other_blocks=True).applied():
        assert torch.isnan(torch.empty(3)).all()
        assert np.isnan(np.empty(3, np.float32)).all()
        assert torch.empty(3, dtype=torch.int32)[0] == np.empty(3, np.int32)[0] - 2  # allocations take turns
        assert is_fresh(np.empty(3), torch.empty(3, dtype=torch.float64).numpy()).all()
        assert cuda_c.MACROS["WD_X"] == "1"
        assert torch.get_num_threads() == before[3] + 1
    assert before == (np.empty, np.empty_like, cuda_c.MACROS, torch.get_num_threads(), vars(LaunchShape)["of"])


def test_changes_fit_the_backend():
    """Only exact runs may be built or split differently."""

    def names(backend, exact):
        return [each.name for each in changes(backends.BACKENDS[backend], exact=exact)]

    assert names("host", True) == ["again", "memory", "order", "serial", "threads", "blocks"]
    assert names("host", False) == names("cpu", False) == ["again", "memory"]


# ------------------------------------------------------------------ command


def invoke(*words):
    return CliRunner().invoke(app, ["debug", *words])


def test_command_names_kernel_element_and_cause():
    """The exit code is 1, and the text says what to look for."""
    words = [FRAGILE, "--backend", "host", "--envs", "3", "--steps", "2", "--change", "order"]
    result = invoke(*words, "--bisect", "--set", "fault=no barrier")
    assert result.exit_code == 1, result.output
    assert "order     DIFFERS" in result.stdout
    assert "kernel 'step'" in result.stdout
    assert "observations of environment 0, agent 0, component 0" in result.stdout
    assert "a barrier is missing" in result.stdout
    assert invoke(*words).exit_code == 0


def test_command_repeats_a_training():
    """A training's iterations are compared, with separate kernels."""
    result = invoke("cartpole", "--train", "a2c", "--backend", "cpu", "--envs", "4", "--steps", "1", "--bisect")
    assert result.exit_code == 0, result.output
    assert "memory    equal" in result.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nope"], "debug: unknown environment"),
        (["cartpole", "--backend", "cpu", "--change", "x"], "debug.change: unknown for cpu (got 'x')"),
        ([FRAGILE, "--backend", "cpu"], "must have numpy kernels for backend 'cpu'"),
        (["cartpole", "--fused"], "debug.fused: is for --train with --bisect"),
        (["cartpole", "--train", "a2c", "--fused"], "debug.fused: is for --train with --bisect"),
        (["cartpole", "--train", "a2c", "--envs", "8", "--set", "trainer.num_envs=4"], "must be that of --envs, 8"),
        (["cartpole", "--train", "a2c", "--set", "population.size=2"], "must be null for debug"),
    ],
)
def test_bad_input_is_one_line(words, text):
    """The exit code is 2."""
    result = invoke(*words)
    assert result.exit_code == 2
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


# ------------------------------------------------------------------ GPU


def test_kernels_start_with_a_statement():
    """It stands after the brace of a kernel's definition, on the same line."""
    text = (
        "// WD_KERNEL(a)(int n) {\nWD_KERNEL(b)(int /*)*/ n) // {\n{ f(); }\n__global__ void c(int n);\nvoid d() {}\n"
    )
    assert with_starts(text, " x;") == text.replace("{ f(); }", "{ x; f(); }")


@needs_cuda_compiler
@pytest.mark.parametrize("name", ["fragile.cu", "fragile_threads.cu"])
def test_delayed_kernels_compile_for_a_gpu(name):
    """Delays are in the machine code of both kinds of kernels."""
    path = Path(FRAGILE).with_name(name)
    sizes = {**LaunchShape.of(5).constants(), **warp_drive_sizes(whole_text(path), 3, 5, 1), "N_AGENTS": 5}
    constants = {**sizes, "EXACT": True, "AUTO_RESET": True, "EPISODE_LENGTH": 6, "FAULT": 0}
    plain = cuda_c.compile_cubin(path, constants, "sm_90")
    with Setting(macros={cuda_c.DELAY: "1u"}).applied():
        delayed = cuda_c.compile_cubin(path, constants, "sm_90")
    assert delayed.stat().st_size > plain.stat().st_size
    assert cuda_c.compile_cubin(KERNELS / "fill_shared.cu", constants, "sm_90").stat().st_size


ON_A_GPU = {fault: next(iter(found.values())) for fault, found in FOUND.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("fault", ["none", *ON_A_GPU])
def test_planted_fault_is_located_on_a_gpu(fault, threads):
    """Some change shows each fault in the step; none differs without a fault."""
    names = [each.name for each in changes(backends.get("pycuda"), exact=True)]
    tried = [fault_of(fault, name, "pycuda", threads=threads, num_agents=70) for name in names]
    found = {(each.kernel, each.array) for each in tried if each}
    assert found == ({("step", ON_A_GPU[fault])} if fault != "none" else set())
