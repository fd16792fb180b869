"""Backends: availability and reasons, declared parameters, equal kernel results."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import math
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import warpdrive_min
from tests.environments import FILL
from tests.support import is_simulated, managers, needs_host, on_every_backend, push
from warpdrive_min import BACKENDS, EnvWrapper, availability, backends
from warpdrive_min.backends import pycuda_driver
from warpdrive_min.backends.base import ANY_RANK, Availability, Packing, Parameter, PythonSignature, dtype_name
from warpdrive_min.errors import BackendUnavailable, BindingError, CompileError
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.lazy import LazyModule

# ------------------------------------------------------------------ names that are imported on first use


def test_table_of_backends_is_a_mapping_by_their_names(monkeypatch):
    """The table maps names to backends, and accepts replacements."""
    assert {name: backend.name for name, backend in BACKENDS.items()} == {name: name for name in BACKENDS}
    assert BACKENDS["cpu"] is BACKENDS["cpu"]
    assert "pycdua" not in BACKENDS
    monkeypatch.setitem(BACKENDS, "cpu", BACKENDS["host"])
    assert BACKENDS["cpu"].name == "host"
    assert len(BACKENDS) == 4


@pytest.mark.parametrize("package", [warpdrive_min, backends], ids=lambda each: each.__name__)
def test_package_has_all_its_names_and_no_others(package):
    """A misspelt name of the package raises AttributeError."""
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert {*package.__all__} <= {*dir(package)}
    with pytest.raises(AttributeError, match="has no attribute 'EnvWraper'"):
        package.EnvWraper  # noqa: B018


# ------------------------------------------------------------------ availability


def test_unknown_backend_raises_and_lists_those_known():
    """A misspelt backend raises, and never falls back to another."""
    with pytest.raises(BackendUnavailable, match=r"unknown backend .got 'pycdua'.; known are cpu, host, numba, pycuda"):
        backends.get("pycdua")


@pytest.mark.parametrize(
    ("name", "package", "message"),
    [
        ("numba", "numba", r"backend 'numba': numba-cuda is not installed; pip install -e \".*\[numba\]\""),
        ("numba", "numba_cuda", r"backend 'numba': numba-cuda is not installed"),
        ("pycuda", "pycuda", r"backend 'pycuda': PyCUDA is not installed; pip install -e \".*\[pycuda\]\""),
    ],
)
def test_backend_that_is_not_installed_says_what_to_install(monkeypatch, name, package, message):
    """A missing package raises, with the line that installs it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: None if each == package else find_spec(each))
    assert not availability()[name].available
    with pytest.raises(BackendUnavailable, match=message):
        backends.get(name)
    with pytest.raises(BackendUnavailable, match=message):
        EnvWrapper(object(), env_backend=name)


def test_arguments_are_packed_as_a_launcher_reads_them():
    """Addresses point to pointers, null pointers and scalars of the declared size."""
    parameters = [Parameter("x", "float32", ANY_RANK), Parameter("n", "int64", 0), Parameter("mask", "int32", ANY_RANK)]
    array = torch.arange(3.0)
    addresses, kept = Packing([*parameters, Parameter("rate", "float32", 0)])([array, 2**40, None, 0.5])
    types = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
    values = [each.from_address(address).value for each, address in zip(types, addresses, strict=True)]
    assert values == [array.data_ptr(), 2**40, None, 0.5]
    assert kept[0][0] is array


@pytest.mark.parametrize("name", ["cpu", "host"])
def test_backend_on_a_cpu_makes_no_programs(name):
    """Programs in CUDA C need a GPU, and no CPU runs them instead."""
    backend = backends.get(name)
    assert backend.why_no_program == f"backend {name!r} does not run on a GPU"
    with pytest.raises(BackendUnavailable, match=f"backend {name!r}: must run on a GPU .*; use pycuda or numba"):
        backend.program(KERNELS / "adam.cu", {})


@pytest.mark.parametrize("name", ["numba", "pycuda"])
@pytest.mark.parametrize(
    ("cuda", "message"),
    [
        (None, "torch is a build without CUDA; install a CUDA build of torch"),
        ("13.0", "torch finds no NVIDIA GPU; run on a machine with an NVIDIA GPU"),
    ],
)
def test_backend_without_a_gpu_says_why(monkeypatch, name, cuda, message):
    """The error separates a CPU build of torch from a missing GPU."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: each)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(BackendUnavailable, match=message):
        backends.get(name)


def test_numba_says_that_it_simulates(monkeypatch):
    """Numba's simulator needs no GPU, and captures no graphs."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda each: each)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert availability()["numba"] == Availability(True, "simulator")
    assert not BACKENDS["numba"].captures_graphs
    assert BACKENDS["numba"].device == torch.device("cpu")


def test_availability_reads_as_a_sentence():
    """Availability prints its parts, or the missing part and a remedy."""
    assert str(Availability(True)) == "available"
    assert str(Availability(True, "NumPy")) == "available (NumPy)"
    assert str(Availability(False, "no GPU", "buy one")) == "not available: no GPU; buy one"


@on_every_backend
def test_backend_tells_where_it_runs(backend):
    """CPU backends report their threads; GPU backends report none."""
    got = backends.get(backend)
    assert got is BACKENDS[backend]
    assert got.threads == {"cpu": 1, "host": torch.get_num_threads()}.get(backend)
    if backend in ("cpu", "host") or is_simulated(backend):
        assert got.device == torch.device("cpu")
        got.synchronize()
        with got.stream() as stream:
            assert stream is None


# ------------------------------------------------------------------ declared parameters


@pytest.mark.parametrize(
    ("parameter", "argument", "message"),
    [
        (Parameter("x", "int32", 0), torch.zeros(2), "scalar by value .got an array of rank 1.; declare a pointer"),
        (Parameter("x", "int32", 2), 1, "an array of rank 2 .got a scalar.; declare it by value"),
        (Parameter("x", "int32", ANY_RANK), 1, "is declared an array .got a scalar"),
        (Parameter("x", "int32", 0), 1.5, "is declared int32 .got the float 1.5.; declare it float"),
        (Parameter("x", "int32", ANY_RANK), torch.zeros(2), "is declared int32 .got float32.; change"),
        (Parameter("x", "float32", 2), torch.zeros(2), r"with rank 2 .got rank 1, shape \(2,\)"),
        (Parameter("x", "float32", 2, (None, 3)), torch.zeros(5, 4), r"with shape \(\?, 3\) .got \(5, 4\)"),
        (Parameter("x"), torch.zeros(3, 2).T, r"must be contiguous .got strides \(1, 2\)"),
    ],
)
def test_parameter_refuses_everything_else(parameter, argument, message):
    """The error names kernel, parameter, declaration and argument."""
    with pytest.raises(BindingError, match=f"kernel 'step', parameter 'x': .*{message}"):
        parameter.check("step", argument)


def test_annotations_declare_dtype_and_rank():
    """Numba's notation is read, contiguous axes included; others declare nothing."""

    def kernel(a: float32[:, ::1], b: int32[:], c: uint32, d: float, e, f: list[int]):  # noqa: F821
        local = a
        return local

    assert PythonSignature.of(kernel).parameters == (
        Parameter("a", "float32", 2),
        Parameter("b", "int32", 1),
        Parameter("c", "uint32", 0),
        Parameter("d"),
        Parameter("e"),
        Parameter("f"),
    )


class State(NamedTuple):
    """Arrays of a kernel; some field names map to reserved arrays."""

    speed: float32[:, :]  # noqa: F821
    timestep: int32[:]  # noqa: F821


def test_named_tuple_stands_for_a_parameter_a_field():
    """Fields of a named tuple bind like parameters of the kernel."""

    def kernel(force: int32, state: State, n_envs):  # noqa: F821
        pass

    signature = PythonSignature.of(kernel)
    assert signature.parameters == (
        Parameter("force", "int32", 0),
        Parameter("speed", "float32", 2),
        Parameter("_timestep_", "int32", 1),
        Parameter("n_envs"),
    )
    assert signature.pack([1, "speed", "time", 2]) == [1, State("speed", "time"), 2]


class Scene(NamedTuple):
    """Named tuple with another one in it."""

    state: State
    wind: float32[:]  # noqa: F821


def test_named_tuple_may_hold_others():
    """A named tuple may contain others, and each array binds."""

    def kernel(scene: Scene, force: int32):  # noqa: F821
        pass

    signature = PythonSignature.of(kernel)
    assert [each.name for each in signature.parameters] == ["speed", "_timestep_", "wind", "force"]
    assert signature.pack(["speed", "time", "wind", 1]) == [Scene(State("speed", "time"), "wind"), 1]


def test_dtype_names_are_numpys():
    """Torch's dtypes have NumPy's names."""
    for dtype in (torch.float32, torch.int32, torch.bool, torch.uint8, torch.int64, torch.float64):
        assert np.dtype(dtype_name(dtype)) == torch.zeros((), dtype=dtype).numpy().dtype


# ------------------------------------------------------------------ running a kernel


@on_every_backend
@pytest.mark.parametrize(("n_agents", "n_envs"), [(1, 1), (3, 2), (3, 43), (5, 26), (70, 2)])
def test_kernel_reaches_every_agent_once(backend, n_agents, n_envs):
    """A kernel reaches each agent once, with a partial last block."""
    if is_simulated(backend) and n_agents * n_envs > 150:
        n_envs = 1 + 150 // n_agents  # the simulator starts some thousand threads a second
    data, functions = managers(backend, n_agents, n_envs)
    push(data, "target", np.zeros((n_envs, n_agents), np.float32))
    push(data, "offset", [7])
    push(data, "scale", 0.5)
    assert functions.load(FILL) == ["fill"]
    launch = functions.bind("fill", data)
    for n_launches in (1, 2):
        launch()
        want = n_launches * (0.5 * np.arange(n_envs * n_agents).reshape(n_envs, n_agents) + 7)
        np.testing.assert_array_equal(data.pull_data_from_device("target"), want)


@on_every_backend
def test_launch_keeps_its_number_of_blocks(backend):
    """A launch keeps its number of blocks.

    A second preparation for fewer environments does not change it: one shape a kernel in simulation.
    """
    data, functions = managers(backend, 3, 43)
    push(data, "target", np.zeros((43, 3), np.float32))
    push(data, "offset", [7])
    push(data, "scale", 0.5)
    functions.load(FILL)
    launch, kernel = functions.bind("fill", data), functions.kernel("fill")
    few = {"target": torch.zeros(1, 3, device=BACKENDS[backend].device), "n_envs": 1}
    kernel.prepare([few.get(each.name, data.find(each.name)) for each in kernel.parameters], 1, functions.shape.threads)
    launch()
    np.testing.assert_array_equal(data.pull_data_from_device("target"), 0.5 * np.arange(129).reshape(43, 3) + 7)


@needs_host
@pytest.mark.parametrize(
    ("c_type", "value"),
    [
        ("bool", True),
        ("unsigned char", 200),
        ("int", -5),
        ("unsigned", 2**32 - 2),
        ("long long", -(2**40)),
        ("float", 0.1),
        ("double", 0.1),
    ],
)
def test_host_passes_scalars_of_every_width(tmp_path, c_type, value):
    """A scalar by value arrives complete, for any number of bytes."""
    source = tmp_path / "scalar.cu"
    source.write_text(f"WD_KERNEL(scalar)(double* out, {c_type} value) {{ out[0] = static_cast<double>(value); }}\n")
    data, functions = managers("host")
    functions.load({"cuda_c": source})
    out = torch.zeros(1, dtype=torch.float64)
    functions.bind("scalar", data, out=out, value=value)()
    assert out.item() == (float(np.float32(value)) if c_type == "float" else value)


def test_language_without_a_source_raises():
    """The error names the language without a source."""
    _, functions = managers("cpu")
    with pytest.raises(CompileError, match="'cpu': runs numpy kernels, and there is no source of one; sources: cuda_c"):
        functions.load({"cuda_c": Path("kernel.cu")})


def test_module_is_unloaded_where_another_one_is_loaded():
    """Loading a module unloads the earlier one.

    Deleting its last kernel does not.
    """

    class Module:
        """Fake of PyCUDA's module."""

    module = Module()
    there = weakref.ref(module)
    loaded = pycuda_driver.LoadedModule(module, Path("kernels.cubin"))
    del module, loaded
    gc.collect()
    assert there() is not None
    pycuda_driver.LoadedModule(Module(), Path("kernels.cubin"))
    assert there() is None


def test_lazy_module_is_replaced_by_the_module():
    """A launch calls the module itself, without indirection."""
    namespace = {}
    namespace["m"] = LazyModule("math", namespace, "m")
    assert namespace["m"].sqrt(4.0) == 2.0
    assert namespace["m"] is math
