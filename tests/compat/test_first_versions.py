"""WarpDrive 1: `use_cuda`, kernels with `num_agents`, former argument names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU
from warp_drive.env_wrapper import EnvWrapper
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager
from warp_drive.utils.data_feed import DataFeed
from warp_drive.utils.env_registrar import CustomizedEnvironmentRegistrar
from warp_drive.utils.gpu_environment_context import CUDAEnvironmentContext

from tests.compat.builders import IN_CUDA_C, name_of, needs_host
from tests.support import by_night
from warpdrive_min.backends import cuda_source
from warpdrive_min.spaces import Discrete

ARRAYS = ("height", "sampled_actions", "observations", "rewards", "_done_", "_timestep_")
SOURCE = """// Each agent sees the sum of its neighbours' heights, in shared memory of the number of agents.
__constant__ float scale = 0.5f;
extern "C" {
__device__ float sum_around(const int* heights, int agent) {
  return heights[(agent + 1) % num_agents] + heights[(agent + num_agents - 1) % num_agents];
}
__global__ void CudaHillsStep(int* height, const int* action, float* obs, float* rewards, int* done, int* timestep,
                              int episode_length) {
  __shared__ int heights[num_agents];
  const int env = blockIdx.x, agent = threadIdx.x, index = env * num_agents + agent;
  if (env >= num_envs) return;
  if (agent == 0) timestep[env] += 1;
  height[index] += action[index];
  heights[agent] = height[index];
  __syncthreads();
  obs[index] = scale * sum_around(heights, agent);
  rewards[index] = action[index];
  if (agent == 0) done[env] = timestep[env] == episode_length;
}
}
"""


class Hills(CUDAEnvironmentContext):
    """Agents on a ring raise their hills, and observe adjacent ones."""

    name = "Hills"

    def __init__(self, num_agents=3, episode_length=4, use_cuda=False):
        super().__init__()
        self.num_agents, self.episode_length, self.use_cuda = num_agents, episode_length, use_cuda
        self.action_space = {agent: Discrete(3) for agent in range(num_agents)}
        self.observation_space = None

    def reset(self):
        self.timestep = 0
        self.height = np.arange(self.num_agents, dtype=np.int32)
        return self.observe()

    def observe(self):
        around = np.roll(self.height, 1) + np.roll(self.height, -1)
        return {agent: np.array([around[agent] / 2], np.float32) for agent in self.action_space}

    def get_data_dictionary(self):
        feed = DataFeed()
        feed.add_data(name="height", data=self.height, save_copy_and_apply_at_reset=True)
        return feed

    def get_tensor_dictionary(self):
        return DataFeed()

    def step(self, actions=None):
        self.timestep += 1
        if self.use_cuda:
            arrays = [self.cuda_data_manager.device_data(name) for name in ARRAYS]
            shape = {"block": self.cuda_function_manager.block, "grid": self.cuda_function_manager.grid}
            self.cuda_step(*arrays, self.cuda_data_manager.meta_info("episode_length"), **shape)
            return None
        moves = np.array([actions[agent] for agent in self.action_space]).ravel()
        self.height = self.height + moves.astype(np.int32)
        is_done = self.timestep == self.episode_length
        return self.observe(), dict(enumerate(moves.astype(float))), {"__all__": is_done}, {}


@pytest.fixture
def hills(tmp_path):
    """Return a registrar that knows the source of the hills."""
    source = Path(tmp_path, "hills.cu")
    source.write_text(SOURCE)
    registrar = CustomizedEnvironmentRegistrar()
    registrar.add_cuda_env_src_path("Hills", str(source))
    return registrar


@pytest.mark.parametrize("old_name", ["customized_env_registrar", by_night("env_registry")])
@pytest.mark.parametrize("backend", IN_CUDA_C)
def test_checker_runs_an_environment_of_warpdrive_1(backend, old_name, hills, monkeypatch):
    """The checker runs an environment of WarpDrive 1."""
    name_of(backend, monkeypatch)
    configs = {"three": {}, "five": {"num_agents": 5}}
    with pytest.warns(DeprecationWarning, match="is the old name of"):
        checker = EnvironmentCPUvsGPU(env_class=Hills, env_configs=configs, num_envs=2, **{old_name: hills})
    assert checker.test_env_reset_and_step(seed=1) < 1e-6


@needs_host
@pytest.mark.parametrize("old_name", ["customized_env_registrar", "env_registry"])
def test_wrapper_takes_old_names_and_tells_use_cuda(old_name, hills, monkeypatch):
    """The wrapper accepts old names and sets ``use_cuda`` for kernels."""
    name_of("host", monkeypatch)
    with pytest.warns(DeprecationWarning, match=f"{old_name} is the old name of env_registrar"):
        wrapper = EnvWrapper(Hills(), num_envs=2, env_backend="pycuda", **{old_name: hills})
    assert wrapper.env.use_cuda is wrapper.use_cuda is True
    python = EnvWrapper(Hills(use_cuda=True), env_registrar=hills)
    assert python.env.use_cuda is python.use_cuda is False


@needs_host
def test_wrapper_has_a_function_feed(hills, monkeypatch):
    """``cuda_function_feed`` turns names into arguments of launches."""
    name_of("host", monkeypatch)
    wrapper = EnvWrapper(Hills(), num_envs=2, env_backend="pycuda", env_registrar=hills)
    wrapper.reset_all_envs()
    height, length = wrapper.cuda_function_feed(["height", ("episode_length", "meta")])
    assert height is wrapper.cuda_data_manager.device_data("height")
    assert length == 4


@needs_host
def test_manager_has_the_first_name_of_get_function(hills, monkeypatch):
    """``_get_function`` returns the handle, ``cuda_function_names`` the kernels."""
    name_of("host", monkeypatch)
    manager = PyCUDAFunctionManager(num_agents=3, num_envs=2)
    manager.compile_and_load_cuda("Hills", customized_env_registrar=hills)
    wrapper = EnvWrapper(Hills(), num_envs=2, env_backend="pycuda", env_registrar=hills)
    for each in (manager, wrapper.cuda_function_manager):
        assert each._get_function("CudaHillsStep").name == "CudaHillsStep"
        assert each.cuda_function_names == ["CudaHillsStep"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (SOURCE, {"num_agents", "num_envs"}),
        ("__global__ void f(int* x) { x[0] = 2 * num_agents; }", {"num_agents"}),
        ("__global__ void f(int* x, const int num_agents) { x[0] = num_agents; }", set()),
        ("__global__ void f(int *num_agents, int* x) { x[0] = num_agents[0]; }", set()),
        ("__constant__ int num_agents;\n__global__ void f(int* x) { x[0] = num_agents; }", set()),
        ("#define num_agents 4\n__global__ void f(int* x) { x[0] = num_agents; }", set()),
        ("enum { num_agents = 4 };\n__global__ void f(int* x) { x[0] = num_agents; }", set()),
        ("WD_KERNEL(f)(int* x) { x[0] = num_agents; }", set()),
    ],
)
def test_sizes_of_warpdrive_1_are_there_where_none_is_declared(text, names):
    """Only sources of WarpDrive 1 get ``num_agents`` and ``num_envs``.

    Such a source reads them and declares none.
    """
    sizes = cuda_source.warp_drive_sizes(text, n_envs=2, n_agents=3, blocks_per_env=1)
    assert sizes.keys() & {"num_agents", "num_envs"} == names
    assert all(sizes[name] == {"num_agents": 3, "num_envs": 2}[name] for name in names)
