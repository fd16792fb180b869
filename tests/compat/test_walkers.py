"""A user's environment with a thread for each agent."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU
from warp_drive.managers.numba_managers.numba_data_manager import NumbaDataManager
from warp_drive.managers.numba_managers.numba_function_manager import NumbaFunctionManager

from tests.compat.builders import BLOCKS, needs_numba, start
from tests.compat.walkers import CUDA_SOURCE, NUMBA_SOURCE, CUDAWalkers, Walkers
from tests.support import needs_cuda_compiler, needs_nvcc
from warpdrive_min.backends import cuda_c, cuda_source
from warpdrive_min.compat.numba_modules import CONFIG
from warpdrive_min.errors import CompileError, ConfigError

# ------------------------------------------------------------------ running


@pytest.mark.parametrize(("backend", "blocks"), BLOCKS)
def test_walkers_step_as_worked_by_hand(backend, blocks):
    """Walkers move, meet and wrap around as computed by hand.

    Cells 0, 2, 4 of 6 step +1, -1, 0 and meet at 1; in copy 1 agent 0 wraps to 5.
    """
    wrapper = start(CUDAWalkers(), backend, blocks=blocks)
    data = wrapper.cuda_data_manager
    data.data_on_device_via_torch("sampled_actions")[:, :, 0] = torch.tensor([[1, 2, 0], [2, 0, 1]])
    wrapper.step_all_envs()
    np.testing.assert_array_equal(data.pull_data_from_device("cell"), [[1, 1, 4], [5, 2, 5]])
    np.testing.assert_array_equal(data.pull_data_from_device("rewards"), [[0.5, 0.5, 0], [0.5, 0, 0.5]])
    want = np.float32(
        [[[1 / 6, 1, 0.25], [1 / 6, 1, 0.25], [4 / 6, 0, 0.25]], [[5 / 6, 1, 0.25], [2 / 6, 0, 0.25], [5 / 6, 1, 0.25]]]
    )
    np.testing.assert_allclose(data.pull_data_from_device("observations"), want, rtol=1e-6)
    np.testing.assert_array_equal(data.pull_data_from_device("_timestep_"), [1, 1])


@pytest.mark.parametrize(("backend", "blocks"), BLOCKS)
def test_consistency_checker_runs_the_users_classes(backend, blocks, registrar):
    """The checker runs a user's two classes, which agree."""
    checker = EnvironmentCPUvsGPU(
        cpu_env_class=Walkers,
        cuda_env_class=CUDAWalkers,
        env_configs={"three": {"num_agents": 3, "episode_length": 2}},
        num_envs=2,
        blocks_per_env=blocks,
        num_episodes=2,
        gpu_env_backend=backend,
        env_registrar=registrar,
    )
    assert checker.test_env_reset_and_step(seed=1) < 1e-6


@pytest.mark.gpu
def test_large_environment_over_eight_blocks_agrees_with_python():
    """5,000 agents on eight blocks agree with Python."""
    wrapper = start(CUDAWalkers(num_agents=5000), "pycuda", n_envs=3, blocks=8)
    data, reference = wrapper.cuda_data_manager, Walkers(num_agents=5000)
    reference.reset()
    generator = np.random.default_rng(0)
    for _ in range(4):
        actions = generator.integers(0, 3, 5000, dtype=np.int32)
        data.data_on_device_via_torch("sampled_actions")[:, :, 0] = torch.from_numpy(actions).cuda()
        wrapper.step()
        observations, rewards, _, _ = reference.step(dict(enumerate(actions)))
        assert max(rewards.values()) > 0
        for env in range(3):
            np.testing.assert_array_equal(data.pull_data_from_device("rewards")[env], list(rewards.values()))
        np.testing.assert_allclose(data.pull_data_from_device("observations")[2], list(observations.values()))


# ------------------------------------------------------------------ Numba's config


def _sizes(n_agents: int, n_envs: int, load: str = "import") -> list[int]:
    functions = NumbaFunctionManager(num_agents=n_agents, num_envs=n_envs)
    data = NumbaDataManager(num_agents=n_agents, num_envs=n_envs, episode_length=1)
    if load == "import":
        functions.import_numba_from_source_code(NUMBA_SOURCE)
    else:
        functions.dynamic_import_numba(Walkers.name, "template_env_config.txt", "template_env_runner.txt")
    functions.initialize_functions(["sizes", "NumbaWalkersStep"])
    from warp_drive.utils.data_feed import DataFeed

    feed = DataFeed()
    feed.add_data("out", np.zeros(4, np.int32))
    data.push_data_to_device(feed)
    functions.get_function("sizes")[1, 1](data.device_data("out"))
    return data.pull_data_from_device("out").tolist()


@needs_numba
def test_several_sizes_live_in_one_process():
    """Environments of several sizes run in one process."""
    small, large = start(CUDAWalkers(2), "numba"), start(CUDAWalkers(4), "numba", n_envs=1)
    for wrapper in (small, large, small):
        data = wrapper.cuda_data_manager
        data.data_on_device_via_torch("sampled_actions").fill_(2)
        wrapper.step()
    np.testing.assert_array_equal(small.cuda_data_manager.pull_data_from_device("cell"), [[2, 0]] * 2)
    np.testing.assert_array_equal(large.cuda_data_manager.pull_data_from_device("cell"), [[7, 1, 3, 5]])


@needs_numba
@pytest.mark.parametrize("load", ["import", "registered"])
def test_step_module_sees_the_managers_sizes(load):
    """The step module sees the manager's sizes at each load."""
    assert _sizes(3, 7, load) == [7, 3, 1, 1]
    assert _sizes(5, 2, load) == [2, 5, 1, 1]


@needs_numba
def test_device_functions_are_no_kernels():
    """Device functions cannot be launched, and their names stay free."""
    functions = NumbaFunctionManager(num_agents=2, num_envs=2)
    functions.import_numba_from_source_code(NUMBA_SOURCE)
    assert functions.has_function("sizes")
    assert not functions.has_function("wrap")


@needs_numba
def test_config_is_there_while_a_module_loads_only():
    """The config can be imported only while a module loads."""
    _sizes(3, 2)
    helper = "tests.compat.walkers_moves_numba"
    assert not {CONFIG, NUMBA_SOURCE, helper} & set(sys.modules)
    with pytest.raises(ImportError, match="env_config"):
        importlib.import_module(helper)


@needs_numba
def test_numba_environment_has_one_block():
    """Numba refuses several blocks per environment, for want of a barrier."""
    functions = NumbaFunctionManager(num_agents=4, num_envs=2, blocks_per_env=2)
    with pytest.raises(ConfigError, match=r"blocks_per_env must be 1 .*got 2"):
        functions.import_numba_from_source_code(NUMBA_SOURCE)


# ------------------------------------------------------------------ CUDA C


def _constants(blocks: int) -> dict[str, int]:
    text = CUDA_SOURCE.read_text()
    shape = {"N_AGENTS": 5, "THREADS": 32, "ENVS_PER_BLOCK": 1, "BLOCKS_PER_ENV": 1, "EXACT": False}
    return {**shape, **cuda_source.warp_drive_sizes(text, n_envs=2, n_agents=5, blocks_per_env=blocks)}


@needs_cuda_compiler
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_cuda_source_compiles_for_the_gpu(blocks):
    """The source compiles for each number of blocks per environment."""
    cubin = cuda_c.compile_cubin(CUDA_SOURCE, _constants(blocks), "sm_90")
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    declared = cuda_source.signatures(CUDA_SOURCE.read_text(), {}, "walkers_step.cu")
    assert list(declared) == ["CudaWalkersStep", "CudaWalkersReset"]
    step = declared["CudaWalkersStep"]
    assert not step.owns_environments
    assert [parameter.dtype for parameter in step.parameters] == ["int32"] * 2 + ["float32"] * 2 + ["int32"] * 2 + [
        "float32",
        "int32",
    ]


@needs_nvcc
@pytest.mark.parametrize(
    ("blocks", "wants"),
    [
        (1, ["bar.sync"]),
        (3, [".reqnctapercluster 3, 1, 1", "barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"]),
    ],
)
def test_blocks_of_an_environment_are_a_cluster(tmp_path, blocks, wants):
    """Several blocks of an environment form a cluster with its barrier."""
    unit, ptx = tmp_path / "unit.cu", tmp_path / "unit.ptx"
    unit.write_text(cuda_c.unit(CUDA_SOURCE, _constants(blocks)))
    command = ["nvcc", "-ptx", "-arch=sm_90", "-std=c++17", f"-I{cuda_source.ROOT}", "-o", str(ptx), str(unit)]
    subprocess.run(command, check=True, capture_output=True)
    text = ptx.read_text()
    assert all(want in text for want in wants)
    assert ("cluster" in text) == (blocks > 1)


@pytest.mark.parametrize(
    ("blocks", "architecture", "message"),
    [(9, "sm_90", r"at most 8 .got 9"), (2, "sm_80", r"needs sm_90.*not sm_80 .got 2")],
)
def test_clusters_have_limits(blocks, architecture, message):
    """Impossible numbers of blocks raise before compilation.

    The number is over eight, or above one on a GPU without clusters.
    """
    with pytest.raises(CompileError, match=message):
        cuda_c.compile_cubin(CUDA_SOURCE, _constants(blocks), architecture)


def test_only_sources_that_speak_warp_drive_get_its_vocabulary(tmp_path):
    """Only sources with WarpDrive's words get its definitions.

    Other sources are compiled as before, so that their cached code stays valid.
    """
    own = tmp_path / "own.cu"
    own.write_text("WD_KERNEL(own)(int* x, int n_envs) {}\n")
    assert cuda_source.warp_drive_sizes(own.read_text(), 2, 3, 1) == {}
    assert "warp_drive.cuh" not in cuda_c.unit(own, {})
    assert "warp_drive.cuh" in cuda_c.unit(CUDA_SOURCE, _constants(1))
    without_envs = cuda_source.warp_drive_sizes("getEnvID(blockIdx.x)", 2, 3, 1)
    assert without_envs == {"wkNumberAgents": 3, "wkBlocksPerEnv": 1}


def test_source_lies_where_the_registrar_says(registrar):
    """The source is the registered file, one for each language."""
    assert Path(registrar.get_cuda_env_src_path("walkers", "host")) == CUDA_SOURCE
