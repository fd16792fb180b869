"""Kernels with a thread per agent on `host`.

Barriers, shared memory, warps, atomics, and kernels that cannot end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import COMPILERS, by_night
from warpdrive_min import BACKENDS, CUDADataManager, CUDAFunctionManager
from warpdrive_min.backends import cuda_source, host
from warpdrive_min.errors import BindingError, CompileError, DataError, KernelError

if not BACKENDS["host"].availability().available:
    pytest.skip("found no C++ compiler", allow_module_level=True)

SOURCE = Path(__file__).with_name("fibres.cu")
N_AGENTS, N_ENVS = 40, 3


@pytest.fixture(scope="module", autouse=True, params=[*COMPILERS[:1], *map(by_night, COMPILERS[1:])])
def _quickly_built(request):
    """Compile quickly, with each C++ compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", request.param)
        patch.setattr(host, "OPTIMISATION", "-Og")
        yield


def functions_of(source: Path = SOURCE, n_agents: int = N_AGENTS, blocks: int = 1) -> CUDAFunctionManager:
    """Return a function manager with the kernels of a source."""
    made = CUDAFunctionManager(n_agents, N_ENVS, blocks, backend="host")
    made.load(
        {"cuda_c": source}, cuda_source.warp_drive_sizes(cuda_source.whole_text(source), N_ENVS, n_agents, blocks)
    )
    return made


@pytest.fixture(scope="module")
def functions(_quickly_built) -> CUDAFunctionManager:
    """The kernels for 3 copies of 40 agents."""
    return functions_of()


def launch(functions: CUDAFunctionManager, name: str, *arguments: torch.Tensor | int, **shape: object) -> None:
    """Launch a kernel with a thread for each agent."""
    functions.get_function(name)(*arguments, **{"block": functions.block, "grid": functions.grid, **shape})


def integers(*shape: int, start: int = 0) -> torch.Tensor:
    """Return an array of int32 that counts up."""
    return start + torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)


def put(functions: CUDAFunctionManager, **constants: list[int]) -> None:
    """Copy shared constants to their symbols."""
    data = CUDADataManager(N_AGENTS, N_ENVS, episode_length=1, backend="host")
    data.add_shared_constants(constants)
    functions.initialize_shared_constants(data, list(constants))


# ------------------------------------------------------------------ barriers


@pytest.mark.parametrize("n_threads", [1, 2])
def test_barriers_in_a_loop_order_shared_memory(functions, monkeypatch, n_threads):
    """Barriers in a loop order shared memory, on one thread or two."""
    monkeypatch.setattr(type(functions.backend), "threads", n_threads)
    put(functions, offsets=[5, -3])
    x = integers(N_ENVS, N_AGENTS)
    want = x.clone()
    for offset in (5, -3, 5):
        want += want.sum(1, keepdim=True, dtype=torch.int32) + offset
    launch(functions, "sums", x, 3)
    assert torch.equal(x, want)


def test_threads_that_left_do_not_count(functions):
    """A barrier counts only the threads that still run.

    40 threads, then 20, then 19: all and any cover those too.
    """
    x = torch.full((N_ENVS, N_AGENTS), -1, dtype=torch.int32)
    launch(functions, "leaving", x)
    want = np.full(N_AGENTS, -1)
    want[::2] = 10 * 18 + 1
    want[2] = 20
    np.testing.assert_array_equal(x, [want] * N_ENVS)


def test_barrier_is_one_wherever_it_stands(functions):
    """Two branches meet at one barrier, also in a loop."""
    x = torch.zeros(N_ENVS, N_AGENTS, dtype=torch.int32)
    launch(functions, "branches", x)
    assert (x == 3).all()


def test_lanes_of_a_warp_see_each_other(functions):
    """Lanes of a warp exchange values; exited lanes add nothing.

    Shuffles, ballots and matches.
    """
    x, y = torch.zeros(N_AGENTS, 4, dtype=torch.int32), torch.zeros(N_AGENTS)
    launch(functions, "warps", x, y, grid=(1, 1))
    lanes = np.arange(39) % 32
    got = x.numpy().view(np.uint32)
    np.testing.assert_array_equal(y[:32], np.full(32, 496))
    np.testing.assert_array_equal(
        got[:39, 0],
        np.where(lanes < 3, lanes, lanes - 3)
        + 100 * np.where(lanes == 6, np.where(np.arange(39) < 32, 7, 6), lanes ^ 1),
    )
    np.testing.assert_array_equal(got[:39, 1], [0xAAAAAAAA] * 32 + [0x2A] * 7)
    matches = [0xF << (4 * (lane // 4)) for lane in range(32)]
    np.testing.assert_array_equal(got[:39, 2], [*matches, 0xF, 0xF, 0xF, 0xF, 0x70, 0x70, 0x70])
    np.testing.assert_array_equal(got[:39, 3], [5] * 16 + [6] * 16 + [5] * 7)
    assert not x[39].any()


def test_lanes_of_a_warp_add_up_what_they_have(functions):
    """Lanes reduce over a full warp and over a partial one."""
    x = torch.zeros(N_AGENTS, 8, dtype=torch.int32)
    launch(functions, "reductions", x, grid=(1, 1))
    whole = [sum(range(-20, 12)), 11 * 1000 - 20, 32 + 6200, 8 + 3100, -1 + 3, -1, 1, 0]
    part = [-57, -18 * 1000 - 20, 3 + 400, 8 + 300, 7 + 3, 7, 1, 0]
    assert x.tolist() == [whole] * 32 + [part] * 3 + [[0] * 8] * 5


def test_threads_go_in_step_from_write_to_write(functions):
    """Threads of a block stay in step between writes.

    If all compute and write the same, the result equals one thread's.
    """
    x = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32)
    first = x @ torch.tensor([1, 2], dtype=torch.int32)
    second = 2 * first + 3 * x[:, 1]
    launch(functions, "in_place", x)
    assert x.tolist() == torch.stack([first, second], 1).tolist()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("n_agents", "blocks"), [(7, 3), (N_AGENTS, 1)])
def test_blocks_of_an_environment_meet_and_keep_their_shared_memory(monkeypatch, n_agents, blocks, n_threads):
    """Blocks of an environment see each other's sums after the barrier."""
    functions = functions_of(n_agents=n_agents, blocks=blocks)
    monkeypatch.setattr(type(functions.backend), "threads", n_threads)
    x = integers(N_ENVS, n_agents, start=1)
    want = x.numpy().copy()
    block_of = np.arange(n_agents) // functions.block[0]
    totals = np.zeros((N_ENVS, blocks), int)
    for _ in range(2):
        for block in range(blocks):
            totals[:, block] += want[:, block_of == block].sum(1)
        want = totals[:, block_of] + want[:, ::-1] * (block_of != 0)
    launch(functions, "exchanges", x)
    np.testing.assert_array_equal(x, want)


def test_barrier_of_an_environment_is_ours_where_the_source_has_one(tmp_path):
    """Our barrier of an environment replaces the source's own.

    The source's waits in memory for blocks that cannot run.
    """
    own = "__device__ void __sync_env_threads();\n__device__ void __sync_env_threads() { for (;;) __threadfence(); }\n"
    body = "x[blockIdx.x] = 1; __sync_env_threads(); y[blockIdx.x] = x[blockIdx.x ^ 1];"
    source = tmp_path / "kernel.cu"
    source.write_text(f'extern "C" {{ {own} __global__ void f(int* x, int* y) {{ {body} }} }}\n')
    x, y = torch.zeros(2, 6, dtype=torch.int32)
    launch(functions_of(source, n_agents=6, blocks=2), "f", x, y)
    assert y.tolist() == [1] * 6


# ------------------------------------------------------------------ memory and numbers


def test_atomics_lose_nothing(functions):
    """Atomics give correct results for ints, floats and 64-bit words."""
    n = N_AGENTS * N_ENVS
    x = torch.tensor([0, 0, 0, 0, 255, 0, 0, 0, 0], dtype=torch.int32)
    y, z = torch.zeros(2), torch.zeros(1, dtype=torch.uint64)
    launch(functions, "atomics", x, y, z)
    total = n * (n - 1) // 2
    assert x.tolist() == [total, -total, 1 - n, n - 1, 0, 255, n % 2, n % 7, -n % 7]
    assert y.tolist() == [n / 2, n - 1]
    assert z.item() == n << 40


def test_lock_is_taken_in_turns(functions):
    """Threads of several blocks take a lock one after another."""
    x = torch.zeros(1, dtype=torch.int32)
    launch(functions, "locked", x)
    assert x.item() == N_AGENTS * N_ENVS


def test_variables_of_the_device_are_each_managers_own(functions):
    """Device variables persist across launches, one set per manager."""
    other = functions_of()
    x = torch.zeros(1, dtype=torch.int32)
    seen = []
    for each in (functions, functions, other):
        launch(each, "counted", x)
        seen.append(x.item())
    assert seen == [1, 2, 1]


def test_constants_are_checked(functions):
    """A constant with a missing source or another size raises."""
    with pytest.raises(DataError, match="'chart': no loaded CUDA C source has a __constant__ of this name"):
        put(functions, chart=[1])
    with pytest.raises(DataError, match=r"'offsets': the symbol has 8 bytes \(got 12\)"):
        put(functions, offsets=[1, 2, 3])


def test_names_of_nvcc_mean_what_they_do_there(functions):
    """Names of nvcc have their meaning on a GPU.

    Vectors, functions of mixed types, conversions that saturate, bits.
    """
    y = torch.zeros(7)
    launch(functions, "numbers", y)
    sums = [(1, 4, 8, 1), (0.5, 0.25, 1, -1, 1), (2, -2, -3, 3), (1,), (1.5, 8, 31, 4, 1), (8, 3, 2, 8, 1, 1)]
    assert y.tolist() == [*map(sum, sums), 10 + 2 + 5 + 1 + 40]


# ------------------------------------------------------------------ kernels that cannot run


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "waits",
            r"kernel 'waits': its threads wait for each other: 2 in __syncwarp \(.*fibres.cu:\d+\), the first, "
            r"thread 0 of block 0; 38 in __syncthreads \(.*\), the first, thread 2 of block 0$",
        ),
        ("other_mask", "'other_mask': __shfl_sync: the mask lacks the thread's own lane, thread 1 of block 0$"),
        ("fails", r"'fails': assert\(x\[.*\] < 7\) does not hold \(.*fibres.cu:\d+\), thread 7 of block 0$"),
        ("spins", "'spins': it neither ends nor waits for others, but loops, thread 0 of block 0$"),
        (
            "never_free",
            r"'never_free': its threads try for a lock that is never free: 40 in atomicCAS \(.*\), the first, thread ",
        ),
        ("traps", "'traps': __trap was called, thread 0 of block 0$"),
    ],
)
def test_launch_that_cannot_end_is_an_error(functions, monkeypatch, name, message):
    """A launch that cannot end raises, and the next one runs.

    The error has kernel, place and thread.
    """
    monkeypatch.setattr(type(functions.backend), "threads", 1)
    monkeypatch.setattr(host, "TIMEOUT_S", 0.01)
    x = integers(N_ENVS, N_AGENTS)
    with pytest.raises(KernelError, match=message):
        launch(functions, name, x)
    launch(functions, "branches", x)


def test_launch_has_limits(functions):
    """A launch with too many threads or incomplete blocks raises."""
    x = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(BindingError, match=r"kernel 'counted': a block has at most 1024 threads \(got 1025\)"):
        launch(functions, "counted", x, block=(1025, 1, 1))
    with pytest.raises(BindingError, match=r"'exchanges': must get blocks by 3, which share an environment \(got 4\)"):
        launch(functions_of(n_agents=7, blocks=3), "exchanges", x, grid=(4, 1))


def test_kernel_that_the_preprocessor_takes_is_left_out(functions):
    """A kernel removed by the preprocessor is not declared."""
    assert functions.has_function("numbers")
    assert not functions.has_function("absent")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "extern __shared__ int part[]; x[0] = part[0];",
            "uses dynamic shared memory, which launches do not provide; give",
        ),
        ("volatile int part[50000]; part[x[0]] = 1;", r"kernel.cu:[12]:.*frame size.*131072"),
        ("undeclared = 1;", r"kernel.cu:2:\d+: error: .*undeclared"),
    ],
)
def test_source_that_cannot_run_is_an_error_with_its_line(tmp_path, body, message):
    """An impossible launch or source raises, with its line."""
    source = tmp_path / "kernel.cu"
    source.write_text(f'extern "C" __global__ void f(int* x)\n{{ {body} }}\n')
    with pytest.raises(CompileError, match=message):
        functions_of(source)
