"""Users' sources and data: several files, any types, written for nvcc.

`orchard` is an unregistered environment of that kind; see its folder.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if importlib.util.find_spec("gymnasium") is None:
    pytest.skip("the environments take their action spaces from gymnasium", allow_module_level=True)

from warp_drive.env_cpu_gpu_consistency_checker import EnvironmentCPUvsGPU
from warp_drive.managers.pycuda_managers.pycuda_function_manager import PyCUDAFunctionManager

from tests.compat.builders import FOLDER, IN_CUDA_C, THREADED, name_of, start
from tests.compat.environments.orchard.orchard import GROWTH, Orchard
from tests.support import needs_cuda_compiler
from warpdrive_min.backends import cuda_c, cuda_source, pycuda_driver
from warpdrive_min.backends.base import ANY_RANK, Parameter
from warpdrive_min.errors import BindingError, CompileError, TypeMismatch
from warpdrive_min.function_manager import CUDAFunctionManager, LaunchShape
from warpdrive_min.rng import philox, uniform

ORCHARD = FOLDER / "orchard" / "orchard_step.cu"
SHAPE = {"EXACT": False, "N_AGENTS": 3, **LaunchShape.of(3).constants()}


def compiled(source: Path, blocks: int = 1) -> bytes:
    """Compile a source for 2 copies of 3 agents."""
    sizes = cuda_source.warp_drive_sizes(cuda_source.whole_text(source), n_envs=2, n_agents=3, blocks_per_env=blocks)
    return cuda_c.compile_cubin(source, {**SHAPE, **sizes}, "sm_90").read_bytes()


def write(folder: Path, **files: str) -> Path:
    """Write `.cu` files (__ is a slash); return the first path."""
    paths = [folder / f"{name.replace('__', '/')}.cu" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths[0]


def kernel(body: str = "", parameters: str = "float* x") -> str:
    """Return a kernel in CUDA C."""
    return f'extern "C" __global__ void f({parameters}) {{ {body} }}\n'


# ------------------------------------------------------------------ includes


def test_kernels_words_and_types_are_found_through_includes():
    """Kernels, words and types are found in included files.

    The registered file has none of them; templates and declarations are no kernels.
    """
    whole = cuda_source.whole_text(ORCHARD)
    assert cuda_source.warp_drive_sizes(whole, 2, 3, 1) == {"wkNumberAgents": 3, "wkBlocksPerEnv": 1, "wkNumberEnvs": 2}
    declared = cuda_source.signatures(whole, {}, ORCHARD.name)
    assert list(declared) == ["CudaOrchardStep"]
    assert [(each.dtype, each.rank) for each in declared["CudaOrchardStep"].parameters] == [
        ("float32", ANY_RANK),
        ("int32", ANY_RANK),
        *[("float32", ANY_RANK)] * 2,
        ("int32", 0),
        ("float32", ANY_RANK),
        ("int32", ANY_RANK),
        ("float32", ANY_RANK),
        *[("int32", ANY_RANK)] * 2,
        ("int32", 0),
    ]


@needs_cuda_compiler
def test_source_of_several_files_compiles_for_the_gpu():
    """A source of several files compiles, with headers of nvcc."""
    assert b"CudaOrchardStep" in compiled(ORCHARD)


@needs_cuda_compiler
def test_error_names_file_and_line_of_what_is_included(tmp_path):
    """The compiler's error names the included file and the line."""
    source = write(
        tmp_path, build='#include "a/part.cu"\n', a__part='#include "b/deep.cu"\n', a__b__deep="\n\nwrong f;\n"
    )
    with pytest.raises(CompileError, match=r"a/b/deep\.cu\(3\): error"):
        compiled(source)


def test_include_is_looked_up_beside_the_file_then_beside_the_source(tmp_path):
    """The nearest included file is used; circular includes end."""
    source = write(
        tmp_path,
        build='#include "a/part.cu"\n/*\n#include "near.cu"\n*/\n#if 0\nnever\n#else\nalways\n#endif\n',
        near="wrong\n",
        far="from_far\n#include <near.cu>\n",
        a__part='#include "near.cu"\n  #  include "far.cu"\n#include <stdio.h>\n',
        a__near='from_near\n#include "part.cu"\n',
    )
    assert cuda_source.whole_text(source).split() == ["from_near", "from_far", "wrong", "always", "#endif"]
    read = [path.name for path in cuda_source.headers(source.read_text(), tmp_path)]
    assert read == ["near.cu", "part.cu", "far.cu", "near.cu"]


@needs_cuda_compiler
def test_files_of_the_users_may_be_named_as_the_cores(tmp_path):
    """A user's file may have the same name as our file."""
    parts = {name: f"__device__ int own_{name}() {{ return 1; }}\n" for name in ("reset", "sample")}
    (tmp_path / "core.cuh").write_text("__device__ int own_core() { return 1; }\n")
    text = '#include "core.cuh"\n#include "reset.cu"\n#include "sample.cu"\n'
    text += kernel("x[getEnvID(blockIdx.x)] = own_core() + own_reset() + own_sample();")
    assert b"f" in compiled(write(tmp_path, step=text, **parts))


@needs_cuda_compiler
@pytest.mark.parametrize("blocks", [1, 2])
def test_source_may_bring_words_of_warp_drives_itself(tmp_path, blocks):
    """A source may define WarpDrive's constants and functions itself."""
    own = f"const int wkNumberAgents = 3;\n#define wkBlocksPerEnv {blocks}\nconst int N_AGENTS = wkNumberAgents;\n"
    own += "__device__ int getEnvID(const int block) { return block / wkBlocksPerEnv; }\n"
    body = "x[getEnvID(blockIdx.x) + getAgentID(threadIdx.x, blockIdx.x, blockDim.x)] = N_AGENTS; __sync_env_threads();"
    source = write(tmp_path, step='#include "own.cu"\n' + kernel(body), own=own)
    assert compiled(source, blocks)[:4] == b"\x7fELF"


HEADERS = ("math.h", "cstdio", "cfloat", "stdint.h", "cuda_runtime.h")
BODY = (
    "int shape[] = {gridDim.x, wkNumberAgents}; uint8_t small = 3; int64_t n = INT_MAX; int32_t m = shape[0];"
    "x[0] = pow(2, x[1]) + pow(small, 2) + pow(x[1], 2.0) + pow(x[1], 2) + pow(m, 0.5) + M_PI_2 + M_PI + INFINITY;"
    'assert(n > 0); if (n < 0) printf("%f", x[0]);'
)


@needs_cuda_compiler
@pytest.mark.parametrize(
    ("headers", "more"),
    [((), ""), (HEADERS, "x[1] = std::sqrt(x[0]) + std::pow(x[0], 2) + FLT_MAX + NAN;")],
    ids=["without headers", "with headers"],
)
def test_what_nvcc_accepts_compiles(tmp_path, headers, more):
    """Names of nvcc's headers, their constants and mixed-type functions compile.

    NVRTC lacks them all.
    """
    text = "".join(f"#include <{name}>\n" for name in headers) + kernel(BODY + more)
    assert compiled(write(tmp_path, step=text))[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("header", "wants_nvcc"),
    [("near.cu", False), ("stdio.h", False), ("curand_kernel.h", False), ("thrust/sort.h", True), ("absent.h", True)],
)
def test_libraries_are_for_nvcc(tmp_path, header, wants_nvcc):
    """A source with a library's header is not for NVRTC."""
    source = write(tmp_path, step='#include "a/part.cu"\n', a__part=f"#include <{header}>\n", near="")
    assert cuda_source.needs_nvcc(source) == wants_nvcc


@needs_cuda_compiler
@pytest.mark.parametrize(
    "text",
    [
        kernel("curandState_t* own = states[threadIdx.x]; x[0] = curand_uniform(own) + curand_normal(states[0]);"),
        "#include <curand_kernel.h>\n__device__ curandState_t* states[4];\n"
        + kernel("curandState s; curand_init(1, 2, 0, &s); states[0] = &s; x[0] = curand_uniform(states[0]);"),
    ],
)
def test_random_numbers_of_curand_compile(tmp_path, text):
    """Random numbers compile with WarpDrive's states or the source's own."""
    assert compiled(write(tmp_path, step=text))[:4] == b"\x7fELF"


@needs_cuda_compiler
def test_header_of_curand_may_include_cccl(tmp_path, monkeypatch):
    """Types and limits from CCCL are defined once for cuRAND."""
    folders = [Path(site) / "nvidia/cu13/include/cccl" for site in sys.path]
    cccl = next((folder for folder in folders if folder.is_dir()), None)
    if cccl is None:
        pytest.skip("no CCCL: pip install nvidia-cuda-cccl")
    include = tmp_path / "toolkit" / "include"
    include.mkdir(parents=True)
    (include / "cccl").symlink_to(cccl)
    (include / "curand_uniform.h").touch()
    header = "#include <cuda/std/climits>\n#include <cuda/std/cstdint>\nstruct curandState { int64_t drawn; };\n"
    (include / "curand_kernel.h").write_text(header + "#define OF_THE_TOOLKIT 1\n")
    monkeypatch.setenv("CUDA_HOME", str(include.parent))
    body = "curandState s = {INT_MAX}; uint8_t n = OF_THE_TOOLKIT; x[0] = s.drawn + n + UINT32_MAX + LONG_MIN;"
    text = "#include <stdint.h>\n#include <curand_kernel.h>\n" + kernel(body)
    assert compiled(write(tmp_path, step=text))[:4] == b"\x7fELF"


@pytest.mark.parametrize("backend", IN_CUDA_C)
def test_states_draw_from_streams_of_their_own(backend, monkeypatch):
    """Each thread's state draws words from its own stream."""
    name_of(backend, monkeypatch)
    functions = PyCUDAFunctionManager(num_agents=3, num_envs=2)
    index = "int index = blockIdx.x * blockDim.x + threadIdx.x;"
    functions.load_cuda_from_source_code(kernel(f"{index} x[index] = curand_uniform(states[index]);"))
    x = torch.zeros(2, 3, device=functions.backend.device)
    for word in range(2):
        functions.get_function("f")(x, block=functions.block, grid=functions.grid)
        want = [1 - uniform(philox(0, env, 0, 0x80000000, 0, 0)[word]) for env in range(6)]
        np.testing.assert_array_equal(x.cpu().numpy().ravel(), np.array(want, np.float32))


# ------------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("declaration", "want"),
    [
        ("std::size_t n", Parameter("n", "uint64", 0)),
        ("unsigned short int n", Parameter("n", "uint16", 0)),
        ("long int n", Parameter("n", "int64", 0)),
        ("volatile uint8_t* mask", Parameter("mask", "uint8", ANY_RANK)),
        ("const float x[]", Parameter("x", "float32", ANY_RANK)),
        ("int x[3][4]", Parameter("x", "int32", ANY_RANK)),
        ("real* x", Parameter("x", "float32", ANY_RANK)),
        ("MASK RESTRICT mask", Parameter("mask", "int32", ANY_RANK)),
        ("float4* x", Parameter("x", None, ANY_RANK)),
    ],
)
def test_parameter_of_an_agent_kernel(declaration, want):
    """A parameter's type is found through typedefs and macros.

    Unknown pointers take any array.
    """
    text = "typedef\n  float number;\nusing real = number;\n#define MASK const int*\n#define RESTRICT __restrict__\n"
    got = cuda_source.signatures(text + kernel(parameters=declaration), {}, "f.cu")
    assert got["f"].parameters == (want,)


class Taken:
    """Fake compiled kernel that records its launch arguments."""

    name = "f"

    def __init__(self, owns_environments: bool, *parameters: Parameter) -> None:
        self.owns_environments = owns_environments
        self.parameters = parameters
        self.arguments: list[Any] = []

    def prepare(self, arguments, blocks, threads):
        self.arguments = arguments
        return lambda: None


class CudaC(type(CUDAFunctionManager().backend)):
    """CPU backend that claims to run CUDA C."""

    language = "cuda_c"


def launch(kernel: Taken, *arguments: Any) -> list[str]:
    """Launch a kernel twice and return the warnings."""
    functions = CUDAFunctionManager(backend=CudaC())
    functions.add_kernels({"f": kernel})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            functions.get_function("f")(*arguments, block=functions.block, grid=functions.grid)
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_agent_kernel_takes_data_of_other_types_with_a_warning():
    """Data of another type give one warning for each launch argument.

    The array stays, and a float is cut to an integer.
    """
    x, n, y = Parameter("x", "float32", ANY_RANK), Parameter("n", "int32", 0), Parameter("y", None, 2, (None, 3))
    kernel = Taken(False, x, n, y)
    array = torch.zeros(4, dtype=torch.int32)
    said = launch(kernel, array, np.float32(2.5), torch.zeros(6))
    assert kernel.arguments[0] is array
    assert kernel.arguments[1] == 2
    assert [each.partition(";")[0] for each in said] == [
        "kernel 'f', parameter 'x': is declared float32 (got int32)",
        "kernel 'f', parameter 'n': is declared int32 (got the float 2.5)",
        "kernel 'f', parameter 'y': is declared with rank 2 (got rank 1, shape (6,))",
    ]


def test_numbers_of_numpy_are_launch_arguments():
    """NumPy's numbers are accepted as launch arguments."""
    kernel = Taken(False, Parameter("n", "int32", 0), Parameter("rate", "float32", 0), Parameter("flag", "bool", 0))
    assert launch(kernel, np.int64(3), np.int32(2), np.bool_(True)) == []
    assert kernel.arguments == [3, 2, True]


def test_other_mismatches_stay_errors():
    """Other mismatches of arguments raise an error."""
    parameter = Parameter("x", "float32", ANY_RANK)
    with pytest.raises(TypeMismatch, match=r"is declared float32 \(got int32"):
        launch(Taken(True, parameter), torch.zeros(4, dtype=torch.int32))
    with pytest.raises(BindingError, match="got a scalar"):
        launch(Taken(False, parameter), 1)
    with pytest.raises(BindingError, match="must be contiguous"):
        launch(Taken(False, parameter), torch.zeros(2, 2, dtype=torch.int32).T)


def test_kernels_that_a_module_lacks_are_left_out(monkeypatch, tmp_path):
    """Kernels that the preprocessor removes are ignored.

    One that owns environments must exist.
    """

    class Driver:
        LogicError = KeyError

        def module_from_buffer(self, binary):
            return self

        def get_function(self, name):
            return {"f": "found"}[name]

    backend = pycuda_driver.PyCudaBackend
    monkeypatch.setattr(pycuda_driver, "loaded_driver", Driver)
    monkeypatch.setattr(backend, "require", lambda self: self)
    monkeypatch.setattr(backend, "build", lambda self, source, constants: source)
    source = write(tmp_path, step=f"{kernel()}#if 0\n__global__ void g() {{}}\n#endif\n")
    assert list(backend().compile(source, {})) == ["f"]
    with pytest.raises(KeyError):
        backend().compile(write(tmp_path, own="WD_KERNEL(g)() {}"), {})


# ------------------------------------------------------------------ an environment


@pytest.mark.filterwarnings("ignore:kernel 'CudaOrchardStep', parameter:RuntimeWarning")
@pytest.mark.parametrize("backend", THREADED)
def test_orchard_agrees_with_python(backend):
    """Orchard's kernels agree with Python over two episodes."""
    checker = EnvironmentCPUvsGPU(
        dual_mode_env_class=Orchard,
        env_configs={"three": {"num_trees": 3, "episode_length": 3}},
        num_envs=2,
        num_episodes=2,
        gpu_env_backend=backend,
    )
    assert checker.test_env_reset_and_step(seed=0) < 1e-5


@pytest.mark.filterwarnings("ignore:kernel 'CudaOrchardStep', parameter:RuntimeWarning")
@pytest.mark.parametrize("backend", THREADED)
def test_numbers_that_resets_restore_are_one_for_each_environment(backend):
    """Restored numbers belong to one copy, and reset with it."""
    wrapper = start(Orchard(), backend)
    data = wrapper.cuda_data_manager
    assert data.get_shape("season") == data.get_shape("price") == (2,)
    assert data.reset_data_list[:3] == ["fruit", "season", "price"]
    wrapper.step()
    data.data_on_device_via_torch("_done_").copy_(torch.tensor([0, 1]))
    wrapper.reset_only_done_envs()
    assert data.pull_data_from_device("season").tolist() == [1, 0]
    assert data.pull_data_from_device("price").tolist() == [1.5 * GROWTH, 1.5]
    data.reset_device("season")
    assert data.pull_data_from_device("season").tolist() == [0, 0]
