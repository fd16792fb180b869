"""Function manager: launch shapes, binding by name, explicit arguments, the feed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.environments import FILL
from tests.support import BACKENDS_HERE, OTHER_BACKENDS, managers, on_every_backend, on_every_other_backend, push
from warpdrive_min import CUDADataManager, CUDAFunctionFeed, CUDAFunctionManager
from warpdrive_min.errors import BindingError, CompileError, ConfigError, DataError
from warpdrive_min.function_manager import FILLING_BLOCKS_OF_A_POLICY, LaunchShape


def filled(backend: str, **replaced: object) -> tuple[CUDADataManager, CUDAFunctionManager]:
    """Return managers with the kernel `fill` and its data."""
    data, functions = managers(backend)
    values = {"target": np.zeros((2, 3), np.float32), "offset": [7], "scale": 0.5, **replaced}
    for name, value in values.items():
        if value is not None:
            push(data, name, value)
    functions.load(FILL)
    return data, functions


WANT = [[7, 7.5, 8], [8.5, 9, 9.5]]


# ------------------------------------------------------------------ launch shapes


@pytest.mark.parametrize(
    ("n_agents", "n_envs", "threads", "envs_per_block"),
    [
        (5, 100, 128, 1),
        (5, 2_000, 128, 4),
        (5, 6_400, 128, 13),
        (5, 12_800, 128, 25),
        (52, 60, 128, 1),
        (52, 2_000, 128, 2),
        (110, 100, 128, 1),
        (1_000, 100, 512, 1),
        (1_000, 2_000, 256, 1),
        (1, 100, 32, 32),
        (1, 10_000, 32, 32),
        (1, 16_384, 64, 64),
        (1, 65_536, 128, 128),
    ],
)
def test_few_environments_fill_a_gpu(n_agents, n_envs, threads, envs_per_block):
    """Blocks own fewer environments if a GPU would not be full.

    With one agent a block is a warp at least.
    """
    assert LaunchShape.of(n_agents, n_envs=n_envs) == LaunchShape(threads, envs_per_block)


@pytest.mark.parametrize(
    ("n_agents", "n_envs", "threads"),
    [(1, 1_000, 32), (1, 10_000, 32), (1, 65_536, 512), (1, 100_000, 384), (1, 1_000_000, 512), (5, 9_999, 128)],
)
def test_environments_of_one_agent_may_have_large_blocks(n_agents, n_envs, threads):
    """Blocks are as large as an even load of 132 multiprocessors allows.

    100,000 in blocks of 512 threads would be two blocks on some, and one on others.
    """
    assert LaunchShape.of(n_agents, n_envs=n_envs, multiprocessors=132).threads == threads


def test_kernels_with_a_policy_have_fewer_blocks():
    """Few environments with a policy fill three blocks per multiprocessor."""
    of_policy = LaunchShape.of(5, n_envs=4_000, blocks_below=FILLING_BLOCKS_OF_A_POLICY)
    assert (LaunchShape.of(5, n_envs=4_000).blocks(4_000), of_policy.blocks(4_000)) == (500, 364)


@pytest.mark.parametrize(
    ("n_agents", "n_envs", "n_entries", "envs_per_block", "with_policy"),
    [
        (5, 100, 105, 1, 1),
        (5, 2_000, 105, 2, 2),
        (5, 3_071, 105, 3, 3),
        (5, 3_072, 105, 4, 3),
        (5, 6_143, 105, 6, 3),
        (5, 6_144, 105, None, 3),
        (16, 9_000, 128, None, 1),
        (17, 100, 128, 1, None),
        (11, 2_000, 495, None, None),
    ],
)
def test_small_environments_share_a_block_of_one_warp(n_agents, n_envs, n_entries, envs_per_block, with_policy):
    """Blocks of one warp have up to 32 agents, and few observation entries.

    With a policy they have up to 16 agents, a tile of rows, for any number of environments.
    """
    for acts, packed in ((False, envs_per_block), (True, with_policy)):
        want = packed and LaunchShape(32, packed)
        assert LaunchShape.of_warps(n_agents, n_envs, n_entries, acts=acts) == want
    assert LaunchShape.of_warps(1, n_envs, 4) is None


@pytest.mark.parametrize(
    ("n_agents", "n_envs", "envs_per_block"),
    [(1, 100, 128), (1, 2_047, 128), (1, 2_048, 256), (1, 1_000_000, 256), (5, 1_000_000, 25)],
)
def test_blocks_on_a_cpu_are_wide_where_each_thread_has_some(n_agents, n_envs, envs_per_block):
    """CPU blocks are wide if each thread gets four of them."""
    assert LaunchShape.on_cpu(n_agents, n_envs, n_workers=2).envs_per_block == envs_per_block


@pytest.mark.parametrize(
    ("n_agents", "threads", "envs_per_block"),
    [(1, 128, 128), (5, 128, 25), (63, 128, 2), (64, 64, 1), (100, 128, 1), (1024, 256, 1), (5000, 256, 1)],
)
def test_launch_shape_packs_small_environments(n_agents, threads, envs_per_block):
    """Blocks of 128 threads pack environments below 64 agents.

    Above, a block has whole warps.
    """
    shape = LaunchShape.of(n_agents)
    assert shape == LaunchShape(threads, envs_per_block)
    assert shape.constants() == {"THREADS": threads, "ENVS_PER_BLOCK": envs_per_block, "BLOCKS_PER_ENV": 1}
    assert shape.blocks(1) == shape.blocks(envs_per_block) == 1
    assert shape.blocks(envs_per_block + 1) == 2


def test_no_agents_raises():
    """An environment without agents has no launch shape."""
    with pytest.raises(ConfigError, match=r"n_agents: must be at least 1 .got 0"):
        LaunchShape.of(0)


def test_block_and_grid_are_those_of_a_thread_for_each_agent():
    """Block and grid are WarpDrive's, with a thread per agent."""
    assert (CUDAFunctionManager(5, 2).block, CUDAFunctionManager(5, 2).grid) == ((5, 1, 1), (2, 1))
    shared = CUDAFunctionManager(5, 2, blocks_per_env=2)
    assert (shared.block, shared.grid) == ((3, 1, 1), (4, 1))


def test_defaults_are_added_and_can_be_given():
    """Kernels get default constants, which the caller can replace."""
    functions = CUDAFunctionManager(5, 2)
    want = {"N_AGENTS": 5, "THREADS": 128, "ENVS_PER_BLOCK": 25, "BLOCKS_PER_ENV": 1, "EXACT": False}
    assert functions.with_defaults({}) == want
    assert functions.with_defaults({"EXACT": True, "MORE": 1}) == {**want, "EXACT": True, "MORE": 1}


# ------------------------------------------------------------------ loading


@on_every_backend
def test_kernels_are_known_by_name_and_loaded_once(backend):
    """A loaded kernel is found; unknown and duplicate names raise."""
    _, functions = filled(backend)
    assert functions.has_function("fill")
    functions.initialize_functions(["fill"])
    for ask in (functions.kernel, functions.get_function, lambda name: functions.initialize_functions([name])):
        with pytest.raises(CompileError, match="kernel 'fil': is not loaded; known are fill"):
            ask("fil")
    with pytest.raises(CompileError, match="kernel 'fill': is loaded already"):
        functions.load(FILL)


# ------------------------------------------------------------------ binding by name


@on_every_backend
def test_bind_looks_up_every_parameter(backend):
    """Binding finds each parameter by name; explicit arguments go first.

    Arguments are converted once; later writes by torch are visible.
    """
    data, functions = filled(backend)
    launch = functions.bind("fill", data)
    launch()
    assert data.pull_data_from_device("target").tolist() == WANT
    data.tensor("offset").fill_(0)
    data.tensor("target").zero_()
    launch()
    assert data.pull_data_from_device("target").tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]]
    functions.bind("fill", data, scale=0.0, offset=torch.full((1,), 7, dtype=torch.int32, device=data.device))()
    assert data.pull_data_from_device("target").tolist() == WANT


@on_every_backend
def test_bind_takes_shared_constants(backend):
    """A parameter may be a shared constant, array or scalar."""
    data, functions = filled(backend, offset=None, scale=None)
    data.add_shared_constants({"offset": [7], "scale": 0.5})
    functions.bind("fill", data)()
    assert data.pull_data_from_device("target").tolist() == WANT


@on_every_backend
def test_bind_checks_its_arguments(backend):
    """Binding refuses missing names and arrays of another device."""
    data, functions = filled(backend, offset=None)
    with pytest.raises(
        BindingError, match=r"kernel 'fill', parameter 'offset': there is no data of this name; known .*target"
    ):
        functions.bind("fill", data)
    with pytest.raises(BindingError, match=r"parameter 'offset': must be on \S+ .got meta"):
        functions.bind("fill", data, offset=torch.zeros(1, dtype=torch.int32, device="meta"))


@pytest.mark.parametrize("backend", [each for each in OTHER_BACKENDS if each.values[0] != "numba"])
def test_bind_checks_sizes(backend):
    """Binding checks declared sizes.

    CUDA C declares sizes: an array for other agents raises before it is overread.
    """
    data, functions = filled(backend, target=np.zeros((2, 4), np.float32))
    with pytest.raises(BindingError, match=r"'target': is declared with shape \(\?, 3\) .got \(2, 4\)"):
        functions.bind("fill", data)


# ------------------------------------------------------------------ explicit arguments


@on_every_backend
def test_function_takes_arguments_in_each_form(backend):
    """A function accepts arguments in each form.

    ``f(*args)`` picks a shape; ``block=, grid=`` or ``f[grid, block]`` set it. After `bound_to` a call without
    arguments finds them by name; before it, the error names the missing ones.
    """
    data, functions = filled(backend)
    function, threads = functions.get_function("fill"), functions.shape.threads
    arguments = CUDAFunctionFeed(data)(["target", "offset", "scale", ("n_envs", "m")])
    with pytest.raises(BindingError, match="'fill': has no data manager to bind by name; pass the arguments"):
        function()
    for call in (
        lambda: function(*arguments),
        lambda: function(*arguments, block=(threads, 1, 1), grid=(1, 1)),
        lambda: function[1, threads](*arguments),
        lambda: function.bound_to(data)(),
    ):
        data.tensor("target").zero_()
        call()
        assert data.pull_data_from_device("target").tolist() == WANT


@pytest.mark.parametrize("backend", [each for each in BACKENDS_HERE if each.values[0] != "numba"])
def test_function_launches_a_wd_kernel_in_its_own_shape(backend):
    """A kernel reaches every agent also in WarpDrive's launch shape."""
    data, functions = filled(backend)
    arguments = CUDAFunctionFeed(data)(["target", "offset", "scale", ("n_envs", "m")])
    functions.get_function("fill")(*arguments, block=functions.block, grid=functions.grid)
    assert data.pull_data_from_device("target").tolist() == WANT


@on_every_backend
def test_function_counts_its_arguments(backend):
    """Too few arguments raise, and the error lists the parameters."""
    data, functions = filled(backend)
    with pytest.raises(BindingError, match=r"'fill': takes 4 arguments \(target, offset, scale, n_envs\) .got 1"):
        functions.get_function("fill")(data.tensor("target"))


@on_every_other_backend
def test_function_checks_explicit_arguments(backend):
    """Explicit arguments are checked like those found by name."""
    data, functions = filled(backend)
    with pytest.raises(BindingError, match=r"parameter 'target': is declared float32 .got int32"):
        functions.get_function("fill")(data.tensor("offset"), data.tensor("offset"), 0.5, 2)


# ------------------------------------------------------------------ the feed


@pytest.mark.parametrize(("source", "want"), [("d", 1), ("DEVICE", 1), ("m", 2), ("Meta", 2), ("s", 3), ("shared", 3)])
def test_feed_reads_the_named_source(source, want):
    """The feed reads a name from the given source.

    One name may be data, meta information or a constant.
    """
    data, _ = managers("cpu")
    push(data, "x", 1)
    data.add_meta_info({"x": 2})
    data.add_shared_constants({"x": 3})
    assert CUDAFunctionFeed(data)([("x", source)]) == [want]


@on_every_backend
def test_feed_gives_arrays_as_live_tensors(backend):
    """The feed returns live tensors, in a new list each time."""
    data, _ = managers(backend)
    push(data, "x", [1, 2])
    data.add_shared_constants({"table": [3, 4]})
    feed = CUDAFunctionFeed(data)
    first, second = feed(["x", ("table", "shared")])
    assert first is data.tensor("x")
    assert (second.tolist(), second.device) == ([3, 4], data.device)
    assert feed([("n_envs", "meta")]) == [2]


@pytest.mark.parametrize("item", [3, ("x",), ("x", "d", "more"), ["x", "d"]])
def test_feed_refuses_other_items(item):
    """The feed accepts only names, with or without a source."""
    with pytest.raises(BindingError, match="an item must be a name or"):
        CUDAFunctionFeed(managers("cpu")[0])([item])


def test_feed_refuses_unknown_sources_and_names():
    """The feed refuses unknown sources and names."""
    feed = CUDAFunctionFeed(managers("cpu")[0])
    with pytest.raises(
        BindingError, match=r"unknown source of 'x' .got 'host'.; known are d, device, m, meta, s, shared"
    ):
        feed([("x", "host")])
    for item, what in (("x", "data"), (("x", "m"), "meta info"), (("x", "s"), "shared constant")):
        with pytest.raises(DataError, match=f"{what} 'x': does not exist"):
            feed([item])


# ------------------------------------------------------------------ shared constants


@pytest.mark.parametrize("backend", [each for each in BACKENDS_HERE if each.values[0] != "pycuda"])
def test_shared_constants_need_no_symbol_where_they_are_parameters(backend):
    """Off `pycuda`, constants only have to exist at initialisation.

    Kernels take them by name.
    """
    data, functions = filled(backend)
    data.add_shared_constants({"table": [1]})
    functions.initialize_shared_constants(data, ["table"])
    with pytest.raises(DataError, match="shared constant 'tabel': does not exist"):
        functions.initialize_shared_constants(data, ["tabel"])


@pytest.mark.gpu
@pytest.mark.skipif(all(each.values[0] != "pycuda" for each in BACKENDS_HERE), reason="pycuda is not available")
def test_shared_constants_are_copied_to_symbols(tmp_path):
    """On `pycuda`, constants are copied to their symbols.

    A missing symbol or wrong size raises.
    """
    source = tmp_path / "symbol.cu"
    source.write_text(
        'extern "C" { __constant__ int table[2]; }\n'
        "WD_KERNEL(read)(int* out, int n_envs) {\n"
        "  if (WD_BLOCK == 0 && WD_THREAD < 2) out[WD_THREAD] = table[WD_THREAD];\n"
        "}\n"
    )
    data, functions = managers("pycuda")
    functions.load({"cuda_c": source})
    push(data, "out", [0, 0])
    data.add_shared_constants({"table": [5, 6], "chart": [1]})
    functions.initialize_shared_constants(data, ["table"])
    functions.bind("read", data)()
    assert data.pull_data_from_device("out").tolist() == [5, 6]
    with pytest.raises(DataError, match="'chart': no loaded CUDA C source has a __constant__ of this name"):
        functions.initialize_shared_constants(data, ["chart"])


# ------------------------------------------------------------------ sequences


def test_sequence_launches_its_kernels_in_order_with_their_scalars(tmp_path):
    """A sequence launches its kernels in order, with their scalars."""
    source = tmp_path / "steps.cu"
    source.write_text("""
WD_KERNEL(add)(int (*value)[N_AGENTS], int amount, int n_envs) {
  WD_EACH_AGENT(local, env, agent) value[env][agent] += amount;
}
WD_KERNEL(twice)(int (*value)[N_AGENTS], int n_envs) { WD_EACH_AGENT(local, env, agent) value[env][agent] *= 2; }
""")
    data, functions = managers("host", n_agents=5, n_envs=3)
    push(data, "value", np.zeros((3, 5), np.int32))
    functions.load({"cuda_c": source})
    functions.define_sequence("step", [("add", {"amount": 3}), ("twice", {}), ("add", {"amount": 1})])
    functions.initialize_functions(["step", "twice"])
    step = functions.get_function("step").bound_to(data)
    step()
    step()
    assert data.pull_data_from_device("value").tolist() == [[21] * 5] * 3
    with pytest.raises(BindingError, match="'step': is a sequence of kernels, bound by name"):
        step(data.tensor("value"), 3)
    with pytest.raises(CompileError, match="kernel 'step': is loaded already"):
        functions.define_sequence("step", [("twice", {})])
    with pytest.raises(CompileError, match="kernel 'thrice': is not loaded"):
        functions.define_sequence("other", [("thrice", {})])
