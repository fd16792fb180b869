"""Data manager: storage of arrays and scalars, and refused input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import managers, on_every_backend, push
from warpdrive_min import CUDADataManager, DataFeed
from warpdrive_min import data_manager as module
from warpdrive_min.errors import DataError, DeviceMemoryError


@pytest.fixture
def data() -> CUDADataManager:
    """A manager of 2 environments of 3 agents."""
    return managers("cpu")[0]


# ------------------------------------------------------------------ construction


@on_every_backend
def test_reserved_arrays_are_there_and_zero(backend):
    """Reserved arrays exist from the start, as zeros on the device."""
    data, _ = managers(backend, n_envs=2, episode_length=4)
    want = {"_done_": (2,), "_timestep_": (2,), "_episode_": (2,), "_reset_seed_": (2,), "_log_mask_": (5,)}
    for name, shape in want.items():
        tensor = data.tensor(name)
        assert (tuple(tensor.shape), tensor.dtype, tensor.device) == (shape, torch.int32, data.backend.device)
        assert not tensor.any()
    assert set(data.array_names()) == set(want)
    assert data.is_data_on_device_via_torch("_done_")
    assert not data.is_data_on_device_via_torch("_timestep_")


# ------------------------------------------------------------------ meta information and shared constants


def test_meta_info_is_32_bits_wide(data):
    """Meta information is int32 or float32, and includes sizes."""
    data.add_meta_info({"learning_rate": 0.01, "n_steps": 7, "flag": True})
    got = {name: data.meta_info(name) for name in ("n_agents", "n_envs", "blocks_per_env", "episode_length", "n_steps")}
    assert got == {"n_agents": 3, "n_envs": 2, "blocks_per_env": 1, "episode_length": 4, "n_steps": 7}
    assert {type(value) for value in got.values()} == {np.int32}
    assert data.meta_info("learning_rate") == np.float32(0.01)
    assert type(data.meta_info("learning_rate")) is np.float32
    assert type(data.meta_info("flag")) is np.int32


def test_shared_constants_are_narrowed_and_read_back(data):
    """Shared constants become 32 bits wide, and can be read."""
    data.add_shared_constants({"table": [[1, 2], [3, 4]], "rate": 0.5, "angles": np.array([1.0, 2.0])})
    assert data.shared_constant("table").dtype == np.int32
    assert data.shared_constant("angles").dtype == np.float32
    assert data.shared_constant("rate") == np.float32(0.5)


@on_every_backend
def test_shared_constant_reaches_kernels_as_one_device_array(backend):
    """A kernel gets a shared constant as one array or scalar."""
    data, _ = managers(backend)
    data.add_shared_constants({"table": [1, 2], "rate": 0.5})
    argument = data.shared_argument("table")
    assert argument.tolist() == [1, 2]
    assert argument.device == data.device
    assert data.shared_argument("table") is argument
    assert data.find("table") is argument
    assert data.find("rate") == 0.5


# ------------------------------------------------------------------ push and pull


@on_every_backend
@pytest.mark.parametrize("torch_accessible", [False, True])
def test_push_and_pull_return_what_was_given(backend, torch_accessible):
    """Pulls return pushed values, 32 bits wide."""
    data, _ = managers(backend)
    floats, integers = np.random.default_rng(0).random((2, 3)), [[1, 2], [-3, 2**31 - 1]]
    feed = DataFeed()
    feed.add_data_list([("floats", floats), ("integers", integers), ("count", 7), ("rate", 0.1), ("flag", True)])
    data.push_data_to_device(feed, torch_accessible)
    np.testing.assert_array_equal(data.pull_data_from_device("floats"), floats.astype(np.float32))
    np.testing.assert_array_equal(data.pull_data_from_device("integers"), integers)
    got = {name: data.pull_data_from_device(name) for name in ("count", "rate", "flag")}
    assert got == {"count": np.int32(7), "rate": np.float32(0.1), "flag": np.int32(1)}
    assert [data.get_dtype(name) for name in feed] == ["float32", "int32", "int32", "float32", "int32"]
    assert [data.get_shape(name) for name in feed] == [(2, 3), (2, 2), (), (), ()]
    assert data.is_data_on_device_via_torch("floats") == torch_accessible
    assert data.tensor("floats").device == data.device


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "int16", "float16", "uint32"])
def test_dtypes_that_are_not_64_bits_wide_stay(data, dtype):
    """Only float64 and int64 are narrowed."""
    push(data, "x", np.ones(3, dtype))
    assert data.get_dtype("x") == dtype
    assert data.pull_data_from_device("x").dtype == dtype


def test_pushed_and_pulled_arrays_are_copies(data):
    """Neither pushed nor pulled arrays share the device's memory."""
    given = np.zeros((2, 3), np.float32)
    push(data, "x", given)
    given[:] = 1
    data.pull_data_from_device("x")[:] = 2
    assert not data.tensor("x").any()


def test_arrays_are_stored_in_row_major_order(data):
    """Arrays are stored in row-major order, which kernels index."""
    given = np.arange(6, dtype=np.float32).reshape(2, 3).T
    push(data, "x", given)
    assert data.tensor("x").is_contiguous()
    np.testing.assert_array_equal(data.pull_data_from_device("x"), given)


def test_tensor_is_the_live_memory(data):
    """A tensor is live memory: pulls and kernels see torch's writes."""
    push(data, "x", np.zeros(3, np.float32))
    data.data_on_device_via_torch("x").fill_(4)
    assert data.pull_data_from_device("x").tolist() == [4, 4, 4]
    assert data.device_data("x") is data.find("x") is data.tensor("x")


def test_find_prefers_data_to_meta_information_to_shared_constants(data):
    """A lookup prefers data, then meta information, then constants."""
    data.add_shared_constants({"shared": 1, "n_envs": 2})
    assert data.find("n_envs") == 2
    push(data, "shared", np.float32(3))
    assert data.find("shared") == 3.0
    assert data.find("nothing") is None
    assert {"shared", "n_envs", "_done_"} <= set(data.names())


# ------------------------------------------------------------------ copies, saved rows, log buffers, pools


@on_every_backend
def test_n_copies_gives_each_environment_its_row(backend):
    """With `n_copies`, each environment gets its own row."""
    data, _ = managers(backend)
    push(data, "x", [1.0, 2.0, 3.0], n_copies=2, save_copy_and_apply_at_reset=True)
    data.tensor("x")[0] = 9
    assert data.pull_data_from_device("x").tolist() == [[9, 9, 9], [1, 2, 3]]
    assert data.tensor("x_at_reset").tolist() == [[1, 2, 3], [1, 2, 3]]
    assert data.reset_data_list == ["x"]


def test_logged_array_gets_a_buffer_for_one_environment(data):
    """A log has a row per step and one for the start.

    It has no axis of environments.
    """
    push(data, "x", np.ones((2, 3, 4), np.float32), log_data_across_episode=True)
    assert tuple(data.tensor("x_for_log").shape) == (5, 3, 4)
    assert not data.tensor("x_for_log").any()
    assert data.log_data_list == ["x"]


def test_pool_is_found_by_its_target(data):
    """A pool's flags are ignored, and its target refers to it."""
    feed = DataFeed()
    feed.add_data("x", np.zeros((2, 3)))
    feed.add_pool_for_reset("x_reset_pool", np.zeros((7, 3)), "x")
    data.push_data_to_device(feed)
    assert data.get_reset_pool("x") == "x_reset_pool"
    assert data.reset_data_list == data.log_data_list == []


# ------------------------------------------------------------------ reset_device


@on_every_backend
def test_reset_device_restores_in_place(backend):
    """`reset_device` restores one or all arrays in place."""
    data, _ = managers(backend)
    push(data, "x", [1.0, 2.0], n_copies=2)
    push(data, "y", np.array([3, 4]))
    push(data, "scalar", 5)
    addresses = [data.tensor(name).data_ptr() for name in ("x", "y", "_done_")]
    for name in ("x", "y", "_done_"):
        data.tensor(name).fill_(8)
    data.reset_device("x")
    assert data.pull_data_from_device("x").tolist() == [[1, 2], [1, 2]]
    assert data.pull_data_from_device("y").tolist() == [8, 8]
    data.reset_device("scalar")
    data.reset_device()
    assert data.pull_data_from_device("y").tolist() == [3, 4]
    assert data.pull_data_from_device("_done_").tolist() == [0, 0]
    assert [data.tensor(name).data_ptr() for name in ("x", "y", "_done_")] == addresses


# ------------------------------------------------------------------ errors


def push_pools(data: CUDADataManager, **targets: np.ndarray) -> None:
    """Push pools by name, all of the array "x"."""
    feed = DataFeed()
    for name, pool in targets.items():
        feed.add_pool_for_reset(name, pool, "x")
    data.push_data_to_device(feed)


SAVED = {"save_copy_and_apply_at_reset": True}
LOGGED = {"log_data_across_episode": True}
REFUSED = {
    "meta info twice": (lambda data: data.add_meta_info({"n_envs": 1}), "'n_envs': exists already"),
    "meta info of a word": (lambda data: data.add_meta_info({"word": "seven"}), "must be a number, .* .got str"),
    "no meta info": (lambda data: data.meta_info("n_worlds"), "meta info 'n_worlds': does not exist; known .*n_envs"),
    "constant twice": (lambda data: data.add_shared_constants({"rate": 1}), "constant 'rate': exists already"),
    "no constant": (lambda data: data.shared_constant("rat"), "constant 'rat': does not exist; known are rate"),
    **{
        f"value {value}": (lambda data, value=value: push(data, "x", value), "'x': must (be a number|hold numbers)")
        for value in ("text", None, {"a": 1}, ["a", "b"], np.array([1j]), {1, 2})
    },
    **{
        f"integer {value}": (lambda data, value=value: push(data, "x", value), "'x': integers become 32 bits wide")
        for value in (2**31, -(2**31) - 1, np.int64(2**40), [0, 2**31], np.array([-(2**40)]))
    },
    **{
        f"real number {value}": (lambda data, value=value: push(data, "x", value), "'x': real numbers become 32 bits")
        for value in (1e300, [0, -1e39], np.array(1e40))
    },
    **{
        f"{name} twice, {value}": (
            lambda data, name=name, value=value: push(data, name, value),
            f"'{name}': was pushed already; use another name",
        )
        for name in ("_done_", "array", "scalar")
        for value in (1, np.zeros(2))
    },
    **{
        f"copy {suffix}": (
            lambda data, suffix=suffix: (
                push(data, "x" + suffix, np.zeros(2)),
                push(data, "x", np.zeros((2, 3)), **SAVED, **LOGGED),
            ),
            f"'x{suffix}': was pushed already",
        )
        for suffix in ("_at_reset", "_for_log")
    },
    **{
        f"{ask} of nothing": (
            lambda data, ask=ask: getattr(data, ask)("_dnoe_"),
            "data '_dnoe_': does not exist; known are .*_done_",
        )
        for ask in ("tensor", "device_data", "pull_data_from_device", "get_shape", "get_dtype", "reset_device")
    },
    **{
        f"log of {shape}": (
            lambda data, shape=shape: push(data, "x", np.zeros(shape), **LOGGED),
            r"\(n_envs, n_agents, ...\) = \(2, 3, ...\) to be logged",
        )
        for shape in ((2,), (3, 2), (2, 4), (5, 3))
    },
    "no pool": (lambda data: data.get_reset_pool("y"), "reset pool of 'y': does not exist; known are none"),
    "saved, then a pool": (
        lambda data: (push(data, "x", np.zeros((2, 3)), **SAVED), push_pools(data, pool=np.zeros((7, 3)))),
        "'pool' of 'x': the target has a saved copy",
    ),
    "a pool, then saved": (
        lambda data: (push_pools(data, pool=np.zeros((7, 3))), push(data, "x", np.zeros((2, 3)), **SAVED)),
        "'x': is refilled from a pool",
    ),
    "pool of a row": (lambda data: push_pools(data, pool=np.zeros((1, 3))), "at least 2 rows"),
    "pool of a number": (lambda data: push_pools(data, pool=np.zeros(())), "at least 2 rows"),
    "two pools": (
        lambda data: push_pools(data, first=np.zeros((2, 3)), second=np.zeros((2, 3))),
        "'second' of 'x': the target has the pool 'first' already",
    ),
}
"""Refused calls, with their errors.

The manager has an array, a scalar and a constant.
"""


@pytest.mark.parametrize("case", REFUSED)
def test_data_manager_refuses(case, data):
    """Invalid names and numbers are refused, and nothing is stored."""
    push(data, "array", np.zeros(3))
    push(data, "scalar", 1)
    data.add_shared_constants({"rate": 0.5})
    call, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        call(data)
    assert case == "saved, then a pool" or not data.is_data_on_device("x")


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("allocates", ["clone", "zeros", "to"])
def test_full_device_says_what_was_asked_and_what_is_free(data, monkeypatch, allocates):
    """The error of a full device has name, bytes and free bytes."""

    def full(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(data, "free_bytes", lambda: 1234567)
    monkeypatch.setattr(module.torch if allocates == "zeros" else torch.Tensor, allocates, full)
    # 2 rows of 3 floats, a saved copy of them, and 5 logged rows: 24 + 24 + 60 bytes
    with pytest.raises(
        DeviceMemoryError, match=r"'x': cpu has too little memory .asked for 108 bytes, 1,234,567 are free"
    ):
        push(data, "x", np.ones(3), n_copies=2, save_copy_and_apply_at_reset=True, log_data_across_episode=True)
    monkeypatch.undo()
    assert not data.is_data_on_device("x")
    assert not data.is_data_on_device("x_at_reset")
    assert data.reset_data_list == data.log_data_list == []


@on_every_backend
def test_free_bytes_is_plausible(backend):
    """Free memory is between 16 MB and 64 TB."""
    assert 2**24 < managers(backend)[0].free_bytes() < 2**46
