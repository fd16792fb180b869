"""`debug`: planted faults are found, with their kernel, array and element."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from envs import ENVS
from envs.tag_gridworld import TagGridWorld
from tests.environments import fragile
from tests.environments.fragile import Fragile
from tests.environments.relay import Relay
from tests.support import by_day, by_night, needs_cuda_compiler, run
from warpdrive_min import EnvWrapper, backends, memory
from warpdrive_min.agreement import Subject
from warpdrive_min.agreement.bisect import Run, environment_run, first_fault
from warpdrive_min.agreement.changes import Change, Setting, changes, is_fresh
from warpdrive_min.backends import cuda_c
from warpdrive_min.backends.cuda_source import warp_drive_sizes, whole_text, with_starts
from warpdrive_min.commands.debug import _require_room
from warpdrive_min.errors import DeviceMemoryError
from warpdrive_min.function_manager import KERNELS, LaunchShape
from warpdrive_min.tracing import named
from warpdrive_min.training.paths.exact import exact

FRAGILE = f"{Path(fragile.__file__)}"
FOUND = {
    Fragile: {
        "no barrier": ("order", "observations"),
        "sum in any order": ("order", "rewards"),
        "shared memory": ("memory", "rewards"),
        "array": ("memory", "place"),
        "last writer": ("order", "leader"),
    },
    Relay: {
        "arrival": ("order", "slot"),
        "reused buffer": ("serial", "place"),
        "no padding": ("memory", "rewards"),
        "next environment": ("order", "observations"),
    },
}
"""Change that shows a fault on `host`, and the array that differs first."""
WITH_THREADS = {**FOUND[Fragile], "last writer": ("serial", "leader")}
"""The same of Fragile's kernels with a thread for each agent."""
KINDS = {"blocks": (Fragile, {}), "threads": (Fragile, {"threads": True}), "relay": (Relay, {"num_agents": 70})}
"""Environment and its settings, by kind of kernels."""


def fault_of(cls, change, backend="host", *, n=2, is_located=True, **config):
    """Return the first difference of an environment under a change."""
    subject = Subject(target="", cls=cls, backend=backend, config=config, n_envs=3)
    table = {each.name: each for each in changes(backends.get(backend), exact=True)}
    return first_fault(lambda: environment_run(subject), table[change], n, is_located=is_located)


PLANTED = [(kind, fault) for kind, (cls, _) in KINDS.items() for fault in FOUND[cls]]
BY_DAY = [*(each for each in PLANTED if "blocks" in each), ("relay", "reused buffer")]


@pytest.mark.parametrize(("kind", "fault"), by_day(PLANTED, BY_DAY))
def test_planted_fault_is_located(kind, fault):
    """Each fault is found in the step, at its first array.

    Without the fault, the change that shows it makes no difference.
    """
    cls, config = KINDS[kind]
    change, array = (WITH_THREADS if kind == "threads" else FOUND[cls])[fault]
    got = fault_of(cls, change, fault=fault, **config)
    assert got is not None
    assert (got.kernel, got.array) == ("step", array)
    assert got.where.startswith("step 1, launch 2, kernel 'step'"), got
    assert got.is_rounding == (fault == "sum in any order")
    if fault == "next environment":
        assert got.index[1] == config["num_agents"] - 1, "only the last agent sees another environment"
    assert fault_of(cls, change, **config) is None


def test_element_and_both_values_are_named():
    """A fault's text has the element and both runs' values.

    An agent sees its neighbour's old place in one order, the new one in the other.
    """
    fault = fault_of(Fragile, "order", fault="no barrier")
    first = EnvWrapper(Fragile("no barrier"), num_envs=3, env_backend="host", exact=True)
    first.reset()
    first.cuda_data_manager.tensor("sampled_actions").zero_()
    first.step()
    assert first.cuda_data_manager.tensor("observations")[0, 0, 0] == 0  # its neighbour had not moved
    assert "observations of environment 0, agent 0, component 0: 0 in the first run, " in fault.values
    assert "elements differ" in fault.values


def test_without_location_no_kernel_is_named():
    """Arrays are compared after each step only."""
    fault = fault_of(Fragile, "order", fault="no barrier", is_located=False)
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


def test_memory_that_one_run_lacks_is_no_fault():
    """Only the second run has no room, as the first one took it."""
    runs = iter((lambda: None, lambda: bytearray(2**62)))
    with pytest.raises(MemoryError):
        first_fault(run_of(lambda result: next(runs)), MEMORY, 1, is_located=False)


def test_room_is_for_two_runs_and_their_copies(monkeypatch):
    """Five times a run's arrays are too little.

    Measured are 5.2 to 5.9 times; without the check Linux kills the process.
    """
    monkeypatch.setattr(memory, "free_bytes", lambda device: 5 * 78 * 600_000)
    many = Subject(target="", cls=ENVS["cartpole"], backend="cpu", config={}, n_envs=600_000)
    with pytest.raises(DeviceMemoryError, match="debug --envs: the CPU has too little memory"):
        _require_room(many)


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


debug = partial(run, "debug")


def test_command_names_kernel_element_and_cause():
    """The exit code is 1, and the text says what to look for."""
    words = [FRAGILE, "--backend", "host", "--envs", "3", "--steps", "2", "--change", "order"]
    result = debug(*words, "--bisect", "--set", "fault=no barrier", exits=1)
    assert "order     DIFFERS" in result.stdout
    assert "kernel 'step'" in result.stdout
    assert "observations of environment 0, agent 0, component 0" in result.stdout
    assert "a barrier is missing" in result.stdout
    assert "a missing WD_SYNC shows no difference" not in result.stdout
    assert "a missing WD_SYNC shows no difference" in debug(*words).stdout


def test_command_repeats_a_training():
    """A training's iterations are compared, with separate kernels."""
    few = ("--backend", "cpu", "--envs", "4", "--steps", "1", "--set", "trainer.train_batch_size=16")
    result = debug("cartpole", "--train", "a2c", *few, "--bisect")
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
        (["cartpole", "--train", "a2c", "--set", "trainer.num_gpus=2"], "must be 1 for debug"),
        (["cartpole", "--backend", "cpu", "--envs", "2147483647"], "debug --envs: the CPU has too little memory"),
    ],
)
def test_bad_input_is_one_line(words, text):
    """The exit code is 2."""
    result = debug(*words, exits=2)
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
@pytest.mark.parametrize("name", ["fragile.cu", by_night("fragile_threads.cu")])
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


def first_of(cls, backend="pycuda", **config):
    """Return the first difference that any change shows, or None."""
    names = [each.name for each in changes(backends.get(backend), exact=True)]
    return next(filter(None, (fault_of(cls, name, backend, **config) for name in names)), None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "fault"), [(kind, each) for kind in KINDS for each in ("none", *FOUND[KINDS[kind][0]])]
)
def test_planted_fault_is_located_on_a_gpu(kind, fault):
    """Some change shows each fault in the step; none differs without a fault."""
    cls, config = KINDS[kind]
    found = first_of(cls, fault=fault, **{**config, "num_agents": 70})
    expected = None if fault == "none" else ("step", FOUND[cls][fault][1])
    assert (found and (found.kernel, found.array)) == expected


SCORED = "restarts = WD_SYNC_ANY(ends)"
HIDDEN = """forward<true>(tile.hidden1, tile.hidden2);
    MEET();"""


def copy_without(barrier, text, file, folder):
    """Copy a source's folder, without a barrier; return the copied file.

    The barrier is in a text that the file has once.
    """
    copy = shutil.copytree(file.parent, folder) / file.name
    source = copy.read_text()
    assert source.count(text) == 1
    copy.write_text(source.replace(text, text.replace(barrier, "")))
    return copy


@pytest.mark.gpu
def test_barrier_missing_in_a_shipped_step_is_located(tmp_path):
    """Threads of Tag GridWorld then restart an environment without the others.

    Which arrays differ then depends on which thread is first.
    """
    source = copy_without("WD_SYNC_ANY", SCORED, TagGridWorld.kernel_sources["cuda_c"], tmp_path / "tag_gridworld")

    class Unguarded(TagGridWorld):
        kernel_sources = {**TagGridWorld.kernel_sources, "cuda_c": source}  # noqa: RUF012

    found = first_of(Unguarded, n=4, num_taggers=100)
    assert found
    assert found.kernel == "step"
    assert found.array in ("loc_x", "rewards")


@pytest.mark.gpu
def test_barrier_missing_in_shipped_network_kernels_is_located(tmp_path, monkeypatch):
    """Values of exact training are then of old numbers.

    The first kernel that includes the fault is named.
    """
    copy_without("MEET();", HIDDEN, KERNELS / "exact_layers.cuh", tmp_path / "kernels")
    monkeypatch.setattr(exact, "KERNELS", tmp_path / "kernels")
    words = ["cartpole", "--backend", "pycuda", "--envs", "64", "--steps", "1", "--train", "a2c", "--bisect", "--fused"]
    words += [f"--change={name}" for name in ("memory", "delays-1", "delays-2")]
    result = debug(*words, "--set", "trainer.exact=true", "--set", "trainer.train_batch_size=1024", exits=1)
    assert "launch 2, kernel 'evaluate': out[" in result.stdout
