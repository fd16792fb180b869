"""WarpDrive's managers, used as in its tutorials on Numba.

Compiled files are tested with a fake driver.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from warp_drive.managers.numba_managers.numba_data_manager import NumbaDataManager
from warp_drive.managers.numba_managers.numba_function_manager import (
    NumbaEnvironmentReset,
    NumbaFunctionManager,
    NumbaLogController,
    NumbaSampler,
)
from warp_drive.managers.pycuda_managers.pycuda_data_manager import CudaTensorHolder, PyCUDADataManager
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.pycuda_utils.misc import check_env_header, update_env_header

from tests.compat.builders import BLOCKS, name_of, needs_numba
from tests.compat.walkers import CUDA_SOURCE, Walkers
from tests.support import needs_cuda_compiler
from warpdrive_min import BACKENDS, EnvironmentRegistrar
from warpdrive_min.backends.base import Availability
from warpdrive_min.backends.numba_cuda import declared_parameters, scalar
from warpdrive_min.errors import BackendUnavailable, ConfigError

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for the driver")

MANAGERS = {"numba": (NumbaDataManager, NumbaFunctionManager), "pycuda": (PyCUDADataManager, PyCUDAFunctionManager)}
DOUBLE = Path(__file__).with_name("double.cu")


def feed(**entries):
    """Return a feed; lists become arrays with reset copies and logs."""
    result = DataFeed()
    for name, value in entries.items():
        is_array = isinstance(value, list)
        result.add_data(name, value, is_array, is_array)
    return result


# ------------------------------------------------------------------ a run by hand


def doubling(backend, blocks):
    """Return managers and a launcher that halves x and doubles y."""
    data_manager, function_manager = MANAGERS[backend]
    data = data_manager(num_agents=5, num_envs=2, blocks_per_env=blocks, episode_length=2)
    functions = function_manager(int(data.meta_info("n_agents")), int(data.meta_info("n_envs")), blocks)
    if backend == "numba":
        functions.import_numba_from_source_code("tests.compat.double_numba")
    else:
        functions.load_cuda_from_source_code(DOUBLE.read_text())
    functions.initialize_functions(["halve_and_double"])
    function = functions.get_function("halve_and_double")

    def launch(target, number):
        arrays = [data.device_data(name) for name in ("x", "y", "_done_", "factor")]
        arguments = [*arrays, np.int32(target), np.int32(number), data.meta_info("episode_length")]
        if backend == "numba":
            function[functions.grid, functions.block](*arguments)
        else:
            function(*arguments, block=functions.block, grid=functions.grid)

    return data, functions, launch


@pytest.mark.parametrize(("backend", "blocks"), BLOCKS)
def test_kernel_log_and_reset_work_together(backend, blocks, monkeypatch):
    """WarpDrive's sequence works: launch, log, reset.

    Copies end at different times.
    """
    data, functions, launch = doubling(name_of(backend, monkeypatch), blocks)
    logger, resetter = NumbaLogController(function_manager=functions), NumbaEnvironmentReset(function_manager=functions)
    data.push_data_to_device(feed(x=[[0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0]], factor=2.0))
    data.push_data_to_device(feed(y=[[6, 7, 8, 9, 10], [1, 2, 3, 4, 5]]))
    assert data.scalar_data_list == ["factor"]
    assert sorted(data.host_data)[-3:] == ["factor", "x", "y"]

    def step(target, number):
        resetter.reset_when_done(data)
        launch(target, number)

    assert data.pull_data_from_device("_log_mask_").tolist() == [0, 0, 0]
    for env_id, want_x, want_y in ((0, [0.3, 0.15, 0.075], [8, 16, 32]), (1, [0.8, 0.4, 0.2], [3, 6, 12])):
        resetter.reset_when_done(data, mode="force_reset")
        logger.reset_log(data_manager=data, env_id=env_id)
        assert data.pull_data_from_device("_log_mask_").tolist() == [1, 0, 0]
        for number in (1, 2):
            step(100, number)
            logger.update_log(data_manager=data, step=number)
        log = logger.fetch_log(data_manager=data, names=["x", "y"])
        np.testing.assert_allclose(log["x_for_log"].mean(1), want_x, rtol=1e-6)
        np.testing.assert_array_equal(log["y_for_log"].mean(1), want_y)
        assert data.pull_data_from_device("_log_mask_").tolist() == [1, 1, 1]
        assert data.pull_data_from_device("_done_").tolist() == [1, 1]

    resetter.reset_when_done(data)
    assert data.pull_data_from_device("y").tolist() == [[6, 7, 8, 9, 10], [1, 2, 3, 4, 5]]
    step(15, 1)
    assert data.pull_data_from_device("_done_").tolist() == [1, 0], "only copy 0 has a value of 15 or more"
    step(15, 2)
    np.testing.assert_array_equal(data.pull_data_from_device("y").mean(1), [16, 12])


@needs_numba
def test_sampler_draws_what_is_certain():
    """WarpDrive's sampler draws every certain action."""
    data = NumbaDataManager(num_agents=3, num_envs=2, episode_length=1)
    functions = NumbaFunctionManager(num_agents=3, num_envs=2)
    functions.import_numba_from_source_code("warp_drive.numba_includes.test_build")
    sampler = NumbaSampler(function_manager=functions)
    sampler.init_random(seed=None)
    actions = DataFeed()
    actions.add_data("sampled_actions_a", [[[0], [0], [0]], [[0], [0], [0]]])
    data.push_data_to_device(actions, torch_accessible=True)
    sampler.register_actions(data, "sampled_actions_a", 3)
    want = np.array([[0, 2, 1], [2, 1, 0]])
    distribution = torch.from_numpy(np.eye(3, dtype=np.float32)[want]).to(data.device)
    sampler.sample(data, distribution, action_name="sampled_actions_a")
    assert data.pull_data_from_device("sampled_actions_a")[:, :, 0].tolist() == want.tolist()


# ------------------------------------------------------------------ loading


@needs_numba
def test_environment_without_a_source_is_an_error():
    """The message says where sources are registered."""
    functions = NumbaFunctionManager(2, 2)
    with pytest.raises(ConfigError, match="'Nowhere': has no source for 'numba' in the registrar"):
        functions.dynamic_import_numba("Nowhere", "header", "runner")


def test_pycuda_managers_need_a_gpu():
    """Without a GPU the backend's error names the missing part."""
    if BACKENDS["pycuda"].availability().available:
        pytest.skip("there is a GPU")
    with pytest.raises(BackendUnavailable, match="backend 'pycuda'"):
        PyCUDADataManager(num_agents=1, num_envs=1, episode_length=1)


@pytest.fixture
def compiled(monkeypatch):
    """Allow PyCUDA's manager without a GPU; return its compilations."""
    calls = []
    monkeypatch.setattr(type(BACKENDS["pycuda"]), "availability", lambda self: Availability(True))
    monkeypatch.setattr(
        type(BACKENDS["pycuda"]),
        "compile",
        lambda self, path, constants: calls.append((path.read_text(), constants)) or {},
    )
    return calls


@without_gpu
def test_pycuda_manager_compiles_text_and_registered_files(compiled):
    """Compiled text and files get sizes only if they use them."""
    registrar = EnvironmentRegistrar()
    registrar.add_cuda_env_src_path(Walkers.name, str(CUDA_SOURCE))
    functions = PyCUDAFunctionManager(num_agents=6, num_envs=3, blocks_per_env=2)
    functions.load_cuda_from_source_code('extern "C" __global__ void f(float* x) {}', default_functions_included=False)
    functions.compile_and_load_cuda("Walkers", "header.h", "runner.cu", customized_env_registrar=registrar)
    (plain, plain_constants), (walkers, constants) = compiled
    assert plain.endswith("void f(float* x) {}")
    assert "wkNumberAgents" not in plain_constants
    assert walkers == CUDA_SOURCE.read_text()
    assert [constants[name] for name in ("wkNumberEnvs", "wkNumberAgents", "wkBlocksPerEnv")] == [3, 6, 2]
    assert (functions.block, functions.grid) == ((3, 1, 1), (6, 1))


@without_gpu
def test_compiled_file_needs_its_source(compiled, tmp_path):
    """A compiled file without a source is refused."""
    with pytest.raises(ConfigError, match="needs the source cuda_includes"):
        PyCUDAFunctionManager().load_cuda_from_binary_file(tmp_path / "nothing.fatbin")


def test_tensor_holder_is_a_pointer():
    """The holder keeps the tensor and has its address."""
    tensor = torch.zeros(2)
    holder = CudaTensorHolder(tensor)
    assert holder.gpudata == holder.get_pointer() == tensor.data_ptr()


# ------------------------------------------------------------------ arguments of Numba kernels


@needs_numba
def test_explicit_signature_declares_the_parameters():
    """A single explicit signature gives dtypes and ranks of parameters."""
    from numba import boolean, float32, int32

    def kernel(states, is_full, length):
        pass

    class Dispatcher:
        py_func = staticmethod(kernel)
        signatures = [(float32[:, ::1], boolean, int32)]  # noqa: RUF012

    got = declared_parameters(Dispatcher())
    assert [(each.name, each.dtype, each.rank) for each in got] == [
        ("states", "float32", 2),
        ("is_full", "bool", 0),
        ("length", "int32", 0),
    ]
    Dispatcher.signatures = Dispatcher.signatures * 2
    assert [each.dtype for each in declared_parameters(Dispatcher())] == [None] * 3


def test_scalars_are_32_bits_wide():
    """Scalars are 32 bits wide.

    Numba would use 64 bits for a Python number and its arithmetic.
    """
    for value, dtype, want in ((1, None, "int32"), (True, None, "int32"), (0.5, None, "float32"), (1, "bool", "bool")):
        assert scalar(value, dtype).dtype == want
    assert scalar(2, "float32").dtype == "float32"


# ------------------------------------------------------------------ features of WarpDrive alone


@needs_numba
def test_parts_of_a_reset_restore_arrays_or_draw_from_pools():
    """Each part of a reset works alone; the wrong one raises."""
    data = NumbaDataManager(num_agents=2, num_envs=2, episode_length=3)
    data.push_data_to_device(feed(x=[[1.0, 2.0], [3.0, 4.0]]), torch_accessible=True)
    reset = NumbaEnvironmentReset(NumbaFunctionManager(num_agents=2, num_envs=2))
    data.tensor("x").zero_()
    data.tensor("_done_")[1] = 1
    reset.reset_when_done_from_pool(data, 1)
    assert not data.tensor("x").any()
    reset.reset_when_done_deterministic(data, 0)
    assert data.tensor("x").tolist() == [[0, 0], [3, 4]]
    reset.reset_when_done_deterministic(data, 1)
    assert data.tensor("x").tolist() == [[1, 2], [3, 4]]
    assert data.tensor("_done_").tolist() == [0, 1]
    assert list(data.device_data_via_torch) == ["_done_", "x"]
    drawn = DataFeed()
    drawn.add_data("y", [0.0, 0.0], per_env=True)
    drawn["y"]["attributes"]["n_copies"] = 2
    drawn.add_pool_for_reset("y_pool", [[5.0, 6.0], [5.0, 6.0]], reset_target="y")
    data.push_data_to_device(drawn)
    with pytest.raises(ConfigError, match="is only a part of this environment's reset; call reset_when_done"):
        reset.reset_when_done_deterministic(data, 1)


@needs_cuda_compiler
def test_source_is_compiled_into_a_file(tmp_path):
    """The source compiles to machine code in a new folder."""
    update_env_header("template_env_config.h", num_envs=2, num_agents=5)
    check_env_header(num_envs=2, num_agents=5)
    with pytest.raises(ConfigError, match="must have the sizes"):
        check_env_header(num_envs=2, num_agents=4)
    PyCUDAFunctionManager._compile(DOUBLE, tmp_path / "bin" / "double.cubin", arch="sm_90")
    assert b"halve_and_double" in (tmp_path / "bin" / "double.cubin").read_bytes()


def test_registrar_takes_old_names_of_arguments(registrar):
    """Old argument names of WarpDrive 1 set the backend, and warn."""
    with pytest.warns(DeprecationWarning, match="device is the old name of env_backend"):
        registrar.add(device="cuda")(Walkers)
    with pytest.warns(DeprecationWarning, match="use_cuda is the old name of env_backend"):
        assert registrar.get("Walkers", use_cuda=True) is Walkers
    with pytest.warns(DeprecationWarning, match="device"):
        assert not registrar.has_env("Walkers", device="cpu")
