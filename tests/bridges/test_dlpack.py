"""Arrays as DLPack: shared with NumPy and torch, filled from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.environments.lookout import Lookout, seen
from tests.support import managers, on_every_backend, push
from warpdrive_min import CUDADataManager, EnvWrapper
from warpdrive_min.bridges.dlpack import assign, export
from warpdrive_min.errors import DataError


def data_with(**arrays: object) -> CUDADataManager:
    """Return a data manager on the CPU with these arrays."""
    data = managers("cpu")[0]
    for name, value in arrays.items():
        push(data, name, value)
    return data


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_export_shares_memory_with_numpy(dtype):
    """NumPy and our array each read the other's writes."""
    data = data_with(x=np.arange(6, dtype=dtype).reshape(2, 3))
    shared = np.from_dlpack(export(data, "x"))
    assert (shared.shape, shared.dtype) == ((2, 3), dtype)
    shared[0, 1] = 9
    assert data.tensor("x")[0, 1] == 9
    data.tensor("x")[1, 2] = 7
    assert shared.tolist() == [[0, 9, 2], [3, 4, 7]]


@on_every_backend
def test_export_shares_memory_with_torch_on_every_backend(backend):
    """Torch gets the array's address on its device."""
    data, _ = managers(backend)
    push(data, "x", np.ones((2, 3), np.float32))
    shared = torch.from_dlpack(export(data, "x"))
    assert (shared.data_ptr(), shared.device) == (data.tensor("x").data_ptr(), data.device)


@on_every_backend
def test_export_shares_every_part_of_dict_observations(backend):
    """Exported parts share the data manager's memory, also after steps."""
    wrapper = EnvWrapper(Lookout(), num_envs=2, env_backend=backend)
    wrapper.reset()
    data = wrapper.cuda_data_manager
    parts = {key: torch.from_dlpack(export(data, f"observations_{key}")) for key in seen(0, 0, 0)}
    data.tensor("sampled_actions").fill_(2)
    wrapper.step()
    for key, part in parts.items():
        assert part.data_ptr() == data.tensor(f"observations_{key}").data_ptr()
        np.testing.assert_array_equal(part.cpu(), [[seen(agent, 1, 2)[key] for agent in (0, 1)]] * 2)


def test_export_outlives_the_data_manager():
    """An exported array stays valid without its data manager."""
    data = data_with(x=np.arange(1000, dtype=np.float32))
    shared = np.from_dlpack(export(data, "x"))
    del data
    assert shared.sum() == 499500


def test_assign_copies_from_an_array_or_a_capsule():
    """`assign` converts and copies numbers into the array."""
    data = data_with(x=np.zeros((2, 3), np.int32))
    address, source = data.tensor("x").data_ptr(), np.arange(6, dtype=np.int64).reshape(2, 3)
    assign(data, "x", source)
    source[:] = 0
    assert data.tensor("x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assign(data, "x", torch.utils.dlpack.to_dlpack(torch.full((2, 3), 8, dtype=torch.int32)))
    assert data.tensor("x").tolist() == [[8] * 3] * 2
    assert data.tensor("x").data_ptr() == address


def test_unknown_names_and_other_shapes_are_errors():
    """The error lists the names and the expected shape."""
    data = data_with(x=np.zeros((2, 3), np.float32))
    with pytest.raises(DataError, match=r"data 'y': does not exist; known are .*, x"):
        export(data, "y")
    with pytest.raises(DataError, match=r"assign: 'x' must get shape .2, 3. .got .3, 2."):
        assign(data, "x", np.zeros((3, 2), np.float32))


@pytest.mark.parametrize("as_capsule", [False, True])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_negative_strides_are_refused(as_capsule, version):
    """Arrays with negative strides are refused; torch would abort."""
    data, source = data_with(x=np.zeros((2, 3), np.float32)), np.ones((2, 3), np.float32)[:, ::-1]
    given = source.__dlpack__(max_version=version) if as_capsule else source
    with pytest.raises(DataError, match=r"'x' must get an array .*negative strides: copy it first"):
        assign(data, "x", given)
    assert data.tensor("x").tolist() == [[0] * 3] * 2
    assign(data, "x", source.copy())
    assert data.tensor("x").tolist() == [[1] * 3] * 2


@pytest.mark.parametrize(
    ("dtype", "values", "wrong"),
    [
        (np.int32, np.array([0, 2**40 + 5]), 2**40 + 5),
        (np.int32, np.array([-(2**31) - 1, 0]), -(2**31) - 1),
        (np.int32, np.array([0, 2**32 - 1], np.uint32), 2**32 - 1),
        (np.int32, np.array([0, 2**64 - 1], np.uint64), 2**64 - 1),
        (np.uint8, np.array([0, -1], np.int8), -1),
        (np.float32, np.array([0, 1e300]), 1e300),
    ],
)
def test_numbers_out_of_range_are_refused(dtype, values, wrong):
    """Numbers out of range raise an error with the number."""
    data = data_with(x=np.zeros(2, dtype))
    with pytest.raises(DataError, match=r"assign: 'x': must be from .*, the range of torch") as caught:
        assign(data, "x", torch.from_numpy(values))
    assert caught.value.got == wrong
    assert data.tensor("x").tolist() == [0, 0]


def test_numbers_within_range_are_converted():
    """Ends of the range, infinities and NaN are converted."""
    data = data_with(x=np.zeros(3, np.int32), y=np.zeros(3, np.float32), z=np.zeros((0,), np.float32))
    for source in (np.array([-(2**31), 0, 2**31 - 1]), np.array([0, 1, 2**31 - 1], np.uint64)):
        assign(data, "x", source)
        assert data.tensor("x").tolist() == source.tolist()
    assign(data, "y", torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=torch.float16))
    assert data.tensor("y")[:2].tolist() == [np.inf, -np.inf]
    assert data.tensor("y")[2].isnan()
    assign(data, "z", np.zeros(0, np.float16))


def test_tensor_of_a_graph_is_assigned_without_it():
    """Assigning a tensor with gradients keeps the array out of its graph."""
    data = data_with(x=np.zeros(2, np.float32))
    assign(data, "x", torch.ones(2, requires_grad=True) * 2)
    assert data.tensor("x").tolist() == [2, 2]
    assert not data.tensor("x").requires_grad
